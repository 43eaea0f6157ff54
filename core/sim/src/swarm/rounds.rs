//! Gossip in rounds: the model of Cooper (section 2), in which each node sends one block and receives one in each, and knows
//! what its successor holds.

use super::{members, racks_of_nodes};
use cool_swarm::{Code, Division, Holdings, Knowledge, Member, Order, Phase, Pick, Rings, Share};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// A gossip to simulate.
#[derive(Clone, Debug)]
pub struct Gossip {
    /// Nodes of each rack; the first of the first is the source.
    pub racks: Vec<u32>,
    /// Whether rings keep racks together, or run through all nodes by chance, as the paper's.
    pub together: bool,
    /// How the content is divided.
    pub division: Division,
    /// Whether the head of a block, its coefficients, goes before it, so that the receiver refuses what is not new and
    /// another is picked; in the paper's model all of a block goes.
    pub heads: bool,
    /// What is sent.
    pub code: Code,
    /// Which generation first.
    pub order: Order,
    /// What chance there is.
    pub seed: u64,
}

/// How a gossip went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GossipOutcome {
    /// Rounds until all nodes had everything.
    pub rounds: u64,
    /// The round in which each node had everything; 0 for the source.
    pub nodes: Vec<u64>,
    /// The round in which the last node had all of each generation.
    pub generations: Vec<u64>,
    /// Blocks sent, and those of them that were new to nobody.
    pub sent: u64,
    /// See there.
    pub vain: u64,
    /// Heads refused.
    pub refused: u64,
    /// Blocks that left a rack over its uplink in a round: the most of all racks, on average over the rounds.
    pub uplink: f64,
}

/// A gossip that went on for longer than any does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{lacking} nodes still lack something after {rounds} rounds")]
pub struct GossipStall {
    /// How many.
    pub lacking: usize,
    /// After how many.
    pub rounds: u64,
}

/// One under way.
struct Run<'a> {
    gossip: &'a Gossip,
    /// The rack of each node, whether rings keep to racks or not.
    racks: Vec<usize>,
    rings: Rings,
    members: Vec<Member>,
    /// The number of the member in each slot of each rack of the rings.
    numbers: Vec<Vec<usize>>,
    nodes: Vec<Holdings>,
    /// How many nodes have each block as it is; kept for those codes that ask.
    holders: Vec<u32>,
    /// How many nodes lack something of each generation.
    lacking: Vec<usize>,
    settled: u32,
    chance: ChaCha8Rng,
    outcome: GossipOutcome,
}

impl Gossip {
    /// Rounds within which any gossip ends: as if every block went to every node on its own.
    fn bound(&self) -> u64 {
        let nodes: u64 = self.racks.iter().map(|nodes| u64::from(*nodes)).sum();
        (u64::from(self.division.blocks) + 10) * (nodes + 10)
    }

    /// Runs it.
    ///
    /// # Errors
    /// If it does not end.
    pub fn run(&self) -> Result<GossipOutcome, GossipStall> {
        let mut run = Run::new(self);
        while run.lacking.iter().any(|lacking| *lacking > 0) {
            run.outcome.rounds += 1;
            if run.outcome.rounds > self.bound() {
                let lacking = run.nodes.iter().filter(|node| !node.is_complete()).count();
                return Err(GossipStall { lacking, rounds: self.bound() });
            }
            run.round();
        }
        let rounds = run.outcome.rounds.max(1) as f64;
        run.outcome.uplink /= rounds;
        Ok(run.outcome)
    }
}

impl<'a> Run<'a> {
    fn new(gossip: &'a Gossip) -> Run<'a> {
        let &Gossip { division, code, order, .. } = gossip;
        let count: u32 = gossip.racks.iter().sum();
        let racks = if gossip.together { gossip.racks.clone() } else { vec![count] };
        let members = members(&racks);
        let mut numbers: Vec<Vec<usize>> = vec![Vec::new(); racks.len()];
        members.iter().enumerate().for_each(|(at, member)| numbers[member.rack as usize].push(at));
        let mut nodes = vec![Holdings::source(division, code, order, Share { index: 0, of: 1 })];
        nodes.resize(members.len(), Holdings::empty(division, code, order));
        let blocks = if code == Code::Linear { 0 } else { division.blocks };
        let generations = division.generations() as usize;
        Run {
            gossip,
            racks: racks_of_nodes(&gossip.racks),
            rings: Rings::new(gossip.seed, 1, racks),
            numbers,
            holders: vec![1; blocks as usize],
            lacking: vec![members.len() - 1; generations],
            settled: 0,
            chance: ChaCha8Rng::seed_from_u64(gossip.seed),
            outcome: GossipOutcome {
                nodes: vec![0; members.len()],
                generations: vec![0; generations],
                ..GossipOutcome::default()
            },
            nodes,
            members,
        }
    }

    fn round(&mut self) {
        let round = self.outcome.rounds;
        let phase = Phase { round, settled: self.settled, members: self.members.len() as u32 };
        let mut left = vec![0u32; self.gossip.racks.len()];
        let racks = &self.racks;
        let mut flying: Vec<(usize, Pick)> = Vec::new();
        for sender in 0..self.nodes.len() {
            if self.nodes[sender].is_empty() {
                continue;
            }
            let Some(member) = self.rings.successor(round, self.members[sender], |_| true) else { continue };
            let receiver = self.numbers[member.rack as usize][member.slot as usize];
            let Ok([from, to]) = self.nodes.get_disjoint_mut([sender, receiver]) else { continue };
            if to.is_complete() {
                continue;
            }
            let mut vain = Vec::new();
            loop {
                let known =
                    Knowledge { receiver: to.have(), holders: &self.holders, phase, vain: &vain, left: None };
                let Some(pick) = from.pick(&known, &mut self.chance) else { break };
                if self.gossip.heads && !to.needs(pick.generation, &pick.row) {
                    self.outcome.refused += 1;
                    vain.push(pick.generation);
                    continue;
                }
                left[racks[sender]] += u32::from(racks[sender] != racks[receiver]);
                flying.push((receiver, pick));
                break;
            }
        }
        self.outcome.uplink += f64::from(left.into_iter().max().unwrap_or(0));
        flying.into_iter().for_each(|(receiver, pick)| self.arrive(receiver, &pick));
        while self.lacking.get(self.settled as usize) == Some(&0) {
            self.settled += 1;
        }
    }

    fn arrive(&mut self, receiver: usize, pick: &Pick) {
        let node = &mut self.nodes[receiver];
        self.outcome.sent += 1;
        let Some(slot) = node.insert(pick.generation, &pick.row) else {
            self.outcome.vain += 1;
            return;
        };
        if let cool_swarm::Slot::Block(block) = slot {
            let block = self.gossip.division.first(pick.generation) + u32::from(block);
            if let Some(holders) = self.holders.get_mut(block as usize) {
                *holders += 1;
            }
        }
        let generation = node.generation(pick.generation).expect("it has just taken a row of it");
        if generation.rank() == generation.size() {
            // Nobody looks at bytes here, so nothing is computed.
            node.decoded(pick.generation);
            let at = pick.generation as usize;
            self.lacking[at] -= 1;
            self.outcome.generations[at] = self.outcome.rounds;
            if node.is_complete() {
                self.outcome.nodes[receiver] = self.outcome.rounds;
            }
        }
    }
}
