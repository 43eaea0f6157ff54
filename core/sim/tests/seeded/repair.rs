//! The savings of repairing a rack's losses by one multicast there, as a table under version
//! control. It contains the means of many seeds, by pattern of loss, for repair from node to node
//! along the chain, for multicasts in the rack, and for multicasts that no node receives.
//! `COOL_SIM_BLESS=1` rewrites it.

use super::snapshot;
use cool_machine::Time;
use cool_sim::{Broadcast, BroadcastSettings, LinkSpec, ideal};
use std::fmt::Write;

/// 100 Mbit/s in bytes per second.
const RATE: u64 = 12_500_000;
const LEN: u64 = 1 << 20;
const SEEDS: u64 = 20;
const NODES: u16 = 16;

/// The scheme by which a rack's losses are repaired.
#[derive(Clone, Copy, Debug)]
enum Mending {
    Chain,
    Rack,
    RackUnheard,
}

/// The links on which a share of the packets is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    EachReceiver,
    EachRack,
    OneRack,
    Source,
}

fn settings(seed: u64, pattern: Loss, loss: f64, mending: Mending) -> BroadcastSettings {
    let mut settings = BroadcastSettings::clean(vec![4; 4], RATE, LEN);
    settings.seed = seed;
    let to_rack = |rack: usize| 2 * (usize::from(NODES) + rack) + 1;
    let links: Vec<usize> = match pattern {
        Loss::EachReceiver => (0..usize::from(NODES)).map(|node| 2 * node + 1).collect(),
        Loss::EachRack => (0..4).map(to_rack).collect(),
        Loss::OneRack => vec![to_rack(2)],
        Loss::Source => vec![0],
    };
    settings.odd_links = links.into_iter().map(|link| (link, LinkSpec { loss, ..settings.host })).collect();
    settings.rack_trees = !matches!(mending, Mending::Chain);
    if matches!(mending, Mending::RackUnheard) {
        settings.deaf_in_rack = (0..NODES).collect();
    }
    settings
}

/// Returns means over all seeds: the time divided by the ideal one; the bytes of repair within and
/// between racks and the bytes on the busiest link, each divided by the message's length; and the
/// numbers of requests and of duplicate chunks.
fn means(pattern: Loss, loss: f64, mending: Mending) -> [f64; 6] {
    let mut sums = [0.0; 6];
    for seed in 1..=SEEDS {
        let outcome = Broadcast::run(settings(seed, pattern, loss, mending)).expect("nothing wrong");
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        let last = outcome.last_delivery().expect("a node has the message") - Time::ZERO;
        let busiest = outcome.link_bytes.iter().max().copied().unwrap_or(0);
        let all = [
            last.as_secs_f64() / ideal(LEN, 1424, RATE).as_secs_f64(),
            outcome.repaired_inside as f64 / LEN as f64,
            outcome.repaired_across as f64 / LEN as f64,
            busiest as f64 / LEN as f64,
            outcome.stats.iter().map(|stats| stats.naks).sum::<u64>() as f64,
            outcome.stats.iter().map(|stats| stats.duplicates).sum::<u64>() as f64,
        ];
        sums.iter_mut().zip(all).for_each(|(sum, one)| *sum += one / SEEDS as f64);
    }
    sums
}

#[test]
fn the_table_of_repairs_is_as_recorded() {
    let mut table = format!(
        "4 racks of 4 nodes, 100 Mbit/s, 1 MiB, MTU 1500; means of {SEEDS} seeds. time: last delivery over the ideal;\n\
         inside, across: bytes of repair sent within and between racks over the message; link: bytes on the busiest\n\
         link over the message.\n\n\
         loss          at  mended by     time  inside  across   link  requests doubles\n",
    );
    for pattern in [Loss::EachReceiver, Loss::EachRack, Loss::OneRack, Loss::Source] {
        for loss in [0.001, 0.01, 0.05, 0.2] {
            for mending in [Mending::Chain, Mending::Rack, Mending::RackUnheard] {
                let [time, inside, across, link, requests, doubles] = means(pattern, loss, mending);
                writeln!(
                    table,
                    "{:12} {:4.1}% {:11} {time:6.3} {inside:7.3} {across:7.3} {link:6.3} {requests:9.1} {doubles:7.1}",
                    format!("{pattern:?}"),
                    loss * 100.0,
                    format!("{mending:?}"),
                )
                .expect("writing to a string succeeds");
            }
        }
    }
    snapshot::check("repair", &table);
}
