//! The publications of each operation. All reductions combine in rank order, so that all ranks get
//! the same bits.

use super::direct::{Pull, pull};
use super::exchange::{Exchange, FlowStep, PublicationFlow};
use super::{Interrupted, PeerWait};
use crate::call::CallBuffers;
use crate::{Op, Operation, Type};
use cool_shm::pages::OutOfBounds;
use cool_shm::segment::{SLOT_BYTES, SegmentRing};
use cool_types::{Call, Rank, combine};
use std::ops::Range;

/// Maximum length of vectors that every receiver combines completely, in bytes. Distributing shares
/// takes longer for such vectors.
const WHOLE_BYTES: u64 = 2048;

/// Maximum length of parts that are copied through the segment, in bytes. Direct copies must wait
/// for the slowest receiver, which takes longer for short parts.
const SEGMENT_COPY_MAX_BYTES: u64 = 32 << 10;

/// Number of bytes that are combined at a time, so that they stay in the first-level cache.
const BLOCK_BYTES: usize = 8 << 10;

/// Element type and operation of a reduction.
pub(super) type CombineRule = (Type, Op);

/// Executes an operation. `direct` selects direct copies, for calls that [`pulls`] and ranks that
/// can read each other's memory. Returns how many publications of each ring were used, which is the
/// same at all ranks.
pub(super) fn execute_operation<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    call: &Call,
    combining: Option<CombineRule>,
    direct: bool,
    buffers: &mut CallBuffers<'_>,
) -> Result<[u64; 2], Interrupted<W::Error>> {
    let given = |chunks| [chunks, 0];
    match (call.operation, combining) {
        (Operation::Barrier, _) => barrier(exchange).map(given),
        (Operation::Bcast, _) => {
            spread(exchange, (call.root.0 as usize, true), call.bytes, buffers).map(given)
        }
        (Operation::Gather | Operation::Allgather, _) => collect(exchange, call, buffers).map(given),
        (Operation::Scatter, _) => scatter(exchange, call, direct, buffers).map(given),
        (Operation::Alltoall, _) => alltoall(exchange, call, direct, buffers).map(given),
        (Operation::ReduceScatter, Some(combining)) => {
            reduce_scatter(exchange, call, combining, buffers).map(given)
        }
        (Operation::Scan | Operation::Exscan, Some(combining)) => {
            prefix(exchange, call, combining, buffers).map(given)
        }
        (Operation::Reduce | Operation::Allreduce, Some(combining)) if call.bytes <= WHOLE_BYTES => {
            reduce_whole(exchange, call, combining, buffers).map(given)
        }
        (Operation::Reduce | Operation::Allreduce, Some(combining)) => {
            reduce_shared(exchange, call, combining, buffers)
        }
        // Cannot happen, because arguments were checked: reductions have an operation and a type.
        (Operation::ReduceScatter | Operation::Scan | Operation::Exscan, None)
        | (Operation::Reduce | Operation::Allreduce, None) => Err(Interrupted::Fallback),
    }
}

/// Returns whether direct copies suit a call, which must be a scatter or alltoall with long parts.
pub(super) fn pulls(call: &Call) -> bool {
    matches!(call.operation, Operation::Scatter | Operation::Alltoall)
        && call.longest() > SEGMENT_COPY_MAX_BYTES
}

/// Returns the number of publications for `bytes` bytes, which is at least 1.
fn chunks(bytes: u64, each: usize) -> u64 {
    bytes.div_ceil(each as u64).max(1)
}

/// Returns the byte range of a publication, if each contains `each` of `bytes` bytes.
fn chunk(bytes: u64, each: usize, number: u64) -> Range<usize> {
    let start = (number as usize * each).min(bytes as usize);
    start..(start + each).min(bytes as usize)
}

