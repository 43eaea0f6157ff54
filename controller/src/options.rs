//! Command line of the controller.

use crate::costs::ConfiguredRates;
use crate::flooding::QUIET_TIME;
use crate::groups::group_keys::GroupKeys;
use crate::leadership::LeadershipOptions;
use crate::leadership::state_store::StateStore;
use crate::racks_file;
use crate::server::ServerConfig;
use crate::timeouts::Timeouts;
use clap::{Parser, ValueEnum};
use cool_fabric::{
    DatapathId, FabricConfig, HostLimits, MulticastModel, NetworkMode, Pipeline, RackTable, TableCapacity,
    Unicast,
};
use cool_topology::Key;
use cool_topology::ids::NoDatapathId;
use cool_types::check_node_name;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Run the network of a COOL cluster: discover and forward, install multicast trees, start jobs
///
/// Point every switch at --openflow (for Open vSwitch: `ovs-vsctl set-controller BRIDGE
/// ssl:THIS_HOST:6653`), and every cool-nodeagent and `cool` at --grpc. Switches, agents and the
/// controller may start in any order. The log goes to standard error. On SIGHUP, --log,
/// --event-log, --jobs-per-user and --racks are reloaded from the --config file, and the file of
/// --racks is read again.
#[derive(Clone, Debug, Parser)]
#[command(name = "cool-controller", version)]
pub struct Options {
    /// Address to listen on for switches (OpenFlow 1.3 over TLS, or over TCP with
    /// --insecure-plaintext)
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:6653")]
    pub openflow: SocketAddr,

    /// Address to listen on for agents and tools (gRPC)
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:7400")]
    pub grpc: SocketAddr,

    /// The kind of network that is required
    ///
    /// With "auto" the controller serves any network. OpenFlow switches that connect carry
    /// multicast trees. Nodes that no such switch locates within seconds are located by the reports
    /// of their agents, with racks that --racks, cool-nodeagent --rack or the LLDP of ordinary
    /// switches names. Their groups use multicast if probes show that all nodes receive it, and
    /// chains otherwise. With "openflow" such nodes are not used. With "snooping" all nodes are
    /// located in this way, at once. With "plain" too, but no group uses multicast.
    #[arg(long, value_enum, value_name = "MODE", env = "COOL_NETWORK", default_value_t = NetworkMode::Auto)]
    pub network: NetworkMode,

    /// Observe OpenFlow switches, and change nothing in them
    ///
    /// The controller reads the tables of the switches and sends LLDP out of their ports. `cool
    /// topology` shows what it found, the flows and groups that it would install, and what it could
    /// not find out. Nodes may join and run programs; groups use chains, as with --network plain.
    /// Start the controller without this flag to hand the switches over.
    #[arg(long)]
    pub observe: bool,

    /// The multicast addresses of groups, on networks without OpenFlow switches
    ///
    /// With "asm" (any-source multicast) groups use addresses of 239.192.0.0/14, or of ff18::/16
    /// with IPv6. Routers with PIM need a rendezvous point for them. With "ssm" (source-specific
    /// multicast, RFC 4607) they use addresses of 232.192.0.0/14, or of ff38::/32, for which
    /// routers need none: each node joins the sources that its groups use, and receives multicasts
    /// of no other host. The first messages of a source are then sent along chains, and ranks
    /// execute no quick calls.
    #[arg(long, value_enum, value_name = "MODEL", default_value_t = MulticastModel::Asm)]
    pub multicast: MulticastModel,

    /// File with the racks of nodes that no OpenFlow switch locates
    ///
    /// Each line is RACK PATTERN..., for example "west node[01-16,20] gpu*", and the first line
    /// that matches a node's name counts. Slurm's topology.conf is accepted, too: switches with
    /// nodes are racks. The --rack of an agent takes precedence over this file, which takes
    /// precedence over the LLDP of ordinary switches.
    #[arg(long, value_name = "FILE", value_parser = racks_file::read)]
    pub racks: Option<Arc<RackTable>>,

    /// Maximum number of multicast addresses in use without OpenFlow switches
    ///
    /// Switches with IGMP or MLD snooping have small tables; beyond them, many flood. A group uses
    /// one address for all its nodes and, while fewer than half of them are in use, one for each
    /// rack and one for all racks. Groups without an address use chains.
    #[arg(long, value_name = "N", default_value_t = FabricConfig::default().max_snooped_trees)]
    pub max_trees: u32,

