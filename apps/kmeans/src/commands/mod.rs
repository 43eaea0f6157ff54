//! The commands of the program, one file each, and their execution on all ranks.

mod assign;
mod classify;
mod features;
mod fit;
mod inspect;
mod options;
mod terminal;

use crate::Error;
use crate::peer_ranks::{PeerRanks, surviving};
use clap::{CommandFactory, Parser, Subcommand};
use cool_map::Options;
use std::ffi::{OsStr, OsString};

/// K-means over image features or any points, and classification of pictures, on many nodes.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct CommandLine {
    #[command(subcommand)]
    command: KmeansCommand,
}

const EXAMPLES: &str = "\
The default command is fit.

Examples:
  cool-kmeans -k 256 --words words.json photographs/
  cool-kmeans fit -k 100 --model points.cool points.npy
  cool-kmeans assign --model points.cool more.npy
  cool-kmeans classify train --model scenes.cool train/
  cool run -n 16 -- cool-kmeans -k 1000 --centroids /shared/c.npy /data/points.npy

cool-kmeans COMMAND --help describes a command in full.";

#[derive(Debug, Subcommand)]
enum KmeansCommand {
    Fit(Box<fit::FitCommand>),
    Assign(Box<assign::AssignCommand>),
    Features(Box<features::FeaturesCommand>),
    Histogram(Box<features::HistogramCommand>),
    Inspect(inspect::InspectCommand),
    /// Train a classifier of pictures, or test one.
    #[command(subcommand)]
    Classify(ClassifyCommand),
}

#[derive(Debug, Subcommand)]
enum ClassifyCommand {
    Train(Box<classify::TrainCommand>),
    Test(classify::TestCommand),
}

impl CommandLine {
    /// Parses the command line, in which `fit` may be omitted.
    #[must_use]
    pub fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        let mut known = Self::command();
        known.build();
        let named = |first: &OsStr| {
            let options = ["-h", "--help", "-V", "--version"];
            options.iter().any(|option| first == *option) || known.find_subcommand(first).is_some()
        };
        if arguments.get(1).is_some_and(|first| !named(first)) {
            arguments.insert(1, "fit".into());
        }
        Self::parse_from(arguments)
    }
}

/// Executes the command of the command line.
///
/// # Errors
/// See [`Error`].
pub fn run(program: &CommandLine) -> Result<(), Error> {
    match &program.command {
        KmeansCommand::Fit(fit) => fit.start(),
        KmeansCommand::Assign(assign) => assign.work.run(|peers| assign.run(peers)),
        KmeansCommand::Features(features) => features.work.run(|peers| features.run(peers)),
        KmeansCommand::Histogram(histogram) => histogram.work.run(|peers| histogram.run(peers)),
        KmeansCommand::Inspect(inspect) => inspect.run(),
        KmeansCommand::Classify(ClassifyCommand::Train(train)) => train.work.run(|peers| train.run(peers)),
        KmeansCommand::Classify(ClassifyCommand::Test(test)) => test.work.run(|peers| test.run(peers)),
    }
}

/// Runs as the rank that `cool run` started, as several ranks in this process, or alone. `part`
/// must return the function that a rank executes, which is called again after each loss of ranks.
fn on_all_ranks<P: FnMut(&PeerRanks<'_>) -> Result<(), Error>>(
    alone: bool,
    part: impl Fn() -> P + Sync,
) -> Result<(), Error> {
    let by_hand = std::env::var_os("COOL_SOCKET").is_none();
    if alone || by_hand && !cfg!(feature = "embedded") {
        return part()(&PeerRanks::alone());
    }
    let results = cool::launch(|comm| surviving(comm, Options::default(), part()))?;
    let errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    let cause = errors.iter().position(|e| !matches!(e, Error::Elsewhere { .. })).unwrap_or(0);
    errors.into_iter().nth(cause).map_or(Ok(()), Err)
}
