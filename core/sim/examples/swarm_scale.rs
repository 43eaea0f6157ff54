//! Prints the number of rounds of a gossip of 512 blocks. The arguments are the number of nodes,
//! and the number of nodes in each rack. For example, run `time cargo run --release -p cool-sim
//! --example swarm_scale -- 10000 40`

use cool_sim::swarm::Gossip;
use cool_swarm::{Code, Division, Order};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("an argument is a number"));
    let nodes: u32 = arguments.next().unwrap_or(10_000);
    let rack: u32 = arguments.next().unwrap_or(40);
    for keeps_racks_together in [false, true] {
        let gossip = Gossip {
            racks: vec![rack; nodes.div_ceil(rack) as usize],
            keeps_racks_together,
            division: Division { blocks: 512, generation: 32 },
            heads: true,
            code: Code::Linear,
            order: Order::LowestRank { window: 4 },
            seed: 1,
        };
        match gossip.run() {
            Ok(outcome) => {
                let mut ends = outcome.nodes.clone();
                ends.sort_unstable();
                let late = ends[ends.len() * 999 / 1000] as f64 / ends[ends.len() / 2] as f64;
                println!(
                    "{} nodes, rings {}: {} rounds, the 99.9th percentile {late:.3} of the median",
                    ends.len(),
                    if keeps_racks_together { "by racks" } else { "free" },
                    outcome.rounds,
                );
            }
            Err(stall) => println!("{stall}"),
        }
    }
}
