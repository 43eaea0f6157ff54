//! A collective call that all ranks of a group make alike, and its validation.

use crate::limits::ARRAY_BYTES;
use crate::{CallError, ElementType, Operation, Rank, ReduceOp};
use core::ops::Range;
use std::sync::Arc;

/// A collective call as all ranks of the group must make it. Agents compare the calls of their
/// ranks before they start, because only equal calls compile to equal schedules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The operation.
    pub operation: Operation,
    /// The source or destination, if the operation is [rooted](Operation::rooted).
    pub root: Rank,
    /// Bytes of the message of a bcast, of the vector of a reduction or scan, or of one rank's
    /// part. Ignored for a barrier.
    pub bytes: u64,
    /// Bytes of one element. `bytes` must be a multiple of it, and no message splits an element.
    pub element: u32,
    /// For parts of different lengths (the v-forms of MPI): the bytes of each rank's part in rank
    /// order, instead of `bytes`. For an alltoall, the lengths from rank 0 to each rank, then those
    /// from rank 1, and so on.
    pub counts: Option<Arc<[u64]>>,
}

impl Call {
    /// Returns a call in which all parts, if there are any, have `bytes` bytes.
    pub fn new(operation: Operation, root: Rank, bytes: u64, element: u32) -> Call {
        Call { operation, root, bytes, element, counts: None }
    }

    /// Returns the same call with the lengths of the parts in bytes; see [`Call::counts`].
    pub fn with_counts(self, counts: impl Into<Arc<[u64]>>) -> Call {
        Call { counts: Some(counts.into()), ..self }
    }

    /// Returns the number of counts that a call of `operation` must have in a group of `size`
    /// ranks.
    ///
    /// # Errors
    /// Returns [`CallError::NoParts`] if the operation accepts no counts, and
    /// [`CallError::TooLarge`] if their number overflows.
    pub fn counts_needed(operation: Operation, size: usize) -> Result<usize, CallError> {
        match operation {
            Operation::Alltoall => size.checked_mul(size).ok_or(CallError::TooLarge),
            operation if operation.takes_counts() => Ok(size),
            _ => Err(CallError::NoParts),
        }
    }

    /// Checks that the call is valid for a group of `size` ranks. A caller must do this before it
    /// uses any other method with a rank or a size as argument, because those do not check again.
    ///
    /// # Errors
    /// Returns the first rule that the call breaks.
    pub fn check(&self, size: usize) -> Result<(), CallError> {
        if self.root.0 as usize >= size {
            return Err(CallError::Root { root: self.root, size });
        }
        if let Some(counts) = &self.counts {
            let (given, wanted) = (counts.len(), Call::counts_needed(self.operation, size)?);
            if given != wanted {
                return Err(CallError::Counts { given, wanted, size });
            }
        }
        let element = self.element;
        let whole = |bytes: &u64| element > 0 && bytes.is_multiple_of(u64::from(element));
        if let Some(bytes) = self.lengths().iter().copied().find(|bytes| !whole(bytes)) {
            return Err(CallError::Element { bytes, element });
        }
        match self.all_bytes(size) {
            Some(bytes) if bytes <= ARRAY_BYTES => Ok(()),
            _ => Err(CallError::TooLarge),
        }
    }

    /// Checks that a rank's buffers are long enough for a call that was checked for `size` ranks.
    /// `input` and `output` are their lengths in bytes.
    ///
    /// # Errors
    /// Returns [`CallError::Buffer`] if a buffer is too short.
    pub fn check_buffers(&self, rank: Rank, size: usize, input: u64, output: u64) -> Result<(), CallError> {
        let needed = [self.input_bytes(rank, size), self.output_bytes(rank, size)];
        for ((name, given), needed) in [("input", input), ("output", output)].into_iter().zip(needed) {
            if given < needed {
                return Err(CallError::Buffer { name, given, needed });
            }
        }
        Ok(())
    }

