//! The interface between the fabric and the rest of the controller: plain values, without OpenFlow.

pub use cool_topology::{DatapathId, Key, Link, LldpNeighbor, MacAddr, Port, RackTable};
pub use cool_types::TreeScope;
use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kind of network that the controller requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum NetworkMode {
    /// Any network: nodes that no OpenFlow switch locates within seconds are located by the reports
    /// of their agents, and their groups use multicast where it is proven to work, and chains
    /// elsewhere.
    Auto,
    /// OpenFlow switches: a node is used once a switch has located it.
    #[default]
    #[value(name = "openflow")]
    OpenFlow,
    /// Switches with IGMP and MLD snooping, or multicast routers: groups use multicast where it is
    /// proven to work, and chains elsewhere.
    Snooping,
    /// Any network, without multicast: all groups use chains and unicast trees.
    Plain,
}

/// The multicast addresses of trees on networks without OpenFlow switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MulticastModel {
    /// Any-source multicast: the nodes of a group join its addresses, and receive what any host
    /// sends to them.
    #[default]
    Asm,
    /// Source-specific multicast (RFC 4607): nodes join an address together with each node that
    /// multicasts to it, and receive nothing from others. Routers need no rendezvous point.
    Ssm,
}

/// How unicast frames between nodes are forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Unicast {
    /// By COOL: flows are installed ahead of traffic and use all equal-cost paths.
    #[default]
    Routed,
    /// By the switches' own forwarding (NORMAL): they learn addresses and use one spanning tree.
    Normal,
}

/// Maximum number of hosts without an agent that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Maximum in the whole network. Each host requires a flow in every switch.
    pub all: usize,
    /// Maximum at one port.
    pub per_port: usize,
}

impl Default for HostLimits {
    fn default() -> HostLimits {
        HostLimits { all: 1024, per_port: 64 }
    }
}

/// Maximum number of this controller's entries in a switch. `None` sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCapacity {
    /// Entries of the group table.
    pub groups: Option<u32>,
    /// Group entries of type FF (fast failover).
    pub failovers: Option<u32>,
    /// Flow entries.
    pub flows: Option<u32>,
    /// Meters.
    pub meters: Option<u32>,
}

/// The operator's choice of a flow table and of group numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The flow table for this controller's flows. If it is not 0, flows of another controller must
    /// send packets to it.
    pub table: u8,
    /// The lowest group number of this controller.
    pub first_group: u32,
}

/// Configuration of the fabric.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// The kind of network that is required.
    pub mode: NetworkMode,
    /// Rate of every link between a node and its switch, in bytes per second. `None`: as the port
    /// reports it.
    pub host_bytes_per_second: Option<u64>,
    /// Rate of every link between two switches, in bytes per second. `None`: as the ports report
    /// it.
    pub uplink_bytes_per_second: Option<u64>,
    /// Interval at which switches and agents announce themselves. A link is lost after three missed
    /// announcements.
    pub lldp_interval: Duration,
    /// Maximum time that [`create_group`](super::Fabric::create_group) waits for the switches.
    pub ack_timeout: Duration,
    /// Maximum time that new unicast paths wait until switches acknowledge the removal of old ones,
    /// because together the two could form a loop.
    pub deferral_timeout: Duration,
    /// How long trees and routes of an earlier controller are retained if nothing requests them
    /// after this one has started (the stale-path time of a graceful restart).
    pub stale_time: Duration,
    /// How long a switch without a connection keeps its place in the network while any of its links
    /// is up.
    pub grace: Duration,
    /// Destination UDP port of all multicast packets.
    pub multicast_port: u16,
    /// Packet-ins per second that a port may cause, with bursts of two seconds' worth. LLDP is
    /// counted separately.
    pub packet_ins_per_second: u32,
    /// Interval at which switches are asked for their counters.
    pub counters_interval: Duration,
    /// How unicast frames are forwarded.
    pub unicast: Unicast,
    /// Limits for hosts without an agent, which can then reach each other and nodes. `None`: such
    /// hosts are not served.
    pub hosts: Option<HostLimits>,
    /// Maximum number of multicast addresses that are in use at once where switches forward
    /// multicast by snooping, because their tables are small.
    pub max_snooped_trees: u32,
    /// The addresses of trees on networks without OpenFlow switches.
    pub multicast: MulticastModel,
    /// Limits for each switch, in addition to those that the switch reports.
    pub capacity: TableCapacity,
    /// The table and the group numbers that are used in each switch.
    pub pipeline: Pipeline,
    /// The operator's table of racks, for nodes that no switch locates.
    pub racks: Arc<RackTable>,
    /// Names that the operator has given to switches. Other switches keep the names that they
    /// report.
    pub switch_names: Arc<BTreeMap<DatapathId, String>>,
    /// Whether switches without such a name are rejected.
    pub only_named_switches: bool,
    /// Whether switches are rejected if their certificates name no datapath id.
    pub only_bound_certificates: bool,
    /// Generation of this controller, for example its start time. Of several controllers, switches
    /// obey the one with the highest generation. Without a generation, this controller is a standby
    /// until [`FabricHandle::lead`](super::FabricHandle::lead) is called.
    pub generation: Option<u64>,
    /// Whether switches are only observed: nothing in them is changed, and all groups use chains.
    /// [`Fabric::observation`](super::Fabric::observation) returns what would be installed.
    pub observes: bool,
}

