//! `cool`: the operator's command. It asks the controller, and shows what it says; it decides nothing itself.

mod bench;
mod certs;
mod client;
mod cluster;
mod copy;
mod doctor;
mod error;
mod groups;
mod job;
mod jobs;
mod mpirun;
mod network;
mod own_ranks;
mod plan;
mod run;
mod simulate;
mod size;
mod store;
mod topology;
mod trace;
mod units;

use clap::{CommandFactory, Parser, Subcommand};
use error::Error;
use std::process::ExitCode;

/// Under which options of all commands stand in their help.
const CONNECTION: &str = "Connection to the controller";

/// Looks at a COOL cluster and runs programs on it.
#[derive(Debug, Parser)]
#[command(name = "cool", version)]
struct Options {
    /// The controller's gRPC address; of a pair, both
    #[arg(
        long,
        global = true,
        env = "COOL_CONTROLLER",
        value_name = "URL,...",
        default_value = "127.0.0.1:7400",
        help_heading = CONNECTION
    )]
    controller: String,

    #[command(flatten, next_help_heading = CONNECTION)]
    tls: cool_tls::Options,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Ask(Ask),
    Certs(certs::Options),
    Mpirun(mpirun::Options),
    Plan(plan::Options),
    Simulate(simulate::Options),
    /// One rank of `cool bench`, which starts it
    #[command(hide = true)]
    BenchRank(bench::RankOptions),
    /// One rank of `cool copy`, which starts it
    #[command(hide = true)]
    CopyRank(copy::RankOptions),
    /// One rank of `cool copy --stream`, which starts it
    #[command(hide = true)]
    CopyStreamRank(copy::StreamRankOptions),
    /// One rank of `cool ls` and its like, which start it
    #[command(hide = true)]
    StoreRank(store::StoreRankOptions),
}

/// What is asked of the controller.
#[derive(Debug, Subcommand)]
enum Ask {
    Topology(topology::Options),
    Groups(groups::Options),
    Run(run::Options),
    Copy(copy::Options),
    Put(store::PutOptions),
    Get(store::GetOptions),
    Ls(store::ListOptions),
    Stat(store::StatOptions),
    Rm(store::RemoveOptions),
    Verify(store::VerifyOptions),
    Jobs(jobs::Options),
    Cancel(jobs::CancelOptions),
    Drain(jobs::DrainOptions),
    Trace(trace::Options),
    Bench(bench::Options),
    Doctor(doctor::Options),
}

/// Its command line.
#[must_use]
pub fn command() -> clap::Command {
    Options::command()
}

/// Does what the command line of this process says.
#[must_use]
pub fn run() -> ExitCode {
    let Options { controller, tls, command } = Options::parse();
    let outcome = match command {
        Command::Ask(Ask::Trace(options)) if options.is_of_file() => trace::show_file(&options),
        Command::Ask(question) => ask(&controller, &tls, question),
        Command::Certs(options) => certs::run(&options),
        Command::Mpirun(options) => mpirun::run(&options),
        Command::Plan(options) if options.asks() => on_runtime(async {
            plan::show_cluster(client::connect(&controller, &tls).await?, &options).await
        }),
        Command::Plan(options) => plan::show(&options),
        Command::Simulate(options) => simulate::show(&options),
        Command::BenchRank(options) => bench::rank(&options).map_err(Error::from),
        Command::CopyRank(options) => copy::rank(&options).map_err(Error::from),
        Command::CopyStreamRank(options) => copy::stream_rank(&options).map_err(Error::from),
        Command::StoreRank(options) => store::rank(&options).map_err(Error::from),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has read enough, as in `cool plan ... | head`.
        Err(Error::Output(reason)) if reason.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cool: {error}");
            error.exit_code()
        }
    }
}

fn on_runtime(what: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
    runtime.block_on(what)
}

fn ask(controller: &str, tls: &cool_tls::Options, question: Ask) -> Result<(), Error> {
    let connect = || client::connect(controller, tls);
    on_runtime(async {
        match question {
            Ask::Topology(options) => {
                reading(controller, async || topology::show(connect().await?, &options).await).await
            }
            Ask::Groups(options) => {
                reading(controller, async || groups::show(connect().await?, &options).await).await
            }
            Ask::Jobs(options) => {
                reading(controller, async || jobs::show(connect().await?, &options).await).await
            }
            Ask::Doctor(options) => {
                reading(controller, async || doctor::examine(connect().await?, &options).await).await
            }
            Ask::Trace(options) => trace::show(connect().await?, &options).await,
            Ask::Copy(options) => copy::run(connect().await?, &options).await,
            Ask::Put(options) => store::put(connect().await?, &options).await,
            Ask::Get(options) => store::get(connect().await?, &options).await,
            Ask::Ls(options) => store::list(connect().await?, &options).await,
            Ask::Stat(options) => store::stat(connect().await?, &options).await,
            Ask::Rm(options) => store::remove(connect().await?, &options).await,
            Ask::Verify(options) => store::verify(connect().await?, &options).await,
            Ask::Run(options) => run::run(connect().await?, options).await,
            Ask::Cancel(options) => jobs::cancel(connect().await?, &options).await,
            Ask::Drain(options) => jobs::drain(connect().await?, &options).await,
            Ask::Bench(options) => bench::run(connect().await?, &options).await,
        }
    })
}

/// A question that changes nothing, asked once more if the controller is lost meanwhile and another one may take over.
async fn reading(controllers: &str, question: impl AsyncFn() -> Result<(), Error>) -> Result<(), Error> {
    match question().await {
        Err(Error::Lost(_)) if controllers.contains(',') => question().await,
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
