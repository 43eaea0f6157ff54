//! The engine's resources, which the groups of a node share: outputs, timers, connections, the
//! node's link, and bounce buffers.

use crate::engine_outbox::EngineOutbox;
use crate::failure::{CallFailure, CallStats, TrafficTotals};
use crate::ids::WorkId;
use crate::inputs_outputs::{Output, Work};
use crate::link_share::{LinkShare, LinkUsage};
use crate::members::Members;
use crate::memory::MemoryRange;
use crate::peers::PeerTable;
use crate::stream::MulticastStream;
use crate::timers::TimerQueue;
use crate::trace::TraceRing;
use crate::work_tracker::WorkTracker;
use cool_machine::{Duration, Time};
use cool_transport::StreamId;
use cool_transport::unicast::{AgentId, Input, Notice};
use cool_types::Operation;
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of actions that start in one turn, that is, between two times that the driver
/// sees the engine idle. Together with the driver's work for them, such as a system call for each,
/// they take some milliseconds. The remaining actions start in the next turn.
const TURN_ACTIONS: usize = 256;

/// The owner of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKey {
    Stream(StreamId),
    /// The group and the call.
    Call(u64, u64),
    /// The group and the transfer.
    PointToPoint(u64, u64),
    /// The group.
    FailureDetector(u64),
    /// The group.
    TreeProof(u64),
    /// The group.
    TreeSources(u64),
}

/// The resources that all groups of a node use.
#[derive(Debug)]
pub(crate) struct EngineResources {
    pub(crate) out: EngineOutbox,
    pub(crate) timers: TimerQueue<TimerKey>,
    pub(crate) peers: PeerTable,
    /// Number of bytes that are still available for bounce buffers.
    bounce_left: u64,
    /// The streams that this node is sending for the first time, which share its link.
    pub(crate) sending: LinkUsage,
    /// Whether `sending` has changed since the streams were informed.
    pub(crate) sending_changed: bool,
    /// The costs of the latest calls.
    pub(crate) ring: TraceRing,
    /// How long a node may be silent while others wait for it.
    pub(crate) peer_timeout: Duration,
    pub(crate) work_tracker: WorkTracker,
    /// The group of each request, by token, until the driver receives the reply.
    pub(crate) open_requests: BTreeMap<u64, u64>,
    pub(crate) turn: TurnBudget,
    /// The node's traffic by operation, in the order of [`Operation::ALL`].
    pub(crate) traffic: [TrafficTotals; Operation::ALL.len()],
    /// The number of packets without the required key.
    pub(crate) refused: u64,
}

impl EngineResources {
    pub(crate) fn new(me: AgentId, bounce_bytes: u64, peer_timeout: Duration) -> EngineResources {
        EngineResources {
            out: EngineOutbox::default(),
            timers: TimerQueue::new(),
            peers: PeerTable::new(me),
            bounce_left: bounce_bytes,
            sending: LinkUsage::default(),
            sending_changed: false,
            ring: TraceRing::default(),
            peer_timeout,
            work_tracker: WorkTracker::default(),
            open_requests: BTreeMap::new(),
            turn: TurnBudget::default(),
            traffic: Default::default(),
            refused: 0,
        }
    }

    /// Replies to a request. The reply is delayed while work uses the request's memory.
    pub(crate) fn done(&mut self, token: u64, result: Result<CallStats, CallFailure>) {
        if let Some(result) = self.work_tracker.complete(token, result) {
            self.out.push(Output::Done { token, result });
        }
    }

    /// Hands the driver work of a group that uses the memory of the calls `tokens`. Returns the
    /// number of the work.
    pub(crate) fn work(&mut self, group: u64, tokens: [Option<u64>; 2], work: Work) -> WorkId {
        let id = self.out.next_work();
        self.work_tracker.track(id, group, tokens);
        self.out.push(Output::Work { id, work });
        id
    }

