//! `cool simulate`: how long the plans of a collective take on a network of any size, beside the physical limit; or
//! how good the planner's picks are. It asks no controller.

mod grid;

use crate::error::Error;
use crate::{size, units};
use cool_collective::planner::Planner;
use cool_collective::{Call, Operation, Plan, Rank, check, compile};
use cool_sim::schedule::{Costs, Fabric, Placement, limit, simulate};
use std::io::Write;
use std::time::Duration;

/// A plan that is expected to take more events than this is not simulated unless it is asked for: half a minute and
/// 1 GB, about.
const MOST_EVENTS: f64 = 5e6;

/// Predicts how long the plans of a collective take on a network of any size.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The operation: bcast, reduce, allreduce, gather, allgather, scatter, reduce_scatter, alltoall, scan, exscan, barrier
    #[arg(long, value_name = "OPERATION", required_unless_present = "grid")]
    op: Option<Operation>,

    /// Bytes of the message, the vector, or one rank's part, as in 8M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1M")]
    bytes: u64,

    /// The network: tree:32x32x32 is 32 racks of 32 hosts with 32 ranks each; tree:3+5+2 is uneven; leafspine:4x2x16
    /// has 4 racks and 2 spines; fattree:8 has switches with 8 ports
    #[arg(long, value_name = "TOPOLOGY", default_value = "tree:4x4")]
    topology: Fabric,

    /// Only this plan; all that fit, if left out
    #[arg(long, value_name = "PLAN", env = "COOL_PLAN")]
    plan: Option<Plan>,

    /// The rank at the root
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,

    /// Rate of a host's link
    #[arg(long, value_name = "MBIT", default_value_t = 20)]
    host_mbit: u64,

    /// Rate of a link between switches
    #[arg(long, value_name = "MBIT", default_value_t = 20)]
    uplink_mbit: u64,

    /// Time from one end of a link to the other, a switch's work included
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 50)]
    latency_us: u64,

    /// Bytes that pass an idle link at once: the test bed's token buckets; 0 for hardware
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "16000")]
    burst: u64,

    /// Ranks that follow each other are in other racks
    #[arg(long)]
    interleaved: bool,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    /// Compares the planner's picks with the best plans, over operations, sizes and topologies; takes minutes
    #[arg(long, conflicts_with_all = ["op", "plan", "json"])]
    grid: bool,
}

/// What is said of one plan.
#[derive(Debug, serde::Serialize)]
struct Line {
    plan: String,
    /// None if it is too large to simulate.
    seconds: Option<f64>,
    times_limit: Option<f64>,
}

#[derive(Debug, serde::Serialize)]
struct Document {
    topology: String,
    operation: String,
    bytes: u64,
    limit_seconds: Option<f64>,
    picked: String,
    plans: Vec<Line>,
}

/// Simulates and prints.
pub(crate) fn show(options: &Options) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match options.op {
        None => grid::print(&mut out),
        Some(operation) => {
            let document = document(options, operation)?;
            if options.json {
                writeln!(out, "{:#}", serde_json::json!(document))?;
            } else {
                out.write_all(table(&document).as_bytes())?;
            }
            Ok(())
        }
    }
}

fn document(options: &Options, operation: Operation) -> Result<Document, Error> {
    let (fabric, costs) = (fabric(options)?, Costs::default());
    let placement = if options.interleaved { Placement::Interleaved } else { Placement::Packed };
    let layout = fabric.layout(placement)?;
    let call = Call::new(operation, Rank(options.root), options.bytes, 1);
    let least = limit(&call, &layout, &fabric).map(|limit| limit.as_secs_f64());
    let mut planner = Planner::new(fabric.cost_model(&costs), layout.clone());
    let run = |plan: &Plan| -> Result<Line, Error> {
        let schedule = compile(&call, &layout, plan, |_| true)?;
        let seconds = simulate(&schedule, &layout, &fabric, &costs)?.time.as_secs_f64();
        let times_limit = least.map(|least| seconds / least);
        Ok(Line { plan: plan.to_string(), seconds: Some(seconds), times_limit })
    };
    let mut plans = Vec::new();
    let picked = match options.plan {
        Some(plan) => {
            plans.push(run(&plan)?);
            plan
        }
        None => {
            check(&call, &layout, &Plan::default_for(&call, &layout))?;
            let picked = planner.pick(&call);
            let others = Plan::fitting(operation).filter(|plan| *plan != picked);
            for plan in std::iter::once(picked).chain(others) {
                let events = planner.estimate(&call, plan).map_or(f64::INFINITY, |estimate| estimate.events);
                plans.push(if events > MOST_EVENTS {
                    Line { plan: plan.to_string(), seconds: None, times_limit: None }
                } else {
                    run(&plan)?
                });
            }
            picked
        }
    };
    let late = |line: &Line| line.seconds.unwrap_or(f64::INFINITY);
    plans.sort_by(|a, b| late(a).total_cmp(&late(b)));
    Ok(Document {
        topology: fabric.to_string(),
        operation: operation.to_string(),
        bytes: options.bytes,
        limit_seconds: least,
        picked: picked.to_string(),
        plans,
    })
}

