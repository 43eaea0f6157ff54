//! Lets agents probe each other when they have joined: every node one other of its rack, and a node of every rack
//! one of another rack. One probe at a time, never while a group is in use; one that is made stops the probe.
//!
//! What a probe is, is the agents' matter; what follows from the results, [`crate::costs`]'s.

use crate::agents::{Agents, Session};
use crate::costs::{Found, Given, Measurements};
use cool_fabric::Fabric;
use crate::jobs::allocate::natural;
use cool_proto::control::{Probe, Probed, StopProbe, controller_message::Body};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tracing::{debug, info, warn};

/// Nodes join in crowds: there is no probing before nothing has changed for so long.
const QUIET: Duration = Duration::from_millis(300);
/// A probe that is not over by then is given up.
const LONGEST: Duration = Duration::from_secs(10);
/// How often a probe is tried.
const TRIES: u32 = 2;

/// A node whose place is known.
#[derive(Clone, Debug)]
struct Host {
    session: Arc<Session>,
    rack: u32,
}

/// What a probe tells about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// The way from a node, by its session's number, to another of its rack.
    Node(u32),
    /// The way from a rack to another.
    Rack(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    tries: u32,
    found: Option<Found>,
}

impl Outcome {
    fn over(&self) -> bool {
        self.found.is_some() || self.tries >= TRIES
    }
}

/// A probe under way.
struct Asked {
    id: u64,
    session: Arc<Session>,
    reply: oneshot::Sender<Probed>,
}

#[derive(Default)]
struct State {
    outcomes: BTreeMap<Subject, Outcome>,
    last: u64,
    asked: Option<Asked>,
}

/// Makes the probes, one after the other, and has their results.
pub struct Prober {
    network: Arc<dyn Fabric>,
    agents: Arc<Agents>,
    given: Given,
    state: Mutex<State>,
}

impl Prober {
    /// No probes yet; the operator has given these rates.
    pub fn new(network: Arc<dyn Fabric>, agents: Arc<Agents>, given: Given) -> Prober {
        Prober { network, agents, given, state: Mutex::default() }
    }

    /// Probes whenever there is something to probe and no group is busy, until the network or the groups are gone.
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
                while let Ok(changed) = timeout(QUIET, network.changed()).await {
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
                        self.note(subject, (&from, &to), found);
                    }
                }
            }
        }
    }

    /// An agent reports.
    pub fn hear(&self, session: &Session, probed: Probed) {
        let mut state = self.state.lock();
        match state.asked.take_if(|asked| (asked.id, asked.session.number) == (probed.id, session.number)) {
            // Whoever asked may just have given up.
            Some(asked) => drop(asked.reply.send(probed)),
            None => debug!(node = session.agent.name, "reports a probe that nobody waits for"),
        }
    }

    /// Stops the probe under way: somebody else needs the network.
    pub fn stop(&self) {
        if let Some(asked) = self.state.lock().asked.take() {
            // An agent that is gone probes no more.
            let _ = asked.session.send(Body::StopProbe(StopProbe {}));
        }
    }

    /// What is known now.
    pub fn measurements(&self) -> Measurements {
        let state = self.state.lock();
        let level = |of: fn(&Subject) -> bool| {
            let outcomes = state.outcomes.iter().filter(|(subject, _)| of(subject));
            let found: Vec<Found> = outcomes.filter_map(|(_, outcome)| outcome.found).collect();
            Found::median(&found).map(|median| (median, found.len()))
        };
        Measurements {
            given: self.given,
            rack: level(|subject| matches!(subject, Subject::Node(_))),
            core: level(|subject| matches!(subject, Subject::Rack(_))),
        }
    }

    /// Probes that are still to be made.
    pub fn pending(&self) -> usize {
        let pairs = pairs(&places(&self.hosts()));
        let state = self.state.lock();
        pairs.iter().filter(|(subject, ..)| state.is_open(*subject)).count()
    }

    /// The nodes whose places are known, rack by rack.
    fn hosts(&self) -> Vec<Host> {
        let topology = self.network.topology();
        let here = |name: &str| self.agents.get(name).filter(|session| !session.is_away());
        let located = topology.nodes.iter().filter_map(|n| Some((here(&n.name)?, n.location?)));
        let mut hosts: Vec<Host> =
            located.map(|(session, location)| Host { session, rack: location.rack }).collect();
        hosts.sort_by(|a, b| {
            a.rack.cmp(&b.rack).then_with(|| natural(&a.session.agent.name, &b.session.agent.name))
        });
        hosts
    }

    /// The next probe to make. What is known of nodes that are gone is forgotten.
    fn next(&self) -> Option<(Subject, Arc<Session>, Arc<Session>)> {
        let hosts = self.hosts();
        let pairs = pairs(&places(&hosts));
        let mut state = self.state.lock();
        state.outcomes.retain(|subject, _| pairs.iter().any(|(other, ..)| other == subject));
        let (subject, from, to) = pairs.into_iter().find(|(subject, ..)| state.is_open(*subject))?;
        Some((subject, hosts[from].session.clone(), hosts[to].session.clone()))
    }

    /// What a probe has found, or why it has not; none if it was stopped.
    async fn probe(&self, from: &Arc<Session>, to: &Session) -> Option<Result<Found, String>> {
        let (reply, answer) = oneshot::channel();
        let id = {
            let mut state = self.state.lock();
            state.last += 1;
            state.asked = Some(Asked { id: state.last, session: from.clone(), reply });
            state.last
        };
        let probe = Probe { id, ip: to.agent.ip.to_string(), port: to.agent.probe_port.into() };
        if let Err(gone) = from.send(Body::Probe(probe)) {
            return Some(Err(gone.to_string()));
        }
        match timeout(LONGEST, answer).await {
            Ok(Ok(probed)) => Some(Found::try_from(&probed)),
            Ok(Err(_)) => None,
            Err(_) => {
                self.stop();
                Some(Err(format!("it was not over within {LONGEST:?}")))
            }
        }
    }

    fn note(&self, subject: Subject, (from, to): (&Session, &Session), found: Result<Found, String>) {
        let (from, to) = (&from.agent.name, &to.agent.name);
        let mut state = self.state.lock();
        let outcome = state.outcomes.entry(subject).or_default();
        outcome.tries += 1;
        match found {
            Ok(found) => {
                info!(from, to, ?found, "probed");
                outcome.found = Some(found);
            }
            Err(why) => warn!(from, to, why, "the way between two nodes could not be measured"),
        }
    }
}

