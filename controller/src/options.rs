//! The command line.

use crate::costs::Given;
use crate::fabric::{FabricConfig, TableCapacity, Unicast};
use crate::jobs::job::Limits;
use crate::server::ServerConfig;
use clap::Parser;
use cool_topology::Key;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Runs the network of a COOL cluster: discovers it, forwards in it, installs multicast trees, starts jobs.
///
/// Point every switch at --openflow (for Open vSwitch: `ovs-vsctl set-controller BRIDGE ssl:THIS_HOST:6653`)
/// and every cool-nodeagent and `cool` at --grpc. Switches, agents and controller may start in any order.
/// The log goes to standard error; RUST_LOG chooses what is logged, as in RUST_LOG=cool_controller=debug.
#[derive(Clone, Debug, Parser)]
#[command(name = "cool-controller", version)]
pub struct Options {
    /// Where to listen for switches (OpenFlow 1.3 over TLS, or over TCP with --insecure-plaintext).
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:6653")]
    pub openflow: SocketAddr,

    /// Where to listen for agents and tools (gRPC).
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:7400")]
    pub grpc: SocketAddr,

    /// How connections are secured.
    #[command(flatten)]
    pub tls: cool_tls::Options,

    /// Pages to read.
    #[command(flatten)]
    pub pages: cool_daemon::web::Options,

    /// Where events go.
    #[command(flatten)]
    pub log: cool_daemon::log::Options,

    /// Rate of each link between a node and its switch, Mbit/s [default: what the switch port says].
    ///
    /// Needed where ports do not know their rate, as with shaped or virtual links. Senders are paced by it.
    #[arg(long, value_name = "MBIT", value_parser = megabits)]
    pub host_mbit: Option<f64>,

    /// Rate of each link between two switches, Mbit/s [default: what the switch ports say].
    #[arg(long, value_name = "MBIT", value_parser = megabits)]
    pub uplink_mbit: Option<f64>,

    /// LLDP and ARP packets per second that one switch port may hand in; more are dropped.
    ///
    /// Twice as many may come at once. By meters in the switch where it has them, and by the controller.
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub port_packets_per_second: u32,

    /// Who forwards unicast.
    ///
    /// "routed": this controller, by rules that are installed ahead, over all equal paths, without flooding. "normal":
    /// the switches' own forwarding, as for other traffic; only multicast is programmed. Where links make loops it is held
    /// to a spanning tree, since switches flood what they do not know; a port at which no agent is serves after four
    /// LLDP intervals.
    #[arg(long, value_enum, default_value = "routed")]
    pub unicast: Unicast,

    /// Entries of its group table that each switch may be given [default: as many as it says that it has].
    ///
    /// A group takes one in each switch of each of its trees. A group for which a switch has no room does with fewer
    /// trees, or with none: then chains carry its data. At most half are used for fast failover.
    #[arg(long, value_name = "N")]
    pub max_groups_per_switch: Option<u32>,

    /// Entries for fast failover (type FF) that each switch may be given [default: as many as it says that it has].
    ///
    /// By these it sends unicast another way by itself as soon as a port goes down; without, when the controller says
    /// so. It needs about as many as it has uplinks.
    #[arg(long, value_name = "N")]
    pub max_failovers_per_switch: Option<u32>,

    /// Flows that each switch may be given, those for unicast counted [default: as many as it says that it has].
    #[arg(long, value_name = "N")]
    pub max_flows_per_switch: Option<u32>,

    /// Meters that each switch may be given, one for each port [default: as many as it says that it has].
    #[arg(long, value_name = "N")]
    pub max_meters_per_switch: Option<u32>,

    /// How often switches and agents announce themselves by LLDP, milliseconds.
    ///
    /// Shorter finds changes sooner and costs one small packet for each port and interval. A link counts as lost
    /// after three missed announcements.
    #[arg(long, value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u32).range(50..=60_000))]
    pub lldp_interval_ms: u32,

    /// How long an agent without a connection to this controller may take to come back, seconds.
    ///
    /// Until then its node keeps all it has: flows, trees, groups, jobs. It is gone at once if its agent says that it ends, and
    /// after 3 s if no switch hears it. A switch without a connection keeps its place as long. A controller that hears nobody at
    /// all gives nobody up.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub agent_grace: u32,
}

/// From 1 kbit/s to 10 Tbit/s: a whole number of bytes per second, far from overflow.
fn megabits(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(mbit) if (0.001..=1e7).contains(&mbit) => Ok(mbit),
        _ => Err("expected a number from 0.001 to 10000000".to_owned()),
    }
}

impl Options {
    /// How the fabric is run, by a controller that starts now.
    pub fn fabric(&self) -> FabricConfig {
        // A clock before 1970 is earlier than all others.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let Given { host, uplink } = self.given();
        FabricConfig {
            host_bytes_per_second: host,
            uplink_bytes_per_second: uplink,
            lldp_interval: self.lldp_interval(),
            grace: self.grace(),
            packet_ins_per_second: self.port_packets_per_second,
            unicast: self.unicast,
            capacity: TableCapacity {
                groups: self.max_groups_per_switch,
                failovers: self.max_failovers_per_switch,
                flows: self.max_flows_per_switch,
                meters: self.max_meters_per_switch,
            },
            generation: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            ..FabricConfig::default()
        }
    }

    /// How the gRPC server is run.
    pub fn server(&self, lldp_key: Key) -> ServerConfig {
        let (lldp_interval, given) = (self.lldp_interval(), self.given());
        let limits = Limits { agent: self.grace(), ..Limits::default() };
        ServerConfig { lldp_interval, lldp_key, limits, given }
    }

    fn given(&self) -> Given {
        let bytes_per_second = |mbit: f64| (mbit * 1e6 / 8.0) as u64;
        Given { host: self.host_mbit.map(bytes_per_second), uplink: self.uplink_mbit.map(bytes_per_second) }
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(self.agent_grace.into())
    }

    fn lldp_interval(&self) -> Duration {
        Duration::from_millis(self.lldp_interval_ms.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn rates_are_bytes_per_second_and_unknown_unless_given() {
        let options = Options::parse_from(["cool-controller", "--host-mbit", "20.5"]);
        assert_eq!(options.fabric().host_bytes_per_second, Some(2_562_500));
        assert_eq!(options.fabric().uplink_bytes_per_second, None);
        for wrong in ["0", "-1", "NaN", "inf", "fast"] {
            assert!(
                Options::try_parse_from(["cool-controller", &format!("--host-mbit={wrong}")]).is_err(),
                "{wrong}"
            );
        }
        assert!(Options::try_parse_from(["cool-controller", "--grpc", "nowhere"]).is_err());
    }
}
