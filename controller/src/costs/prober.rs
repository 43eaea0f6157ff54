//! Schedules probes between agents after they have joined: each node probes another node of its
//! rack, and one node of each rack probes a node of another rack.
//!
//! One probe runs at a time, and never while a group is in use. Forming a group stops the probe.
//! Agents implement the probe itself, and [`crate::costs`] interprets the results.

use crate::agents::{AgentRegistry, Session};
use crate::costs::{ConfiguredRates, MeasuredCosts, ProbeResult};
use crate::natural_order::natural;
use cool_fabric::Fabric;
use cool_proto::control::{Probe, Probed, StopProbe, controller_message::Body};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tracing::{debug, info, warn};

/// Probing starts after the set of nodes has not changed for this time, because nodes often join at
/// the same time.
const SETTLE_TIME: Duration = Duration::from_millis(300);
/// Maximum duration of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of attempts to run a probe.
const MAX_TRIES: u32 = 2;

/// A node with a known location.
#[derive(Clone, Debug)]
struct LocatedNode {
    session: Arc<Session>,
    rack: u32,
}

/// The path that a probe measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ProbeSubject {
    /// A path from a node to another node of its rack, given by the numbers of their sessions. If
    /// their racks change, as when LLDP arrives late, other paths are within racks.
    Node(u32, u32),
    /// A path from a rack to another rack.
    Rack(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct ProbeOutcome {
    tries: u32,
    found: Option<ProbeResult>,
}

impl ProbeOutcome {
    fn is_complete(&self) -> bool {
        self.found.is_some() || self.tries >= MAX_TRIES
    }
}

/// The probe in progress.
struct RunningProbe {
    id: u64,
    session: Arc<Session>,
    reply: oneshot::Sender<Probed>,
}

#[derive(Default)]
struct ProberState {
    outcomes: BTreeMap<ProbeSubject, ProbeOutcome>,
    last: u64,
    running: Option<RunningProbe>,
}

/// Runs the probes one after the other and stores their results.
pub struct Prober {
    network: Arc<dyn Fabric>,
    agents: Arc<AgentRegistry>,
    configured: ConfiguredRates,
    state: Mutex<ProberState>,
}

impl Prober {
    /// Returns a prober without results.
    pub fn new(network: Arc<dyn Fabric>, agents: Arc<AgentRegistry>, configured: ConfiguredRates) -> Prober {
        Prober { network, agents, configured, state: Mutex::default() }
    }

    /// Runs pending probes while no group is busy. Returns when the network or the groups no longer
    /// exist.
    pub async fn run(self: Arc<Prober>, mut busy: watch::Receiver<BTreeSet<u64>>) {
        let mut network = self.network.watch();
        loop {
            if busy.wait_for(BTreeSet::is_empty).await.is_err() {
                return;
            }
            network.mark_unchanged();
            let Some((subject, from, to)) = self.next() else {
                if network.changed().await.is_err() {
                    return;
                }
                while let Ok(changed) = timeout(SETTLE_TIME, network.changed()).await {
                    if changed.is_err() {
                        return;
                    }
                }
                continue;
            };
            tokio::select! {
                biased;
                _ = busy.wait_for(|groups| !groups.is_empty()) => self.stop(),
                found = self.probe(&from, &to) => {
                    if let Some(found) = found {
                        self.record(subject, (&from, &to), found);
                    }
                }
            }
        }
    }

    /// Handles an agent's report.
    pub fn receive(&self, session: &Session, probed: Probed) {
        let mut state = self.state.lock();
        match state
            .running
            .take_if(|running| (running.id, running.session.number) == (probed.id, session.number))
        {
            // The probe may just have timed out.
            Some(running) => drop(running.reply.send(probed)),
            None => debug!(node = session.agent.name, "reported a probe that is not running"),
        }
    }

    /// Stops the probe in progress, because another user needs the network.
    pub fn stop(&self) {
        if let Some(running) = self.state.lock().running.take() {
            // If the session has ended, the agent has stopped probing.
            let _ = running.session.send(Body::StopProbe(StopProbe {}));
        }
    }

    /// Returns the current results.
    pub fn measurements(&self) -> MeasuredCosts {
        let state = self.state.lock();
        let level = |of: fn(&ProbeSubject) -> bool| {
            let outcomes = state.outcomes.iter().filter(|(subject, _)| of(subject));
            let found: Vec<ProbeResult> = outcomes.filter_map(|(_, outcome)| outcome.found).collect();
            ProbeResult::median(&found).map(|median| (median, found.len()))
        };
        MeasuredCosts {
            configured: self.configured,
            rack: level(|subject| matches!(subject, ProbeSubject::Node(..))),
            core: level(|subject| matches!(subject, ProbeSubject::Rack(_))),
        }
    }

    /// Returns the number of pending probes.
    pub fn pending(&self) -> usize {
        let pairs = pairs(&places(&self.located_nodes()));
        let state = self.state.lock();
        pairs.iter().filter(|(subject, ..)| state.is_open(*subject)).count()
    }

    /// Returns the connected nodes with known locations, ordered by rack.
    fn located_nodes(&self) -> Vec<LocatedNode> {
        let topology = self.network.topology();
        let here = |name: &str| self.agents.get(name).filter(|session| !session.is_away());
        let located = topology.nodes.iter().filter_map(|n| Some((here(&n.name)?, n.location?)));
        let mut located_nodes: Vec<LocatedNode> =
            located.map(|(session, location)| LocatedNode { session, rack: location.rack }).collect();
        located_nodes.sort_by(|a, b| {
            a.rack.cmp(&b.rack).then_with(|| natural(&a.session.agent.name, &b.session.agent.name))
        });
        located_nodes
    }

    /// Returns the next probe to run. Drops results of nodes that no longer exist.
    fn next(&self) -> Option<(ProbeSubject, Arc<Session>, Arc<Session>)> {
        let located_nodes = self.located_nodes();
        let pairs = pairs(&places(&located_nodes));
        let mut state = self.state.lock();
        state.outcomes.retain(|subject, _| pairs.iter().any(|(other, ..)| other == subject));
        let (subject, from, to) = pairs.into_iter().find(|(subject, ..)| state.is_open(*subject))?;
        Some((subject, located_nodes[from].session.clone(), located_nodes[to].session.clone()))
    }

    /// Runs a probe. Returns its result or failure, or `None` if it was stopped.
    async fn probe(&self, from: &Arc<Session>, to: &Session) -> Option<Result<ProbeResult, String>> {
        let (reply, answer) = oneshot::channel();
        let id = {
            let mut state = self.state.lock();
            state.last += 1;
            state.running = Some(RunningProbe { id: state.last, session: from.clone(), reply });
            state.last
        };
        let probe = Probe { id, ip: to.agent.ip.to_string(), port: to.agent.probe_port.into() };
        if let Err(gone) = from.send(Body::Probe(probe)) {
            return Some(Err(gone.to_string()));
        }
        match timeout(PROBE_TIMEOUT, answer).await {
            Ok(Ok(probed)) => Some(ProbeResult::try_from(&probed)),
            Ok(Err(_)) => None,
            Err(_) => {
                self.stop();
                Some(Err(format!("it did not complete within {PROBE_TIMEOUT:?}")))
            }
        }
    }

    fn record(
        &self,
        subject: ProbeSubject,
        (from, to): (&Session, &Session),
        found: Result<ProbeResult, String>,
    ) {
        let (from, to) = (&from.agent.name, &to.agent.name);
        let mut state = self.state.lock();
        let outcome = state.outcomes.entry(subject).or_default();
        outcome.tries += 1;
        match found {
            Ok(found) => {
                info!(from, to, ?found, "probed");
                outcome.found = Some(found);
            }
            Err(why) => warn!(from, to, why, "cannot measure the path between two nodes"),
        }
    }
}

impl ProberState {
    fn is_open(&self, subject: ProbeSubject) -> bool {
        !self.outcomes.get(&subject).is_some_and(ProbeOutcome::is_complete)
    }
}

/// Returns session numbers and racks.
fn places(located_nodes: &[LocatedNode]) -> Vec<(u32, u32)> {
    located_nodes.iter().map(|host| (host.session.number, host.rack)).collect()
}

/// Returns the pairs to probe. Each node probes the next node of its rack, in a ring, so that every
/// link is used once in each direction. The first node of each rack probes the first node of the
/// next rack. `located_nodes` are session numbers and racks, ordered by rack.
fn pairs(located_nodes: &[(u32, u32)]) -> Vec<(ProbeSubject, usize, usize)> {
    let racks: Vec<std::ops::Range<usize>> = located_nodes
        .chunk_by(|a, b| a.1 == b.1)
        .scan(0, |start, rack| {
            let range = *start..*start + rack.len();
            *start = range.end;
            Some(range)
        })
        .collect();
    let next = |at: usize, range: &std::ops::Range<usize>| {
        if at + 1 < range.end { at + 1 } else { range.start }
    };
    let within = racks.iter().filter(|rack| rack.len() > 1).flat_map(|rack| {
        rack.clone().map(move |host| {
            let to = next(host, rack);
            (ProbeSubject::Node(located_nodes[host].0, located_nodes[to].0), host, to)
        })
    });
    let around = racks.iter().zip(racks.iter().cycle().skip(1)).filter(|_| racks.len() > 1);
    let between = around
        .map(|(rack, other)| (ProbeSubject::Rack(located_nodes[rack.start].1), rack.start, other.start));
    between.chain(within).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_probes_within_its_rack_and_each_rack_another() {
        let located_nodes = [(11, 0), (12, 0), (13, 0), (21, 1), (31, 4), (32, 4)];
        let (node, rack) = (ProbeSubject::Node, ProbeSubject::Rack);
        let expected = [
            (rack(0), 0, 3),
            (rack(1), 3, 4),
            (rack(4), 4, 0),
            (node(11, 12), 0, 1),
            (node(12, 13), 1, 2),
            (node(13, 11), 2, 0),
            (node(31, 32), 4, 5),
            (node(32, 31), 5, 4),
        ];
        assert_eq!(pairs(&located_nodes), expected);
        assert_eq!(pairs(&located_nodes[..1]), []);
        assert_eq!(pairs(&[]), []);
    }

    #[test]
    fn a_failed_probe_is_retried_a_limited_number_of_times() {
        let mut state = ProberState::default();
        let subject = ProbeSubject::Node(1, 2);
        for tries in 0..MAX_TRIES {
            assert!(state.is_open(subject));
            state.outcomes.insert(subject, ProbeOutcome { tries: tries + 1, found: None });
        }
        assert!(!state.is_open(subject));
    }
}
