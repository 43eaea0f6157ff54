//! `cool-launcher`: accepts connections of the node's agent, and starts a supervisor for each of
//! its jobs. The supervisor runs as root and starts the job's ranks as the job's user.

use clap::Parser;
use cool_launcher::account::{Account, AccountError};
use cool_launcher::cgroup::enable_limits;
use cool_launcher::job_limits::JobLimits;
use cool_launcher::listener::{AgentSocketError, listen};
use cool_launcher::options::{LauncherMode, Options};
use cool_launcher::{Policy, supervise};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitCode, Stdio};
use tracing::{info, warn};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};

/// Maximum number of jobs at once. Agents run fewer.
const SUPERVISORS_MAX: usize = 4096;

/// The reasons why the program ends with an error.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cool-launcher starts processes as other users: it must run as root")]
    NotRoot,
    #[error("--agent-user: {0}")]
    Account(#[from] AccountError),
    #[error("--agent-user {0} is root: agents run as a user of their own")]
    AgentIsRoot(String),
    #[error(transparent)]
    Listen(#[from] AgentSocketError),
    #[error("RUST_LOG: {0}")]
    Log(#[from] tracing_subscriber::filter::FromEnvError),
    #[error(transparent)]
    Supervise(#[from] cool_launcher::supervisor::SuperviseError),
    #[error(transparent)]
    System(#[from] io::Error),
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cool-launcher: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Error> {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env()?;
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_env_filter(filter).init();
    if !rustix::process::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let agent = Account::look_up(&options.agent_user)?;
    if agent.uid == 0 {
        return Err(Error::AgentIsRoot(agent.name));
    }
    let limits = JobLimits::on_this_machine(options.job_pids_max, options.job_memory_max)?;
    if let Some(LauncherMode::Supervise) = options.mode {
        let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3).map_err(io::Error::from)?;
        let policy = Policy::Privileged { min_uid: options.min_uid, agent: agent.uid };
        return Ok(supervise(socket, policy, limits)?);
    }
    let limits = match enable_limits(&limits) {
        Ok(()) => limits,
        Err(why) => {
            warn!(%why, "jobs have no limits of their own on this node");
            JobLimits::default()
        }
    };
    let listener = listen(&options.socket, &agent)?;
    info!(
        socket = %options.socket.display(), agent = agent.name, min_uid = options.min_uid, job_limits = %limits,
        "ready"
    );
    serve(&listener, &agent, options, &limits)
}

/// Starts a supervisor for every connection of the agent. Supervisors continue if this process
/// ends.
fn serve(listener: &OwnedFd, agent: &Account, options: &Options, limits: &JobLimits) -> Result<(), Error> {
    let mut supervisors: Vec<Child> = Vec::new();
    loop {
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(listener, PollFlags::IN)], None))
            .map_err(io::Error::from)?;
        supervisors.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        let connection = rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC);
        let connection = match connection {
            Ok(connection) => connection,
            Err(e) => {
                warn!("cannot accept a connection: {e}");
                continue;
            }
        };
        let uid = cool_proto::peer::credentials(&connection)?.uid;
        if uid != agent.uid {
            warn!(uid, "refused: only the agent's account may connect");
        } else if supervisors.len() >= SUPERVISORS_MAX {
            warn!(SUPERVISORS_MAX, "refused: too many jobs");
        } else {
            match supervisor(connection, options, limits) {
                Ok(child) => supervisors.push(child),
                Err(e) => warn!("cannot start a supervisor: {e}"),
            }
        }
    }
}

/// Starts this program as the supervisor of one job. The supervisor starts its own session, so that
/// a signal that ends this process does not end the job.
fn supervisor(connection: OwnedFd, options: &Options, limits: &JobLimits) -> io::Result<Child> {
    let [pids, memory] =
        [limits.pids, limits.memory].map(|limit| limit.map_or("max".to_owned(), |limit| limit.to_string()));
    Command::new("/proc/self/exe")
        .args(["--agent-user", &options.agent_user, "--min-uid", &options.min_uid.to_string()])
        .args(["--job-pids-max", &pids, "--job-memory-max", &memory, "supervise"])
        .stdin(Stdio::from(connection))
        .spawn()
}
