//! Whether the other nodes of a group are still there, and who is to blame when something waits for too long.
//!
//! While nothing moves in a call or a message, the others are sent pings; who does not answer is gone, and so is who answers
//! as another incarnation than the group's, at once. TCP alone would notice
//! a node that was stopped or cut off only after minutes, or, where many packets are lost, take a live one for dead. When a
//! call or message is to be given up, the other agents are asked who waits there, and for whom: whoever does not wait is
//! to blame.

use super::wait_for_graph::WaitForGraph;
use crate::failure::{CallFailure, CallFailureKind};
use crate::members::{Members, listed, numbers};
use crate::shared::{GroupContext, TimerKey};
use cool_machine::{Duration, Time};
use cool_transport::packet::PacketBody;
use cool_transport::unicast::Notice;
use cool_transport::{Packet, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Parts of the peer timeout. They are counted, not timed, so that an agent that did not run for a while does not take the
/// others for gone.
const PARTS: u32 = 32;

/// Parts without progress after which others are asked, and between asking the same node again.
const STILL_PARTS: u32 = 8;

/// Pings without an answer after which a node is gone. A part each: at a loss of 20 % each way, one goes
/// unanswered in three.
const PINGS_MAX: u32 = PARTS - STILL_PARTS;

/// Nodes that are asked at a time: of large groups some, then the next.
const PINGED_MAX: usize = 16;

/// The most time for answers to who waits: enough for TCP to send what was lost once more.
const INQUIRY_TIMEOUT: Duration = Duration::from_millis(500);

/// The ranks of this node that wait in calls or for a message from anybody, and those with messages under way to or from
/// others.
pub(super) type LocalWaits = (Vec<u32>, Vec<(u32, u32)>);

#[derive(Debug, Default)]
pub(super) struct FailureDetector {
    pings: Pings,
    inquiry: Option<Inquiry>,
}

/// Which nodes are asked whether they are there.
#[derive(Debug, Default)]
struct Pings {
    /// Whether others are looked after: a call or message is open, and there are other nodes.
    watching: bool,
    /// Parts since others were first asked.
    parts: u32,
    /// Who is asked, with the pings so far.
    pinged: BTreeMap<usize, u32>,
    /// Where to go on in large groups.
    next: usize,
}

impl Pings {
    /// Who is gone. Once one node passes the limit, all nodes that are within [`STILL_PARTS`] pings of it are lost together: they
    /// most likely left together, or it is this node that is cut off, and all are to be named.
    fn silent_nodes(&self) -> Vec<usize> {
        let enough = self.pinged.values().any(|asked| *asked >= PINGS_MAX);
        let silent = self.pinged.iter().filter(|(_, asked)| enough && **asked >= PINGS_MAX - STILL_PARTS);
        silent.map(|(node, _)| *node).collect()
    }

    /// Asks the next ones of `nodes` others than `me`.
    fn ping_next(&mut self, nodes: usize, me: usize) {
        for node in (0..nodes).map(|ahead| (self.next + ahead) % nodes) {
            if self.pinged.len() >= PINGED_MAX {
                self.next = node;
                return;
            }
            if node != me {
                self.pinged.entry(node).or_default();
            }
        }
    }
}

/// What other agents were asked about who waits, and have answered.
#[derive(Debug)]
struct Inquiry {
    /// What is to be given up, as its timer is called, and when that last moved.
    about: (TimerKey, Time),
    /// Nodes that were asked.
    nodes: BTreeSet<usize>,
    /// Of these, those that have not answered.
    unanswered: BTreeSet<usize>,
    until: Time,
    /// Of the ranks of other nodes.
    waits: WaitForGraph,
}

impl FailureDetector {
    /// A call or message has begun: others are looked after until all are done.
    pub(super) fn watch(&mut self, context: &mut GroupContext<'_>) {
        if !self.pings.watching && context.members.nodes.len() > 1 {
            self.pings.watching = true;
            let first = context.now + STILL_PARTS * part(context);
            context.set_timer(TimerKey::FailureDetector(context.members.id), Some(first));
        }
    }

    /// The group has failed: nobody is looked after any more.
    pub(super) fn stop(&mut self, context: &mut GroupContext<'_>) {
        self.pings = Pings::default();
        context.set_timer(TimerKey::FailureDetector(context.members.id), None);
    }

    /// A node gave a sign of life.
    pub(super) fn on_sign_of_life(&mut self, node: usize) {
        self.pings.pinged.remove(&node);
    }

    /// The agent at an address that was asked has answered. Answers with its node if it is another agent than the group's:
    /// that one is gone.
    pub(super) fn on_ping_answer(
        &mut self,
        members: &Members,
        from: SocketAddr,
        incarnation: u64,
    ) -> Option<usize> {
        let node = *self.pings.pinged.keys().find(|node| members.nodes[**node].udp == from)?;
        self.pings.pinged.remove(&node);
        (members.nodes[node].incarnation != incarnation).then_some(node)
    }

    /// It is time to look after the others: since when has nothing moved in one of the calls and messages, if there are any?
    /// The nodes that are `awaited`, since something is to come from them, are asked first, and spoken to, so that they tell what has
    /// become of their ranks. Answers with those who are gone.
    pub(super) fn on_timer(
        &mut self,
        context: &mut GroupContext<'_>,
        moved: Option<Time>,
        awaited: &BTreeSet<usize>,
    ) -> Vec<usize> {
        let (now, part) = (context.now, part(context));
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
                self.pings.pinged.entry(*node).or_default();
            }
            self.pings.ping_next(context.members.nodes.len(), context.members.me);
        }
        self.pings.parts += 1;
        let packet = ping(context.members);
        for (node, asked) in &mut self.pings.pinged {
            *asked += 1;
            context.shared.out.control(context.members.nodes[*node].udp, &packet);
        }
        lost
    }

    /// Something that has not moved since a time is to be given up. Whether it is known who else waits, as far as it will
    /// be; if not, its timer is set again.
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
            // One after the other: who is first fails for all.
            (_, Some(open)) => open.until,
            (Some(over), None) if over.about == about => {
                let silent = over.unanswered.iter().map(|node| context.members.nodes[*node].name.as_str());
                let silent: Vec<&str> = silent.collect();
                if !silent.is_empty() {
                    tracing::info!(group = context.members.id, ?silent, "not told by all agents who waits");
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

    /// Asks the other agents who waits, if there are any: those that are spoken to, and of others the next few in the chain. Answers
    /// with when to wait no more.
    fn inquire(&mut self, context: &mut GroupContext<'_>, about: (TimerKey, Time)) -> Option<Time> {
        let (group, epoch) = context.members.key();
        let members = context.members;
        let following = (members.me + 1..members.nodes.len()).chain(0..members.me);
        let spoken_to = |node: &usize| context.shared.peers.link(members.nodes[*node].id).is_some();
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

    /// Another agent has told who waits there.
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

    /// Whether a rank may be named: it is known whether it waits, or its node was asked for that.
    pub(super) fn may_name(&self, members: &Members, rank: u32) -> bool {
        let asked = |node| self.inquiry.as_ref().is_some_and(|inquiry| inquiry.nodes.contains(&node));
        members.other_node_of(rank).is_none_or(asked)
    }

    /// Of ranks that are waited for, and those for whom they wait, those that do not wait themselves; none if they all do.
    pub(super) fn suspects(&self, members: &Members, ranks: &[u32], here: &LocalWaits) -> Vec<u32> {
        let mut waits = WaitForGraph::new(&here.0, &here.1);
        if let Some(inquiry) = &self.inquiry {
            waits.add(&inquiry.waits, |_| true);
        }
        waits.culprits(ranks, members.layout.size() as u32)
    }
}

/// The failure of a group that has lost nodes, at least one.
pub(super) fn nodes_lost(members: &Members, nodes: &[usize], why: &str) -> CallFailure {
    let ranks: Vec<u32> = nodes.iter().flat_map(|node| members.ranks_of(*node)).collect();
    let names: Vec<&str> = nodes.iter().map(|node| members.nodes[*node].name.as_str()).collect();
    let (id, names, numbers) = (members.id, listed(&names), numbers(&ranks));
    let me = &members.nodes[members.me].name;
    let text = match nodes.len() {
        1 => format!(
            "node {names} with {numbers} is gone from group {id}: {why}; look at the agent there, then start the job again"
        ),
        all if all == PINGED_MAX.min(members.nodes.len() - 1) => format!(
            "node {me} is cut off from group {id}, it seems: nodes {names} with {numbers} are gone, all that were asked: \
             {why}; look at the links of {me}"
        ),
        _ => format!(
            "nodes {names} with {numbers} are gone from group {id}: {why}; look at the links and agents there, then start \
             the job again"
        ),
    };
    CallFailure::new(CallFailureKind::Lost, text, ranks)
}

fn ping(members: &Members) -> Packet {
    let ((group, epoch), me) = (members.key(), members.me as u16);
    let id = StreamId { group, epoch, call: 0, transfer: 0, source: me };
    Packet { id, from: me, digest: 0, body: PacketBody::Ping }
}

fn part(context: &GroupContext<'_>) -> Duration {
    context.shared.peer_timeout / PARTS
}
