//! The progress of a node over time, with few enough points that those of all nodes fit one
//! document.

use serde::{Serialize, Serializer};

/// Maximum number of points of all nodes together.
const POINTS_OF_ALL: usize = 1 << 14;
/// Maximum number of points of one node, if there are few nodes.
const POINTS_MAX: usize = 256;
/// Maximum number of points of one node, if there are many nodes.
const POINTS_MIN: usize = 8;

/// Number of bytes that a node was missing, over time. In a long copy, only every second report is
/// kept, then only every fourth, and so on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CopyProgress {
    /// Seconds since the start of the command, and the bytes missing at that time.
    points: Vec<(f64, u64)>,
    limit: usize,
    /// Reports received, of which one in `every` is kept.
    reports: usize,
    every: usize,
}

impl CopyProgress {
    /// Returns the progress of one of `nodes` nodes.
    pub(super) fn of_one_in(nodes: usize) -> CopyProgress {
        let limit = (POINTS_OF_ALL / nodes.max(1)).clamp(POINTS_MIN, POINTS_MAX);
        CopyProgress { points: Vec::new(), limit, reports: 0, every: 1 }
    }

    /// Records a report. Times must not decrease.
    pub(super) fn record(&mut self, seconds: f64, missing: u64) {
        if self.reports.is_multiple_of(self.every) {
            self.points.push((seconds, missing));
            // One point is reserved for the end.
            if self.points.len() == self.limit {
                let mut number = 0;
                self.points.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.every *= 2;
            }
        }
        self.reports += 1;
    }

    /// Records that the node has its copy.
    pub(super) fn end(&mut self, seconds: f64) {
        self.points.push((seconds, 0));
    }
}

impl Serialize for CopyProgress {
    /// Writes pairs of seconds and bytes.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Rounded to milliseconds, because reports take about that long to arrive.
        let round = |seconds: f64| (seconds * 1e3).round() / 1e3;
        serializer.collect_seq(self.points.iter().map(|(seconds, missing)| (round(*seconds), missing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_copy_keeps_every_report() {
        let mut progress = CopyProgress::of_one_in(15);
        progress.record(0.5, 300);
        progress.record(1.25004, 100);
        progress.end(2.0);
        assert_eq!(serde_json::to_string(&progress).unwrap(), "[[0.5,300],[1.25,100],[2.0,0]]");
    }

    #[test]
    fn a_long_copy_keeps_its_start_its_end_and_equal_steps() {
        for (nodes, limit) in [(1, POINTS_MAX), (1000, POINTS_OF_ALL / 1000), (1_000_000, POINTS_MIN)] {
            let mut progress = CopyProgress::of_one_in(nodes);
            for report in 0..10_000 {
                progress.record(f64::from(report), 10_000 - u64::from(report as u16));
            }
            progress.end(10_000.0);
            let CopyProgress { points, every, .. } = progress;
            assert!((limit / 2..=limit).contains(&points.len()), "{} of {limit} points", points.len());
            assert_eq!((points[0], points[points.len() - 1]), ((0.0, 10_000), (10_000.0, 0)));
            let kept = &points[..points.len() - 1];
            assert!(kept.windows(2).all(|pair| pair[1].0 - pair[0].0 == every as f64), "every {every}");
        }
    }
}
