//! `cool run`: runs a program on many nodes, and prints its output here.

mod output;

use crate::copy::stage::{StageOptions, stage};
use crate::error::Error;
use crate::followed_job::{self, JobOptions, JobUpdate};
use crate::rank_line::LinePrinter;
use crate::units;
use cool_proto::control::JobSpec;
use cool_proto::control::controller_client::ControllerClient;
use output::OutputFiles;
use rustix::fs::{Access, access};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Channel;

/// Directories in which nodes look for programs. A program in one of them is started by its name,
/// because nodes may have it in another one of them.
const NODE_PATH: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// Run a program as multiple ranks across the nodes and forward its output
///
/// Each line of output starts with its rank. The first rank that fails ends the job (but see
/// --survive), and `cool run` returns its status (128+N if signal N killed it), 124 after the time
/// limit, or 127 or 126 if the program is missing or cannot be executed. Processes get SIGTERM,
/// then SIGKILL after 3 s. Ctrl-C, SIGTERM and SIGHUP end the job; SIGUSR1 and SIGUSR2 are sent to
/// its ranks.
///
/// The first word that is not an option is the program. It must exist on every node, or be copied
/// there with --stage. A name without a slash is searched in PATH here. If it is not found, or is
/// in /usr/local/bin, /usr/bin or /bin, each node searches for it instead. Ranks find their number
/// in COOL_RANK, the number of ranks in COOL_SIZE and the name of their node in COOL_NODE.
#[derive(Debug, clap::Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    ranks: JobOptions,

    /// Only on these nodes, such as h1,h7
    #[arg(
        long,
        aliases = ["nodes", "host"],
        short_alias = 'H',
        value_name = "NAME,..",
        value_delimiter = ','
    )]
    hosts: Vec<String>,

    /// Only in these racks, by the numbers of `cool topology`
    #[arg(long, value_name = "RACK,..", value_delimiter = ',')]
    racks: Vec<u32>,

    /// Set a variable for the ranks, or pass on one of this environment; may be repeated
    #[arg(long, short_alias = 'x', value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// Working directory of the ranks, which must exist on their nodes [default: the path of this
    /// directory]
    #[arg(long, value_name = "DIRECTORY")]
    workdir: Option<PathBuf>,

    /// Write each rank's output to files RANK.out and RANK.err in this local directory, instead of
    /// printing it
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,

    /// Terminate the job after this time (90s, 30m, 2h; seconds if no unit)
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    time_limit: Option<Duration>,

    /// Continue if a signal kills a rank or a node is lost, as long as a rank is left
    ///
    /// For programs that recover with `shrink`. A rank that exits with a status other than 0 still
    /// ends the job, unless the other ranks have already continued without it.
    #[arg(long)]
    survive: bool,

    #[command(flatten)]
    stage: StageOptions,

    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

/// Runs the job to its end.
pub(crate) async fn run(client: ControllerClient<Channel>, options: RunOptions) -> Result<(), Error> {
    let directory = options.output.clone();
    let mut files = directory.as_deref().map(OutputFiles::new).transpose()?;
    let mut printer = LinePrinter::default();
    let stage_options = options.stage.clone();
    let spec = stage(client.clone(), spec(options)?, &stage_options).await?;
    let ended = followed_job::run(client, spec, |update| match (update, &mut files) {
        (JobUpdate::Started(_), _) => Ok(()),
        (JobUpdate::Line(output), None) => printer.print(&output),
        (JobUpdate::Line(output), Some(files)) => files.write(&output),
    })
    .await;
    printer.finish()?;
    if let (Some(directory), Err(Error::Failed { finished, .. })) = (&directory, &ended)
        && let Some(rank) = finished.rank
    {
        eprintln!(
            "cool: the messages of rank {rank} are in {}",
            directory.join(format!("{rank}.err")).display()
        );
    }
    ended
}

