//! The failure detector of a group: finds out whether the other nodes are alive, and which ranks
//! are to blame if something takes too long.
//!
//! While no call or transfer makes progress, the detector sends pings to the other nodes. A node
//! that does not answer is lost, and a node that answers with another incarnation than that in the
//! group is lost at once. TCP alone would notice a stopped or disconnected node only after minutes,
//! or could take a live node for dead if many packets are lost. A node whose pings are not answered
//! for long is also asked over TCP: if it answers there, it is alive, and only UDP is blocked.
//! Before a call or transfer fails by its timeout, the other agents are asked which ranks wait
//! there and for which ranks: a rank that does not wait itself is to blame.

use super::wait_for_graph::WaitForGraph;
use crate::engine_resources::{GroupContext, TimerKey};
use crate::failure::{CallFailure, CallFailureKind};
use crate::members::{MemberNode, Members};
use cool_machine::{Duration, Time};
use cool_transport::packet::PacketBody;
use cool_transport::unicast::Notice;
use cool_transport::{Packet, StreamId};
use cool_types::{name_list, rank_list};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Number of parts into which the peer timeout is divided. The detector counts parts instead of
/// measuring time, so that an agent that was stopped for a while does not declare the others lost.
const PARTS: u32 = 32;

/// Number of parts without progress after which pings are sent, and between two rounds of pings to
/// new nodes.
const STILL_PARTS: u32 = 8;

/// Number of unanswered pings after which a node is lost. One ping is sent per part. At a loss of
/// 20 % in each direction, one ping in three is unanswered.
const PINGS_MAX: u32 = PARTS - STILL_PARTS;

/// Number of unanswered pings after which a node is asked over TCP. The answer arrives before the
/// node would be lost, even after a retransmission by TCP.
const PINGS_BEFORE_TCP: u32 = PINGS_MAX / 2;

/// Maximum number of nodes that are pinged at a time. In a larger group, the detector continues
/// with the next ones.
const PINGED_MAX: usize = 16;

/// Reported about a node that is alive according to TCP.
const NO_UDP_ANSWER: &str = "it answers over TCP, but not over UDP; allow UDP to this port between the nodes";

/// Maximum time to wait for the answers to an inquiry. It is long enough for one retransmission by
/// TCP.
const INQUIRY_TIMEOUT: Duration = Duration::from_millis(500);

/// First, the local ranks that wait in a call, or for a message from any rank. Second, pairs of a
/// local rank and the rank whose message it awaits.
pub(super) type LocalWaits = (Vec<u32>, Vec<(u32, u32)>);

#[derive(Debug, Default)]
pub(super) struct FailureDetector {
    pings: Pings,
    /// The nodes that answer over TCP but have left many pings unanswered.
    without_udp: BTreeSet<usize>,
    inquiry: Option<Inquiry>,
}

/// The nodes that are being pinged.
#[derive(Debug, Default)]
struct Pings {
    /// Whether other nodes must be watched, because a call or transfer is open and there are other
    /// nodes.
    watching: bool,
    /// The number of parts since the first ping.
    parts: u32,
    /// The pinged nodes.
    pinged: BTreeMap<usize, PingedNode>,
    /// The node at which to continue in a large group.
    next: usize,
}

/// A node that is being pinged.
#[derive(Clone, Copy, Debug)]
struct PingedNode {
    /// The number of pings so far.
    pings: u32,
    /// The number of times that data had arrived from its agent over TCP when the pings began.
    heard: u64,
}

impl Pings {
    /// Returns the nodes that are lost. Once one node exceeds the limit, all nodes that are within
    /// [`STILL_PARTS`] pings of it are lost together, because they probably failed together, or
    /// this node is disconnected. The message should then name all of them.
    fn silent_nodes(&self) -> Vec<usize> {
        let enough = self.pinged.values().any(|pinged| pinged.pings >= PINGS_MAX);
        let is_silent = |pinged: &PingedNode| enough && pinged.pings >= PINGS_MAX - STILL_PARTS;
        let silent = self.pinged.iter().filter(|(_, pinged)| is_silent(pinged));
        silent.map(|(node, _)| *node).collect()
    }

