//! `cool plan`: shows the plan of a call, its load on the network, and its picture; or the tables
//! of the COOL paper next to the counts of schedules. Without --topology it uses the network of the
//! controller.

mod copy;
mod svg;
mod table;

use crate::error::Error;
use crate::network::{CollectiveOptions, EVENTS_MAX, assumed_rates};
use crate::units::{self, count};
use crate::{cluster, size};
use cool_collective::{Analysis, Layout, Operation, Plan, Planner, analyze, check, compile};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{Node, TopologyRequest};
use cool_sim::schedule::{AgentCosts, FabricModel, limit, trace};
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use tonic::transport::Channel;

/// Number of plans that are listed in addition to the chosen one.
const ALTERNATIVES_SHOWN: usize = 4;

/// Show the plan of a collective, its messages and the load of links; or the tables of the COOL
/// paper
///
/// Without --topology it is the plan that agents would choose now, with one rank on each node that
/// the controller has found. Quick calls, which ranks execute themselves, have plans of their own
/// (docs/design/data-path.md).
#[derive(Debug, clap::Args)]
pub(crate) struct PlanOptions {
    /// Operation: bcast, reduce, allreduce, gather, allgather, scatter, reduce_scatter, alltoall,
    /// scan, exscan or barrier; or copy, for the time of each way of `cool copy`
    #[arg(long, value_name = "OPERATION", required_unless_present = "table")]
    op: Option<PlanSubject>,

    #[command(flatten)]
    asked: CollectiveOptions,

    /// Draw the simulated schedule into a file, as a time-space diagram
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print table 1 (steps and messages) or 3 (load) of the paper, next to the counts of schedules
    #[arg(long, value_name = "N", value_parser = table::number, conflicts_with_all = ["op", "svg"])]
    table: Option<u8>,

    /// Number of racks for --table
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64), requires = "table")]
    racks: u32,

    /// Number of nodes in each rack for --table
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64), requires = "table")]
    per_rack: u32,
}

/// The subject of `cool plan`: a call or a copy.
#[derive(Clone, Copy, Debug)]
enum PlanSubject {
    Call(Operation),
    Copy,
}

impl FromStr for PlanSubject {
    type Err = <Operation as FromStr>::Err;

    fn from_str(text: &str) -> Result<PlanSubject, Self::Err> {
        if text == "copy" { Ok(PlanSubject::Copy) } else { text.parse().map(PlanSubject::Call) }
    }
}

/// Prints a table, or the plan on a network without a controller.
pub(crate) fn show(options: &PlanOptions) -> Result<(), Error> {
    let out = &mut std::io::stdout().lock();
    match (options.table, options.op) {
        (Some(number), _) => table::print(out, number, options.racks, options.per_rack),
        (None, Some(subject)) => {
            let network = PlanNetwork { built: options.asked.network.build()?, names: None };
            print_subject(out, options, subject, network, &AgentCosts::default())
        }
        (None, None) => Ok(()),
    }
}

impl PlanOptions {
    /// Returns whether the network must be requested from the controller.
    pub(crate) fn needs_controller(&self) -> bool {
        self.asked.network.topology.is_none() && self.table.is_none()
    }
}

/// Prints the plan that agents would choose, with a rank on each node that the controller has
/// found.
pub(crate) async fn show_cluster(
    mut client: ControllerClient<Channel>,
    options: &PlanOptions,
) -> Result<(), Error> {
    let Some(subject) = options.op else { return Ok(()) };
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
    let names = nodes.iter().map(|node| node.name.clone()).collect();
    let network = PlanNetwork { built: (fabric, layout), names: Some(names) };
    print_subject(out, options, subject, network, &model.costs)?;
    Ok(writeln!(out, "  costs: {}", cluster::describe(&model))?)
}

/// The network of a plan.
struct PlanNetwork {
    built: (FabricModel, Layout),
    /// Names of the nodes; `None` for a network without a controller.
    names: Option<Vec<String>>,
}