    /// Returns the bytes of the input of `rank` in a group of `size` ranks. The call must have been
    /// [checked](Call::check) for this size.
    pub fn input_bytes(&self, rank: Rank, size: usize) -> u64 {
        match self.operation {
            Operation::Bcast | Operation::Barrier => 0,
            Operation::Reduce | Operation::Allreduce | Operation::Scan | Operation::Exscan => self.bytes,
            Operation::Gather | Operation::Allgather => self.part(rank),
            Operation::Scatter if rank == self.root => self.parts(0..size),
            Operation::Scatter => 0,
            Operation::ReduceScatter => self.parts(0..size),
            Operation::Alltoall => sum((0..size).map(|to| self.block(rank.0 as usize, to, size))),
        }
    }

    /// Returns the bytes of the output of `rank` in a group of `size` ranks, like
    /// [`Call::input_bytes`].
    pub fn output_bytes(&self, rank: Rank, size: usize) -> u64 {
        match self.operation {
            Operation::Bcast | Operation::Allreduce | Operation::Scan => self.bytes,
            Operation::Exscan if rank.0 > 0 => self.bytes,
            Operation::Reduce if rank == self.root => self.bytes,
            Operation::Barrier | Operation::Exscan | Operation::Reduce => 0,
            Operation::Scatter | Operation::ReduceScatter => self.part(rank),
            Operation::Allgather => self.parts(0..size),
            Operation::Gather if rank == self.root => self.parts(0..size),
            Operation::Gather => 0,
            Operation::Alltoall => sum((0..size).map(|from| self.block(from, rank.0 as usize, size))),
        }
    }

    /// Returns the bytes of the part of `rank`.
    pub fn part(&self, rank: Rank) -> u64 {
        self.counts.as_ref().map_or(self.bytes, |counts| counts[rank.0 as usize])
    }

    /// Returns the bytes of the parts of these ranks together.
    pub fn parts(&self, ranks: Range<usize>) -> u64 {
        match &self.counts {
            None => self.bytes.saturating_mul(ranks.len() as u64),
            Some(counts) => sum(counts[ranks].iter().copied()),
        }
    }

    /// Returns the bytes of the block that goes from one rank to another in an alltoall.
    pub fn block(&self, from: usize, to: usize, size: usize) -> u64 {
        self.counts.as_ref().map_or(self.bytes, |counts| counts[from * size + to])
    }

    /// Returns the longest of the lengths that the call names, in bytes.
    pub fn longest(&self) -> u64 {
        self.lengths().iter().copied().max().unwrap_or(0)
    }

    /// Returns the lengths that the call names, in bytes: its counts, or the common length of all
    /// parts.
    fn lengths(&self) -> &[u64] {
        self.counts.as_deref().unwrap_or(core::slice::from_ref(&self.bytes))
    }

    /// Returns the bytes of the arrays of all ranks together, or `None` on overflow.
    fn all_bytes(&self, size: usize) -> Option<u64> {
        let size = size as u64;
        match (&self.counts, self.operation) {
            (Some(counts), _) => counts.iter().try_fold(0, |sum: u64, bytes| sum.checked_add(*bytes)),
            (None, Operation::Alltoall) => self.bytes.checked_mul(size)?.checked_mul(size),
            (None, _) => self.bytes.checked_mul(size),
        }
    }
}

fn sum(lengths: impl Iterator<Item = u64>) -> u64 {
    lengths.fold(0, u64::saturating_add)
}

