//! Late nodes: their agents were away when a copy started, they were lost and returned, or they are
//! new.
//!
//! They get ranks in jobs of their own. By swarm each of these ranks joins on its own; by
//! broadcasts they are admitted together.

use super::options::NodeChoice;
use super::outcome::CopyOutcome;
use crate::cool_rank_job;
use crate::error::Error;
use crate::followed_job::{self, JobUpdate};
use crate::ranks::COPY_RANK;
use cool_copy::{CopySecret, CopyTask, CopyVia, LateRank, NodeLinkRates, SECRET_VARIABLE};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobSpec, Node, TopologyRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::transport::Channel;

/// Interval at which the command looks for late nodes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Extension of this interval for each node of the copy.
const LOOK_INTERVAL_PER_NODE: Duration = Duration::from_micros(500);
/// Maximum time for the controller's reply.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of the first rank of a copy's first job.
pub(super) const FIRST_JOB: usize = 0;

/// The jobs of a copy, and the updates of each with the number of its first rank.
struct CopyJobs {
    client: ControllerClient<Channel>,
    running: JoinSet<(Range<usize>, Result<(), Error>)>,
    sender: UnboundedSender<(usize, JobUpdate)>,
    updates: UnboundedReceiver<(usize, JobUpdate)>,
}

impl CopyJobs {
    fn new(client: ControllerClient<Channel>) -> CopyJobs {
        let (sender, updates) = unbounded_channel();
        CopyJobs { client, running: JoinSet::new(), sender, updates }
    }

    fn start(&mut self, first: usize, spec: JobSpec) {
        let (client, sender) = (self.client.clone(), self.sender.clone());
        let ranks = first..first + spec.hosts.len();
        self.running.spawn(async move {
            // Never fails, because the receiver lives longer than this task.
            let on_update = |update| {
                drop(sender.send((first, update)));
                Ok(())
            };
            (ranks, followed_job::run(client, spec, on_update).await)
        });
    }
}

/// The late nodes of a copy.
pub(super) struct LateNodes<'a> {
    pub(super) to: &'a NodeChoice,
    /// The nodes that were chosen at the start.
    pub(super) chosen: Vec<String>,
    pub(super) task: CopyTask,
    pub(super) secret: CopySecret,
    pub(super) user: Option<String>,
}

/// Runs the job of a copy and those of late nodes to their ends, and returns the result of the
/// first.
pub(super) async fn run(
    client: ControllerClient<Channel>,
    spec: JobSpec,
    late: &LateNodes<'_>,
    outcome: &mut CopyOutcome,
) -> Result<(), Error> {
    let mut jobs = CopyJobs::new(client);
    jobs.start(FIRST_JOB, spec);
    let nodes = u32::try_from(late.chosen.len()).unwrap_or(u32::MAX);
    let mut looks = interval(LOOK_INTERVAL + LOOK_INTERVAL_PER_NODE * nodes);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ended = None;
    loop {
        tokio::select! {
            // In this order, because all events of a job must be handled before its end.
            biased;
            Some((first, update)) = jobs.updates.recv() => match update {
                JobUpdate::Started(group) if first == FIRST_JOB => outcome.on_started(&group),
                JobUpdate::Started(group) => outcome.on_started_late(first, &group),
                JobUpdate::Line(output) => outcome.on_line(first, &output),
            },
            done = jobs.running.join_next() => match done {
                Some(Ok((Range { start: FIRST_JOB, .. }, end))) => ended = Some(end),
                Some(Ok((ranks, end))) => outcome.on_late_job_ended(ranks, end.err()),
                Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
                None => return ended.unwrap_or(Ok(())),
            },
            _ = looks.tick(), if ended.is_none() && late.can_join(outcome) => {
                late.look(&mut jobs, outcome).await?;
            }
        }
    }
}

impl LateNodes<'_> {
    /// Returns whether late nodes can still get a copy.
    fn can_join(&self, outcome: &CopyOutcome) -> bool {
        if self.task.via == CopyVia::Swarm { outcome.has_members() } else { outcome.can_admit() }
    }

    /// Looks for late nodes, and starts ranks on them.
    async fn look(&self, jobs: &mut CopyJobs, outcome: &mut CopyOutcome) -> Result<(), Error> {
        // Without a reply, the command looks again later. The first job reports a lost controller.
        let reply = timeout(LOOK_TIMEOUT, jobs.client.get_topology(TopologyRequest {})).await;
        let Ok(Ok(topology)) = reply else { return Ok(()) };
        let nodes = topology.into_inner().nodes;
        let mut waiting: BTreeSet<String> = self.chosen.iter().cloned().collect();
        // An error means that a chosen rack or node is not known at the moment.
        waiting.extend(self.to.choose(&nodes).unwrap_or_default().into_iter().map(|(name, _)| name));
        outcome.served().for_each(|node| {
            waiting.remove(node);
        });
        let is_late = |node: &&Node| node.located && node.away_ms.is_none() && waiting.contains(&node.name);
        let racks: BTreeMap<&str, u32> = nodes.iter().map(|node| (node.name.as_str(), node.rack)).collect();
        let late: Vec<&Node> = nodes.iter().filter(is_late).collect();
        if late.is_empty() {
            return Ok(());
        }
        if self.task.via != CopyVia::Swarm {
            let (first, hosts) = outcome.admit(late.iter().map(|node| node.name.clone()).collect());
            jobs.start(first, self.spec(LateRank::Broadcast, NodeLinkRates::default(), hosts)?);
            return Ok(());
        }
        for node in late {
            let (first, member) = outcome.join(&node.name, |other| racks.get(other) == Some(&node.rack));
            // Only the rate of this node is needed, because the members know that of the slowest
            // node.
            let rates = NodeLinkRates::from_nodes([node]);
            jobs.start(first, self.spec(LateRank::Swarm(member), rates, vec![node.name.clone()])?);
        }
        Ok(())
    }

    fn spec(&self, late: LateRank, rates: NodeLinkRates, hosts: Vec<String>) -> Result<JobSpec, Error> {
        let task = CopyTask { late: Some(late), rates, ..self.task.clone() };
        spec(&task, hosts, self.user.clone(), self.secret)
    }
}

/// Returns the job of a task on these nodes.
pub(super) fn spec(
    task: &CopyTask,
    hosts: Vec<String>,
    user: Option<String>,
    secret: CopySecret,
) -> Result<JobSpec, Error> {
    let mut spec = cool_rank_job::spec(COPY_RANK, task, hosts, user)?;
    spec.env.insert(SECRET_VARIABLE.to_owned(), secret.to_hex());
    Ok(spec)
}
