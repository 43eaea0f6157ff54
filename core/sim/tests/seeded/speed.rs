//! The speed and the cost of broadcasts, as a table under version control, so that a slower
//! protocol shows up as a diff. Times are those of the model network, so the table is the same on
//! every machine. `COOL_SIM_BLESS=1` rewrites it; `COOL_SIM_ROWS=text` only prints the rows with
//! this text.

use super::snapshot;
use cool_machine::{Duration, Time};
use cool_sim::{Broadcast, BroadcastOutcome, BroadcastSettings, CrossTraffic, LinkSpec, ideal};
use std::fmt::Write;

/// 20 Mbit/s in bytes per second.
const RATE: u64 = 2_500_000;
const MIB: u64 = 1 << 20;
const NODES: usize = 16;
/// Number of seeds; each row contains the worst of them.
const SEEDS: u64 = 3;

/// Returns a link shaped as in `mininet/testbed.py`: a token bucket of 16 kB before a queue of 256
/// kB.
fn shaped(rate: u64) -> LinkSpec {
    LinkSpec { bucket: 16 * 1024, ..LinkSpec::clean(rate) }
}

/// Returns 4 racks of 4 nodes in which every receiver separately loses packets at its port.
fn tree_4x4(len: u64, loss: f64) -> BroadcastSettings {
    let mut settings = BroadcastSettings::clean(vec![4; 4], RATE, len);
    (settings.host, settings.uplink) = (shaped(RATE), shaped(RATE));
    let port = LinkSpec { loss, ..settings.host };
    settings.odd_links = (0..NODES).map(|node| (2 * node + 1, port)).collect();
    settings
}

/// Returns the same cluster in which one link differs.
fn odd(link: usize, behaviour: impl Fn(&mut LinkSpec)) -> BroadcastSettings {
    let mut settings = tree_4x4(8 * MIB, 0.0);
    let mut spec = settings.host;
    behaviour(&mut spec);
    settings.odd_links.push((link, spec));
    settings
}

/// Returns the number of the link from the core to a rack.
fn to_rack(rack: usize) -> usize {
    2 * (NODES + rack) + 1
}

fn run(settings: &BroadcastSettings) -> BroadcastOutcome {
    let outcome = Broadcast::run(settings.clone()).expect("nothing wrong");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    outcome
}

/// The time and the cost of one broadcast.
#[derive(Default)]
struct Figures {
    time: f64,
    link: f64,
    uplink: f64,
    requests: u64,
    repairs: u64,
    doubles: u64,
    rivals: f64,
}

fn figures(settings: &BroadcastSettings) -> Figures {
    let outcome = run(settings);
    let sum = |of: fn(&cool_transport::StreamStats) -> u64| outcome.stats.iter().map(of).sum();
    let limit = ideal(settings.len, settings.chunk_bytes, settings.host.rate);
    let least = limit.as_secs_f64() * settings.host.rate as f64;
    let most = |links: &[u64]| links.iter().max().copied().unwrap_or(0) as f64 / least;
    let time = (outcome.last_delivery().expect("a node has the message") - Time::ZERO).as_secs_f64();
    Figures {
        time: time / limit.as_secs_f64(),
        link: most(&outcome.link_bytes),
        uplink: most(&outcome.link_bytes[2 * NODES..]),
        requests: sum(|stats| stats.naks),
        repairs: sum(|stats| stats.served),
        doubles: sum(|stats| stats.duplicates),
        rivals: outcome.rivals.iter().sum::<u64>() as f64 / time / settings.host.rate as f64,
    }
}

