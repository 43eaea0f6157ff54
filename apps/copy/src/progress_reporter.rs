//! Progress reports of a node, at a limited rate.

use crate::destination::DestinationCopy;
use crate::protocol::{CopyEvent, CopyTask};
use std::time::{Duration, Instant};

/// Reports how many bytes this node is missing, as long as it is missing any.
pub(crate) struct ProgressReporter {
    last_report: Instant,
    interval: Duration,
    /// Whether it has reported that no block is missing.
    complete: bool,
}

impl ProgressReporter {
    /// Reports the state of a copy that starts, and returns the reporter for its next states.
    pub(crate) fn new(task: &CopyTask, destination: &DestinationCopy) -> ProgressReporter {
        report_missing(destination);
        let interval = Duration::from_millis(task.report_interval_ms);
        ProgressReporter { last_report: Instant::now(), interval, complete: destination.have().is_full() }
    }

    /// Reports the state of the copy if a report is due. The copy's completion is reported at once.
    pub(crate) fn update(&mut self, destination: &DestinationCopy) {
        let complete = destination.have().is_full();
        if !self.complete && (complete || self.last_report.elapsed() >= self.interval) {
            (self.last_report, self.complete) = (Instant::now(), complete);
            report_missing(destination);
        }
    }
}

fn report_missing(destination: &DestinationCopy) {
    // An error is ignored, because sending the rank's last event will then fail, too, and return
    // the error.
    drop(CopyEvent::Missing { bytes: destination.missing_bytes() }.send());
}