/// Checks that an operation that [combines](Operation::combines) can apply a reduce operation to
/// the element type. The type is not checked if it is unknown.
///
/// # Errors
/// Returns [`CallError::NoReduction`], [`CallError::Reduction`] or [`CallError::AverageOfScan`].
pub fn check_reduction(
    operation: Operation,
    element: Option<ElementType>,
    reduce: Option<ReduceOp>,
) -> Result<(), CallError> {
    let reduce = reduce.ok_or(CallError::NoReduction)?;
    if reduce == ReduceOp::Average && operation.is_scan() {
        return Err(CallError::AverageOfScan);
    }
    match element {
        Some(element) if !element.combines_by(reduce) => Err(CallError::Reduction { element, reduce }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(call: &Call, size: usize) -> String {
        call.check(size).unwrap_err().to_string()
    }

    #[test]
    fn a_call_that_contradicts_its_group_or_itself_is_refused() {
        let call = |operation, root, bytes| Call::new(operation, Rank(root), bytes, 8);
        assert_eq!(call(Operation::Gather, 3, 80).check(4), Ok(()));
        assert_eq!(
            wrong(&call(Operation::Gather, 4, 80), 4),
            "its root is rank 4, but the group has ranks 0 to 3"
        );
        assert!(
            wrong(&call(Operation::Bcast, 0, 81), 4)
                .contains("81 bytes are not a whole number of elements of 8")
        );
        assert!(wrong(&Call::new(Operation::Bcast, Rank(0), 0, 0), 4).contains("elements of 0 bytes"));
        assert!(wrong(&call(Operation::Bcast, 0, ARRAY_BYTES), 2).contains("split it"));
        assert!(wrong(&call(Operation::Alltoall, 0, 1 << 62), 4).contains("split it"));
    }

    #[test]
    fn counts_that_do_not_fit_the_group_are_refused() {
        let call = |operation, counts: &[u64]| Call::new(operation, Rank(0), 0, 4).with_counts(counts);
        assert_eq!(call(Operation::Gather, &[4, 0]).check(2), Ok(()));
        assert_eq!(wrong(&call(Operation::Gather, &[4]), 2), "it has 1 counts, but 2 ranks need 2");
        assert_eq!(wrong(&call(Operation::Alltoall, &[4, 4]), 2), "it has 2 counts, but 2 ranks need 4");
        assert!(wrong(&call(Operation::Bcast, &[4, 4]), 2).contains("leave them out"));
        assert!(wrong(&call(Operation::Gather, &[4, 2]), 2).contains("2 bytes are not a whole number"));
        assert!(wrong(&call(Operation::Gather, &[u64::MAX - 3, 4]), 2).contains("split it"));
    }

    #[test]
    fn a_buffer_that_is_too_short_is_named() {
        let call = Call::new(Operation::Allgather, Rank(0), 48, 8);
        assert_eq!(call.check_buffers(Rank(1), 2, 48, 96), Ok(()));
        let e = call.check_buffers(Rank(1), 2, 48, 80).unwrap_err().to_string();
        assert_eq!(e, "its output has 80 bytes and needs 96");
    }

    #[test]
    fn inputs_and_outputs_of_all_ranks_have_equal_lengths() {
        let size = 3;
        let ranks = || (0..size as u32).map(Rank);
        for operation in [Operation::Gather, Operation::Scatter, Operation::Alltoall] {
            let wanted = Call::counts_needed(operation, size).unwrap() as u64;
            let call = Call::new(operation, Rank(1), 0, 1).with_counts((0..wanted).collect::<Vec<u64>>());
            let inputs: u64 = ranks().map(|rank| call.input_bytes(rank, size)).sum();
            let outputs: u64 = ranks().map(|rank| call.output_bytes(rank, size)).sum();
            assert_eq!(
                (inputs, outputs),
                (wanted * (wanted - 1) / 2, wanted * (wanted - 1) / 2),
                "{operation}"
            );
        }
    }

    #[test]
    fn an_invalid_reduction_is_refused_with_the_valid_ones() {
        let wrong = |operation, reduce| {
            check_reduction(operation, Some(ElementType::F32), reduce).map_err(|e| e.to_string())
        };
        assert_eq!(wrong(Operation::Reduce, Some(ReduceOp::Max)), Ok(()));
        let e = wrong(Operation::Reduce, Some(ReduceOp::BitAnd)).unwrap_err();
        assert_eq!(e, "elements of type f32 have no bit_and; they have sum, prod, min, max, average");
        assert!(
            wrong(Operation::Scan, Some(ReduceOp::Average)).unwrap_err().contains("scan by sum and divide")
        );
        assert!(wrong(Operation::Scan, None).unwrap_err().contains("how to combine"));
    }
}
