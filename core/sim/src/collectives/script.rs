//! The script of a group's ranks: their calls and buffers, and the expected contents of these.

use super::scenario::{CallScenario, Fault, GroupScenario, MessageScenario};
use cool_engine::testing::{Buffer, ReferenceCollective};
use cool_engine::{CallRequest, ElementType, GroupSpec, TransferKind, TransferRequest};
use cool_machine::{Duration, Time};
use cool_types::Operation;

/// A root that no group has.
const NOBODY: u32 = 999;

/// The state of a rank in its sequence of calls.
#[derive(Debug)]
pub(super) struct Script {
    /// Number of calls that it has made.
    pub(super) made: usize,
    /// Number of its pending calls.
    pub(super) open: usize,
    /// The call for which it waits.
    pub(super) waits_in: Option<usize>,
    /// When it made, or will make, its last call.
    pub(super) last: Time,
    /// Whether it makes no more calls.
    pub(super) over: bool,
}

/// The results of a collective so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) well: usize,
    pub(super) failed: usize,
    /// When its last rank called.
    pub(super) last_call: Time,
}

/// A group that is running.
pub(super) struct RunningGroup {
    pub(super) spec: GroupSpec,
    pub(super) places: Vec<u16>,
    pub(super) scenario: GroupScenario,
    pub(super) collectives: Vec<ReferenceCollective>,
    pub(super) tallies: Vec<Tally>,
    /// The scripts, by rank.
    pub(super) scripts: Vec<Script>,
    /// The buffers in which messages are received.
    pub(super) rooms: Vec<Buffer>,
}

/// Returns the content of a message.
fn message_bytes(number: usize, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + number as u64 * 31) as u8).collect()
}

impl RunningGroup {
    pub(super) fn new(
        index: usize,
        spec: GroupSpec,
        scenario: &GroupScenario,
        fault: &Fault,
        now: Time,
    ) -> RunningGroup {
        let places = scenario.places.clone();
        let (id, size) = (spec.id, places.len() as u32);
        let collective = |(number, call): (usize, &CallScenario)| {
            let salt = id * 1_000 + number as u64;
            let CallScenario { operation, root, count, counts, plan, .. } = call;
            let mut collective = match counts {
                Some(counts) => ReferenceCollective::counted(id, size, *operation, *root, counts, salt),
                None => ReferenceCollective::new(id, size, *operation, *root, *count, salt),
            }
            .by(plan);
            match fault {
                Fault::Mismatch { group, rank, call } if (*group, *call) == (index, number) => {
                    collective.requests[*rank as usize] = other(&collective.requests[*rank as usize], size);
                }
                Fault::Senseless { group, call } if (*group, *call) == (index, number) => {
                    for request in &mut collective.requests {
                        (request.operation, request.root) = (Operation::Bcast, NOBODY);
                    }
                }
                _ => {}
            }
            collective
        };
        let collectives: Vec<ReferenceCollective> =
            scenario.calls.iter().enumerate().map(collective).collect();
        let script = |rank: usize| {
            let start = scenario.quick.as_ref().map_or(Duration::ZERO, |quick| quick.starts[rank]);
            Script { made: 0, open: 0, waits_in: None, last: now + start, over: false }
        };
        let room = |message: &MessageScenario| Buffer::new(vec![0xee; message.bytes as usize]);
        RunningGroup {
            tallies: vec![Tally::default(); collectives.len()],
            scripts: (0..places.len()).map(script).collect(),
            rooms: scenario.messages.iter().map(room).collect(),
            scenario: scenario.clone(),
            spec,
            places,
            collectives,
        }
    }

    /// Returns the request of one side of a message.
    pub(super) fn transfer(
        &self,
        number: usize,
        sending: bool,
        timeout: Duration,
    ) -> TransferRequest<Buffer> {
        let MessageScenario { from, to, tag, bytes, .. } = self.scenario.messages[number];
        let (rank, peer) = if sending { (from, to) } else { (to, from) };
        let data = match sending {
            true => Buffer::new(message_bytes(number, bytes)),
            false => self.rooms[number].clone(),
        };
        TransferRequest {
            group: self.spec.id,
            rank,
            kind: if sending { TransferKind::Send } else { TransferKind::Receive },
            id: number as u64,
            peer: Some(peer),
            tag: Some(tag),
            element: ElementType::U8,
            data: Some(data),
            timeout,
        }
    }

    /// Returns whether a message arrived as it was sent.
    pub(super) fn message_arrived(&self, number: usize) -> bool {
        let bytes = self.scenario.messages[number].bytes;
        self.rooms[number].with(|received| *received == message_bytes(number, bytes))
    }
}

/// Returns a call that disagrees with the other ranks: a different root, length or operation.
fn other(request: &CallRequest<Buffer>, size: u32) -> CallRequest<Buffer> {
    let CallRequest { group, rank, operation, root, count, counts, plan, .. } = request;
    let new = |operation, root, count| {
        let collective = ReferenceCollective::new(*group, size, operation, root, count, 0);
        collective.requests[*rank as usize].clone()
    };
    match (rank + *count as u32) % 3 {
        0 if operation.rooted() && counts.is_none() => {
            CallRequest { plan: plan.clone(), ..new(*operation, (root + 1) % size, *count) }
        }
        1 if *operation != Operation::Barrier && counts.is_none() => {
            CallRequest { plan: plan.clone(), ..new(*operation, *root, count + 1) }
        }
        _ if *operation == Operation::Allreduce => new(Operation::Barrier, 0, 0),
        _ => new(Operation::Allreduce, 0, 5),
    }
}
