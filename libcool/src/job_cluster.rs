//! A cluster for one job on machines without agents: ranks start a controller and agents by the
//! program `cool`, and meet at the address of a master.
//!
//! All ranks of a machine share a directory. The first of them to lock it runs `cool up`, if the
//! machine has the master's address, or else `cool join`; the others find the agent's socket in a
//! file. Each rank holds a shared lock of that file until its process ends, however that happens.
//! The command waits for that (`--until-unlocked`), then ends the agent and removes all files. Both
//! sides derive the secret with which machines join from a key of the job, so they need no token.

use crate::error::Error;
use crate::files::named_program;
use crate::signal_mask::unblock_signals;
use cool_types::fnv;
use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::retry_on_intr;
use rustix::process::geteuid;
use serde::Deserialize;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, Write};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Environment variables: the master, with a port or without, a secret that strangers do not know,
/// the network interface for data, and further options of `cool-nodeagent`.
const MASTER: &str = "COOL_MASTER";
const MASTER_KEY: &str = "COOL_MASTER_KEY";
const INTERFACE: &str = "COOL_INTERFACE";
const AGENT_OPTIONS: &str = "COOL_AGENT_OPTIONS";
/// The master according to torchrun and other launchers. Its port belongs to torch.
const MASTER_ADDR: &str = "MASTER_ADDR";

/// The variable by which `cool up` and `cool join` get the key of the job.
const JOIN_KEY: &str = "COOL_JOIN_KEY";
/// Default port at which machines join.
const PORT: u16 = 7402;
/// Time in seconds for which a machine waits for the master, as ranks wait for each other.
const MASTER_TIMEOUT_SECONDS: &str = "300";
/// Number of attempts to lock the file of the ranks while an earlier run of the job removes it.
const TRIES: u32 = 100;

/// The agent of this process's job, if the process has started or found one.
static JOB_AGENT: Mutex<Option<JobAgent>> = Mutex::new(None);
/// The directory in which the program `cool` is searched for first.
static PROGRAM_DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Sets a directory in which the program `cool` is searched for before `PATH`, because an
/// interpreter may have its programs elsewhere. Only the first call has an effect.
pub fn set_program_directory(directory: PathBuf) {
    // A later call has no effect.
    let _ = PROGRAM_DIRECTORY.set(directory);
}

/// The master of a job without agents, and the key of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobCluster {
    master: String,
    key: String,
}

/// An agent that the ranks of this machine use.
struct JobAgent {
    cluster: JobCluster,
    socket: PathBuf,
    /// The shared lock, which is held until this process ends.
    _ranks: File,
}

/// The part of the command's output that is needed.
#[derive(Deserialize)]
struct StartedAgent {
    socket: PathBuf,
}

impl JobCluster {
    /// Returns the cluster of a job according to its variables, or `None` if they name no master.
    /// `explicit` is whether only COOL_MASTER counts.
    pub(crate) fn from_variables(
        lookup: impl Fn(&str) -> Option<OsString>,
        job: &str,
        explicit: bool,
    ) -> Option<JobCluster> {
        let text = |name: &str| Some(lookup(name)?.to_string_lossy().into_owned()).filter(|t| !t.is_empty());
        let master = text(MASTER).or_else(|| text(MASTER_ADDR).filter(|_| !explicit))?;
        let key = text(MASTER_KEY).unwrap_or_default();
        Some(JobCluster { master, key: format!("{job} {key}") })
    }

    /// Returns the socket of this machine's agent, which the first rank of the machine starts.
    ///
    /// # Errors
    /// If the agent cannot be started. The error names the rank.
    pub(crate) fn socket(&self, rank: u32) -> Result<PathBuf, Error> {
        let mut agent = JOB_AGENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = agent.as_ref().filter(|agent| agent.cluster == *self) {
            return Ok(agent.socket.clone());
        }
        let started = self.start().map_err(|message| Error::JobCluster { rank: rank as usize, message })?;
        Ok(agent.insert(started).socket.clone())
    }