/// Returns the worst value of each figure over the seeds.
fn worst(settings: &BroadcastSettings) -> Figures {
    let mut worst = Figures { rivals: f64::INFINITY, ..Figures::default() };
    for seed in 0..SEEDS {
        let one = figures(&BroadcastSettings { seed, ..settings.clone() });
        worst.time = worst.time.max(one.time);
        worst.link = worst.link.max(one.link);
        worst.uplink = worst.uplink.max(one.uplink);
        worst.requests = worst.requests.max(one.requests);
        worst.repairs = worst.repairs.max(one.repairs);
        worst.doubles = worst.doubles.max(one.doubles);
        worst.rivals = worst.rivals.min(one.rivals);
    }
    worst
}

fn rows() -> Vec<(String, BroadcastSettings)> {
    let mut rows: Vec<(String, BroadcastSettings)> = Vec::new();
    let mut add = |name: String, settings: BroadcastSettings| rows.push((name, settings));
    let percent = |loss: f64| format!("{} %", loss * 100.0);
    for loss in [0.0, 0.001, 0.01, 0.05, 0.1, 0.2] {
        add(format!("each loses {}", percent(loss)), tree_4x4(8 * MIB, loss));
    }
    for loss in [0.01, 0.05, 0.2] {
        let mut settings = tree_4x4(8 * MIB, loss);
        settings.odd_links.iter_mut().for_each(|(_, link)| link.burst = 10.0);
        add(format!("each loses {}, 10 in a row", percent(loss)), settings);
    }
    for loss in [0.01, 0.05, 0.2] {
        add(format!("one rack loses {}", percent(loss)), odd(to_rack(2), |link| link.loss = loss));
    }
    for loss in [0.05, 0.2] {
        add(format!("one node loses {}", percent(loss)), odd(13, |link| link.loss = loss));
    }
    for loss in [0.01, 0.2] {
        add(format!("the source loses {}", percent(loss)), odd(0, |link| link.loss = loss));
    }
    let mut settings = tree_4x4(8 * MIB, 0.0);
    let end = ideal(settings.len, settings.chunk_bytes, RATE);
    let cut =
        |from: f64, until: f64| (to_rack(2), Time::ZERO + end.mul_f64(from), Time::ZERO + end.mul_f64(until));
    settings.outages = vec![cut(0.99, 1.05)];
    add("one rack misses the end".into(), settings.clone());
    settings.outages = vec![cut(0.3, 0.4)];
    add("one rack is cut off for a tenth".into(), settings.clone());
    settings.outages.clear();
    settings.deaf = (8..12).collect();
    add("one rack is deaf".into(), settings.clone());
    settings.deaf = vec![5, 6];
    add("two nodes are deaf".into(), settings.clone());
    settings.deaf = (1..16).collect();
    add("all are deaf".into(), settings);
    for loss in [0.0, 0.01, 0.05, 0.2] {
        let settings = BroadcastSettings { multicast: false, ..tree_4x4(8 * MIB, loss) };
        add(format!("no tree, {}", percent(loss)), settings);
    }
    for loss in [0.0, 0.01, 0.05, 0.2] {
        let settings = BroadcastSettings { ceiling: None, ..tree_4x4(8 * MIB, loss) };
        add(format!("no ceiling, {}", percent(loss)), settings);
    }
    for loss in [0.0, 0.01, 0.05, 0.2] {
        let settings =
            BroadcastSettings { ceiling: Some(500 * RATE), verified: false, ..tree_4x4(8 * MIB, loss) };
        add(format!("ports of 10 Gbit/s, {}", percent(loss)), settings);
    }
    for (name, rate) in [("100 Mbit/s", 12_500_000), ("1 Gbit/s", 125_000_000)] {
        for loss in [0.0, 0.01] {
            let mut settings = BroadcastSettings { ceiling: None, ..tree_4x4(8 * MIB, loss) };
            let faster = |link: &mut LinkSpec| link.rate = rate;
            faster(&mut settings.host);
            faster(&mut settings.uplink);
            settings.odd_links.iter_mut().for_each(|(_, link)| faster(link));
            add(format!("no ceiling, {}, {name}", percent(loss)), settings);
        }
    }
    let mut settings = odd(to_rack(2), |link| link.rate = RATE / 2);
    add("an uplink of half the rate".into(), settings.clone());
    settings.ceiling = None;
    add("an uplink of half the rate, no ceiling".into(), settings);
    shared(&mut add);
    let mut settings = tree_4x4(8 * MIB, 0.01);
    settings.opens[6] = Time::ZERO + Duration::from_millis(300);
    settings.eager = 1 << 30;
    add("eager, one comes late, 1 %".into(), settings);
    for (name, len) in [("1 MiB", MIB), ("64 KiB", MIB / 16), ("1 KiB", 1024)] {
        for loss in [0.0, 0.01, 0.05, 0.2] {
            let mut settings = tree_4x4(len, loss);
            settings.timers.initial_rto = Duration::from_millis(3);
            add(format!("{name}, {}", percent(loss)), settings);
        }
    }
    rows
}

