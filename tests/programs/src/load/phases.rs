//! What is done to a controller, and what of it is timed.

use crate::agent::{self, Outbox};
use crate::fabric::{Counts, Fabric};
use crate::plan::{End, Plan};
use crate::process::{Controller, cpu_seconds, peak_mib};
use crate::pump::Pump;
use crate::switch::Switch;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{GroupsRequest, TopologyRequest};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

const PATIENCE: Duration = Duration::from_secs(240);
/// The racks that a group's hosts are in, and its hosts in each of them.
const RACKS: usize = 4;
const PER_RACK: usize = 8;
/// Groups that come and go at the same time.
const AT_ONCE: usize = 20;
/// Agents that join at the same time.
const JOINING: usize = 64;
/// No change for this long after a failure means that it has been dealt with.
const SILENCE: Duration = Duration::from_millis(1500);
/// Switches that send packets.
const TALKERS: usize = 16;
/// Requests under way at each of them.
const WINDOW: usize = 32;
const SPAN: Duration = Duration::from_secs(5);

/// How often the controller is asked what it has found.
const ASK: Duration = Duration::from_millis(100);

/// How much load.
pub(crate) struct Load {
    pub(crate) groups: usize,
    pub(crate) cycles: usize,
    pub(crate) failures: usize,
    pub(crate) agents_per_connection: usize,
}

/// What was found.
pub(crate) struct Report(pub(crate) Map<String, Value>);

impl Report {
    fn note(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        eprintln!("{name}: {value}");
        self.0.insert(name.to_owned(), value);
    }
}

/// All that is played: ends when dropped.
struct Stage {
    fabric: Arc<Fabric>,
    pump: Arc<Pump>,
    tasks: JoinSet<Result<(), String>>,
}

impl Stage {
    fn new(plan: Plan, openflow: SocketAddr) -> Stage {
        let (fabric, queues) = Fabric::new(plan);
        let (fabric, pump) = (Arc::new(fabric), Arc::new(Pump::new(queues.len())));
        let mut tasks = JoinSet::new();
        for (number, queue) in queues.into_iter().enumerate() {
            let switch = Switch::new(number, fabric.clone(), pump.clone());
            tasks.spawn(async move { switch.run(openflow, queue).await.map_err(|e| e.to_string()) });
        }
        Stage { fabric, pump, tasks }
    }

