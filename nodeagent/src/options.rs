//! The command line.

use crate::loss_injector::Losses;
use clap::Parser;
use clap::builder::FalseyValueParser;
use cool_daemon::{log, web};
use cool_types::{NodeNameError, check_node_name};
use std::path::PathBuf;

/// Runs on every node of a COOL cluster: starts the node's ranks and moves their data.
///
/// It joins the controller, which tells it which groups to be part of and which programs to run, and
/// serves the ranks of its node on a unix socket. It waits for a controller that is not there yet, and
/// for one that went away. Needs the right to send LLDP frames (CAP_NET_RAW), and no more: it refuses to run as root. Ranks run as the
/// users whose jobs they are if it is told of a cool-launcher on its node, else as its own account. SIGHUP has --log and
/// --event-log read again, from the file of --config.
///
/// Example: cool-nodeagent --name h1 --interface eth1 --controller https://10.255.0.1:7400
#[derive(Debug, Parser)]
#[command(name = "cool-nodeagent", version)]
pub struct Options {
    /// The node's name, unlike any other node's: letters, digits, dot, dash, underscore
    #[arg(long, value_parser = node_name)]
    pub name: String,
    /// The network interface that carries the data; it needs an IP address
    #[arg(long)]
    pub interface: String,
    /// Speak IPv6 with other agents, also if the interface has an IPv4 address [default: only if it has none].
    ///
    /// All agents of a group speak the same version. IPv6 needs an address beside that of the link (fe80), and a controller with
    /// --unicast routed and without --agents-only, or switches that forward unicast themselves.
    #[arg(long)]
    pub ipv6: bool,
    /// Where the controller is; of a pair, both addresses
    #[arg(long, env = "COOL_CONTROLLER", value_name = "https://HOST:7400,...")]
    pub controller: String,
    /// How connections are secured.
    #[command(flatten)]
    pub tls: cool_tls::Options,
    /// Pages to read.
    #[command(flatten)]
    pub pages: web::Options,
    /// Where events go.
    #[command(flatten)]
    pub log: log::Options,
    /// The unix socket on which to serve the node's ranks [default: /run/cool/NAME.sock]
    #[arg(long)]
    pub socket: Option<PathBuf>,
    /// Where this node's cool-launcher listens, which starts ranks as their users [default: none, and only jobs of the agent's own
    /// account are run]
    #[arg(long, value_name = "SOCKET")]
    pub launcher: Option<PathBuf>,
    /// Run even as root: whoever may run jobs here is root then, but for a launcher
    #[arg(long, env = "COOL_ALLOW_ROOT", value_parser = FalseyValueParser::new())]
    pub allow_root: bool,
    /// How many ranks the node takes at once [default: its processors]
    #[arg(long)]
    pub slots: Option<u32>,
    /// Connections that one user of the node may have to this agent at once; a rank has one for each of its groups
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_per_user: u32,
    /// Groups that one user's processes may have made for themselves on this node at once
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub groups_per_user: u32,
    /// UDP port of the data interface, for multicast and repair; 0 takes a free one
    #[arg(long, default_value_t = 7420)]
    pub udp_port: u16,
    /// TCP port of the data interface, for unicast steps; 0 takes a free one
    #[arg(long, default_value_t = 7420)]
    pub tcp_port: u16,
    /// TCP port of the data interface, where other agents measure the network; 0 takes a free one
    #[arg(long, default_value_t = 7421)]
    pub probe_port: u16,
    /// How long another node may be silent while calls wait for something, milliseconds; then it is gone.
    ///
    /// Longer than the controller takes to lead paths round a lost link, which is four of its --lldp-interval-ms.
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(100..=600_000))]
    pub peer_timeout_ms: u32,
    /// Encrypt what the node's data is carried in: the payload of multicast, and all connections to other agents.
    ///
    /// All agents of a group have to: one with some that do and some that do not is refused.
    #[arg(long)]
    pub encrypt: bool,
    /// Carry out short calls for the ranks of this node, which else send datagrams of their own, by UDP ports 20000 to 31999
    #[arg(long)]
    pub no_quick_calls: bool,
    /// For tests: throw away this share of the datagrams that come (0 to 0.5), picked by the seed (default 0)
    #[arg(long, value_name = "SHARE[:SEED]")]
    pub lose: Option<Losses>,
}

fn node_name(text: &str) -> Result<String, NodeNameError> {
    check_node_name(text).map(|()| text.to_owned())
}
