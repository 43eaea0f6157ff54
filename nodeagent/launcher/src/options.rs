//! The command line.

use crate::job_limits::ConfiguredLimit;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Starts the ranks of a node's jobs as their users, on behalf of the agent, which has no
/// permission to do so.
///
/// Runs as root and does nothing else. Each job gets its own process, which starts the ranks with
/// the user id and the groups of the job's user, in a cgroup that is killed when the job ends. Only
/// the agent's account may connect. Every process that is started is logged.
#[derive(Debug, Parser)]
#[command(name = "cool-launcher", version)]
pub struct Options {
    /// The Unix socket on which to listen for the agent
    #[arg(long, value_name = "PATH", default_value = "/run/cool-launcher/launcher.sock")]
    pub socket: PathBuf,
    /// The agent's account, by name or number; only its processes may connect, and no job runs as
    /// it
    #[arg(long, value_name = "NAME", default_value = "cool", global = true)]
    pub agent_user: String,
    /// The smallest user id as which to start processes; 0 permits root
    #[arg(long, value_name = "UID", default_value_t = 1000, global = true)]
    pub min_uid: u32,
    /// Maximum number of processes and threads of one job on this node: max, an amount, or a part
    /// of those that the system supports
    ///
    /// Needs a cgroup named "launcher", as the unit makes it (systemd 254 or later).
    #[arg(long, value_name = "LIMIT", default_value = "50%", global = true)]
    pub job_pids_max: ConfiguredLimit,
    /// Maximum memory of one job on this node: max, an amount such as 64G, or a part of the
    /// machine's memory
    ///
    /// If the processes of a job exceed it, the kernel ends some of them and no others. Needs the
    /// same cgroup as --job-pids-max.
    #[arg(long, value_name = "LIMIT", default_value = "90%", global = true)]
    pub job_memory_max: ConfiguredLimit,
    /// The mode of the program, if it is not the launcher.
    #[command(subcommand)]
    pub mode: Option<LauncherMode>,
}

/// The other modes of the program.
#[derive(Debug, Subcommand)]
pub enum LauncherMode {
    /// The supervisor of one job, with the agent at standard input; started by this program itself
    #[command(hide = true)]
    Supervise,
}