    /// All agents join, some at a time.
    async fn agents(&mut self, grpc: SocketAddr, per_connection: usize) -> Result<Vec<Outbox>, String> {
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).map_err(|e| e.to_string())?;
        let endpoint = endpoint.tcp_nodelay(true);
        let permits = Arc::new(Semaphore::new(JOINING));
        let hosts: Vec<usize> = (0..self.fabric.plan.hosts.len()).collect();
        let mut joining = JoinSet::new();
        for hosts in hosts.chunks(per_connection.max(1)).map(<[usize]>::to_vec) {
            let (fabric, endpoint, permits) = (self.fabric.clone(), endpoint.clone(), permits.clone());
            joining.spawn(async move {
                let _permit = permits.acquire_owned().await.map_err(|e| e.to_string())?;
                let channel = endpoint.connect().await.map_err(|e| format!("agents' connection: {e:?}"))?;
                let (mut outboxes, mut tasks) = (Vec::new(), JoinSet::new());
                for host in hosts {
                    let outbox = agent::join(fabric.clone(), channel.clone(), host, &mut tasks).await?;
                    outboxes.push((host, outbox));
                }
                Ok::<_, String>((outboxes, tasks))
            });
        }
        let mut all = Vec::new();
        while let Some(joined) = joining.join_next().await {
            let (outboxes, mut tasks) = joined.map_err(|e| e.to_string())??;
            all.extend(outboxes);
            self.tasks.spawn(async move {
                match tasks.join_next().await {
                    Some(ended) => ended.map_err(|e| e.to_string())?,
                    None => Ok(()),
                }
            });
        }
        all.sort_by_key(|(host, _)| *host);
        Ok(all.into_iter().map(|(_, outbox)| outbox).collect())
    }

    /// Waits until the controller says that it has found all switches' links and all nodes.
    async fn found(&self, grpc: SocketAddr) -> Result<(), String> {
        let mut client = ask(grpc).await?;
        until_nothing_is_wrong(async || {
            let topology =
                client.get_topology(TopologyRequest {}).await.map_err(|s| s.message().to_owned())?;
            let topology = topology.into_inner();
            let located = topology.nodes.iter().filter(|node| node.located).count();
            let (links, plan) = (topology.links.len(), &self.fabric.plan);
            let found = located == plan.hosts.len() && links == plan.links;
            let wrong = || format!("the controller knows {links} links and has located {located} nodes");
            Ok((!found).then(wrong))
        })
        .await
    }

    /// Whether anything that is played has failed.
    fn check(&mut self) -> Result<(), String> {
        match self.tasks.try_join_next() {
            Some(Ok(Err(reason))) => Err(reason),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(Ok(()))) | None => Ok(()),
        }
    }

    /// Groups of 32 ranks, their places spread over the network.
    async fn groups(&self, agents: &[Outbox], kind: &str, count: usize) -> Result<(), String> {
        let plan = &self.fabric.plan;
        let per_rack = plan.hosts.len() / plan.racks;
        let (racks, hosts) = (RACKS.min(plan.racks), PER_RACK.min(per_rack));
        let size = racks * hosts;
        let before = self.fabric.counts.enlisted.load(Ordering::Relaxed);
        for group in 0..count {
            for rank in 0..size {
                let rack = (group * 7 + rank / hosts * (plan.racks / racks)) % plan.racks;
                let host = rack * per_rack + (group * hosts + rank % hosts) % per_rack;
                agent::enlist(&agents[host], &format!("{kind}-{group}"), rank, size).await;
            }
        }
        // Every node is told once, whatever its number of ranks: here one.
        let all = before + (count * size) as u64;
        let made = |counts: &Counts| counts.enlisted.load(Ordering::Relaxed) >= all;
        self.fabric.until("groups", PATIENCE, made).await?;
        match self.fabric.counts.failed.load(Ordering::Relaxed) {
            0 => Ok(()),
            failed => Err(format!("{failed} ranks were refused their group")),
        }
    }

    /// Groups come and go, some at a time; then switches hold what they held before, and the controller knows of no
    /// more groups than before.
    async fn cycles(&self, agents: &[Outbox], grpc: SocketAddr, load: &Load) -> Result<(), String> {
        let before = held(&self.fabric.counts);
        for first in (0..load.cycles).step_by(AT_ONCE) {
            let count = AT_ONCE.min(load.cycles - first);
            self.groups(agents, &format!("brief-{first}"), count).await?;
        }
        self.fabric.until("the end of brief groups", PATIENCE, |counts| held(counts) == before).await?;
        let mut client = ask(grpc).await?;
        // Switches hold the same for groups of the same nodes, so the last of them end unnoticed there.
        until_nothing_is_wrong(async || {
            let groups = client.list_groups(GroupsRequest {}).await.map_err(|s| s.message().to_owned())?;
            let (left, kept) = (groups.into_inner().groups.len(), load.groups);
            let wrong = || format!("{left} groups are left of {kept} and those that came and went");
            Ok((left != kept).then(wrong))
        })
        .await
    }

    /// A rank on every host: a group of all of them is made, and goes again.
    async fn world(&self, agents: &[Outbox], pid: u32, report: &mut Report) -> Result<(), String> {
        let counts = &self.fabric.counts;
        let (before, cpu, told) = (held(counts), cpu_seconds(pid)?, counts.told.load(Ordering::Relaxed));
        let all = counts.enlisted.load(Ordering::Relaxed) + agents.len() as u64;
        let asked = Instant::now();
        for (rank, outbox) in agents.iter().enumerate() {
            agent::enlist(outbox, "brief-world", rank, agents.len()).await;
        }
        let made = |counts: &Counts| {
            counts.enlisted.load(Ordering::Relaxed) >= all || counts.failed.load(Ordering::Relaxed) > 0
        };
        self.fabric.until("a world on all hosts", PATIENCE, made).await?;
        report.note("world_made_s", seconds(asked));
        report.note("world_cpu_s", cpu_seconds(pid)? - cpu);
        let told = counts.told.load(Ordering::Relaxed) - told;
        report.note("world_bytes_per_agent", told / agents.len() as u64);
        report.note("world_peak_memory_mib", peak_mib(pid)?);
        if counts.failed.load(Ordering::Relaxed) > 0 {
            return Err("ranks were refused the world on all hosts".to_owned());
        }
        self.fabric
            .until("the end of the world on all hosts", PATIENCE, |counts| held(counts) == before)
            .await
    }

    /// Links fail one after the other and come back; returns how long each failure was worked on.
    async fn failures(&self, count: usize) -> Vec<Duration> {
        let plan = &self.fabric.plan;
        let mut times = Vec::new();
        for failure in 0..count {
            let switch = failure * 37 % plan.switches.len();
            let links =
                plan.switches[switch].ports.iter().filter(|(_, end)| matches!(end, End::Switch { .. }));
            let links: Vec<u32> = links.map(|(port, _)| *port).collect();
            let port = links[failure % links.len()];
            let failed = Instant::now();
            self.fabric.cable(switch, port, false);
            let last = self.fabric.quiet(SILENCE).await;
            times.push(last.saturating_duration_since(failed));
            self.fabric.cable(switch, port, true);
            self.fabric.quiet(SILENCE).await;
        }
        times
    }

    /// Packet-ins, as many as go, and one at a time.
    async fn packets(&self, report: &mut Report, pid: Option<u32>) -> Result<(), String> {
        let talkers: Vec<usize> = (0..self.fabric.plan.racks.min(TALKERS)).collect();
        let before = pid.map(cpu_seconds).transpose()?;
        let many = self.pump.run(&self.fabric, &talkers, WINDOW, SPAN).await;
        let used = pid.map(cpu_seconds).transpose()?.zip(before).map(|(after, before)| after - before);
        let one = self.pump.run(&self.fabric, &talkers[..1], 1, SPAN).await;
        report.note("packet_ins_per_second", (many.answers as f64 / many.seconds).round());
        if let Some(used) = used {
            report.note("packet_in_cpu_us", (used / many.answers as f64 * 1e6).round());
        }
        report.note("packet_in_loaded_median_ms", ms(many.median));
        report.note("packet_in_loaded_p99_ms", ms(many.worst_percent));
        report.note("packet_in_alone_median_ms", ms(one.median));
        report.note("packet_in_alone_p99_ms", ms(one.worst_percent));
        Ok(())
    }
}

