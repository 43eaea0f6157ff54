//! Nodes that come while a copy is under way: that were away when it began, were lost, or are new. They get ranks in jobs of their own,
//! each of which joins the swarm, or which come to broadcasts together.

use super::join::LateRank;
use super::options::NodeChoice;
use super::outcome::Outcome;
use super::rates::LinkRates;
use super::said::{CopyVia, Task};
use super::secret::{SECRET_VARIABLE, Secret};
use crate::error::Error;
use crate::job::{self, Heard};
use crate::own_ranks;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobSpec, Node, TopologyRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::transport::Channel;

/// How often it is looked for nodes that have come; of many nodes it is less often, by so much for each.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY_NODE: Duration = Duration::from_micros(500);
/// Until the controller counts as busy with something else.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// The job that a copy begins with is that of the first rank.
pub(super) const FIRST: usize = 0;

/// The jobs of a copy, and what is heard of their ranks, by the number of each one's first rank.
struct CopyJobs {
    client: ControllerClient<Channel>,
    running: JoinSet<(Range<usize>, Result<(), Error>)>,
    tell: UnboundedSender<(usize, Heard)>,
    told: UnboundedReceiver<(usize, Heard)>,
}

impl CopyJobs {
    fn new(client: ControllerClient<Channel>) -> CopyJobs {
        let (tell, told) = unbounded_channel();
        CopyJobs { client, running: JoinSet::new(), tell, told }
    }

    fn start(&mut self, first: usize, spec: JobSpec) {
        let (client, tell) = (self.client.clone(), self.tell.clone());
        let ranks = first..first + spec.hosts.len();
        self.running.spawn(async move {
            // Whoever hears it lives longer than this.
            let hear = |heard| {
                drop(tell.send((first, heard)));
                Ok(())
            };
            (ranks, job::run(client, spec, hear).await)
        });
    }
}

/// For whom it is looked.
pub(super) struct LateNodes<'a> {
    pub(super) to: &'a NodeChoice,
    /// Who was chosen when it began.
    pub(super) chosen: Vec<String>,
    pub(super) task: Task,
    pub(super) secret: Secret,
    pub(super) user: Option<String>,
}

/// Runs a copy's job, and those of nodes that come late, to their ends; that of the first.
pub(super) async fn run(
    client: ControllerClient<Channel>,
    spec: JobSpec,
    late: &LateNodes<'_>,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let mut jobs = CopyJobs::new(client);
    jobs.start(FIRST, spec);
    let mut looks =
        interval(LOOK_EVERY + LOOK_EVERY_NODE * u32::try_from(late.chosen.len()).unwrap_or(u32::MAX));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ended = None;
    loop {
        tokio::select! {
            // What ranks have said comes before the ends of their jobs.
            biased;
            Some((first, heard)) = jobs.told.recv() => match heard {
                Heard::Started(group) if first == FIRST => outcome.started(&group),
                Heard::Started(group) => outcome.started_late(first, &group),
                Heard::Line(output) => outcome.hear(first, &output),
            },
            done = jobs.running.join_next() => match done {
                Some(Ok((Range { start: FIRST, .. }, end))) => ended = Some(end),
                Some(Ok((ranks, end))) => outcome.ended(ranks, end.err()),
                Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
                None => return ended.unwrap_or(Ok(())),
            },
            _ = looks.tick(), if ended.is_none() && late.may_come(outcome) => {
                late.look(&mut jobs, outcome).await?;
            }
        }
    }
}

impl LateNodes<'_> {
    /// Whether those that come now may still get a copy.
    fn may_come(&self, outcome: &Outcome) -> bool {
        if self.task.via == CopyVia::Swarm { outcome.has_members() } else { outcome.admits() }
    }

    /// Starts ranks on nodes that have come.
    async fn look(&self, jobs: &mut CopyJobs, outcome: &mut Outcome) -> Result<(), Error> {
        // Without an answer it is looked again, and whether there is a controller at all is for the first job to say.
        let asked = timeout(LOOK_WITHIN, jobs.client.get_topology(TopologyRequest {})).await;
        let Ok(Ok(topology)) = asked else { return Ok(()) };
        let nodes = topology.into_inner().nodes;
        let mut lacking: BTreeSet<String> = self.chosen.iter().cloned().collect();
        // A rack or a node may have gone.
        lacking.extend(self.to.of(&nodes).unwrap_or_default().into_iter().map(|(name, _)| name));
        outcome.served().for_each(|node| {
            lacking.remove(node);
        });
        let is_here = |node: &&Node| node.located && node.away_ms.is_none() && lacking.contains(&node.name);
        let racks: BTreeMap<&str, u32> = nodes.iter().map(|node| (node.name.as_str(), node.rack)).collect();
        let here: Vec<&Node> = nodes.iter().filter(is_here).collect();
        if here.is_empty() {
            return Ok(());
        }
        if self.task.via != CopyVia::Swarm {
            let (first, hosts) = outcome.admit(here.iter().map(|node| node.name.clone()).collect());
            jobs.start(first, self.spec(LateRank::Broadcast, LinkRates::default(), hosts)?);
            return Ok(());
        }
        for node in here {
            let (first, late) = outcome.join(&node.name, |of| racks.get(of) == Some(&node.rack));
            // What the slowest carries the members tell it.
            let rates = LinkRates::of([node]);
            jobs.start(first, self.spec(LateRank::Swarm(late), rates, vec![node.name.clone()])?);
        }
        Ok(())
    }

    fn spec(&self, late: LateRank, rates: LinkRates, hosts: Vec<String>) -> Result<JobSpec, Error> {
        let task = Task { late: Some(late), rates, ..self.task.clone() };
        spec(&task, hosts, self.user.clone(), self.secret)
    }
}

/// The job of a task on these nodes.
pub(super) fn spec(
    task: &Task,
    hosts: Vec<String>,
    user: Option<String>,
    secret: Secret,
) -> Result<JobSpec, Error> {
    let mut spec = own_ranks::spec("copy-rank", task, hosts, user)?;
    spec.env.insert(SECRET_VARIABLE.to_owned(), secret.variable());
    Ok(spec)
}
