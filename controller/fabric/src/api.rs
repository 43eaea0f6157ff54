//! What the fabric and the rest of the controller say to each other: plain values, nothing of OpenFlow.

pub use cool_topology::{DatapathId, Key, Link, MacAddr, Port};
pub use cool_types::TreeScope;
use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who forwards what is for one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Unicast {
    /// COOL: by rules that are installed ahead, over all equal paths.
    #[default]
    Routed,
    /// The switches' own forwarding (NORMAL): by what they learn, over one spanning tree.
    Normal,
}

/// How many hosts without an agent are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// In all: each takes a flow in every switch.
    pub all: usize,
    /// At one port.
    pub per_port: usize,
}

impl Default for HostLimits {
    fn default() -> HostLimits {
        HostLimits { all: 1024, per_port: 64 }
    }
}

/// The most entries of ours that a switch may hold; `None`: as many as it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCapacity {
    /// Entries of its group table.
    pub groups: Option<u32>,
    /// Those of them that are of type FF (fast failover).
    pub failovers: Option<u32>,
    /// Flows.
    pub flows: Option<u32>,
    /// Meters.
    pub meters: Option<u32>,
}

/// The operator's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The table that our flows are in; packets come to it by somebody else's flows if it is not 0.
    pub table: u8,
    /// The lowest of our group numbers.
    pub first_group: u32,
}

/// How the fabric is run.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// Rate of every link between a node and its switch, bytes per second; `None`: what the port says.
    pub host_bytes_per_second: Option<u64>,
    /// Rate of every link between two switches, bytes per second; `None`: what the ports say.
    pub uplink_bytes_per_second: Option<u64>,
    /// How often switches and agents announce themselves; a link is lost after three missed announcements.
    pub lldp_interval: Duration,
    /// How long [`create_group`](super::Fabric::create_group) waits for the switches.
    pub ack_timeout: Duration,
    /// How long new unicast paths that could make a loop with old ones wait for switches to confirm that
    /// those are gone.
    pub deferral_timeout: Duration,
    /// How long trees and routes stay that an earlier controller left in the switches and that nobody has asked for
    /// since this one has started (the stale-path time of a graceful restart).
    pub stale_time: Duration,
    /// How long a switch without a connection keeps its place in the network, as long as any of its links is up.
    pub grace: Duration,
    /// UDP port of all multicast.
    pub multicast_port: u16,
    /// Packets per second that a port may hand in, with two seconds' worth at once; LLDP apart from others.
    pub packet_ins_per_second: u32,
    /// How often switches are asked for their counters.
    pub counters_interval: Duration,
    /// Who forwards unicast.
    pub unicast: Unicast,
    /// Which hosts without an agent reach each other and nodes; `None`: none does.
    pub hosts: Option<HostLimits>,
    /// The most that each switch may hold, beside what it says itself.
    pub capacity: TableCapacity,
    /// Which of a switch's tables and group numbers are used.
    pub pipeline: Pipeline,
    /// What the operator calls switches; others have the names that they give themselves.
    pub switch_names: Arc<BTreeMap<DatapathId, String>>,
    /// Whether switches without such a name are turned away.
    pub only_named_switches: bool,
    /// Whether switches are turned away whose certificates name no datapath id.
    pub only_bound_certificates: bool,
    /// Of several controllers, switches have the one with the highest: when it started, say. Without one this controller stands by
    /// until [`FabricHandle::lead`](super::FabricHandle::lead).
    pub generation: Option<u64>,
}

impl Default for FabricConfig {
    fn default() -> FabricConfig {
        FabricConfig {
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
            capacity: TableCapacity::default(),
            pipeline: Pipeline::default(),
            switch_names: Arc::default(),
            only_named_switches: false,
            only_bound_certificates: false,
            generation: Some(0),
        }
    }
}

/// A node as its agent describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRegistration {
    /// Unique name.
    pub name: String,
    /// Address on the data network.
    pub ip: IpAddr,
    /// Address of the data interface.
    pub mac: MacAddr,
    /// What proves its LLDP.
    pub lldp_key: Key,
}