    /// Adds a node to those that are pinged.
    fn ping(&mut self, context: &GroupContext<'_>, node: usize) {
        let heard = context.resources.peers.heard(context.members.nodes[node].id);
        self.pinged.entry(node).or_insert(PingedNode { pings: 0, heard });
    }

    /// Removes the nodes from which data has arrived over TCP. Returns those of them that have left
    /// many pings unanswered.
    fn remove_heard(&mut self, context: &GroupContext<'_>) -> Vec<usize> {
        let is_heard = |node: usize, pinged: &PingedNode| {
            context.resources.peers.heard(context.members.nodes[node].id) != pinged.heard
        };
        let heard = self.pinged.extract_if(.., |node, pinged| is_heard(*node, pinged));
        heard.filter(|(_, pinged)| pinged.pings >= PINGS_BEFORE_TCP).map(|(node, _)| node).collect()
    }

    /// Adds the next nodes to those that are pinged.
    fn ping_next(&mut self, context: &GroupContext<'_>) {
        let (nodes, me) = (context.members.nodes.len(), context.members.me);
        let next = self.next;
        for node in (0..nodes).map(|ahead| (next + ahead) % nodes) {
            if self.pinged.len() >= PINGED_MAX {
                self.next = node;
                return;
            }
            if node != me {
                self.ping(context, node);
            }
        }
    }
}

/// An inquiry to the other agents about the ranks that wait there.
#[derive(Debug)]
struct Inquiry {
    /// The timer of the call or transfer that is about to fail, and the time of its last progress.
    about: (TimerKey, Time),
    /// The nodes that were asked.
    nodes: BTreeSet<usize>,
    /// The asked nodes that have not answered yet.
    unanswered: BTreeSet<usize>,
    until: Time,
    /// The answers: which ranks of other nodes wait for which.
    waits: WaitForGraph,
}

impl FailureDetector {
    /// Starts watching the other nodes, because a call or transfer has begun.
    pub(super) fn watch(&mut self, context: &mut GroupContext<'_>) {
        if !self.pings.watching && context.members.nodes.len() > 1 {
            self.pings.watching = true;
            let first = context.now + STILL_PARTS * part(context);
            context.set_timer(TimerKey::FailureDetector(context.members.id), Some(first));
        }
    }

    /// Stops watching, because the group has failed.
    pub(super) fn stop(&mut self, context: &mut GroupContext<'_>) {
        self.pings = Pings::default();
        context.set_timer(TimerKey::FailureDetector(context.members.id), None);
    }

    /// Records that a datagram of a node has arrived, so that it counts as alive.
    pub(super) fn on_sign_of_life(&mut self, node: usize) {
        self.pings.pinged.remove(&node);
        self.without_udp.remove(&node);
    }

    /// Records the nodes that answer over TCP only.
    fn record_without_udp(&mut self, members: &Members, nodes: Vec<usize>) {
        for node in nodes {
            if self.without_udp.insert(node) {
                let MemberNode { name, udp, .. } = &members.nodes[node];
                tracing::warn!(group = members.id, node = name, %udp, "{NO_UDP_ANSWER}");
            }
        }
    }

    /// Returns the failure of the group with a possible cause: nodes that do not answer by UDP.
    pub(super) fn with_cause(&self, members: &Members, failed: &CallFailure) -> CallFailure {
        let mut failed = failed.clone();
        if failed.kind == CallFailureKind::Timeout
            && let Some(node) = self.without_udp.first()
        {
            let MemberNode { name, udp, .. } = &members.nodes[*node];
            failed.message += &format!("; node {name} at {udp}: {NO_UDP_ANSWER}");
        }
        failed
    }