fn print_subject(
    out: &mut impl Write,
    options: &PlanOptions,
    subject: PlanSubject,
    PlanNetwork { built: (fabric, layout), names }: PlanNetwork,
    costs: &AgentCosts,
) -> Result<(), Error> {
    let asked = &options.asked;
    let operation = match subject {
        PlanSubject::Call(operation) => operation,
        PlanSubject::Copy if asked.plan.is_some() || options.svg.is_some() => return Err(Error::PlanOfCopy),
        PlanSubject::Copy => return copy::show(out, asked, (fabric, layout), costs),
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
    if names.is_none() {
        writeln!(out, "  {}", assumed_rates(&fabric))?;
    }
    let estimate = planner.estimate(&call, plan);
    if let Some(estimate) = estimate {
        let least = limit(&call, &layout, &fabric).map(|limit| limit.as_secs_f64());
        let times = least.map_or(String::new(), |least| {
            format!(", {:.2} times the limit of {}", estimate.seconds / least, units::seconds(least))
        });
        let why = match asked.plan {
            Some(_) => String::new(),
            None => format!(", the least of {}", count(planner.rank(&call).len(), "plan")),
        };
        writeln!(out, "  about {} expected{why}{times}", units::seconds(estimate.seconds))?;
    }
    let rest = planner.rank(&call).into_iter().filter(|other| other.plan != plan).take(ALTERNATIVES_SHOWN);
    let rest: Vec<String> =
        rest.map(|other| format!("{} {}", other.plan, units::seconds(other.seconds))).collect();
    if !rest.is_empty() {
        writeln!(out, "  others: {}", rest.join(", "))?;
    }
    let events = estimate.map_or(0.0, |estimate| estimate.events);
    if events > EVENTS_MAX && options.svg.is_none() {
        let millions = events / 1e6;
        return Ok(writeln!(out, "  about {millions:.0} million events: too many to count the messages")?);
    }
    if events > EVENTS_MAX {
        return Err(Error::TooLong { plan: plan.to_string(), topology: fabric.to_string(), events });
    }
    let schedule = compile(&call, &layout, &plan, |_| true)?;
    let stuck = || Error::Stuck(plan.to_string());
    print_analysis(out, &analyze(&schedule, &layout).ok_or_else(stuck)?, &layout, names.as_deref())?;
    if let Some(path) = &options.svg {
        let (timing, messages) = trace(&schedule, &layout, &fabric, costs)?;
        let seconds = timing.time.as_secs_f64();
        let title = format!("{what} by {plan}: {}", units::seconds(seconds));
        let picture = svg::draw(&title, &layout, &messages, seconds)?;
        std::fs::write(path, picture)
            .map_err(|reason| Error::Picture { path: path.display().to_string(), reason })?;
    }
    Ok(())
}

fn print_analysis(
    out: &mut impl Write,
    a: &Analysis,
    layout: &Layout,
    names: Option<&[String]>,
) -> Result<(), Error> {
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
    writeln!(out, "  at most {} to and from one rank in a step", count(process, "message"))?;
    writeln!(
        out,
        "  at most {host} bytes over a host's link and {uplink} over an uplink, in each direction"
    )?;
    writeln!(out, "  bytes over each link:            up         down")?;
    for (rack, link) in a.uplinks.iter().enumerate() {
        let (up, down) = (link.up.bytes, link.down.bytes);
        writeln!(out, "    rack {rack:<4} uplink   {up:>15} {down:>12}")?;
        let nodes: Vec<usize> = layout.nodes_of_rack(rack).collect();
        let loads: Vec<(u64, u64)> =
            nodes.iter().map(|node| &a.hosts[*node]).map(|link| (link.up.bytes, link.down.bytes)).collect();
        // One line is enough for a rack if all its nodes have the same load.
        if let [(up, down), _, ..] = loads[..]
            && loads.iter().all(|load| *load == (up, down))
        {
            let each = format!("each of {} nodes", nodes.len());
            writeln!(out, "      {each:<16} {up:>15} {down:>12}")?;
            continue;
        }
        for (node, (up, down)) in nodes.into_iter().zip(loads) {
            let number = || format!("node {node}");
            let name = names.and_then(|names| names.get(node)).cloned().unwrap_or_else(number);
            writeln!(out, "      {name:<16} {up:>15} {down:>12}")?;
        }
    }
    Ok(())
}
