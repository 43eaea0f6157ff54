//! `cool bench`: submits a job with this program as its ranks (`rank`), and shows their
//! measurements.

mod force;
mod idle;
mod limit;
mod pattern;
mod plan;
mod predict;
pub(crate) mod rank;
mod report;

use crate::error::Error;
use crate::followed_job::{self, JobOptions, JobUpdate, positive};
use crate::rank_line::print_line;
use crate::ranks::BENCH_RANK;
use crate::size;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobSpec, Output};
use force::{ForcedPlan, forced_plans};
use plan::{BenchCase, BenchOp, BenchPlan, CaseMeasurement};
use predict::Predictor;
use report::{CaseFigures, Participants};
use std::io::Write;
use std::num::NonZeroU32;
use tonic::transport::Channel;

/// Measure collectives across the nodes, and check every byte of the results
///
/// Before each repetition all ranks meet in a barrier; the time of a repetition is that of the
/// slowest rank. `limit` is the time that the busiest link needs for the bytes at its full rate. It
/// is shown where there is a formula, the rates of links are known (see cool-controller --host-mbit
/// and --uplink-mbit), and there is more data than idle links pass at once. `predicted` is the time
/// in the simulator, for the same plan and the costs that the controller knows (see `cool
/// topology`). `idle` is the idle share of the busiest node's CPUs: where it is small, the CPUs
/// were measured rather than the network. `repaired` counts the chunks that were lost and received
/// by repair.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchOptions {
    /// Operations, separated by commas; gatherv, allgatherv, scatterv, reduce_scatterv and
    /// alltoallv are the variants with parts of unequal lengths
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "OP,..",
        default_value = "bcast,reduce,allreduce,gather,allgather,scatter,reduce_scatter,alltoall,scan,exscan,barrier"
    )]
    ops: Vec<BenchOp>,

    /// Sizes, separated by commas: of the message (bcast), the vector (reduce, allreduce,
    /// reduce_scatter, scan, exscan), or the whole array of which each rank has a part (gather,
    /// allgather, scatter; alltoall: at each rank)
    #[arg(long, value_delimiter = ',', value_name = "SIZE,..", value_parser = size::parse, default_value = "1K,1M,8M")]
    bytes: Vec<u64>,

    /// Measured repetitions of each operation at each size
    #[arg(long, default_value = "5", value_name = "R", value_parser = positive)]
    reps: NonZeroU32,

    /// Repetitions before them, which are checked but not measured
    #[arg(long, default_value_t = 1, value_name = "W")]
    warmup: u16,

    /// Root of the operations that have one; must be a rank of the job
    #[arg(long, default_value_t = 0, value_name = "RANK")]
    root: usize,

    #[command(flatten)]
    ranks: JobOptions,

    /// Force a plan for one operation, such as allreduce=cool-b-r, or for all measured ones; may be
    /// repeated
    #[arg(long = "plan", value_name = "[OP=]PLAN")]
    plans: Vec<ForcedPlan>,

    /// Keep arrays in memory that ranks share with their agents (libcool's alloc), so that they are
    /// not copied
    #[arg(long)]
    alloc: bool,

    /// Start each repetition at one instant, MS milliseconds after the barrier, and measure from
    /// there
    ///
    /// Ranks leave a barrier one after the other, so a rank that leaves late may find a part of the
    /// work done. The nodes must share one clock, as those of an emulated network do.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pause: Option<u32>,

    /// Calls of each repetition, without a pause; its time is the mean of them
    ///
    /// Ranks are not synchronized between these calls: for example, the root of a bcast may be
    /// ahead.
    #[arg(long, default_value = "1", value_name = "N", value_parser = positive)]
    calls: NonZeroU32,

    /// Print one JSON document at the end instead of the table
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark to its end.
pub(crate) async fn run(client: ControllerClient<Channel>, options: &BenchOptions) -> Result<(), Error> {
    let plan = BenchPlan {
        cases: BenchPlan::cases(&options.ops, &options.bytes),
        warmup: options.warmup.into(),
        reps: options.reps.get(),
        root: options.root,
        alloc: options.alloc,
        pause_ms: options.pause,
        calls: options.calls.get(),
        forced: forced_plans(&options.ops, &options.plans)?,
    };
    let spec = spec(options, &plan)?;
    let mut bench =
        BenchRun { plan, table: !options.json, participants: None, predictor: None, results: Vec::new() };
    followed_job::run(client, spec, |update| bench.on_update(update)).await?;
    bench.finish()
}

fn spec(options: &BenchOptions, plan: &BenchPlan) -> Result<JobSpec, Error> {
    Ok(JobSpec {
        program: followed_job::this_program()?,
        args: vec![BENCH_RANK.to_owned(), serde_json::json!(plan).to_string()],
        ..options.ranks.clone().spec()
    })
}

/// A benchmark that is running.
struct BenchRun {
    plan: BenchPlan,
    /// Whether each result is printed at once, as a line of the table.
    table: bool,
    participants: Option<Participants>,
    predictor: Option<Predictor>,
    results: Vec<CaseFigures>,
}

impl BenchRun {
    fn on_update(&mut self, update: JobUpdate) -> Result<(), Error> {
        match update {
            JobUpdate::Started(group) => {
                let participants = Participants::from_group(&group);
                if self.plan.root >= participants.ranks {
                    return Err(Error::NoRoot { root: self.plan.root, ranks: participants.ranks });
                }
                self.predictor = Predictor::for_group(&group, self.plan.pause_ms);
                let heading = format!("{}\n{}", participants.describe(), CaseFigures::titles());
                self.participants = Some(participants);
                self.print(&heading)
            }
            JobUpdate::Line(output) if output.rank == 0 && !output.stderr => self.on_result(&output.line),
            JobUpdate::Line(output) => print_line(&Output { stderr: true, ..output }),
        }
    }

    /// Handles a line of rank 0, which is the result of the next case.
    fn on_result(&mut self, line: &[u8]) -> Result<(), Error> {
        let not_a_result = || Error::NotAResult(String::from_utf8_lossy(line).into_owned());
        let measured: CaseMeasurement = serde_json::from_slice(line).map_err(|_| not_a_result())?;
        let case: BenchCase = *self.plan.cases.get(self.results.len()).ok_or_else(not_a_result)?;
        let participants = self.participants.as_ref().ok_or_else(not_a_result)?;
        let predicted = self.predictor.as_ref().and_then(|p| p.seconds(case, self.plan.root, &measured.plan));
        let figures = CaseFigures::new(case, measured, predicted, participants).ok_or_else(not_a_result)?;
        self.print(&figures.row(participants))?;
        self.results.push(figures);
        Ok(())
    }

    fn print(&self, line: &str) -> Result<(), Error> {
        if self.table { Ok(writeln!(std::io::stdout(), "{line}")?) } else { Ok(()) }
    }

    fn finish(&self) -> Result<(), Error> {
        let (done, requested) = (self.results.len(), self.plan.cases.len());
        let participants = match &self.participants {
            Some(participants) if done == requested => participants,
            _ => return Err(Error::MissingResults { done, requested }),
        };
        if self.table {
            return report::loss_note(participants, self.plan.calls, &self.results)
                .map_or(Ok(()), |note| self.print(&note));
        }
        let document = report::document(participants, self.plan.root, self.plan.warmup, &self.results);
        Ok(std::io::stdout().write_all(document.as_bytes())?)
    }
}