    fn start(&self) -> Result<JobAgent, String> {
        let machine = machine().map_err(|e| format!("cannot identify this machine: {e}"))?;
        let names = [&machine, &self.master, &self.key];
        let number = fnv(names.iter().flat_map(|name| name.bytes().chain([0])));
        let directory = std::env::temp_dir().join(format!("cool-job-{}-{number:016x}", geteuid().as_raw()));
        let failed = |e: io::Error| format!("{}: {e}", directory.display());
        let (starting, mut ranks) = lock(&directory).map_err(failed)?;
        let mut text = String::new();
        ranks.read_to_string(&mut text).map_err(failed)?;
        let found = serde_json::from_str(&text).ok().map(|StartedAgent { socket }| socket);
        let agent = |socket, ranks| JobAgent { cluster: self.clone(), socket, _ranks: ranks };
        // The file of a run that was killed names an agent that does not run.
        if let Some(socket) = found.filter(|socket| UnixStream::connect(socket).is_ok()) {
            return Ok(agent(socket, ranks));
        }
        let line = self.run_command(&directory, number)?;
        let StartedAgent { socket } = serde_json::from_str(&line)
            .map_err(|e| format!("the output of `cool` is not understood: {e}: {line}"))?;
        ranks.set_len(0).and_then(|()| ranks.rewind()).map_err(failed)?;
        ranks.write_all(line.as_bytes()).map_err(failed)?;
        drop(starting);
        Ok(agent(socket, ranks))
    }

    /// Runs the command that starts this machine's agent, and returns the line that it prints. The
    /// name of the agent contains `number`, because each job must have agents of its own. The
    /// command ends later than this process, so nothing waits for it.
    fn run_command(&self, directory: &Path, number: u64) -> Result<String, String> {
        let master = resolve(&self.master)?;
        let interface = std::env::var_os(INTERFACE).filter(|name| !name.is_empty());
        let mut command = Command::new(program());
        let interface = if UdpSocket::bind((master.ip(), 0)).is_ok() {
            command.args(["up", "--controller-port", "0", "--join-port", &master.port().to_string()]);
            // Other machines do not reach the master by its loopback address.
            interface.or_else(|| (!master.ip().is_loopback()).then(|| master.ip().to_string().into()))
        } else {
            command.args(["join", "--server", &master.to_string(), "--wait", MASTER_TIMEOUT_SECONDS]);
            interface
        };
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host = host.split('.').next().unwrap_or_default();
        let name = format!("{host}-{:08x}", number >> 32);
        command.args(["--json", "--name", &name, "--state"]).arg(directory);
        command.arg("--until-unlocked").arg(directory.join(RANKS));
        if let Some(interface) = interface {
            command.arg("--interface").arg(interface);
        }
        command.args(["--", "--udp-port", "0", "--tcp-port", "0", "--probe-port", "0"]);
        if geteuid().is_root() {
            // The ranks are root, too.
            command.arg("--allow-root");
        }
        command.args(std::env::var(AGENT_OPTIONS).unwrap_or_default().split_whitespace());
        // Launchers wait until no process has their pipes open, so errors go to a file.
        let path = directory.join("errors");
        let errors = File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        command.env(JOIN_KEY, &self.key).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        unblock_signals(&mut command);
        // Ctrl-C must not end it before the ranks.
        let mut child = command.process_group(0).spawn().map_err(|e| {
            let program = command.get_program().to_string_lossy().into_owned();
            format!("cannot run {program}: {e}; install COOL's programs, or name `cool` by COOL_PROGRAM")
        })?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            // Without a line, the command ends and has reported why.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        let reported = fs::read_to_string(&path);
        let removed = fs::remove_file(&path);
        if !line.is_empty() {
            removed.map_err(|e| format!("{}: {e}", path.display()))?;
            return Ok(line);
        }
        let status = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        let reported = reported.unwrap_or_default();
        Err(if reported.trim().is_empty() { status } else { reported.trim().to_owned() })
    }
}

/// The file of the ranks in their directory.
const RANKS: &str = "ranks";

/// Locks the directory of this machine's ranks, and shares the lock of their file. Returns both.
fn lock(directory: &Path) -> io::Result<(File, File)> {
    for _ in 0..TRIES {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        match try_lock(directory) {
            Ok(Some(locked)) => return Ok(locked),
            Ok(None) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other("other processes keep removing it"))
}

/// Like [`lock`], but returns `None` if an earlier run of the job has just removed the file.
fn try_lock(directory: &Path) -> io::Result<Option<(File, File)>> {
    let metadata = fs::symlink_metadata(directory)?;
    if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "it is not a directory of this user alone"));
    }
    let starting = File::open(directory)?;
    retry_on_intr(|| flock(&starting, FlockOperation::LockExclusive))?;
    let path = directory.join(RANKS);
    let ranks =
        File::options().create(true).read(true).write(true).truncate(false).mode(0o600).open(&path)?;
    // The command of an earlier run has an exclusive lock while it ends its agent, and then removes
    // the file.
    retry_on_intr(|| flock(&ranks, FlockOperation::LockShared))?;
    let is_same = fs::metadata(&path).is_ok_and(|now| fstat(&ranks).is_ok_and(|own| own.st_ino == now.ino()));
    Ok(is_same.then_some((starting, ranks)))
}

