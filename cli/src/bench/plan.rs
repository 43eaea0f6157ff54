//! What a benchmark does: said once by `cool bench`, read by each of its ranks.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A collective to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    Bcast,
    Reduce,
    Allreduce,
    Gather,
    Allgather,
    Scatter,
    Barrier,
}

impl Op {
    /// As users write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Bcast => "bcast",
            Op::Reduce => "reduce",
            Op::Allreduce => "allreduce",
            Op::Gather => "gather",
            Op::Allgather => "allgather",
            Op::Scatter => "scatter",
            Op::Barrier => "barrier",
        }
    }
}

/// One operation at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) op: Op,
    /// As asked for.
    pub(crate) bytes: u64,
}

/// Bytes of an element of a reduction.
pub(crate) const ELEMENT: u64 = 4;

impl Case {
    /// Bytes of the message of a bcast, of the vector of a reduction, of one rank's part else: what was asked
    /// for in whole elements, at least one unless nothing was asked for.
    pub(crate) fn unit(self, ranks: u64) -> u64 {
        let at_least_one = self.bytes.min(1);
        match self.op {
            Op::Bcast => self.bytes,
            Op::Reduce | Op::Allreduce => (self.bytes / ELEMENT).max(at_least_one) * ELEMENT,
            Op::Gather | Op::Allgather | Op::Scatter => (self.bytes / ranks).max(at_least_one),
            Op::Barrier => 0,
        }
    }

    /// Bytes of the message, the vector, or the whole array of all parts.
    pub(crate) fn moved(self, ranks: u64) -> u64 {
        match self.op {
            Op::Gather | Op::Allgather | Op::Scatter => self.unit(ranks) * ranks,
            Op::Bcast | Op::Reduce | Op::Allreduce | Op::Barrier => self.unit(ranks),
        }
    }
}

/// What every rank does, case by case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) cases: Vec<Case>,
    pub(crate) warmup: u32,
    pub(crate) reps: u32,
    pub(crate) root: usize,
}

impl Plan {
    /// Every operation at every size; a barrier has no size and comes once.
    pub(crate) fn cases(ops: &[Op], sizes: &[u64]) -> Vec<Case> {
        let at = |op: Op| match op {
            Op::Barrier => vec![Case { op, bytes: 0 }],
            _ => sizes.iter().map(|bytes| Case { op, bytes: *bytes }).collect(),
        };
        ops.iter().copied().flat_map(at).collect()
    }
}

/// What rank 0 reports of a case, a line of JSON each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Of each repetition, at the slowest rank.
    pub(crate) seconds: Vec<f64>,
    /// Share of processor time that was idle on the busiest node; `None` if the case was too short to tell.
    pub(crate) idle: Option<f64>,
    /// Chunks that nodes lacked and got by repair.
    pub(crate) chunks_repaired: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_become_whole_elements_and_parts() {
        let case = |op, bytes| Case { op, bytes };
        assert_eq!(case(Op::Bcast, 1001).moved(7), 1001);
        assert_eq!(case(Op::Reduce, 1001).moved(7), 1000);
        assert_eq!(case(Op::Allreduce, 1).moved(7), 4);
        assert_eq!((case(Op::Gather, 1000).unit(7), case(Op::Gather, 1000).moved(7)), (142, 994));
        assert_eq!(case(Op::Scatter, 3).moved(7), 7);
        for op in [Op::Bcast, Op::Reduce, Op::Gather, Op::Barrier] {
            assert_eq!(case(op, 0).moved(7), 0);
        }
    }

    #[test]
    fn a_barrier_is_measured_once_whatever_the_sizes() {
        assert_eq!(Plan::cases(&[Op::Bcast, Op::Barrier], &[1, 2]).len(), 3);
    }
}
