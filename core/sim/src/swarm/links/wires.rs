//! The links: each node sends a few blocks at a time within its rack, and beyond it, which share links with each other and with those of others.

use crate::schedule::flows::{Finish, FlowId, Flows};
use crate::swarm::distribution::Distribution;
use crate::swarm::racks_of_nodes;
use cool_swarm::blocks_at_a_time;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// A block on its way.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) transfer: u32,
    /// Nanoseconds from its first byte to its last; while it is under way when it began.
    pub(super) took: u64,
    pub(super) bytes: Vec<u8>,
}

/// Links and what is on them.
pub(super) struct Wires {
    flows: Flows,
    /// Of each node: the rack.
    racks: Vec<usize>,
    limited: bool,
    block: u64,
    /// Of each node's lanes, within its rack and beyond it: blocks to send, and those under way.
    queues: Vec<VecDeque<Block>>,
    flying: Vec<Vec<(FlowId, Block)>>,
    /// The lane of each flow.
    lanes: Vec<usize>,
    sent: Vec<f64>,
    uplinks: Vec<f64>,
    /// How many times as long as its links allow a block may take, and the chance that decides.
    slowed: f64,
    chance: ChaCha8Rng,
}

impl Wires {
    /// Links 2n and 2n + 1 are from and to node n; then likewise those of racks.
    pub(super) fn new(what: &Distribution) -> Wires {
        let racks = racks_of_nodes(&what.racks);
        let mut rates = vec![what.host as f64 / 1e9; 2 * racks.len()];
        for (node, rate) in &what.slow {
            rates[2 * node..2 * node + 2].fill(*rate as f64 / 1e9);
        }
        rates.resize(rates.len() + 2 * what.racks.len(), what.uplink.unwrap_or(u64::MAX) as f64 / 1e9);
        Wires {
            flows: Flows::new(rates.into_iter(), 0, 0),
            limited: what.uplink.is_some(),
            block: what.block,
            queues: vec![VecDeque::new(); 2 * racks.len()],
            flying: vec![Vec::new(); 2 * racks.len()],
            lanes: Vec::new(),
            sent: vec![0.0; racks.len()],
            uplinks: vec![0.0; what.racks.len()],
            slowed: what.slowed,
            chance: ChaCha8Rng::seed_from_u64(what.seed),
            racks,
        }
    }

    /// When rates are to be computed anew, if that is to be planned.
    pub(super) fn due(&mut self) -> Option<u64> {
        self.flows.due()
    }

    /// Computes rates anew: which blocks are through when.
    pub(super) fn share(&mut self, now: u64) -> Vec<Finish> {
        let mut finishes = Vec::new();
        if self.flows.due().is_some_and(|due| due <= now) {
            self.flows.share(now, |finish| finishes.push(finish));
        }
        finishes
    }

    /// Bytes that left a node.
    pub(super) fn sent(&self, node: usize) -> f64 {
        self.sent[node]
    }

    /// Bytes that left each node, and each rack.
    pub(super) fn carried(self) -> (Vec<f64>, Vec<f64>) {
        (self.sent, self.uplinks)
    }

    pub(super) fn send(&mut self, now: u64, block: Block) {
        let lane = self.lane(block.from, block.to);
        self.queues[lane].push_back(block);
        self.next(now, lane);
    }

    fn lane(&self, from: usize, to: usize) -> usize {
        2 * from + usize::from(self.racks[from] != self.racks[to])
    }

    fn next(&mut self, now: u64, lane: usize) {
        if self.flying[lane].len() == blocks_at_a_time(lane % 2 == 1) {
            return;
        }
        let Some(mut block) = self.queues[lane].pop_front() else { return };
        block.took = now;
        let from = block.from;
        let (here, there) = (self.racks[from], self.racks[block.to]);
        let mut links = vec![2 * from as u32, 2 * block.to as u32 + 1];
        if here != there && self.limited {
            let first = 2 * self.racks.len();
            links.extend([(first + 2 * here) as u32, (first + 2 * there + 1) as u32]);
        }
        let most = self.flows.narrowest(&links[..2]) / self.chance.random_range(1.0..=self.slowed);
        let flow = self.flows.begin(now, links, self.block, most).expect("links pass no bursts");
        let at = flow.0 as usize;
        self.lanes.resize(self.lanes.len().max(at + 1), 0);
        self.lanes[at] = lane;
        self.flying[lane].push((flow, block));
    }

    /// Sender, receiver and number of the block that will be through, if it still is this one.
    pub(super) fn block_of(&self, finish: &Finish) -> Option<(usize, usize, u32)> {
        let mut flying = self.flying[self.lanes[finish.flow.0 as usize]].iter();
        let (_, block) = flying.find(|(flow, _)| *flow == finish.flow)?;
        self.flows.is_current(finish).then_some((block.from, block.to, block.transfer))
    }

    /// The block that is through, if it still is this one.
    pub(super) fn finish(&mut self, now: u64, finish: &Finish) -> Option<Block> {
        if !self.flows.is_current(finish) {
            return None;
        }
        let lane = self.lanes[finish.flow.0 as usize];
        let at = self.flying[lane].iter().position(|(flow, _)| *flow == finish.flow)?;
        Some(self.end(now, lane, at))
    }

    /// Takes a block under way in a lane off its links, and begins the next.
    fn end(&mut self, now: u64, lane: usize, at: usize) -> Block {
        let (flow, mut block) = self.flying[lane].remove(at);
        let carried = self.block as f64 - self.flows.left(now, flow);
        self.flows.end(now, flow);
        let from = block.from;
        block.took = now - block.took;
        self.sent[from] += carried;
        if self.racks[from] != self.racks[block.to] {
            self.uplinks[self.racks[from]] += carried;
        }
        self.next(now, lane);
        block
    }

    pub(super) fn cancel(&mut self, now: u64, from: usize, to: usize, transfer: u32) {
        let lane = self.lane(from, to);
        let such = |block: &Block| (block.to, block.transfer) == (to, transfer);
        self.queues[lane].retain(|block| !such(block));
        if let Some(at) = self.flying[lane].iter().position(|(_, block)| such(block)) {
            self.end(now, lane, at);
        }
    }

    /// A node sends nothing any more.
    pub(super) fn clear(&mut self, now: u64, from: usize) {
        for lane in [2 * from, 2 * from + 1] {
            self.queues[lane].clear();
            while !self.flying[lane].is_empty() {
                self.end(now, lane, 0);
            }
        }
    }
}