impl Default for FabricConfig {
    fn default() -> FabricConfig {
        FabricConfig {
            mode: NetworkMode::default(),
            host_bytes_per_second: None,
            uplink_bytes_per_second: None,
            lldp_interval: Duration::from_secs(1),
            ack_timeout: Duration::from_secs(5),
            deferral_timeout: Duration::from_millis(500),
            stale_time: Duration::from_secs(20),
            grace: Duration::from_secs(60),
            multicast_port: 7420,
            packet_ins_per_second: 250,
            counters_interval: Duration::from_secs(2),
            unicast: Unicast::default(),
            hosts: Some(HostLimits::default()),
            max_snooped_trees: 512,
            multicast: MulticastModel::default(),
            capacity: TableCapacity::default(),
            pipeline: Pipeline::default(),
            racks: Arc::default(),
            switch_names: Arc::default(),
            only_named_switches: false,
            only_bound_certificates: false,
            generation: Some(0),
            observes: false,
        }
    }
}

/// A node as its agent registers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRegistration {
    /// Unique name.
    pub name: String,
    /// Address on the data network.
    pub ip: IpAddr,
    /// Address of the data interface.
    pub mac: MacAddr,
    /// Key that authenticates the node's LLDP frames.
    pub lldp_key: Key,
    /// Name of the node's rack, if the operator has given one to its agent. It is used only if no
    /// switch locates the node.
    pub rack: Option<String>,
    /// The switch port to which the node is connected, if an ordinary switch announces it.
    pub neighbor: Option<LldpNeighbor>,
}

/// The rack of a node that no switch of the controller locates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedRack {
    /// Name of the rack, if it has one.
    pub name: Option<String>,
    /// How the rack was found.
    pub source: RackSource,
    /// The switch port to which the node is connected, whether or not it names the rack.
    pub neighbor: Option<LldpNeighbor>,
}

/// How the rack of a node was found that no switch of the controller locates. An earlier source
/// takes precedence over the later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackSource {
    /// By the option of the node's agent.
    AgentOption,
    /// By the controller's table of racks.
    RackTable,
    /// By the LLDP of the node's switch: the rack is that switch.
    Neighbor,
    /// By no source. All such nodes share a rack.
    Nothing,
}

/// Snapshot of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologySnapshot {
    /// Switches, in order of datapath id.
    pub switches: Vec<SwitchView>,
    /// Links between switches, each once. Both directions have been confirmed by LLDP.
    pub links: Vec<LinkView>,
    /// Registered nodes, by name.
    pub nodes: Vec<NodeView>,
    /// The racks of those nodes that are located by the reports of their agents, by name of the
    /// node.
    pub reported_racks: BTreeMap<String, ReportedRack>,
    /// Hosts without an agent, by Ethernet address.
    pub hosts: Vec<HostView>,
    /// Multicast addresses of other programs that the switches carry.
    pub multicast: Vec<MulticastView>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

impl TopologySnapshot {
    /// Returns the node of that name.
    pub fn node(&self, name: &str) -> Option<&NodeView> {
        self.nodes.binary_search_by(|n| n.name.as_str().cmp(name)).ok().map(|i| &self.nodes[i])
    }

    /// Returns the name of a port as operators know it, for example "s1:2".
    pub fn port_name(&self, port: Port) -> String {
        match self.switches.binary_search_by_key(&port.switch, |s| s.datapath_id) {
            Ok(at) => format!("{}:{}", self.switches[at].name, Port::number_text(port.number)),
            Err(_) => port.to_string(),
        }
    }

