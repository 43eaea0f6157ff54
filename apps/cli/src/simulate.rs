//! `cool simulate`: predicts how long the plans of a collective take on a network of any size,
//! compared with the physical limit; or how good the planner's choices are. It needs no controller.

mod grid;

use crate::error::Error;
use crate::network::{CollectiveOptions, EVENTS_MAX, assumed_rates};
use crate::{size, terminal_text, units};
use cool_collective::planner::{Estimate, Planner};
use cool_collective::{Operation, Plan, check, compile};
use cool_sim::schedule::{AgentCosts, limit, simulate};
use std::io::Write;

/// Predict how long the plans of a collective take on a network of any size, without a controller
#[derive(Debug, clap::Args)]
pub(crate) struct SimulateOptions {
    /// Operation: bcast, reduce, allreduce, gather, allgather, scatter, reduce_scatter, alltoall,
    /// scan, exscan or barrier
    #[arg(long, value_name = "OPERATION", required_unless_present = "grid")]
    op: Option<Operation>,

    #[command(flatten)]
    asked: CollectiveOptions,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    /// Compare the planner's choices with the best plans, for many operations, sizes and
    /// topologies; takes minutes
    #[arg(long, conflicts_with_all = ["op", "plan", "json"])]
    grid: bool,
}

/// The time of one plan.
#[derive(Debug, serde::Serialize)]
struct PlanTiming {
    plan: String,
    seconds: f64,
    times_limit: Option<f64>,
    /// Whether the time is the planner's estimate, because a simulation would take too long.
    estimated: bool,
}

#[derive(Debug, serde::Serialize)]
struct SimulationDocument {
    topology: String,
    #[serde(skip)]
    rates: String,
    operation: String,
    bytes: u64,
    limit_seconds: Option<f64>,
    picked: Option<String>,
    plans: Vec<PlanTiming>,
}

/// Simulates and prints.
pub(crate) fn show(options: &SimulateOptions) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match options.op {
        None => grid::print(&mut out),
        Some(operation) => {
            let document = document(options, operation)?;
            if options.json {
                out.write_all(terminal_text::json(&serde_json::json!(document)).as_bytes())?;
            } else {
                out.write_all(table(&document).as_bytes())?;
            }
            Ok(())
        }
    }
}

fn document(options: &SimulateOptions, operation: Operation) -> Result<SimulationDocument, Error> {
    let asked = &options.asked;
    let (fabric, layout) = asked.network.build()?;
    let costs = AgentCosts::default();
    let call = asked.call(operation);
    let least = limit(&call, &layout, &fabric).map(|limit| limit.as_secs_f64());
    let mut planner = Planner::new(fabric.cost_model(&costs), layout.clone());
    let line = |plan: Plan, seconds: f64, estimated| {
        let times_limit = least.map(|least| seconds / least);
        PlanTiming { plan: plan.to_string(), seconds, times_limit, estimated }
    };
    let run = |plan: Plan| -> Result<PlanTiming, Error> {
        let schedule = compile(&call, &layout, &plan, |_| true)?;
        let timing = simulate(&schedule, &layout, &fabric, &costs)?;
        Ok(line(plan, timing.time.as_secs_f64(), false))
    };
    let (picked, mut plans) = match asked.plan {
        Some(plan) => (None, vec![run(plan)?]),
        None => {
            check(&call, &layout, &Plan::default_for(&call, &layout))?;
            let picked = planner.pick(&call);
            let others = Planner::suitable(&call, &layout).into_iter().filter(|plan| *plan != picked);
            let lines =
                std::iter::once(picked).chain(others).map(|plan| match planner.estimate(&call, plan) {
                    Some(Estimate { seconds, events, .. }) if events > EVENTS_MAX => {
                        Ok(line(plan, seconds, true))
                    }
                    _ => run(plan),
                });
            (Some(picked), lines.collect::<Result<Vec<PlanTiming>, Error>>()?)
        }
    };
    plans.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(SimulationDocument {
        topology: fabric.to_string(),
        rates: assumed_rates(&fabric),
        operation: operation.to_string(),
        bytes: asked.bytes,
        limit_seconds: least,
        picked: picked.map(|plan| plan.to_string()),
        plans,
    })
}

fn table(document: &SimulationDocument) -> String {
    let SimulationDocument { topology, rates, operation, bytes, limit_seconds, picked, plans } = document;
    let width = plans.iter().map(|line| line.plan.len()).max().unwrap_or(0).max("limit".len());
    let mut text = format!("{rates}\n{operation} of {} on {topology}\n", size::named(*bytes));
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
    struct Parsed {
        #[command(flatten)]
        options: SimulateOptions,
    }

    fn options(text: &str) -> SimulateOptions {
        Parsed::parse_from(std::iter::once("simulate").chain(text.split(' '))).options
    }

    #[test]
    fn all_suitable_plans_are_listed_fastest_first() {
        let options = options("--op allreduce --bytes 64K --topology tree:2x3x2");
        let document = document(&options, Operation::Allreduce).unwrap();
        assert!(document.plans.is_sorted_by(|a, b| a.seconds <= b.seconds));
        assert!(document.plans.iter().all(|line| line.times_limit.is_some_and(|times| times > 0.7)));
        for plan in Plan::fitting(Operation::Allreduce) {
            assert!(document.plans.iter().any(|line| line.plan == plan.to_string()), "{plan}");
        }
        let text = table(&document);
        assert!(text.contains("limit") && text.contains("picked"), "{text}");
        assert!(text.starts_with("assumed links: hosts 10 Gbit/s (--host-mbit)"), "{text}");
    }

    #[test]
    fn unsuitable_plans_and_networks_without_rates_are_refused() {
        let error =
            document(&options("--op scan --plan multicast"), Operation::Scan).unwrap_err().to_string();
        assert!(error.contains("cannot run scan"), "{error}");
        let error = document(&options("--op bcast --host-mbit 0"), Operation::Bcast).unwrap_err().to_string();
        assert!(error.contains("rates must be above 0"), "{error}");
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
