//! Trees from which this node receives nothing although other nodes do.
//!
//! A switch with IGMP or MLD snooping forgets a member when it restarts, or when reports of the
//! member are lost. Members learn of that only from the next query of a querier, minutes later. The
//! node therefore renews its membership, and the controller proves the group's trees again. If that
//! does not help, the pauses between such attempts grow.

use super::tree_sources::report_silence;
use crate::engine_resources::GroupContext;
use crate::inputs_outputs::Output;
use cool_collective::MulticastScope;
use cool_machine::{Duration, Time};
use std::collections::BTreeMap;

/// The pause after the first renewal, which doubles each time: the Unsolicited Report Interval,
/// within which hosts report a membership (RFC 2236, section 8.10; with IGMPv3, a second suffices).
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Most doublings of the pause: it grows to about five minutes.
const DOUBLINGS_MAX: u32 = 5;

/// Number of streams of a node in a row without any multicast after which the tree is silent. One
/// is not enough, because a busy node may lose all packets of a short stream.
pub(super) const SILENT_STREAMS: u32 = 3;

/// The trees that miss multicasts, by scope. A scope without misses has no entry.
#[derive(Debug, Default)]
pub(super) struct SilentTrees(BTreeMap<MulticastScope, MissedMulticasts>);

#[derive(Debug)]
struct MissedMulticasts {
    /// The number of successive streams without multicasts, for each node that has sent some.
    streams: BTreeMap<u16, u32>,
    /// Number of renewals since the multicasts of all nodes last arrived.
    renewals: u32,
    /// When the next renewal may be due.
    not_before: Time,
}

impl SilentTrees {
    /// Handles streams of a source that have received none of its multicasts. A single stream that
    /// shows that the tree is silent counts as [`SILENT_STREAMS`].
    pub(super) fn on_missed(
        &mut self,
        context: &mut GroupContext<'_>,
        scope: MulticastScope,
        (source, streams): (u16, u32),
    ) {
        let due = self.record(context.now, scope, source, streams);
        due.into_iter().for_each(|renewals| report(context, scope, (source, renewals)));
    }

    /// Records that a number of streams of a source have missed its multicasts. If the tree is
    /// silent and the latest renewal was not recent, another one is due: returns their number,
    /// including this one.
    fn record(&mut self, now: Time, scope: MulticastScope, source: u16, missed: u32) -> Option<u32> {
        let fresh = MissedMulticasts { streams: BTreeMap::new(), renewals: 0, not_before: now };
        let tree = self.0.entry(scope).or_insert(fresh);
        let streams = tree.streams.entry(source).or_insert(0);
        *streams = streams.saturating_add(missed);
        if *streams < SILENT_STREAMS || now < tree.not_before {
            return None;
        }
        tree.not_before = now + FIRST_PAUSE * (1 << tree.renewals.min(DOUBLINGS_MAX));
        tree.renewals = tree.renewals.saturating_add(1);
        Some(tree.renewals)
    }

    /// Records that the multicasts of a stream have arrived.
    pub(super) fn record_arrival(&mut self, scope: MulticastScope, source: u16) {
        let Some(tree) = self.0.get_mut(&scope) else { return };
        tree.streams.remove(&source);
        if tree.streams.is_empty() {
            self.0.remove(&scope);
        }
    }
}

/// Reports that the multicasts of a tree do not arrive, unless it has been withdrawn meanwhile. The
/// report also goes to the source of a source-specific tree, because it must repeat its proof.
fn report(context: &mut GroupContext<'_>, scope: MulticastScope, (source, renewals): (u16, u32)) {
    report_silence(context.members, context.resources, scope, usize::from(source));
    let (group, trees) = (context.members.id, context.members.trees(scope));
    let trees: Vec<_> = trees.iter().map(|tree| tree.address).collect();
    if !trees.is_empty() {
        context.resources.out.push(Output::TreesSilent { group, trees, renewals });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: MulticastScope = MulticastScope::All;

    fn at(second: u64) -> Time {
        Time::ZERO + Duration::from_secs(second)
    }

    #[test]
    fn pauses_between_renewals_grow_until_multicasts_arrive() {
        let mut silent = SilentTrees::default();
        let renewals = |silent: &mut SilentTrees, seconds: core::ops::Range<u64>| -> Vec<u64> {
            seconds.filter(|s| silent.record(at(*s), TREE, *s as u16 % 2, SILENT_STREAMS).is_some()).collect()
        };
        assert_eq!(renewals(&mut silent, 0..1200), [0, 10, 30, 70, 150, 310, 630, 950]);
        silent.record_arrival(MulticastScope::Leaders, 0);
        silent.record_arrival(TREE, 0);
        assert!(renewals(&mut silent, 1201..1202).is_empty(), "node 1 is still silent");
        silent.record_arrival(TREE, 1);
        assert_eq!(renewals(&mut silent, 1202..1220), [1202, 1212]);
    }

    #[test]
    fn some_streams_in_a_row_without_multicast_show_silence() {
        let mut silent = SilentTrees::default();
        let mut missed = |source: u16| silent.record(at(1), TREE, source, 1);
        assert_eq!([missed(7), missed(7), missed(8)], [None; 3]);
        silent.record_arrival(TREE, 7);
        let mut missed = || silent.record(at(1), TREE, 7, 1);
        assert_eq!([missed(), missed(), missed(), missed()], [None, None, Some(1), None]);
    }
}
