//! The proof that a group's trees work, on networks whose switches do not acknowledge trees: each
//! node multicasts probes of full length over its trees, and reports those of other nodes that do
//! not arrive.
//!
//! Probes are repeated, because packets may be lost, and because a switch may forward packets of a
//! tree only some time after a node has joined it. A node sends probes until the controller
//! concludes the proof, which is also when all nodes have reported.

use super::Group;
use crate::engine_resources::{EngineResources, GroupContext, TimerKey};
use crate::inputs_outputs::{MissingProbes, Output};
use crate::members::Members;
use cool_collective::MulticastScope;
use cool_machine::{Duration, Time, earliest};
use cool_transport::packet::PacketBody;
use cool_transport::{Packet, StreamId};
use cool_types::is_source_specific;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// The pause after the first probes, which doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Maximum number of nodes that send probes over one tree, so that a proof costs large groups no
/// more than small ones.
const SENDERS_MAX: usize = 32;

/// The proof of a group's trees at this node.
#[derive(Debug, Default)]
pub(super) struct TreeProof {
    /// The number of the latest proof. A controller counts them upward.
    number: u64,
    /// The probes that have arrived: the index of the tree, and the node that sent it.
    received: BTreeSet<(u32, u16)>,
    /// Set from the request of the proof to its conclusion.
    probing: Option<ProbeSchedule>,
    /// Whether this proof or an earlier one has been concluded.
    is_concluded: bool,
}

#[derive(Debug)]
struct ProbeSchedule {
    next_probes: Time,
    pause: Duration,
    /// When the missing probes are reported. `None` after the report.
    report_at: Option<Time>,
}

impl TreeProof {
    /// Ends the latest proof if this number belongs to a later one.
    fn advance(&mut self, number: u64) {
        if number > self.number {
            *self = TreeProof { number, is_concluded: self.is_concluded, ..TreeProof::default() };
        }
    }

    /// Records a probe of another node.
    fn record(&mut self, number: u64, probe: (u32, u16)) {
        // Others may begin a proof before this node receives the request for it.
        self.advance(number);
        if number == self.number {
            self.received.insert(probe);
        }
    }
}

/// Returns the probes that are not among the received ones, by tree.
fn missing_probes(received: &BTreeSet<(u32, u16)>, members: &Members) -> Vec<MissingProbes> {
    let trees = members.my_indexed_trees();
    let missing = trees.into_iter().map(|(index, tree, nodes)| {
        let senders = senders(&nodes).filter(|node| *node != members.me);
        let missing = senders.filter(|node| !received.contains(&(index, *node as u16)));
        let from: Vec<String> = missing.map(|node| members.nodes[node].name.clone()).collect();
        MissingProbes { tree: tree.ip(), from }
    });
    missing.filter(|missing| !missing.from.is_empty()).collect()
}

/// Returns the nodes of a tree that send probes over it.
fn senders(nodes: &[usize]) -> impl Iterator<Item = usize> + '_ {
    nodes.iter().copied().step_by(nodes.len().div_ceil(SENDERS_MAX).max(1))
}

impl Group {
    /// Begins a proof: sends probes, and within `time_max` reports the nodes whose probes have not
    /// arrived.
    pub(crate) fn prove_trees(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        number: u64,
        time_max: Duration,
    ) {
        if number < self.tree_proof.number {
            return;
        }
        self.tree_proof.advance(number);
        let trees = self.members.my_withdrawn_trees();
        if !trees.is_empty() {
            resources.out.push(Output::RenewTrees { trees });
        }
        let probing = ProbeSchedule { next_probes: now, pause: FIRST_PAUSE, report_at: Some(now + time_max) };
        self.tree_proof.probing = Some(probing);
        self.on_tree_proof_timer(now, resources);
    }

    /// Handles a probe of another node of the group.
    pub(crate) fn on_tree_probe(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        from: SocketAddr,
        packet: &Packet,
    ) {
        let node = usize::from(packet.from);
        let is_other = self.members.is_other_node(node, from);
        // The index is checked because it takes memory.
        let mut trees = self.members.my_indexed_trees().into_iter();
        let tree = trees.find(|(index, ..)| *index == packet.id.transfer).filter(|_| is_other);
        let Some((_, tree, _)) = tree else {
            tracing::debug!(%from, node, "dropped a probe that no other node of a tree can have sent");
            return;
        };
        if is_source_specific(tree.ip()) {
            return self.on_source_packet(now, resources, from, packet);
        }
        self.tree_proof.record(packet.id.call, (packet.id.transfer, packet.from));
        self.on_tree_proof_timer(now, resources);
    }

    /// Sends probes, or reports the missing ones, if it is time to.
    pub(crate) fn on_tree_proof_timer(&mut self, now: Time, resources: &mut EngineResources) {
        let TreeProof { number, received, probing, .. } = &mut self.tree_proof;
        let (number, members) = (*number, &self.members);
        let Some(probing) = probing else { return };
        if probing.next_probes <= now {
            probing.next_probes = now + probing.pause;
            probing.pause *= 2;
            send_probes(members, resources, number);
        }
        if let Some(at) = probing.report_at {
            let missing = missing_probes(received, members);
            if at <= now || missing.is_empty() {
                probing.report_at = None;
                let (group, received) = (members.id, received.len());
                resources.out.push(Output::TreesProbed { group, number, missing, received });
            }
        }
        let next = earliest(Some(probing.next_probes), probing.report_at);
        let mut context = GroupContext { now, members: &self.members, resources };
        context.set_timer(TimerKey::TreeProof(self.members.id), next);
    }

    /// Ends a proof. New streams use all trees except those with these addresses. The node remains
    /// a member of withdrawn trees, because open streams may use them, and because they may be
    /// proven again. The first conclusion decides for the life of the group whether its plans count
    /// on the tree, because nodes learn the later ones at different times and must choose the same
    /// plans.
    pub(crate) fn conclude_tree_proof(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        withdrawn: &BTreeSet<IpAddr>,
    ) {
        self.tree_proof.probing = None;
        let mut context = GroupContext { now, members: &self.members, resources };
        context.set_timer(TimerKey::TreeProof(self.members.id), None);
        self.members.set_withdrawn_trees(withdrawn);
        let is_first = !std::mem::replace(&mut self.tree_proof.is_concluded, true);
        if is_first && !self.members.has_tree(MulticastScope::All) {
            let layout = self.members.layout.clone().without_tree();
            self.call_queue.set_layout(layout.clone());
            self.members.layout = layout;
        }
    }
}

fn send_probes(members: &Members, resources: &mut EngineResources, number: u64) {
    for (index, to, nodes) in members.my_indexed_trees() {
        if senders(&nodes).all(|node| node != members.me) {
            continue;
        }
        let (group, bytes) = (members.id, probe(members, number, index));
        resources.out.push(Output::Control { to, group, bytes });
    }
}

/// Returns a probe of full length over the tree with an index.
pub(super) fn probe(members: &Members, number: u64, index: u32) -> Vec<u8> {
    let (group, epoch) = members.id_and_epoch();
    let me = members.me as u16;
    let id = StreamId { group, epoch, call: number, transfer: index, source: me };
    let mut bytes = Vec::new();
    Packet { id, from: me, digest: 0, body: PacketBody::TreeProbe }.encode(&mut bytes);
    bytes.resize(cool_transport::packet::DATA_HEADER + members.chunk_bytes as usize, 0);
    bytes
}