impl State {
    fn is_open(&self, subject: Subject) -> bool {
        !self.outcomes.get(&subject).is_some_and(Outcome::over)
    }
}

/// Sessions with their racks.
fn places(hosts: &[Host]) -> Vec<(u32, u32)> {
    hosts.iter().map(|host| (host.session.number, host.rack)).collect()
}

/// Whom to probe: from each node to the next of its rack, around, so that every link is used once each way; from
/// the first node of each rack to that of the next. Hosts are (session, rack), rack by rack.
fn pairs(hosts: &[(u32, u32)]) -> Vec<(Subject, usize, usize)> {
    let racks: Vec<std::ops::Range<usize>> = hosts
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
        rack.clone().map(move |host| (Subject::Node(hosts[host].0), host, next(host, rack)))
    });
    let around = racks.iter().zip(racks.iter().cycle().skip(1)).filter(|_| racks.len() > 1);
    let between = around.map(|(rack, other)| (Subject::Rack(hosts[rack.start].1), rack.start, other.start));
    between.chain(within).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_probed_within_its_rack_and_every_rack_with_another() {
        let hosts = [(11, 0), (12, 0), (13, 0), (21, 1), (31, 4), (32, 4)];
        let (node, rack) = (Subject::Node, Subject::Rack);
        let expected = [
            (rack(0), 0, 3),
            (rack(1), 3, 4),
            (rack(4), 4, 0),
            (node(11), 0, 1),
            (node(12), 1, 2),
            (node(13), 2, 0),
            (node(31), 4, 5),
            (node(32), 5, 4),
        ];
        assert_eq!(pairs(&hosts), expected);
        assert_eq!(pairs(&hosts[..1]), []);
        assert_eq!(pairs(&[]), []);
    }

    #[test]
    fn a_probe_that_fails_is_tried_again_but_not_for_ever() {
        let mut state = State::default();
        let subject = Subject::Node(1);
        for tries in 0..TRIES {
            assert!(state.is_open(subject));
            state.outcomes.insert(subject, Outcome { tries: tries + 1, found: None });
        }
        assert!(!state.is_open(subject));
    }
}