/// Returns the address of a master, which may be given as HOST or HOST:PORT.
fn resolve(master: &str) -> Result<SocketAddr, String> {
    let has_port =
        master.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let found = match has_port {
        true => master.to_socket_addrs(),
        false => (master.trim_start_matches('[').trim_end_matches(']'), PORT).to_socket_addrs(),
    };
    let found = found.map(|mut addresses| addresses.next());
    found.ok().flatten().ok_or_else(|| {
        format!(
            "the master {master} is not a known host; {MASTER} must be HOST or HOST:PORT of rank 0's machine"
        )
    })
}

/// Returns the program `cool`: `COOL_PROGRAM`, or next to this program or its interpreter, or in
/// `PATH`.
fn program() -> PathBuf {
    if let Some(program) = named_program() {
        return program.into();
    }
    let own = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let mut beside =
        PROGRAM_DIRECTORY.get().cloned().into_iter().chain(own).map(|folder| folder.join("cool"));
    beside.find(|program| program.is_file()).unwrap_or_else(|| "cool".into())
}

/// Returns an identifier of this machine, which is equal for processes that can use the same agent.
/// Containers are machines.
fn machine() -> io::Result<String> {
    let mut machine = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    for namespace in ["net", "mnt", "pid", "user"] {
        let inode = fs::metadata(format!("/proc/self/ns/{namespace}"))?.ino();
        machine.push_str(&format!(" {inode}"));
    }
    Ok(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_a_host_with_a_port_or_without() {
        let address = |text: &str| resolve(text).map(|address| address.to_string());
        assert_eq!(address("127.0.0.1"), Ok("127.0.0.1:7402".into()));
        assert_eq!(address("127.0.0.1:9000"), Ok("127.0.0.1:9000".into()));
        assert_eq!(address("::1"), Ok("[::1]:7402".into()));
        assert_eq!(address("[::1]:9000"), Ok("[::1]:9000".into()));
        let error = address("127.0.0.1:port").unwrap_err();
        assert!(error.contains("the master 127.0.0.1:port") && error.contains("HOST:PORT"), "{error}");
    }

    #[test]
    fn only_a_named_master_makes_a_cluster_for_a_job() {
        let cluster = |variables: &[(&str, &str)], explicit| {
            let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).into());
            JobCluster::from_variables(lookup, "job a", explicit)
        };
        let of = |master: &str, key: &str| Some(JobCluster { master: master.into(), key: key.into() });
        let torch = ("MASTER_ADDR", "h1");
        assert_eq!(cluster(&[torch], false), of("h1", "job a "));
        assert_eq!(cluster(&[torch], true), None);
        assert_eq!(
            cluster(&[torch, ("COOL_MASTER", "h2:1"), ("COOL_MASTER_KEY", "k")], true),
            of("h2:1", "job a k")
        );
        assert_eq!(cluster(&[("COOL_MASTER", "")], false), None);
    }

    #[test]
    fn ranks_of_a_machine_share_a_lock_that_its_end_releases() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("job");
        let (starting, first) = lock(&directory).unwrap();
        drop(starting);
        let (starting, second) = lock(&directory).unwrap();
        let watch = File::open(directory.join(RANKS)).unwrap();
        let is_unused = || flock(&watch, FlockOperation::NonBlockingLockExclusive).is_ok();
        drop((starting, first));
        assert!(!is_unused());
        drop(second);
        assert!(is_unused());

        // A later rank waits until the file is removed, and then creates another one. The old file
        // stays open, so that no other gets its number.
        let old = File::open(directory.join(RANKS)).unwrap();
        let inode = old.metadata().unwrap().ino();
        let later = {
            let directory = directory.clone();
            std::thread::spawn(move || lock(&directory).unwrap().1.metadata().unwrap().ino())
        };
        fs::remove_file(directory.join(RANKS)).unwrap();
        drop(watch);
        assert_ne!(later.join().unwrap(), inode);
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("job");
        DirBuilder::new().mode(0o755).create(&directory).unwrap();
        let error = lock(&directory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
}
