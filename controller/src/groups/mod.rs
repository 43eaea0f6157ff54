//! Groups: what their members are told of them, which are in use, and how they come and go.
//!
//! Their trees are the [`Fabric`]'s. Who is in them, and when, is decided by [`crate::jobs`] and
//! [`crate::groups::registrar`].

pub mod keys;
pub mod registrar;

use crate::agents::Session;
use crate::costs::prober::Prober;
use crate::costs::{Links, Measurements};
use cool_fabric::Fabric;
use cool_fabric::{FabricError, GroupRequest, TopologySnapshot, TreeGrant, TreeScope};
use cool_collective::CostModel;
use cool_proto::control::{Description, Group, Member, ReleaseGroup, Tree, controller_message::Body, tree};
use cool_proto::features;
use cool_types::wire;
use keys::{GroupKeys, TaggedBy};
use parking_lot::Mutex;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use tracing::warn;

/// The epoch of a group's first membership.
pub const FIRST_EPOCH: u32 = 1;

/// IPv4 (without options), UDP, and the header of a data packet.
const HEADERS: u32 = (wire::IPV4 + wire::UDP + wire::STREAM_DATA_HEADER) as u32;
/// Longest packet.
const LONGEST_PACKET: u32 = 65_535;

/// Where a rank runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The agent of its node.
    pub session: Arc<Session>,
    /// The node's rack.
    pub rack: u32,
}

/// What the members of a group, of a job, are told: `places` and `trees` as the network is now.
pub fn describe(
    (id, job): (u64, u64),
    places: &[Place],
    network: &TopologySnapshot,
    measured: &Measurements,
    (trees, key): (Vec<TreeGrant>, Option<TaggedBy>),
) -> Group {
    let mut nodes = BTreeSet::new();
    let on_demand = key.as_ref().is_some_and(|key| key.proves);
    let member = |(rank, place): (u32, &Place)| {
        let agent = &place.session.agent;
        let is_first = nodes.insert(place.session.number);
        Member {
            rank,
            node: agent.name.clone(),
            incarnation: agent.incarnation,
            rack: place.rack,
            ip: agent.ip.to_string(),
            udp_port: agent.udp_port.into(),
            tcp_port: agent.tcp_port.into(),
            key: agent.key.as_ref().filter(|_| is_first && !on_demand).map(keys::secret),
        }
    };
    let tag = key.as_ref().map_or(0, TaggedBy::tag_bytes);
    let ipv6 = places.iter().any(|place| place.session.agent.ip.is_ipv6());
    let mut cost_model = cost_model(places, network, measured);
    cost_model.costs.tag = tag;
    let further_bytes = (tag + cost_model.costs.beyond_ipv4) as u32;
    // What ranks send themselves goes over IPv4 and is not encrypted, and they reach all by their tree.
    let quick = !ipv6
        && keys::all_have(places, features::QUICK)
        && key.as_ref().is_some_and(|key| !key.encrypted && !key.proves)
        && trees.iter().any(|tree| tree.scope == TreeScope::All);
    Group {
        id,
        epoch: FIRST_EPOCH,
        members: (0..).zip(places).map(member).collect(),
        trees: trees.iter().map(|tree| tree_message(tree, network)).collect(),
        chunk_bytes: mtu(places).min(LONGEST_PACKET).saturating_sub(HEADERS + further_bytes),
        host_bytes_per_second: host_rate(places, network),
        uplink_bytes_per_second: uplink_rate(places, network),
        job,
        cost_model: text(&cost_model),
        encrypted: key.as_ref().is_some_and(|key| key.encrypted),
        key: key.map(|key| key.secret),
        on_demand,
        quick,
    }
}

/// What the agents of a group are told: its description, encoded once for all, if they know what that is.
fn told(group: &Group, places: &[Place]) -> Body {
    match keys::all_have(places, features::DESCRIPTIONS).then(|| Description::from_group(group)).flatten() {
        Some(description) => Body::Description(description.encode_to_vec().into()),
        None => Body::Group(group.clone()),
    }
}

/// What agents with these places are to reckon with.
pub fn cost_model(places: &[Place], network: &TopologySnapshot, measured: &Measurements) -> CostModel {
    let (uplink, ecmp_paths) = uplinks(places, network);
    let links = Links { host: host_rate(places, network), uplink, ecmp_paths, mtu: mtu(places) };
    let mut model = measured.cost_model(links);
    let beyond = places.iter().map(|place| wire::beyond_ipv4(&place.session.agent.ip));
    model.costs.beyond_ipv4 = beyond.max().unwrap_or(0);
    model
}

