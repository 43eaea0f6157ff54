//! Gossip in rounds: the model of Cooper (section 2), in which each node sends one block and
//! receives one block in each round, and knows the holdings of its successor.

use super::{members, racks_of_nodes};
use cool_swarm::{Code, Division, Holdings, Knowledge, Member, Order, Phase, Pick, Rings, SourceIndex};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// A gossip to simulate.
#[derive(Clone, Debug)]
pub struct Gossip {
    /// Number of nodes in each rack. The first node of the first rack is the source.
    pub racks: Vec<u32>,
    /// Whether rings keep racks together, or are random over all nodes as in the paper.
    pub keeps_racks_together: bool,
    /// The division of the content.
    pub division: Division,
    /// Whether a block is announced by its coefficients before it is sent, so that the receiver can
    /// refuse one that is not new and the sender picks another. In the paper's model the whole
    /// block is sent.
    pub heads: bool,
    /// Which blocks are sent: coded ones, or originals only.
    pub code: Code,
    /// Which generation is sent first.
    pub order: Order,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The result of a gossip.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GossipOutcome {
    /// Number of rounds until all nodes had everything.
    pub rounds: u64,
    /// The round in which each node had everything; 0 for the source.
    pub nodes: Vec<u64>,
    /// The round in which the last node had all of each generation.
    pub generations: Vec<u64>,
    /// Number of blocks sent.
    pub sent: u64,
    /// Number of these blocks that were not new to their receivers.
    pub not_new: u64,
    /// Number of refused announcements.
    pub refused: u64,
    /// Number of blocks that left a rack over its uplink in a round: the maximum over racks,
    /// averaged over the rounds.
    pub uplink: f64,
}

/// A gossip that exceeded its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{incomplete} nodes are still incomplete after {rounds} rounds")]
pub struct GossipStall {
    /// Number of incomplete nodes.
    pub incomplete: usize,
    /// Number of rounds.
    pub rounds: u64,
}

/// A gossip in progress.
struct GossipRun<'a> {
    gossip: &'a Gossip,
    /// The rack of each node, whether or not rings keep racks together.
    racks: Vec<usize>,
    rings: Rings,
    members: Vec<Member>,
    /// The index of the member in each slot of each rack of the rings.
    numbers: Vec<Vec<usize>>,
    nodes: Vec<Holdings>,
    /// Number of nodes that have each original. Kept only for codes that need it.
    holders: Vec<u32>,
    /// Number of nodes that are missing blocks of each generation.
    incomplete: Vec<usize>,
    settled: u32,
    rng: ChaCha8Rng,
    outcome: GossipOutcome,
}

impl Gossip {
    /// Returns a number of rounds within which any gossip ends: as if every block were sent to
    /// every node separately.
    fn bound(&self) -> u64 {
        let nodes: u64 = self.racks.iter().map(|nodes| u64::from(*nodes)).sum();
        (u64::from(self.division.blocks) + 10) * (nodes + 10)
    }

    /// Runs the gossip.
    ///
    /// # Errors
    /// Fails if the gossip exceeds its time limit.
    pub fn run(&self) -> Result<GossipOutcome, GossipStall> {
        let mut run = GossipRun::new(self);
        while run.incomplete.iter().any(|incomplete| *incomplete > 0) {
            run.outcome.rounds += 1;
            if run.outcome.rounds > self.bound() {
                let incomplete = run.nodes.iter().filter(|node| !node.is_complete()).count();
                return Err(GossipStall { incomplete, rounds: self.bound() });
            }
            run.round();
        }
        let rounds = run.outcome.rounds.max(1) as f64;
        run.outcome.uplink /= rounds;
        Ok(run.outcome)
    }
}

impl<'a> GossipRun<'a> {
    fn new(gossip: &'a Gossip) -> GossipRun<'a> {
        let &Gossip { division, code, order, .. } = gossip;
        let count: u32 = gossip.racks.iter().sum();
        let racks = if gossip.keeps_racks_together { gossip.racks.clone() } else { vec![count] };
        let members = members(&racks);
        let mut numbers: Vec<Vec<usize>> = vec![Vec::new(); racks.len()];
        members.iter().enumerate().for_each(|(at, member)| numbers[member.rack as usize].push(at));
        let mut nodes = vec![Holdings::source(division, code, order, SourceIndex { index: 0, of: 1 })];
        nodes.resize(members.len(), Holdings::empty(division, code, order));
        let blocks = if code == Code::Linear { 0 } else { division.blocks };
        let generations = division.generations() as usize;
        GossipRun {
            gossip,
            racks: racks_of_nodes(&gossip.racks),
            rings: Rings::new(gossip.seed, 1, racks),
            numbers,
            holders: vec![1; blocks as usize],
            incomplete: vec![members.len() - 1; generations],
            settled: 0,
            rng: ChaCha8Rng::seed_from_u64(gossip.seed),
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
            let mut not_new = Vec::new();
            loop {
                let known = Knowledge {
                    receiver: to.have(),
                    holders: &self.holders,
                    phase,
                    not_new: &not_new,
                    left: None,
                };
                let Some(pick) = from.pick(&known, &mut self.rng) else { break };
                if self.gossip.heads && !to.needs(pick.generation, &pick.row) {
                    self.outcome.refused += 1;
                    not_new.push(pick.generation);
                    continue;
                }
                left[racks[sender]] += u32::from(racks[sender] != racks[receiver]);
                flying.push((receiver, pick));
                break;
            }
        }
        self.outcome.uplink += f64::from(left.into_iter().max().unwrap_or(0));
        flying.into_iter().for_each(|(receiver, pick)| self.arrive(receiver, &pick));
        while self.incomplete.get(self.settled as usize) == Some(&0) {
            self.settled += 1;
        }
    }

    fn arrive(&mut self, receiver: usize, pick: &Pick) {
        let node = &mut self.nodes[receiver];
        self.outcome.sent += 1;
        let Some(slot) = node.insert(pick.generation, &pick.row) else {
            self.outcome.not_new += 1;
            return;
        };
        if let cool_swarm::Slot::Block(block) = slot {
            let block = self.gossip.division.first(pick.generation) + u32::from(block);
            if let Some(holders) = self.holders.get_mut(block as usize) {
                *holders += 1;
            }
        }
        let generation = node.generation(pick.generation).expect("a block of it was just inserted");
        if generation.rank() == generation.size() {
            // There are no bytes in this model, so nothing is computed.
            node.decoded(pick.generation);
            let at = pick.generation as usize;
            self.incomplete[at] -= 1;
            self.outcome.generations[at] = self.outcome.rounds;
            if node.is_complete() {
                self.outcome.nodes[receiver] = self.outcome.rounds;
            }
        }
    }
}
