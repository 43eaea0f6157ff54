//! `cool jobs`, `cool cancel` and `cool drain`: list the running jobs, and end them.

use crate::error::Error;
use crate::{followed_job, terminal_text, units};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    CancelRequest, DrainRequest, Drained, JobView, JobsRequest, SignalRequest, job_view::State,
};
use cool_proto::job_ids;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;
use tonic::Code;
use tonic::transport::Channel;

/// List the running jobs: their nodes, run time and users
#[derive(Debug, clap::Args)]
pub(crate) struct JobsOptions {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// End jobs, or send them a signal
///
/// The ranks and all their processes get SIGTERM, and SIGKILL 3 s later. The command that runs a
/// job reports who canceled it.
#[derive(Debug, clap::Args)]
pub(crate) struct CancelOptions {
    /// Numbers of jobs, as in `cool jobs`
    #[arg(required_unless_present = "all", value_name = "JOB", value_parser = job_number)]
    jobs: Vec<u64>,

    /// End all running jobs
    #[arg(long, conflicts_with = "jobs")]
    all: bool,

    /// Send this signal to the ranks instead: a number, or a name such as USR1
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    signal: Option<i32>,
}

/// Refuse new jobs, and wait for the end of the running ones
///
/// For maintenance of nodes and switches. Not needed before restarting the controller: jobs keep
/// running. New jobs start again after --end. A controller of a pair, or one with --state, keeps
/// the request for its successor; otherwise it ends when the controller is restarted.
#[derive(Debug, clap::Args)]
pub(crate) struct DrainOptions {
    /// Only on these nodes, such as h7 [default: everywhere]
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,

    /// Cancel the jobs that are still running after this time (90s, 30m, 2h; seconds if no unit)
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "end")]
    cancel_after: Option<Duration>,

    /// Accept new jobs again
    #[arg(long)]
    end: bool,
}

