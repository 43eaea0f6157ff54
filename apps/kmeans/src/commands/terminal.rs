//! Progress of a run for the user: a bar if there is a terminal, and a line per iteration.

use crate::progress::{Iteration, ProgressObserver};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Output of rank 0; other ranks print nothing.
pub(crate) struct Terminal {
    prints: bool,
    bar: ProgressBar,
    iterations: u64,
}

impl Terminal {
    /// Creates the output of a rank in a run of at most `iterations` iterations. `prints` should be
    /// false at ranks other than 0.
    pub(crate) fn new(prints: bool, iterations: usize) -> Self {
        let bar = if prints && std::io::stderr().is_terminal() {
            ProgressBar::new(0)
        } else {
            ProgressBar::hidden()
        };
        Self { prints, bar, iterations: iterations as u64 }
    }

    /// Prints a line above the bar.
    pub(crate) fn print_line(&self, line: &str) {
        if self.prints {
            self.bar.suspend(|| println!("{line}"));
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn begin(&self, what: &'static str, length: u64) {
        // The template is constant; an invalid one would only lose the style.
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {eta}") {
            self.bar.set_style(style);
        }
        self.bar.set_message(what);
        self.bar.set_length(length);
        self.bar.set_position(0);
    }
}

impl ProgressObserver for Terminal {
    fn loading(&self, points: u64) {
        self.begin("points", points);
    }

    fn loaded(&self, points: u64) {
        self.bar.inc(points);
    }

    fn iteration(&self, i: &Iteration) {
        if i.number == 1 {
            self.begin("iterations", self.iterations);
        }
        self.bar.set_position(i.number as u64);
        self.print_line(&format!(
            "iteration {:>3}  inertia {:<12}  moved {} centroids, {} points{}  computing {:.3} s  communicating {:.3} s",
            i.number,
            significant(i.inertia),
            i.moved_centroids,
            i.moved_points,
            if i.empty > 0 { format!("  ({} empty)", i.empty) } else { String::new() },
            i.seconds_computing,
            i.seconds_communicating
        ));
    }
}

/// Returns a number as text with seven significant digits, in exponent notation if it would be long
/// otherwise.
pub(crate) fn significant(x: f64) -> String {
    let digits = if x == 0.0 { 0 } else { x.abs().log10().floor() as i32 };
    if (-3..9).contains(&digits) {
        format!("{x:.*}", (6 - digits).max(0) as usize)
    } else {
        format!("{x:.6e}")
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_have_seven_digits() {
        let shown = [0.0, 0.012_345_678_9, 1.5, 123_456.789, 12_345_678.9, 1e30].map(super::significant);
        assert_eq!(shown, ["0.000000", "0.01234568", "1.500000", "123456.8", "12345679", "1.000000e30"]);
    }
}
