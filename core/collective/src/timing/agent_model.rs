//! The model of the agents that execute a schedule, in simulated time: the order of their work, the
//! CPU time that it takes, and the events for which they wait.

mod streams;

use super::costs::{AgentCosts, nanos};
use super::credit::Credits;
use super::index::{ActionRef, ScheduleIndex, taken};
use super::trace::MessageTrace;
use super::{NetworkEvent, NetworkEvents, NetworkModel, Timing, TimingError};
use crate::fused::FusedReductions;
use crate::layout::Layout;
use crate::progress::{Dependents, ProgramProgress};
use crate::schedule::{ActionKind, Program, Rank, Schedule};
use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap};

/// Flags of an action that receives: it has started, its message has arrived, its message was
/// announced.
const READY: u8 = 1;
const ARRIVED: u8 = 2;
const ANNOUNCED: u8 = 4;
/// Flags of an action that sends within a node: its message waits for the receiver, the agent has
/// copied its message.
const OFFERED: u8 = 8;
const COPIED: u8 = 16;
/// Flag of an action that sends to another node: the message was sent within the credit.
const EAGER: u8 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TimingEvent {
    /// The agent has completed the work of an action.
    Done { rank: u32, action: u32 },
    /// The agent has passed a message to its transport.
    Sent { transfer: u32 },
    /// The announcement of a large message has arrived at the receiver.
    Announced { transfer: u32 },
    /// The grant of the receiver has arrived at the sender.
    Granted { transfer: u32 },
    /// Returned credit for eager messages has arrived at a node.
    Credit { from: u32, to: u32, bytes: u64 },
    /// The first byte of a multicast may be sent.
    Begun { transfer: u32 },
    /// An event of the network.
    Network(NetworkEvent),
}

/// All agents of a schedule, and the network between them.
pub(super) struct AgentModel<'a, N> {
    schedule: &'a Schedule,
    layout: &'a Layout,
    costs: &'a AgentCosts,
    network: N,
    events: NetworkEvents,
    index: ScheduleIndex,
    /// The dependents and the progress of each rank's program.
    dependents: Vec<Dependents>,
    progress: Vec<ProgramProgress>,
    /// Actions that may start. Kept between events to reuse its memory.
    ready: Vec<u32>,
    /// The reductions that read the memory of the sender.
    fused: FusedReductions,
    credits: Credits,
    /// The flags of each action.
    known: Vec<u8>,
    /// Announced multicasts: the number of receivers that are not ready, and when the announcement
    /// reaches all.
    gathering: BTreeMap<u32, (usize, u64)>,
    /// For each node, until when its agent is busy.
    busy: Vec<u64>,
    queue: BinaryHeap<Reverse<(u64, u64, TimingEvent)>>,
    serial: u64,
    now: u64,
    /// When the slowest rank completes, and which rank that is.
    end: (u64, u32),
    done: usize,
    /// The message timings, if requested.
    pub(super) trace: Option<MessageTrace>,
}

