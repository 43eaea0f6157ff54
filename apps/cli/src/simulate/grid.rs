//! The planner's grid: compares its choices with the best plans in the simulator, as a page of
//! Markdown.

use crate::error::Error;
use crate::size;
use cool_collective::Operation;
use cool_sim::schedule::{AgentCosts, FabricModel, Placement, Verdict, call_of, judge};
use std::io::Write;

/// A choice is good if it takes at most this many times as long as the best plan.
const GOOD: f64 = 1.1;

const SIZES: [u64; 9] = [8, 256, 4 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20, 256 << 20, 1 << 30];

/// A network of the grid.
struct GridNetwork {
    topology: &'static str,
    host_mbit: u64,
    uplink_mbit: u64,
    placement: Placement,
    most: u64,
}

const fn network(topology: &'static str, uplink_mbit: u64) -> GridNetwork {
    GridNetwork { topology, host_mbit: 20, uplink_mbit, placement: Placement::Packed, most: 1 << 30 }
}

const NETWORKS: [GridNetwork; 11] = [
    network("tree:4x4", 20),
    network("tree:4x4", 80),
    network("tree:4x4", 5),
    GridNetwork { placement: Placement::Interleaved, ..network("tree:4x4", 20) },
    network("tree:5+3+8", 20),
    network("tree:1x16", 20),
    network("tree:2x4x4", 20),
    network("leafspine:4x2x4", 20),
    network("fattree:4", 20),
    GridNetwork { host_mbit: 1000, ..network("tree:4x4", 1000) },
    // Larger messages would take hours to simulate.
    GridNetwork { most: 4 << 20, ..network("tree:8x16", 20) },
];

pub(super) fn print(out: &mut impl Write) -> Result<(), Error> {
    writeln!(
        out,
        "# The planner's grid\n\n\
         How many times as long as the best plan the planner's pick takes in the simulator: every fitting plan was \
         tried,\nin its own segments and in others, except those that the planner expects to take more than twice \
         as long as its\npick. Sizes are of the message or vector, or of all parts together; a dash stands where \
         that is less than an\nelement for each rank. Made by `cool simulate --grid`.\n"
    )?;
    let (mut good, mut all) = (0, 0);
    let mut worst: Vec<String> = Vec::new();
    for network in &NETWORKS {
        let heading = heading(network);
        writeln!(out, "## {heading}\n")?;
        writeln!(out, "| operation | {} |", SIZES.map(size::show).join(" | "))?;
        writeln!(out, "| --- |{}", " --- |".repeat(SIZES.len()))?;
        for operation in Operation::ALL {
            let mut cells = Vec::new();
            for bytes in SIZES {
                // A barrier has no size.
                let once = operation != Operation::Barrier || bytes == SIZES[0];
                let verdict =
                    if once && bytes <= network.most { verdict(network, operation, bytes)? } else { None };
                cells.push(verdict.map_or("-".to_owned(), |verdict| format!("{:.2}", verdict.ratio())));
                if let Some(verdict) = verdict {
                    all += 1;
                    good += usize::from(verdict.ratio() <= GOOD);
                    if verdict.ratio() > GOOD {
                        worst.push(format!(
                            "| {heading} | {operation} | {} | {} | {} | {:.2} |",
                            size::show(bytes),
                            verdict.pick,
                            verdict.best,
                            verdict.ratio()
                        ));
                    }
                }
            }
            writeln!(out, "| {operation} | {} |", cells.join(" | "))?;
            out.flush()?;
        }
        writeln!(out)?;
    }
    let share = 100.0 * f64::from(good as u32) / f64::from(all);
    writeln!(
        out,
        "## Sum\n\n{good} of {all} picks ({share:.1} %) are within 10 % of the best. The others:\n"
    )?;
    writeln!(
        out,
        "| network | operation | size | pick | best | times |\n| --- | --- | --- | --- | --- | --- |"
    )?;
    worst.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}

fn heading(network: &GridNetwork) -> String {
    let GridNetwork { topology, host_mbit, uplink_mbit, placement, .. } = network;
    let order = if *placement == Placement::Packed { "" } else { ", ranks interleaved over racks" };
    format!("{topology}, hosts {host_mbit} Mbit/s, uplinks {uplink_mbit} Mbit/s{order}")
}

fn verdict(network: &GridNetwork, operation: Operation, bytes: u64) -> Result<Option<Verdict>, Error> {
    let fabric: FabricModel = network.topology.parse()?;
    let fabric = fabric.with_rates(network.host_mbit * 125_000, network.uplink_mbit * 125_000)?;
    let layout = fabric.layout(network.placement)?;
    let call = call_of(operation, bytes, &layout);
    Ok(call.map(|call| judge(&call, &layout, &fabric, &AgentCosts::default())).transpose()?)
}
