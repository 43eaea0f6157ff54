//! The times of the swarm, as a table under version control. `COOL_SIM_BLESS=1` rewrites it.

use super::paper::{gossip, least, mean, outcomes};
use super::snapshot;
use cool_sim::swarm::{Gossip, SwarmScenario};
use cool_swarm::{Code, Division, Order};
use std::fmt::Write;
use std::time::Duration;

const LOWEST: Order = Order::LowestRank { window: 4 };
const SEEDS: u64 = 5;

fn line(table: &mut String, text: &str) {
    writeln!(table, "{}", text.trim_end()).expect("writing to a string succeeds");
}

/// Adds the rounds beyond the minimum for all codes.
fn codes(table: &mut String) {
    line(
        table,
        "Rounds over k + log2 n, one generation: mean and most.\n\n  n    k  Linear    RandomBlock  RarestBlock",
    );
    for (nodes, k) in [(20, 200), (100, 200), (200, 200), (64, 32), (256, 32), (1024, 32)] {
        let mut row = format!("{nodes:4} {k:4}");
        for code in [Code::Linear, Code::RandomBlock, Code::RarestBlock] {
            let outcomes = outcomes(&Gossip { code, ..gossip(nodes, k, 1, Order::Sequential) }, SEEDS);
            let over = mean(&outcomes, |outcome| outcome.rounds as f64) - least(nodes, k.into());
            let most = outcomes.iter().map(|outcome| outcome.rounds).max().unwrap_or(0) as f64;
            write!(row, "  {over:4.1} {:3}   ", most - least(nodes, k.into()))
                .expect("writing to a string succeeds");
        }
        line(table, &row);
    }
}

/// Adds rings over all nodes, and rings that keep racks together.
fn racks(table: &mut String) {
    line(table, "\nRacks, k = 32: rounds over k + log2 n, and blocks a round on the busiest uplink.\n");
    line(table, "racks  rings     Linear        RarestBlock");
    for racks in [4u32, 8, 16] {
        for keeps_racks_together in [false, true] {
            let rings = if keeps_racks_together { "together" } else { "free" };
            let mut row = format!("{:5}  {rings:8}", format!("{racks}x{racks}"));
            for code in [Code::Linear, Code::RarestBlock] {
                let gossip = Gossip {
                    racks: vec![racks; racks as usize],
                    keeps_racks_together,
                    code,
                    ..gossip(racks * racks, 32, 1, Order::Sequential)
                };
                let outcomes = outcomes(&gossip, SEEDS);
                let over = mean(&outcomes, |outcome| outcome.rounds as f64) - least(racks * racks, 32);
                let uplink = mean(&outcomes, |outcome| outcome.uplink);
                write!(row, "  {over:4.1} {uplink:5.2} ").expect("writing to a string succeeds");
            }
            line(table, &row);
        }
    }
}

/// Adds the orders of generations.
fn orders(table: &mut String) {
    line(table, "\nGenerations: rounds of all, and of the first.\n");
    line(
        table,
        "  n    k   m  least  Sequential   Overlap1     Overlap2     lowest of 1  lowest of 2  lowest of 4  all",
    );
    for (nodes, k, m) in [(20, 16, 2), (20, 16, 3), (48, 32, 8), (256, 16, 8)] {
        let mut row = format!("{nodes:4} {k:4} {m:3}  {:5}", least(nodes, u32::from(k) * m));
        let lowest = [1, 2, 4, 64].map(|window| Order::LowestRank { window });
        let others = [Order::Sequential, Order::Overlap1, Order::Overlap2 { margin: 1 }];
        for order in others.into_iter().chain(lowest) {
            let outcomes = outcomes(&gossip(nodes, k, m, order), SEEDS);
            let all = mean(&outcomes, |outcome| outcome.rounds as f64);
            let first = mean(&outcomes, |outcome| outcome.generations[0] as f64);
            write!(row, "  {all:5.1} {first:5.1}").expect("writing to a string succeeds");
        }
        line(table, &row);
    }
}

/// Returns the time in seconds until the last of some nodes had everything.
fn last_of(done: &[Option<f64>]) -> f64 {
    done.iter().flatten().copied().fold(0.0, f64::max)
}

/// Returns the time of the last of some nodes divided by that of the content on its link: the mean
/// of two seeds.
fn last(what: &SwarmScenario, nodes: std::ops::Range<usize>, rate: f64, from: f64) -> String {
    let mut sum = 0.0;
    for seed in 1..=2 {
        let outcome = SwarmScenario { seed, ..what.clone() }.run().expect("nothing wrong");
        if !outcome.bereft.is_empty() {
            return "never".to_owned();
        }
        sum += (last_of(&outcome.done[nodes.clone()]) / what.limit() - from) * rate / 2.0;
    }
    format!("{sum:.3}")
}

