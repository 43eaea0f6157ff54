//! `cool plan`: which plan a call gets, what it puts on the network, and what it looks like; and the tables of
//! paper 003 beside what schedules count. It asks no controller.

mod svg;
mod table;
mod tree;

use crate::error::Error;
use crate::size;
use crate::units::count;
use cool_collective::{Analysis, Call, Layout, Operation, Plan, Rank, Rates, analyse, compile};
use std::io::Write;
use std::path::PathBuf;
use tree::Tree;

/// Shows the plan of a collective, its messages and the load of links; or the tables of the COOL paper.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The operation: bcast, reduce, allreduce, gather, allgather, scatter, reduce_scatter, alltoall, scan, exscan, barrier
    #[arg(long, value_name = "OPERATION", required_unless_present = "table")]
    op: Option<Operation>,

    /// Bytes of the message, the vector, or one rank's part, as in 8M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1M")]
    bytes: u64,

    /// The network: tree:4x4 is 4 racks of 4 nodes, tree:4x4x2 has 2 ranks on each, tree:3+1+2 is uneven
    #[arg(long, value_name = "TREE", default_value = "tree:4x4")]
    topology: Tree,

    /// A plan by name, as cool-p-p, or composed, as rack:binomial,center:ring or flat:ring; picked if left out
    #[arg(long, value_name = "PLAN", env = "COOL_PLAN")]
    plan: Option<Plan>,

    /// The rank at the root
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,

    /// How fast a rack's uplink is, a host's link being 1
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = factor)]
    uplink: f64,

    /// Draws the schedule into a file, as a time-space diagram
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Prints table 1 (steps and messages) or 3 (load) of the paper, with the counts of schedules beside
    #[arg(long, value_name = "N", value_parser = table::number, conflicts_with_all = ["op", "svg"])]
    table: Option<u8>,

    /// Racks of a table's network
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64), requires = "table")]
    racks: u32,

    /// Nodes in each rack of a table's network
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64), requires = "table")]
    per_rack: u32,
}

fn factor(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("{text:?} is no factor; write a number above 0, as 0.25"))
}

/// Prints what was asked for.
pub(crate) fn show(options: &Options) -> Result<(), Error> {
    let out = &mut std::io::stdout().lock();
    match (options.table, options.op) {
        (Some(number), _) => table::print(out, number, options.racks, options.per_rack),
        (None, Some(operation)) => one(out, options, operation),
        (None, None) => Ok(()),
    }
}

fn one(out: &mut impl Write, options: &Options, operation: Operation) -> Result<(), Error> {
    let layout = options.topology.layout();
    let call = Call::new(operation, Rank(options.root), options.bytes, 1);
    let rates = Rates { host: 1.0, uplink: options.uplink };
    let plan = options.plan.unwrap_or_else(|| Plan::default_at(&call, &layout, rates));
    let schedule = compile(&call, &layout, &plan, |_| true)?;
    let stuck = || Error::Stuck(plan.to_string());
    let analysis = analyse(&schedule, &layout).ok_or_else(stuck)?;
    let how = if options.plan.is_some() { "forced" } else { "picked" };
    writeln!(out, "{operation} of {} on {}: {plan} ({how})", size::show(options.bytes), options.topology)?;
    print(out, &analysis, &layout, options)?;
    if let Some(path) = &options.svg {
        let messages = cool_collective::messages(&schedule, &layout).ok_or_else(stuck)?;
        let title = format!("{operation} of {} bytes by {plan} on {}", options.bytes, options.topology);
        std::fs::write(path, svg::draw(&title, &layout, &messages))
            .map_err(|reason| Error::Picture { path: path.display().to_string(), reason })?;
    }
    Ok(())
}

fn print(out: &mut impl Write, a: &Analysis, layout: &Layout, options: &Options) -> Result<(), Error> {
    let (host, uplink) = (a.busiest_host(), a.busiest_uplink());
    let process = a.busiest.iter().max().copied().unwrap_or(0);
    writeln!(out, "  {}, {} of them across racks", count(a.steps, "step"), a.steps_across_racks)?;
    writeln!(
        out,
        "  {} and {}, {} of them across racks",
        count(a.unicasts, "unicast"),
        count(a.multicasts, "multicast"),
        a.across_racks
    )?;
    writeln!(out, "  {} at most to and from one process in a step", count(process, "message"))?;
    writeln!(out, "  {host} bytes at most over a host's link, {uplink} over an uplink, each way by itself")?;
    let time = (host as f64).max(uplink as f64 / options.uplink);
    if options.bytes > 0 {
        let times = time / options.bytes as f64;
        writeln!(
            out,
            "  so {times:.3} times the time of {} over a host's link, at least",
            size::show(options.bytes)
        )?;
    }
    writeln!(out, "  bytes over each link:            up         down")?;
    for (rack, link) in a.uplinks.iter().enumerate() {
        writeln!(out, "    rack {rack:<4} uplink   {:>15} {:>12}", link.up.bytes, link.down.bytes)?;
        for node in layout.nodes_of_rack(rack) {
            let link = a.hosts[node];
            writeln!(out, "      node {node:<4}        {:>15} {:>12}", link.up.bytes, link.down.bytes)?;
        }
    }
    Ok(())
}
