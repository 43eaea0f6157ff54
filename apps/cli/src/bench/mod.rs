//! `cool bench`: submits a job whose ranks are this same program (`rank`) and shows what they measure.

mod force;
mod idle;
mod limit;
mod pattern;
mod plan;
mod predict;
mod rank;
mod report;

pub(crate) use rank::{RankError, RankOptions, rank};

use crate::error::Error;
use crate::job::{self, Heard, Ranks};
use crate::run::forward;
use crate::size;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobSpec, Output};
use force::{Forced, forced};
use plan::{Case, Measured, Op, Plan};
use predict::Predictor;
use report::{Figures, Participants};
use std::io::Write;
use std::num::NonZeroU32;
use tonic::transport::Channel;

/// Measure collectives over the nodes, each result checked to the byte on every rank
///
/// All ranks meet in a barrier before each repetition; its time is that of the slowest rank. The limit is what the
/// busiest link needs for the bytes at full rate; it is shown where there is a formula and the rates of the links are known
/// (see cool-controller --host-mbit and --uplink-mbit). Predicted is what the simulator finds for the same plan by the
/// costs that the controller knows (see `cool topology`). `idle` is the idle share of the busiest node's processors: where
/// it is small, the processors were measured, not the network.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Operations, with commas between; gatherv, allgatherv, scatterv, reduce_scatterv and alltoallv are those with
    /// parts of unequal lengths
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "OP,..",
        default_value = "bcast,reduce,allreduce,gather,allgather,scatter,reduce_scatter,alltoall,scan,exscan,barrier"
    )]
    ops: Vec<Op>,

    /// Sizes, with commas between: of the message (bcast), the vector (reduce, allreduce, reduce_scatter, scan,
    /// exscan), or the whole array of which each rank has a part (gather, allgather, scatter; alltoall: at each rank)
    #[arg(long, value_delimiter = ',', value_name = "SIZE,..", value_parser = size::parse, default_value = "1K,1M,8M")]
    bytes: Vec<u64>,

    /// Measured repetitions of each operation at each size
    #[arg(long, default_value = "5", value_name = "R")]
    reps: NonZeroU32,

    /// Repetitions before, checked but not measured
    #[arg(long, default_value_t = 1, value_name = "W")]
    warmup: u16,

    /// The root, where an operation has one
    #[arg(long, default_value_t = 0, value_name = "RANK")]
    root: usize,

    #[command(flatten)]
    ranks: Ranks,

    /// Force a plan for one operation, or for all measured ones, as allreduce=cool-b-r; may be repeated
    #[arg(long = "plan", value_name = "[OP=]PLAN")]
    plans: Vec<Forced>,

    /// Let arrays lie in memory that ranks share with their agents (libcool's alloc), from which nothing is copied
    #[arg(long)]
    alloc: bool,

    /// Begin each repetition at one instant, MS milliseconds after the barrier, and measure from there
    ///
    /// Ranks leave a barrier one after the other, and whoever leaves late finds a part of the work done. The nodes must
    /// share one clock, as those of an emulated network do.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pause: Option<u32>,

    /// Calls of each repetition, one right after the other; its time is that of all, divided by them
    ///
    /// Ranks are not held together in between: the root of a bcast may be ahead of the others.
    #[arg(long, default_value = "1", value_name = "N")]
    calls: NonZeroU32,

    /// Print one JSON document at the end, in place of the table
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark to its end.
pub(crate) async fn run(client: ControllerClient<Channel>, options: &Options) -> Result<(), Error> {
    let plan = Plan {
        cases: Plan::cases(&options.ops, &options.bytes),
        warmup: options.warmup.into(),
        reps: options.reps.get(),
        root: options.root,
        alloc: options.alloc,
        pause_ms: options.pause,
        calls: options.calls.get(),
        forced: forced(&options.ops, &options.plans)?,
    };
    let spec = spec(options, &plan)?;
    let mut bench =
        Bench { plan, table: !options.json, participants: None, predictor: None, results: Vec::new() };
    job::run(client, spec, |heard| bench.hear(heard)).await?;
    bench.finish()
}

fn spec(options: &Options, plan: &Plan) -> Result<JobSpec, Error> {
    Ok(JobSpec {
        program: job::this_program()?,
        args: vec!["bench-rank".to_owned(), serde_json::json!(plan).to_string()],
        ..options.ranks.clone().spec()
    })
}

/// A benchmark that runs.
struct Bench {
    plan: Plan,
    /// Whether to print a line for each result as it comes.
    table: bool,
    participants: Option<Participants>,
    predictor: Option<Predictor>,
    results: Vec<Figures>,
}

impl Bench {
    fn hear(&mut self, heard: Heard) -> Result<(), Error> {
        match heard {
            Heard::Started(group) => {
                let participants = Participants::of(&group);
                if self.plan.root >= participants.ranks {
                    return Err(Error::NoRoot { root: self.plan.root, ranks: participants.ranks });
                }
                self.participants = Some(participants);
                self.predictor = Predictor::of(&group, self.plan.pause_ms);
                self.print(&format!("{}\n{}", participants.describe(), Figures::titles()))
            }
            Heard::Line(output) if output.rank == 0 && !output.stderr => self.result(&output.line),
            Heard::Line(output) => forward(&Output { stderr: true, ..output }),
        }
    }

    /// A line of rank 0.
    fn result(&mut self, line: &[u8]) -> Result<(), Error> {
        let not_a_result = || Error::Report(String::from_utf8_lossy(line).into_owned());
        let measured: Measured = serde_json::from_slice(line).map_err(|_| not_a_result())?;
        let case: Case = *self.plan.cases.get(self.results.len()).ok_or_else(not_a_result)?;
        let participants = self.participants.as_ref().ok_or_else(not_a_result)?;
        let predicted = self.predictor.as_ref().and_then(|p| p.seconds(case, self.plan.root, &measured.plan));
        let figures = Figures::new(case, measured, predicted, participants).ok_or_else(not_a_result)?;
        self.print(&figures.row())?;
        self.results.push(figures);
        Ok(())
    }

    fn print(&self, line: &str) -> Result<(), Error> {
        if self.table { Ok(writeln!(std::io::stdout(), "{line}")?) } else { Ok(()) }
    }

    fn finish(&self) -> Result<(), Error> {
        let (done, asked) = (self.results.len(), self.plan.cases.len());
        let participants = match &self.participants {
            Some(participants) if done == asked => participants,
            _ => return Err(Error::Missing { done, asked }),
        };
        if self.table {
            return Ok(());
        }
        let document = report::document(participants, self.plan.root, self.plan.warmup, &self.results);
        Ok(std::io::stdout().write_all(document.as_bytes())?)
    }
}
