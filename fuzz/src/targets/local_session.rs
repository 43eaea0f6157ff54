//! The session of a process with its agent, by socket and by shared memory: two ranks of a group
//! send arbitrary frames, with arbitrary contents of their memory, and change it in the meantime.
//! The agent must answer, close the connection at the latest when the ranks do, and continue to
//! serve another rank.

use crate::hostile_rank::{HostileRank, REGION, check_service_of_others};
use cool_proto::frame::{Decoder, MAX_TO_AGENT, encode};
use cool_proto::local::frame::Body;
use cool_shm::region::Region;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum wait for a message in milliseconds, so that a message that is never sent does not delay
/// the test.
const TIMEOUT_MS: u64 = 5;

/// Fills in values that a fuzzer cannot know: the number of the group where the bytes contain 0,
/// and short timeouts. Bytes from the first invalid frame on stay unchanged. Returns the bytes, and
/// the number of calls that must be answered.
fn fill_in(bytes: &[u8], group: u64) -> (Vec<u8>, usize) {
    let (mut decoder, mut out) = (Decoder::new(MAX_TO_AGENT), Vec::new());
    decoder.push(bytes);
    let (mut frames, mut calls, mut left) = (0, 0, false);
    while let Ok(Some(mut body)) = decoder.take() {
        frames += 1;
        // It is answered only when its rank or another one causes an event.
        let watched = matches!(&body, Body::Call(call) if call.watch);
        let parts = match &mut body {
            Body::Call(call) => Some((&mut call.group, &mut call.timeout_ms)),
            Body::Transfer(transfer) => Some((&mut transfer.group, &mut transfer.timeout_ms)),
            _ => None,
        };
        if let Some((its_group, timeout)) = parts {
            *its_group = if *its_group == 0 { group } else { *its_group };
            *timeout = TIMEOUT_MS;
            calls += usize::from(!left && !watched);
        }
        // A rank that leaves receives no further answers.
        left |= matches!(body, Body::Leave(_));
        // With other numbers the frame may be too long; then it is not sent.
        out.extend(encode(body, MAX_TO_AGENT).unwrap_or_default());
    }
    out.extend_from_slice(skip_frames(bytes, frames));
    (out, if left { 0 } else { calls })
}

/// Returns the bytes after the first `frames` frames.
fn skip_frames(mut bytes: &[u8], frames: usize) -> &[u8] {
    for _ in 0..frames {
        let Some((length, rest)) = bytes.split_first_chunk() else { return bytes };
        bytes = rest.get(u32::from_be_bytes(*length) as usize..).unwrap_or_default();
    }
    bytes
}

pub(crate) fn check(bytes: &[u8]) {
    received_by_hostile_ranks(bytes);
    check_service_of_others();
}