fn spec(options: RunOptions) -> Result<JobSpec, Error> {
    let mut command = options.command.into_iter();
    let program = command.next().unwrap_or_default();
    Ok(JobSpec {
        program: resolve(&program, std::env::var_os("PATH").as_deref()).unwrap_or(program),
        args: command.collect(),
        env: options.env.into_iter().map(variable).collect::<Result<HashMap<_, _>, _>>()?,
        workdir: workdir(options.workdir.as_deref())?,
        hosts: options.hosts,
        racks: options.racks,
        time_limit_ms: options
            .time_limit
            .map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        survive: options.survive,
        partial_lines: true,
        ..options.ranks.spec()
    })
}

/// Returns the absolute path of a program that is named without a slash and is in this command's
/// PATH; `None` if nodes must find it by its name.
fn resolve(program: &str, path: Option<&OsStr>) -> Option<String> {
    if program.is_empty() || program.contains('/') {
        return None;
    }
    let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let directory = std::env::split_paths(path?).find(|directory| is_program(&directory.join(program)))?;
    if NODE_PATH.iter().any(|known| Path::new(known) == directory) {
        return None;
    }
    std::path::absolute(directory.join(program)).ok()?.into_os_string().into_string().ok()
}

/// Parses `NAME=VALUE`, or `NAME` with its value in this environment.
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::os::unix::fs::PermissionsExt;

    #[derive(Debug, Parser)]
    struct ParsedRun {
        #[command(flatten)]
        options: RunOptions,
    }

    fn parsed(words: &str) -> Result<JobSpec, Error> {
        spec(ParsedRun::parse_from(words.split(' ')).options)
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
    fn the_first_word_that_is_no_option_begins_the_program() {
        let job = parsed("run -n 4 ./prog -n 5 --survive -- x").unwrap();
        assert_eq!((job.ranks, job.program.as_str(), job.survive), (4, "./prog", false));
        assert_eq!(job.args, ["-n", "5", "--survive", "--", "x"]);
        let error = ParsedRun::try_parse_from(["run", "--bogus", "./prog"]).unwrap_err().to_string();
        assert!(error.contains("unexpected argument '--bogus'"), "{error}");
    }

    #[test]
    fn options_of_mpirun_are_accepted() {
        let job = parsed("run --np 4 -N 2 -H h1,h2 -x A=1 -x B=2 prog").unwrap();
        assert_eq!((job.ranks, job.ranks_per_node, job.hosts), (4, 2, vec!["h1".into(), "h2".into()]));
        assert_eq!((job.env["A"].as_str(), job.env["B"].as_str()), ("1", "2"));
        for hosts in ["--host h1", "--nodes h1", "--hosts h1"] {
            assert_eq!(parsed(&format!("run {hosts} prog")).unwrap().hosts, ["h1"]);
        }
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
    fn by_default_the_controller_chooses_the_number_of_ranks() {
        let job = parsed("run -- prog").unwrap();
        assert_eq!((job.ranks, job.ranks_per_node), (0, 0));
        assert_eq!(Path::new(&job.workdir), std::env::current_dir().unwrap());
    }

    #[test]
    fn a_variable_to_pass_on_must_be_set() {
        let error = parsed("run --env COOL_TEST_NEVER_SET -- prog").unwrap_err();
        assert!(error.to_string().contains("COOL_TEST_NEVER_SET=VALUE"), "{error}");
    }

    #[test]
    fn a_program_in_this_path_is_sent_as_an_absolute_path() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("cool-test-program");
        let path = format!("/nowhere:{}:/usr/bin", directory.path().display());
        let resolved = |name: &str| resolve(name, Some(OsStr::new(&path)));
        std::fs::write(&program, "").unwrap();
        assert_eq!(resolved("cool-test-program"), None, "it is not executable");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(resolved("cool-test-program").as_deref(), program.to_str());
        for by_name in ["./cool-test-program", "env", "cool-test-missing", ""] {
            assert_eq!(resolved(by_name), None, "{by_name}");
        }
    }
}
