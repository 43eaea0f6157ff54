//! How far a node was and when, in few enough points that those of all nodes fit one document.

use serde::{Serialize, Serializer};

/// Points of all nodes together.
const POINTS_OF_ALL: usize = 1 << 14;
/// Of one node, of few and of many.
const POINTS_MAX: usize = 256;
const POINTS_MIN: usize = 8;

/// What a node lacked, at times: of a long copy every second, fourth, eighth word is kept, as it goes on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CopyProgress {
    /// Seconds, and bytes that were lacking then.
    points: Vec<(f64, u64)>,
    most: usize,
    /// Words that were heard, of which one in `every` is kept.
    heard: usize,
    every: usize,
}

impl CopyProgress {
    /// Of one of these nodes.
    pub(super) fn of_one_in(nodes: usize) -> CopyProgress {
        let most = (POINTS_OF_ALL / nodes.max(1)).clamp(POINTS_MIN, POINTS_MAX);
        CopyProgress { points: Vec::new(), most, heard: 0, every: 1 }
    }

    /// So much it lacks now; later times come later.
    pub(super) fn hear(&mut self, seconds: f64, lacks: u64) {
        if self.heard.is_multiple_of(self.every) {
            self.points.push((seconds, lacks));
            // One place is the end's.
            if self.points.len() == self.most {
                let mut number = 0;
                self.points.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.every *= 2;
            }
        }
        self.heard += 1;
    }

    /// It has its copy.
    pub(super) fn end(&mut self, seconds: f64) {
        self.points.push((seconds, 0));
    }
}

impl Serialize for CopyProgress {
    /// Pairs of seconds and bytes.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // What is heard over a network is not known to less than a millisecond.
        let round = |seconds: f64| (seconds * 1e3).round() / 1e3;
        serializer.collect_seq(self.points.iter().map(|(seconds, lacks)| (round(*seconds), lacks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_copy_is_told_word_by_word() {
        let mut progress = CopyProgress::of_one_in(15);
        progress.hear(0.5, 300);
        progress.hear(1.25004, 100);
        progress.end(2.0);
        assert_eq!(serde_json::to_string(&progress).unwrap(), "[[0.5,300],[1.25,100],[2.0,0]]");
    }

    #[test]
    fn a_long_copy_keeps_its_beginning_its_end_and_equal_steps_between() {
        for (nodes, most) in [(1, POINTS_MAX), (1000, POINTS_OF_ALL / 1000), (1_000_000, POINTS_MIN)] {
            let mut progress = CopyProgress::of_one_in(nodes);
            for word in 0..10_000 {
                progress.hear(f64::from(word), 10_000 - u64::from(word as u16));
            }
            progress.end(10_000.0);
            let CopyProgress { points, every, .. } = progress;
            assert!((most / 2..=most).contains(&points.len()), "{} of {most} points", points.len());
            assert_eq!((points[0], points[points.len() - 1]), ((0.0, 10_000), (10_000.0, 0)));
            let told = &points[..points.len() - 1];
            assert!(told.windows(2).all(|pair| pair[1].0 - pair[0].0 == every as f64), "every {every}");
        }
    }
}
