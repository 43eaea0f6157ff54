//! Mending what a rack has lost for all its nodes at once: which losses those are, and whether that works.
//!
//! What is lost at a rack's switch or before it, its first receiver lacks, and so do all behind it. That one has
//! it from the rack before, once, and multicasts it in its rack in place of handing it from node to node. What
//! is known there is that it lacked the chunk itself and that the next node waits for it. Where nodes lose on
//! their own that is a coincidence, and the others would get what they have; but then the next node lacks few
//! of the chunks that this one lacks.

use crate::intervals::IntervalSet;
use crate::spec::Chain;
use core::ops::Range;

/// Chunks that may be asked for after all before the share of them counts.
const FREE_MISSES: u32 = 4;
/// Losses of this node that are remembered, the latest most.
const LOSSES_REMEMBERED: u32 = 64;

/// A receiver's rack, as far as repair goes.
#[derive(Debug)]
pub(crate) struct LocalRepair {
    positions: Range<u16>,
    /// This node is its first receiver, and the tree of the rack is there and works.
    repairs: bool,
    /// Multicast here, and not asked for since.
    multicast: IntervalSet,
    sent: u32,
    missed: u32,
    /// Chunks that this node lacked lately, and those of them that the next one waited for.
    lost: u32,
    shared: u32,
}

impl LocalRepair {
    /// The rack of a position; `tree`: it has a tree of its own.
    pub(crate) fn new(chain: &Chain, me: u16, tree: bool) -> LocalRepair {
        let positions = chain.head(me)..chain.rack_end(me);
        // Two behind this node, or there is nothing to save. The source, if it is here, lacks nothing.
        let repairs = tree && me == positions.start.max(1) && positions.end - me > 2;
        LocalRepair {
            positions,
            repairs,
            multicast: IntervalSet::default(),
            sent: 0,
            missed: 0,
            lost: 0,
            shared: 0,
        }
    }

    /// Whether a position is in this rack.
    pub(crate) fn contains(&self, position: u16) -> bool {
        self.positions.contains(&position)
    }

    /// Whether this node mends what its rack has lost.
    pub(crate) fn repairs(&self) -> bool {
        self.repairs
    }

    /// Entries of its lists.
    pub(crate) fn entries(&self) -> usize {
        self.multicast.range_count()
    }

    /// A chunk came that this node had asked for; `shared`: the next one waits for it too. Tells whether to multicast it.
    pub(crate) fn on_repaired(&mut self, chunk: u32, shared: bool) -> bool {
        if self.lost == LOSSES_REMEMBERED {
            (self.lost, self.shared) = (self.lost / 2, self.shared / 2);
        }
        self.lost += 1;
        self.shared += u32::from(shared);
        let multicast = shared && self.shared >= self.lost / 2;
        if multicast {
            self.multicast.insert(chunk..chunk + 1);
            self.sent += 1;
        }
        multicast
    }

    /// The next node asks for these. Of what was multicast it may have lost some; if it lacks most, nobody hears it.
    pub(crate) fn on_nak(&mut self, chunks: &[Range<u32>]) {
        self.missed += chunks.iter().map(|range| self.multicast.remove(range.clone())).sum::<u32>();
        self.repairs &= self.missed <= FREE_MISSES + self.sent / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Hop;

    /// The rack of a position of a chain of nine, three to a rack.
    fn rack(me: u16) -> LocalRepair {
        let chain = Chain::new((0..9).map(|node| Hop { node, rack: node / 3 }).collect()).unwrap();
        LocalRepair::new(&chain, me, true)
    }

    #[test]
    fn the_first_receiver_repairs_a_rack_of_three_or_more() {
        assert_eq!((1..9).filter(|me| rack(*me).repairs()).collect::<Vec<_>>(), [3, 6]);
    }

    #[test]
    fn a_coincidence_is_not_a_loss_of_the_rack() {
        let mut rack = rack(3);
        let multicast = (0..1000).filter(|chunk| rack.on_repaired(*chunk, chunk % 5 == 0)).count();
        assert!(multicast < 5, "{multicast}");
        let multicast = (1000..2000).filter(|chunk| rack.on_repaired(*chunk, chunk % 5 > 0)).count();
        assert!(multicast > 700, "{multicast}");
    }

    #[test]
    fn a_dead_rack_tree_is_given_up_and_a_lossy_one_is_not() {
        let (mut lossy, mut dead) = (rack(3), rack(3));
        for chunk in 0..1000 {
            assert!(lossy.on_repaired(chunk, true) && dead.on_repaired(chunk, true));
            if chunk % 3 == 0 {
                lossy.on_nak(&[chunk..chunk + 1]);
            }
            if chunk % 3 != 0 {
                dead.on_nak(&[chunk..chunk + 1, chunk..chunk + 1]);
            }
        }
        assert!(lossy.repairs());
        assert!(!dead.repairs());
    }
}
