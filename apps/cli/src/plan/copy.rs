//! `cool plan --op copy`: the expected time of a copy by each way of `cool copy --via`.

use crate::error::Error;
use crate::network::CollectiveOptions;
use crate::{size, units};
use clap::ValueEnum;
use cool_collective::{Layout, Operation, Planner};
use cool_copy::{BLOCK_MIN_BYTES, CopyVia, GENERATION_BLOCKS, block_bytes};
use cool_sim::schedule::{AgentCosts, FabricModel, limit};
use cool_sim::swarm::SwarmScenario;
use cool_swarm::Division;
use std::io::Write;
use std::time::Duration;

/// Maximum number of blocks that are delivered in a simulated swarm. Simulating them takes some
/// seconds of CPU time.
const DELIVERIES_MAX: u64 = 8192;
/// Minimum number of blocks that are simulated, because fewer do not represent a long copy.
const BLOCKS_MIN: u64 = 64;

/// The expected time of a way.
struct ExpectedTime {
    via: CopyVia,
    seconds: f64,
}

/// Prints the way that `auto` chooses, and the expected times of all ways.
pub(super) fn show(
    out: &mut impl Write,
    asked: &CollectiveOptions,
    (fabric, layout): (FabricModel, Layout),
    costs: &AgentCosts,
) -> Result<(), Error> {
    let call = asked.call(Operation::Bcast);
    let least = limit(&call, &layout, &fabric).map_or(0.0, |limit| limit.as_secs_f64());
    let mut planner = Planner::new(fabric.cost_model(costs), layout.clone());
    let picked = planner.pick(&call);
    let broadcasts = [CopyVia::Tree, CopyVia::Chain].into_iter().filter_map(|via| {
        let seconds = planner.estimate(&call, via.plan()?.parse().ok()?)?.seconds;
        Some(ExpectedTime { via, seconds })
    });
    let mut ways: Vec<ExpectedTime> = broadcasts.collect();
    ways.extend(by_swarm(asked.bytes, &fabric, &layout));
    ways.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    writeln!(out, "copy of {} on {fabric}: broadcast by {picked} (auto)", size::named(asked.bytes))?;
    for ExpectedTime { via, seconds } in ways {
        let over =
            if least > 0.0 { format!(", {:.2} times the limit", seconds / least) } else { String::new() };
        let how = if via == CopyVia::Swarm { "; simulated without CPU time" } else { "" };
        let name = via.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        writeln!(out, "  {name}: about {}{over}{how}", units::seconds(seconds))?;
    }
    Ok(writeln!(out, "  the limit of links: {}", units::seconds(least))?)
}

/// Simulates a swarm on links like these, and returns its time; `None` if there are too many nodes.
/// In a long copy, only the first blocks are simulated.
fn by_swarm(bytes: u64, fabric: &FabricModel, layout: &Layout) -> Option<ExpectedTime> {
    let racks: Vec<u32> = (0..layout.racks()).map(|rack| layout.nodes_of_rack(rack).len() as u32).collect();
    let nodes: u64 = racks.iter().map(|nodes| u64::from(*nodes)).sum();
    let blocks = bytes.div_ceil(block_bytes(bytes)).max(1);
    let simulated = blocks.min(DELIVERIES_MAX / nodes.max(1));
    if nodes < 2 || simulated < blocks.min(BLOCKS_MIN) {
        return None;
    }
    let block = bytes.div_ceil(blocks);
    let division = Division { blocks: u32::try_from(simulated).ok()?, generation: GENERATION_BLOCKS };
    let clean = SwarmScenario::clean(racks, division);
    let over_link = |bytes: u64| Duration::from_secs_f64(bytes as f64 / fabric.host.max(1) as f64);
    let what = SwarmScenario {
        host: fabric.host,
        uplink: Some(fabric.uplink.saturating_mul(fabric.stripes().into())),
        block,
        // Control messages wait behind about one block in the queues of links. With this latency,
        // the simulated times match measurements (docs/guide/copy.md).
        latency: clean.latency.max(over_link(BLOCK_MIN_BYTES)),
        end_notice: over_link(block) / 2,
        ..clean
    };
    let outcome = what.run().ok()?;
    let last = outcome.done.iter().flatten().copied().fold(0.0, f64::max);
    Some(ExpectedTime { via: CopyVia::Swarm, seconds: last * blocks as f64 / simulated as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        asked: CollectiveOptions,
    }

    /// Returns the lines of `cool plan --op copy` by way.
    fn ways(line: &str) -> Vec<(String, String)> {
        let Line { asked } = Line::parse_from(line.split(' '));
        let mut out = Vec::new();
        show(&mut out, &asked, asked.network.build().unwrap(), &AgentCosts::default()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let split = |line: &str| {
            Some(line.trim().split_once(": ")).map(|parts| parts.map(|(a, b)| (a.into(), b.into())))
        };
        text.lines().skip(1).filter_map(|line| split(line).flatten()).collect()
    }

    #[test]
    fn a_swarm_takes_longer_over_narrow_uplinks() {
        let over = |uplink: &str| {
            let ways = ways(&format!(
                "plan --bytes 16M --topology tree:4x4 --host-mbit 20 --uplink-mbit {uplink} --burst 16000"
            ));
            ["tree", "chain", "swarm"].map(|name| {
                let (_, text) = ways.iter().find(|(way, _)| way == name).unwrap();
                text.split_once(", ").unwrap().1.split_once(' ').unwrap().0.parse::<f64>().unwrap()
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
    fn a_swarm_that_takes_too_long_to_simulate_is_omitted() {
        let ways = ways("plan --bytes 1G --topology tree:40x40");
        assert!(ways.iter().any(|(way, _)| way == "chain") && ways.iter().all(|(way, _)| way != "swarm"));
    }
}
