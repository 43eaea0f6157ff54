//! The call in progress, or a piece of it, and its data.

use crate::quick_schedule::{BARRIER_TRANSFER, PIECES_MAX, QuickSchedule};
use crate::{datagram::is_long, message_parts::MessagePart};
use cool_collective::{ProgramProgress, Rank, RankBuffer, Span};
use cool_machine::{Duration, Time};
use cool_types::{ElementType, ReduceOp, combine};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A rank sends a NAK when it has waited this long for a message. It repeats the NAK after the same
/// time, [`PROMPT_NAKS`] times in all because NAKs and retransmissions are lost too, and then
/// doubles the interval up to [`NAK_INTERVAL_MAX`]. The delay is longer than the time for which a
/// busy CPU keeps a rank from running, because most often the sender has not sent the message yet,
/// and a NAK would only wake its agent.
const NAK_DELAY: Duration = Duration::from_millis(20);

/// The delay of the NAK if a later message of the same sender has arrived. It must be longer than
/// the time by which the network delays reordered packets.
const NAK_DELAY_AFTER_GAP: Duration = Duration::from_millis(2);

/// Number of NAKs that are sent at the first interval, before the interval doubles.
const PROMPT_NAKS: u32 = 3;

/// The longest interval between NAKs.
const NAK_INTERVAL_MAX: Duration = Duration::from_millis(320);

/// Marks the transfers of the barrier that precedes a call or a piece of one.
const BARRIER_BIT: u32 = 1 << 31;
/// The first of the bits, below [`BARRIER_BIT`], that contain the number of the piece to which a
/// transfer belongs.
const PIECE_SHIFT: u32 = 22;
const _: () = assert!(BARRIER_TRANSFER < 1 << PIECE_SHIFT);
const _: () = assert!(PIECES_MAX == 1 << (BARRIER_BIT.trailing_zeros() - PIECE_SHIFT));

/// A call that the rank begins.
#[derive(Clone, Debug)]
pub struct BeginCall {
    /// The number of the call in the group.
    pub number: u64,
    /// The digest by which ranks detect that they have made different calls.
    pub digest: u64,
    /// The schedule.
    pub schedule: Arc<QuickSchedule>,
    /// The element type and reduce operation, for operations that combine.
    pub combining: Option<(ElementType, ReduceOp)>,
}

/// The data of a call, in the memory of the caller. It is read and written in place.
#[derive(Debug, Default)]
pub struct CallData<'a> {
    /// The rank's contribution, as long as the call requires. For a bcast, the message at the root.
    pub input: &'a [u8],
    /// Memory for the result, as long as [`QuickSchedule::output_bytes`]. If the call does not
    /// complete, its content is undefined.
    pub output: &'a mut [u8],
}

impl CallData<'_> {
    /// Returns the same data for a shorter time.
    pub fn reborrow(&mut self) -> CallData<'_> {
        CallData { input: self.input, output: self.output }
    }
}

/// The call in progress, or a piece of it, or the barrier before one of these.
#[derive(Debug)]
pub(crate) struct ActiveCall {
    /// The whole call.
    pub(crate) call: BeginCall,
    /// The schedule of this piece.
    pub(crate) schedule: Arc<QuickSchedule>,
    /// The number of the piece, and its offset in each vector or part.
    piece: (u32, usize),
    /// The bits of the piece in all transfers, with [`BARRIER_BIT`] in the barrier before it.
    pub(crate) part: u32,
    pub(crate) progress: ProgramProgress,
    /// Whether the output of the schedule is the input of the caller.
    is_root_of_bcast: bool,
    /// Working memory.
    scratch: Vec<u8>,
    /// The expected messages, by transfer: the receiving action, the sender, and the destination.
    pub(crate) awaited: BTreeMap<u32, (u32, Rank, Span)>,
    pub(crate) nak_at: Time,
    /// Number of intervals that have begun since a message last arrived, without the short one
    /// after a gap. Each ends with a NAK.
    naks_sent: u32,
    /// The call or piece that follows the barrier.
    pub(crate) then: Option<Box<ActiveCall>>,
}

