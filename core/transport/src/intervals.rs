//! A set of numbers stored as ranges, so that the set of held or missing chunks stays small however
//! long the stream is.

use core::ops::Range;
use std::collections::BTreeMap;

/// A set of numbers as ranges that are not empty and do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalSet {
    /// The start of each range and one past its last number.
    ranges: BTreeMap<u32, u32>,
    len: u32,
}

impl IntervalSet {
    /// Returns how many numbers are in the set.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of ranges.
    pub(crate) fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the smallest number.
    pub(crate) fn first(&self) -> Option<u32> {
        self.ranges.first_key_value().map(|(start, _)| *start)
    }

    /// Returns whether a number is in the set.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.ranges.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    /// Adds a range. Returns how many of its numbers were new.
    pub(crate) fn insert(&mut self, range: Range<u32>) -> u32 {
        if range.is_empty() {
            return 0;
        }
        let Range { mut start, mut end } = range;
        let mut held = 0;
        while let Some((s, e)) = self.ranges.range(..=end).next_back().map(|(s, e)| (*s, *e)) {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            held += e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        let new = end - start - held;
        self.len += new;
        new
    }

    /// Removes a range. Returns how many of its numbers were in the set.
    pub(crate) fn remove(&mut self, range: Range<u32>) -> u32 {
        let mut removed = 0;
        while let Some((s, e)) = self.ranges.range(..range.end).next_back().map(|(s, e)| (*s, *e)) {
            if e <= range.start || range.is_empty() {
                break;
            }
            self.ranges.remove(&s);
            if range.end < e {
                self.ranges.insert(range.end, e);
            }
            removed += e.min(range.end) - s.max(range.start);
            if s < range.start {
                self.ranges.insert(s, range.start);
                break;
            }
        }
        self.len -= removed;
        removed
    }

    /// Returns the ranges, ascending.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// Returns the parts of a range that are in the set, ascending.
    pub(crate) fn overlaps(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
        let from = self.ranges.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let to = range.end.max(from);
        self.ranges
            .range(from..to)
            .map(move |(start, end)| (*start).max(range.start)..(*end).min(range.end))
            .filter(|part| !part.is_empty())
    }

    /// Returns the parts of a range that are not in the set, ascending.
    pub(crate) fn gaps(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut at = range.start;
        let end = range.end;
        let mut held = self.overlaps(range);
        core::iter::from_fn(move || {
            while at < end {
                let next = held.next().unwrap_or(end..end);
                let gap = at..next.start;
                at = next.end;
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
            None
        })
    }
}

impl FromIterator<Range<u32>> for IntervalSet {
    fn from_iter<I: IntoIterator<Item = Range<u32>>>(ranges: I) -> IntervalSet {
        let mut set = IntervalSet::default();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Change {
        Insert(Range<u32>),
        Remove(Range<u32>),
    }

    fn range() -> impl Strategy<Value = Range<u32>> {
        (0u32..60, 0u32..12).prop_map(|(start, len)| start..start + len)
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![range().prop_map(Change::Insert), range().prop_map(Change::Remove)];
        prop::collection::vec(change, 0..40)
    }

    fn numbers(ranges: impl Iterator<Item = Range<u32>>) -> Vec<u32> {
        ranges.flatten().collect()
    }

    proptest! {
        #[test]
        fn an_interval_set_agrees_with_a_plain_set(changes in changes(), window in range()) {
            let mut set = IntervalSet::default();
            let mut plain = BTreeSet::new();
            for change in changes {
                match change {
                    Change::Insert(r) => {
                        let new = r.clone().filter(|n| plain.insert(*n)).count();
                        prop_assert_eq!(set.insert(r), new as u32);
                    }
                    Change::Remove(r) => {
                        let removed = r.clone().filter(|n| plain.remove(n)).count();
                        prop_assert_eq!(set.remove(r), removed as u32);
                    }
                }
                prop_assert_eq!(set.len() as usize, plain.len());
                prop_assert!(set.ranges().zip(set.ranges().skip(1)).all(|(a, b)| a.end < b.start));
            }
            prop_assert_eq!(numbers(set.ranges()), plain.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.first(), plain.first().copied());
            let inside = window.clone().filter(|n| plain.contains(n)).collect::<Vec<_>>();
            let outside = window.clone().filter(|n| !plain.contains(n)).collect::<Vec<_>>();
            prop_assert_eq!(numbers(set.overlaps(window.clone())), inside);
            prop_assert_eq!(numbers(set.gaps(window.clone())), outside);
            for n in window {
                prop_assert_eq!(set.contains(n), plain.contains(&n));
            }
        }
    }
}