/// A cost model as it is handed on.
pub fn text(model: &CostModel) -> String {
    serde_json::json!(model).to_string()
}

/// What every member's interface carries.
fn mtu(places: &[Place]) -> u32 {
    places.iter().map(|p| p.session.agent.mtu).min().unwrap_or(0)
}

fn tree_message(tree: &TreeGrant, network: &TopologySnapshot) -> Tree {
    let (scope, rack) = match tree.scope {
        TreeScope::All => (tree::Scope::All, 0),
        TreeScope::Leaders => (tree::Scope::Leaders, 0),
        TreeScope::Rack(rack) => (tree::Scope::Rack, rack),
    };
    let uplinks = tree.links.iter().map(|link| network.link_name(link.a, link.b));
    let to_nodes = tree.nodes.iter().map(|(node, port)| network.node_link_name(*port, node));
    Tree {
        scope: scope.into(),
        rack,
        address: tree.address.to_string(),
        port: tree.port.into(),
        bytes_per_second: tree.bytes_per_second,
        links: uplinks.chain(to_nodes).collect(),
    }
}

/// Which nodes a tree connects, as its members were told.
pub(crate) fn scope(tree: &Tree) -> Option<TreeScope> {
    Some(match tree.scope() {
        tree::Scope::All => TreeScope::All,
        tree::Scope::Leaders => TreeScope::Leaders,
        tree::Scope::Rack => TreeScope::Rack(tree.rack),
        tree::Scope::Unspecified => return None,
    })
}

/// Of the slowest link of a member; 0 if one is unknown.
fn host_rate(places: &[Place], network: &TopologySnapshot) -> u64 {
    let rate = |place: &Place| network.node(&place.session.agent.name)?.location.map(|l| l.bytes_per_second);
    places.iter().map(|p| rate(p).unwrap_or(0)).min().unwrap_or(0)
}

/// Of the slowest rack's way out, the sum of its switch's links to other switches; 0 if one is unknown.
fn uplink_rate(places: &[Place], network: &TopologySnapshot) -> u64 {
    let way_out = |rates: Vec<u64>| if rates.contains(&0) { 0 } else { rates.iter().sum() };
    ways_out(places, network).map(way_out).min().unwrap_or(0)
}

/// The rate of the slowest link of a rack to other switches, 0 if one is unknown; and the least number of them.
fn uplinks(places: &[Place], network: &TopologySnapshot) -> (u64, u32) {
    let ways: Vec<Vec<u64>> = ways_out(places, network).collect();
    let rate = ways.iter().flatten().copied().min().unwrap_or(0);
    let ecmp_paths = ways.iter().map(Vec::len).min().unwrap_or(0);
    (rate, u32::try_from(ecmp_paths).unwrap_or(u32::MAX))
}

/// For each rack the rates of its switch's links to other switches; 0: unknown.
fn ways_out<'a>(places: &[Place], network: &'a TopologySnapshot) -> impl Iterator<Item = Vec<u64>> + use<'a> {
    let tor = |place: &Place| network.node(&place.session.agent.name)?.location.map(|l| l.port.switch);
    let tors: BTreeSet<_> = places.iter().filter_map(tor).collect();
    tors.into_iter().map(|tor| {
        let links = network.links.iter().filter(|l| l.a.switch == tor || l.b.switch == tor);
        links.map(|l| l.bytes_per_second).collect()
    })
}

/// The nodes of some places with their ranks, by session number.
pub fn by_node(places: &[Place]) -> BTreeMap<u32, (Arc<Session>, Vec<u32>)> {
    let mut nodes = BTreeMap::new();
    for (rank, place) in (0u32..).zip(places) {
        let entry = nodes.entry(place.session.number);
        let (_, ranks) = entry.or_insert_with(|| (place.session.clone(), Vec::new()));
        ranks.push(rank);
    }
    nodes
}

/// The groups in use.
pub struct Groups {
    /// The last number that was given out; none is used again.
    last: AtomicU64,
    prober: Arc<Prober>,
    keys: GroupKeys,
    groups: Mutex<BTreeMap<u64, Group>>,
    /// The numbers of those that are made, are in use, or are released.
    busy: watch::Sender<BTreeSet<u64>>,
}

impl Groups {
    /// No groups yet; the first will have the number after `last`. The prober knows what the network costs.
    pub fn new(prober: Arc<Prober>, keys: GroupKeys, last: u64) -> Groups {
        Groups {
            last: AtomicU64::new(last),
            prober,
            keys,
            groups: Mutex::default(),
            busy: watch::Sender::default(),
        }
    }

