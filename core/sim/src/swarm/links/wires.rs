//! The links. Each node sends a few blocks at a time within its rack, and a few beyond it. All
//! blocks share links with each other.

use crate::schedule::flows::{Finish, FlowId, Flows};
use crate::swarm::distribution::SwarmScenario;
use crate::swarm::racks_of_nodes;
use cool_swarm::blocks_at_a_time;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// A block in flight.
#[derive(Clone, Debug)]
pub(super) struct SimulatedBlock {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) transfer: u32,
    /// Time in nanoseconds from its first byte to its last. While it is in flight: when it began.
    pub(super) took: u64,
    pub(super) bytes: Vec<u8>,
}

/// The links and the blocks on them.
pub(super) struct SwarmWires {
    flows: Flows,
    /// The rack of each node.
    racks: Vec<usize>,
    limited: bool,
    block: u64,
    /// For each lane of each node (within its rack and beyond it): blocks to send, and blocks in
    /// flight.
    queues: Vec<VecDeque<SimulatedBlock>>,
    flying: Vec<Vec<(FlowId, SimulatedBlock)>>,
    /// The lane of each flow.
    lanes: Vec<usize>,
    sent: Vec<f64>,
    uplinks: Vec<f64>,
    /// The largest factor by which a block takes longer than its links require, and the generator
    /// of that factor.
    slowed: f64,
    rng: ChaCha8Rng,
}

impl SwarmWires {
    /// Creates the links. Links 2n and 2n + 1 are from and to node n; those of racks follow in the
    /// same way.
    pub(super) fn new(what: &SwarmScenario) -> SwarmWires {
        let racks = racks_of_nodes(&what.racks);
        let mut rates = vec![what.host as f64 / 1e9; 2 * racks.len()];
        for (node, rate) in &what.slow {
            rates[2 * node..2 * node + 2].fill(*rate as f64 / 1e9);
        }
        rates.resize(rates.len() + 2 * what.racks.len(), what.uplink.unwrap_or(u64::MAX) as f64 / 1e9);
        SwarmWires {
            flows: Flows::new(rates.into_iter(), 0, 0),
            limited: what.uplink.is_some(),
            block: what.block,
            queues: vec![VecDeque::new(); 2 * racks.len()],
            flying: vec![Vec::new(); 2 * racks.len()],
            lanes: Vec::new(),
            sent: vec![0.0; racks.len()],
            uplinks: vec![0.0; what.racks.len()],
            slowed: what.slowed,
            rng: ChaCha8Rng::seed_from_u64(what.seed),
            racks,
        }
    }

    /// Returns when rates must be recomputed, if they must.
    pub(super) fn due(&mut self) -> Option<u64> {
        self.flows.due()
    }

    /// Recomputes rates. Returns when each affected block will have been sent.
    pub(super) fn share(&mut self, now: u64) -> Vec<Finish> {
        let mut finishes = Vec::new();
        if self.flows.due().is_some_and(|due| due <= now) {
            self.flows.share(now, |finish| finishes.push(finish));
        }
        finishes
    }

    /// Returns the number of bytes that left a node.
    pub(super) fn sent(&self, node: usize) -> f64 {
        self.sent[node]
    }

    /// Returns the number of bytes that left each node, and each rack.
    pub(super) fn carried(self) -> (Vec<f64>, Vec<f64>) {
        (self.sent, self.uplinks)
    }

    pub(super) fn send(&mut self, now: u64, block: SimulatedBlock) {
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
        let most = self.flows.narrowest(&links[..2]) / self.rng.random_range(1.0..=self.slowed);
        let flow = self.flows.begin(now, links, self.block, most).expect("links pass no bursts");
        let at = flow.0 as usize;
        self.lanes.resize(self.lanes.len().max(at + 1), 0);
        self.lanes[at] = lane;
        self.flying[lane].push((flow, block));
    }

    /// Returns sender, receiver and number of the block that will end, if `finish` is still
    /// current.
    pub(super) fn block_of(&self, finish: &Finish) -> Option<(usize, usize, u32)> {
        let mut flying = self.flying[self.lanes[finish.flow.0 as usize]].iter();
        let (_, block) = flying.find(|(flow, _)| *flow == finish.flow)?;
        self.flows.is_current(finish).then_some((block.from, block.to, block.transfer))
    }

    /// Removes and returns the block that has been sent, if `finish` is still current.
    pub(super) fn finish(&mut self, now: u64, finish: &Finish) -> Option<SimulatedBlock> {
        if !self.flows.is_current(finish) {
            return None;
        }
        let lane = self.lanes[finish.flow.0 as usize];
        let at = self.flying[lane].iter().position(|(flow, _)| *flow == finish.flow)?;
        Some(self.end(now, lane, at))
    }

    /// Removes a block in flight from a lane, and sends the next one.
    fn end(&mut self, now: u64, lane: usize, at: usize) -> SimulatedBlock {
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
        let such = |block: &SimulatedBlock| (block.to, block.transfer) == (to, transfer);
        self.queues[lane].retain(|block| !such(block));
        if let Some(at) = self.flying[lane].iter().position(|(_, block)| such(block)) {
            self.end(now, lane, at);
        }
    }

    /// Drops all blocks that a node sends.
    pub(super) fn clear(&mut self, now: u64, from: usize) {
        for lane in [2 * from, 2 * from + 1] {
            self.queues[lane].clear();
            while !self.flying[lane].is_empty() {
                self.end(now, lane, 0);
            }
        }
    }
}