    /// Time in seconds without a querier of multicast groups after which a node becomes one, on
    /// networks without OpenFlow switches
    ///
    /// Switches with IGMP or MLD snooping forget the members of groups without a querier, which is
    /// usually a router. A node can listen and query if its agent has CAP_NET_RAW. It queries from
    /// the address 0.0.0.0 (IPv6: link-local), and ends when it hears another querier.
    #[arg(long, value_name = "SECONDS", default_value_t = 130, value_parser = clap::value_parser!(u32).range(1..))]
    pub querier_patience: u32,

    /// How connections are secured.
    #[command(flatten)]
    pub tls: cool_tls::Options,

    /// HTTP pages.
    #[command(flatten)]
    pub pages: cool_daemon::web::Options,

    /// Log and event log.
    #[command(flatten)]
    pub log: cool_daemon::log::Options,

    /// Leader election.
    #[command(flatten)]
    pub leadership: LeadershipOptions,

    /// Rate of each link between a node and its switch, in Mbit/s [default: the rate of the switch
    /// port]
    ///
    /// Required where ports do not report the real rate, for example shaped or virtual links.
    /// Senders do not exceed this rate.
    #[arg(long, value_name = "MBIT", value_parser = parse_megabits)]
    pub host_mbit: Option<f64>,

    /// Rate of each link between two switches, in Mbit/s [default: the rate of the switch ports]
    #[arg(long, value_name = "MBIT", value_parser = parse_megabits)]
    pub uplink_mbit: Option<f64>,

    /// Maximum number of packet-ins per second from one switch port; more are dropped
    ///
    /// Counts LLDP, ARP, neighbor discovery, Ethernet broadcasts and IPv6 link-local multicast.
    /// Bursts of twice this number are permitted. Enforced by meters in switches that support them,
    /// and by the controller.
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub port_packets_per_second: u32,

    /// How unicast is forwarded
    ///
    /// "routed": the controller installs rules in advance, uses all equal-cost paths, and never
    /// floods. "normal": switches forward unicast themselves, as other traffic, and only multicast
    /// is programmed. In a network with loops, this is limited to a spanning tree, because switches
    /// flood unknown destinations. A port without an agent is then used after four LLDP intervals.
    #[arg(long, value_enum, default_value = "routed")]
    pub unicast: Unicast,

    /// Drop traffic from and to hosts without an agent
    ///
    /// By default (with --unicast routed), such hosts can reach each other, nodes and gateways, as
    /// through any switch. With this flag, nodes resolve each other's addresses over IPv4 only.
    #[arg(long)]
    pub agents_only: bool,

    /// Maximum number of hosts without an agent; each requires a flow in every switch
    #[arg(long, value_name = "N", default_value_t = HostLimits::default().all, conflicts_with = "agents_only")]
    pub max_hosts: usize,

    /// Maximum number of hosts without an agent at one port, for example behind another switch, or
    /// virtual machines
    #[arg(long, value_name = "N", default_value_t = HostLimits::default().per_port, conflicts_with = "agents_only")]
    pub max_hosts_per_port: usize,

    /// Maximum number of group table entries per switch [default: as many as it reports]
    ///
    /// A group uses one entry in each switch of each of its trees. If a switch has no free entry,
    /// the group gets fewer trees or none, and its data is forwarded along chains of nodes instead.
    /// At most half of the entries are used for fast failover.
    #[arg(long, value_name = "N")]
    pub max_groups_per_switch: Option<u32>,

    /// Maximum number of fast failover entries (type FF) per switch [default: as many as it
    /// reports]
    ///
    /// With them a switch reroutes unicast itself as soon as a port goes down. Without them it
    /// waits for the controller. A switch needs about as many as it has uplinks.
    #[arg(long, value_name = "N")]
    pub max_failovers_per_switch: Option<u32>,

    /// Maximum number of flows per switch, including those for unicast [default: as many as it
    /// reports]
    ///
    /// If there is no room for a group's flows, it gets fewer trees. If there is no room for a
    /// unicast flow, its destination cannot be reached, and a warning is shown.
    #[arg(long, value_name = "N")]
    pub max_flows_per_switch: Option<u32>,