fn moved(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

fn all(_: usize, _: u64) -> bool {
    true
}

fn barrier<W: PeerWait>(exchange: &mut Exchange<'_, W>) -> Result<u64, Interrupted<W::Error>> {
    let flow = PublicationFlow { chunks: 1, publishes: true, sources: 0..exchange.size, has: &all };
    exchange.flow(&flow, |_, _| Ok(()))?;
    Ok(1)
}

/// Distributes bytes of rank `from` to the ranks that receive them. `takes` states whether this
/// rank is one of them. Returns the number of publications.
pub(super) fn spread<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    (from, takes): (usize, bool),
    bytes: u64,
    buffers: &mut CallBuffers<'_>,
) -> Result<u64, Interrupted<W::Error>> {
    let chunks = chunks(bytes, SLOT_BYTES);
    let publishes = exchange.rank == from;
    let sources = if publishes || !takes { 0..0 } else { from..from + 1 };
    exchange.flow(
        &PublicationFlow { chunks, publishes, sources, has: &all },
        |exchange, step| match step {
            FlowStep::Write(k) => {
                let bytes = buffers.input(chunk(bytes, SLOT_BYTES, k));
                exchange.write(k, 0, bytes)
            }
            FlowStep::Take(from, k) => exchange.read(from, k, 0, buffers.output(chunk(bytes, SLOT_BYTES, k))),
            FlowStep::Complete(_) => Ok(()),
        },
    )?;
    Ok(chunks)
}

/// Executes gather and allgather.
fn collect<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    call: &Call,
    buffers: &mut CallBuffers<'_>,
) -> Result<u64, Interrupted<W::Error>> {
    let (me, size) = (exchange.rank, exchange.size);
    let part = |rank: usize| call.part(Rank(rank as u32));
    let chunks = chunks(call.longest(), SLOT_BYTES);
    let receives = call.operation == Operation::Allgather || me == call.root.0 as usize;
    let starts: Vec<usize> = starts((0..size).map(part));
    if receives {
        buffers.keep(0..part(me) as usize, starts[me]);
    }
    let has = |rank, k| k * (SLOT_BYTES as u64) < part(rank);
    let sources = if receives { 0..size } else { 0..0 };
    exchange.flow(&PublicationFlow { chunks, publishes: true, sources, has: &has }, |exchange, step| {
        match step {
            FlowStep::Write(k) => exchange.write(k, 0, buffers.input(chunk(part(me), SLOT_BYTES, k))),
            FlowStep::Take(from, k) => {
                let range = moved(chunk(part(from), SLOT_BYTES, k), starts[from]);
                exchange.read(from, k, 0, buffers.output(range))
            }
            FlowStep::Complete(_) => Ok(()),
        }
    })?;
    Ok(chunks)
}

/// Returns the offsets of consecutive parts.
fn starts(parts: impl Iterator<Item = u64>) -> Vec<usize> {
    let next = |next: &mut usize, bytes: u64| {
        let start = *next;
        *next += bytes as usize;
        Some(start)
    };
    parts.scan(0, next).collect()
}

/// Returns the size in bytes of each of `size` places of a publication, which is a multiple of the
/// element size.
fn place(call: &Call, size: usize) -> usize {
    let element = call.element.max(1) as usize;
    SLOT_BYTES / size / element * element
}

fn scatter<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    call: &Call,
    direct: bool,
    buffers: &mut CallBuffers<'_>,
) -> Result<u64, Interrupted<W::Error>> {
    let (me, size, root) = (exchange.rank, exchange.size, call.root.0 as usize);
    let part = |rank: usize| call.part(Rank(rank as u32));
    let starts = starts((0..size).map(part));
    let publishes = me == root;
    if publishes {
        buffers.keep(starts[me]..starts[me] + part(me) as usize, 0);
    }
    let sources = if publishes { 0..0 } else { root..root + 1 };
    let place = place(call, size);
    let chunks = chunks(call.longest(), place);
    let mut first = 0;
    if direct {
        first = 1;
        let own = |_| (starts[me], 0..part(me) as usize);
        let has_copied =
            pull(exchange, &Pull { gives: publishes, sources: sources.clone(), part: &own }, buffers)?;
        let is_complete = if publishes { !any_requires_slots(exchange) } else { has_copied };
        if is_complete {
            return Ok(first + chunks);
        }
    }
    exchange.after(first).flow(
        &PublicationFlow { chunks, publishes, sources, has: &all },
        |exchange, step| match step {
            FlowStep::Write(k) => write_places(exchange, k, place, (&part, &starts), buffers),
            FlowStep::Take(from, k) => {
                exchange.read(from, k, me * place, buffers.output(chunk(part(me), place, k)))
            }
            FlowStep::Complete(_) => Ok(()),
        },
    )?;
    Ok(first + chunks)
}