    /// Handles the answer to a ping. Returns the node if the agent has another incarnation than
    /// that in the group, because then the group's agent is lost.
    pub(super) fn on_ping_answer(
        &mut self,
        members: &Members,
        from: SocketAddr,
        incarnation: u64,
    ) -> Option<usize> {
        let node = *self.pings.pinged.keys().find(|node| members.nodes[**node].udp == from)?;
        self.on_sign_of_life(node);
        (members.nodes[node].incarnation != incarnation).then_some(node)
    }

    /// Handles the detector's timer. `moved` is the time of the last progress of the call or
    /// transfer that has waited for longest, if any is open. The nodes in `awaited`, from which
    /// data is missing, are pinged first and connected, so that they report lost ranks. Returns the
    /// nodes that are lost.
    pub(super) fn on_timer(
        &mut self,
        context: &mut GroupContext<'_>,
        moved: Option<Time>,
        awaited: &BTreeSet<usize>,
    ) -> Vec<usize> {
        let (now, part) = (context.now, part(context));
        let heard = self.pings.remove_heard(context);
        self.record_without_udp(context.members, heard);
        let Some(moved) = moved else {
            self.pings = Pings::default();
            return Vec::new();
        };
        let still = moved + STILL_PARTS * part;
        let next = if now < still {
            (self.pings.parts, self.pings.pinged) = Default::default();
            still
        } else {
            now + part
        };
        context.set_timer(TimerKey::FailureDetector(context.members.id), Some(next));
        if now < still {
            return Vec::new();
        }
        let lost = self.pings.silent_nodes();
        if self.pings.parts.is_multiple_of(STILL_PARTS) {
            for node in awaited.iter().take(PINGED_MAX) {
                context.reach(*node);
                self.pings.ping(context, *node);
            }
            self.pings.ping_next(context);
        }
        self.pings.parts += 1;
        let packet = ping(context.members);
        let (group, epoch) = context.members.id_and_epoch();
        for (node, pinged) in &mut self.pings.pinged {
            pinged.pings += 1;
            context.resources.out.control(context.members.nodes[*node].udp, &packet);
            if pinged.pings == PINGS_BEFORE_TCP {
                let peer = context.members.nodes[*node].id;
                context.resources.peers.notify(now, peer, Notice::WaitingQuery { group, epoch });
            }
        }
        lost
    }

    /// Prepares the failure of a call or transfer that has made no progress since `moved`, by an
    /// inquiry to the other agents about which ranks wait. Returns true once the inquiry has ended
    /// or if no other agent can be asked. Otherwise sets the timer `key` again and returns false.
    pub(super) fn has_inquired(
        &mut self,
        context: &mut GroupContext<'_>,
        key: TimerKey,
        moved: Time,
    ) -> bool {
        let about = (key, moved);
        let now = context.now;
        let open =
            self.inquiry.as_ref().filter(|inquiry| !inquiry.unanswered.is_empty() && now < inquiry.until);
        let again = match (&self.inquiry, open) {
            // Inquiries run one after the other, because the first failure ends all calls of the
            // group.
            (_, Some(open)) => open.until,
            (Some(over), None) if over.about == about => {
                let silent = over.unanswered.iter().map(|node| context.members.nodes[*node].name.as_str());
                let silent: Vec<&str> = silent.collect();
                if !silent.is_empty() {
                    tracing::info!(
                        group = context.members.id,
                        ?silent,
                        "not all agents reported which ranks wait"
                    );
                }
                return true;
            }
            _ => match self.inquire(context, about) {
                Some(until) => until,
                None => return true,
            },
        };
        context.set_timer(key, Some(again));
        false
    }

