//! Errors of commands: one line each, with the remedy where there is one.

use crate::units;
use cool_proto::control::Finished;
use cool_proto::job_ids;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Address(#[from] cool_tls::AddressError),
    #[error(transparent)]
    CertificateDir(#[from] cool_tls::CertificateDirError),
    #[error(
        "cannot read {path}: this is the operator's key. Ask for a certificate of your own (`cool certs DIR --user {user}`), \
         and name its directory with --certs or COOL_CERTS"
    )]
    OperatorKey { path: String, user: String },
    #[error(
        "certificate and key in {directory} do not belong together; copy tool.pem and tool.key again, from the same directory of `cool certs`"
    )]
    KeyMismatch { directory: String },
    #[error("{0}")]
    Certificates(#[from] cool_tls::make::MakeError),
    #[error("{0}")]
    Deploy(#[from] cool_deploy::DeployError),
    #[error("COOL_JOIN_KEY is not set; `cool join --server` needs the key with which `cool up` was started")]
    NoJoinKey,
    #[error("{0}")]
    Config(String),
    #[error(
        "no controller at {url}: {reason}; start cool-controller, or name another with --controller or COOL_CONTROLLER"
    )]
    Unreachable { url: String, reason: String },
    #[error("cannot connect to the controller at {url}: {reason}")]
    Connect { url: String, reason: String },
    #[error("{0}; or name a network with --topology tree:4x4, which needs no controller")]
    PlanOffline(Box<Error>),
    #[error("{} wrong", if *.findings == 1 { "1 thing is".to_owned() } else { format!("{findings} things are") })]
    Unhealthy { findings: usize },
    #[error(transparent)]
    Command(#[from] cool_proto::job_request::CommandLengthError),
    #[error("the controller refuses: {0}")]
    Refused(String),
    #[error("lost the connection to the controller: {0}")]
    Lost(String),
    #[error("the controller is shutting down")]
    Stopped,
    #[error(
        "this controller cannot drain single nodes and has changed the whole cluster; upgrade it, and see `cool drain --help`"
    )]
    DrainedCluster,
    #[error("{0}")]
    EndedMeanwhile(String),
    #[error("lost track of job {short}: the controller stopped reporting before it finished", short = job_ids::short(*.0))]
    Unfinished(u64),
    #[error("job {short} had not started when its controller was lost, and no other controller has it; start it again", short = job_ids::short(*.0))]
    NotStarted(u64),
    #[error("{} failed: {}", if *job == 0 { "the job".to_owned() } else { format!("job {}", job_ids::short(*job)) }, finished.reason)]
    Failed { job: u64, finished: Finished },
    #[error("interrupted; {}", if *ended { "the job has ended" } else { "the job is being ended" })]
    Interrupted { signal: i32, ended: bool },
    #[error("--plan and --svg are for collectives; `cool copy --via` chooses how a copy is distributed")]
    PlanOfCopy,
    #[error("--background works with broadcasts over trees only: omit --via, or use --via tree")]
    NoBackground,
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    #[error("cannot determine the path of this program, which nodes need to start it: {0}")]
    Executable(String),
    #[error("working directory: {0}; name one with --workdir")]
    Workdir(String),
    #[error("--output: {path}: {reason}")]
    OutputFiles { path: String, reason: io::Error },
    #[error("--env {0} is not set here; write --env {0}=VALUE")]
    Unset(String),
    #[error("--root {root}: there is no such rank; the ranks are 0 to {}", ranks.saturating_sub(1))]
    NoRoot { root: usize, ranks: usize },
    #[error("rank 0 printed a line that is not a result: {0}")]
    NotAResult(String),
    #[error("the job ended with {done} of {requested} results")]
    MissingResults { done: usize, requested: usize },
    #[error("topology {path:?}: {reason}; name a file of `cool topology --json`, or write tree:RxK")]
    TopologyFile { path: String, reason: io::Error },
    #[error("{path} {reason}; name a file that an embedded run has written with COOL_TRACE=FILE")]
    TraceFile { path: String, reason: String },
    #[error("cannot read the controller's cost model ({0}); install the same release of both")]
    CostModel(String),
    #[error(
        "the controller has not found any node yet; see `cool topology`, or name a network with --topology"
    )]
    NoNodes,
    #[error("{0}")]
    Fabric(#[from] cool_sim::schedule::FabricModelError),
    #[error("{0}")]
    Simulate(#[from] cool_sim::schedule::SimulateError),
    #[error("{0}")]
    Grid(#[from] cool_sim::schedule::GridError),
    #[error("{0}")]
    Rank(String),
    #[error("no node has an address of this machine; name {remedy}")]
    NotHere { remedy: &'static str },
    #[error("there is no node {0}; `cool topology` lists the nodes")]
    NoNode(String),
    #[error("there are no nodes in rack {0}; `cool topology` shows the racks")]
    NoRack(u32),
    #[error("{path}: {placeholder} is unknown; only {{node}} is replaced, by the name of the node")]
    Placeholder { path: String, placeholder: String },
    #[error("SOURCE {} has no name for the copies; add one to DEST", .0.display())]
    NoSourceName(PathBuf),
    #[error("{0}")]
    Spool(#[from] SpoolError),
    #[error("{0} is not UTF-8, so it cannot be sent to nodes")]
    NotUtf8(String),
    #[error("nothing was copied: {node}: {reason}")]
    CopySource { node: String, reason: String },
    #[error("{copies} of {requested} nodes have a copy")]
    Copies { copies: usize, requested: usize },
    #[error("none of these nodes has {0}; `cool ls` lists what there is")]
    NotStored(String),
    #[error("{replies} of {requested} nodes have executed the request")]
    FailedNodes { replies: usize, requested: usize },
    #[error("{}; `cool verify --drop` removes their contents", units::count(*.0, "damaged file"))]
    DamagedContents(usize),
    #[error("removed what was damaged; `cool put NAME` restores it from a node that has it intact")]
    Dropped,
    #[error("{copies} of {requested} nodes have {source_path}; the job was not started")]
    Staged { copies: usize, requested: usize, source_path: String },
    #[error("{0}")]
    Compile(#[from] cool_collective::CompileError),
    #[error(
        "plan {plan} on {topology} takes about {} million events, too many to draw; name a smaller network", (.events / 1e6).ceil()
    )]
    TooLong { plan: String, topology: String, events: f64 },
    #[error(
        "a picture of {arrows} arrows would be unreadable; draw fewer ranks, fewer bytes or larger segments, up to {most} arrows"
    )]
    Crowded { arrows: usize, most: usize },
    #[error("--perfetto: {path}: {reason}")]
    Timeline { path: String, reason: io::Error },
    #[error("{path}: {reason}")]
    Picture { path: String, reason: io::Error },
    #[error("cannot find libcool_mpi.so ({0}); name it with --library")]
    NoLibrary(String),
    #[error("cannot start {path}: {reason}; name the launcher of your MPI library with --mpirun")]
    MpiLauncher { path: String, reason: io::Error },
    #[error(
        "{path} reports version {version:?}, which is neither Open MPI nor MPICH or a derivative; \
         set LD_PRELOAD=libcool_mpi.so for the ranks with the launcher's own options"
    )]
    UnknownLauncher { path: String, version: String },
    #[error("the schedule of plan {0} deadlocks; please report this defect")]
    Stuck(String),
}