/// Sends the bytes as two ranks, and changes their memory in the meantime. Returns the frames that
/// the agent sends until it closes the connection.
fn received_by_hostile_ranks(bytes: &[u8]) -> Vec<Body> {
    static SESSIONS: AtomicU64 = AtomicU64::new(0);
    let key = format!("hostile {}", SESSIONS.fetch_add(1, Ordering::Relaxed));
    let mut ranks = [0, 1].map(|rank| HostileRank::enlist(&key, rank));
    let region = Region::create(REGION).expect("memory");
    let mut garbage: Vec<u8> = bytes.iter().copied().cycle().take(REGION as usize).collect();
    region.copy_in(0, &garbage).expect("room");
    let sent = ranks.each_mut().map(|rank| {
        let (bytes, calls) = fill_in(bytes, rank.group());
        rank.send(&bytes, Some(&region));
        calls
    });
    garbage.reverse();
    region.copy_in(0, &garbage).expect("room");
    let mut received = Vec::new();
    for (rank, mut calls) in ranks.iter_mut().zip(sent) {
        while calls > 0
            && let Some(body) = rank.receive_frame()
        {
            calls -= usize::from(matches!(body, Body::Done(_)));
            received.push(body);
        }
        rank.end();
    }
    for mut rank in ranks {
        received.extend(std::iter::from_fn(|| rank.receive_frame()));
    }
    received
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use crate::hostile_rank::allreduce;
    use cool_proto::local::watched::{Differs, Overdue, Through, What};
    use cool_proto::local::{Attach, Call, CheckPlan, Dtype, Leave, Map, Operation, ReduceOp, Revoke};
    use cool_proto::local::{Slice, Transfer, Unmap, Watched};

    let session = |frames: Vec<Body>| -> Vec<u8> {
        let map = Body::Map(Map { region: 0, bytes: REGION });
        let frames = std::iter::once(map).chain(frames);
        frames.flat_map(|body| encode(body, MAX_TO_AGENT).unwrap()).collect()
    };
    let slice = |offset, bytes| Some(Slice { region: 0, offset, bytes });
    let call = |operation: Operation| Call { operation: operation.into(), ..allreduce(0) };
    let reduction = Call { count: 64, input: slice(0, 256), output: slice(512, 256), ..allreduce(0) };
    let bcast = Call { input: None, reduce: 0, ..call(Operation::Bcast) };
    let gather = Call { counts: slice(1024, 16), count: 0, reduce: 0, ..call(Operation::Allgather) };
    let alltoall = Call { counts: slice(1024, 32), count: 0, reduce: 0, ..call(Operation::Alltoall) };
    let planned = Call { plan: "flat:ring".into(), ..allreduce(0) };
    let numbered = |number| Call { number: Some(number), ..allreduce(0) };
    let watch =
        |id, number| Body::Call(Call { id, watch: true, input: None, output: None, ..numbered(number) });
    let watched = |id, what| Body::Watched(Watched { id, what: Some(what) });
    let overdue = What::Overdue(Overdue { ranks: vec![0, 1], timeout_ms: 1 });
    let differs = What::Differs(Differs { rank: 1, text: "barrier".into() });
    let message = |send, peer| {
        let dtype = Dtype::U8.into();
        Body::Transfer(Transfer {
            send,
            peer: Some(peer),
            tag: Some(7),
            dtype,
            data: slice(0, 8),
            ..Transfer::default()
        })
    };
    vec![
        session(vec![
            Body::Call(reduction.clone()),
            Body::Call(bcast.clone()),
            Body::Unmap(Unmap { region: 0 }),
        ]),
        session(vec![Body::Call(gather), Body::Call(alltoall)]),
        session(vec![
            Body::Call(planned),
            Body::Call(call(Operation::Scan)),
            Body::Call(call(Operation::ReduceScatter)),
        ]),
        session(vec![message(true, 0), message(true, 1), message(false, 0), message(false, 1)]),
        session(vec![
            Body::CheckPlan(CheckPlan { operation: Operation::Reduce.into(), plan: "cool-p-p".into() }),
            Body::Call(Call { dtype: Dtype::F64Loc.into(), reduce: ReduceOp::MinLoc.into(), ..reduction }),
            Body::Revoke(Revoke::default()),
            Body::Call(bcast),
            Body::Leave(Leave {}),
        ]),
        session(vec![
            watch(8, 4),
            watched(8, What::Through(Through {})),
            Body::Call(numbered(7)),
            watch(9, 9),
            watched(9, overdue),
        ]),
        session(vec![watch(8, 4), watched(8, differs), Body::Call(numbered(4)), Body::Leave(Leave {})]),
        session(vec![Body::Attach(Attach { version: cool_proto::VERSION, group: 1, ..Attach::default() })]),
    ]
}

/// Checks that the seeds are valid, because otherwise their mutations would only be refused.
#[test]
fn the_calls_and_messages_of_seeds_are_executed() {
    for session in [0, 3, 5] {
        let received = received_by_hostile_ranks(&seeds()[session]);
        assert!(
            received.iter().any(|body| matches!(body, Body::Done(done) if done.failure.is_none())),
            "{received:?}"
        );
    }
}

// Each input needs several round trips.
target!(2_000);
