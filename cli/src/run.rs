//! `cool run`: a program on many nodes, its output here.

use crate::error::Error;
use crate::job::{self, Heard, Placement};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobSpec, Output, job_spec};
use std::collections::HashMap;
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use tonic::transport::Channel;

/// Run a program as many ranks over the nodes, and forward their output
///
/// Each line of output comes with its rank in front. When a rank fails, the others are ended, and the status of
/// the first that failed is the command's. Ctrl-C cancels the job. The program must be there on every node.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of ranks [default: one on each node]
    #[arg(short = 'n', long, value_name = "N")]
    ranks: Option<NonZeroU32>,

    /// Ranks on each node used [default: spread over as many nodes as possible]
    #[arg(long, value_name = "K")]
    ranks_per_node: Option<NonZeroU32>,

    /// In which order ranks are given to nodes
    #[arg(long, value_enum, default_value = "racked")]
    placement: Placement,

    /// Set a variable for the ranks, or pass on one of this environment; may be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// Where the ranks run [default: this directory's path, on their node]
    #[arg(long, value_name = "DIRECTORY")]
    workdir: Option<PathBuf>,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

/// Runs the job to its end.
pub(crate) async fn run(client: ControllerClient<Channel>, options: Options) -> Result<(), Error> {
    let spec = spec(options)?;
    job::run(client, spec, |heard| match heard {
        Heard::Started(_) => Ok(()),
        Heard::Line(output) => forward(&output),
    })
    .await
}

fn spec(options: Options) -> Result<JobSpec, Error> {
    let mut command = options.command.into_iter();
    Ok(JobSpec {
        ranks: options.ranks.map_or(0, NonZeroU32::get),
        ranks_per_node: options.ranks_per_node.map_or(0, NonZeroU32::get),
        program: command.next().unwrap_or_default(),
        args: command.collect(),
        env: options.env.into_iter().map(variable).collect::<Result<HashMap<_, _>, _>>()?,
        workdir: workdir(options.workdir.as_deref())?,
        placement: job_spec::Placement::from(options.placement).into(),
    })
}

/// `NAME=VALUE`, or `NAME` with the value that it has here.
fn variable(text: String) -> Result<(String, String), Error> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), value.to_owned()));
    }
    match std::env::var(&text) {
        Ok(value) => Ok((text, value)),
        Err(_) => Err(Error::Unset(text)),
    }
}

fn workdir(chosen: Option<&Path>) -> Result<String, Error> {
    let path =
        std::path::absolute(chosen.unwrap_or(Path::new("."))).map_err(|e| Error::Workdir(e.to_string()))?;
    let path = path.into_os_string().into_string();
    path.map_err(|path| Error::Workdir(format!("{} is not UTF-8", path.display())))
}

/// Prints a line of a rank where the rank printed it.
pub(crate) fn forward(output: &Output) -> Result<(), Error> {
    let mut line = format!("[{}] ", output.rank).into_bytes();
    line.extend_from_slice(&output.line);
    line.push(b'\n');
    if output.stderr {
        std::io::stderr().write_all(&line)?
    } else {
        std::io::stdout().write_all(&line)?
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parsed(words: &str) -> Result<JobSpec, Error> {
        spec(Line::parse_from(words.split(' ')).options)
    }

    #[test]
    fn a_command_line_becomes_a_job() {
        let job = parsed("run -n 4 --ranks-per-node 2 --env A=b=c --env EMPTY= --workdir /tmp -- prog -n 5")
            .unwrap();
        assert_eq!((job.ranks, job.ranks_per_node, job.program.as_str()), (4, 2, "prog"));
        assert_eq!(job.args, ["-n", "5"]);
        assert_eq!((job.env["A"].as_str(), job.env["EMPTY"].as_str()), ("b=c", ""));
        assert_eq!(job.workdir, "/tmp");
    }

    #[test]
    fn no_number_is_left_to_the_controller_and_the_directory_is_this_one() {
        let job = parsed("run -- prog").unwrap();
        assert_eq!((job.ranks, job.ranks_per_node), (0, 0));
        assert_eq!(Path::new(&job.workdir), std::env::current_dir().unwrap());
    }

    #[test]
    fn a_variable_to_pass_on_must_be_set() {
        let error = parsed("run --env COOL_TEST_NEVER_SET -- prog").unwrap_err();
        assert!(error.to_string().contains("COOL_TEST_NEVER_SET=VALUE"), "{error}");
    }
}