    /// Maximum number of meters per switch, one per port [default: as many as it reports]
    #[arg(long, value_name = "N")]
    pub max_meters_per_switch: Option<u32>,

    /// Flow table to use in each switch
    ///
    /// For any table other than the first one, the switch's own pipeline or other flows must send
    /// packets to it by goto_table, including LLDP.
    #[arg(long, value_name = "TABLE", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=i64::from(Pipeline::LAST_TABLE)))]
    pub flow_table: u8,

    /// First group number to use in each switch's group table, for example 0x1000
    ///
    /// The 33,554,432 numbers from here on must not be used by anything else: trees use the first
    /// 262,144, and fast failover the second half. Do not change this while switches hold groups,
    /// because the controller would not recognize them as its own.
    #[arg(long, value_name = "NUMBER", default_value = "0xc0000000", value_parser = parse_group_number)]
    pub first_group: u32,

    /// Names of switches by datapath id, for example leaf1=0x2a,spine1=2b [default: their own
    /// names]
    #[arg(long, value_name = "NAME=DPID,...", value_parser = parse_switch_names)]
    pub switches: Option<Arc<BTreeMap<DatapathId, String>>>,

    /// Reject switches that are not named by --switches
    #[arg(long, requires = "switches")]
    pub only_named_switches: bool,

    /// Reject switches and agents with certificates that do not name a switch or node
    ///
    /// `cool certs --switch` and `--node` make certificates that do. By default, a certificate that
    /// is valid for any switch or any node is accepted too.
    #[arg(long, conflicts_with = "insecure_plaintext")]
    pub only_bound_certificates: bool,

    /// Interval of LLDP announcements by switches and agents, in milliseconds
    ///
    /// A shorter interval detects changes sooner and costs one small packet per port and interval.
    /// A link counts as lost after three missed announcements. Switches announce at most 10,000
    /// ports per second in total, so in large networks the interval is longer.
    #[arg(long, value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u32).range(50..=60_000))]
    pub lldp_interval_ms: u32,

    /// How long an agent, or the caller of a job, may take to reconnect, in seconds
    ///
    /// Until then a node keeps its flows, trees, groups and jobs. It is lost at once if its agent
    /// shuts down, and after 3 s if no switch receives its LLDP. A disconnected switch keeps its
    /// place for the same time, and a job without its `cool run` continues for the same time. While
    /// the controller is connected to neither agents nor switches, no grace time elapses. It takes
    /// up to 15 s to notice this, so the minimum is 20 s.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(GRACE_SECONDS))]
    pub agent_grace: u32,

    /// Maximum number of jobs per user; further ones are refused
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs_per_user: u32,

    /// Refuse groups with agents that cannot tag their datagrams
    ///
    /// Agents of this release tag all datagrams of a group with a key that only its agents have,
    /// and authenticate each other. By default, a group with an agent of an earlier release does
    /// without.
    #[arg(long)]
    pub require_tags: bool,

    /// Maximum number of nodes of a group whose agents connect in a full mesh as soon as it is
    /// formed
    ///
    /// In a full mesh, agents detect a lost node at once. The agents of a larger group connect on
    /// demand.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub mesh_nodes: u32,

    /// Number of parallel TCP connections between two agents, from 1 to 16
    ///
    /// Cloud providers limit the rate of a single connection (AWS: 5 Gbit/s outside a cluster
    /// placement group). Where a node's link is faster, use the rate of the link, divided by this
    /// limit and rounded up, plus one or two. A group with an agent of an earlier release uses one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub connections_per_hop: u8,
}

/// Permitted grace times. An isolated controller must notice its isolation first, and switches
/// count as connected for 15 s.
const GRACE_SECONDS: std::ops::RangeInclusive<i64> = 20..=86_400;

/// Parses a rate from 1 kbit/s to 10 Tbit/s. It is at least one byte per second and far from an
/// overflow.
fn parse_megabits(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(mbit) if (0.001..=1e7).contains(&mbit) => Ok(mbit),
        _ => Err("expected a rate in Mbit/s, from 0.001 to 10000000".to_owned()),
    }
}

