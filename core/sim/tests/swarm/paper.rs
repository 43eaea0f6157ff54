//! Cooper's statements about gossip in rounds, and how far they hold here.

use cool_sim::swarm::{Gossip, GossipOutcome};
use cool_swarm::{Code, Division, Order};

pub(super) fn gossip(nodes: u32, k: u16, m: u32, order: Order) -> Gossip {
    Gossip {
        racks: vec![nodes],
        keeps_racks_together: false,
        division: Division { blocks: u32::from(k) * m, generation: k },
        heads: false,
        code: Code::Linear,
        order,
        seed: 0,
    }
}

/// Returns the outcomes of several seeds.
pub(super) fn outcomes(gossip: &Gossip, seeds: u64) -> Vec<GossipOutcome> {
    let seeded = |seed| Gossip { seed, ..gossip.clone() };
    (0..seeds).map(|seed| seeded(seed).run().expect("gossip ends")).collect()
}

pub(super) fn mean(outcomes: &[GossipOutcome], of: impl Fn(&GossipOutcome) -> f64) -> f64 {
    outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64
}

/// Returns the least number of rounds in which k blocks can reach n nodes (section 2.1).
pub(super) fn least(nodes: u32, blocks: u32) -> f64 {
    f64::from(blocks + nodes.next_power_of_two().ilog2())
}

#[test]
fn coded_gossip_ends_within_k_and_log_n_and_four_rounds() {
    for nodes in [20, 64, 150, 300] {
        for outcome in outcomes(&gossip(nodes, 200, 1, Order::Sequential), 2) {
            assert!(outcome.rounds as f64 <= least(nodes, 200) + 4.0, "{nodes} nodes: {}", outcome.rounds);
        }
    }
}

#[test]
fn random_blocks_take_twenty_to_fifty_rounds_more() {
    for nodes in [20, 100, 200] {
        let random = Gossip { code: Code::RandomBlock, ..gossip(nodes, 200, 1, Order::Sequential) };
        let over = mean(&outcomes(&random, 10), |outcome| outcome.rounds as f64) - least(nodes, 200);
        assert!((20.0..=50.0).contains(&over), "{nodes} nodes: {over}");
    }
}

/// Theorem 2 and corollary 3, with the times of algorithm 2: batch 1 is delayed by at most
/// `2.7 / (1 - 2 / sqrt n)` rounds, and batch b saves (b - 1) times half of log n minus that delay.
/// Overlap-1 saves less (section 4.2).
#[test]
fn overlapping_generations_save_as_much_as_in_the_theorem() {
    for (nodes, k, m) in [(20u32, 16, 3u32), (64, 16, 4), (256, 16, 8)] {
        let [one_by_one, early, late] = [Order::Sequential, Order::Overlap1, Order::Overlap2 { margin: 1 }]
            .map(|order| outcomes(&gossip(nodes, k, m, order), 20));
        let rounds = |of: &[GossipOutcome]| mean(of, |outcome| outcome.rounds as f64);
        let first = |of: &[GossipOutcome]| mean(of, |outcome| outcome.generations[0] as f64);
        let late_by = 2.7 / (1.0 - 2.0 / f64::from(nodes).sqrt());
        assert!(first(&late) - first(&one_by_one) <= late_by, "{nodes} nodes: {}", first(&late));
        let least = f64::from(m - 1) * (f64::from(nodes.ilog2() / 2) - late_by);
        let saved = rounds(&one_by_one) - rounds(&late);
        assert!(saved >= least, "{nodes} nodes: {saved} rounds saved, expected {least}");
        assert!(rounds(&early) > rounds(&late), "{nodes} nodes");
        assert!((first(&early) - first(&one_by_one)).abs() < 1.0, "batch 1 is not delayed by Overlap-1");
    }
}

#[test]
fn rings_by_racks_send_one_block_a_round_over_an_uplink() {
    let free = Gossip { racks: vec![8; 8], ..gossip(64, 32, 1, Order::Sequential) };
    let together = Gossip { keeps_racks_together: true, ..free.clone() };
    let [free, together] =
        [free, together].map(|gossip| mean(&outcomes(&gossip, 5), |outcome| outcome.uplink));
    assert!(together <= 1.0, "{together} blocks a round");
    assert!(free > 5.0, "{free} blocks a round");
}