    /// Returns the name of a link between switches, for example "s1:2-s3:1".
    pub fn link_name(&self, a: Port, b: Port) -> String {
        format!("{}-{}", self.port_name(a), self.port_name(b))
    }

    /// Returns the name of the link between a port and a node, for example "s3:4-h2".
    pub fn node_link_name(&self, port: Port, node: &str) -> String {
        format!("{}-{node}", self.port_name(port))
    }
}

/// A switch in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchView {
    /// Datapath id.
    pub datapath_id: DatapathId,
    /// Name of its local port; otherwise its description; otherwise made from the datapath id.
    pub name: String,
    /// Number of the rack if this is a top-of-rack switch, that is, a switch with agents.
    pub rack: Option<u32>,
    /// Whether it is connected to this controller. Without a connection it keeps forwarding by the
    /// flows it has.
    pub connected: bool,
    /// Number of ports, without the local one.
    pub ports: u32,
    /// Ports that are up, but at which no switch, node or host is known.
    pub unidentified_ports: Vec<u32>,
}

/// A host without an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Ethernet address.
    pub mac: MacAddr,
    /// VLAN of its frames, if they are tagged.
    pub vlan: Option<u16>,
    /// IP addresses that the host has announced.
    pub addresses: Vec<IpAddr>,
    /// Port at which the host is.
    pub port: Port,
}

/// A multicast address of other programs than COOL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastView {
    /// The address: of IPv4, of IPv6, or an Ethernet address.
    pub address: String,
    /// VLAN of its packets, if they are tagged.
    pub vlan: Option<u16>,
    /// Ports that receive its packets: those of members, and of multicast routers.
    pub receivers: Vec<Port>,
}

/// A link between switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// The end with the smaller datapath id.
    pub a: Port,
    /// The other end.
    pub b: Port,
    /// Rate; 0 if unknown.
    pub bytes_per_second: u64,
}

/// A registered node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Unique name.
    pub name: String,
    /// Address on the data network.
    pub ip: IpAddr,
    /// Address of the data interface.
    pub mac: MacAddr,
    /// Place of the node. `None` until its LLDP is received or, depending on [`NetworkMode`], until
    /// it is located by its agent's report.
    pub location: Option<Location>,
}

/// Place of a node in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Switch port. `None` if the node is located by its agent's report.
    pub port: Option<Port>,
    /// Number of the rack, which is stable while the controller runs.
    pub rack: u32,
    /// Rate of the node's link; 0 if unknown.
    pub bytes_per_second: u64,
}

/// A group that needs trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRequest {
    /// Id chosen by the caller, unique among the groups in use. Trees of groups with different ids
    /// prefer different spines.
    pub id: u64,
    /// Node of each rank, in rank order. A node may occur several times.
    pub members: Vec<String>,
    /// Whether the members can prove that trees work. Otherwise the group has trees only if
    /// switches acknowledge them.
    pub can_prove: bool,
    /// Whether the members can join the sources of source-specific trees.
    pub can_join_sources: bool,
}

/// A tree. Either the switches have acknowledged it, or its nodes must prove that it works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeGrant {
    /// The nodes that the tree connects. Trees of fewer than two nodes are not made.
    pub scope: TreeScope,
    /// Multicast address.
    pub address: IpAddr,
    /// UDP port.
    pub port: u16,
    /// Rate of the slowest link of the tree among those with a known rate; 0 if there are none.
    pub bytes_per_second: u64,
    /// Links of the tree between switches.
    pub links: Vec<Link>,
    /// Nodes of the tree, each with its port, if switches have acknowledged the tree.
    pub nodes: Vec<(String, Port)>,
    /// Whether the controller must request a proof that the tree works before the nodes use it. The
    /// sources of a source-specific tree prove it themselves.
    pub needs_proof: bool,
}