/// Parses a decimal number, or a hexadecimal one after 0x.
fn parse_group_number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let most = Pipeline::LAST_FIRST_GROUP;
    number.ok().filter(|number| *number <= most).ok_or_else(|| format!("expected a number up to {most:#x}"))
}

fn parse_switch_names(text: &str) -> Result<Arc<BTreeMap<DatapathId, String>>, String> {
    let mut names = BTreeMap::new();
    for pair in text.split(',') {
        let (name, id) =
            pair.split_once('=').ok_or_else(|| format!("{pair:?} is not of the form NAME=DPID"))?;
        check_node_name(name).map_err(|e| e.to_string())?;
        let id: DatapathId = id.parse().map_err(|e: NoDatapathId| e.to_string())?;
        if names.values().any(|other| other == name) || names.insert(id, name.to_owned()).is_some() {
            return Err(format!("{pair:?} repeats the name or the datapath id of another switch"));
        }
    }
    Ok(Arc::new(names))
}

/// Options that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContradictoryOptions {
    /// --multicast ssm on a network in which no node joins multicast addresses.
    #[error(
        "--multicast ssm has no effect with --network {}, because nodes then join no multicast addresses; \
         omit it, or use --network auto or snooping",
        name(*.0)
    )]
    Multicast(NetworkMode),
    /// --observe on a network without OpenFlow switches.
    #[error(
        "--observe observes OpenFlow switches, but with --network {} none are used; omit one of the two",
        name(*.0)
    )]
    Observe(NetworkMode),
    /// --observe in a pair of controllers.
    #[error(
        "--observe and --lead-by: while an observer leads the pair, no controller serves the cluster; omit one of the two"
    )]
    ObservingPair,
}

fn name(mode: NetworkMode) -> String {
    mode.to_possible_value().map_or_else(String::new, |mode| mode.get_name().to_owned())
}

impl Options {
    /// Checks the options that depend on each other.
    ///
    /// # Errors
    /// Returns a contradiction between two options.
    pub fn check(&self) -> Result<(), ContradictoryOptions> {
        let mode = self.network;
        match mode {
            NetworkMode::OpenFlow | NetworkMode::Plain if self.multicast == MulticastModel::Ssm => {
                Err(ContradictoryOptions::Multicast(mode))
            }
            _ if !self.observe => Ok(()),
            NetworkMode::Snooping | NetworkMode::Plain => Err(ContradictoryOptions::Observe(mode)),
            _ if self.leadership.lead_by.is_some() => Err(ContradictoryOptions::ObservingPair),
            NetworkMode::Auto | NetworkMode::OpenFlow => Ok(()),
        }
    }

    /// Returns the configuration of the fabric, which starts as a standby.
    pub fn fabric(&self) -> FabricConfig {
        let ConfiguredRates { host, uplink } = self.configured_rates();
        FabricConfig {
            mode: self.network,
            host_bytes_per_second: host,
            uplink_bytes_per_second: uplink,
            lldp_interval: self.lldp_interval(),
            grace: self.grace(),
            packet_ins_per_second: self.port_packets_per_second,
            unicast: self.unicast,
            hosts: (!self.agents_only)
                .then_some(HostLimits { all: self.max_hosts, per_port: self.max_hosts_per_port }),
            max_snooped_trees: self.max_trees,
            multicast: self.multicast,
            capacity: TableCapacity {
                groups: self.max_groups_per_switch,
                failovers: self.max_failovers_per_switch,
                flows: self.max_flows_per_switch,
                meters: self.max_meters_per_switch,
            },
            racks: self.racks.clone().unwrap_or_default(),
            switch_names: self.switches.clone().unwrap_or_default(),
            only_named_switches: self.only_named_switches,
            only_bound_certificates: self.only_bound_certificates,
            pipeline: Pipeline { table: self.flow_table, first_group: self.first_group },
            generation: None,
            observes: self.observe,
            ..FabricConfig::default()
        }
    }

