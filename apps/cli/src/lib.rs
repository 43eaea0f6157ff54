//! `cool`: the operator's command. It sends requests to the controller, submits jobs and shows the
//! results; the controller makes all decisions.
//!
//! There is a file for each command. Files are copied by the ranks of `cool-copy`.

mod bench;
mod certs;
mod client;
mod cluster;
mod config;
mod cool_rank_job;
mod copy;
mod doctor;
mod error;
mod followed_job;
mod groups;
mod help;
mod jobs;
mod mpi_flags;
mod mpirun;
mod network;
mod node_names;
mod plan;
mod progress_bar;
mod rank_line;
mod ranks;
mod run;
mod signals;
mod simulate;
mod size;
mod store;
mod terminal_text;
mod topology;
mod trace;
mod units;
mod up;

use crate::terminal_text::printable_lines;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use cool_copy::without_os_code;
use error::Error;
use help::CONNECTION;
use std::ffi::OsString;
use std::process::ExitCode;

/// Inspect a COOL cluster and run programs on it.
#[derive(Debug, Parser)]
#[command(name = "cool", version)]
struct CoolOptions {
    /// Address of the controller; of a pair, both, separated by a comma
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
    command: CoolCommand,
}

#[derive(Debug, Subcommand)]
enum CoolCommand {
    #[command(flatten)]
    Controller(ControllerCommand),
    Up(up::UpOptions),
    Join(up::JoinOptions),
    Down(up::DownOptions),
    Certs(certs::CertsOptions),
    Mpirun(mpirun::MpirunOptions),
    Plan(plan::PlanOptions),
    Simulate(simulate::SimulateOptions),
}

/// The commands that always need a controller, except `trace` of a file.
#[derive(Debug, Subcommand)]
enum ControllerCommand {
    #[command(alias = "nodes")]
    Topology(topology::TopologyOptions),
    Groups(groups::GroupsOptions),
    Run(run::RunOptions),
    #[command(alias = "cp")]
    Copy(copy::command::CopyOptions),
    Put(store::put::PutOptions),
    Get(store::get::GetOptions),
    Ls(store::list::ListOptions),
    Stat(store::list::StatOptions),
    Rm(store::remove::RemoveOptions),
    Verify(store::verify::VerifyOptions),
    #[command(alias = "ps")]
    Jobs(jobs::JobsOptions),
    #[command(alias = "kill")]
    Cancel(jobs::CancelOptions),
    Drain(jobs::DrainOptions),
    Trace(trace::TraceOptions),
    Bench(bench::BenchOptions),
    #[command(alias = "status")]
    Doctor(doctor::DoctorOptions),
}

/// Returns the command line of `cool`, for example for its manual page.
#[must_use]
pub fn command() -> clap::Command {
    help::complete(CoolOptions::command())
}

/// Executes the command line of this process, and returns its exit code.
#[must_use]
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let rank = ranks::run(arguments.get(1..).unwrap_or_default());
    let outcome = rank.unwrap_or_else(|| parse(arguments).and_then(execute));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe, as in `cool plan ... | head`.
        Err(Error::Output(reason)) if reason.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cool: {}", printable_lines(&without_os_code(&error.to_string())));
            error.exit_code()
        }
    }
}

/// Parses a command line, with the defaults of the configuration files. Ends the process if it is
/// wrong or requests help.
fn parse(arguments: Vec<OsString>) -> Result<CoolOptions, Error> {
    let command = config::with_defaults(command())?;
    let arguments = mpi_flags::replace(&command, arguments);
    let matches = command.get_matches_from(arguments);
    Ok(CoolOptions::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

fn execute(CoolOptions { controller, tls, command }: CoolOptions) -> Result<(), Error> {
    match command {
        CoolCommand::Controller(ControllerCommand::Trace(options)) if options.reads_file() => {
            trace::show_file(&options)
        }
        CoolCommand::Controller(command) => execute_at_controller(&controller, &tls, command),
        CoolCommand::Up(options) => on_runtime(up::up(&options)),
        CoolCommand::Join(options) => on_runtime(up::join(&options)),
        CoolCommand::Down(options) => up::down(&options),
        CoolCommand::Certs(options) => certs::run(&options),
        CoolCommand::Mpirun(options) => mpirun::run(&options),
        CoolCommand::Plan(options) if options.needs_controller() => on_runtime(async {
            let offline = |error| Error::PlanOffline(Box::new(error));
            let client = client::connect(&controller, &tls).await.map_err(offline)?;
            plan::show_cluster(client, &options).await
        }),
        CoolCommand::Plan(options) => plan::show(&options),
        CoolCommand::Simulate(options) => simulate::show(&options),
    }
}

fn on_runtime(task: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
    runtime.block_on(task)
}

fn execute_at_controller(
    controller: &str,
    tls: &cool_tls::Options,
    command: ControllerCommand,
) -> Result<(), Error> {
    let connect = || client::connect(controller, tls);
    on_runtime(async {
        match command {
            ControllerCommand::Topology(options) => {
                with_retry(controller, async || topology::show(connect().await?, &options).await).await
            }
            ControllerCommand::Groups(options) => {
                with_retry(controller, async || groups::show(connect().await?, &options).await).await
            }
            ControllerCommand::Jobs(options) => {
                with_retry(controller, async || jobs::show(connect().await?, &options).await).await
            }
            ControllerCommand::Doctor(options) => {
                with_retry(controller, async || doctor::examine(connect().await?, &options).await).await
            }
            ControllerCommand::Trace(options) => trace::show(connect().await?, &options).await,
            ControllerCommand::Copy(options) => copy::command::run(connect().await?, &options).await,
            ControllerCommand::Put(options) => store::put::put(connect().await?, &options).await,
            ControllerCommand::Get(options) => store::get::get(connect().await?, &options).await,
            ControllerCommand::Ls(options) => store::list::list(connect().await?, &options).await,
            ControllerCommand::Stat(options) => store::list::stat(connect().await?, &options).await,
            ControllerCommand::Rm(options) => store::remove::remove(connect().await?, &options).await,
            ControllerCommand::Verify(options) => store::verify::verify(connect().await?, &options).await,
            ControllerCommand::Run(options) => run::run(connect().await?, options).await,
            ControllerCommand::Cancel(options) => jobs::cancel(connect().await?, &options).await,
            ControllerCommand::Drain(options) => jobs::drain(connect().await?, &options).await,
            ControllerCommand::Bench(options) => bench::run(connect().await?, &options).await,
        }
    })
}

/// Sends a request that changes nothing, and repeats it once if the controller is lost meanwhile
/// and another one may take over.
async fn with_retry(controllers: &str, request: impl AsyncFn() -> Result<(), Error>) -> Result<(), Error> {
    match request().await {
        Err(Error::Lost(_)) if controllers.contains(',') => request().await,
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
