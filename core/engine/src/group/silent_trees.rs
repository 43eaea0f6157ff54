//! Trees from which this node receives nothing although other nodes do.
//!
//! A switch with IGMP or MLD snooping forgets a member when it restarts, or when reports of the
//! member are lost. Members learn of that only from the next query of a querier, minutes later. The
//! node therefore renews its membership. If a filter drops the multicasts, this does not help, so
//! the pauses between renewals grow.

use cool_collective::MulticastScope;
use cool_machine::{Duration, Time};
use std::collections::BTreeMap;

/// The pause after the first renewal, which doubles each time: the Unsolicited Report Interval,
/// within which hosts report a membership (RFC 2236, section 8.10; with IGMPv3, a second suffices).
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Most doublings of the pause: it grows to about five minutes.
const DOUBLINGS_MAX: u32 = 5;

/// The renewals since a multicast last arrived, by the scope of the trees.
#[derive(Debug, Default)]
pub(super) struct SilentTrees(BTreeMap<MulticastScope, Renewals>);

#[derive(Debug)]
struct Renewals {
    number: u32,
    /// When the next renewal may be due.
    not_before: Time,
}

impl SilentTrees {
    /// Records that multicasts do not arrive. Returns the number of renewals, including the one
    /// that is due now, or `None` if the latest was recent.
    pub(super) fn record_silence(&mut self, now: Time, scope: MulticastScope) -> Option<u32> {
        let renewals = self.0.entry(scope).or_insert(Renewals { number: 0, not_before: now });
        if now < renewals.not_before {
            return None;
        }
        renewals.not_before = now + FIRST_PAUSE * (1 << renewals.number.min(DOUBLINGS_MAX));
        renewals.number = renewals.number.saturating_add(1);
        Some(renewals.number)
    }

    /// Records that the multicasts of a stream have arrived.
    pub(super) fn record_arrival(&mut self, scope: MulticastScope) {
        self.0.remove(&scope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_renewals_grow_until_multicasts_arrive() {
        let mut silent = SilentTrees::default();
        let renewals = |silent: &mut SilentTrees, seconds: core::ops::Range<u64>| -> Vec<u64> {
            let at = |second| Time::ZERO + Duration::from_secs(second);
            seconds.filter(|s| silent.record_silence(at(*s), MulticastScope::All).is_some()).collect()
        };
        assert_eq!(renewals(&mut silent, 0..1200), [0, 10, 30, 70, 150, 310, 630, 950]);
        silent.record_arrival(MulticastScope::Leaders);
        assert!(renewals(&mut silent, 1200..1201).is_empty());
        silent.record_arrival(MulticastScope::All);
        assert_eq!(renewals(&mut silent, 1201..1220), [1201, 1211]);
    }
}
