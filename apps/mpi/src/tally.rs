//! What became of a rank's calls: how many of each operation were taken, how many were left, and why.

use crate::decision::FallbackReason;
use cool_types::Operation;
use std::collections::BTreeMap;
use std::fmt;

/// Calls and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CallTotals {
    calls: u64,
    bytes: u64,
}

/// Calls by operation and by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTally {
    sums: BTreeMap<(Operation, Option<FallbackReason>), CallTotals>,
}

impl CallTally {
    /// None yet.
    pub const fn new() -> CallTally {
        CallTally { sums: BTreeMap::new() }
    }

    /// A call was taken, or left for a reason. Of what is left before it is measured, the bytes are 0.
    pub fn count(&mut self, operation: Operation, left: Option<FallbackReason>, bytes: u64) {
        let sum = self.sums.entry((operation, left)).or_default();
        sum.calls += 1;
        sum.bytes = sum.bytes.saturating_add(bytes);
    }
}

/// A line for each operation and outcome.
impl fmt::Display for CallTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((operation, left), CallTotals { calls, bytes }) in &self.sums {
            match left {
                None => writeln!(f, "cool-mpi: {operation} taken: {calls} calls, {bytes} bytes")?,
                Some(why) => writeln!(f, "cool-mpi: {operation} left ({why}): {calls} calls, {bytes} bytes")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_operation_and_reason() {
        let mut tally = CallTally::new();
        tally.count(Operation::Bcast, None, 1000);
        tally.count(Operation::Bcast, None, 24);
        tally.count(Operation::Bcast, Some(FallbackReason::Small), 8);
        let text = tally.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["cool-mpi: bcast taken: 2 calls, 1024 bytes", "cool-mpi: bcast left (small): 1 calls, 8 bytes"]
        );
    }
}
