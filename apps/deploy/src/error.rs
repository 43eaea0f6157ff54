//! The reasons why a deployment cannot be started, joined or ended.

use crate::join_token::TokenError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An error of `cool up`, `cool join` or `cool down`, with its remedy.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// A file of the deployment cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the deployment has invalid content.
    #[error("{}: {reason}; remove the file and repeat the command", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// There is no directory for the state of deployments.
    #[error("HOME is not set; name a directory with --state")]
    NoHome,
    /// The directory of the agent's socket belongs to another user.
    #[error("{} is not a directory of this user alone; remove it, or choose another node name with --name", .0.display())]
    ForeignDirectory(PathBuf),
    /// The node's name is invalid.
    #[error("{0}; choose one with --name")]
    NodeName(#[from] cool_types::NodeNameError),
    /// An argument cannot be written into a unit.
    #[error("{0:?} is not UTF-8 or contains control characters, so a unit of systemd cannot contain it")]
    UnitWord(String),
    /// systemd refuses a request, or a unit fails.
    #[error("`{command}`: {reason}; the logs: {logs}")]
    Systemctl {
        /// The command.
        command: String,
        /// The first line of its errors.
        reason: String,
        /// The command that shows the logs of the node's programs.
        logs: String,
    },
    /// Programs of the node run in the background, without units.
    #[error("node {0} runs without units; end it with `cool down`, then repeat the command")]
    RunsWithoutUnits(String),
    /// Only root runs programs as another account.
    #[error("--account needs root; without root, the units run as your account")]
    AccountNeedsRoot,
    /// The account does not exist.
    #[error(
        "there is no account {0}; create it with `useradd --system {0}`, or name another one with --account"
    )]
    NoAccount(String),
    /// The account is root.
    #[error(
        "controller and agents do not run as root; name another account with --account, and remove a state directory of root"
    )]
    RootAccount,
    /// The node's deployment belongs to another account.
    #[error("{} belongs to the account {account}; name it with --account", .directory.display())]
    OtherAccount {
        /// The deployment's directory.
        directory: PathBuf,
        /// Its account.
        account: String,
    },
    /// The deployment belongs to an account, and root would run its programs without units.
    #[error("node {node} runs as the account {account}; add --systemd")]
    NeedsUnits {
        /// The node.
        node: String,
        /// The account.
        account: String,
    },
    /// The system does not permit to act as an account.
    #[error("cannot {what}: {source}")]
    AccountChange {
        /// The attempt.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The account may not execute a program.
    #[error("the account {account} cannot execute {}: {source}; install the programs in a directory that it can enter", .program.display())]
    NotExecutable {
        /// The account.
        account: String,
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Certificates cannot be made.
    #[error(transparent)]
    Certificates(#[from] cool_tls::make::MakeError),
    /// No interface, or more than one, can be the data interface.
    #[error("cannot choose the data interface among {}; name one with --interface", list(.0))]
    Interface(Vec<String>),
    /// The named interface does not exist or has no address.
    #[error("there is no interface {name} with a suitable IP address; --interface must be one of {}", list(.present))]
    NoInterface {
        /// The name.
        name: String,
        /// The interfaces that have one.
        present: Vec<String>,
    },
    /// A program cannot be started.
    #[error("cannot start {}: {source}; install it next to `cool`, or in a directory of PATH", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A program ended before it was ready.
    #[error("{program} ended before it was ready: {last_line} (log: {})", .log.display())]
    Ended {
        /// The program.
        program: String,
        /// The last line of its log.
        last_line: String,
        /// Its log.
        log: PathBuf,
    },
    /// A program was not ready in time.
    #[error("{program} was not ready within {waited:?}: {last_line} (log: {})", .log.display())]
    Slow {
        /// The program.
        program: String,
        /// How long it was given.
        waited: Duration,
        /// The last line of its log.
        last_line: String,
        /// Its log.
        log: PathBuf,
    },
    /// A program did not end.
    #[error("{program} (process {pid}) has not ended; end it with `kill -9 {pid}`")]
    Survives {
        /// The program.
        program: String,
        /// Its process.
        pid: i32,
    },
    /// The node's agent runs already.
    #[error("node {0} has joined already; `cool down` ends its agent")]
    Joined(String),
    /// A program runs at another address.
    #[error("the {program} runs at {address}; name its interface and port, or end it with `cool down` first")]
    OtherAddress {
        /// The program.
        program: &'static str,
        /// Its address.
        address: SocketAddr,
    },
    /// No port of an address is free.
    #[error("cannot use a TCP port of {ip}: {source}")]
    Port {
        /// The address.
        ip: IpAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The end of a process cannot be awaited.
    #[error("cannot watch process {pid}: {source}")]
    Watch {
        /// Its number.
        pid: i32,
        /// The system's error.
        source: io::Error,
    },
    /// The node has started a cluster itself, so it cannot join another one.
    #[error("node {0} has started a cluster itself; `cool down --purge` removes that cluster")]
    OwnCluster(String),
    /// The node belongs to the cluster of another machine.
    #[error(
        "node {0} belongs to a cluster of another machine; `cool join` returns to it, and `cool down --purge` leaves it"
    )]
    OtherCluster(String),
    /// There is no deployment to return to.
    #[error(
        "this machine has joined no deployment; run `cool up` on the first machine, and `cool join TOKEN` here"
    )]
    NoDeployment,
    /// The text is not a token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The join server cannot be reached.
    #[error(
        "no join server at {address}: {source}; check the network and firewalls, and whether `cool up` runs there"
    )]
    Unreachable {
        /// Its address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The join server does not accept the token.
    #[error(
        "{0} does not accept this token: it has expired, was used too often, or belongs to another deployment; run `cool up` there again for a new one"
    )]
    Rejected(SocketAddr),
    /// The join server refuses the node.
    #[error("the deployment refuses this node: {0}")]
    Refused(String),
    /// The connection to the join server ended.
    #[error("lost the connection to the join server: {0}")]
    Lost(io::Error),
}

impl DeployError {
    /// Returns a conversion of a system's error about a file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> DeployError + '_ {
        move |source| DeployError::File { path: path.to_owned(), source }
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "no interfaces with an IP address".to_owned() } else { names.join(", ") }
}
