//! Alltoall: the ranks of a rack exchange their blocks directly. Blocks to other racks pass through
//! both leaders, so that few messages cross racks. A plan of one level exchanges all blocks by its
//! pattern.

use super::part_order::offsets;
use super::{ScheduleEmitter, input, output};
use crate::builder::{ScratchSlot, consecutive};
use crate::schedule::{Rank, Span};

/// The place of every block at both ends.
struct Blocks {
    lens: Vec<Vec<u64>>,
    sent: Vec<Vec<u64>>,
    received: Vec<Vec<u64>>,
}

impl Blocks {
    fn new(emitter: &ScheduleEmitter<'_, '_>) -> Blocks {
        let size = emitter.layout.size();
        let len = |from, to| emitter.call.block(from, to, size);
        let all = 0..size;
        Blocks {
            lens: all.clone().map(|from| all.clone().map(|to| len(from, to)).collect()).collect(),
            sent: all.clone().map(|from| offsets(all.clone().map(|to| len(from, to)))).collect(),
            received: all.clone().map(|to| offsets(all.clone().map(|from| len(from, to)))).collect(),
        }
    }

    fn len(&self, from: Rank, to: Rank) -> u64 {
        self.lens[from.0 as usize][to.0 as usize]
    }

    fn src(&self, from: Rank, to: Rank) -> Span {
        input(self.sent[from.0 as usize][to.0 as usize], self.len(from, to))
    }

    fn dst(&self, from: Rank, to: Rank) -> Span {
        output(self.received[to.0 as usize][from.0 as usize], self.len(from, to))
    }
}

/// The blocks from one rack to another, by sender and receiver, side by side at a leader.
struct Bundle {
    whole: Span,
    spans: Vec<Vec<Span>>,
}

impl ScheduleEmitter<'_, '_> {
    pub(super) fn flat_alltoall(&mut self) {
        let blocks = Blocks::new(self);
        let members = self.ranks_of_node(0).members;
        self.alltoall_among(&members, &blocks);
    }

    fn alltoall_among(&mut self, members: &[Rank], blocks: &Blocks) {
        let level = if self.is_flat() { self.plan.node } else { self.plan.rack };
        let block = |from: usize, to: usize| {
            (blocks.src(members[from], members[to]), blocks.dst(members[from], members[to]))
        };
        level.up.alltoall()(self.b, members, &block);
    }

    pub(super) fn alltoall(&mut self) {
        let blocks = Blocks::new(self);
        let racks: Vec<Vec<Rank>> = (0..self.layout.racks())
            .map(|rack| {
                let nodes = self.layout.nodes_of_rack(rack);
                nodes.flat_map(|node| self.layout.ranks_of_node(node).iter().copied()).collect()
            })
            .collect();
        let all = 0..racks.len();
        let leaving: Vec<Vec<Bundle>> = all
            .clone()
            .map(|rack| {
                let pairs = all.clone().map(|to| (rack, to));
                self.bundles(rack, ScratchSlot::Parts(0), pairs, &racks, &blocks)
            })
            .collect();
        let arriving: Vec<Vec<Bundle>> = all
            .clone()
            .map(|rack| {
                let pairs = all.clone().map(|from| (from, rack));
                self.bundles(rack, ScratchSlot::Parts(1), pairs, &racks, &blocks)
            })
            .collect();
        for (rack, ranks) in racks.iter().enumerate() {
            let leader = self.rack_leader(rack);
            for (i, rank) in ranks.iter().enumerate() {
                let moves = (0..racks.len()).filter(|to| *to != rack).flat_map(|to| {
                    let bundle = &leaving[rack][to];
                    racks[to].iter().zip(&bundle.spans[i]).map(|(to, span)| (blocks.src(*rank, *to), *span))
                });
                self.b.send_all(*rank, leader, moves.collect::<Vec<_>>());
            }
        }
        let leaders = self.leaders().members;
        self.plan.center.up.alltoall()(self.b, &leaders, &|from, to| {
            (leaving[from][to].whole, arriving[to][from].whole)
        });
        for (rack, ranks) in racks.iter().enumerate() {
            let leader = self.rack_leader(rack);
            for (i, rank) in ranks.iter().enumerate() {
                let moves = (0..racks.len()).filter(|from| *from != rack).flat_map(|from| {
                    let bundle = &arriving[rack][from];
                    racks[from].iter().zip(&bundle.spans).map(move |(from, spans)| (spans[i], *from))
                });
                let moves = moves.map(|(span, from)| (span, blocks.dst(from, *rank)));
                self.b.send_all(leader, *rank, moves.collect::<Vec<_>>());
            }
            self.alltoall_among(ranks, &blocks);
        }
    }

    /// Returns room at a rack's leader for the blocks of several pairs of racks. A rack's own
    /// blocks need none.
    fn bundles(
        &mut self,
        rack: usize,
        slot: ScratchSlot,
        pairs: impl Iterator<Item = (usize, usize)>,
        racks: &[Vec<Rank>],
        blocks: &Blocks,
    ) -> Vec<Bundle> {
        let lens: Vec<Vec<Vec<u64>>> = pairs
            .map(|(from, to)| {
                let len = |i: &Rank, j: &Rank| if from == to { 0 } else { blocks.len(*i, *j) };
                racks[from].iter().map(|i| racks[to].iter().map(|j| len(i, j)).collect()).collect()
            })
            .collect();
        let sums: Vec<u64> = lens.iter().map(|pair| pair.iter().flatten().sum()).collect();
        let slot = self.b.slot(self.rack_leader(rack), slot, sums.iter().sum());
        let bundle = |(whole, pair): (Span, &Vec<Vec<u64>>)| {
            let rows = consecutive(whole, pair.iter().map(|row| row.iter().sum()).collect::<Vec<u64>>());
            let spans =
                rows.zip(pair).map(|(row, lens)| consecutive(row, lens.iter().copied()).collect()).collect();
            Bundle { whole, spans }
        };
        consecutive(slot, sums).zip(&lens).map(bundle).collect()
    }
}
