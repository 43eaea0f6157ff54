//! What the groups of a node share: outputs, timers, connections, the node's link, bounce buffers.

use crate::failure::{CallFailure, CallStats, TrafficTotals};
use crate::ids::WorkId;
use crate::link_share::{LinkShare, LinkUsage};
use crate::machine::{Output, Work};
use crate::members::Members;
use crate::memory::MemoryRange;
use crate::output_queue::OutputQueue;
use crate::peers::PeerTable;
use crate::stream::MulticastStream;
use crate::timers::TimerQueue;
use crate::trace::TraceRing;
use crate::work_tracker::WorkTracker;
use cool_machine::{Duration, Time};
use cool_transport::StreamId;
use cool_transport::unicast::{AgentId, Input, Notice};
use cool_types::Operation;
use std::collections::BTreeSet;

/// Actions that start in one turn, from when the driver is told that the engine is idle until it is told so again: with what
/// the driver does for them, such as a system call for each, some milliseconds. Those that are left start in the next one.
const TURN_ACTIONS: usize = 256;

/// Whose deadline it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKey {
    Stream(StreamId),
    /// Group and call.
    Call(u64, u64),
    /// Group and message.
    PointToPoint(u64, u64),
    /// Group.
    FailureDetector(u64),
}

#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) out: OutputQueue,
    pub(crate) timers: TimerQueue<TimerKey>,
    pub(crate) peers: PeerTable,
    /// Bytes that bounce buffers may still take.
    bounce_left: u64,
    /// What this node is sending for the first time: it shares its link.
    pub(crate) sending: LinkUsage,
    /// That has changed, and the streams do not know.
    pub(crate) sending_changed: bool,
    /// What the latest calls cost.
    pub(crate) ring: TraceRing,
    /// How long a node may be silent while others wait.
    pub(crate) peer_timeout: Duration,
    pub(crate) work_tracker: WorkTracker,
    pub(crate) turn: TurnBudget,
    /// By operation, in the order of [`Operation::ALL`].
    pub(crate) traffic: [TrafficTotals; Operation::ALL.len()],
    /// Packets that came without the key that they need.
    pub(crate) refused: u64,
}

impl SharedState {
    pub(crate) fn new(me: AgentId, bounce_bytes: u64, peer_timeout: Duration) -> SharedState {
        SharedState {
            out: OutputQueue::default(),
            timers: TimerQueue::new(),
            peers: PeerTable::new(me),
            bounce_left: bounce_bytes,
            sending: LinkUsage::default(),
            sending_changed: false,
            ring: TraceRing::default(),
            peer_timeout,
            work_tracker: WorkTracker::default(),
            turn: TurnBudget::default(),
            traffic: Default::default(),
            refused: 0,
        }
    }

    /// Answers a call or message.
    pub(crate) fn done(&mut self, token: u64, result: Result<CallStats, CallFailure>) {
        if let Some(result) = self.work_tracker.complete(token, result) {
            self.out.push(Output::Done { token, result });
        }
    }

    /// Gives work of a group out, on the memory of some calls.
    pub(crate) fn work(&mut self, group: u64, tokens: [Option<u64>; 2], work: Work) -> WorkId {
        let id = self.out.next_work();
        self.work_tracker.track(id, group, tokens);
        self.out.push(Output::Work { id, work });
        id
    }

    /// A copy of these bytes in a bounce buffer, if there is room for one.
    pub(crate) fn bounce(&mut self, from: MemoryRange) -> Option<MemoryRange> {
        self.bounce_left = self.bounce_left.checked_sub(from.len)?;
        let buffer = self.out.allocate(from.len);
        self.out.copy(from, buffer);
        Some(buffer)
    }

    /// Gives a bounce buffer back.
    pub(crate) fn give_back(&mut self, buffer: MemoryRange) {
        self.bounce_left += buffer.len;
        self.out.free(buffer);
    }

    /// Counts what was sent for calls of an operation.
    pub(crate) fn count(&mut self, operation: Operation, traffic: TrafficTotals) {
        self.traffic[operation as usize] += traffic;
    }

    /// Gives back what a stream had a claim on.
    pub(crate) fn forget_stream(&mut self, id: &StreamId, mut stream: MulticastStream) {
        self.timers.set(TimerKey::Stream(*id), None);
        if let Some(buffer) = stream.release() {
            self.give_back(buffer);
        }
    }

    /// A stream has its share of the node's link from now on.
    pub(crate) fn start_sending(&mut self, share: LinkShare) {
        self.sending = self.sending.with(&share);
        self.sending_changed = true;
    }

    /// A stream has put its last chunk on the link, or never will: others may have its share.
    pub(crate) fn finish_sending(&mut self, share: LinkShare) {
        self.sending.remove(&share);
        self.sending_changed = true;
    }
}

/// How much of its turn the engine has left.
#[derive(Debug, Default)]
pub(crate) struct TurnBudget {
    /// It has ended, and no other has begun.
    over: bool,
    /// Actions that have started in it.
    started: usize,
    /// Groups with actions that have to wait for the next one.
    waiting: BTreeSet<u64>,
}

impl TurnBudget {
    /// Whether an action of a group may start; if not, the group has its turn later.
    pub(crate) fn take_slot(&mut self, group: u64) -> bool {
        let may = self.started < TURN_ACTIONS;
        if may {
            self.started += 1;
        } else {
            self.waiting.insert(group);
        }
        may
    }

    /// Ends the turn; whether another one has to follow at once.
    pub(crate) fn end(&mut self) -> bool {
        (self.over, self.started) = (true, 0);
        !self.waiting.is_empty()
    }

    /// Begins a turn unless one is under way: the groups that have waited for it.
    pub(crate) fn begin(&mut self) -> BTreeSet<u64> {
        if std::mem::take(&mut self.over) { std::mem::take(&mut self.waiting) } else { BTreeSet::new() }
    }
}

/// What the parts of a group work with: its members, and what it shares with other groups.
pub(crate) struct GroupContext<'a> {
    pub(crate) now: Time,
    pub(crate) members: &'a Members,
    pub(crate) shared: &'a mut SharedState,
}

impl GroupContext<'_> {
    pub(crate) fn set_timer(&mut self, key: TimerKey, at: Option<Time>) {
        self.shared.timers.set(key, at);
    }

    /// Sees to it that the agent of the node at a place of the group is spoken to.
    pub(crate) fn reach(&mut self, node: usize) {
        if self.members.on_demand {
            let SharedState { peers, out, .. } = &mut *self.shared;
            peers.reach(self.now, (self.members, node), out);
        }
    }

    /// Tells the machine of the connection to the node at a place of the group.
    pub(crate) fn send_to_peer(&mut self, node: usize, input: Input<'_>) {
        self.reach(node);
        self.shared.peers.handle(self.now, self.members.nodes[node].id, input);
    }

    /// Tells the agent of the node at a place of the group.
    pub(crate) fn notify(&mut self, node: usize, notice: Notice) {
        self.send_to_peer(node, Input::Notify(notice));
    }

    /// Tells the agents of all other nodes of the group that are spoken to: where they connect on demand, the others hear of
    /// it when they are.
    pub(crate) fn notify_others(&mut self, notice: &Notice) {
        for node in self.members.others() {
            self.shared.peers.notify(self.now, self.members.nodes[node].id, notice.clone());
        }
    }
}