/// Adds broadcasts that share links with other traffic. Every second node belongs to the other
/// group.
fn shared(add: &mut impl FnMut(String, BroadcastSettings)) {
    let two = |ceiling: Option<u64>, loss: f64| BroadcastSettings {
        nodes: (0..16).step_by(2).collect(),
        rivals: vec![CrossTraffic::Broadcast { source: 1, nodes: (1..16).step_by(2).collect() }],
        ceiling,
        ..tree_4x4(8 * MIB, loss)
    };
    add("two groups, each its half".into(), two(Some(RATE / 2), 0.0));
    add("two groups, each its half, 1 %".into(), two(Some(RATE / 2), 0.01));
    add("two groups, no ceiling".into(), two(None, 0.0));
    add("two groups, no ceiling, 1 %".into(), two(None, 0.01));
    add("two groups, each told all".into(), two(Some(RATE), 0.0));
    let ports = BroadcastSettings { verified: false, ..two(Some(500 * RATE), 0.0) };
    add("two groups, ports of 10 Gbit/s".into(), ports);
    for (name, ceiling) in [("", Some(RATE)), (", no ceiling", None)] {
        let flow = |loss| BroadcastSettings {
            nodes: (0..16).step_by(2).collect(),
            rivals: vec![CrossTraffic::Flow { from: 1, to: 9 }],
            ceiling,
            ..tree_4x4(8 * MIB, loss)
        };
        add(format!("beside TCP{name}"), flow(0.0));
    }
}

#[test]
fn the_table_of_speeds_is_as_recorded() {
    let mut table = String::from(
        "Broadcasts of 8 MiB unless said otherwise: 4 racks of 4 nodes, 20 Mbit/s, MTU 1500, queues of 256 kB behind token\n\
         buckets of 16 kB. time: last delivery over the limit; link, uplink: bytes on the busiest over the least possible;\n\
         repairs: chunks sent in answer to requests; doubles: chunks that came twice; rival: part of the rate that the\n\
         other got meanwhile. The worst of 3 seeds.\n\n\
         broadcast                                  time   link uplink requests repairs doubles rival\n",
    );
    let only = std::env::var("COOL_SIM_ROWS").unwrap_or_default();
    for (name, settings) in rows().into_iter().filter(|(name, _)| name.contains(&only)) {
        let Figures { time, link, uplink, requests, repairs, doubles, rivals } = worst(&settings);
        let rival = if settings.rivals.is_empty() { String::new() } else { format!(" {rivals:5.2}") };
        let links = match settings.rivals.is_empty() {
            true => format!("{link:6.3} {uplink:6.3}"),
            // The sums of both are not meaningful.
            false => format!("{:>13}", "-      -"),
        };
        writeln!(table, "{name:40} {time:6.3} {links} {requests:8} {repairs:7} {doubles:7}{rival}")
            .expect("writing to a string succeeds");
    }
    if !only.is_empty() {
        return println!("{table}");
    }
    snapshot::check("speed", &table);
}
