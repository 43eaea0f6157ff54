//! Whether the other nodes are still there. While nothing moves in a call or a message, the others are asked now and
//! then; who does not answer is gone. TCP alone would notice a node that was stopped or cut off only after minutes, or,
//! where many packets are lost, take a live one for dead.

use super::Group;
use super::call_matching::{listed, numbers};
use crate::failure::{Failure, FailureKind};
use crate::shared::{Shared, TimerKey};
use cool_machine::{Duration, Time};
use cool_transport::packet::Body;
use cool_transport::{Packet, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

/// The patience with others is counted in so many parts. It is counted, not timed, so that an agent that did not run
/// for a while does not take the others for gone.
const PARTS: u32 = 32;

/// Parts without progress after which others are asked, and between asking the same node again.
const STILL: u32 = 8;

/// Questions without an answer after which a node is gone. A part each: at a loss of 20 % each way, one goes
/// unanswered in three.
const QUESTIONS: u32 = PARTS - STILL;

/// Nodes that are asked at a time: of large groups some, then the next.
const ASKED_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct FailureDetector {
    /// Whether it is kept: a call or message is open, and there are other nodes.
    kept: bool,
    /// Parts since others were first asked.
    parts: u32,
    /// Who is asked, with the questions so far.
    asked: BTreeMap<usize, u32>,
    /// Where to go on in large groups.
    next: usize,
}

impl FailureDetector {
    /// A node gave a sign of life.
    pub(super) fn heard(&mut self, node: usize) {
        self.asked.remove(&node);
    }

    /// Who is gone. With one that is go those who have been silent for nearly as long: they most likely left together, or it is
    /// this node that is cut off, and all are to be named.
    fn gone(&self) -> Vec<usize> {
        let enough = self.asked.values().any(|asked| *asked >= QUESTIONS);
        let silent = self.asked.iter().filter(|(_, asked)| enough && **asked >= QUESTIONS - STILL);
        silent.map(|(node, _)| *node).collect()
    }

    /// Asks the next ones of `nodes` others than `me`.
    fn ask(&mut self, nodes: usize, me: usize) {
        for node in (0..nodes).map(|ahead| (self.next + ahead) % nodes) {
            if self.asked.len() >= ASKED_MAX {
                self.next = node;
                return;
            }
            if node != me {
                self.asked.entry(node).or_default();
            }
        }
    }
}

impl Group {
    /// A call or message has begun: others are looked after until all are done.
    pub(super) fn detect_failures(&mut self, now: Time, shared: &mut Shared) {
        if !self.failure_detector.kept && self.members.nodes.len() > 1 {
            self.failure_detector.kept = true;
            let first = now + STILL * part(shared.peer_timeout);
            shared.timers.set(TimerKey::FailureDetector(self.members.id), Some(first));
        }
    }

    /// It is time to look after the others. Answers with the names of those who are gone.
    pub(crate) fn failure_detector_due(&mut self, now: Time, shared: &mut Shared) -> BTreeSet<String> {
        let part = part(shared.peer_timeout);
        let Some(progress) = self.progress(now) else {
            self.failure_detector = FailureDetector::default();
            return BTreeSet::new();
        };
        let still = progress + STILL * part;
        let next = if now < still {
            (self.failure_detector.parts, self.failure_detector.asked) = Default::default();
            still
        } else {
            now + part
        };
        shared.timers.set(TimerKey::FailureDetector(self.members.id), Some(next));
        if now < still {
            return BTreeSet::new();
        }
        let gone = self.failure_detector.gone();
        if self.failure_detector.parts.is_multiple_of(STILL) {
            self.failure_detector.ask(self.members.nodes.len(), self.members.me);
        }
        self.failure_detector.parts += 1;
        let question = self.ping();
        for (node, asked) in &mut self.failure_detector.asked {
            *asked += 1;
            shared.out.control(self.members.nodes[*node].udp, &question);
        }
        gone.into_iter().map(|node| self.members.nodes[node].name.clone()).collect()
    }

    /// The failure of a group that has lost nodes, at least one.
    pub(crate) fn nodes_lost(&self, nodes: &[&str], why: &str) -> Failure {
        let ranks: Vec<u32> = nodes.iter().flat_map(|node| self.members.ranks_of(node)).collect();
        let (id, names, numbers) = (self.members.id, listed(nodes), numbers(&ranks));
        let me = &self.members.nodes[self.members.me].name;
        let text = match nodes.len() {
            1 => format!(
                "node {names} with {numbers} is gone from group {id}: {why}; look at the agent there, then start the job again"
            ),
            all if all == ASKED_MAX.min(self.members.nodes.len() - 1) => format!(
                "node {me} is cut off from group {id}, it seems: nodes {names} with {numbers} are gone, all that were asked: \
                 {why}; look at the links of {me}"
            ),
            _ => format!(
                "nodes {names} with {numbers} are gone from group {id}: {why}; look at the links and agents there, then start \
                 the job again"
            ),
        };
        Failure::new(FailureKind::Lost, text, ranks)
    }

    /// Since when nothing has moved in one of the calls and messages; `None` if there are none. What is worked on moves.
    fn progress(&self, now: Time) -> Option<Time> {
        let calls = self.calls.values().filter(|call| !call.runs.is_empty());
        let calls = calls.map(|call| if call.works > 0 { now } else { call.progress });
        calls.chain(self.point_to_point.progress(now)).min()
    }

    fn ping(&self) -> Packet {
        let ((group, epoch), me) = (self.key(), self.members.me as u16);
        let id = StreamId { group, epoch, call: 0, transfer: 0, source: me };
        Packet { id, from: me, digest: 0, body: Body::Ping { answer: true } }
    }

    /// A node answered, which did not need to know the group.
    pub(crate) fn answered(&mut self, from: SocketAddrV4) {
        let nodes = &self.members.nodes;
        self.failure_detector.asked.retain(|node, _| nodes[*node].udp != from);
    }

    /// Bytes came from an agent.
    pub(crate) fn heard_from(&mut self, name: &str) {
        let nodes = &self.members.nodes;
        self.failure_detector.asked.retain(|node, _| nodes[*node].name != name);
    }
}

fn part(patience: Duration) -> Duration {
    patience / PARTS
}
