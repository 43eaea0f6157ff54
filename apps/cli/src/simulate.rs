//! `cool simulate`: how long the plans of a collective take on a network of any size, beside the physical limit; or
//! how good the planner's picks are. It asks no controller.

mod grid;

use crate::error::Error;
use crate::network::{Asked, MOST_EVENTS};
use crate::{size, units};
use cool_collective::planner::{Estimate, Planner};
use cool_collective::{Operation, Plan, check, compile};
use cool_sim::schedule::{Costs, limit, simulate};
use std::io::Write;

/// Predict how long the plans of a collective take on a network of any size, without a controller
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The operation: bcast, reduce, allreduce, gather, allgather, scatter, reduce_scatter, alltoall, scan, exscan, barrier
    #[arg(long, value_name = "OPERATION", required_unless_present = "grid")]
    op: Option<Operation>,

    #[command(flatten)]
    asked: Asked,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    /// Compare the planner's picks with the best plans, over operations, sizes and topologies; takes minutes
    #[arg(long, conflicts_with_all = ["op", "plan", "json"])]
    grid: bool,
}

/// What is said of one plan.
#[derive(Debug, serde::Serialize)]
struct Line {
    plan: String,
    seconds: f64,
    times_limit: Option<f64>,
    /// Whether that is the planner's estimate, since it would take too long to simulate.
    estimated: bool,
}

#[derive(Debug, serde::Serialize)]
struct Document {
    topology: String,
    operation: String,
    bytes: u64,
    limit_seconds: Option<f64>,
    picked: Option<String>,
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
    let asked = &options.asked;
    let (fabric, layout) = asked.network.build()?;
    let costs = Costs::default();
    let call = asked.call(operation);
    let least = limit(&call, &layout, &fabric).map(|limit| limit.as_secs_f64());
    let mut planner = Planner::new(fabric.cost_model(&costs), layout.clone());
    let line = |plan: Plan, seconds: f64, estimated| {
        let times_limit = least.map(|least| seconds / least);
        Line { plan: plan.to_string(), seconds, times_limit, estimated }
    };
    let run = |plan: Plan| -> Result<Line, Error> {
        let schedule = compile(&call, &layout, &plan, |_| true)?;
        let timing = simulate(&schedule, &layout, &fabric, &costs)?;
        Ok(line(plan, timing.time.as_secs_f64(), false))
    };
    let (picked, mut plans) = match asked.plan {
        Some(plan) => (None, vec![run(plan)?]),
        None => {
            check(&call, &layout, &Plan::default_for(&call, &layout))?;
            let picked = planner.pick(&call);
            let others = Planner::candidates(&call, &layout).into_iter().filter(|plan| *plan != picked);
            let lines =
                std::iter::once(picked).chain(others).map(|plan| match planner.estimate(&call, plan) {
                    Some(Estimate { seconds, events, .. }) if events > MOST_EVENTS => {
                        Ok(line(plan, seconds, true))
                    }
                    _ => run(plan),
                });
            (Some(picked), lines.collect::<Result<Vec<Line>, Error>>()?)
        }
    };
    plans.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(Document {
        topology: fabric.to_string(),
        operation: operation.to_string(),
        bytes: asked.bytes,
        limit_seconds: least,
        picked: picked.map(|plan| plan.to_string()),
        plans,
    })
}

fn table(document: &Document) -> String {
    let Document { topology, operation, bytes, limit_seconds, picked, plans } = document;
    let width = plans.iter().map(|line| line.plan.len()).max().unwrap_or(0).max("limit".len());
    let mut text = format!("{operation} of {} on {topology}\n", size::named(*bytes));
    let mut line = |plan: &str, time: &str, rest: &str| {
        text += format!("  {plan:width$}  {time:>10}  {rest}").trim_end();
        text.push('\n');
    };
    if let Some(least) = limit_seconds {
        line("limit", &units::seconds(*least), "");
    }
    for plan in plans {
        let times = plan.times_limit.map_or(String::new(), |times| format!("{times:.2} x limit"));
        let note = if plan.estimated { "  estimated; --plan simulates it" } else { "" };
        let picked = if picked.as_ref() == Some(&plan.plan) { "  picked" } else { "" };
        line(&plan.plan, &units::seconds(plan.seconds), &format!("{times}{picked}{note}"));
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
    fn a_schedule_too_large_to_simulate_is_estimated() {
        let options = options("--op alltoall --bytes 8 --topology tree:32x32x32");
        let document = document(&options, Operation::Alltoall).unwrap();
        assert!(document.plans.iter().all(|line| line.estimated && line.seconds > 0.0));
        assert!(table(&document).contains("estimated"));
    }
}
