//! The sources of source-specific trees (RFC 4607). A node receives from such a tree only the
//! multicasts of the sources with which it has joined it, and routers keep state for each of them.
//! So nodes join only the sources that the group uses:
//!
//! 1. When a node has a message to multicast over a tree for the first time, it requests all nodes
//!    of the tree to join it with this source, and multicasts probes of full length. The message
//!    itself takes the chain, and so do those that follow, so that no call waits.
//! 2. Each node replies to the probes that arrive. Requests and probes are repeated until all nodes
//!    have replied. From then on the source multicasts its messages.
//! 3. If a node refuses, or does not reply in time, the source requests all nodes to leave, and
//!    uses the chain. It tries again some minutes later.
//! 4. If multicasts no longer arrive at a node, it reports this to the source, which begins again
//!    with its next message.
//!
//! Receivers need not know when the source begins to multicast. A stream requests all chunks along
//! the chain until a chunk arrives over the tree. Later streams of this source expect the tree from
//! the beginning, until the source requests to be joined again.

use super::Group;
use super::tree_proof::probe;
use crate::engine_resources::{EngineResources, GroupContext, TimerKey};
use crate::inputs_outputs::Output;
use crate::members::{Members, SourceSpecificTree};
use cool_collective::MulticastScope;
use cool_machine::{Duration, Time, earliest};
use cool_transport::packet::{PacketBody, SourceReply};
use cool_transport::{Packet, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Maximum number of sources that a node joins on one tree. Linux permits ten for each socket by
/// default (`net.ipv4.igmp_max_msf`).
const SOURCES_MAX: usize = 8;

/// The time within which all nodes must reply. No call waits for it, so it may be longer than
/// routers take to build the paths from the source.
const PROOF_TIME: Duration = Duration::from_secs(10);

/// The pause after the first requests and probes, which doubles each time up to [`PAUSE_MAX`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a source uses the chain after its multicasts have not arrived.
const RETRY_AFTER: Duration = Duration::from_secs(300);

/// The sources that this node has joined, and this node as a source that is not proven.
/// [`Members::is_source`] names those that are.
#[derive(Debug, Default)]
pub(super) struct TreeSources {
    joined: BTreeSet<(MulticastScope, usize)>,
    unproven: BTreeMap<MulticastScope, UnprovenSource>,
}

/// This node as a source of a tree.
#[derive(Debug)]
enum UnprovenSource {
    Probing(SourceProof),
    Failed { retry_at: Time },
}

#[derive(Debug)]
struct SourceProof {
    tree: SourceSpecificTree,
    /// The nodes that have not replied.
    missing: BTreeSet<usize>,
    next_probe: Time,
    pause: Duration,
    until: Time,
}

impl SourceProof {
    fn new(now: Time, tree: SourceSpecificTree, me: usize) -> SourceProof {
        let missing = tree.nodes.iter().copied().filter(|node| *node != me).collect();
        SourceProof { tree, missing, next_probe: now, pause: FIRST_PAUSE, until: now + PROOF_TIME }
    }

    /// Requests the nodes that have not replied to join the source, and multicasts a probe.
    fn send(&mut self, now: Time, members: &Members, resources: &mut EngineResources) {
        self.next_probe = now + self.pause;
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        send_all(members, resources, &self.tree, self.missing.iter().copied(), false);
        let (group, to) = (members.id, self.tree.address);
        let bytes = probe(members, 0, self.tree.index);
        resources.out.push(Output::Control { to, group, bytes });
    }
}

impl TreeSources {
    /// Lets this node begin to prove that it is a source of a tree, unless it has tried lately.
    fn begin(&mut self, now: Time, members: &Members, scope: MulticastScope) {
        match self.unproven.get(&scope) {
            Some(UnprovenSource::Probing(_)) => return,
            Some(UnprovenSource::Failed { retry_at }) if now < *retry_at => return,
            _ => {}
        }
        if let Some(tree) = members.source_specific_trees().find(|tree| tree.scope == scope) {
            let proof = SourceProof::new(now, tree, members.me);
            self.unproven.insert(scope, UnprovenSource::Probing(proof));
        }
    }

    /// Handles a source that requests this node to join a tree, or to leave it. Returns whether
    /// this node refuses, because it has joined the maximum number of sources.
    fn on_request(
        &mut self,
        members: &Members,
        resources: &mut EngineResources,
        (tree, source): (&SourceSpecificTree, usize),
        ends: bool,
    ) -> bool {
        let of_tree = self.joined.iter().filter(|(scope, _)| *scope == tree.scope).count();
        let (key, group) = ((tree.scope, source), members.id);
        let (tree, source) = (tree.address, members.nodes[source].udp.ip());
        if ends {
            if self.joined.remove(&key) {
                resources.out.push(Output::LeaveSource { group, tree, source });
            }
            return false;
        }
        if of_tree >= SOURCES_MAX && !self.joined.contains(&key) {
            return true;
        }
        self.joined.insert(key);
        // The driver may have ignored the output for an earlier request, if it made the group just
        // then.
        resources.out.push(Output::JoinSource { group, tree, source });
        false
    }

    /// Handles a node's reply to this source. Returns whether all nodes have received probes now.
    fn on_reply(&mut self, scope: MulticastScope, node: usize) -> bool {
        let Some(UnprovenSource::Probing(proof)) = self.unproven.get_mut(&scope) else { return false };
        proof.missing.remove(&node);
        let is_proven = proof.missing.is_empty();
        if is_proven {
            self.unproven.remove(&scope);
        }
        is_proven
    }

    /// Ends a proof without success, and requests all nodes to leave. Returns the proof.
    fn fail(
        &mut self,
        now: Time,
        members: &Members,
        resources: &mut EngineResources,
        scope: MulticastScope,
    ) -> Option<SourceProof> {
        let source = self.unproven.get_mut(&scope)?;
        let failed = UnprovenSource::Failed { retry_at: now + RETRY_AFTER };
        let UnprovenSource::Probing(proof) = std::mem::replace(source, failed) else { return None };
        let others = proof.tree.nodes.iter().copied().filter(|node| *node != members.me);
        send_all(members, resources, &proof.tree, others, true);
        Some(proof)
    }

    /// Sends requests and probes if it is time to, and ends proofs that have taken too long.
    /// Returns when to call it again.
    fn on_timer(&mut self, now: Time, members: &Members, resources: &mut EngineResources) -> Option<Time> {
        let mut overdue = Vec::new();
        for (scope, source) in &mut self.unproven {
            match source {
                UnprovenSource::Probing(proof) if proof.until <= now => overdue.push(*scope),
                UnprovenSource::Probing(proof) if proof.next_probe <= now => {
                    proof.send(now, members, resources);
                }
                _ => {}
            }
        }
        for scope in overdue {
            if let Some(proof) = self.fail(now, members, resources, scope) {
                let missing = proof.missing.iter().map(|node| members.nodes[*node].name.clone()).collect();
                let (group, tree) = (members.id, proof.tree.address.ip());
                resources.out.push(Output::SourceProbed { group, tree, missing });
            }
        }
        let next = |source: &UnprovenSource| match source {
            UnprovenSource::Probing(proof) => Some(proof.next_probe.min(proof.until)),
            UnprovenSource::Failed { .. } => None,
        };
        self.unproven.values().map(next).fold(None, earliest)
    }
}

/// Requests nodes to join a tree with this node as the source, or to leave it.
fn send_all(
    members: &Members,
    resources: &mut EngineResources,
    tree: &SourceSpecificTree,
    nodes: impl Iterator<Item = usize>,
    ends: bool,
) {
    let (id, body) = (packet_id(members, tree, members.me), PacketBody::SourceActive { ends });
    let packet = Packet { id, from: members.me as u16, digest: 0, body };
    for node in nodes {
        resources.out.control(members.nodes[node].udp, &packet);
    }
}

impl Group {
    /// Lets this node begin to prove that its multicasts over a source-specific tree arrive, if the
    /// tree is one and that is unknown. Must be called when the node has a message for the tree,
    /// which `concurrent_senders` nodes multicast to each other.
    pub(super) fn prove_source(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        scope: MulticastScope,
        concurrent_senders: u32,
    ) {
        // If more nodes multicast than may be sources, all of them use the chain. Otherwise each
        // node would join other sources, and none of these would be proven.
        let too_many = concurrent_senders as usize > SOURCES_MAX;
        if too_many
            || !self.members.is_source_specific(scope)
            || self.members.is_source(scope, self.members.me)
        {
            return;
        }
        self.tree_sources.begin(now, &self.members, scope);
        self.on_tree_sources_timer(now, resources);
    }

    /// Handles another node's request to join a source-specific tree, or its reply to such a
    /// request or to a probe.
    pub(crate) fn on_source_packet(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        from: SocketAddr,
        packet: &Packet,
    ) {
        let node = usize::from(packet.from);
        let members = &self.members;
        let is_other = members.is_other_node(node, from);
        let tree = members.source_specific_trees().find(|tree| tree.index == packet.id.transfer);
        let Some(tree) = tree.filter(|tree| is_other && tree.nodes.contains(&node)) else {
            tracing::debug!(%from, node, "dropped a packet that no other node of a source-specific tree can have sent");
            return;
        };
        let source = usize::from(packet.id.source);
        match packet.body {
            PacketBody::SourceActive { ends } if source == node => {
                if self.tree_sources.on_request(members, resources, (&tree, node), ends) {
                    reply(members, resources, (&tree, node), SourceReply::Refused);
                }
                self.members.forget_source(tree.scope, node);
            }
            PacketBody::TreeProbe if source == node => {
                if self.tree_sources.joined.contains(&(tree.scope, node)) {
                    reply(members, resources, (&tree, node), SourceReply::Received);
                }
            }
            PacketBody::SourceReply(SourceReply::Refused) if source == members.me => {
                if self.tree_sources.fail(now, members, resources, tree.scope).is_some() {
                    let (group, tree) = (members.id, tree.address);
                    tracing::debug!(group, %tree, node, "the node has joined as many sources as it may");
                }
            }
            PacketBody::SourceReply(SourceReply::Silent) if source == members.me => {
                self.members.forget_source(tree.scope, source);
            }
            PacketBody::SourceReply(SourceReply::Received) if source == members.me => {
                if self.tree_sources.on_reply(tree.scope, node) {
                    let (group, address) = (members.id, tree.address.ip());
                    let proven = Output::SourceProbed { group, tree: address, missing: Vec::new() };
                    resources.out.push(proven);
                    self.members.record_source(tree.scope, source);
                }
            }
            _ => tracing::debug!(%from, node, "dropped a packet that names another node as the source"),
        }
        self.on_tree_sources_timer(now, resources);
    }

    /// Sends requests and probes of this node as a source, if it is time to.
    pub(crate) fn on_tree_sources_timer(&mut self, now: Time, resources: &mut EngineResources) {
        let next = self.tree_sources.on_timer(now, &self.members, resources);
        let mut context = GroupContext { now, members: &self.members, resources };
        context.set_timer(TimerKey::TreeSources(self.members.id), next);
    }
}

/// Reports to the source of a tree that its multicasts no longer arrive at this node, if the tree
/// is source-specific.
pub(super) fn report_silence(
    members: &Members,
    resources: &mut EngineResources,
    scope: MulticastScope,
    source: usize,
) {
    if let Some(tree) = members.source_specific_trees().find(|tree| tree.scope == scope) {
        reply(members, resources, (&tree, source), SourceReply::Silent);
    }
}

/// Reports to the source of a tree whether its multicasts arrive at this node.
fn reply(
    members: &Members,
    resources: &mut EngineResources,
    (tree, source): (&SourceSpecificTree, usize),
    reply: SourceReply,
) {
    let (id, body) = (packet_id(members, tree, source), PacketBody::SourceReply(reply));
    let packet = Packet { id, from: members.me as u16, digest: 0, body };
    resources.out.control(members.nodes[source].udp, &packet);
}

/// Returns the fields that name a tree with one of its sources.
fn packet_id(members: &Members, tree: &SourceSpecificTree, source: usize) -> StreamId {
    let (group, epoch) = members.id_and_epoch();
    StreamId { group, epoch, call: 0, transfer: tree.index, source: source as u16 }
}
