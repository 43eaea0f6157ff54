//! Programs of a deployment that run in the background.

use crate::deployment_dir::DeploymentDir;
use crate::error::DeployError;
use procfs::process::Process;
use procfs::sys::kernel::random::boot_id;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, accessat, flock};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Time within which a program must be ready. It is long, because busy machines and network file
/// systems take long to load programs.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time within which a program must end after SIGTERM. Agents first end their ranks.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Time within which a program must end after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of bytes of a notification.
const NOTIFICATION_BYTES: usize = 4096;
/// Number of bytes at the end of a log that are searched for its last line.
const LOG_TAIL_BYTES: usize = 2000;

/// A program that a deployment has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// The program's name within the deployment, which is also that of its log.
    pub program: String,
    /// Its process.
    pub pid: i32,
    /// Its start time in clock ticks since the system booted (field 22 of proc_pid_stat(5)). With
    /// `boot` it distinguishes the process from later ones with the same number.
    start_ticks: u64,
    /// The identifier of the system's boot.
    boot: String,
}

/// A program to start.
#[derive(Clone, Debug)]
pub struct ProgramLaunch {
    /// Its name within the deployment.
    pub name: &'static str,
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The notification (sd_notify(3)) by which it reports that it is ready: a line, or the
    /// beginning of one.
    pub ready: &'static str,
}

impl ProcessRecord {
    fn of(program: &str, pid: i32) -> Option<ProcessRecord> {
        Some(ProcessRecord {
            program: program.to_owned(),
            pid,
            start_ticks: start_ticks(pid)?,
            boot: boot()?,
        })
    }

    /// Returns whether the process still runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        boot().is_some_and(|boot| boot == self.boot) && start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Requests by SIGQUIT that the process ends as soon as other nodes do not need it, if it is an
    /// agent. Returns a watch on its end.
    ///
    /// # Errors
    /// If the process belongs to another user.
    pub fn request_end(&self) -> Result<ExitWatch, DeployError> {
        let Some(process) = self.descriptor() else { return Ok(ExitWatch::of_processes(Vec::new())) };
        match pidfd_send_signal(&process, Signal::QUIT) {
            Ok(()) | Err(Errno::SRCH) => Ok(ExitWatch::of_processes(vec![process])),
            Err(_) => Err(self.survives()),
        }
    }

    /// Returns a descriptor of the process, if it runs.
    fn descriptor(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.pid).filter(|_| self.runs())?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The descriptor refers to the process that has the number now.
        self.runs().then_some(process)
    }

    fn survives(&self) -> DeployError {
        DeployError::Survives { program: self.program.clone(), pid: self.pid }
    }

    /// Ends the process by SIGTERM, or by SIGKILL if it does not react, and waits for its end.
    /// Returns whether it was running.
    ///
    /// # Errors
    /// If the process survives.
    pub fn end(&self) -> Result<bool, DeployError> {
        let Some(process) = self.descriptor() else { return Ok(false) };
        for (signal, patience) in [(Signal::TERM, END_TIMEOUT), (Signal::KILL, KILL_TIMEOUT)] {
            match pidfd_send_signal(&process, signal) {
                Ok(()) if !has_ended(&process, Some(patience)) => {}
                Ok(()) | Err(Errno::SRCH) => return Ok(true),
                // It belongs to another user.
                Err(_) => return Err(self.survives()),
            }
        }
        Err(self.survives())
    }
}

/// A watch on the processes that use a deployment.
#[derive(Debug)]
pub struct ExitWatch(oneshot::Receiver<Option<LockedFile>>);