impl ActiveCall {
    /// Returns a call of a rank, or its first piece.
    pub(crate) fn new(call: BeginCall, rank: Rank) -> ActiveCall {
        ActiveCall::piece_at(call, (0, 0), rank)
    }

    fn piece_at(call: BeginCall, piece: (u32, usize), rank: Rank) -> ActiveCall {
        let schedule = Arc::clone(call.schedule.piece(piece.0).unwrap_or(&call.schedule));
        ActiveCall {
            progress: ProgramProgress::new(&schedule.program),
            is_root_of_bcast: schedule.is_root_of_bcast(rank),
            schedule,
            piece,
            part: piece.0 << PIECE_SHIFT,
            scratch: Vec::new(),
            awaited: BTreeMap::new(),
            nak_at: Time::ZERO,
            naks_sent: 0,
            then: None,
            call,
        }
    }

    /// Returns the piece that follows this one, or `None` if the call is complete.
    pub(crate) fn next_piece(&self, rank: Rank) -> Option<ActiveCall> {
        let (index, offset) = self.piece;
        self.call.schedule.piece(index + 1)?;
        let next = (index + 1, offset + self.schedule.piece_bytes() as usize);
        Some(ActiveCall::piece_at(self.call.clone(), next, rank))
    }

    /// Returns the barrier that must complete before this call or piece.
    pub(crate) fn preceded_by(self, barrier: &Arc<QuickSchedule>, rank: Rank) -> ActiveCall {
        let call = BeginCall { schedule: Arc::clone(barrier), combining: None, ..self.call };
        let part = self.part | BARRIER_BIT;
        ActiveCall { part, then: Some(Box::new(self)), ..ActiveCall::new(call, rank) }
    }

    /// Returns the piece together with a barrier, or the piece alone if there is no such schedule.
    /// The piece must not have begun.
    pub(crate) fn with_barrier(mut self) -> ActiveCall {
        if let Some(schedule) = self.call.schedule.piece_with_barrier(self.piece.0) {
            self.progress = ProgramProgress::new(&schedule.program);
            self.schedule = Arc::clone(schedule);
        }
        self
    }

    /// Gives the call its working memory, of which the content may be anything.
    pub(crate) fn set_scratch(&mut self, mut scratch: Vec<u8>) {
        scratch.resize(scratch.len().max(self.schedule.program.scratch as usize), 0);
        self.scratch = scratch;
    }

