//! The command line.

use crate::costs::Given;
use cool_fabric::{DatapathId, FabricConfig, HostLimits, Pipeline, TableCapacity, Unicast};
use crate::groups::keys::GroupKeys;
use crate::jobs::job::Limits;
use crate::leadership::LeadershipOptions;
use crate::server::ServerConfig;
use clap::Parser;
use cool_topology::Key;
use cool_topology::ids::NoDatapathId;
use cool_types::check_node_name;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Runs the network of a COOL cluster: discovers it, forwards in it, installs multicast trees, starts jobs.
///
/// Point every switch at --openflow (for Open vSwitch: `ovs-vsctl set-controller BRIDGE ssl:THIS_HOST:6653`)
/// and every cool-nodeagent and `cool` at --grpc. Switches, agents and controller may start in any order.
/// The log goes to standard error. SIGHUP has --log, --event-log and --jobs-per-user read again, from the file of --config.
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

    /// Who of several controllers leads.
    #[command(flatten)]
    pub leadership: LeadershipOptions,

    /// Rate of each link between a node and its switch, Mbit/s [default: what the switch port says].
    ///
    /// Needed where ports do not know their rate, as with shaped or virtual links. Senders are paced by it.
    #[arg(long, value_name = "MBIT", value_parser = megabits)]
    pub host_mbit: Option<f64>,

    /// Rate of each link between two switches, Mbit/s [default: what the switch ports say].
    #[arg(long, value_name = "MBIT", value_parser = megabits)]
    pub uplink_mbit: Option<f64>,

    /// Packets per second that one switch port may hand in to this controller; more are dropped.
    ///
    /// LLDP, ARP, neighbour discovery, Ethernet broadcasts and IPv6's link-local multicast. Twice as many may come at once. By meters in the switch where it has them, and by the controller.
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

    /// Drop what comes from hosts without an agent and what is for them.
    ///
    /// Without this, and with --unicast routed, they reach each other, nodes and gateways as through any switch. With it nodes find each other by IPv4 only.
    #[arg(long)]
    pub agents_only: bool,

    /// Hosts without an agent that are carried; each takes a flow in every switch.
    #[arg(long, value_name = "N", default_value_t = HostLimits::default().all, conflicts_with = "agents_only")]
    pub max_hosts: usize,

    /// Hosts without an agent that are carried at one port, as behind a switch of its own or with virtual machines.
    #[arg(long, value_name = "N", default_value_t = HostLimits::default().per_port, conflicts_with = "agents_only")]
    pub max_hosts_per_port: usize,

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
    ///
    /// A group for which there is no room does with fewer trees. Unicast for which there is none is left out, with a warning: what
    /// it is for is not reached.
    #[arg(long, value_name = "N")]
    pub max_flows_per_switch: Option<u32>,

    /// Meters that each switch may be given, one for each port [default: as many as it says that it has].
    #[arg(long, value_name = "N")]
    pub max_meters_per_switch: Option<u32>,

    /// The table of each switch that flows are in.
    ///
    /// Packets have to be led to any other than the first one, by goto_table, as the switch's own pipeline does or flows of
    /// somebody else's. They must also bring LLDP there.
    #[arg(long, value_name = "TABLE", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=i64::from(Pipeline::LAST_TABLE)))]
    pub flow_table: u8,

    /// The lowest number of the groups in each switch's group table, such as 0x1000.
    ///
    /// The 33,554,432 numbers from it on must be nobody else's: trees take the first 262,144, fast failover the second half. It must stay
    /// the same while switches hold groups: those of other numbers are not known to be this controller's.
    #[arg(long, value_name = "NUMBER", default_value = "0xc0000000", value_parser = group_number)]
    pub first_group: u32,

    /// What switches are called, by datapath id, such as leaf1=0x2a,spine1=2b [default: as they call themselves].
    #[arg(long, value_name = "NAME=DPID,...", value_parser = switch_names)]
    pub switches: Option<Arc<BTreeMap<DatapathId, String>>>,

    /// Turn away switches that --switches does not name.
    #[arg(long, requires = "switches")]
    pub only_named_switches: bool,

    /// Turn away switches and agents whose certificates do not say which switch or node they are.
    ///
    /// Certificates of `cool certs --switch` and `--node` do. Without this, those that are good for any switch, or for any node, are taken too.
    #[arg(long, conflicts_with = "insecure_plaintext")]
    pub only_bound_certificates: bool,

    /// How often switches and agents announce themselves by LLDP, milliseconds.
    ///
    /// Shorter finds changes sooner and costs one small packet for each port and interval. A link counts as lost
    /// after three missed announcements. Switches announce 10,000 ports in a second at most, and in large networks less often than this.
    #[arg(long, value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u32).range(50..=60_000))]
    pub lldp_interval_ms: u32,

    /// How long an agent, or whoever runs a job, may take to come back when it has lost its connection to this controller, seconds.
    ///
    /// Until then a node keeps all it has: flows, trees, groups, jobs. It is gone at once if its agent says that it ends, and
    /// after 3 s if no switch hears it. A switch without a connection keeps its place as long, and a job whose `cool run` is gone
    /// goes on as long. A controller that hears nobody at all gives nobody up; since it takes up to 15 s to know that, the time
    /// is at least 20 s.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(GRACE_SECONDS))]
    pub agent_grace: u32,

    /// Jobs that one user may have at once; further ones are refused.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs_per_user: u32,

    /// Refuse groups some of whose agents cannot tag their datagrams.
    ///
    /// Agents of this release tag all datagrams of a group with a key that only its agents have, and prove to each other who they
    /// are. A group with an agent of an earlier release does without, unless this is set.
    #[arg(long)]
    pub require_tags: bool,

    /// On up to how many nodes the agents of a group connect, each with all others, as soon as it is made.
    ///
    /// So they hear at once that one is gone. The agents of a larger group connect when they first have something to say to each
    /// other.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub mesh_nodes: u32,
}