    /// Returns the configuration of the gRPC server without TLS. `secret` must be new for each run,
    /// because keys are derived from it.
    pub fn server(&self, secret: &Key, generation: u64, jobs_per_user: watch::Receiver<u32>) -> ServerConfig {
        let (lldp_interval, configured_rates) = (self.lldp_interval(), self.configured_rates());
        let timeouts = Timeouts { agent: self.grace(), caller: self.grace(), ..Timeouts::default() };
        let lldp_key = secret.derive(b"agents");
        let keys = GroupKeys {
            secret: secret.derive(b"groups"),
            required: self.require_tags,
            mesh_nodes: self.mesh_nodes,
            connections_per_hop: self.connections_per_hop,
        };
        ServerConfig {
            lldp_interval,
            lldp_key,
            keys,
            timeouts,
            jobs_per_user,
            configured_rates,
            generation,
            // Switches with IGMP snooping take note of queriers.
            querier_patience: match self.network {
                _ if self.observe => Duration::MAX,
                NetworkMode::Plain => Duration::MAX,
                _ => Duration::from_secs(self.querier_patience.into()),
            },
            flooding_quiet_time: match self.network {
                _ if self.observe => None,
                NetworkMode::Plain => None,
                _ => Some(QUIET_TIME),
            },
            only_bound_certificates: self.only_bound_certificates,
            credentials: None,
            store: StateStore::Volatile,
        }
    }

    fn configured_rates(&self) -> ConfiguredRates {
        let bytes_per_second = |mbit: f64| (mbit * 1e6 / 8.0) as u64;
        ConfiguredRates {
            host: self.host_mbit.map(bytes_per_second),
            uplink: self.uplink_mbit.map(bytes_per_second),
        }
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
    fn switch_names_are_unique() {
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
    fn ssm_needs_a_network_in_which_nodes_join_addresses() {
        let check = |mode| {
            Options::parse_from(["cool-controller", "--multicast", "ssm", "--network", mode])
                .check()
                .map_err(|why| why.to_string())
        };
        assert_eq!([check("auto"), check("snooping")], [Ok(()), Ok(())]);
        for mode in ["openflow", "plain"] {
            let why = check(mode).unwrap_err();
            assert!(why.contains(&format!("no effect with --network {mode}")), "{why}");
        }
        assert_eq!(Options::parse_from(["cool-controller"]).fabric().multicast, MulticastModel::Asm);
    }

    #[test]
    fn rates_are_converted_to_bytes_per_second() {
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
    fn two_agents_have_one_to_sixteen_connections() {
        let given = |number: &str| {
            Options::try_parse_from(["cool-controller", "--connections-per-hop", number])
                .map(|options| options.connections_per_hop)
        };
        assert_eq!(Options::parse_from(["cool-controller"]).connections_per_hop, 1);
        assert_eq!((given("1").unwrap(), given("16").unwrap()), (1, 16));
        assert!(["0", "17", "-1", "many"].iter().all(|wrong| given(wrong).is_err()));
    }

    #[test]
    fn options_that_contradict_observe_are_refused() {
        let check = |given: &[&str]| {
            let arguments = ["cool-controller", "--observe"].into_iter().chain(given.iter().copied());
            Options::parse_from(arguments).check().map_err(|why| why.to_string())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["--network", "openflow", "--unicast", "normal"]), Ok(()));
        for mode in ["plain", "snooping"] {
            let why = check(&["--network", mode]).unwrap_err();
            assert!(why.contains(&format!("--network {mode} none are used")), "{why}");
        }
        let why = check(&["--lead-by", "https://etcd:2379"]).unwrap_err();
        assert!(why.contains("--lead-by"), "{why}");
        let plain = Options::parse_from(["cool-controller", "--network", "plain"]);
        assert_eq!(plain.check(), Ok(()));
    }

    #[test]
    fn the_flow_table_and_group_numbers_are_within_openflow_limits() {
        let given = ["cool-controller", "--flow-table", "5", "--first-group", "0x1000"];
        assert_eq!(Options::parse_from(given).fabric().pipeline, Pipeline { table: 5, first_group: 0x1000 });
        assert_eq!(Options::parse_from(["cool-controller"]).fabric().pipeline, Pipeline::default());
        for wrong in [["--flow-table", "255"], ["--first-group", "0xff000000"], ["--first-group", "many"]] {
            assert!(Options::try_parse_from(["cool-controller", wrong[0], wrong[1]]).is_err(), "{wrong:?}");
        }
    }
}