/// Returns whether a rank could not copy the memory of others in this call, so that they publish
/// their data in slots. All other ranks must have released the addresses.
fn any_requires_slots<W: PeerWait>(exchange: &Exchange<'_, W>) -> bool {
    (0..exchange.size).any(|rank| exchange.part(rank).requires_slots(exchange.call))
}

fn alltoall<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    call: &Call,
    direct: bool,
    buffers: &mut CallBuffers<'_>,
) -> Result<u64, Interrupted<W::Error>> {
    let (me, size) = (exchange.rank, exchange.size);
    let block = |from, to| call.block(from, to, size);
    let (out, into) =
        (starts((0..size).map(|to| block(me, to))), starts((0..size).map(|from| block(from, me))));
    if direct || call.counts.is_some() {
        // The output is written while other ranks read the input, or received parts have other
        // offsets than sent ones.
        buffers.set_input_apart();
    }
    let place = place(call, size);
    let chunks = chunks(call.longest(), place);
    let first = if direct {
        let start = |from| (0..me).map(|to| block(from, to) as usize).sum();
        let part = |from| (start(from), into[from]..into[from] + block(from, me) as usize);
        pull(exchange, &Pull { gives: true, sources: 0..size, part: &part }, buffers)?;
        1
    } else {
        0
    };
    if !direct || any_requires_slots(exchange) {
        let mut slots = exchange.after(first);
        let flow = PublicationFlow { chunks, publishes: true, sources: 0..size, has: &all };
        slots.flow(&flow, |exchange, step| match step {
            FlowStep::Write(k) => write_places(exchange, k, place, (&|to| block(me, to), &out), buffers),
            FlowStep::Take(from, k) => {
                let range = moved(chunk(block(from, me), place, k), into[from]);
                exchange.read(from, k, me * place, buffers.output(range))
            }
            FlowStep::Complete(_) => Ok(()),
        })?;
    }
    // Not before all ranks take part in the call: otherwise the agents may have to execute it, and
    // need the whole input.
    buffers.keep(out[me]..out[me] + block(me, me) as usize, into[me]);
    Ok(first + chunks)
}

fn reduce_scatter<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    call: &Call,
    combining: CombineRule,
    buffers: &mut CallBuffers<'_>,
) -> Result<u64, Interrupted<W::Error>> {
    let (me, size) = (exchange.rank, exchange.size);
    let part = |rank: usize| call.part(Rank(rank as u32));
    let place = place(call, size);
    let chunks = chunks(call.longest(), place);
    let starts = starts((0..size).map(part));
    // The result may overwrite parts of the input that are yet to be sent.
    buffers.set_input_apart();
    let mut sum = Vec::new();
    let flow = PublicationFlow { chunks, publishes: true, sources: 0..size, has: &all };
    exchange.flow(&flow, |exchange, step| match step {
        FlowStep::Write(k) => write_places(exchange, k, place, (&part, &starts), buffers),
        FlowStep::Take(..) => Ok(()),
        FlowStep::Complete(k) => {
            let range = chunk(part(me), place, k);
            sum.resize(range.len(), 0);
            let own = buffers.input(moved(range.clone(), starts[me]));
            fold(exchange, 0..size, (k, me * place), own, combining, &mut sum)?;
            buffers.output(range).copy_from_slice(&sum);
            Ok(())
        }
    })?;
    Ok(chunks)
}

