//! Sequences of frames: two ranks of a group send valid frames in any order, each at any time. The
//! agent must reply to each call at most once and to no call that was not made, close the
//! connections at the latest when the ranks do, and continue to serve another rank.
//!
//! Each step of an input has three bytes: the kind of the frame and its rank, and two arguments.

use crate::hostile_rank::{HostileRank, REGION, allreduce, check_service_of_others};
use cool_proto::frame::{MAX_TO_AGENT, encode};
use cool_proto::local::watched::{Differs, Overdue, StillWaits, Through, What};
use cool_proto::local::{
    Call, Cancel, CheckPlan, Dtype, Leave, Map, Operation, ReduceOp, Revoke, Slice, Transfer, Unmap, Watched,
    frame::Body,
};
use cool_shm::region::Region;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of steps, because every one of them takes a system call.
const MAX_STEPS: usize = 64;

/// Maximum wait of a call in milliseconds, so that calls that never complete do not delay the test.
const TIMEOUT_MS: u64 = 5;

/// The bit of a step of rank 1.
const RANK_1: u8 = 0x80;

/// Kinds of frames.
const KINDS: u8 = 14;

/// Number of identifiers and regions that ranks use, so that sequences reuse them.
const NAMES: u8 = 4;

/// Returns a part of a region that exists unless it was unmapped, or `None` for no bytes.
fn slice(region: u8, part: u8, bytes: u64) -> Option<Slice> {
    let slice = Slice { region: u32::from(region % NAMES), offset: u64::from(part % 8) * 64, bytes };
    Some(slice).filter(|slice| slice.bytes > 0)
}

/// Returns a call of any operation. Its parts consist of one element of four bytes.
fn call(group: u64, rank: usize, a: u8, b: u8) -> Call {
    let operation = Operation::try_from(i32::from(b % 11) + 1).unwrap_or_default();
    let root = b / 11 % 2;
    let at_root = |bytes| if usize::from(root) == rank { bytes } else { 0 };
    let (input, output) = match operation {
        Operation::Bcast => (0, 4),
        Operation::Reduce => (4, at_root(4)),
        Operation::Gather => (4, at_root(8)),
        Operation::Allgather => (4, 8),
        Operation::Scatter => (at_root(8), 4),
        Operation::ReduceScatter => (8, 4),
        Operation::Alltoall => (8, 8),
        Operation::Barrier | Operation::Unspecified => (0, 0),
        Operation::Allreduce | Operation::Scan | Operation::Exscan => (4, 4),
    };
    let combines = matches!(
        operation,
        Operation::Reduce
            | Operation::Allreduce
            | Operation::ReduceScatter
            | Operation::Scan
            | Operation::Exscan
    );
    let reduce = if combines { ReduceOp::Sum } else { ReduceOp::Unspecified };
    Call {
        id: u64::from(a % NAMES),
        operation: operation.into(),
        root: u32::from(root),
        reduce: reduce.into(),
        input: slice(a / NAMES, 0, input),
        output: slice(a / NAMES, 1, output),
        ..allreduce(group)
    }
}

/// Returns the frame of a step.
fn frame(group: u64, rank: usize, [kind, a, b]: [u8; 3]) -> Body {
    let id = u64::from(a % NAMES);
    let (number, is_odd) = (Some(u64::from(b % NAMES)), b % 2 == 1);
    let watched = |what| Body::Watched(Watched { id, what: Some(what) });
    match kind % KINDS {
        0 => Body::Map(Map { region: u32::from(a % NAMES), bytes: REGION }),
        1 => Body::Unmap(Unmap { region: u32::from(a % NAMES) }),
        2 => Body::Call(allreduce(group)),
        3 => Body::Call(call(group, rank, a, b)),
        4 => Body::Call(Call { number, ..call(group, rank, a, b) }),
        5 => Body::Call(Call { number, watch: true, input: None, output: None, ..call(group, rank, a, b) }),
        6 | 7 => Body::Transfer(Transfer {
            id,
            group,
            send: kind % KINDS == 6,
            peer: Some(u32::from(is_odd)).filter(|_| kind % KINDS == 6 || b < 128),
            tag: Some(u32::from(a / NAMES % 2)),
            dtype: Dtype::U8.into(),
            data: slice(a / NAMES / 2, b / 8, 4),
            timeout_ms: 0,
            synchronous: kind % KINDS == 6 && b >= 128,
            probe: if kind % KINDS == 6 { 0 } else { i32::from(b / 8 % 3) },
        }),
        8 => Body::Cancel(Cancel { id }),
        9 => watched(if is_odd { What::Through(Through {}) } else { What::StillWaits(StillWaits {}) }),
        10 if is_odd => watched(What::Overdue(Overdue { ranks: vec![u32::from(b / 2 % 4)], timeout_ms: 1 })),
        10 => watched(What::Differs(Differs { rank: u32::from(b / 2 % 4), text: "barrier".into() })),
        11 => Body::CheckPlan(CheckPlan { operation: i32::from(b % 12), plan: "flat:ring".into() }),
        12 => Body::Revoke(Revoke::default()),
        _ => Body::Leave(Leave {}),
    }
}

/// The replies that a rank may still receive.
#[derive(Default)]
struct OpenReplies {
    calls: BTreeMap<u64, usize>,
    plans: usize,
    /// Number of replies to calls for which the rank must wait before it ends: those that depend on
    /// no further frame.
    certain: usize,
    has_left: bool,
}

