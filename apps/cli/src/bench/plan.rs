//! What a benchmark does: said once by `cool bench`, read by each of its ranks.

use cool::Operation;
use cool_collective::{Call, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A collective to measure: an operation, with parts of equal or of unequal lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Op {
    pub(crate) operation: Operation,
    /// MPI's v-form.
    pub(crate) unequal: bool,
}

impl Op {
    /// Every operation as libcool has it.
    pub(crate) fn all() -> impl Iterator<Item = Op> {
        let forms = |operation| [false, true].map(|unequal| Op { operation, unequal });
        Operation::ALL.into_iter().flat_map(forms).filter(|op| !op.unequal || op.has_parts())
    }

    /// Whether it is about one part per rank.
    fn has_parts(self) -> bool {
        matches!(
            self.operation,
            Operation::Gather
                | Operation::Allgather
                | Operation::Scatter
                | Operation::ReduceScatter
                | Operation::Alltoall
        )
    }

    /// Whether it combines elements.
    fn combines(self) -> bool {
        matches!(
            self.operation,
            Operation::Reduce
                | Operation::Allreduce
                | Operation::ReduceScatter
                | Operation::Scan
                | Operation::Exscan
        )
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.operation, if self.unequal { "v" } else { "" })
    }
}

impl From<Op> for String {
    fn from(op: Op) -> String {
        op.to_string()
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(name: &str) -> Result<Op, String> {
        Op::all().find(|op| op.to_string() == name).ok_or_else(|| {
            let names: Vec<String> = Op::all().map(|op| op.to_string()).collect();
            format!("there is no operation {name:?}; there are: {}", names.join(", "))
        })
    }
}

impl TryFrom<String> for Op {
    type Error = String;

    fn try_from(name: String) -> Result<Op, String> {
        name.parse()
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

/// How parts of unequal lengths relate to equal ones, over and over: their mean is as long.
const UNEQUAL: [u64; 4] = [1, 0, 2, 1];

impl Case {
    /// Bytes of the message of a bcast, of the vector of a reduction or scan, of one rank's part else: what was
    /// asked for in whole elements, at least one unless nothing was asked for.
    fn unit(self, ranks: u64) -> u64 {
        let element = if self.op.combines() { ELEMENT } else { 1 };
        let parts = if self.op.has_parts() { ranks } else { 1 };
        match self.op.operation {
            Operation::Barrier => 0,
            _ => (self.bytes / element / parts).max(self.bytes.min(1)) * element,
        }
    }

    /// Bytes of a rank's part, or of what goes from one rank to another, `shift` being the sum of their numbers;
    /// of the whole where there are no parts.
    pub(crate) fn part(self, ranks: u64, shift: u64) -> u64 {
        let factor = if self.op.unequal { UNEQUAL[(shift % 4) as usize] } else { 1 };
        self.unit(ranks) * factor
    }

    /// Bytes of the message, the vector, or the whole array of all parts; of an alltoall at rank 0.
    pub(crate) fn moved(self, ranks: u64) -> u64 {
        self.before(ranks, 0, if self.op.has_parts() { ranks } else { 1 })
    }

    /// The case as the planner knows it; none if libcool has an operation that it does not.
    pub(crate) fn call(self, root: usize, ranks: u64) -> Option<Call> {
        let operation = self.op.operation.to_string().parse().ok()?;
        let element = if self.op.combines() { ELEMENT } else { 1 };
        let call = Call::new(operation, Rank(root as u32), self.unit(ranks), element as u32);
        Some(match (self.op.unequal, self.op.operation) {
            (false, _) => call,
            (true, Operation::Alltoall) => {
                let pairs = (0..ranks * ranks).map(|pair| self.part(ranks, pair / ranks + pair % ranks));
                call.with_counts(pairs.collect::<Vec<_>>())
            }
            (true, _) => call.with_counts((0..ranks).map(|rank| self.part(ranks, rank)).collect::<Vec<_>>()),
        })
    }

    /// Bytes of the parts before the `end`th; as [`Case::part`], where the first has this `shift`.
    pub(crate) fn before(self, ranks: u64, shift: u64, end: u64) -> u64 {
        (0..end).map(|rank| self.part(ranks, shift + rank)).sum()
    }
}

/// What every rank does, case by case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) cases: Vec<Case>,
    pub(crate) warmup: u32,
    pub(crate) reps: u32,
    pub(crate) root: usize,
    /// Whether arrays lie in memory that is shared with the agents.
    pub(crate) alloc: bool,
    /// Milliseconds from the barrier to the instant at which all begin; absent: each as it leaves the barrier.
    pub(crate) pause_ms: Option<u32>,
    /// Calls of a repetition, one right after the other.
    #[serde(default = "one_call")]
    pub(crate) calls: u32,
    /// Operations with the plans that are forced for them.
    pub(crate) forced: Vec<(String, String)>,
}

/// As of earlier releases.
fn one_call() -> u32 {
    1
}

impl Plan {
    /// Every operation at every size; a barrier has no size and comes once.
    pub(crate) fn cases(ops: &[Op], sizes: &[u64]) -> Vec<Case> {
        let at = |op: Op| match op.operation {
            Operation::Barrier => vec![Case { op, bytes: 0 }],
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
    /// By which it went.
    pub(crate) plan: String,
    /// Share of processor time that was idle on the busiest node; `None` if the case was too short to tell.
    pub(crate) idle: Option<f64>,
    /// Chunks that nodes lacked and got by repair.
    pub(crate) chunks_repaired: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(op: &str, bytes: u64) -> Case {
        Case { op: op.parse().unwrap(), bytes }
    }

    #[test]
    fn sizes_become_whole_elements_and_parts() {
        assert_eq!(case("bcast", 1001).moved(7), 1001);
        assert_eq!(case("reduce", 1001).moved(7), 1000);
        assert_eq!(case("allreduce", 1).moved(7), 4);
        assert_eq!(case("scan", 1003).moved(7), 1000);
        assert_eq!((case("gather", 1000).part(7, 3), case("gather", 1000).moved(7)), (142, 994));
        assert_eq!(case("scatter", 3).moved(7), 7);
        assert_eq!(case("reduce_scatter", 1000).moved(7), 7 * 4 * 35);
        assert_eq!(case("alltoall", 1000).moved(7), 994);
        for op in Op::all() {
            assert_eq!(Case { op, bytes: 0 }.moved(7), 0, "{op}");
        }
    }

    #[test]
    fn parts_of_unequal_lengths_have_empty_ones_and_the_same_mean() {
        let gatherv = case("gatherv", 1600);
        assert_eq!((0..4).map(|rank| gatherv.part(16, rank)).collect::<Vec<_>>(), [100, 0, 200, 100]);
        assert_eq!(gatherv.moved(16), 1600);
        assert_eq!(gatherv.before(16, 2, 2), 300);
    }

    #[test]
    fn a_barrier_is_measured_once_whatever_the_sizes() {
        let ops = ["bcast", "barrier"].map(|op| op.parse().unwrap());
        assert_eq!(Plan::cases(&ops, &[1, 2]).len(), 3);
    }

    #[test]
    fn only_operations_with_parts_have_them_unequal() {
        let names: Vec<String> = Op::all().filter(|op| op.unequal).map(String::from).collect();
        assert_eq!(names, ["gatherv", "allgatherv", "scatterv", "reduce_scatterv", "alltoallv"]);
        let e = "bcastv".parse::<Op>().unwrap_err();
        assert!(e.contains("\"bcastv\"") && e.contains("gather, gatherv"), "{e}");
    }
}