    /// The numbers of all groups on whose way no probe should be.
    pub fn busy(&self) -> watch::Receiver<BTreeSet<u64>> {
        self.busy.subscribe()
    }

    /// A number for a new group.
    pub fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A group that an earlier controller made, as its members were told; returns whether it is
    /// news.
    pub fn adopt(&self, group: Group) -> bool {
        self.last.fetch_max(group.id, Ordering::Relaxed);
        match self.groups.lock().entry(group.id) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                self.busy.send_if_modified(|groups| groups.insert(group.id));
                self.prober.stop();
                vacant.insert(group);
                true
            }
        }
    }

    /// Whether a group is in use.
    pub fn has(&self, id: u64) -> bool {
        self.groups.lock().contains_key(&id)
    }

    /// The size of a group in use, and the rack of one of its ranks, if that is on this node.
    pub fn rank_on(&self, id: u64, rank: u32, node: &str) -> Option<(u32, u32)> {
        let groups = self.groups.lock();
        let members = &groups.get(&id)?.members;
        let member = members.get(rank as usize).filter(|member| member.node == node)?;
        Some((members.len() as u32, member.rack))
    }

    /// The groups in use that have ranks on a node, with their sizes and these ranks.
    pub fn on_node(&self, node: &str) -> Vec<((u64, u32), Vec<u32>)> {
        let of = |group: &Group| {
            let members = group.members.iter().filter(|member| member.node == node);
            ((group.id, group.members.len() as u32), members.map(|member| member.rank).collect())
        };
        let groups = self.groups.lock();
        groups.values().map(of).filter(|(_, ranks): &(_, Vec<u32>)| !ranks.is_empty()).collect()
    }

    /// Forgets a group that nobody was told of.
    pub fn remove(&self, id: u64) {
        self.groups.lock().remove(&id);
        self.busy.send_if_modified(|groups| groups.remove(&id));
    }

    /// Makes a group in the network and tells its members. They answer when they are ready.
    ///
    /// # Errors
    /// In words, if it cannot be made or a member is gone.
    pub async fn make(
        &self,
        network: &dyn Fabric,
        id: u64,
        job: u64,
        places: &[Place],
    ) -> Result<Group, String> {
        let key = self.keys.of((id, FIRST_EPOCH), places).map_err(|error| error.to_string())?;
        self.busy.send_if_modified(|groups| groups.insert(id));
        self.prober.stop();
        let members = places.iter().map(|p| p.session.agent.name.clone()).collect();
        let trees = match network.create_group(GroupRequest { id, members }).await {
            Ok(trees) => trees,
            Err(
                why @ (FabricError::NotLocated { .. }
                | FabricError::Partitioned { .. }
                | FabricError::Full { .. }
                | FabricError::Unacknowledged { .. }
                | FabricError::Refused { .. }),
            ) => {
                warn!(group = id, %why, "no trees: the group uses chains");
                Vec::new()
            }
            Err(e) => return Err(e.to_string()),
        };
        let measured = self.prober.measurements();
        let group = describe((id, job), places, &network.topology(), &measured, (trees, key));
        self.groups.lock().insert(id, group.clone());
        let told = told(&group, places);
        for (session, _) in by_node(places).values() {
            session.send(told.clone()).map_err(|e| e.to_string())?;
        }
        Ok(group)
    }

    /// Releases a group everywhere; also one that could not be made.
    pub async fn release(&self, network: &dyn Fabric, id: u64, places: &[Place]) {
        self.groups.lock().remove(&id);
        for (session, _) in by_node(places).values() {
            // An agent that is gone has no group to release.
            let _ = session.send(Body::Release(ReleaseGroup { group: id }));
        }
        match network.release_group(id).await {
            // It was never made, or had no trees.
            Ok(()) | Err(FabricError::NoSuchGroup { .. }) => {}
            Err(e) => warn!(group = id, %e, "the group's trees are not released"),
        }
        self.busy.send_if_modified(|groups| groups.remove(&id));
    }

    /// All groups by id, with their trees as they are now and without their keys.
    pub async fn list(&self, network: &dyn Fabric) -> Vec<Group> {
        let mut groups: Vec<Group> = self.groups.lock().values().cloned().map(Group::without_keys).collect();
        let topology = network.topology();
        for group in &mut groups {
            // A group that is just being released has none any more.
            let trees = network.trees(group.id).await.unwrap_or_default();
            group.trees = trees.iter().map(|tree| tree_message(tree, &topology)).collect();
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{Admitted, Agent, Agents};
    use cool_fabric::{DatapathId, LinkView, Location, MacAddr, NodeView, Port};
    use std::net::Ipv6Addr;

    /// h1 at switch 2 and h2 at switch 3, which are linked by switch 1.
    fn network(host_rates: [u64; 2], uplink_rates: [u64; 2]) -> TopologySnapshot {
        let port = |switch, number| Port { switch: DatapathId(switch), number };
        let node = |i: u8| {
            let bytes_per_second = host_rates[usize::from(i) - 1];
            let location =
                Location { port: port(u64::from(i) + 1, 1), rack: u32::from(i) - 1, bytes_per_second };
            NodeView {
                name: format!("h{i}"),
                ip: [10, 0, 0, i].into(),
                mac: MacAddr(2, 0, 0, 0, 0, i),
                location: Some(location),
            }
        };
        let link = |i: u64| LinkView {
            a: port(1, i as u32),
            b: port(i + 1, 9),
            bytes_per_second: uplink_rates[i as usize - 1],
        };
        TopologySnapshot {
            nodes: vec![node(1), node(2)],
            links: vec![link(1), link(2)],
            ..Default::default()
        }
    }

    fn places(network: &TopologySnapshot, mtus: [u32; 2]) -> Vec<Place> {
        let agents = Agents::new(1000, [7; 32].into(), 1);
        let place = |(node, mtu): (&NodeView, u32)| {
            let agent = Agent {
                name: node.name.clone(),
                incarnation: 8,
                ip: node.ip,
                mac: node.mac,
                mtu,
                udp_port: 7420,
                tcp_port: 7421,
                slots: 1,
                probe_port: 7421,
                version: cool_proto::VERSION,
                features: 0,
                key: None,
            };
            let Ok(Admitted::New(session)) = agents.admit(agent, None) else { panic!("not admitted") };
            Place { session, rack: node.location.unwrap().rack }
        };
        network.nodes.iter().zip(mtus).map(place).collect()
    }

    fn described(ids: (u64, u64), network: &TopologySnapshot, mtus: [u32; 2]) -> Group {
        describe(ids, &places(network, mtus), network, &Measurements::default(), (Vec::new(), None))
    }

    #[test]
    fn members_learn_the_slowest_links_and_what_fits_every_interface() {
        let network = network([50, 40], [30, 20]);
        let group = described((7, 3), &network, [9000, 1500]);
        assert_eq!((group.id, group.job, group.epoch), (7, 3, FIRST_EPOCH));
        assert_eq!((group.host_bytes_per_second, group.uplink_bytes_per_second), (40, 20));
        assert_eq!(group.chunk_bytes, 1500 - HEADERS);
        let h2 = &group.members[1];
        assert_eq!((h2.rank, h2.node.as_str(), h2.rack), (1, "h2", 1));
        assert_eq!((h2.ip.as_str(), h2.udp_port, h2.tcp_port), ("10.0.0.2", 7420, 7421));
        assert_eq!(h2.incarnation, 8);
    }

    #[test]
    fn members_pick_plans_by_the_slowest_links_until_more_is_measured() {
        let group = described((7, 3), &network([50, 40], [30, 20]), [9000, 1500]);
        let model: CostModel = serde_json::from_str(&group.cost_model).unwrap();
        assert_eq!((model.rack.bytes_per_second, model.core.bytes_per_second), (40, 20));
        assert_eq!((model.ecmp_paths, model.costs.mtu), (1, 1500));
    }

    #[test]
    fn over_ipv6_packets_carry_less_and_it_is_reckoned_with() {
        let mut network = network([50, 40], [30, 20]);
        for (number, node) in (1..).zip(&mut network.nodes) {
            node.ip = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number).into();
        }
        let group = described((7, 3), &network, [1500; 2]);
        let headers = wire::IPV6 + wire::UDP + wire::STREAM_DATA_HEADER;
        assert_eq!((u64::from(group.chunk_bytes), group.members[1].ip.as_str()), (1500 - headers, "fd00::2"));
        let model: CostModel = serde_json::from_str(&group.cost_model).unwrap();
        assert_eq!(model.costs.multicast(group.chunk_bytes.into()), 1514);
    }

    #[test]
    fn a_rate_with_an_unknown_part_is_unknown() {
        let unknown = network([50, 0], [0, 20]);
        let group = described((1, 1), &unknown, [1500; 2]);
        assert_eq!((group.host_bytes_per_second, group.uplink_bytes_per_second), (0, 0));
    }

    #[test]
    fn a_loopback_interface_does_not_exceed_what_ip_carries() {
        let network = network([0; 2], [0; 2]);
        let group = described((1, 1), &network, [65_536; 2]);
        assert_eq!(group.chunk_bytes, 65_535 - HEADERS);
    }
}
