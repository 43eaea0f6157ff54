//! The phases of the load: each puts one kind of load on a controller and measures it.

use crate::agent::{self, Outbox};
use crate::fabric::{FabricCounts, SimulatedFabric};
use crate::network_plan::{NetworkPlan, PortPeer};
use crate::process::{ControllerProcess, cpu_seconds, peak_mib};
use crate::pump::RequestPump;
use crate::switch::SimulatedSwitch;
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

/// Longest duration of a phase, even on a busy machine.
const PHASE_TIMEOUT: Duration = Duration::from_secs(240);
/// Number of racks of a group's hosts, and number of the group's hosts in each of them.
const GROUP_RACKS: usize = 4;
const GROUP_HOSTS_PER_RACK: usize = 8;
/// Number of brief groups that exist at the same time.
const CONCURRENT_GROUPS: usize = 20;
/// Number of connections that are opened, with their agents, at the same time.
const CONCURRENT_JOINS: usize = 64;
/// Time without any change after which the controller counts as having handled a failure.
const QUIET_TIME: Duration = Duration::from_millis(1500);
/// Number of switches that send packet-ins.
const SENDING_SWITCHES: usize = 16;
/// Number of requests in flight at each of these switches.
const REQUEST_WINDOW: usize = 32;
/// Duration of each measurement of packet-ins and of the idle controller.
const MEASURED_TIME: Duration = Duration::from_secs(5);

/// Interval at which the controller is queried while a state is awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Amount of load.
pub(crate) struct LoadSettings {
    pub(crate) groups: usize,
    pub(crate) cycles: usize,
    pub(crate) failures: usize,
    pub(crate) agents_per_connection: usize,
}

/// The measured figures, by their JSON keys.
pub(crate) struct LoadReport(pub(crate) Map<String, Value>);

impl LoadReport {
    /// Adds a figure, and prints it as progress.
    fn record(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        eprintln!("{name}: {value}");
        self.0.insert(name.to_owned(), value);
    }
}

/// The simulated network and its tasks, which end when it is dropped.
struct SimulatedNetwork {
    fabric: Arc<SimulatedFabric>,
    pump: Arc<RequestPump>,
    tasks: JoinSet<Result<(), String>>,
}

impl SimulatedNetwork {
    /// Connects all switches of the plan to the controller.
    fn new(plan: NetworkPlan, openflow: SocketAddr) -> SimulatedNetwork {
        let (fabric, queues) = SimulatedFabric::new(plan);
        let (fabric, pump) = (Arc::new(fabric), Arc::new(RequestPump::new(queues.len())));
        let mut tasks = JoinSet::new();
        for (number, queue) in queues.into_iter().enumerate() {
            let switch = SimulatedSwitch::new(number, fabric.clone(), pump.clone());
            tasks.spawn(async move { switch.run(openflow, queue).await.map_err(|e| e.to_string()) });
        }
        SimulatedNetwork { fabric, pump, tasks }
    }