impl OpenReplies {
    fn on_sent(&mut self, body: &Body) {
        match body {
            Body::Call(Call { id, .. }) | Body::Transfer(Transfer { id, .. }) => {
                *self.calls.entry(*id).or_default() += 1;
                let depends = self.has_left || matches!(body, Body::Call(call) if call.watch);
                self.certain += usize::from(!depends);
            }
            Body::CheckPlan(_) => self.plans += 1,
            // A rank that leaves receives no further replies.
            Body::Leave(_) => (self.has_left, self.certain) = (true, 0),
            _ => {}
        }
    }

    fn on_received(&mut self, body: &Body) {
        let open = match body {
            Body::Done(done) => {
                self.certain = self.certain.saturating_sub(1);
                self.calls.entry(done.id).or_default()
            }
            Body::PlanChecked(_) => &mut self.plans,
            Body::Running(_) | Body::Refused(_) => return,
            other => panic!("{other:?} is no reply"),
        };
        *open = open.checked_sub(1).unwrap_or_else(|| panic!("{body:?} is one reply too many"));
    }
}

pub(crate) fn check(bytes: &[u8]) {
    replies_to(bytes, TIMEOUT_MS);
    check_service_of_others();
}

/// Executes the steps with this timeout for each call, and returns the replies to both ranks.
fn replies_to(bytes: &[u8], timeout: u64) -> Vec<Body> {
    static SESSIONS: AtomicU64 = AtomicU64::new(0);
    let key = format!("sequence {}", SESSIONS.fetch_add(1, Ordering::Relaxed));
    let mut ranks = [0, 1].map(|rank| (HostileRank::enlist(&key, rank), OpenReplies::default()));
    let groups = ranks.each_mut().map(|(rank, _)| rank.group());
    let region = Region::create(REGION).expect("memory");
    for step in bytes.as_chunks::<3>().0.iter().take(MAX_STEPS) {
        let [kind, a, b] = *step;
        let at = usize::from(kind / RANK_1);
        let mut body = frame(groups[at], at, [kind % RANK_1, a, b]);
        if let Body::Call(Call { timeout_ms, .. }) | Body::Transfer(Transfer { timeout_ms, .. }) = &mut body {
            *timeout_ms = timeout;
        }
        let (rank, replies) = &mut ranks[at];
        replies.on_sent(&body);
        let shared = matches!(body, Body::Map(_)).then_some(&region);
        rank.send(&encode(body, MAX_TO_AGENT).expect("a short frame"), shared);
    }
    let mut received = Vec::new();
    for (rank, replies) in &mut ranks {
        while replies.certain > 0
            && let Some(body) = rank.receive_frame()
        {
            replies.on_received(&body);
            received.push(body);
        }
        rank.end();
    }
    for (mut rank, mut replies) in ranks {
        for body in std::iter::from_fn(|| rank.receive_frame()) {
            replies.on_received(&body);
            received.push(body);
        }
    }
    received
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let by_both = |steps: &[[u8; 3]]| -> Vec<u8> {
        steps.iter().flat_map(|[kind, a, b]| [*kind, *a, *b, kind | RANK_1, *a, *b]).collect()
    };
    vec![
        // Several operations. The number of the last one was used already.
        by_both(&[[0, 0, 0], [2, 0, 0], [3, 1, 0], [3, 2, 2], [3, 0, 1], [3, 1, 4], [4, 2, 3]]),
        // Watched calls: one that both complete, one that is overdue, and one that differs.
        by_both(&[[0, 0, 0], [5, 0, 0], [9, 0, 1], [5, 1, 1], [10, 1, 1], [5, 2, 2], [10, 2, 0], [13, 0, 0]]),
        // Messages: sent before and after their receives, probed, and canceled.
        by_both(&[[0, 0, 0], [6, 0, 1], [7, 1, 0], [7, 2, 8], [8, 2, 0], [6, 3, 129], [7, 4, 128]]),
        // Regions that are replaced and freed under calls.
        by_both(&[[0, 0, 0], [2, 0, 0], [1, 0, 0], [0, 0, 0], [2, 0, 0], [1, 0, 0], [2, 0, 0]]),
        by_both(&[[0, 0, 0], [11, 0, 3], [12, 0, 0], [2, 0, 0], [8, 0, 0], [13, 0, 0], [2, 0, 0]]),
        // One rank leaves or ends while the other waits.
        [by_both(&[[0, 0, 0]]), vec![2, 0, 0, 13 | RANK_1, 0, 0, 7, 1, 1]].concat(),
    ]
}

/// Checks that the seeds are valid, because otherwise their mutations would only be refused.
#[test]
fn the_calls_and_messages_of_seeds_are_executed() {
    use crate::hostile_rank::PATIENCE;

    // The collectives all complete, but some of the messages must time out.
    for (seed, timeout) in [(0, PATIENCE.as_millis() as u64), (2, TIMEOUT_MS)] {
        let received = replies_to(&seeds()[seed], timeout);
        assert!(
            received.iter().any(|body| matches!(body, Body::Done(done) if done.failure.is_none())),
            "{received:?}"
        );
    }
}

// Each input needs many round trips.
target!(500);