/// Error of a request to the fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// A node registers an address of another node.
    #[error("node {name} registers {address}, which node {holder} has; give each node its own address")]
    AddressTaken {
        /// Node that registers.
        name: String,
        /// IP or MAC address.
        address: String,
        /// Node that has the address.
        holder: String,
    },
    /// A node registers a name or address that no node can have.
    #[error("node {name:?} cannot be registered: {reason}")]
    BadRegistration {
        /// Node that registers.
        name: String,
        /// Rule that is violated.
        reason: String,
    },
    /// Members have not been located. Chains work between them, trees do not.
    #[error(
        "no switch has received LLDP of {}; check that their agents run and that their switches reach this controller",
        .nodes.join(", ")
    )]
    NotLocated {
        /// Names of the members.
        nodes: Vec<String>,
    },
    /// No path of known links connects two members.
    #[error("no path of discovered links leads from {from} to {to}; check the switches between them")]
    Partitioned {
        /// One member.
        from: String,
        /// The other member.
        to: String,
    },
    /// Two members are in different VLANs, so frames of one do not reach the other.
    #[error(
        "nodes {one} and {other} are in different VLANs according to the tags of their frames; make groups of nodes of one VLAN"
    )]
    Segments {
        /// One member.
        one: String,
        /// The other member.
        other: String,
    },
    /// One member uses IPv4 and another IPv6.
    #[error(
        "nodes {one} ({one_ip}) and {other} ({other_ip}) use different versions of IP; give all data interfaces IPv4 addresses, or all \
         IPv6 addresses and start the agents with --ipv6"
    )]
    IpVersions {
        /// One member.
        one: String,
        /// Address of its data interface.
        one_ip: IpAddr,
        /// The other member.
        other: String,
        /// Address of its data interface.
        other_ip: IpAddr,
    },
    /// The id is in use.
    #[error("group {id} exists; release it first or choose another id")]
    GroupExists {
        /// Group id.
        id: u64,
    },
    /// The group is unknown.
    #[error("there is no group {id}")]
    NoSuchGroup {
        /// Group id.
        id: u64,
    },
    /// The group has no members.
    #[error("group {id} has no members")]
    EmptyGroup {
        /// Group id.
        id: u64,
    },
    /// All multicast addresses are in use.
    #[error("all {limit} multicast addresses are in use; release groups")]
    OutOfAddresses {
        /// Number of addresses.
        limit: u32,
    },
    /// Switches did not answer the barrier in time. The group is not made.
    #[error(
        "group {id}: {} did not acknowledge its entries within {waited:?}; check its connection to this controller",
        .switches.join(", ")
    )]
    Unacknowledged {
        /// Group id.
        id: u64,
        /// Names of the switches.
        switches: Vec<String>,
        /// Time for which the fabric waited.
        waited: Duration,
    },
    /// A switch has no room for any tree of the group. The group is not made.
    #[error("no room for a tree of group {id}: switch {switch} is full, {exhausted}; release groups")]
    Full {
        /// Group id.
        id: u64,
        /// Name of the switch.
        switch: String,
        /// The table that is full.
        exhausted: String,
    },
    /// A switch refused an entry. The group is not made.
    #[error("group {id}: switch {switch} refused an entry: {reason}")]
    Refused {
        /// Group id.
        id: u64,
        /// Name of the switch.
        switch: String,
        /// The switch's error, and the entry concerned.
        reason: String,
    },
    /// The fabric has stopped.
    #[error("the fabric has been stopped")]
    Stopped,
}

/// Reason for rejecting a switch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// The operator has given it no name.
    #[error("its datapath id {0} is not among --switches")]
    Unnamed(DatapathId),
    /// Its certificate could be that of any switch.
    #[error(
        "its certificate names no datapath id, and it claims to be {0}; give it one made by `cool certs --switch \
         NAME={0}`, or start the controller without --only-bound-certificates"
    )]
    Unbound(DatapathId),
    /// Its certificate belongs to another switch.
    #[error("it claims to be {claimed}, but its certificate is for {}", list(.bound))]
    Impostor {
        /// Datapath id that the switch reports.
        claimed: DatapathId,
        /// Datapath ids in its certificate.
        bound: Vec<DatapathId>,
    },
    /// Another switch is connected with its datapath id.
    #[error("the switch at {at} has its datapath id {claimed}; give each switch a datapath id of its own")]
    Duplicate {
        /// Datapath id that the switch reports.
        claimed: DatapathId,
        /// Address of the other switch.
        at: IpAddr,
    },
}

impl NotAdmitted {
    /// All values of [`cause`](NotAdmitted::cause).
    pub const CAUSES: [&'static str; 4] = ["unnamed", "unbound", "impostor", "duplicate"];

    /// Returns the reason as one word, for metrics.
    pub fn cause(&self) -> &'static str {
        match self {
            NotAdmitted::Unnamed(_) => "unnamed",
            NotAdmitted::Unbound(_) => "unbound",
            NotAdmitted::Impostor { .. } => "impostor",
            NotAdmitted::Duplicate { .. } => "duplicate",
        }
    }
}

fn list(ids: &[DatapathId]) -> String {
    ids.iter().map(DatapathId::to_string).collect::<Vec<_>>().join(", ")
}

/// Identifies a connection, also among several of the same switch.
pub(crate) type ConnectionId = u64;