fn fabric(options: &Options) -> Result<Fabric, Error> {
    let bytes = |mbit: u64| mbit.saturating_mul(125_000);
    let mut fabric =
        options.topology.clone().with_rates(bytes(options.host_mbit), bytes(options.uplink_mbit))?;
    fabric.delay = Duration::from_micros(options.latency_us);
    fabric.burst = options.burst;
    Ok(fabric)
}

fn table(document: &Document) -> String {
    let Document { topology, operation, bytes, limit_seconds, picked, plans } = document;
    let width = plans.iter().map(|line| line.plan.len()).max().unwrap_or(0).max("limit".len());
    let mut text = format!("{operation} of {} on {topology}\n", size::show(*bytes));
    let mut line = |plan: &str, time: &str, rest: &str| {
        text += format!("  {plan:width$}  {time:>10}  {rest}").trim_end();
        text.push('\n');
    };
    if let Some(least) = limit_seconds {
        line("limit", &units::seconds(*least), "");
    }
    for plan in plans {
        let time = plan.seconds.map_or("-".to_owned(), units::seconds);
        let times = plan.times_limit.map_or(String::new(), |times| format!("{times:.2} x limit"));
        let note = match plan.seconds {
            None => "too large to simulate; ask for it with --plan",
            Some(_) if plan.plan == *picked => "  picked",
            Some(_) => "",
        };
        line(&plan.plan, &time, &format!("{times}{note}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn options(text: &str) -> Options {
        Command::parse_from(std::iter::once("simulate").chain(text.split(' '))).options
    }

    #[test]
    fn every_fitting_plan_stands_beside_the_limit_and_the_fastest_first() {
        let options = options("--op allreduce --bytes 64K --topology tree:2x3x2");
        let document = document(&options, Operation::Allreduce).unwrap();
        assert!(document.plans.is_sorted_by(|a, b| a.seconds <= b.seconds));
        assert!(document.plans.iter().all(|line| line.times_limit.is_some_and(|times| times > 0.7)));
        for plan in Plan::fitting(Operation::Allreduce) {
            assert!(document.plans.iter().any(|line| line.plan == plan.to_string()), "{plan}");
        }
        let text = table(&document);
        assert!(text.contains("limit") && text.contains("picked"), "{text}");
    }

    #[test]
    fn a_plan_that_does_not_fit_and_a_network_without_rate_are_refused_in_words() {
        let error =
            document(&options("--op scan --plan multicast"), Operation::Scan).unwrap_err().to_string();
        assert!(error.contains("cannot run scan"), "{error}");
        let error = document(&options("--op bcast --host-mbit 0"), Operation::Bcast).unwrap_err().to_string();
        assert!(error.contains("rates above 0"), "{error}");
        let error = document(&options("--op bcast --root 16"), Operation::Bcast).unwrap_err().to_string();
        assert!(error.contains("ranks 0 to 15"), "{error}");
    }

    #[test]
    fn a_schedule_too_large_to_simulate_is_told_of_and_not_tried() {
        let options = options("--op alltoall --bytes 8 --topology tree:32x32x32");
        let document = document(&options, Operation::Alltoall).unwrap();
        assert!(document.plans.iter().any(|line| line.seconds.is_none()));
        assert!(table(&document).contains("too large to simulate"));
    }
}