    /// Asks the other agents which ranks wait there: all connected ones, and the next few in the
    /// chain. Returns the time at which to stop waiting for answers, or `None` if there is no other
    /// agent.
    fn inquire(&mut self, context: &mut GroupContext<'_>, about: (TimerKey, Time)) -> Option<Time> {
        let (group, epoch) = context.members.id_and_epoch();
        let members = context.members;
        let following = (members.me + 1..members.nodes.len()).chain(0..members.me);
        let spoken_to = |node: &usize| context.resources.peers.link(members.nodes[*node].id).is_some();
        let (spoken_to, others): (Vec<usize>, Vec<usize>) = following.partition(spoken_to);
        let more = others.into_iter().take(if members.on_demand { PINGED_MAX } else { 0 });
        let asked: BTreeSet<usize> = spoken_to.into_iter().chain(more).collect();
        asked.iter().for_each(|node| context.reach(*node));
        context.notify_others(&Notice::WaitingQuery { group, epoch });
        let (any, until) = (!asked.is_empty(), context.now + INQUIRY_TIMEOUT);
        let (nodes, waits) = (asked.clone(), WaitForGraph::default());
        self.inquiry = Some(Inquiry { about, nodes, unanswered: asked, until, waits });
        any.then_some(until)
    }

    /// Handles another agent's answer.
    pub(super) fn on_waits(
        &mut self,
        context: &mut GroupContext<'_>,
        node: usize,
        (ranks, messages): &LocalWaits,
    ) {
        let Some(inquiry) = &mut self.inquiry else { return };
        if inquiry.unanswered.remove(&node) {
            let theirs = |rank| context.members.node_of(rank) == Some(node);
            inquiry.waits.add(&WaitForGraph::new(ranks, messages), theirs);
            if inquiry.unanswered.is_empty() {
                context.set_timer(inquiry.about.0, Some(context.now));
            }
        }
    }

    /// Returns whether a message may name a rank, because it is known whether the rank waits, or
    /// its node was asked.
    pub(super) fn may_name(&self, members: &Members, rank: u32) -> bool {
        let asked = |node| self.inquiry.as_ref().is_some_and(|inquiry| inquiry.nodes.contains(&node));
        members.other_node_of(rank).is_none_or(asked)
    }

    /// Returns the ranks that are to blame: of `ranks`, and of those for which they wait, the ranks
    /// that do not wait themselves. The result is empty if all of them wait.
    pub(super) fn suspects(&self, members: &Members, ranks: &[u32], here: &LocalWaits) -> Vec<u32> {
        let mut waits = WaitForGraph::new(&here.0, &here.1);
        if let Some(inquiry) = &self.inquiry {
            waits.add(&inquiry.waits, |_| true);
        }
        waits.culprits(ranks, members.layout.size() as u32)
    }
}

/// Returns the failure of a group that has lost at least one node.
pub(super) fn nodes_lost(members: &Members, nodes: &[usize], why: &str) -> CallFailure {
    let ranks: Vec<u32> = nodes.iter().flat_map(|node| members.ranks_of(*node)).collect();
    let names: Vec<&str> = nodes.iter().map(|node| members.nodes[*node].name.as_str()).collect();
    let (id, names, numbers) = (members.id, name_list(&names), rank_list(ranks.iter().copied()));
    let me = &members.nodes[members.me].name;
    let text = match nodes.len() {
        1 => format!(
            "node {names} with {numbers} is gone from group {id}: {why}; check the agent there, then start the job again"
        ),
        all if all == PINGED_MAX.min(members.nodes.len() - 1) => format!(
            "node {me} seems to be cut off from group {id}: nodes {names} with {numbers} are gone, all that were pinged: \
             {why}; check the links of {me}"
        ),
        _ => format!(
            "nodes {names} with {numbers} are gone from group {id}: {why}; check the links and agents there, then start \
             the job again"
        ),
    };
    CallFailure::new(CallFailureKind::Lost, text, ranks)
}

fn ping(members: &Members) -> Packet {
    let ((group, epoch), me) = (members.id_and_epoch(), members.me as u16);
    let id = StreamId { group, epoch, call: 0, transfer: 0, source: me };
    Packet { id, from: me, digest: 0, body: PacketBody::Ping }
}

fn part(context: &GroupContext<'_>) -> Duration {
    context.resources.peer_timeout / PARTS
}