/// Executes scan and exscan.
fn prefix<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    call: &Call,
    combining: CombineRule,
    buffers: &mut CallBuffers<'_>,
) -> Result<u64, Interrupted<W::Error>> {
    let (me, chunks) = (exchange.rank, chunks(call.bytes, SLOT_BYTES));
    let operands = if call.operation == Operation::Scan { 0..me + 1 } else { 0..me };
    let mut sum = Vec::new();
    // The first publication of all ranks is awaited, because a rank that completes before others
    // have begun could run ahead of them.
    let has = |rank: usize, k: u64| k == 0 || rank < me;
    let flow = PublicationFlow { chunks, publishes: true, sources: 0..exchange.size, has: &has };
    exchange.flow(&flow, |exchange, step| match step {
        FlowStep::Write(k) => exchange.write(k, 0, buffers.input(chunk(call.bytes, SLOT_BYTES, k))),
        FlowStep::Take(..) => Ok(()),
        FlowStep::Complete(_) if operands.is_empty() => Ok(()),
        FlowStep::Complete(k) => {
            let range = chunk(call.bytes, SLOT_BYTES, k);
            sum.resize(range.len(), 0);
            fold(exchange, operands.clone(), (k, 0), buffers.input(range.clone()), combining, &mut sum)?;
            buffers.output(range).copy_from_slice(&sum);
            Ok(())
        }
    })?;
    Ok(chunks)
}

/// Reduces short vectors: every receiver combines all of them.
fn reduce_whole<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    call: &Call,
    combining: CombineRule,
    buffers: &mut CallBuffers<'_>,
) -> Result<u64, Interrupted<W::Error>> {
    let size = exchange.size;
    let receives = call.operation == Operation::Allreduce || exchange.rank == call.root.0 as usize;
    let range = 0..call.bytes as usize;
    let mut sum = vec![0; range.len()];
    let sources = if receives { 0..size } else { 0..0 };
    let flow = PublicationFlow { chunks: 1, publishes: true, sources, has: &all };
    exchange.flow(&flow, |exchange, step| match step {
        FlowStep::Write(k) => exchange.write(k, 0, buffers.input(range.clone())),
        FlowStep::Take(..) => Ok(()),
        FlowStep::Complete(k) => {
            fold(exchange, 0..size, (k, 0), buffers.input(range.clone()), combining, &mut sum)?;
            buffers.output(range.clone()).copy_from_slice(&sum);
            Ok(())
        }
    })?;
    Ok(1)
}