/// The controller, to be asked as a tool asks it.
async fn ask(grpc: SocketAddr) -> Result<ControllerClient<Channel>, String> {
    let endpoint = Endpoint::from_shared(format!("http://{grpc}")).map_err(|e| e.to_string())?;
    let channel = endpoint.connect().await.map_err(|e| format!("cannot ask the controller: {e:?}"))?;
    Ok(ControllerClient::new(channel).max_decoding_message_size(cool_proto::CONTROL_MESSAGE_BYTES_MAX))
}

/// The whole life of a network under cool-controller.
pub(crate) async fn fabric(plan: Plan, program: &Path, load: Load) -> Result<Report, String> {
    let mut report = Report(Map::new());
    report.note("switches", plan.switches.len());
    report.note("hosts", plan.hosts.len());
    report.note("links", plan.links);
    report.note("groups", load.groups);
    let controller = Controller::start(program).await?;
    let begun = Instant::now();
    let mut stage = Stage::new(plan, controller.openflow);
    let agents = stage.agents(controller.grpc, load.agents_per_connection).await?;
    report.note("agents_joined_s", seconds(begun));
    let flows = stage.fabric.plan.flows() as u64;
    let all = |counts: &Counts| counts.flows.load(Ordering::Relaxed) == flows;
    stage.fabric.until("unicast rules", PATIENCE, all).await?;
    stage.found(controller.grpc).await?;
    report.note("unicast_rules", flows);
    report.note("discovered_and_unicast_sent_s", seconds(begun));
    let groups = Instant::now();
    stage.groups(&agents, "load", load.groups).await?;
    report.note("groups_made_s", seconds(groups));
    report.note("all_rules_sent_s", seconds(begun));
    report.note("flows", stage.fabric.counts.flows.load(Ordering::Relaxed));
    report.note("group_entries", stage.fabric.counts.groups.load(Ordering::Relaxed));
    report.note("cpu_until_then_s", cpu_seconds(controller.pid)?);
    report.note("peak_memory_mib", peak_mib(controller.pid)?);
    stage.check()?;
    // Trees are still looked at anew until then.
    stage.fabric.quiet(2 * SILENCE).await;
    let cycles = Instant::now();
    stage.cycles(&agents, controller.grpc, &load).await?;
    report.note("groups_came_and_went", load.cycles);
    report.note("groups_came_and_went_s", seconds(cycles));
    stage.world(&agents, controller.pid, &mut report).await?;
    stage.check()?;

    stage.fabric.quiet(2 * SILENCE).await;
    let idle = (Instant::now(), cpu_seconds(controller.pid)?);
    tokio::time::sleep(SPAN).await;
    let share = (cpu_seconds(controller.pid)? - idle.1) / idle.0.elapsed().as_secs_f64();
    report.note("idle_cpu_percent", (share * 100.0).round());
    let mut times = stage.failures(load.failures).await;
    times.sort_unstable();
    report.note("link_failure_median_ms", times.get(times.len() / 2).map(|t| ms(*t)).unwrap_or_default());
    report.note("link_failure_worst_ms", times.last().map(|t| ms(*t)).unwrap_or_default());
    stage.check()?;

    stage.packets(&mut report, Some(controller.pid)).await?;
    report.note("peak_memory_in_the_end_mib", peak_mib(controller.pid)?);
    report.note("messages_lost", stage.fabric.counts.lost.load(Ordering::Relaxed));
    stage.check()?;
    Ok(report)
}