impl<'a, N: NetworkModel> AgentModel<'a, N> {
    pub(super) fn new(
        schedule: &'a Schedule,
        layout: &'a Layout,
        costs: &'a AgentCosts,
        network: N,
    ) -> Result<AgentModel<'a, N>, TimingError> {
        if schedule.programs.len() != layout.size() {
            return Err(TimingError::Incomplete);
        }
        let programs = || schedule.programs.iter().flatten();
        let dependents: Vec<Dependents> = programs().map(Dependents::for_program).collect();
        let one_node = |a, b| layout.node_of(a) == layout.node_of(b);
        let fused = FusedReductions::find(schedule, |rank| dependents.get(rank.0 as usize), one_node);
        let index = ScheduleIndex::new(schedule, &fused).ok_or(TimingError::Incomplete)?;
        Ok(AgentModel {
            schedule,
            layout,
            costs,
            network,
            events: NetworkEvents::default(),
            dependents,
            fused,
            credits: Credits::default(),
            progress: programs().map(ProgramProgress::new).collect(),
            ready: Vec::new(),
            known: vec![0; index.actions()],
            gathering: BTreeMap::new(),
            busy: vec![0; layout.nodes()],
            queue: BinaryHeap::new(),
            serial: 0,
            now: 0,
            end: (0, 0),
            done: 0,
            trace: None,
            index,
        })
    }

    pub(super) fn run(&mut self, most: Duration) -> Result<Timing, TimingError> {
        for rank in 0..self.layout.size() as u32 {
            let first: Vec<u32> = self.progress[rank as usize].first().collect();
            first.into_iter().for_each(|action| self.start(ActionRef { rank, action }));
        }
        let last = nanos(most.saturating_sub(self.costs.call));
        while let Some(Reverse((at, _, event))) = self.queue.pop() {
            if at > last {
                return Err(TimingError::Late(most));
            }
            self.now = at;
            self.handle_event(event);
        }
        if self.done < self.index.actions() {
            return Err(self.stuck());
        }
        let time = Duration::from_nanos(self.end.0) + self.costs.call;
        Ok(Timing { time, slowest: Rank(self.end.1), events: self.serial })
    }

    fn stuck(&self) -> TimingError {
        let of_rank = |(rank, progress): (u32, &ProgramProgress)| {
            // If no action is blocked, one that started waits for a message that is never sent.
            let last = || self.program(rank).actions.len() as u32 - 1;
            (!progress.is_done()).then(|| (rank, progress.blocked().unwrap_or_else(last)))
        };
        let (rank, action) = (0..).zip(&self.progress).find_map(of_rank).unwrap_or((0, 0));
        TimingError::Stuck { rank: Rank(rank), action }
    }

    fn program(&self, rank: u32) -> &'a Program {
        self.schedule.programs[rank as usize].as_ref().expect("the index is made of programs of all ranks")
    }

    fn kind(&self, at: ActionRef) -> ActionKind {
        self.program(at.rank).actions[at.action as usize].kind
    }

    fn node(&self, rank: u32) -> usize {
        self.layout.node_of(Rank(rank))
    }

    fn schedule_event(&mut self, at: u64, event: TimingEvent) {
        self.serial += 1;
        self.queue.push(Reverse((at.max(self.now), self.serial, event)));
    }

    /// Calls the network model, and queues the events that it returns.
    fn network(&mut self, does: impl FnOnce(&mut N, u64, &mut NetworkEvents)) {
        let mut events = std::mem::take(&mut self.events);
        does(&mut self.network, self.now, &mut events);
        for (at, event) in events.0.drain(..) {
            self.schedule_event(at, TimingEvent::Network(event));
        }
        self.events = events;
    }

    /// Adds work to the agent of a node, after its current work. Returns when the work is done.
    fn work(&mut self, node: usize, nanos: u64) -> u64 {
        let busy = &mut self.busy[node];
        *busy = (*busy).max(self.now).saturating_add(nanos);
        *busy
    }

    /// Completes an action after this much work of its node's agent.
    fn finish_after(&mut self, at: ActionRef, nanos: u64) {
        let end = self.work(self.node(at.rank), nanos);
        self.schedule_event(end, TimingEvent::Done { rank: at.rank, action: at.action });
    }

    fn handle_event(&mut self, event: TimingEvent) {
        match event {
            TimingEvent::Done { rank, action } => self.complete(ActionRef { rank, action }),
            TimingEvent::Sent { transfer } => self.sent(transfer),
            TimingEvent::Announced { transfer } => self.announced(transfer),
            TimingEvent::Granted { transfer } => self.enqueue(transfer),
            TimingEvent::Credit { from, to, bytes } => {
                self.credits.give_back((from as usize, to as usize), bytes);
            }
            TimingEvent::Begun { transfer } => self.begin_stream(transfer),
            TimingEvent::Network(NetworkEvent::Wake(a, b)) => {
                self.network(|net, now, events| net.wake(now, (a, b), events))
            }
            TimingEvent::Network(NetworkEvent::Departed { message }) => self.left(message),
            TimingEvent::Network(NetworkEvent::Arrived { message, receiver }) => {
                let at = self.index.receivers(message)[receiver as usize];
                self.trace_arrival(message, at.rank);
                self.arrived(at);
            }
        }
    }

    fn complete(&mut self, at: ActionRef) {
        self.done += 1;
        if let Some(transfer) = taken(at, self.kind(at), &self.fused) {
            self.taken(at, transfer.0);
        }
        self.ends(at.rank, self.now);
        let (rank, mut ready) = (at.rank as usize, std::mem::take(&mut self.ready));
        self.progress[rank].complete(at.action, &self.dependents[rank], |action| ready.push(action));
        for action in ready.drain(..) {
            self.start(ActionRef { rank: at.rank, action });
        }
        self.ready = ready;
    }

    /// Records that a rank has consumed a message, and returns the sender's credit.
    fn taken(&mut self, at: ActionRef, transfer: u32) {
        let sender = self.index.sender(transfer);
        if let ActionKind::Multicast { .. } = self.kind(sender) {
            return;
        }
        let (from, to) = (self.node(sender.rank), self.node(at.rank));
        if from == to {
            self.trace_arrival(transfer, at.rank);
        } else if self.known[self.index.number(sender)] & EAGER != 0
            && let Some(bytes) = self.credits.free((from, to), self.bytes(sender))
        {
            let back = self.now + self.network.latency(to, from, 0);
            self.schedule_event(back, TimingEvent::Credit { from: from as u32, to: to as u32, bytes });
        }
    }

    /// Records that a rank does not complete before this time.
    fn ends(&mut self, rank: u32, at: u64) {
        if at > self.end.0 {
            self.end = (at, rank);
        }
    }

    fn start(&mut self, at: ActionRef) {
        match self.kind(at) {
            ActionKind::Reduce { .. }
                if let Some((_, transfer)) = self.fused.message(Rank(at.rank), at.action) =>
            {
                self.take(at, transfer.0);
            }
            ActionKind::Reduce { src, .. } => self.finish_after(at, self.costs.reducing(src.len)),
            ActionKind::Copy { src, .. } => self.finish_after(at, self.costs.copying(src.len)),
            ActionKind::Send { to, transfer, .. } => {
                let node = self.node(at.rank);
                if self.layout.node_of(to) == node {
                    self.offer(at, transfer.0);
                } else {
                    let sent = self.work(node, nanos(self.costs.send));
                    self.schedule_event(sent, TimingEvent::Sent { transfer: transfer.0 });
                }
            }
            ActionKind::Receive { .. } if self.fused.is_elided_receive(Rank(at.rank), at.action) => {
                self.schedule_event(self.now, TimingEvent::Done { rank: at.rank, action: at.action });
            }
            ActionKind::Receive { from, transfer, dst } => {
                if self.layout.node_of(from) == self.node(at.rank) {
                    self.take(at, transfer.0);
                } else {
                    self.expect(at, transfer.0, dst.len);
                }
            }
            ActionKind::Multicast { .. } => {
                self.progress[at.rank as usize].queue_multicast(at.action);
                self.next_multicast(at.rank);
            }
            ActionKind::ReceiveMulticast { transfer, dst, .. } => self.expect(at, transfer.0, dst.len),
        }
    }

    /// Sends from one rank of a node to another. If the receiver is not ready, a small message is
    /// copied, and a large one waits.
    fn offer(&mut self, at: ActionRef, transfer: u32) {
        self.trace_begin(transfer);
        let Some(to) = self.index.receivers(transfer).first().copied() else { return };
        let bytes = self.bytes(at);
        if self.known[self.index.number(to)] & READY != 0 {
            self.finish_after(at, self.taking(to));
            self.finish_after(to, 0);
        } else if bytes <= self.costs.eager {
            let number = self.index.number(at);
            self.known[number] |= COPIED;
            self.finish_after(at, self.costs.copying(bytes));
        } else {
            let number = self.index.number(at);
            self.known[number] |= OFFERED;
        }
    }

    /// Returns the time, in nanoseconds, in which an action copies or combines a message of another
    /// rank of its node.
    fn taking(&self, at: ActionRef) -> u64 {
        match self.kind(at) {
            ActionKind::Reduce { src, .. } => self.costs.reducing(src.len),
            kind => self.costs.copying(kind.writes().map_or(0, |dst| dst.len)),
        }
    }

    /// Receives at one rank of a node from another.
    fn take(&mut self, at: ActionRef, transfer: u32) {
        let from = self.index.sender(transfer);
        let number = self.index.number(at);
        match self.known[self.index.number(from)] {
            known if known & COPIED != 0 => self.finish_after(at, self.taking(at)),
            known if known & OFFERED != 0 => {
                self.finish_after(from, self.taking(at));
                self.finish_after(at, 0);
            }
            _ => self.known[number] |= READY,
        }
    }

    /// Records that a rank is ready for a message from another node.
    fn expect(&mut self, at: ActionRef, transfer: u32, bytes: u64) {
        let number = self.index.number(at);
        let known = self.known[number];
        self.known[number] |= READY;
        if known & ARRIVED != 0 {
            self.finish_after(at, self.costs.copying(bytes));
        } else if known & ANNOUNCED != 0 {
            self.grant(transfer);
        } else if let Some((missing, known_at)) = self.gathering.get_mut(&transfer) {
            *missing -= 1;
            if *missing == 0 {
                let all_know = (*known_at).max(self.now);
                self.gathering.remove(&transfer);
                self.begin_after(transfer, all_know);
            }
        }
    }

    fn bytes(&self, sender: ActionRef) -> u64 {
        match self.kind(sender) {
            ActionKind::Send { src, .. } | ActionKind::Multicast { src, .. } => src.len,
            _ => 0,
        }
    }

    fn ends_of(&self, transfer: u32) -> (usize, usize) {
        let from = self.node(self.index.sender(transfer).rank);
        let to = self.index.receivers(transfer).first().map_or(from, |at| self.node(at.rank));
        (from, to)
    }

    fn sent(&mut self, transfer: u32) {
        let at = self.index.sender(transfer);
        if let ActionKind::Multicast { .. } = self.kind(at) {
            return self.announce_stream(transfer);
        }
        let (from, to) = self.ends_of(transfer);
        let bytes = self.bytes(at);
        if bytes <= self.costs.eager && self.credits.take((from, to), bytes) {
            let number = self.index.number(at);
            self.known[number] |= EAGER;
            self.complete(at);
            self.enqueue(transfer);
        } else {
            self.schedule_event(
                self.now + self.network.latency(from, to, 0),
                TimingEvent::Announced { transfer },
            );
        }
    }

    fn announced(&mut self, transfer: u32) {
        let Some(to) = self.index.receivers(transfer).first().copied() else { return };
        let number = self.index.number(to);
        if self.known[number] & READY != 0 {
            self.grant(transfer);
        } else {
            self.known[number] |= ANNOUNCED;
        }
    }

    fn grant(&mut self, transfer: u32) {
        let (from, to) = self.ends_of(transfer);
        self.schedule_event(self.now + self.network.latency(to, from, 0), TimingEvent::Granted { transfer });
    }

    /// Sends a unicast message.
    fn enqueue(&mut self, transfer: u32) {
        self.trace_begin(transfer);
        let bytes = self.bytes(self.index.sender(transfer));
        let ends = self.ends_of(transfer);
        self.network(|net, now, events| net.unicast(now, transfer, ends, bytes, events));
    }

    /// Records that the last byte of a message has left its sender.
    fn left(&mut self, transfer: u32) {
        let sender = self.index.sender(transfer);
        if let (Some(trace), [to]) = (&mut self.trace, self.index.receivers(transfer)) {
            trace.leaves(transfer, self.now, (sender.rank, to.rank));
        }
        if let ActionKind::Multicast { .. } = self.kind(sender) {
            self.stream_over(transfer);
        } else if self.known[self.index.number(sender)] & EAGER == 0 {
            self.complete(sender);
        }
    }

    fn arrived(&mut self, at: ActionRef) {
        let number = self.index.number(at);
        if self.known[number] & READY != 0 {
            self.finish_after(at, nanos(self.costs.receive));
        } else {
            self.known[number] |= ARRIVED;
            self.work(self.node(at.rank), nanos(self.costs.receive));
        }
    }

    fn trace_begin(&mut self, transfer: u32) {
        if let Some(trace) = &mut self.trace {
            trace.begins(transfer, self.now);
        }
    }

    fn trace_arrival(&mut self, transfer: u32, to: u32) {
        if self.trace.is_none() {
            return;
        }
        let sender = self.index.sender(transfer);
        let (bytes, multicast) =
            (self.bytes(sender), matches!(self.kind(sender), ActionKind::Multicast { .. }));
        if let Some(trace) = &mut self.trace {
            trace.arrives(transfer, self.now, (sender.rank, to), multicast, bytes);
        }
    }
}