    /// Returns the working memory of the call, which must be complete or abandoned.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.scratch)
    }

    /// Returns whether a transfer belongs to a barrier, before a piece or at the same time.
    pub(crate) fn is_barrier(transfer: u32) -> bool {
        transfer & (BARRIER_BIT | BARRIER_TRANSFER) != 0
    }

    /// Returns the buffer of a span of the schedule, and its range in the whole buffer. The
    /// schedule of a piece counts from the beginning of the piece in each vector or part, and its
    /// spans do not extend over several of them.
    fn locate(&self, span: Span) -> (RankBuffer, Range<usize>) {
        let start = match span.buffer {
            RankBuffer::Scratch => span.offset,
            RankBuffer::Input | RankBuffer::Output => {
                let (piece, whole) = (self.schedule.piece_bytes(), self.call.schedule.whole_bytes());
                let part = span.offset.checked_div(piece).unwrap_or(0);
                part * whole + self.piece.1 as u64 + (span.offset - part * piece)
            }
        };
        let buffer = match span.buffer {
            RankBuffer::Output if self.is_root_of_bcast => RankBuffer::Input,
            buffer => buffer,
        };
        // No message is longer than a `usize` can count.
        (buffer, start as usize..(start + span.len) as usize)
    }

    /// Returns the bytes of a span.
    pub(crate) fn bytes<'b>(&'b self, data: &'b CallData<'_>, span: Span) -> &'b [u8] {
        let (buffer, range) = self.locate(span);
        match buffer {
            RankBuffer::Input => &data.input[range],
            RankBuffer::Output => &data.output[range],
            RankBuffer::Scratch => &self.scratch[range],
        }
    }

    /// Returns the bytes of a span to be written. No schedule writes the input.
    pub(crate) fn bytes_mut<'b>(&'b mut self, data: &'b mut CallData<'_>, span: Span) -> &'b mut [u8] {
        let (buffer, range) = self.locate(span);
        match buffer {
            RankBuffer::Input => &mut [],
            RankBuffer::Output => &mut data.output[range],
            RankBuffer::Scratch => &mut self.scratch[range],
        }
    }

    pub(crate) fn combine(&mut self, data: &mut CallData<'_>, src: Span, dst: Span) {
        if let Some((element, op)) = self.call.combining {
            self.apply(data, (src, dst), |to, from| combine(element, op, to, from));
        }
    }

    pub(crate) fn copy(&mut self, data: &mut CallData<'_>, src: Span, dst: Span) {
        self.apply(data, (src, dst), <[u8]>::copy_from_slice);
    }

    /// Applies a function to the bytes of the second span and of the first one.
    fn apply(
        &mut self,
        data: &mut CallData<'_>,
        (src, dst): (Span, Span),
        work: impl FnOnce(&mut [u8], &[u8]),
    ) {
        let ((from, source), (to, range)) = (self.locate(src), self.locate(dst));
        let CallData { input, output } = data;
        let (output, scratch) = (&mut **output, &mut self.scratch[..]);
        match (from, to) {
            (_, RankBuffer::Input) => {}
            (RankBuffer::Input, RankBuffer::Output) => work(&mut output[range], &input[source]),
            (RankBuffer::Input, RankBuffer::Scratch) => work(&mut scratch[range], &input[source]),
            (RankBuffer::Output, RankBuffer::Scratch) => work(&mut scratch[range], &output[source]),
            (RankBuffer::Scratch, RankBuffer::Output) => work(&mut output[range], &scratch[source]),
            (RankBuffer::Output, RankBuffer::Output) => within(output, source, range, work),
            (RankBuffer::Scratch, RankBuffer::Scratch) => within(scratch, source, range, work),
        }
    }

    /// Returns the destination of the message to which a part belongs, if the rank waits for it and
    /// the message is long.
    pub(crate) fn destination(&self, part: &MessagePart<'_>) -> Option<Span> {
        let (call, transfer) = part.message_name();
        let (_, from, dst) = self.awaited.get(&transfer).filter(|_| call == self.call.number)?;
        let bytes = part.payload_bytes();
        (from.0 == part.from() && dst.len == bytes as u64 && is_long(bytes)).then_some(*dst)
    }

    /// Records that an awaited message has arrived from a rank. A later message of the same sender
    /// shows that an earlier one is probably lost, unless it belongs to a barrier, which ranks send
    /// when others are ready.
    pub(crate) fn reset_naks(&mut self, now: Time, from: Rank, transfer: u32) {
        let passed =
            |(awaited, (_, sender, _)): (&u32, &(u32, Rank, Span))| *awaited < transfer && *sender == from;
        let has_gap = transfer & BARRIER_TRANSFER == 0 && self.awaited.iter().any(passed);
        let (nak_delay, naks_sent) = if has_gap { (NAK_DELAY_AFTER_GAP, 0) } else { (NAK_DELAY, 1) };
        (self.nak_at, self.naks_sent) = (now + nak_delay, naks_sent);
    }

    /// Sets the time of the next NAK, after an interval that grows with the number of NAKs.
    pub(crate) fn schedule_nak(&mut self, now: Time) {
        // Further doublings would exceed the longest interval.
        let doublings = (self.naks_sent + 1).saturating_sub(PROMPT_NAKS).min(8);
        self.nak_at = now + (NAK_DELAY * (1 << doublings)).min(NAK_INTERVAL_MAX);
        self.naks_sent += 1;
    }
}

/// Applies a function to two ranges of one buffer: the second and the first one.
fn within(bytes: &mut [u8], source: Range<usize>, range: Range<usize>, work: impl FnOnce(&mut [u8], &[u8])) {
    if source.end <= range.start {
        let (low, high) = bytes.split_at_mut(range.start);
        work(&mut high[..range.len()], &low[source]);
    } else if range.end <= source.start {
        let (low, high) = bytes.split_at_mut(source.start);
        work(&mut low[range], &high[..source.len()]);
    } else {
        // The ranges overlap.
        let source = bytes[source].to_vec();
        work(&mut bytes[range], &source);
    }
}
