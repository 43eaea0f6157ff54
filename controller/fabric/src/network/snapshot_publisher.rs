//! Publishes snapshots of the network when they change, but not too often.

use crate::api::TopologySnapshot;
use cool_machine::{Duration, Time};
use std::sync::Arc;
use tokio::sync::watch;

/// Minimum time between two snapshots for each switch, link and node in them, so that drawing
/// snapshots does not take most of the time while a large network is discovered.
const PAUSE_PER_PART: Duration = Duration::from_micros(5);

/// Publisher of snapshots.
#[derive(Debug)]
pub(crate) struct SnapshotPublisher {
    publish: watch::Sender<Arc<TopologySnapshot>>,
    /// Revision of the last snapshot.
    drawn: Option<u64>,
    not_before: Time,
}

/// When to draw the next snapshot.
pub(crate) enum PublishDue {
    Now,
    At(Time),
    /// The current revision has been drawn already.
    Never,
}

impl SnapshotPublisher {
    pub(crate) fn new(publish: watch::Sender<Arc<TopologySnapshot>>) -> SnapshotPublisher {
        SnapshotPublisher { publish, drawn: None, not_before: Time::ZERO }
    }

    /// Returns when a network of this revision should be drawn.
    pub(crate) fn due(&self, now: Time, revision: u64) -> PublishDue {
        match self.drawn {
            Some(drawn) if drawn == revision => PublishDue::Never,
            _ if now < self.not_before => PublishDue::At(self.not_before),
            _ => PublishDue::Now,
        }
    }

    /// Publishes the snapshot of this revision if it differs from the last one.
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