/// The network as it is known at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologySnapshot {
    /// By datapath id.
    pub switches: Vec<SwitchView>,
    /// Links between switches, each once; both directions have been heard.
    pub links: Vec<LinkView>,
    /// Registered nodes, by name.
    pub nodes: Vec<NodeView>,
    /// Hosts without an agent, by Ethernet address.
    pub hosts: Vec<HostView>,
    /// What an operator should look at.
    pub warnings: Vec<String>,
}

impl TopologySnapshot {
    /// The node of that name.
    pub fn node(&self, name: &str) -> Option<&NodeView> {
        self.nodes.binary_search_by(|n| n.name.as_str().cmp(name)).ok().map(|i| &self.nodes[i])
    }

    /// A port as operators know it: "s1:2".
    pub fn port_name(&self, port: Port) -> String {
        match self.switches.binary_search_by_key(&port.switch, |s| s.datapath_id) {
            Ok(at) => format!("{}:{}", self.switches[at].name, port.number),
            Err(_) => port.to_string(),
        }
    }

    /// A link between switches as operators know it: "s1:2-s3:1".
    pub fn link_name(&self, a: Port, b: Port) -> String {
        format!("{}-{}", self.port_name(a), self.port_name(b))
    }

    /// The link of a node at a port as operators know it: "s3:4-h2".
    pub fn node_link_name(&self, port: Port, node: &str) -> String {
        format!("{}-{node}", self.port_name(port))
    }
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchView {
    /// Its identity.
    pub datapath_id: DatapathId,
    /// Of its local port, else from its description, else made of the datapath id.
    pub name: String,
    /// The rack's number, if this is a rack's top-of-rack switch: one with agents on it.
    pub rack: Option<u32>,
    /// Whether it has a connection to this controller. Without one it goes on as it was told.
    pub connected: bool,
    /// Number of its ports, the local one not counted.
    pub ports: u32,
    /// The numbers of those whose link is up and at which no known switch, node or host is.
    pub unidentified_ports: Vec<u32>,
}

/// A host without an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// The VLAN of its frames, if they are tagged.
    pub vlan: Option<u16>,
    /// The addresses that it has said it has.
    pub addresses: Vec<IpAddr>,
    /// Where it is.
    pub port: Port,
}

/// A link between switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// The end with the smaller datapath id.
    pub a: Port,
    /// The other end.
    pub b: Port,
    /// 0: unknown.
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
    /// Where it is attached, once its LLDP has been heard.
    pub location: Option<Location>,
}

/// Where a node is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The switch port.
    pub port: Port,
    /// The rack's number; stable while the controller runs.
    pub rack: u32,
    /// Of the node's link; 0: unknown.
    pub bytes_per_second: u64,
}

/// A group that needs trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRequest {
    /// Chosen by the caller, unique among the groups in use. Groups spread over spines by it.
    pub id: u64,
    /// The node of each rank, in rank order; a node may come several times.
    pub members: Vec<String>,
}

/// A tree that the switches have confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeGrant {
    /// Which nodes it connects. Trees of fewer than two nodes are not made.
    pub scope: TreeScope,
    /// The multicast group.
    pub address: IpAddr,
    /// UDP port.
    pub port: u16,
    /// Rate of the slowest known link on the tree; 0: none is known.
    pub bytes_per_second: u64,
    /// Its links between switches.
    pub links: Vec<Link>,
    /// Its nodes, each with the port at which it is.
    pub nodes: Vec<(String, Port)>,
}

