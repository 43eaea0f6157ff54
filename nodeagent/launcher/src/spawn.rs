//! Starts one rank. The process has one thread, so that its children may execute any code before
//! exec.
#![allow(unsafe_code, reason = "code between fork and exec, and a signal as a file")]

use crate::account::Account;
use crate::isolation::end_sparing;
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, umask};
use rustix::thread::{
    Gid, Uid, clear_ambient_capability_set, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Exit status of a process that could not execute its program. It is not reported.
const NOT_EXECUTED: i32 = 127;

/// The conditions under which a rank runs, in addition to its program.
#[derive(Debug)]
pub(crate) struct SpawnConditions<'a> {
    /// The account of the rank, if it differs from that of this process.
    pub(crate) account: Option<&'a Account>,
    /// The file by which the rank must join its cgroup, if it has one.
    pub(crate) procs: Option<&'a File>,
    /// The working directory; empty for that of this process.
    pub(crate) workdir: &'a str,
    /// Whether this process is spared when memory is exhausted, which its ranks must not be.
    pub(crate) ends_sparing: bool,
}

/// The reason why a rank's program could not be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartFailure {
    /// The exit status that a shell would return, or -1.
    pub(crate) code: i32,
    /// The reason with a remedy.
    pub(crate) reason: String,
}

/// A process that has been started to execute a rank's program. It may have to wait before it can
/// do so, for example for a file system that does not respond.
#[derive(Debug)]
pub(crate) struct StartingProcess {
    /// The number of the process, which is also that of its process group.
    pub(crate) pid: Pid,
    /// The process writes its [`StartFailure`] to this pipe if it cannot execute the program.
    /// Otherwise the pipe ends without data when it executes the program.
    outcome: PipeReader,
}

impl StartingProcess {
    /// Returns the file that becomes readable when the outcome is known.
    pub(crate) fn outcome(&self) -> BorrowedFd<'_> {
        self.outcome.as_fd()
    }

    /// Returns the outcome, which must be known: `None` if the process executes the program or has
    /// been killed, otherwise the reason why it cannot.
    pub(crate) fn finish(mut self) -> io::Result<Option<StartFailure>> {
        let mut report = [0; libc::PIPE_BUF];
        // One call receives the whole report. A second one could wait for the process.
        let bytes = self.outcome.read(&mut report)?;
        let Some((code, reason)) = report[..bytes].split_first_chunk() else { return Ok(None) };
        let reason = String::from_utf8_lossy(reason).into_owned();
        Ok(Some(StartFailure { code: i32::from_ne_bytes(*code), reason }))
    }
}

/// Starts a process that executes `command` under these conditions, as the leader of its own
/// process group. The process is killed when this process ends. Returns without waiting for exec,
/// because the files of the job's user may make it wait forever. For the same reason, the child
/// calls `explain` if it cannot execute the program.
///
/// This process must have only one thread.
pub(crate) fn spawn(
    mut command: Command,
    conditions: &SpawnConditions<'_>,
    explain: impl FnOnce(&io::Error) -> StartFailure,
) -> io::Result<StartingProcess> {
    let workdir = CString::new(conditions.workdir)?;
    let procs: Option<RawFd> = conditions.procs.map(AsRawFd::as_raw_fd);
    let identity = conditions.account.map(|account| {
        let groups: Vec<Gid> = account.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        (Uid::from_raw(account.uid), Gid::from_raw(account.gid), groups)
    });
    let parent = rustix::process::getpid();
    let ends_sparing = conditions.ends_sparing;
    let prepare = move || {
        if ends_sparing {
            end_sparing();
        }
        prepare(procs, identity.as_ref(), &workdir, parent)
    };
    // SAFETY: the child is the copy of a process with one thread; see below.
    unsafe { command.pre_exec(prepare) };
    command.process_group(0);
    let (outcome, failure) = io::pipe()?;
    // SAFETY: this process has only one thread, so no lock is held in the child, which may
    // therefore allocate memory like this process.
    match unsafe { libc::fork() } {
        0 => execute(command, failure, explain),
        child => {
            // The value is negative if there is no child.
            let pid = Pid::from_raw(child).filter(|_| child > 0).ok_or_else(io::Error::last_os_error)?;
            // The child does the same. Whichever is first, the process group exists from now on. An
            // error means that the child has executed its program already.
            let _ = rustix::process::setpgid(Some(pid), Some(pid));
            Ok(StartingProcess { pid, outcome })
        }
    }
}

/// Executes the command in the child. If that is impossible, reports the reason and ends.
fn execute(
    mut command: Command,
    mut failure: PipeWriter,
    explain: impl FnOnce(&io::Error) -> StartFailure,
) -> ! {
    // Ends the process also if a panic unwinds, because the child must not continue as a
    // supervisor.
    let guard = ExitGuard;
    let StartFailure { code, reason } = explain(&command.exec());
    let mut report = code.to_ne_bytes().to_vec();
    // The system writes this many bytes at once, so the supervisor can read them at once.
    report.extend(reason.bytes().take(libc::PIPE_BUF - report.len()));
    // An error means that the supervisor has ended.
    let _ = failure.write_all(&report);
    drop(guard);
    unreachable!("the guard has ended the process")
}

/// Ends this process when it is dropped.
struct ExitGuard;

impl Drop for ExitGuard {
    fn drop(&mut self) {
        // SAFETY: the call ends the process at once.
        unsafe { libc::_exit(NOT_EXECUTED) }
    }
}

/// Prepares the child before exec. The working directory must be entered last, because the user's
/// permissions apply to it.
fn prepare(
    procs: Option<RawFd>,
    identity: Option<&(Uid, Gid, Vec<Gid>)>,
    workdir: &CString,
    parent: Pid,
) -> io::Result<()> {
    if let Some(procs) = procs {
        // SAFETY: the parent keeps the file open, and so does the child's copy; the bytes are a
        // constant.
        if unsafe { libc::write(procs, b"0".as_ptr().cast(), 1) } != 1 {
            return Err(io::Error::last_os_error());
        }
    }
    if let Some((uid, gid, groups)) = identity {
        // These calls affect the calling thread, which is the only one.
        set_thread_groups(groups)?;
        set_thread_res_gid(*gid, *gid, *gid)?;
        set_thread_res_uid(*uid, *uid, *uid)?;
    }
    // Otherwise, ranks of an agent without a launcher would inherit its right to send any frame.
    clear_ambient_capability_set()?;
    umask(Mode::from_raw_mode(0o022));
    // This call must follow the change of user, which resets the setting. If the parent has ended
    // before the call, the kernel sends no signal, so the child must check.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    if !workdir.is_empty() {
        rustix::process::chdir(workdir.as_c_str())?;
    }
    Ok(())
}

/// Blocks SIGCHLD, and returns a signalfd(2) that becomes readable when children have ended.
/// Programs that are executed do not inherit it.
pub(crate) fn child_ends() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialized before it is used, and its address is valid throughout.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let descriptor = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // The descriptor has no other owner.
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}
