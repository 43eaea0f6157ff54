//! `cool plan`: which plan a call gets, what it puts on the network, and what it looks like; and the tables of
//! the COOL paper beside what schedules count. It asks the controller for the network, unless it is given one.

mod copy;
mod svg;
mod table;

use crate::error::Error;
use crate::network::{Asked, MOST_EVENTS};
use crate::units::{self, count};
use crate::{cluster, size};
use cool_collective::{Analysis, Layout, Operation, Plan, Planner, analyze, check, compile};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{Node, TopologyRequest};
use cool_sim::schedule::{Costs, FabricModel, limit, trace};
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use tonic::transport::Channel;

/// Plans that are named beside the one that is picked.
const ALTERNATIVES: usize = 4;

/// Show the plan of a collective, its messages and the load of links; or the tables of the COOL paper
///
/// Without --topology it is the plan that agents would pick now, with one rank on each node that the controller has
/// found. Short calls that ranks carry out themselves go by plans of their own (docs/design/data-path.md), whatever is picked.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The operation: bcast, reduce, allreduce, gather, allgather, scatter, reduce_scatter, alltoall, scan, exscan, barrier; or copy,
    /// what a file takes by each way of cool copy
    #[arg(long, value_name = "OPERATION", required_unless_present = "table")]
    op: Option<Planned>,

    #[command(flatten)]
    asked: Asked,

    /// Draw the schedule into a file, as a time-space diagram of what the simulator finds
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print table 1 (steps and messages) or 3 (load) of the paper, with the counts of schedules beside
    #[arg(long, value_name = "N", value_parser = table::number, conflicts_with_all = ["op", "svg"])]
    table: Option<u8>,

    /// Racks of a table's network
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64), requires = "table")]
    racks: u32,

    /// Nodes in each rack of a table's network
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64), requires = "table")]
    per_rack: u32,
}

/// What is planned.
#[derive(Clone, Copy, Debug)]
enum Planned {
    Call(Operation),
    Copy,
}

impl FromStr for Planned {
    type Err = <Operation as FromStr>::Err;

    fn from_str(text: &str) -> Result<Planned, Self::Err> {
        if text == "copy" { Ok(Planned::Copy) } else { text.parse().map(Planned::Call) }
    }
}

/// Prints what was asked for.
pub(crate) fn show(options: &Options) -> Result<(), Error> {
    let out = &mut std::io::stdout().lock();
    match (options.table, options.op) {
        (Some(number), _) => table::print(out, number, options.racks, options.per_rack),
        (None, Some(planned)) => {
            one(out, options, planned, options.asked.network.build()?, &Costs::default())
        }
        (None, None) => Ok(()),
    }
}

impl Options {
    /// Whether the controller is to be asked for the network.
    pub(crate) fn asks(&self) -> bool {
        self.asked.network.topology.is_none() && self.table.is_none()
    }
}

/// Prints the plan that agents would pick, with a rank on each node that the controller has found.
pub(crate) async fn show_cluster(
    mut client: ControllerClient<Channel>,
    options: &Options,
) -> Result<(), Error> {
    let Some(planned) = options.op else { return Ok(()) };
    let topology = client.get_topology(TopologyRequest {}).await?.into_inner();
    let mut nodes: Vec<&Node> = topology.nodes.iter().filter(|n| n.located).collect();
    if nodes.is_empty() {
        return Err(Error::NoNodes);
    }
    nodes.sort_by_key(|n| (n.rack, n.name.len(), &n.name));
    let layout = cluster::layout(nodes.iter().map(|n| (n.rack, n.name.as_str())))?;
    let model = cluster::cost_model(&topology.measurements.unwrap_or_default().cost_model)?;
    let out = &mut std::io::stdout().lock();
    let fabric = FabricModel::of_group(&layout, &model)?;
    let layout = layout.with_stripes(fabric.stripes());
    one(out, options, planned, (fabric, layout), &model.costs)?;
    Ok(writeln!(out, "  costs: {}", cluster::describe(&model))?)
}

fn one(
    out: &mut impl Write,
    options: &Options,
    planned: Planned,
    (fabric, layout): (FabricModel, Layout),
    costs: &Costs,
) -> Result<(), Error> {
    let asked = &options.asked;
    let operation = match planned {
        Planned::Call(operation) => operation,
        Planned::Copy if asked.plan.is_some() || options.svg.is_some() => return Err(Error::PlanOfCopy),
        Planned::Copy => return copy::show(out, asked, (fabric, layout), costs),
    };
    let call = asked.call(operation);
    let mut planner = Planner::new(fabric.cost_model(costs), layout.clone());
    let plan = match asked.plan {
        Some(plan) => plan,
        None => {
            check(&call, &layout, &Plan::default_for(&call, &layout))?;
            planner.pick(&call)
        }
    };
    check(&call, &layout, &plan)?;
    let what = format!("{operation} of {} on {fabric}", size::named(asked.bytes));
    let how = if asked.plan.is_some() { "forced" } else { "picked" };
    writeln!(out, "{what}: {plan} ({how})")?;
    let estimate = planner.estimate(&call, plan);
    if let Some(estimate) = estimate {
        let least = limit(&call, &layout, &fabric).map(|limit| limit.as_secs_f64());
        let times = least.map_or(String::new(), |least| {
            format!(", {:.2} times the limit of {}", estimate.seconds / least, units::seconds(least))
        });
        writeln!(out, "  about {} expected{times}", units::seconds(estimate.seconds))?;
    }
    let rest = planner.rank(&call).into_iter().filter(|other| other.plan != plan).take(ALTERNATIVES);
    let rest: Vec<String> =
        rest.map(|other| format!("{} {}", other.plan, units::seconds(other.seconds))).collect();
    if !rest.is_empty() {
        writeln!(out, "  others: {}", rest.join(", "))?;
    }
    let events = estimate.map_or(0.0, |estimate| estimate.events);
    if events > MOST_EVENTS && options.svg.is_none() {
        let millions = events / 1e6;
        return Ok(writeln!(
            out,
            "  about {millions:.0} million events: messages are not counted one by one"
        )?);
    }
    if events > MOST_EVENTS {
        return Err(Error::TooLong { plan: plan.to_string(), topology: fabric.to_string(), events });
    }
    let schedule = compile(&call, &layout, &plan, |_| true)?;
    let stuck = || Error::Stuck(plan.to_string());
    print(out, &analyze(&schedule, &layout).ok_or_else(stuck)?, &layout)?;
    if let Some(path) = &options.svg {
        let (timing, passages) = trace(&schedule, &layout, &fabric, costs)?;
        let seconds = timing.time.as_secs_f64();
        let title = format!("{what} by {plan}: {}", units::seconds(seconds));
        let picture = svg::draw(&title, &layout, &passages, seconds)?;
        std::fs::write(path, picture)
            .map_err(|reason| Error::Picture { path: path.display().to_string(), reason })?;
    }
    Ok(())
}

fn print(out: &mut impl Write, a: &Analysis, layout: &Layout) -> Result<(), Error> {
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