/// Why the fabric did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// Registration with another node's address.
    #[error("node {name} registers {address}, which node {holder} has; give each node its own address")]
    AddressTaken {
        /// Who registers.
        name: String,
        /// The IP or MAC address.
        address: String,
        /// Who has it.
        holder: String,
    },
    /// Registration with a name or address that no node can have.
    #[error("node {name:?} cannot be registered: {reason}")]
    BadRegistration {
        /// Who registers.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Members whose place in the network is not known: chains work between them, trees do not.
    #[error(
        "no switch has heard the LLDP of {}; check that their agents run and that their switches reach this controller",
        .nodes.join(", ")
    )]
    NotLocated {
        /// Their names.
        nodes: Vec<String>,
    },
    /// Members that no path of known links connects.
    #[error("no path of discovered links leads from {from} to {to}; check the switches between them")]
    Partitioned {
        /// A member.
        from: String,
        /// Another.
        to: String,
    },
    /// Members that frames do not reach from each other.
    #[error(
        "nodes {one} and {other} are in different VLANs, by the tags of their frames; make groups of nodes of one VLAN"
    )]
    Segments {
        /// A member.
        one: String,
        /// Another.
        other: String,
    },
    /// Members of which one is reached by IPv4 and another by IPv6.
    #[error(
        "nodes {one} ({one_ip}) and {other} ({other_ip}) speak different versions of IP with other nodes; give the data interfaces of all \
         IPv4 addresses, or of all IPv6 addresses and start the agents with --ipv6"
    )]
    IpVersions {
        /// A member.
        one: String,
        /// The address of its data interface.
        one_ip: IpAddr,
        /// Another.
        other: String,
        /// The address of its data interface.
        other_ip: IpAddr,
    },
    /// The id is in use.
    #[error("group {id} exists; release it first or choose another id")]
    GroupExists {
        /// The id.
        id: u64,
    },
    /// There is no such group.
    #[error("there is no group {id}")]
    NoSuchGroup {
        /// The id.
        id: u64,
    },
    /// A group without members.
    #[error("group {id} has no members")]
    EmptyGroup {
        /// The id.
        id: u64,
    },
    /// All multicast addresses are in use.
    #[error("all {limit} multicast addresses are in use; release groups")]
    OutOfAddresses {
        /// How many there are.
        limit: u32,
    },
    /// Switches that did not answer the barrier in time. The group is not made.
    #[error(
        "group {id}: {} did not confirm its entries within {waited:?}; check its connection to this controller",
        .switches.join(", ")
    )]
    Unacknowledged {
        /// The group.
        id: u64,
        /// Their names.
        switches: Vec<String>,
        /// How long was waited.
        waited: Duration,
    },
    /// A switch has no room for any tree of the group. The group is not made.
    #[error(
        "there is no room for a tree of group {id}: switch {switch} is full, {exhausted}; release groups"
    )]
    Full {
        /// The group.
        id: u64,
        /// The switch's name.
        switch: String,
        /// Of what there is no room.
        exhausted: String,
    },
    /// A switch refused an entry. The group is not made.
    #[error("group {id}: switch {switch} refused an entry: {reason}")]
    Refused {
        /// The group.
        id: u64,
        /// The switch's name.
        switch: String,
        /// Its error and what it refers to.
        reason: String,
    },
    /// The fabric has ended.
    #[error("the fabric has been stopped")]
    Stopped,
}

/// Why a switch is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// The operator has not named it.
    #[error("its datapath id {0} is not among --switches")]
    Unnamed(DatapathId),
    /// Its certificate may be that of any switch.
    #[error(
        "its certificate names no datapath id, and it says that it is {0}; give it one made by `cool certs --switch \
         NAME={0}`, or do without --only-bound-certificates"
    )]
    Unbound(DatapathId),
    /// Its certificate is another switch's.
    #[error("it says that it is {claimed}, but its certificate is for {}", list(.bound))]
    Impostor {
        /// What it says.
        claimed: DatapathId,
        /// What its certificate says.
        bound: Vec<DatapathId>,
    },
}

impl NotAdmitted {
    /// All causes, as [`cause`](NotAdmitted::cause) has them.
    pub const CAUSES: [&'static str; 3] = ["unnamed", "unbound", "impostor"];

    /// In a word.
    pub fn cause(&self) -> &'static str {
        match self {
            NotAdmitted::Unnamed(_) => "unnamed",
            NotAdmitted::Unbound(_) => "unbound",
            NotAdmitted::Impostor { .. } => "impostor",
        }
    }
}

fn list(ids: &[DatapathId]) -> String {
    ids.iter().map(DatapathId::to_string).collect::<Vec<_>>().join(", ")
}

/// Tells connections apart, also of the same switch.
pub(crate) type ConnectionId = u64;
