//! Why a command did not do what was asked, in one line.

use crate::bench::RankError;
use crate::copy::SpoolError;
use cool_proto::control::Finished;
use cool_proto::numbers;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Address(#[from] cool_tls::AddressError),
    #[error(transparent)]
    Folder(#[from] cool_tls::FolderError),
    #[error("{0}")]
    Certificates(#[from] cool_tls::make::MakeError),
    #[error(
        "no controller at {url}: {reason}; start cool-controller, or name another with --controller or COOL_CONTROLLER"
    )]
    Connect { url: String, reason: String },
    #[error("{findings} thing{} wrong", if *.findings == 1 { " is" } else { "s are" })]
    Unwell { findings: usize },
    #[error("the controller refuses: {0}")]
    Refused(String),
    #[error("the connection to the controller broke: {0}")]
    Lost(String),
    #[error("the controller stops")]
    Stopped,
    #[error("the controller says no more of job {short}, and not how it ended", short = numbers::short(*.0))]
    Unfinished(u64),
    #[error("job {short} had not started when its controller was lost, and no other one has it; start it again", short = numbers::short(*.0))]
    NotStarted(u64),
    #[error("{} failed: {}", if *job == 0 { "the job".to_owned() } else { format!("job {}", numbers::short(*job)) }, finished.reason)]
    Failed { job: u64, finished: Finished },
    #[error("interrupted; {}", if *ended { "the job has ended" } else { "the job is being ended" })]
    Interrupted { signal: i32, ended: bool },
    #[error("--plan and --svg are of one collective; `cool copy --via` says how a copy goes")]
    PlanOfCopy,
    #[error("--background is for broadcasts over trees: leave out --via, or say --via tree")]
    NoBackground,
    #[error("cannot write: {0}")]
    Output(#[from] std::io::Error),
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
    #[error("cannot tell where this program is, so no node can start it: {0}")]
    Executable(String),
    #[error("working directory: {0}; name one with --workdir")]
    Workdir(String),
    #[error("--output: {path}: {reason}")]
    Files { path: String, reason: std::io::Error },
    #[error("--env {0} is not set here; write --env {0}=VALUE")]
    Unset(String),
    #[error("--root {root}: there is no such rank; the ranks are 0 to {}", ranks.saturating_sub(1))]
    NoRoot { root: usize, ranks: usize },
    #[error("rank 0 reports something that is no result: {0}")]
    Report(String),
    #[error("the job ended with {done} of {asked} results")]
    Missing { done: usize, asked: usize },
    #[error(
        "topology {path:?}: {reason}; name a file as `cool topology --json` prints it, or write tree:RxK"
    )]
    TopologyFile { path: String, reason: std::io::Error },
    #[error("{path} {reason}; name a file that a run in one process has left, started with COOL_TRACE=FILE")]
    TraceFile { path: String, reason: String },
    #[error("the controller tells costs that cannot be read ({0}); install the same release of both")]
    CostModel(String),
    #[error(
        "the controller has found no node yet; look at `cool topology`, or name a network with --topology"
    )]
    NoNodes,
    #[error("{0}")]
    Fabric(#[from] cool_sim::schedule::FabricModelError),
    #[error("{0}")]
    Simulate(#[from] cool_sim::schedule::SimulateError),
    #[error("{0}")]
    Grid(#[from] cool_sim::schedule::GridError),
    #[error("{0}")]
    Rank(#[from] RankError),
    #[error("{0}")]
    CopyRank(#[from] crate::copy::RankError),
    #[error("no node has an address of this machine; name {remedy}")]
    NotHere { remedy: &'static str },
    #[error("there is no node {0}; `cool topology` shows those that are there")]
    NoNode(String),
    #[error("there are no nodes in rack {0}; `cool topology` shows the racks")]
    NoRack(u32),
    #[error("{0}")]
    Spool(#[from] SpoolError),
    #[error("{0} is not UTF-8, so no node can be told of it")]
    NotUtf8(String),
    #[error("nothing was copied: {node}: {reason}")]
    CopySource { node: String, reason: String },
    #[error("{copies} of {asked} nodes have a copy")]
    Copies { copies: usize, asked: usize },
    #[error("none of these nodes has {0}; `cool ls` shows what there is")]
    NotStored(String),
    #[error("{answers} of {asked} nodes have answered")]
    Unanswered { answers: usize, asked: usize },
    #[error("{}; `cool verify --drop` removes their contents", crate::units::count(*.0, "damaged file"))]
    DamagedContents(usize),
    #[error("what was damaged is removed; `cool put NAME` brings it from a node that has it whole")]
    Dropped,
    #[error("{copies} of {asked} nodes have {what}; the job was not started")]
    Staged { copies: usize, asked: usize, what: String },
    #[error("{0}")]
    Compile(#[from] cool_collective::CompileError),
    #[error(
        "plan {plan} on {topology} takes about {} million events, too many to draw; name a smaller network", (.events / 1e6).ceil()
    )]
    TooLong { plan: String, topology: String, events: f64 },
    #[error(
        "a picture of {arrows} arrows shows nothing; draw fewer ranks, fewer bytes or larger segments, up to {most}"
    )]
    Crowded { arrows: usize, most: usize },
    #[error("--perfetto: {path}: {reason}")]
    Timeline { path: String, reason: std::io::Error },
    #[error("{path}: {reason}")]
    Picture { path: String, reason: std::io::Error },
    #[error("libcool_mpi.so is not there ({0}); name it with --library")]
    NoLibrary(String),
    #[error("cannot start {path}: {reason}; name the launcher of your MPI library with --mpirun")]
    Launcher { path: String, reason: std::io::Error },
    #[error(
        "{path} says {says:?} of its version and so is the launcher neither of Open MPI nor of MPICH or one of its relatives; \
         set LD_PRELOAD=libcool_mpi.so for the ranks by its own options"
    )]
    UnknownLauncher { path: String, says: String },
    #[error("the schedule comes to a stop: a fault in plan {0}, please report it")]
    Stuck(String),
}

impl Error {
    /// The status that the command exits with: a failed job's own.
    pub(crate) fn exit_code(&self) -> ExitCode {
        let code = match self {
            Error::Failed { finished, .. } => finished.code.clamp(1, 255) as u8,
            Error::Interrupted { signal, .. } | Error::Spool(SpoolError::Interrupted { signal }) => {
                (128 + signal).clamp(1, 255) as u8
            }
            _ => 1,
        };
        ExitCode::from(code)
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Error {
        match std::error::Error::source(&status) {
            Some(source) => Error::Lost(innermost(source)),
            None => Error::Refused(status.message().to_owned()),
        }
    }
}

/// The first cause of an error: the others around it only say "transport error".
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}