/// Requests the jobs, and prints them.
pub(crate) async fn show(mut client: ControllerClient<Channel>, options: &JobsOptions) -> Result<(), Error> {
    let jobs = client.list_jobs(JobsRequest {}).await?.into_inner().jobs;
    let text = if options.json {
        terminal_text::json(&json!({ "jobs": jobs.iter().map(document).collect::<Vec<_>>() }))
    } else if jobs.is_empty() {
        "no jobs\n".to_owned()
    } else {
        table(&jobs)
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// Cancels jobs, or sends them a signal.
pub(crate) async fn cancel(
    mut client: ControllerClient<Channel>,
    options: &CancelOptions,
) -> Result<(), Error> {
    if options.all && options.signal.is_none() {
        return cancel_all(&mut client, &[]).await;
    }
    let jobs = if options.all { running(&mut client, &[]).await? } else { options.jobs.clone() };
    for job in jobs {
        match options.signal {
            Some(signal) => drop(client.signal(SignalRequest { job, signal }).await?),
            None => drop(client.cancel(CancelRequest { job, user: followed_job::user() }).await?),
        }
    }
    Ok(())
}

/// Drains the controller, or lets it accept jobs again; then prints which.
pub(crate) async fn drain(
    mut client: ControllerClient<Channel>,
    options: &DrainOptions,
) -> Result<(), Error> {
    let nodes = options.nodes.clone();
    let request = DrainRequest { end: options.end, wait: !options.end, nodes };
    if let Some(limit) = options.cancel_after {
        match tokio::time::timeout(limit, client.drain(request.clone())).await {
            Ok(drained) => return print_drained(options, &drained?.into_inner()),
            Err(_) => cancel_all(&mut client, &options.nodes).await?,
        }
    }
    let drained = client.drain(request).await?.into_inner();
    print_drained(options, &drained)
}

fn print_drained(options: &DrainOptions, drained: &Drained) -> Result<(), Error> {
    let DrainOptions { nodes, end, .. } = options;
    if drained.nodes != *nodes {
        return Err(Error::DrainedCluster);
    }
    let text = match (*end, &nodes.join(" ")[..]) {
        (true, "") => "accepting jobs again".to_owned(),
        (true, nodes) => format!("accepting jobs again on {nodes}"),
        (false, "") => "drained: no job is running, and none starts until `cool drain --end`".to_owned(),
        (false, nodes) => {
            format!(
                "drained: no job is running on {nodes}, and none starts there until `cool drain --end {nodes}`"
            )
        }
    };
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Cancels all jobs, or those on these nodes. Jobs that have ended meanwhile are no error.
async fn cancel_all(client: &mut ControllerClient<Channel>, nodes: &[String]) -> Result<(), Error> {
    for job in running(client, nodes).await? {
        match client.cancel(CancelRequest { job, user: followed_job::user() }).await {
            Err(status) if status.code() != Code::NotFound => return Err(status.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the running jobs, or those on these nodes.
async fn running(client: &mut ControllerClient<Channel>, nodes: &[String]) -> Result<Vec<u64>, Error> {
    let jobs = client.list_jobs(JobsRequest {}).await?.into_inner().jobs;
    let uses = |job: &JobView| nodes.is_empty() || job.nodes.iter().any(|node| nodes.contains(node));
    Ok(jobs.into_iter().filter(uses).map(|job| job.job).collect())
}

/// The signals that can be named. Linux gives them the same numbers on nearly all machines.
const SIGNALS: [(&str, i32); 9] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
];

fn job_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not the number of a job; `cool jobs` lists them"))
}

fn signal(text: &str) -> Result<i32, String> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let known = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    known.or_else(|| text.parse().ok()).ok_or_else(|| {
        let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
        format!("write a number, or one of {}", names.join(", "))
    })
}

fn state(job: &JobView) -> &'static str {
    match job.state() {
        State::Forming => "forming",
        State::Running => "running",
        State::Ending => "ending",
        State::Awaited => "awaits its caller",
    }
}

fn command(job: &JobView) -> String {
    let spec = job.spec.clone().unwrap_or_default();
    [vec![spec.program], spec.args].concat().join(" ")
}

fn table(jobs: &[JobView]) -> String {
    let mut rows =
        vec![["job", "state", "ranks", "nodes", "time", "limit", "user", "command"].map(str::to_owned)];
    rows.extend(jobs.iter().map(|job| {
        let spec = job.spec.clone().unwrap_or_default();
        let clock = |ms| units::clock(Duration::from_millis(ms));
        [
            job_ids::shown(job.job, jobs.iter().map(|other| other.job)).to_string(),
            state(job).to_owned(),
            job.nodes.len().to_string(),
            job.nodes.iter().collect::<BTreeSet<_>>().len().to_string(),
            clock(job.running_ms),
            if spec.time_limit_ms == 0 { "-".to_owned() } else { clock(spec.time_limit_ms) },
            if spec.user.is_empty() { "-".to_owned() } else { spec.user },
            command(job),
        ]
    }));
    units::columns(&rows)
}

fn document(job: &JobView) -> Value {
    let spec = job.spec.clone().unwrap_or_default();
    json!({
        "job": job.job,
        "group": job.group,
        "state": state(job),
        "nodes": job.nodes,
        "running_ms": job.running_ms,
        "time_limit_ms": (spec.time_limit_ms > 0).then_some(spec.time_limit_ms),
        "user": spec.user,
        "program": spec.program,
        "args": spec.args,
        "workdir": spec.workdir,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::JobSpec;

    #[test]
    fn jobs_are_listed_in_a_table() {
        let spec = JobSpec {
            program: "train".into(),
            args: vec!["-n".into(), "5".into()],
            time_limit_ms: 60_000,
            user: "ann".into(),
            ..JobSpec::default()
        };
        let nodes = vec!["h1".into(), "h1".into(), "h2".into()];
        let running = JobView {
            job: 7,
            group: 9,
            state: State::Running.into(),
            nodes,
            spec: Some(spec),
            running_ms: 5000,
        };
        let awaited = JobView { job: 12, state: State::Awaited.into(), ..JobView::default() };
        let expected = "\
job  state              ranks  nodes  time  limit  user  command
7    running            3      2      0:05  1:00   ann   train -n 5
12   awaits its caller  0      0      0:00  -      -
";
        assert_eq!(table(&[running.clone(), awaited]), expected);
        let spec = JobSpec { program: "\u{1b}[2K\n8    running".into(), ..JobSpec::default() };
        let forged = table(&[JobView { job: 7, spec: Some(spec), ..JobView::default() }]);
        assert!(forged.lines().count() == 2 && forged.contains("\\u{1b}[2K\\n8    running"), "{forged}");
        assert_eq!(document(&running)["time_limit_ms"], 60_000);
    }

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!((signal("USR1"), signal("SIGTERM"), signal("34")), (Ok(10), Ok(15), Ok(34)));
        assert!(signal("NONE").unwrap_err().contains("USR1"));
        assert_eq!(job_number("7"), Ok(7));
        assert!(job_number("abc").unwrap_err().contains("`cool jobs`"));
    }
}