impl ExitWatch {
    /// Watches processes from now on. A number that no process has counts as one that has ended.
    ///
    /// # Errors
    /// If the system cannot watch a process.
    pub fn start(pids: &[i32]) -> Result<ExitWatch, DeployError> {
        let watch = |pid: &i32| match pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()) {
            Err(Errno::SRCH) => None,
            opened => Some(opened.map_err(|e| DeployError::Watch { pid: *pid, source: e.into() })),
        };
        Ok(ExitWatch::of_processes(pids.iter().filter_map(watch).collect::<Result<_, _>>()?))
    }

    /// Watches processes from now on, in a thread.
    fn of_processes(processes: Vec<OwnedFd>) -> ExitWatch {
        let (sender, ended) = oneshot::channel();
        std::thread::spawn(move || {
            if processes.iter().all(|process| has_ended(process, None)) {
                // The receiver may not wait any more.
                let _ = sender.send(None);
            }
        });
        ExitWatch(ended)
    }

    /// Watches the processes that have a lock of a file (flock(2)) from now on, in a thread.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn of_lock(path: &Path) -> Result<ExitWatch, DeployError> {
        let locked =
            LockedFile { path: path.to_owned(), file: File::open(path).map_err(DeployError::file(path))? };
        let (sender, ended) = oneshot::channel();
        std::thread::spawn(move || {
            if retry_on_intr(|| flock(&locked.file, FlockOperation::LockExclusive)).is_ok() {
                // The receiver may not wait any more.
                let _ = sender.send(Some(locked));
            }
        });
        Ok(ExitWatch(ended))
    }

    /// Waits until all of the processes have ended, or none of them has a lock. Returns the file
    /// that this process has locked instead, if there is one.
    pub async fn all_ended(&mut self) -> Option<LockedFile> {
        match (&mut self.0).await {
            Ok(locked) => locked,
            // The system cannot wait for them.
            Err(_) => std::future::pending().await,
        }
    }
}

/// A file that this process has locked until the value is dropped.
#[derive(Debug)]
pub struct LockedFile {
    path: PathBuf,
    file: File,
}

impl LockedFile {
    /// Removes the file, and its directory if that is empty then. Other processes that wait for the
    /// lock see that the file is gone.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(self) -> Result<(), DeployError> {
        fs::remove_file(&self.path).map_err(DeployError::file(&self.path))?;
        // Another process may have created files in it meanwhile.
        let _ = self.path.parent().map(fs::remove_dir);
        Ok(())
    }
}

/// Waits until a process has ended, at most for a time. Returns whether it has.
fn has_ended(process: &OwnedFd, at_most: Option<Duration>) -> bool {
    let at_most = at_most.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: 0 });
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], at_most.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Returns when a process started, or `None` if it has ended.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = Process::new(pid).and_then(|process| process.stat()).ok()?;
    // A process that has ended is a zombie until its parent waits for it, or dead for a moment if
    // its parent ignores its end.
    (!matches!(stat.state, 'Z' | 'X')).then_some(stat.starttime)
}

/// Returns the identifier of the system's boot.
fn boot() -> Option<String> {
    boot_id().ok()
}

/// Returns the path of a program of COOL: next to this one, or as found in PATH.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(name))
}

/// Returns the absolute path of a program that [`program`] has returned, which the current user
/// must be able to execute.
///
/// # Errors
/// If it does not exist in `PATH` or cannot be executed.
pub fn executable(path: &Path, account: &str) -> Result<PathBuf, DeployError> {
    let missing = || DeployError::Start { program: path.to_owned(), source: ErrorKind::NotFound.into() };
    let candidate = |directory: PathBuf| Some(directory.join(path)).filter(|path| path.is_file());
    let found = match path.is_absolute() {
        true => path.to_owned(),
        false => {
            let directories = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&directories).find_map(candidate).ok_or_else(missing)?
        }
    };
    match accessat(CWD, &found, Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => Ok(found),
        Err(e) => {
            Err(DeployError::NotExecutable { account: account.to_owned(), program: found, source: e.into() })
        }
    }
}

/// Starts a program in the background, waits until it is ready, and adds it to the processes of the
/// deployment. Its output is appended to its log. Must be called within a Tokio runtime.
///
/// # Errors
/// If the program cannot be started, ends, or is not ready in time; it does not run then.
pub async fn start(directory: &DeploymentDir, launch: &ProgramLaunch) -> Result<(), DeployError> {
    let sockets = directory.socket_dir()?;
    let socket = tempfile::Builder::new().prefix("ready-").make_in(&sockets, |path| UnixDatagram::bind(path));
    let socket = socket.map_err(DeployError::file(&sockets))?;
    let log = directory.log(launch.name);
    let open = || File::options().create(true).append(true).open(&log);
    let (output, errors) =
        (open().map_err(DeployError::file(&log))?, open().map_err(DeployError::file(&log))?);
    let mut child = Command::new(&launch.path)
        .args(&launch.arguments)
        .env("NOTIFY_SOCKET", socket.path())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        // Ctrl-C and the end of the terminal do not reach another process group.
        .process_group(0)
        .spawn()
        .map_err(|source| DeployError::Start { program: launch.path.clone(), source })?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let record = pid.and_then(|pid| ProcessRecord::of(launch.name, pid));
    let ready = timeout(READY_TIMEOUT, wait_until_ready(&mut child, socket.as_file(), launch.ready));
    let outcome = match ready.await {
        Ok(Ok(())) => record.ok_or(None),
        Ok(Err(status)) => Err(status),
        Err(_) => {
            // A program that hangs must not remain. If it has ended meanwhile, there is no error.
            let _ = child.kill().await;
            let (program, waited) = (launch.name.to_owned(), READY_TIMEOUT);
            return Err(DeployError::Slow { program, waited, last_line: last_line(&log), log });
        }
    };
    match outcome {
        Ok(record) => {
            let mut processes = directory.processes()?;
            processes.retain(|process| process.program != record.program);
            processes.push(record);
            directory.keep_processes(&processes)
        }
        Err(status) => {
            let last_line = match (last_line(&log), status) {
                (line, Some(status)) if line.is_empty() => status.to_string(),
                (line, _) => line,
            };
            Err(DeployError::Ended { program: launch.name.to_owned(), last_line, log })
        }
    }
}

