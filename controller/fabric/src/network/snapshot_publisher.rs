//! Publishes the topology to whoever watches: when it looks different, and not more often than it can be drawn.

use crate::api::TopologySnapshot;
use cool_machine::{Duration, Time};
use std::sync::Arc;
use tokio::sync::watch;

/// The least time between two snapshots for each switch, link and node in one: while a large network comes up,
/// drawing it must not take more time than finding it.
const PAUSE_PER_PART: Duration = Duration::from_micros(5);

/// The way to those who watch.
#[derive(Debug)]
pub(crate) struct SnapshotPublisher {
    publish: watch::Sender<Arc<TopologySnapshot>>,
    /// The revision of what was drawn last.
    drawn: Option<u64>,
    not_before: Time,
}

/// When to draw.
pub(crate) enum PublishDue {
    Now,
    At(Time),
    /// It was drawn already.
    Never,
}

impl SnapshotPublisher {
    pub(crate) fn new(publish: watch::Sender<Arc<TopologySnapshot>>) -> SnapshotPublisher {
        SnapshotPublisher { publish, drawn: None, not_before: Time::ZERO }
    }

    /// When to draw a network of this revision.
    pub(crate) fn due(&self, now: Time, revision: u64) -> PublishDue {
        match self.drawn {
            Some(drawn) if drawn == revision => PublishDue::Never,
            _ if now < self.not_before => PublishDue::At(self.not_before),
            _ => PublishDue::Now,
        }
    }

    /// Publishes what was drawn of this revision, if it looks different.
    pub(crate) fn publish(&mut self, now: Time, revision: u64, snapshot: TopologySnapshot) {
        self.drawn = Some(revision);
        let parts = snapshot.switches.len() + snapshot.links.len() + snapshot.nodes.len();
        self.not_before = now + PAUSE_PER_PART * u32::try_from(parts).unwrap_or(u32::MAX);
        self.publish.send_if_modified(|current| {
            let changed = **current != snapshot;
            if changed {
                *current = Arc::new(snapshot);
            }
            changed
        });
    }
}
