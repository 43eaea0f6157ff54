//! The command line.

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Starts the ranks of a node's jobs as their users, for the agent, which has no rights to do so.
///
/// Runs as root, and does nothing else: each job gets a process of its own that starts its ranks with the user's number and
/// groups, in a cgroup that ends with the job. Only the agent's account may ask. Writes a line for every process that it starts.
#[derive(Debug, Parser)]
#[command(name = "cool-launcher", version)]
pub struct Options {
    /// The unix socket on which to listen for the agent
    #[arg(long, value_name = "PATH", default_value = "/run/cool-launcher/launcher.sock")]
    pub socket: PathBuf,
    /// The agent's account, by name or number: only its processes may ask, and no job runs as it
    #[arg(long, value_name = "NAME", default_value = "cool", global = true)]
    pub agent_user: String,
    /// Start nothing as a user of a smaller number; 0 permits root
    #[arg(long, value_name = "UID", default_value_t = 1000, global = true)]
    pub min_uid: u32,
    /// What it is, if not the launcher
    #[command(subcommand)]
    pub mode: Option<LauncherMode>,
}

/// What the program also is.
#[derive(Debug, Subcommand)]
pub enum LauncherMode {
    /// The supervisor of one job, whose agent is at standard input; started by this program itself
    #[command(hide = true)]
    Supervise,
}
