//! The commands of the program.

use crate::classifying::{Test, Train};
use crate::cli::Cli;
use clap::{Parser, Subcommand};

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
    pub(crate) command: Option<Command>,
    /// Without a command: fit.
    #[command(flatten)]
    pub(crate) fit: Option<Cli>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Fit(Box<Cli>),
    /// Learns to tell classes of pictures apart, and tests what was learnt.
    #[command(subcommand)]
    Classify(Classify),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Classify {
    Train(Box<Train>),
    Test(Test),
}