/// An error because of which standard input cannot be copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpoolError {
    #[error("SOURCE `-` reads this machine's standard input and cannot be combined with --from")]
    From,
    #[error("SOURCE `-` is spooled to a file that only you can read, so it cannot be combined with --user")]
    User,
    #[error("--stream reads standard input: use SOURCE `-`, and pipe {} into it", .0.display())]
    Stream(PathBuf),
    #[error("a swarm does not keep the order of a stream: omit --via swarm, or --stream")]
    StreamBySwarm,
    #[error("SOURCE `-` has no file name for the copies in {}; add one to DEST", .0.display())]
    NoName(PathBuf),
    #[error("standard input: {0}")]
    Input(io::Error),
    #[error("cannot spool standard input: {0}; set TMPDIR to another directory")]
    Directory(io::Error),
    #[error("cannot spool standard input: {}: {reason}; set TMPDIR to another directory", .path.display())]
    Path { path: PathBuf, reason: io::Error },
    #[error("interrupted while standard input was being read; nothing was copied")]
    Interrupted { signal: i32 },
}

impl SpoolError {
    /// Returns a function that adds the path to an error of the system.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> SpoolError + '_ {
        move |reason| SpoolError::Path { path: path.to_owned(), reason }
    }
}

impl Error {
    /// Returns the exit status of the command. If a job failed, this is the status of the job.
    pub(crate) fn exit_code(&self) -> ExitCode {
        let code = match self {
            Error::Failed { finished, .. } => finished.code.clamp(1, 255) as u8,
            Error::Interrupted { signal, .. } | Error::Spool(SpoolError::Interrupted { signal }) => {
                (128 + signal).clamp(1, 255) as u8
            }
            // The same status as for wrong options.
            Error::Config(_) => 2,
            _ => 1,
        };
        ExitCode::from(code)
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Error {
        match std::error::Error::source(&status) {
            Some(source) => Error::Lost(root_cause(source)),
            None => Error::Refused(status.message().to_owned()),
        }
    }
}

/// Returns the innermost cause of an error, because the errors around it contain only "transport
/// error".
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => root_cause(source),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_exit_status_of_its_job_or_signal() {
        let finished = Finished { code: 7, ..Finished::default() };
        let code = |error: &Error| format!("{:?}", error.exit_code());
        let expected = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(&Error::Failed { job: 1, finished }), expected(7));
        assert_eq!(code(&Error::Interrupted { signal: 2, ended: true }), expected(130));
        assert_eq!(code(&Error::NoNodes), expected(1));
        assert_eq!(code(&Error::Config("cool.toml:2: wrong".to_owned())), expected(2));
    }

    #[test]
    fn findings_are_counted_in_words() {
        assert_eq!(Error::Unhealthy { findings: 1 }.to_string(), "1 thing is wrong");
        assert_eq!(Error::Unhealthy { findings: 2 }.to_string(), "2 things are wrong");
    }
}
