//! The commands of the program, a file each, and how they are run on all ranks.

mod classify;
mod fit;
mod options;
mod terminal;

use clap::{Parser, Subcommand};
use cool_kmeans::Error;
use cool_kmeans::peers::{Peers, surviving};

/// K-means over image features or any points, and classifiers of pictures, on as many nodes as there are.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true
)]
pub(crate) struct Program {
    #[command(subcommand)]
    command: Option<Command>,
    /// Without a command: fit.
    #[command(flatten)]
    fit: Option<fit::Fit>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Fit(Box<fit::Fit>),
    /// Learns to tell classes of pictures apart, and tests what was learnt.
    #[command(subcommand)]
    Classify(Classify),
}

#[derive(Debug, Subcommand)]
enum Classify {
    Train(Box<classify::Train>),
    Test(classify::Test),
}

/// Does what the command line says.
pub(crate) fn run(program: &Program) -> Result<(), Error> {
    match (&program.command, &program.fit) {
        (Some(Command::Fit(fit)), _) => fit.start(),
        (None, Some(fit)) => fit.start(),
        (Some(Command::Classify(Classify::Train(train))), _) => {
            on_all_ranks(train.alone(), || |peers: &Peers<'_>| train.run(peers))
        }
        (Some(Command::Classify(Classify::Test(test))), _) => {
            on_all_ranks(test.alone(), || |peers: &Peers<'_>| test.run(peers))
        }
        (None, None) => {
            Err(Error::Input("no input: name pictures, folders, text files or an .npy file".into()))
        }
    }
}

/// Runs as the rank that `cool run` started, as ranks in this process, or alone. `part` makes what a rank does, which it does
/// again whenever others are lost.
fn on_all_ranks<P: FnMut(&Peers<'_>) -> Result<(), Error>>(
    alone: bool,
    part: impl Fn() -> P + Sync,
) -> Result<(), Error> {
    let by_hand = std::env::var_os("COOL_SOCKET").is_none();
    if alone || by_hand && !cfg!(feature = "embedded") {
        return part()(&Peers::alone());
    }
    let results = cool::launch(|comm| surviving(comm, part()))?;
    let errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    let cause = errors.iter().position(|e| !matches!(e, Error::Elsewhere { .. })).unwrap_or(0);
    errors.into_iter().nth(cause).map_or(Ok(()), Err)
}