/// Packet-ins of another controller, which knows all hosts from the beginning.
pub(crate) async fn packets(plan: Plan, openflow: SocketAddr, pid: Option<u32>) -> Result<Report, String> {
    let mut report = Report(Map::new());
    let mut stage = Stage::new(plan, openflow);
    let switches = stage.fabric.plan.switches.len() as u64;
    let all = |counts: &Counts| counts.up.load(Ordering::Relaxed) == switches;
    stage.fabric.until("switches", PATIENCE, all).await?;
    stage.packets(&mut report, pid).await?;
    if let Some(pid) = pid {
        report.note("peak_memory_mib", peak_mib(pid)?);
    }
    stage.check()?;
    Ok(report)
}

/// What switches hold of groups: all flows, and entries of trees.
fn held(counts: &Counts) -> (u64, u64) {
    (counts.flows.load(Ordering::Relaxed), counts.trees.load(Ordering::Relaxed))
}

fn seconds(since: Instant) -> Value {
    json!((since.elapsed().as_secs_f64() * 100.0).round() / 100.0)
}

/// Asks the controller again and again until nothing is wrong any more; fails with what still is when patience is over.
async fn until_nothing_is_wrong(
    mut ask: impl AsyncFnMut() -> Result<Option<String>, String>,
) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    while let Some(wrong) = ask().await? {
        if Instant::now() >= end {
            return Err(wrong);
        }
        tokio::time::sleep(ASK).await;
    }
    Ok(())
}

fn ms(time: Duration) -> Value {
    json!((time.as_secs_f64() * 1e5).round() / 100.0)
}
