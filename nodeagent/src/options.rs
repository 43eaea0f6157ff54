//! The command line.

use crate::loss_injector::Losses;
use clap::Parser;
use clap::builder::FalseyValueParser;
use cool_daemon::{log, web};
use cool_types::{NodeNameError, check_node_name};
use std::path::PathBuf;

/// Runs on every node of a COOL cluster: starts the node's ranks and moves their data.
///
/// The agent joins the controller, which assigns groups and programs to it, and serves the ranks of
/// its node on a Unix socket. If the controller is unavailable, the agent keeps trying. It needs
/// permission to send and receive LLDP frames (CAP_NET_RAW) and no more, so it refuses to run as
/// root. With --launcher, ranks run as the users who own the jobs, otherwise as the agent's own
/// account. On SIGHUP, --log and --event-log are reloaded from the --config file. On SIGQUIT, the
/// agent ends as soon as no group of ranks needs its node, and on SIGTERM at once.
///
/// Example: cool-nodeagent --name h1 --interface eth1 --controller https://10.255.0.1:7400
#[derive(Debug, Parser)]
#[command(name = "cool-nodeagent", version)]
pub struct Options {
    /// The node's name, unique in the cluster: letters, digits, dot, dash, underscore
    #[arg(long, value_parser = node_name)]
    pub name: String,
    /// The network interface for data; it must have an IP address
    #[arg(long)]
    pub interface: String,
    /// Use IPv6 between agents, even if the interface has an IPv4 address [default: only if it has
    /// none].
    ///
    /// All agents of a group must use the same version of IP. IPv6 needs an address that is not
    /// link-local (fe80), and a controller with --unicast routed and without --agents-only, or
    /// switches that forward unicast themselves.
    #[arg(long)]
    pub ipv6: bool,
    /// The controller's address; if there is a standby controller, both addresses
    #[arg(long, env = "COOL_CONTROLLER", value_name = "https://HOST:7400,...")]
    pub controller: String,
    /// The security of connections.
    #[command(flatten)]
    pub tls: cool_tls::Options,
    /// The pages that are served by HTTP.
    #[command(flatten)]
    pub pages: web::Options,
    /// The log and the event log.
    #[command(flatten)]
    pub log: log::Options,
    /// The Unix socket on which to serve the node's ranks; its directory must exist [default:
    /// /run/cool/NAME.sock]
    #[arg(long)]
    pub socket: Option<PathBuf>,
    /// The socket of this node's cool-launcher, which starts ranks as their users [default: none,
    /// so that the agent runs only jobs of its own account]
    #[arg(long, value_name = "SOCKET")]
    pub launcher: Option<PathBuf>,
    /// Run even as root; without a launcher, everyone who may run jobs is then root on this node
    #[arg(long, env = "COOL_ALLOW_ROOT", value_parser = FalseyValueParser::new())]
    pub allow_root: bool,
    /// How many ranks the node accepts at once [default: its number of CPUs]
    #[arg(long)]
    pub slots: Option<u32>,
    /// Name of the node's rack [default: as the controller's --racks or the LLDP of its switch
    /// names it]
    ///
    /// Used only on networks without OpenFlow switches, which otherwise locate the node. An empty
    /// name counts as none.
    #[arg(long, env = "COOL_RACK", value_name = "NAME", value_parser = rack_name)]
    pub rack: Option<String>,
    /// How many connections one user may have to this agent at once; each rank needs one for each
    /// of its groups
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_per_user: u32,
    /// How many groups the processes of one user may have requested on this node at once
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub groups_per_user: u32,
    /// UDP port of the data interface for multicast and repair; 0 chooses a free port
    #[arg(long, default_value_t = 7420)]
    pub udp_port: u16,
    /// TCP port of the data interface at which other agents send messages of unicast schedules; 0
    /// chooses a free port
    #[arg(long, default_value_t = 7420)]
    pub tcp_port: u16,
    /// TCP port of the data interface for measurements by other agents; 0 chooses a free port
    #[arg(long, default_value_t = 7421)]
    pub probe_port: u16,
    /// How long another node may be silent while calls wait for it, in milliseconds, before it is
    /// lost.
    ///
    /// The timeout should be longer than the controller needs to route around a lost link, which is
    /// four times its --lldp-interval-ms.
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(100..=600_000))]
    pub peer_timeout_ms: u32,
    /// Encrypt the data of this node: the payload of multicast, and all connections to other
    /// agents.
    ///
    /// All agents of a group must use the same setting. A group with different settings is refused.
    #[arg(long)]
    pub encrypt: bool,
    /// Handle short calls in the agent instead of in the ranks, which otherwise exchange datagrams
    /// on UDP ports 20000 to 31999
    #[arg(long)]
    pub no_quick_calls: bool,
    /// For tests: drop this share of the received datagrams (0 to 0.5), chosen by the seed (default
    /// 0)
    #[arg(long, value_name = "SHARE[:SEED]")]
    pub lose: Option<Losses>,
}

fn rack_name(text: &str) -> Result<String, NodeNameError> {
    if text.is_empty() { Ok(String::new()) } else { node_name(text) }
}

fn node_name(text: &str) -> Result<String, NodeNameError> {
    check_node_name(text).map(|()| text.to_owned())
}