/// Reduces long vectors: each rank combines its share of each publication, and the receivers
/// collect the shares.
fn reduce_shared<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    call: &Call,
    combining: CombineRule,
    buffers: &mut CallBuffers<'_>,
) -> Result<[u64; 2], Interrupted<W::Error>> {
    let (me, size) = (exchange.rank, exchange.size);
    let chunks = chunks(call.bytes, SLOT_BYTES);
    let share = |k, rank: usize| share(call, chunk(call.bytes, SLOT_BYTES, k), rank, size);
    let receives = call.operation == Operation::Allreduce || me == call.root.0 as usize;
    let (mut given, mut made, mut taken) = (0, 0, if receives { 0 } else { chunks });
    if !receives {
        exchange.release(SegmentRing::Results, chunks - 1);
    }
    let mut sum = Vec::new();
    while given < chunks || made < chunks || taken < chunks {
        while given < chunks && exchange.occupies(SegmentRing::Inputs, given).is_none() {
            exchange.write(given, 0, buffers.input(chunk(call.bytes, SLOT_BYTES, given)))?;
            exchange.publish(SegmentRing::Inputs, given);
            given += 1;
        }
        let missing = (made < given).then(|| exchange.first_missing(SegmentRing::Inputs, made, 0..size));
        let full = exchange.occupies(SegmentRing::Results, made).filter(|_| made < chunks);
        if missing == Some(None) && full.is_none() {
            if made == 0 {
                exchange.compare(0..size)?;
            }
            exchange
                .others(0..size)
                .try_for_each(|from| exchange.check_call(SegmentRing::Inputs, made, from))?;
            let range = share(made, me);
            let start = range.start - chunk(call.bytes, SLOT_BYTES, made).start;
            sum.resize(range.len(), 0);
            fold(exchange, 0..size, (made, start), buffers.input(range.clone()), combining, &mut sum)?;
            exchange.part(me).write(
                (SegmentRing::Results, exchange.number(SegmentRing::Results, made)),
                0,
                &sum,
            )?;
            if receives {
                buffers.output(range).copy_from_slice(&sum);
            }
            exchange.release(SegmentRing::Inputs, made);
            exchange.publish(SegmentRing::Results, made);
            made += 1;
        } else if taken < made {
            match exchange.first_missing(SegmentRing::Results, taken, 0..size) {
                Some(on) => exchange.wait_for(SegmentRing::Results, taken, on)?,
                None => {
                    for from in (0..size).filter(|from| *from != me) {
                        exchange.check_call(SegmentRing::Results, taken, from)?;
                        let number = exchange.number(SegmentRing::Results, taken);
                        exchange.part(from).read(
                            (SegmentRing::Results, number),
                            0,
                            buffers.output(share(taken, from)),
                        )?;
                    }
                    exchange.release(SegmentRing::Results, taken);
                    taken += 1;
                }
            }
        } else if let Some(Some(on)) = missing {
            exchange.wait_for(SegmentRing::Inputs, made, on)?;
        } else if let Some(on) = full {
            exchange.wait_for_room(SegmentRing::Results, made, on)?;
        } else if let Some(on) = exchange.occupies(SegmentRing::Inputs, given).filter(|_| given < chunks) {
            exchange.wait_for_room(SegmentRing::Inputs, given, on)?;
        }
    }
    Ok([chunks, chunks])
}

/// Returns a rank's share of a byte range, in whole elements.
fn share(call: &Call, bytes: Range<usize>, rank: usize, size: usize) -> Range<usize> {
    let element = call.element.max(1) as usize;
    let elements = bytes.len() / element;
    let at = |rank: usize| bytes.start + elements * rank / size * element;
    at(rank)..at(rank + 1)
}

/// Fills a publication with data for the other ranks, each at its own place. `lengths` and `starts`
/// locate the data in the input.
fn write_places<W: PeerWait>(
    exchange: &Exchange<'_, W>,
    publication: u64,
    place: usize,
    (lengths, starts): (&dyn Fn(usize) -> u64, &[usize]),
    buffers: &CallBuffers<'_>,
) -> Result<(), OutOfBounds> {
    (0..exchange.size).filter(|to| *to != exchange.rank).try_for_each(|to| {
        let range = moved(chunk(lengths(to), place, publication), starts[to]);
        exchange.write(publication, to * place, buffers.input(range))
    })
}

/// Combines the data of `operands` at an offset of a publication, in rank order, into `sum`. `own`
/// is this rank's data.
fn fold<W: PeerWait>(
    exchange: &Exchange<'_, W>,
    operands: Range<usize>,
    (publication, offset): (u64, usize),
    own: &[u8],
    (dtype, op): CombineRule,
    sum: &mut [u8],
) -> Result<(), OutOfBounds> {
    let mut copied = [0; BLOCK_BYTES];
    for (number, sum) in sum.chunks_mut(BLOCK_BYTES).enumerate() {
        let (start, first) = (number * BLOCK_BYTES, operands.start);
        for rank in operands.clone() {
            if rank == exchange.rank {
                let own = &own[start..start + sum.len()];
                if rank == first { sum.copy_from_slice(own) } else { combine(dtype, op, sum, own) }
            } else if rank == first {
                exchange.read(rank, publication, offset + start, sum)?;
            } else {
                let copied = &mut copied[..sum.len()];
                exchange.read(rank, publication, offset + start, copied)?;
                combine(dtype, op, sum, copied);
            }
        }
    }
    Ok(())
}
