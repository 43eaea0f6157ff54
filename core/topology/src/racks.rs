//! Racks and their numbers. A rack consists of the hosts of one top-of-rack switch (ToR), and a
//! switch is a ToR while it has hosts.

use crate::DatapathId;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of racks, which is limited by the addresses that contain the number.
pub const MAX_RACKS: u32 = 1 << 16;

/// Numbers of the racks. A switch keeps its number forever, even while it has no hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Racks {
    numbers: BTreeMap<DatapathId, u32>,
    /// Numbers of racks without a switch of the controller, which operators name.
    by_name: BTreeMap<String, u32>,
    /// Numbers that are given only to switches that claim them.
    reserved: BTreeSet<u32>,
}

impl Racks {
    /// Numbers the ToRs that have no number yet: the smallest free numbers, in order of datapath
    /// id. Returns the switches for which no number was left.
    pub fn update(&mut self, tors: &BTreeSet<DatapathId>) -> Vec<DatapathId> {
        let mut unnumbered = tors.iter().filter(|t| !self.numbers.contains_key(t)).peekable();
        if unnumbered.peek().is_none() {
            return Vec::new();
        }
        let missing: Vec<DatapathId> = unnumbered.copied().collect();
        let given = self.numbers.len() + self.by_name.len() + self.reserved.len();
        if given + missing.len() > MAX_RACKS as usize {
            // Only if the numbers are used up, those of switches that are no ToR any longer are
            // given to others.
            self.numbers.retain(|switch, _| tors.contains(switch));
            self.reserved.clear();
        }
        let used = self.used();
        let mut free = (0..MAX_RACKS).filter(|n| !used.contains(n));
        missing
            .into_iter()
            .filter(|switch| match free.next() {
                Some(number) => {
                    self.numbers.insert(*switch, number);
                    false
                }
                None => true,
            })
            .collect()
    }

    /// Returns the number of a rack that an operator has named: the smallest free number if it has
    /// none yet. Returns `None` if no number is left.
    pub fn number_by_name(&mut self, name: &str) -> Option<u32> {
        if let Some(number) = self.by_name.get(name) {
            return Some(*number);
        }
        let used = self.used();
        let number = (0..MAX_RACKS).find(|n| !used.contains(n))?;
        self.by_name.insert(name.to_owned(), number);
        Some(number)
    }

    /// Returns the numbers that are in use or reserved.
    fn used(&self) -> BTreeSet<u32> {
        self.numbers.values().chain(self.by_name.values()).chain(&self.reserved).copied().collect()
    }

    /// Gives a switch the number that it had under an earlier controller, if both are free.
    pub fn claim(&mut self, switch: DatapathId, number: u32) {
        if number < MAX_RACKS && self.numbers.values().chain(self.by_name.values()).all(|n| *n != number) {
            self.numbers.entry(switch).or_insert(number);
        }
    }

    /// Reserves numbers that an earlier controller has given, because hosts and switches still use
    /// them although their own switches may not have connected yet.
    pub fn reserve(&mut self, numbers: impl IntoIterator<Item = u32>) {
        self.reserved.extend(numbers);
    }

    /// Returns the number of a switch's rack.
    pub fn number(&self, switch: DatapathId) -> Option<u32> {
        self.numbers.get(&switch).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Port};

    fn tors(graph: &Graph) -> BTreeSet<DatapathId> {
        graph.hosts().map(|(_, port)| port.switch).collect()
    }

    fn host(graph: &mut Graph, name: &str, switch: u64) {
        graph.place(name, Port { switch: DatapathId(switch), number: 1 });
    }

    #[test]
    fn racks_with_names_and_with_switches_have_different_numbers() {
        let (mut graph, mut racks) = (Graph::default(), Racks::default());
        racks.reserve([1]);
        assert_eq!(
            ["west", "east", "west"].map(|name| racks.number_by_name(name)),
            [Some(0), Some(2), Some(0)]
        );
        host(&mut graph, "h1", 9);
        assert!(racks.update(&tors(&graph)).is_empty());
        racks.claim(DatapathId(5), 2);
        assert_eq!((racks.number(DatapathId(9)), racks.number(DatapathId(5))), (Some(3), None));
        assert_eq!(racks.number_by_name("north"), Some(4));
    }

    #[test]
    fn a_rack_keeps_its_number_when_others_appear_and_disappear() {
        let (mut graph, mut racks) = (Graph::default(), Racks::default());
        host(&mut graph, "h1", 9);
        host(&mut graph, "h2", 5);
        assert!(racks.update(&tors(&graph)).is_empty());
        assert_eq!((racks.number(DatapathId(5)), racks.number(DatapathId(9))), (Some(0), Some(1)));
        host(&mut graph, "h3", 1);
        racks.update(&tors(&graph));
        assert_eq!(racks.number(DatapathId(1)), Some(2));
        graph.displace("h2");
        host(&mut graph, "h4", 2);
        racks.update(&tors(&graph));
        assert_eq!(racks.number(DatapathId(2)), Some(3));
        host(&mut graph, "h2", 5);
        racks.update(&tors(&graph));
        assert_eq!(racks.number(DatapathId(5)), Some(0));
    }

    #[test]
    fn a_reserved_number_is_given_only_to_its_claimant() {
        let (mut graph, mut racks) = (Graph::default(), Racks::default());
        racks.reserve([0, 2]);
        host(&mut graph, "h1", 7);
        host(&mut graph, "h2", 8);
        racks.update(&tors(&graph));
        assert_eq!([7, 8].map(|switch| racks.number(DatapathId(switch))), [Some(1), Some(3)]);
        racks.claim(DatapathId(9), 2);
        assert_eq!(racks.number(DatapathId(9)), Some(2));
    }

    #[test]
    fn a_claimed_number_is_kept_and_not_given_twice() {
        let (mut graph, mut racks) = (Graph::default(), Racks::default());
        racks.claim(DatapathId(7), 0);
        racks.claim(DatapathId(8), 0);
        host(&mut graph, "h1", 8);
        host(&mut graph, "h2", 7);
        racks.update(&tors(&graph));
        assert_eq!((racks.number(DatapathId(7)), racks.number(DatapathId(8))), (Some(0), Some(1)));
    }
}
