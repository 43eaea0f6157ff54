//! How fast broadcasts are and what they cost, as a table under version control: a slower protocol is a diff.
//! Time is the model network's, so the table is the same on every machine. `COOL_SIM_BLESS=1` rewrites it.

use cool_machine::{Duration, Time};
use cool_sim::{Broadcast, LinkSpec, Outcome, Settings, ideal};
use std::fmt::Write;

/// 100 Mbit/s.
const RATE: u64 = 12_500_000;
const MIB: u64 = 1 << 20;

/// 4 racks of 4 nodes; every receiver loses on its own what arrives at its port.
fn tree_4x4(len: u64, loss: f64) -> Settings {
    let mut settings = Settings::clean(vec![4; 4], RATE, len);
    settings.seed = 7;
    let port = LinkSpec { loss, ..settings.host };
    settings.odd_links = (0..16).map(|node| (2 * node + 1, port)).collect();
    settings
}

fn run(settings: &Settings) -> Outcome {
    let outcome = Broadcast::run(settings.clone()).expect("nothing wrong");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    outcome
}

/// Time of the last delivery over the shortest that any broadcast could take.
fn slowdown(settings: &Settings, outcome: &Outcome) -> f64 {
    let last = outcome.last_delivery().expect("somebody has it") - Time::ZERO;
    last.as_secs_f64() / ideal(settings.len, settings.chunk_bytes, RATE).as_secs_f64()
}

fn row(table: &mut String, name: &str, settings: &Settings) {
    let outcome = run(settings);
    let most = outcome.link_bytes.iter().max().copied().unwrap_or(0);
    let len = settings.len as f64;
    let requests: u64 = outcome.stats.iter().map(|stats| stats.requests).sum();
    let doubles: u64 = outcome.stats.iter().map(|stats| stats.duplicates).sum();
    writeln!(
        table,
        "{name:34} {:6.3} {:6.3} {:8.3} {:8.3} {requests:8} {doubles:6}",
        slowdown(settings, &outcome),
        most as f64 / len,
        outcome.repaired_inside as f64 / len,
        outcome.repaired_across as f64 / len,
    )
    .expect("a string takes all");
}

#[test]
fn the_table_of_speeds_is_as_recorded() {
    let mut table = String::from(
        "4 racks of 4 nodes, 100 Mbit/s, MTU 1500. time: last delivery over the ideal; link: bytes on the busiest\n\
         link over the message; inside, across: bytes of repair within and between racks over the message.\n\n\
         broadcast                            time   link   inside   across requests doubles\n",
    );
    for loss in [0.0, 0.01, 0.05, 0.1, 0.2, 0.3] {
        row(&mut table, &format!("8 MiB, each loses {:.0} %", loss * 100.0), &tree_4x4(8 * MIB, loss));
    }
    for loss in [0.01, 0.05, 0.2] {
        let mut settings = tree_4x4(8 * MIB, 0.0);
        settings.odd_links = vec![(2 * 16 + 5, LinkSpec { loss, ..settings.uplink })];
        row(&mut table, &format!("8 MiB, one rack loses {:.0} %", loss * 100.0), &settings);
    }
    for loss in [0.01, 0.2] {
        let mut settings = tree_4x4(8 * MIB, 0.0);
        settings.odd_links = vec![(0, LinkSpec { loss, ..settings.host })];
        row(&mut table, &format!("8 MiB, the source loses {:.0} %", loss * 100.0), &settings);
    }
    for loss in [0.0, 0.01, 0.05, 0.2] {
        let mut settings = tree_4x4(8 * MIB, loss);
        settings.ceiling = None;
        row(&mut table, &format!("8 MiB, no ceiling, {:.0} %", loss * 100.0), &settings);
    }
    for loss in [0.0, 0.01, 0.05, 0.2] {
        let mut settings = tree_4x4(8 * MIB, loss);
        settings.multicast = false;
        row(&mut table, &format!("8 MiB, no tree, {:.0} %", loss * 100.0), &settings);
    }
    let mut settings = tree_4x4(8 * MIB, 0.0);
    settings.deaf = vec![5, 6];
    row(&mut table, "8 MiB, two nodes are deaf", &settings);
    settings.deaf = (1..16).collect();
    row(&mut table, "8 MiB, all nodes are deaf", &settings);
    let mut settings = tree_4x4(8 * MIB, 0.01);
    settings.opens[6] = Time::ZERO + Duration::from_millis(300);
    settings.eager = 1 << 30;
    row(&mut table, "8 MiB eager, one comes late, 1 %", &settings);
    for loss in [0.0, 0.01, 0.05, 0.2] {
        row(&mut table, &format!("1 MiB, each loses {:.0} %", loss * 100.0), &tree_4x4(MIB, loss));
        row(&mut table, &format!("64 KiB, each loses {:.0} %", loss * 100.0), &tree_4x4(MIB / 16, loss));
        row(&mut table, &format!("1 KiB, each loses {:.0} %", loss * 100.0), &tree_4x4(1024, loss));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/speed.txt");
    if std::env::var_os("COOL_SIM_BLESS").is_some() {
        std::fs::write(path, &table).expect("the table can be written");
    }
    let recorded = std::fs::read_to_string(path).expect("the table is recorded");
    assert_eq!(table, recorded, "speeds differ from {path}; COOL_SIM_BLESS=1 records these:\n{table}");
}
