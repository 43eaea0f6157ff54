//! Tests of the supervisor of a job, without an agent, while a rank waits to execute its program.

use cool_launcher::LAUNCHER_VERSION;
use cool_proto::launcher::{
    Begin, End, Ended, Exited, Reply, Request, Signal, Start, Started, reply, request,
};
use cool_proto::seqpacket;
use prost::Message as _;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time within which the supervisor must reply. It is shorter than the 45 s after which the kernel
/// breaks a lease.
const PATIENCE: Duration = Duration::from_secs(30);

/// The command of fcntl(2) that chooses the signal of a lease's break.
const F_SETSIG: libc::c_int = 10;

/// A copy of `sleep` that cannot be executed yet: a process that tries to waits until the lease is
/// dropped, as for a file system that does not respond.
struct LeasedProgram {
    path: PathBuf,
    lease: File,
    _directory: tempfile::TempDir,
}

impl LeasedProgram {
    /// Returns `None` if the file system has no leases.
    fn create() -> Option<LeasedProgram> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::copy("/bin/sleep", &path).unwrap();
        let lease = File::open(&path).unwrap();
        lease_for_writing(&lease).ok()?;
        Some(LeasedProgram { path, lease, _directory: directory })
    }
}

/// Takes a write lease on a file. Its breaks send a signal that is ignored by default.
#[allow(unsafe_code, reason = "no safe function takes a lease")]
fn lease_for_writing(file: &File) -> io::Result<()> {
    for (command, argument) in [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_WRLCK)] {
        // SAFETY: both commands take a number and access no memory of this process.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The supervisor of one job of this account.
struct JobSupervisor {
    agent: OwnedFd,
    process: Child,
}

impl JobSupervisor {
    fn begin() -> JobSupervisor {
        JobSupervisor::begin_by(Command::new(env!("CARGO_BIN_EXE_cool-nodeagent")))
    }

    /// Begins a job under the supervisor that `command` starts.
    fn begin_by(mut command: Command) -> JobSupervisor {
        let (agent, there) = seqpacket::pair().unwrap();
        set_socket_timeout(&agent, Timeout::Recv, Some(PATIENCE)).unwrap();
        let process = command.arg("supervise").stdin(Stdio::from(there)).spawn().unwrap();
        let this = JobSupervisor { agent, process };
        let begin = Begin { version: LAUNCHER_VERSION, job: 7, user: String::new() };
        this.request(request::Body::Begin(begin), &[]);
        assert!(matches!(this.reply(), reply::Body::Begun(_)));
        this
    }

    fn request(&self, body: request::Body, descriptors: &[BorrowedFd<'_>]) {
        seqpacket::send(&self.agent, &Request { body: Some(body) }.encode_to_vec(), descriptors).unwrap();
    }

    fn start(&self, rank: u32, program: &LeasedProgram) {
        self.start_program(rank, program.path.display().to_string(), vec!["1000".to_owned()]);
    }

    fn start_program(&self, rank: u32, program: String, args: Vec<String>) {
        let null = File::options().write(true).open("/dev/null").unwrap();
        let start = Start { rank, program, args, ..Start::default() };
        self.request(request::Body::Start(start), &[null.as_fd(), null.as_fd()]);
    }

    fn reply(&self) -> reply::Body {
        let packet = seqpacket::receive(&self.agent).expect("a reply in time").expect("a supervisor");
        Reply::decode(&*packet.bytes).unwrap().body.unwrap()
    }
}

impl Drop for JobSupervisor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_job_ends_while_its_ranks_wait_for_their_program() {
    let Some(program) = LeasedProgram::create() else { return };
    let supervisor = JobSupervisor::begin();
    supervisor.start(0, &program);
    supervisor.start(1, &program);
    supervisor.request(request::Body::End(End {}), &[]);
    let mut exits = Vec::new();
    loop {
        match supervisor.reply() {
            reply::Body::Exited(Exited { rank, signal, .. }) => exits.push((rank, signal)),
            reply::Body::Ended(Ended {}) => break,
            reply::Body::Started(_) => {}
            other => panic!("{other:?}"),
        }
    }
    exits.sort_unstable();
    assert_eq!(exits, [(0, libc::SIGKILL), (1, libc::SIGKILL)]);
}

#[test]
fn a_rank_that_is_starting_receives_a_signal_once_it_runs() {
    let Some(program) = LeasedProgram::create() else { return };
    let supervisor = JobSupervisor::begin();
    supervisor.start(3, &program);
    supervisor.request(request::Body::Signal(Signal { signal: libc::SIGTERM }), &[]);
    // The first process executes the program once the lease ends.
    drop(program.lease);
    assert!(matches!(supervisor.reply(), reply::Body::Started(Started { rank: 3, .. })));
    assert!(matches!(supervisor.reply(), reply::Body::Exited(Exited { rank: 3, signal: libc::SIGTERM, .. })));
}

#[test]
fn ranks_do_not_inherit_the_capabilities_of_the_agent() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // An agent of another account than root, with an ambient capability as its unit sets it.
    let mut agent = Command::new("setpriv");
    agent.args(["--reuid=65534", "--clear-groups", "--inh-caps=+net_raw", "--ambient-caps=+net_raw"]);
    agent.arg(env!("CARGO_BIN_EXE_cool-nodeagent"));
    let supervisor = JobSupervisor::begin_by(agent);
    let script = "grep -q '^CapAmb:.*0000000000000000$' /proc/self/status";
    supervisor.start_program(0, "/bin/sh".to_owned(), vec!["-c".to_owned(), script.to_owned()]);
    assert!(matches!(supervisor.reply(), reply::Body::Started(_)));
    assert!(matches!(supervisor.reply(), reply::Body::Exited(Exited { rank: 0, code: 0, .. })));
}
