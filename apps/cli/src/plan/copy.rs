//! `cool plan --op copy`: what a copy takes by each way of `cool copy --via`.

use crate::copy::CopyVia;
use crate::copy::swarm::{BLOCK_MIN_BYTES, GENERATION_BLOCKS, block_bytes};
use crate::error::Error;
use crate::network::Asked;
use crate::{size, units};
use clap::ValueEnum;
use cool_collective::{Layout, Operation, Planner};
use cool_sim::schedule::{Costs, FabricModel, limit};
use cool_sim::swarm::Distribution;
use cool_swarm::Division;
use std::io::Write;
use std::time::Duration;

/// Blocks that reach all nodes of a swarm that is simulated, at most: some seconds of a processor.
const DELIVERIES_MAX: u64 = 8192;
/// Fewer blocks say nothing about a long copy.
const BLOCKS_MIN: u64 = 64;

/// A way, and the seconds that it is expected to take.
struct Expected {
    via: CopyVia,
    seconds: f64,
}

/// Prints the way that `auto` takes, what is expected of it, and of the others.
pub(super) fn show(
    out: &mut impl Write,
    asked: &Asked,
    (fabric, layout): (FabricModel, Layout),
    costs: &Costs,
) -> Result<(), Error> {
    let call = asked.call(Operation::Bcast);
    let least = limit(&call, &layout, &fabric).map_or(0.0, |limit| limit.as_secs_f64());
    let mut planner = Planner::new(fabric.cost_model(costs), layout.clone());
    let picked = planner.pick(&call);
    let broadcasts = [CopyVia::Tree, CopyVia::Chain].into_iter().filter_map(|via| {
        let seconds = planner.estimate(&call, via.plan()?.parse().ok()?)?.seconds;
        Some(Expected { via, seconds })
    });
    let mut ways: Vec<Expected> = broadcasts.collect();
    ways.extend(by_swarm(asked.bytes, &fabric, &layout));
    ways.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    writeln!(out, "copy of {} on {fabric}: broadcast by {picked} (auto)", size::named(asked.bytes))?;
    for Expected { via, seconds } in ways {
        let over =
            if least > 0.0 { format!(", {:.2} times the limit", seconds / least) } else { String::new() };
        let how = if via == CopyVia::Swarm {
            "; the swarm is simulated, without the time of processors"
        } else {
            ""
        };
        let name = via.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        writeln!(out, "  {name}: about {}{over}{how}", units::seconds(seconds))?;
    }
    Ok(writeln!(out, "  the limit of links: {}", units::seconds(least))?)
}

/// What the swarm's machines take over links like these; none where there are too many nodes to simulate. Of a long copy
/// the first blocks are simulated.
fn by_swarm(bytes: u64, fabric: &FabricModel, layout: &Layout) -> Option<Expected> {
    let racks: Vec<u32> = (0..layout.racks()).map(|rack| layout.nodes_of_rack(rack).len() as u32).collect();
    let nodes: u64 = racks.iter().map(|nodes| u64::from(*nodes)).sum();
    let blocks = bytes.div_ceil(block_bytes(bytes)).max(1);
    let simulated = blocks.min(DELIVERIES_MAX / nodes.max(1));
    if nodes < 2 || simulated < blocks.min(BLOCKS_MIN) {
        return None;
    }
    let block = bytes.div_ceil(blocks);
    let division = Division { blocks: u32::try_from(simulated).ok()?, generation: GENERATION_BLOCKS };
    let clean = Distribution::clean(racks, division);
    let over_link = |bytes: u64| Duration::from_secs_f64(bytes as f64 / fabric.host.max(1) as f64);
    let what = Distribution {
        host: fabric.host,
        uplink: Some(fabric.uplink.saturating_mul(fabric.stripes().into())),
        block,
        // What is said waits behind about that much in the queues of links: so the times are those that were measured (docs/guide/copy.md).
        latency: clean.latency.max(over_link(BLOCK_MIN_BYTES)),
        nearly: over_link(block) / 2,
        ..clean
    };
    let outcome = what.run().ok()?;
    let last = outcome.done.iter().flatten().copied().fold(0.0, f64::max);
    Some(Expected { via: CopyVia::Swarm, seconds: last * blocks as f64 / simulated as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        asked: Asked,
    }

    /// What `cool plan --op copy` prints, by way: the seconds that are expected, and how often the limit.
    fn ways(line: &str) -> Vec<(String, String)> {
        let Line { asked } = Line::parse_from(line.split(' '));
        let mut out = Vec::new();
        show(&mut out, &asked, asked.network.build().unwrap(), &Costs::default()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let split = |line: &str| {
            Some(line.trim().split_once(": ")).map(|parts| parts.map(|(a, b)| (a.into(), b.into())))
        };
        text.lines().skip(1).filter_map(|line| split(line).flatten()).collect()
    }

    #[test]
    fn every_way_is_predicted_and_a_swarm_takes_longer_over_narrow_uplinks() {
        let over = |uplink: &str| {
            let ways = ways(&format!("plan --bytes 16M --topology tree:4x4 --uplink-mbit {uplink}"));
            ["tree", "chain", "swarm"].map(|name| {
                let (_, said) = ways.iter().find(|(way, _)| way == name).unwrap();
                said.split_once(", ").unwrap().1.split_once(' ').unwrap().0.parse::<f64>().unwrap()
            })
        };
        let [narrow, wide] = ["20", "40"].map(over);
        assert!(
            narrow[..2].iter().chain(&wide[..2]).all(|over| (1.0..1.3).contains(over)),
            "{narrow:?} {wide:?}"
        );
        assert!(1.0 < wide[2] && wide[2] < narrow[2] && narrow[2] < 2.0, "{narrow:?} {wide:?}");
    }

    #[test]
    fn a_swarm_that_takes_long_to_simulate_is_left_out() {
        let ways = ways("plan --bytes 1G --topology tree:40x40");
        assert!(ways.iter().any(|(way, _)| way == "chain") && ways.iter().all(|(way, _)| way != "swarm"));
    }
}
