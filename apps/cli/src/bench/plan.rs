//! The plan of a benchmark, which `cool bench` passes to each of its ranks.

use cool::Operation;
use cool_collective::{Call, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A collective to measure: an operation, with parts of equal or of unequal lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct BenchOp {
    pub(crate) operation: Operation,
    /// Whether parts have unequal lengths, as in MPI's v-variants.
    pub(crate) unequal: bool,
}

impl BenchOp {
    /// Returns all operations of libcool, with their variants.
    pub(crate) fn all() -> impl Iterator<Item = BenchOp> {
        let forms = |operation| [false, true].map(|unequal| BenchOp { operation, unequal });
        Operation::ALL.into_iter().flat_map(forms).filter(|op| !op.unequal || op.has_parts())
    }

    /// Returns whether the data consists of one part per rank.
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

    /// Returns whether it combines elements.
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

impl fmt::Display for BenchOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.operation, if self.unequal { "v" } else { "" })
    }
}

impl From<BenchOp> for String {
    fn from(op: BenchOp) -> String {
        op.to_string()
    }
}

impl FromStr for BenchOp {
    type Err = String;

    fn from_str(name: &str) -> Result<BenchOp, String> {
        BenchOp::all().find(|op| op.to_string() == name).ok_or_else(|| {
            let names: Vec<String> = BenchOp::all().map(|op| op.to_string()).collect();
            format!("there is no operation {name:?}; there are: {}", names.join(", "))
        })
    }
}

impl TryFrom<String> for BenchOp {
    type Error = String;

    fn try_from(name: String) -> Result<BenchOp, String> {
        name.parse()
    }
}

/// One operation at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BenchCase {
    pub(crate) op: BenchOp,
    /// Size on the command line.
    pub(crate) bytes: u64,
}

/// Length of an element of a reduction, in bytes.
pub(crate) const ELEMENT_BYTES: u64 = 4;

/// Lengths of unequal parts as multiples of an equal part, repeated. Their mean is 1.
const UNEQUAL: [u64; 4] = [1, 0, 2, 1];

impl BenchCase {
    /// Returns the length of the message (bcast), the vector (reductions and scans) or one rank's
    /// part: the size on the command line in whole elements, and at least one element unless the
    /// size is 0.
    fn unit(self, ranks: u64) -> u64 {
        let element = if self.op.combines() { ELEMENT_BYTES } else { 1 };
        let parts = if self.op.has_parts() { ranks } else { 1 };
        match self.op.operation {
            Operation::Barrier => 0,
            _ => (self.bytes / element / parts).max(self.bytes.min(1)) * element,
        }
    }

    /// Returns the length of a part, in bytes. `shift` is the rank to which the part belongs or,
    /// for a part from one rank to another, the sum of both ranks. For operations without parts,
    /// returns the length of the whole.
    pub(crate) fn part(self, ranks: u64, shift: u64) -> u64 {
        let factor = if self.op.unequal { UNEQUAL[(shift % 4) as usize] } else { 1 };
        self.unit(ranks) * factor
    }

    /// Returns the length of the message, the vector, or all parts; of an alltoall, at rank 0.
    pub(crate) fn moved(self, ranks: u64) -> u64 {
        self.before(ranks, 0, if self.op.has_parts() { ranks } else { 1 })
    }

    /// Returns the case as a call for the planner; `None` if the planner does not have the
    /// operation.
    pub(crate) fn call(self, root: usize, ranks: u64) -> Option<Call> {
        let operation = self.op.operation.to_string().parse().ok()?;
        let element = if self.op.combines() { ELEMENT_BYTES } else { 1 };
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

    /// Returns the total length of the first `end` parts (see [`BenchCase::part`]), of which the
    /// first has this `shift`.
    pub(crate) fn before(self, ranks: u64, shift: u64, end: u64) -> u64 {
        (0..end).map(|rank| self.part(ranks, shift + rank)).sum()
    }
}

/// The cases that every rank runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BenchPlan {
    pub(crate) cases: Vec<BenchCase>,
    pub(crate) warmup: u32,
    pub(crate) reps: u32,
    pub(crate) root: usize,
    /// Whether arrays are in memory that is shared with the agents.
    pub(crate) alloc: bool,
    /// Milliseconds from the barrier until all ranks start; without it, each starts when it leaves
    /// the barrier.
    pub(crate) pause_ms: Option<u32>,
    /// Calls of a repetition, without a pause.
    #[serde(default = "one_call")]
    pub(crate) calls: u32,
    /// Operations and the plans that are forced for them.
    pub(crate) forced: Vec<(String, String)>,
}

/// The number of calls that earlier releases make.
fn one_call() -> u32 {
    1
}

impl BenchPlan {
    /// Returns every operation at every size. A barrier has no size, so it is one case.
    pub(crate) fn cases(ops: &[BenchOp], sizes: &[u64]) -> Vec<BenchCase> {
        let at = |op: BenchOp| match op.operation {
            Operation::Barrier => vec![BenchCase { op, bytes: 0 }],
            _ => sizes.iter().map(|bytes| BenchCase { op, bytes: *bytes }).collect(),
        };
        ops.iter().copied().flat_map(at).collect()
    }
}

/// The results of a case, which rank 0 prints as a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CaseMeasurement {
    /// Time of each repetition at the slowest rank.
    pub(crate) seconds: Vec<f64>,
    /// The plan that was used.
    pub(crate) plan: String,
    /// Share of CPU time that was idle on the busiest node; `None` if the case was too short to
    /// measure it.
    pub(crate) idle: Option<f64>,
    /// Chunks that nodes were missing and received by repair.
    pub(crate) chunks_repaired: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(op: &str, bytes: u64) -> BenchCase {
        BenchCase { op: op.parse().unwrap(), bytes }
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
        for op in BenchOp::all() {
            assert_eq!(BenchCase { op, bytes: 0 }.moved(7), 0, "{op}");
        }
    }

    #[test]
    fn some_unequal_parts_are_empty_and_the_mean_is_the_same() {
        let gatherv = case("gatherv", 1600);
        assert_eq!((0..4).map(|rank| gatherv.part(16, rank)).collect::<Vec<_>>(), [100, 0, 200, 100]);
        assert_eq!(gatherv.moved(16), 1600);
        assert_eq!(gatherv.before(16, 2, 2), 300);
    }

    #[test]
    fn a_barrier_is_measured_once_for_all_sizes() {
        let ops = ["bcast", "barrier"].map(|op| op.parse().unwrap());
        assert_eq!(BenchPlan::cases(&ops, &[1, 2]).len(), 3);
    }

    #[test]
    fn only_operations_with_parts_have_unequal_variants() {
        let names: Vec<String> = BenchOp::all().filter(|op| op.unequal).map(String::from).collect();
        assert_eq!(names, ["gatherv", "allgatherv", "scatterv", "reduce_scatterv", "alltoallv"]);
        let e = "bcastv".parse::<BenchOp>().unwrap_err();
        assert!(e.contains("\"bcastv\"") && e.contains("gather, gatherv"), "{e}");
    }
}
