//! A call that is executed in pieces, because the number of bytes is limited that a rank may send
//! before all ranks have heard from each other. Each piece is a call of the same operation on the
//! same range of every vector or part.

use crate::calls::BeginCall;
use crate::quick_schedule::QuickSchedule;
use cool_types::{ElementType, ReduceOp};
use std::sync::Arc;

/// A call of which one piece is in progress.
#[derive(Debug)]
pub(crate) struct DividedCall {
    number: u64,
    digest: u64,
    /// The schedule of the call, which is also that of its first piece.
    schedule: Arc<QuickSchedule>,
    combining: Option<(ElementType, ReduceOp)>,
    input: Vec<u8>,
    /// Length of the whole call, as in [`cool_types::Call::bytes`].
    bytes: usize,
    /// The number of the piece in progress, and its offset in each vector or part.
    index: u32,
    offset: usize,
}

/// A piece of a call.
#[derive(Debug)]
pub(crate) struct CallPiece {
    /// The number of the piece, from 0.
    pub(crate) index: u32,
    schedule: Arc<QuickSchedule>,
    input: Vec<u8>,
    number: u64,
    digest: u64,
    combining: Option<(ElementType, ReduceOp)>,
}

impl CallPiece {
    /// Returns the piece as a call.
    pub(crate) fn as_call(&self) -> BeginCall<'_> {
        let CallPiece { number, digest, ref schedule, combining, ref input, .. } = *self;
        BeginCall { number, digest, schedule, combining, input }
    }
}

impl DividedCall {
    /// Returns the call, or `None` if it consists of a single piece.
    pub(crate) fn new(begin: &BeginCall<'_>) -> Option<DividedCall> {
        begin.schedule.piece(1)?;
        let BeginCall { number, digest, schedule, combining, input } = begin.clone();
        Some(DividedCall {
            number,
            digest,
            schedule: Arc::clone(schedule),
            combining,
            input: input.to_vec(),
            bytes: schedule.whole_bytes() as usize,
            index: 0,
            offset: 0,
        })
    }

    /// Returns the piece in progress, or `None` if the call is complete.
    pub(crate) fn piece(&self) -> Option<CallPiece> {
        let schedule = Arc::clone(self.schedule.piece(self.index)?);
        let range = self.offset..self.offset + schedule.piece_bytes() as usize;
        let parts = self.input.chunks_exact(self.bytes).map(|part| &part[range.clone()]);
        let input = parts.collect::<Vec<&[u8]>>().concat();
        let DividedCall { number, digest, combining, index, .. } = *self;
        Some(CallPiece { index, schedule, input, number, digest, combining })
    }

    /// Copies the output of the piece in progress to its place in the output of the call, and goes
    /// on to the next piece.
    pub(crate) fn complete_piece(&mut self, piece: &[u8], output: &mut Vec<u8>) {
        let Some(bytes) = self.schedule.piece(self.index).map(|piece| piece.piece_bytes() as usize) else {
            return;
        };
        output.resize(piece.len() / bytes * self.bytes, 0);
        for (part, piece) in output.chunks_exact_mut(self.bytes).zip(piece.chunks_exact(bytes)) {
            part[self.offset..self.offset + bytes].copy_from_slice(piece);
        }
        (self.index, self.offset) = (self.index + 1, self.offset + bytes);
    }
}
