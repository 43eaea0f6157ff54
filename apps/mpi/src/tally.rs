//! Statistics of a rank's calls: how many of each operation were intercepted, how many were passed
//! through, and why.

use crate::interception::PassThroughReason;
use cool_types::Operation;
use std::collections::BTreeMap;
use std::fmt;

/// Number of calls, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CallTotals {
    calls: u64,
    bytes: u64,
}

/// Calls by operation and outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTally {
    sums: BTreeMap<(Operation, Option<PassThroughReason>), CallTotals>,
}

impl CallTally {
    /// Creates empty statistics.
    pub const fn new() -> CallTally {
        CallTally { sums: BTreeMap::new() }
    }

    /// Counts a call. `left` is the reason if it was passed through. If that was decided before the
    /// length was known, `bytes` must be 0.
    pub fn count(&mut self, operation: Operation, left: Option<PassThroughReason>, bytes: u64) {
        let sum = self.sums.entry((operation, left)).or_default();
        sum.calls += 1;
        sum.bytes = sum.bytes.saturating_add(bytes);
    }
}

/// One line per operation and outcome. Programs parse these lines, so their format must not change.
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
        tally.count(Operation::Bcast, Some(PassThroughReason::Small), 8);
        let text = tally.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["cool-mpi: bcast taken: 2 calls, 1024 bytes", "cool-mpi: bcast left (small): 1 calls, 8 bytes"]
        );
    }
}
