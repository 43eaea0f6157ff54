//! `cool run`: a program on many nodes, its output here.

mod output;

use crate::copy::{self, StageOptions};
use crate::error::Error;
use crate::job::{self, Heard, Ranks};
use crate::units;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobSpec, Output};
use output::Files;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Channel;

/// Run a program as many ranks over the nodes, and forward their output
///
/// Each line of output comes with its rank in front. When a rank fails, the others are ended, and the status of
/// the first that failed is the command's (but see --survive): 128 and the signal if one ended it, 124 after the time
/// limit. To end, ranks
/// and all they have started get SIGTERM, and SIGKILL 3 s later. Ctrl-C, SIGTERM and SIGHUP end the job, SIGUSR1 and
/// SIGUSR2 go to its ranks. The program must be there on every node, or be brought there by --stage.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    ranks: Ranks,

    /// Only on these nodes, as h1,h7
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    hosts: Vec<String>,

    /// Only in these racks, by the numbers of `cool topology`
    #[arg(long, value_name = "RACK,..", value_delimiter = ',')]
    racks: Vec<u32>,

    /// Set a variable for the ranks, or pass on one of this environment; may be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// Where the ranks run [default: this directory's path, on their node]
    #[arg(long, value_name = "DIRECTORY")]
    workdir: Option<PathBuf>,

    /// Write each rank's output to files RANK.out and RANK.err in this directory, here, and print none
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,

    /// End the job when it has run so long: seconds, or as 90s, 30m, 2h
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    time_limit: Option<Duration>,

    /// Go on when a signal ends a rank or a node is lost, as long as any rank is left
    ///
    /// For programs that go on by themselves, with `shrink`. A rank that exits with another status than 0 ends the job all
    /// the same, unless the others have gone on without it.
    #[arg(long)]
    survive: bool,

    #[command(flatten)]
    stage: StageOptions,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

/// Runs the job to its end.
pub(crate) async fn run(client: ControllerClient<Channel>, options: Options) -> Result<(), Error> {
    let mut files = options.output.as_deref().map(Files::new).transpose()?;
    let stage = options.stage.clone();
    let spec = copy::stage(client.clone(), spec(options)?, &stage).await?;
    job::run(client, spec, |heard| match (heard, &mut files) {
        (Heard::Started(_), _) => Ok(()),
        (Heard::Line(output), None) => forward(&output),
        (Heard::Line(output), Some(files)) => files.write(&output),
    })
    .await
}

fn spec(options: Options) -> Result<JobSpec, Error> {
    let mut command = options.command.into_iter();
    Ok(JobSpec {
        program: command.next().unwrap_or_default(),
        args: command.collect(),
        env: options.env.into_iter().map(variable).collect::<Result<HashMap<_, _>, _>>()?,
        workdir: workdir(options.workdir.as_deref())?,
        hosts: options.hosts,
        racks: options.racks,
        time_limit_ms: options
            .time_limit
            .map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        survive: options.survive,
        ..options.ranks.spec()
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
        let job = parsed(
            "run -n 4 --ranks-per-node 2 --env A=b=c --env EMPTY= --workdir /tmp --survive -- prog -n 5",
        )
        .unwrap();
        assert!(job.survive);
        assert_eq!((job.ranks, job.ranks_per_node, job.program.as_str()), (4, 2, "prog"));
        assert_eq!(job.args, ["-n", "5"]);
        assert_eq!((job.env["A"].as_str(), job.env["EMPTY"].as_str()), ("b=c", ""));
        assert_eq!(job.workdir, "/tmp");
    }

    #[test]
    fn nodes_racks_and_a_time_limit_are_passed_on() {
        let job = parsed("run --hosts h1,h7 --racks 0,2 --time-limit 2m -- prog").unwrap();
        assert_eq!(
            (job.hosts, job.racks, job.time_limit_ms),
            (vec!["h1".into(), "h7".into()], vec![0, 2], 120_000)
        );
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