    /// Joins the agents of all hosts, several at a time. Returns their outboxes, in the order of
    /// hosts.
    async fn join_agents(&mut self, grpc: SocketAddr, per_connection: usize) -> Result<Vec<Outbox>, String> {
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).map_err(|e| e.to_string())?;
        let endpoint = endpoint.tcp_nodelay(true);
        let permits = Arc::new(Semaphore::new(CONCURRENT_JOINS));
        let hosts: Vec<usize> = (0..self.fabric.plan.hosts.len()).collect();
        let mut joining = JoinSet::new();
        for hosts in hosts.chunks(per_connection.max(1)).map(<[usize]>::to_vec) {
            let (fabric, endpoint, permits) = (self.fabric.clone(), endpoint.clone(), permits.clone());
            joining.spawn(async move {
                let _permit = permits.acquire_owned().await.map_err(|e| e.to_string())?;
                let channel = endpoint
                    .connect()
                    .await
                    .map_err(|e| format!("an agent cannot connect to the controller: {e:?}"))?;
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

    /// Waits until the controller reports all links between switches and the locations of all
    /// nodes.
    async fn wait_until_discovered(&self, grpc: SocketAddr) -> Result<(), String> {
        let mut client = connect(grpc).await?;
        poll_until_correct(async || {
            let topology =
                client.get_topology(TopologyRequest {}).await.map_err(|s| s.message().to_owned())?;
            let topology = topology.into_inner();
            let located = topology.nodes.iter().filter(|node| node.located).count();
            let (links, plan) = (topology.links.len(), &self.fabric.plan);
            let found = located == plan.hosts.len() && links == plan.links;
            let wrong = || format!("the controller has discovered {links} links and located {located} nodes");
            Ok((!found).then(wrong))
        })
        .await
    }

    /// Returns the error of a simulated switch or agent that has failed.
    fn check(&mut self) -> Result<(), String> {
        match self.tasks.try_join_next() {
            Some(Ok(Err(reason))) => Err(reason),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(Ok(()))) | None => Ok(()),
        }
    }

    /// Creates groups of 32 ranks on hosts that are spread over the network, and waits for them.
    /// `kind` is the beginning of their keys.
    async fn create_groups(&self, agents: &[Outbox], kind: &str, count: usize) -> Result<(), String> {
        let plan = &self.fabric.plan;
        let per_rack = plan.hosts.len() / plan.racks;
        let (racks, hosts) = (GROUP_RACKS.min(plan.racks), GROUP_HOSTS_PER_RACK.min(per_rack));
        let size = racks * hosts;
        let before = self.fabric.counts.enlisted.load(Ordering::Relaxed);
        for group in 0..count {
            for rank in 0..size {
                let rack = (group * 7 + rank / hosts * (plan.racks / racks)) % plan.racks;
                let host = rack * per_rack + (group * hosts + rank % hosts) % per_rack;
                agent::enlist(&agents[host], &format!("{kind}-{group}"), rank, size).await;
            }
        }
        // Each node receives one message per group. It has one rank here, so ranks are counted.
        let all = before + (count * size) as u64;
        let made = |counts: &FabricCounts| counts.enlisted.load(Ordering::Relaxed) >= all;
        self.fabric.wait_until("groups", PHASE_TIMEOUT, made).await?;
        match self.fabric.counts.refused.load(Ordering::Relaxed) {
            0 => Ok(()),
            failed => Err(format!("the controller refused {failed} ranks their group")),
        }
    }

    /// Creates groups that end again, several at a time. Afterwards, switches must have the entries
    /// that they had before, and the controller must report no more groups than before.
    async fn cycle_groups(
        &self,
        agents: &[Outbox],
        grpc: SocketAddr,
        load: &LoadSettings,
    ) -> Result<(), String> {
        let before = group_entries(&self.fabric.counts);
        for first in (0..load.cycles).step_by(CONCURRENT_GROUPS) {
            let count = CONCURRENT_GROUPS.min(load.cycles - first);
            self.create_groups(agents, &format!("brief-{first}"), count).await?;
        }
        self.fabric
            .wait_until("the end of brief groups", PHASE_TIMEOUT, |counts| group_entries(counts) == before)
            .await?;
        let mut client = connect(grpc).await?;
        // Groups of the same nodes share entries in switches, so these do not show when the last
        // group ends.
        poll_until_correct(async || {
            let groups = client.list_groups(GroupsRequest {}).await.map_err(|s| s.message().to_owned())?;
            let (left, kept) = (groups.into_inner().groups.len(), load.groups);
            let wrong = || format!("the controller reports {left} groups, but only {kept} have not ended");
            Ok((left != kept).then(wrong))
        })
        .await
    }

    /// Creates a group with a rank on every host, and waits until it has ended again.
    async fn create_world(&self, agents: &[Outbox], pid: u32, report: &mut LoadReport) -> Result<(), String> {
        let counts = &self.fabric.counts;
        let (before, cpu, bytes) =
            (group_entries(counts), cpu_seconds(pid)?, counts.bytes_to_agents.load(Ordering::Relaxed));
        let all = counts.enlisted.load(Ordering::Relaxed) + agents.len() as u64;
        let requested = Instant::now();
        for (rank, outbox) in agents.iter().enumerate() {
            agent::enlist(outbox, "brief-world", rank, agents.len()).await;
        }
        let made = |counts: &FabricCounts| {
            counts.enlisted.load(Ordering::Relaxed) >= all || counts.refused.load(Ordering::Relaxed) > 0
        };
        self.fabric.wait_until("the group on all hosts", PHASE_TIMEOUT, made).await?;
        report.record("world_made_s", seconds(requested));
        report.record("world_cpu_s", cpu_seconds(pid)? - cpu);
        let bytes = counts.bytes_to_agents.load(Ordering::Relaxed) - bytes;
        report.record("world_bytes_per_agent", bytes / agents.len() as u64);
        report.record("world_peak_memory_mib", peak_mib(pid)?);
        if counts.refused.load(Ordering::Relaxed) > 0 {
            return Err("the controller refused ranks the group on all hosts".to_owned());
        }
        self.fabric
            .wait_until("the end of the group on all hosts", PHASE_TIMEOUT, |counts| {
                group_entries(counts) == before
            })
            .await
    }

    /// Lets links fail one after another, and restores them. Returns how long the controller
    /// changed flows after each failure.
    async fn fail_links(&self, count: usize) -> Vec<Duration> {
        let plan = &self.fabric.plan;
        let mut times = Vec::new();
        for failure in 0..count {
            let switch = failure * 37 % plan.switches.len();
            let links =
                plan.switches[switch].ports.iter().filter(|(_, end)| matches!(end, PortPeer::Switch { .. }));
            let links: Vec<u32> = links.map(|(port, _)| *port).collect();
            let port = links[failure % links.len()];
            let failed = Instant::now();
            self.fabric.set_cable(switch, port, false);
            let last = self.fabric.wait_until_quiet(QUIET_TIME).await;
            times.push(last.saturating_duration_since(failed));
            self.fabric.set_cable(switch, port, true);
            self.fabric.wait_until_quiet(QUIET_TIME).await;
        }
        times
    }

    /// Measures packet-ins, first at the highest rate and then one at a time.
    async fn send_packet_ins(&self, report: &mut LoadReport, pid: Option<u32>) -> Result<(), String> {
        let switches: Vec<usize> = (0..self.fabric.plan.racks.min(SENDING_SWITCHES)).collect();
        let before = pid.map(cpu_seconds).transpose()?;
        let many = self.pump.run(&self.fabric, &switches, REQUEST_WINDOW, MEASURED_TIME).await;
        let used = pid.map(cpu_seconds).transpose()?.zip(before).map(|(after, before)| after - before);
        let one = self.pump.run(&self.fabric, &switches[..1], 1, MEASURED_TIME).await;
        report.record("packet_ins_per_second", (many.responses as f64 / many.seconds).round());
        if let Some(used) = used {
            report.record("packet_in_cpu_us", (used / many.responses as f64 * 1e6).round());
        }
        report.record("packet_in_loaded_median_ms", ms(many.median));
        report.record("packet_in_loaded_p99_ms", ms(many.p99));
        report.record("packet_in_alone_median_ms", ms(one.median));
        report.record("packet_in_alone_p99_ms", ms(one.p99));
        Ok(())
    }
}

/// Connects to the controller as a tool does.
async fn connect(grpc: SocketAddr) -> Result<ControllerClient<Channel>, String> {
    let endpoint = Endpoint::from_shared(format!("http://{grpc}")).map_err(|e| e.to_string())?;
    let channel = endpoint.connect().await.map_err(|e| format!("cannot connect to the controller: {e:?}"))?;
    Ok(ControllerClient::new(channel).max_decoding_message_size(cool_proto::CONTROL_MESSAGE_BYTES_MAX))
}

/// Measures cool-controller in all phases, from the start of the network to packet-ins.
pub(crate) async fn measure_controller(
    plan: NetworkPlan,
    program: &Path,
    load: LoadSettings,
) -> Result<LoadReport, String> {
    let mut report = LoadReport(Map::new());
    report.record("switches", plan.switches.len());
    report.record("hosts", plan.hosts.len());
    report.record("links", plan.links);
    report.record("groups", load.groups);
    let controller = ControllerProcess::start(program).await?;
    let begun = Instant::now();
    let mut network = SimulatedNetwork::new(plan, controller.openflow);
    let agents = network.join_agents(controller.grpc, load.agents_per_connection).await?;
    report.record("agents_joined_s", seconds(begun));
    let flows = network.fabric.plan.flows() as u64;
    let all = |counts: &FabricCounts| counts.flows.load(Ordering::Relaxed) == flows;
    network.fabric.wait_until(&format!("{flows} unicast flows"), PHASE_TIMEOUT, all).await?;
    network.wait_until_discovered(controller.grpc).await?;
    report.record("unicast_rules", flows);
    report.record("discovered_and_unicast_sent_s", seconds(begun));
    let groups = Instant::now();
    network.create_groups(&agents, "load", load.groups).await?;
    report.record("groups_made_s", seconds(groups));
    report.record("all_rules_sent_s", seconds(begun));
    report.record("flows", network.fabric.counts.flows.load(Ordering::Relaxed));
    report.record("group_entries", network.fabric.counts.groups.load(Ordering::Relaxed));
    report.record("cpu_until_then_s", cpu_seconds(controller.pid)?);
    report.record("peak_memory_mib", peak_mib(controller.pid)?);
    network.check()?;
    // The controller recomputes multicast trees until the network has been quiet for this long.
    network.fabric.wait_until_quiet(2 * QUIET_TIME).await;
    let cycles = Instant::now();
    network.cycle_groups(&agents, controller.grpc, &load).await?;
    report.record("groups_came_and_went", load.cycles);
    report.record("groups_came_and_went_s", seconds(cycles));
    network.create_world(&agents, controller.pid, &mut report).await?;
    network.check()?;

    network.fabric.wait_until_quiet(2 * QUIET_TIME).await;
    let idle = (Instant::now(), cpu_seconds(controller.pid)?);
    tokio::time::sleep(MEASURED_TIME).await;
    let share = (cpu_seconds(controller.pid)? - idle.1) / idle.0.elapsed().as_secs_f64();
    report.record("idle_cpu_percent", (share * 100.0).round());
    let mut times = network.fail_links(load.failures).await;
    times.sort_unstable();
    report.record("link_failure_median_ms", times.get(times.len() / 2).map(|t| ms(*t)).unwrap_or_default());
    report.record("link_failure_worst_ms", times.last().map(|t| ms(*t)).unwrap_or_default());
    network.check()?;

    network.send_packet_ins(&mut report, Some(controller.pid)).await?;
    report.record("peak_memory_in_the_end_mib", peak_mib(controller.pid)?);
    report.record("messages_lost", network.fabric.counts.messages_lost.load(Ordering::Relaxed));
    network.check()?;
    Ok(report)
}

/// Measures the packet-ins of another controller, which must know the addresses of all hosts from
/// the beginning.
pub(crate) async fn measure_packet_ins(
    plan: NetworkPlan,
    openflow: SocketAddr,
    pid: Option<u32>,
) -> Result<LoadReport, String> {
    let mut report = LoadReport(Map::new());
    let mut network = SimulatedNetwork::new(plan, openflow);
    let switches = network.fabric.plan.switches.len() as u64;
    let all = |counts: &FabricCounts| counts.switches_up.load(Ordering::Relaxed) == switches;
    network.fabric.wait_until("all switches connected", PHASE_TIMEOUT, all).await?;
    network.send_packet_ins(&mut report, pid).await?;
    if let Some(pid) = pid {
        report.record("peak_memory_mib", peak_mib(pid)?);
    }
    network.check()?;
    Ok(report)
}

/// Returns the number of flows, and of group entries that belong to trees.
fn group_entries(counts: &FabricCounts) -> (u64, u64) {
    (counts.flows.load(Ordering::Relaxed), counts.trees.load(Ordering::Relaxed))
}

fn seconds(since: Instant) -> Value {
    json!((since.elapsed().as_secs_f64() * 100.0).round() / 100.0)
}

/// Polls until `ask` returns `None`.
///
/// # Errors
/// Returns an error if something is still wrong after [`PHASE_TIMEOUT`]: the text that the last
/// poll returned.
async fn poll_until_correct(
    mut ask: impl AsyncFnMut() -> Result<Option<String>, String>,
) -> Result<(), String> {
    let end = Instant::now() + PHASE_TIMEOUT;
    while let Some(wrong) = ask().await? {
        if Instant::now() >= end {
            return Err(wrong);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

fn ms(time: Duration) -> Value {
    json!((time.as_secs_f64() * 1e5).round() / 100.0)
}
