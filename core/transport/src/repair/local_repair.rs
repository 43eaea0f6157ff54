//! Local repair: chunks that a whole rack is missing are multicast there once. Decides which losses
//! those are, and whether the rack's tree works.
//!
//! A chunk lost at or before a rack's switch is missing at the first receiver of the rack and at
//! all nodes behind it. The first receiver gets it from the previous rack once, and multicasts it
//! in its own rack instead of passing it from node to node. It only knows that it was missing the
//! chunk and that the next node waits for it. If nodes lose independently this is a coincidence,
//! and the other nodes would receive chunks that they already have; but then the next node is
//! missing few of the chunks that this node is missing.

use crate::intervals::IntervalSet;
use crate::spec::Chain;
use core::ops::Range;

/// Number of multicast chunks that may be requested again without effect. Only further ones count
/// against the tree.
const FREE_MISSES: u32 = 4;
/// Number of this node's losses after which their counts are halved, so that older losses weigh
/// less.
const LOSSES_REMEMBERED: u32 = 64;

/// The rack of a receiver and its record of local repair.
#[derive(Debug)]
pub(crate) struct LocalRepair {
    positions: Range<u16>,
    /// Whether this node is the rack's first receiver, and the rack's tree exists and works.
    repairs: bool,
    /// Chunks multicast here that have not been requested since.
    multicast: IntervalSet,
    sent: u32,
    missed: u32,
    /// Chunks that this node lost recently, and those of them for which the next node waited.
    lost: u32,
    shared: u32,
}

impl LocalRepair {
    /// Returns the rack of position `me`. `tree` is whether the rack has a tree of its own.
    pub(crate) fn new(chain: &Chain, me: u16, tree: bool) -> LocalRepair {
        let positions = chain.head(me)..chain.rack_end(me);
        // With fewer than two nodes behind this node a multicast saves nothing. The source, if it
        // is in the rack, is missing nothing.
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

    /// Returns whether a position is in this rack.
    pub(crate) fn contains(&self, position: u16) -> bool {
        self.positions.contains(&position)
    }

    /// Returns whether this node repairs the losses of its rack.
    pub(crate) fn repairs(&self) -> bool {
        self.repairs
    }

    /// Returns the entries of its lists.
    pub(crate) fn entries(&self) -> usize {
        self.multicast.range_count()
    }

    /// Records a chunk that this node had requested and received. `shared` is whether the next node
    /// waits for it too. Returns whether the chunk must be multicast in the rack.
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

    /// Records a NAK of the next node. A few of the multicast chunks may be lost again, but if most
    /// are, the tree does not work.
    pub(crate) fn on_nak(&mut self, chunks: &[Range<u32>]) {
        self.missed += chunks.iter().map(|range| self.multicast.remove(range.clone())).sum::<u32>();
        self.repairs &= self.missed <= FREE_MISSES + self.sent / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Hop;

    /// Returns the rack of a position in a chain of nine nodes, three per rack.
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
