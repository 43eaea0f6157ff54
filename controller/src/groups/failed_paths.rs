//! The paths on which multicasts have not arrived lately. Groups with such a path use no multicast,
//! so that they need not wait for the failure of another proof.

use cool_machine::{Duration, Time};
use std::collections::{BTreeMap, BTreeSet};

/// How long a path is remembered after a failed proof.
const RETRY_AFTER: Duration = Duration::from_secs(300);

/// Maximum number of senders that are remembered for one receiver.
const SENDERS_MAX: usize = 64;

/// The failed paths, by receiver: when they are forgotten, and the senders.
#[derive(Debug, Default)]
pub(super) struct FailedPaths(BTreeMap<String, (Time, BTreeSet<String>)>);

impl FailedPaths {
    /// Records that multicasts of a node do not arrive at another one.
    pub(super) fn record(&mut self, now: Time, receiver: &str, sender: &str) {
        let (until, senders) = self.0.entry(receiver.to_owned()).or_insert((now, BTreeSet::new()));
        *until = now + RETRY_AFTER;
        if senders.len() < SENDERS_MAX {
            senders.insert(sender.to_owned());
        }
    }

    /// Returns whether there is a failed path between two of these nodes.
    pub(super) fn separate(&mut self, now: Time, nodes: &BTreeSet<&str>) -> bool {
        self.0.retain(|_, (until, _)| *until > now);
        let mut receivers = nodes.iter().filter_map(|node| self.0.get(*node));
        receivers.any(|(_, senders)| senders.iter().any(|sender| nodes.contains(sender.as_str())))
    }

    /// Forgets the failed paths between these nodes.
    pub(super) fn forget(&mut self, nodes: &BTreeSet<String>) {
        self.0.retain(|receiver, (_, senders)| {
            if nodes.contains(receiver) {
                senders.retain(|sender| !nodes.contains(sender));
            }
            !senders.is_empty()
        });
    }

    /// Returns the receivers that miss multicasts, each with the senders.
    pub(super) fn receivers(&mut self, now: Time) -> impl Iterator<Item = (&str, &BTreeSet<String>)> {
        self.0.retain(|_, (until, _)| *until > now);
        self.0.iter().map(|(receiver, (_, senders))| (receiver.as_str(), senders))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_path_separates_its_nodes_for_five_minutes() {
        let mut paths = FailedPaths::default();
        paths.record(Time::ZERO, "h3", "h1");
        let mut separate = |seconds, nodes: &[&str]| {
            paths.separate(Time::ZERO + Duration::from_secs(seconds), &nodes.iter().copied().collect())
        };
        assert!(separate(299, &["h1", "h2", "h3"]));
        assert!(!separate(299, &["h2", "h3"]) && !separate(299, &["h1", "h2"]));
        assert!(!separate(300, &["h1", "h3"]));
    }

    #[test]
    fn paths_between_nodes_that_hear_each_other_are_forgotten() {
        let mut paths = FailedPaths::default();
        for (receiver, sender) in [("h3", "h1"), ("h3", "h9"), ("h2", "h1")] {
            paths.record(Time::ZERO, receiver, sender);
        }
        paths.forget(&["h1", "h2", "h3"].map(str::to_owned).into());
        let left: Vec<_> = paths.receivers(Time::ZERO).map(|(name, _)| name).collect();
        assert_eq!(left, ["h3"]);
        assert!(paths.separate(Time::ZERO, &["h3", "h9"].into()));
        assert!(!paths.separate(Time::ZERO, &["h1", "h2", "h3"].into()));
    }

    #[test]
    fn few_senders_are_remembered_for_each_receiver() {
        let mut paths = FailedPaths::default();
        (0..1000).for_each(|sender| paths.record(Time::ZERO, "h", &format!("s{sender}")));
        let receivers: Vec<_> =
            paths.receivers(Time::ZERO).map(|(name, senders)| (name, senders.len())).collect();
        assert_eq!(receivers, [("h", SENDERS_MAX)]);
    }
}