/// Waits for a notification.
///
/// # Errors
/// If the program ends first: its status, if it is known.
async fn wait_until_ready(
    child: &mut Child,
    socket: &UnixDatagram,
    ready: &str,
) -> Result<(), Option<ExitStatus>> {
    let mut bytes = [0; NOTIFICATION_BYTES];
    loop {
        tokio::select! {
            ended = child.wait() => return Err(ended.ok()),
            received = socket.recv(&mut bytes) => {
                let text = String::from_utf8_lossy(&bytes[..received.map_err(|_| None)?]).into_owned();
                if text.lines().any(|line| line.starts_with(ready)) {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns the last line of a log, or an empty text.
fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let tail = &text[text.len().saturating_sub(LOG_TAIL_BYTES)..];
    String::from_utf8_lossy(tail).lines().last().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    fn script(text: &str) -> ProgramLaunch {
        let arguments = ["-c", text].map(OsString::from).into();
        ProgramLaunch { name: "agent", path: "/bin/sh".into(), arguments, ready: "READY=1" }
    }

    fn directory(node: &str) -> (tempfile::TempDir, DeploymentDir) {
        let state = tempfile::tempdir().unwrap();
        let directory = DeploymentDir::open(Some(state.path()), Some(node)).unwrap();
        (state, directory)
    }

    #[tokio::test]
    async fn a_program_that_ends_first_is_reported_with_its_last_line() {
        let (_state, directory) = directory("test-ends-first");
        let error = start(&directory, &script("echo no such interface; exit 3")).await.unwrap_err();
        assert!(matches!(&error, DeployError::Ended { last_line, .. } if last_line == "no such interface"));
        let error = start(&directory, &script("kill -9 $$")).await.unwrap_err();
        assert!(error.to_string().contains("no such interface") || error.to_string().contains("signal"));
        assert!(directory.processes().unwrap().is_empty());
        fs::remove_dir_all(directory.socket_dir().unwrap()).unwrap();
    }

    #[tokio::test]
    async fn the_end_of_all_watched_processes_is_awaited() {
        let sleep = || std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let mut processes = [sleep(), sleep()];
        let pids = processes.each_ref().map(|process| process.id() as i32);
        let mut watch = ExitWatch::start(&pids).unwrap();
        processes[1].kill().unwrap();
        assert!(timeout(Duration::from_millis(20), watch.all_ended()).await.is_err());
        processes[0].kill().unwrap();
        watch.all_ended().await;
        processes.iter_mut().for_each(|process| assert!(!process.wait().unwrap().success()));
        ExitWatch::start(&pids).unwrap().all_ended().await;
    }

    #[test]
    fn only_the_recorded_process_is_ended() {
        let mut child =
            std::process::Command::new("/bin/sleep").arg("1000").process_group(0).spawn().unwrap();
        let record = ProcessRecord::of("agent", child.id() as i32).unwrap();
        let other = ProcessRecord { start_ticks: record.start_ticks + 1, ..record.clone() };
        let earlier = ProcessRecord { boot: String::new(), ..record.clone() };
        assert!(record.runs() && !other.runs() && !earlier.runs());
        assert!(!other.end().unwrap() && !earlier.end().unwrap() && record.runs());
        assert!(record.end().unwrap() && !record.runs());
        child.wait().unwrap();
        assert!(!record.end().unwrap());
    }
}