    /// Returns a copy of these bytes in a bounce buffer of a group, or `None` if there is no room
    /// for one.
    pub(crate) fn bounce(&mut self, group: u64, from: MemoryRange) -> Option<MemoryRange> {
        self.bounce_left = self.bounce_left.checked_sub(from.len)?;
        let buffer = self.out.allocate(group, from.len);
        self.out.copy(from, buffer);
        Some(buffer)
    }

    /// Frees a bounce buffer.
    pub(crate) fn give_back(&mut self, buffer: MemoryRange) {
        self.bounce_left += buffer.len;
        self.out.free(buffer);
    }

    /// Counts traffic for an operation.
    pub(crate) fn count(&mut self, operation: Operation, traffic: TrafficTotals) {
        self.traffic[operation as usize] += traffic;
    }

    /// Frees the resources of a stream.
    pub(crate) fn forget_stream(&mut self, id: &StreamId, mut stream: MulticastStream) {
        self.timers.set(TimerKey::Stream(*id), None);
        if let Some(buffer) = stream.release() {
            self.give_back(buffer);
        }
    }

    /// Adds a stream to those that share the node's link.
    pub(crate) fn start_sending(&mut self, share: LinkShare) {
        self.sending = self.sending.with(&share);
        self.sending_changed = true;
    }

    /// Removes a stream from those that share the node's link, because it has sent its last chunk
    /// or never will.
    pub(crate) fn finish_sending(&mut self, share: LinkShare) {
        self.sending.remove(&share);
        self.sending_changed = true;
    }
}

/// The remaining budget of the engine's current turn.
#[derive(Debug, Default)]
pub(crate) struct TurnBudget {
    /// Whether the turn has ended and no other has begun.
    over: bool,
    /// The number of actions that have started in this turn.
    started: usize,
    /// The groups with actions that must wait for the next turn.
    waiting: BTreeSet<u64>,
}

impl TurnBudget {
    /// Returns whether an action of a group may start. If not, the group must continue in the next
    /// turn.
    pub(crate) fn take_slot(&mut self, group: u64) -> bool {
        let may = self.started < TURN_ACTIONS;
        if may {
            self.started += 1;
        } else {
            self.waiting.insert(group);
        }
        may
    }

    /// Ends the turn. Returns whether another one must follow immediately.
    pub(crate) fn end(&mut self) -> bool {
        (self.over, self.started) = (true, 0);
        !self.waiting.is_empty()
    }

    /// Begins a turn unless one is in progress. Returns the groups that have waited for it.
    pub(crate) fn begin(&mut self) -> BTreeSet<u64> {
        if std::mem::take(&mut self.over) { std::mem::take(&mut self.waiting) } else { BTreeSet::new() }
    }
}

/// The context in which the parts of a group work: the group's members, and the state that it
/// shares with other groups.
pub(crate) struct GroupContext<'a> {
    pub(crate) now: Time,
    pub(crate) members: &'a Members,
    pub(crate) resources: &'a mut EngineResources,
}

impl GroupContext<'_> {
    pub(crate) fn set_timer(&mut self, key: TimerKey, at: Option<Time>) {
        self.resources.timers.set(key, at);
    }

    /// Makes sure that the agent of a node in the group is connected, if agents connect on demand.
    pub(crate) fn reach(&mut self, node: usize) {
        if self.members.on_demand {
            let EngineResources { peers, out, .. } = &mut *self.resources;
            peers.reach(self.now, (self.members, node), out);
        }
    }

    /// Sends an input to the machine of the connection to a node in the group.
    pub(crate) fn send_to_peer(&mut self, node: usize, input: Input<'_>) {
        self.reach(node);
        self.resources.peers.handle(self.now, self.members.nodes[node].id, input);
    }

    /// Sends a notice to the agent of a node in the group.
    pub(crate) fn notify(&mut self, node: usize, notice: Notice) {
        self.send_to_peer(node, Input::Notify(notice));
    }

    /// Sends a notice to the agents of all other nodes in the group that are connected. If agents
    /// connect on demand, the others receive it when they connect.
    pub(crate) fn notify_others(&mut self, notice: &Notice) {
        for node in self.members.others() {
            self.resources.peers.notify(self.now, self.members.nodes[node].id, notice.clone());
        }
    }
}