fn links(table: &mut String) {
    line(
        table,
        "\nLinks of 20 Mbit/s, 48 nodes, 256 blocks of 64 KiB, generations of 32, signals of 0.2 ms: seconds of the last node over those",
    );
    line(table, "that the content takes over its link.\n");
    line(table, "                          lowest of 4  lowest, all  Overlap1  RarestBlock  RandomBlock");
    let clean = SwarmScenario {
        keeps_racks_together: false,
        ..SwarmScenario::clean(vec![48], Division { blocks: 256, generation: 32 })
    };
    let limit = clean.limit();
    let at = |part: f64| Duration::from_secs_f64(part * limit);
    let crashes = (1..11).map(|i| (4 * i, at(0.09 * i as f64))).collect();
    let slow: Vec<_> = (24..48).map(|node| (node, clean.host / 2)).collect();
    let half = SwarmScenario { slow, ..clean.clone() };
    let late: Vec<_> = (40..48).map(|node| (node, at(0.5))).collect();
    let rows: [(&str, SwarmScenario, std::ops::Range<usize>, f64, f64); 7] = [
        ("equal links", clean.clone(), 0..48, 1.0, 0.0),
        ("10 of 47 die", SwarmScenario { crashes, ..clean.clone() }, 0..48, 1.0, 0.0),
        (
            "source goes after 1.03",
            SwarmScenario { leaves_after: Some(1.03), ..clean.clone() },
            0..48,
            1.0,
            0.0,
        ),
        ("half at half rate: fast", half.clone(), 0..24, 1.0, 0.0),
        ("half at half rate: slow", half, 24..48, 0.5, 0.0),
        ("8 join at 0.5: these", SwarmScenario { joins: late, ..clean.clone() }, 40..48, 1.0, 0.5),
        ("5 % of signals lost", SwarmScenario { loss: 0.05, ..clean.clone() }, 0..48, 1.0, 0.0),
    ];
    let all = Order::LowestRank { window: 64 };
    let ways = [
        (Code::Linear, LOWEST),
        (Code::Linear, all),
        (Code::Linear, Order::Overlap1),
        (Code::RarestBlock, all),
        (Code::RandomBlock, all),
    ];
    for (name, what, nodes, rate, from) in rows {
        let mut row = format!("{name:24}");
        for (code, order) in ways {
            let what = SwarmScenario { code, order, ..what.clone() };
            write!(row, "  {:11}", last(&what, nodes.clone(), rate, from))
                .expect("writing to a string succeeds");
        }
        line(table, &row);
    }
}

/// Adds two fast and two slow nodes in each rack, with transfers that take longer by a random
/// factor: the last fast node and the last slow one of three seeds.
fn mixed(table: &mut String) {
    line(
        table,
        "\n4 racks of 2 nodes and 2 at half rate, uplinks of 2, 256 blocks; each takes up to as many times as long as its links allow.\n",
    );
    line(table, "up to  fast   slow");
    let clean = SwarmScenario::clean(vec![4; 4], Division { blocks: 256, generation: 32 });
    let slow: Vec<_> = (1..16).step_by(2).map(|node| (node, clean.host / 2)).collect();
    let what = SwarmScenario { uplink: Some(2 * clean.host), slow, ..clean };
    for slowed in [1.0, 2.0, 3.0] {
        let mut lasts = [0.0f64; 2];
        for seed in 1..=3 {
            let done = SwarmScenario { seed, slowed, ..what.clone() }.run().expect("nothing wrong").done;
            for (node, seconds) in done.into_iter().enumerate() {
                lasts[node % 2] = lasts[node % 2].max(seconds.unwrap_or(0.0));
            }
        }
        line(
            table,
            &format!("{slowed:5}  {:5.3}  {:5.3}", lasts[0] / what.limit(), lasts[1] / what.limit() / 2.0),
        );
    }
}

fn uplinks(table: &mut String) {
    line(
        table,
        "\n4 racks of 4, uplinks as fast as a host's link or twice that, 1024 blocks: the same, and bytes on the busiest uplink over the content.\n",
    );
    line(table, "uplink  rings     Linear        RarestBlock   RandomBlock");
    for times in [1, 2] {
        for keeps_racks_together in [false, true] {
            let rings = if keeps_racks_together { "together" } else { "free" };
            let mut row = format!("{times:6}  {rings:8}");
            for code in [Code::Linear, Code::RarestBlock, Code::RandomBlock] {
                let clean = SwarmScenario::clean(vec![4; 4], Division { blocks: 1024, generation: 32 });
                let what =
                    SwarmScenario { keeps_racks_together, code, uplink: Some(times * clean.host), ..clean };
                let outcome = what.run().expect("nothing wrong");
                let last = last_of(&outcome.done) / what.limit();
                let content = what.limit() * what.host as f64;
                let busiest = outcome.uplinks.iter().fold(0.0f64, |most, bytes| most.max(*bytes)) / content;
                write!(row, "  {last:5.3} {busiest:5.3} ").expect("writing to a string succeeds");
            }
            line(table, &row);
        }
    }
}

/// Adds formula (1) of the paper with measured rounds: a round takes the time of a block on a link,
/// or that of coding it, whichever is longer. Columns are the rate at which a CPU multiplies and
/// adds, divided by the rate of a link. Two encoders have twice that rate.
fn blocks_of_a_generation(table: &mut String) {
    line(
        table,
        "\n20 nodes, one generation of k blocks: time over that of the content on a link, by speed of coding over that of a link.\n",
    );
    line(table, "  k  no limit     16     32     64");
    for k in [4, 8, 11, 16, 22, 32, 45, 64, 90, 128, 256] {
        let rounds =
            mean(&outcomes(&gossip(20, k, 1, Order::Sequential), SEEDS), |outcome| outcome.rounds as f64);
        let over = rounds / f64::from(k);
        let mut row = format!("{k:3}  {over:8.2}");
        for speed in [16.0, 32.0, 64.0] {
            write!(row, "  {:5.2}", over * (f64::from(k) / speed).max(1.0))
                .expect("writing to a string succeeds");
        }
        line(table, &row);
    }
}

#[test]
fn the_table_of_the_swarm_is_as_recorded() {
    let mut table = String::new();
    codes(&mut table);
    racks(&mut table);
    orders(&mut table);
    blocks_of_a_generation(&mut table);
    links(&mut table);
    uplinks(&mut table);
    mixed(&mut table);
    snapshot::check("swarm", &table);
}
