//! The options of `cool up`, `cool join` and `cool down`.

use cool_deploy::JoinToken;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The node of this machine in a deployment.
#[derive(Debug, clap::Args)]
pub(crate) struct NodeOptions {
    /// This node's name, unique in the cluster [default: the machine's name]
    #[arg(long)]
    pub(super) name: Option<String>,

    /// Directory for certificates, logs and process numbers, with a directory for each node
    /// [default: ~/.local/state/cool; for root with --systemd /var/lib/cool]
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,
}

/// How the programs run and end, and how the result is printed.
#[derive(Debug, clap::Args)]
pub(crate) struct LifetimeOptions {
    /// Stay until the processes with these numbers have ended, then end the programs and remove
    /// their files
    ///
    /// For launchers and scripts: nothing remains of the cluster even if the processes are killed.
    #[arg(long, value_name = "PID,..", value_delimiter = ',')]
    pub(super) until_exit: Vec<i32>,

    /// Stay until no other process has a lock (flock(2)) of this file, then end the programs and
    /// remove their files, and the file
    #[arg(long, value_name = "FILE", conflicts_with = "until_exit")]
    pub(super) until_unlocked: Option<PathBuf>,

    /// Run the programs as units of systemd, so that they start again with the machine
    ///
    /// The units are those of your account, in ~/.config/systemd/user, or for root those of the
    /// system, in /etc/systemd/system. They are enabled and started if systemd runs. `cool down`
    /// stops and removes them.
    #[arg(long, conflicts_with_all = ["until_exit", "until_unlocked"])]
    pub(super) systemd: bool,

    /// The account as which the units of root run, and the ranks of this node [default: cool, or
    /// that of the existing deployment]
    #[arg(long, value_name = "USER", requires = "systemd")]
    pub(super) account: Option<String>,

    /// Print one JSON document: the node, its controller, certificates and agent's socket, its
    /// units and the commands that remain for them, and the token
    #[arg(long)]
    pub(super) json: bool,
}

/// Start a controller and an agent on this machine, and print a token for more machines
///
/// Everything runs in the background under your account, until `cool down`. Run `cool join TOKEN`
/// on the other machines; the token is a secret while it is valid. Repeat `cool up` for another
/// token, or to start again after a reboot: certificates are kept, and nodes return by themselves.
///
/// Only your account can run programs on this cluster. To serve several users, install the packages
/// (docs/guide/deployment.md).
///
/// The controller listens on TCP port 7400 of the data interface, the join server on 7402, and
/// agents on 7420 and 7421.
///
/// With the environment variable COOL_JOIN_KEY, a random text, machines can also join by `cool join
/// --server ADDRESS` with the same variable.
#[derive(Debug, clap::Args)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    pub(super) node: NodeOptions,

    #[command(flatten)]
    pub(super) lifetime: LifetimeOptions,

    /// Network interface for data and for other machines, by name or IP address [default: that of
    /// the default route]
    #[arg(long)]
    pub(super) interface: Option<String>,

    /// TCP port of the controller; 0 chooses a free one
    #[arg(long, value_name = "PORT", default_value_t = 7400)]
    pub(super) controller_port: u16,

    /// TCP port at which machines join; 0 chooses a free one
    #[arg(long, value_name = "PORT", default_value_t = 7402)]
    pub(super) join_port: u16,

    /// The kind of network, as for `cool-controller --network`; openflow and auto also listen for
    /// switches
    #[arg(long, value_name = "MODE", default_value = "snooping", value_parser = ["auto", "openflow", "snooping", "plain"])]
    pub(super) network: String,

    /// Number of minutes for which the token is valid
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) valid_minutes: u32,

    /// Number of machines that may join with the token
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) uses: u32,

    /// Start no agent: this machine runs no ranks
    #[arg(long, conflicts_with = "agent_options")]
    pub(super) no_agent: bool,

    /// Further options of cool-nodeagent, for example `-- --slots 8`
    #[arg(last = true, value_name = "OPTION")]
    pub(super) agent_options: Vec<String>,
}

/// Let this machine join the cluster that `cool up` has started on another one
///
/// The token proves to both sides that they belong together. This machine receives a certificate
/// for its node and starts an agent in the background, which runs ranks under your account, until
/// `cool down`. Without TOKEN, an agent that has joined before is started again, for example after
/// a reboot.
#[derive(Debug, clap::Args)]
pub(crate) struct JoinOptions {
    /// The word that `cool up` has printed; other users of this machine do not see the variable
    #[arg(env = "COOL_JOIN_TOKEN", hide_env_values = true)]
    pub(super) token: Option<JoinToken>,

    /// Join by the environment variable COOL_JOIN_KEY instead of a token, at this address of `cool
    /// up --join-port`
    #[arg(long, value_name = "IP:PORT")]
    pub(super) server: Option<SocketAddr>,

    /// Wait this many seconds for the first machine
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(super) wait: u32,

    #[command(flatten)]
    pub(super) node: NodeOptions,

    #[command(flatten)]
    pub(super) lifetime: LifetimeOptions,

    /// Network interface for data, by name or IP address [default: the one that reaches the first
    /// machine]
    #[arg(long)]
    pub(super) interface: Option<String>,

    /// Further options of cool-nodeagent, for example `-- --slots 8`
    #[arg(last = true, value_name = "OPTION")]
    pub(super) agent_options: Vec<String>,
}

/// End the programs that `cool up` or `cool join` has started on this machine
///
/// Jobs of this node fail. Certificates are kept, so `cool up` and `cool join` without a token
/// return to the same cluster. All tokens become invalid.
#[derive(Debug, clap::Args)]
pub(crate) struct DownOptions {
    #[command(flatten)]
    pub(super) node: NodeOptions,

    /// Also remove the certificates and logs, so that the cluster cannot be continued
    #[arg(long)]
    pub(super) purge: bool,
}