/// A controller that is cut off itself has to notice that first: switches count as connected for 15 s.
const GRACE_SECONDS: std::ops::RangeInclusive<i64> = 20..=86_400;

/// From 1 kbit/s to 10 Tbit/s: a whole number of bytes per second, far from overflow.
fn megabits(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(mbit) if (0.001..=1e7).contains(&mbit) => Ok(mbit),
        _ => Err("expected a number from 0.001 to 10000000".to_owned()),
    }
}

/// Decimal, or hexadecimal after 0x.
fn group_number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let most = Pipeline::LAST_FIRST_GROUP;
    number.ok().filter(|number| *number <= most).ok_or_else(|| format!("expected a number up to {most:#x}"))
}

fn switch_names(text: &str) -> Result<Arc<BTreeMap<DatapathId, String>>, String> {
    let mut names = BTreeMap::new();
    for pair in text.split(',') {
        let (name, id) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not NAME=DPID"))?;
        check_node_name(name).map_err(|e| e.to_string())?;
        let id: DatapathId = id.parse().map_err(|e: NoDatapathId| e.to_string())?;
        if names.values().any(|other| other == name) || names.insert(id, name.to_owned()).is_some() {
            return Err(format!("{pair:?} names a switch for the second time"));
        }
    }
    Ok(Arc::new(names))
}

impl Options {
    /// How the fabric is run, standing by at first.
    pub fn fabric(&self) -> FabricConfig {
        let Given { host, uplink } = self.given();
        FabricConfig {
            host_bytes_per_second: host,
            uplink_bytes_per_second: uplink,
            lldp_interval: self.lldp_interval(),
            grace: self.grace(),
            packet_ins_per_second: self.port_packets_per_second,
            unicast: self.unicast,
            hosts: (!self.agents_only)
                .then_some(HostLimits { all: self.max_hosts, per_port: self.max_hosts_per_port }),
            capacity: TableCapacity {
                groups: self.max_groups_per_switch,
                failovers: self.max_failovers_per_switch,
                flows: self.max_flows_per_switch,
                meters: self.max_meters_per_switch,
            },
            switch_names: self.switches.clone().unwrap_or_default(),
            only_named_switches: self.only_named_switches,
            only_bound_certificates: self.only_bound_certificates,
            pipeline: Pipeline { table: self.flow_table, first_group: self.first_group },
            generation: None,
            ..FabricConfig::default()
        }
    }

    /// How the gRPC server is run, with a secret of this run, and as many jobs per user as is said; without TLS.
    pub fn server(&self, secret: &Key, generation: u64, jobs_per_user: watch::Receiver<u32>) -> ServerConfig {
        let (lldp_interval, given) = (self.lldp_interval(), self.given());
        let limits = Limits { agent: self.grace(), caller: self.grace(), ..Limits::default() };
        let lldp_key = secret.derive(b"agents");
        let keys = GroupKeys {
            secret: secret.derive(b"groups"),
            required: self.require_tags,
            mesh_nodes: self.mesh_nodes,
        };
        ServerConfig {
            lldp_interval,
            lldp_key,
            keys,
            limits,
            jobs_per_user,
            given,
            generation,
            only_bound_certificates: self.only_bound_certificates,
            credentials: None,
        }
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
    fn switches_have_the_operators_names_each_once() {
        let given =
            Options::parse_from(["cool-controller", "--switches", "leaf1=0x2a,spine.1=00:2b"]).fabric();
        let names = [(DatapathId(0x2a), "leaf1".to_owned()), (DatapathId(0x2b), "spine.1".to_owned())];
        assert_eq!(*given.switch_names, BTreeMap::from(names));
        for wrong in ["leaf1", "leaf 1=2a", "a=s1", "a=1,a=2", "a=1,b=1"] {
            assert!(Options::try_parse_from(["cool-controller", "--switches", wrong]).is_err(), "{wrong}");
        }
        assert!(Options::try_parse_from(["cool-controller", "--only-named-switches"]).is_err());
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

    #[test]
    fn tables_and_group_numbers_are_the_operators_within_what_openflow_has() {
        let given = ["cool-controller", "--flow-table", "5", "--first-group", "0x1000"];
        assert_eq!(Options::parse_from(given).fabric().pipeline, Pipeline { table: 5, first_group: 0x1000 });
        assert_eq!(Options::parse_from(["cool-controller"]).fabric().pipeline, Pipeline::default());
        for wrong in [["--flow-table", "255"], ["--first-group", "0xff000000"], ["--first-group", "many"]] {
            assert!(Options::try_parse_from(["cool-controller", wrong[0], wrong[1]]).is_err(), "{wrong:?}");
        }
    }
}
