//! When the network is examined, and the course of an examination ([`FloodingExaminer`]).

use super::rounds::{ExaminedNode, FloodingRound, rounds};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use std::collections::{BTreeSet, VecDeque};

/// Time until the network is examined again after an examination with a result.
const PERIOD: Duration = Duration::from_secs(3600);
/// Time until it is examined again after one without, for example because the member received
/// nothing. It doubles each time, up to this number of times, to 43 min.
const RETRY_AFTER: Duration = Duration::from_secs(20);
const RETRY_DOUBLINGS_MAX: u32 = 7;

/// Maximum time until the member and the listeners are ready.
const READY_TIME_MAX: Duration = Duration::from_secs(5);
/// Number of trains after which an examination ends if the member hears none, and the time between
/// two of them. A host repeats a lost membership report within ten seconds (RFC 2236, 8.10).
const FIRST_TRAINS_MAX: u32 = 6;
const FIRST_TRAIN_INTERVAL: Duration = Duration::from_secs(2);
/// Time for which switches may still forward multicasts to everyone after the member has received
/// the first ones, because they enter a reported membership into their tables only then. No event
/// shows the end of that.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Maximum time until the member hears the train that counts, and the additional time for reports
/// of the listeners.
const COUNTED_TIME_MAX: Duration = Duration::from_secs(5);
const REPORT_TIME: Duration = Duration::from_secs(2);

/// The train that shows that the member has joined, and the one that shows which other nodes
/// multicasts reach.
pub(super) const FIRST_TRAIN: u8 = 0;
pub(super) const COUNTED_TRAIN: u8 = 1;

/// An event for a [`FloodingExaminer`]. Nodes are given by the numbers of their sessions.
#[derive(Debug)]
pub(super) enum FloodingInput<'a> {
    /// The nodes that can take part.
    Nodes(&'a [ExaminedNode]),
    /// The network has changed, so an earlier result does not hold.
    NetworkChanged,
    /// The report of a node in the examination with this number.
    Report { node: u32, number: u64, report: RoleReport },
}

/// A report of a node on its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoleReport {
    /// It receives from now on.
    Ready,
    /// It cannot take the role.
    Unable,
    /// It has heard this train.
    Heard(u8),
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeRole {
    Member,
    Listener,
    /// It sends this train.
    Sender(u8),
    /// It has no role any more.
    None,
}

/// An action that a [`FloodingExaminer`] requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FloodingOutput {
    /// Give this role to a node, in the examination with this number.
    Assign { node: u32, number: u64, role: NodeRole },
    /// Log the new verdict. `None`: the examination had no result.
    Concluded(Option<FloodingVerdict>),
}

/// The result of an examination. Nodes are given by the numbers of their sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FloodingVerdict {
    /// Nodes that have listened without joining.
    pub(super) listeners: BTreeSet<u32>,
    /// Those of them that multicasts have reached.
    pub(super) reached: BTreeSet<u32>,
}

/// The schedule of examinations, and the one in progress. An examination consists of rounds.
#[derive(Debug)]
pub(super) struct FloodingExaminer {
    /// Time after a change of the nodes or of the network after which it is examined.
    quiet: Duration,
    nodes: Vec<ExaminedNode>,
    /// Nodes that cannot listen.
    unable: BTreeSet<u32>,
    /// When the next examination begins.
    due: Option<Time>,
    /// Number of examinations without a result since the last change, up to a maximum.
    failures: u32,
    remaining: VecDeque<FloodingRound>,
    running: Option<RunningRound>,
    last_number: u64,
    /// The results of the rounds so far, and the verdict of the latest examination.
    found: FloodingVerdict,
    verdict: Option<FloodingVerdict>,
    outputs: VecDeque<FloodingOutput>,
}

/// A round in progress.
#[derive(Debug)]
struct RunningRound {
    number: u64,
    roles: FloodingRound,
    stage: RoundStage,
    /// When the stage ends if no report does that before.
    deadline: Time,
    /// Nodes that have not reported whether they are ready.
    unready: BTreeSet<u32>,
    /// Listeners that are ready, and those of them that have heard the train that counts.
    ready: BTreeSet<u32>,
    heard: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundStage {
    /// The member and the listeners prepare.
    Preparing,
    /// The sender sends first trains until the member hears one; this number remains.
    Joining { trains: u32 },
    /// The switches may still learn where the member is.
    Settling,
    /// The sender sends the train that counts.
    Counting,
    /// The member has heard it, and listeners may still report.
    Collecting,
}

impl FloodingExaminer {
    /// Returns an examiner without nodes. Its first round has the number after `last_number`, which
    /// should differ between controllers, because the rounds of an earlier one had the same
    /// addresses.
    pub(super) fn new(quiet: Duration, last_number: u64) -> FloodingExaminer {
        FloodingExaminer {
            quiet,
            nodes: Vec::new(),
            unable: BTreeSet::new(),
            due: None,
            failures: 0,
            remaining: VecDeque::new(),
            running: None,
            last_number,
            found: FloodingVerdict::default(),
            verdict: None,
            outputs: VecDeque::new(),
        }
    }

    /// Returns the verdict of the latest examination that had a result.
    pub(super) fn verdict(&self) -> Option<&FloodingVerdict> {
        self.verdict.as_ref()
    }

    /// Ends the current examination; the next one begins when nothing has changed for some time.
    fn postpone(&mut self, now: Time) {
        self.remaining.clear();
        self.end_round();
        self.failures = 0;
        self.due = (!rounds(&self.nodes, &self.unable).is_empty()).then(|| now + self.quiet);
    }

    fn set_nodes(&mut self, now: Time, nodes: &[ExaminedNode]) {
        if self.nodes == nodes {
            return;
        }
        self.nodes = nodes.to_vec();
        let numbers: BTreeSet<u32> = nodes.iter().map(|node| node.number).collect();
        self.unable.retain(|node| numbers.contains(node));
        if let Some(verdict) = &mut self.verdict {
            verdict.listeners.retain(|node| numbers.contains(node));
            verdict.reached.retain(|node| numbers.contains(node));
        }
        self.postpone(now);
    }

    fn assign(&mut self, node: u32, role: NodeRole) {
        let number = self.last_number;
        self.outputs.push_back(FloodingOutput::Assign { node, number, role });
    }

    fn begin_round(&mut self, now: Time, roles: FloodingRound) {
        self.last_number = self.last_number.wrapping_add(1);
        self.assign(roles.member, NodeRole::Member);
        roles.listeners.iter().for_each(|node| self.assign(*node, NodeRole::Listener));
        self.running = Some(RunningRound {
            number: self.last_number,
            stage: RoundStage::Preparing,
            deadline: now + READY_TIME_MAX,
            unready: roles.listeners.iter().copied().chain([roles.member]).collect(),
            ready: BTreeSet::new(),
            heard: BTreeSet::new(),
            roles,
        });
    }

    /// Takes the roles of the current round from its nodes. Returns the round.
    fn end_round(&mut self) -> Option<RunningRound> {
        let running = self.running.take()?;
        self.assign(running.roles.member, NodeRole::None);
        running.roles.listeners.iter().for_each(|node| self.assign(*node, NodeRole::None));
        Some(running)
    }

    /// Ends the current round, which has a result or not, and the examination if it was the last.
    fn conclude_round(&mut self, now: Time, has_result: bool) {
        let Some(round) = self.end_round() else { return };
        if has_result {
            self.found.listeners.extend(round.ready);
            self.found.reached.extend(round.heard);
        }
        if self.remaining.is_empty() {
            let found = std::mem::take(&mut self.found);
            let result = Some(found).filter(|found| !found.listeners.is_empty());
            if result.is_some() {
                (self.failures, self.due) = (0, Some(now + PERIOD));
            } else {
                self.due = Some(now + RETRY_AFTER * (1 << self.failures));
                self.failures = (self.failures + 1).min(RETRY_DOUBLINGS_MAX);
            }
            self.outputs.push_back(FloodingOutput::Concluded(result.clone()));
            self.verdict = result;
        }
    }

    /// Begins a stage of the current round, which lasts for this time at most.
    fn enter(&mut self, now: Time, stage: RoundStage, time_max: Duration) {
        let Some(running) = &mut self.running else { return };
        (running.stage, running.deadline) = (stage, now + time_max);
        let sender = running.roles.sender;
        match stage {
            RoundStage::Joining { .. } => self.assign(sender, NodeRole::Sender(FIRST_TRAIN)),
            RoundStage::Counting => self.assign(sender, NodeRole::Sender(COUNTED_TRAIN)),
            RoundStage::Preparing | RoundStage::Settling | RoundStage::Collecting => {}
        }
    }

    fn on_report(&mut self, now: Time, node: u32, report: RoleReport) {
        let Some(running) = &mut self.running else { return };
        let is_member = node == running.roles.member;
        let is_listener = running.roles.listeners.contains(&node);
        match report {
            RoleReport::Ready | RoleReport::Unable => {
                let is_ready = report == RoleReport::Ready;
                if !is_ready && (is_member || node == running.roles.sender) {
                    return self.conclude_round(now, false);
                }
                if running.unready.remove(&node) && is_listener {
                    if is_ready { &mut running.ready } else { &mut self.unable }.insert(node);
                }
                if running.stage == RoundStage::Preparing && running.unready.is_empty() {
                    self.on_prepared(now);
                }
            }
            RoleReport::Heard(FIRST_TRAIN) => {
                if is_member && matches!(running.stage, RoundStage::Joining { .. }) {
                    self.enter(now, RoundStage::Settling, SETTLE_TIME);
                }
            }
            RoleReport::Heard(_) => {
                let counts = matches!(running.stage, RoundStage::Counting | RoundStage::Collecting);
                if counts && running.ready.contains(&node) {
                    running.heard.insert(node);
                }
                let all_heard = running.heard == running.ready;
                if running.stage == RoundStage::Counting && is_member {
                    let time_max = if all_heard { Duration::ZERO } else { REPORT_TIME };
                    self.enter(now, RoundStage::Collecting, time_max);
                } else if running.stage == RoundStage::Collecting && all_heard {
                    self.conclude_round(now, true);
                }
            }
        }
    }

    /// Begins to send, if there are nodes that can receive.
    fn on_prepared(&mut self, now: Time) {
        let Some(running) = &self.running else { return };
        if running.unready.contains(&running.roles.member) || running.ready.is_empty() {
            return self.conclude_round(now, false);
        }
        self.enter(now, RoundStage::Joining { trains: FIRST_TRAINS_MAX - 1 }, FIRST_TRAIN_INTERVAL);
    }

    fn on_deadline(&mut self, now: Time, stage: RoundStage) {
        match stage {
            RoundStage::Preparing => self.on_prepared(now),
            RoundStage::Joining { trains: 0 } | RoundStage::Counting => self.conclude_round(now, false),
            RoundStage::Joining { trains } => {
                self.enter(now, RoundStage::Joining { trains: trains - 1 }, FIRST_TRAIN_INTERVAL);
            }
            RoundStage::Settling => self.enter(now, RoundStage::Counting, COUNTED_TIME_MAX),
            RoundStage::Collecting => self.conclude_round(now, true),
        }
    }

    /// Begins the examination or the next round of it if it is due. Returns whether it has.
    fn advance(&mut self, now: Time) -> bool {
        if let Some(running) = &self.running {
            let (is_over, stage) = (running.deadline <= now, running.stage);
            if is_over {
                self.on_deadline(now, stage);
            }
            return is_over;
        }
        if let Some(roles) = self.remaining.pop_front() {
            self.begin_round(now, roles);
            return true;
        }
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        (self.due, self.found) = (None, FloodingVerdict::default());
        self.remaining = rounds(&self.nodes, &self.unable).into();
        true
    }
}

impl Machine for FloodingExaminer {
    type Input<'a> = FloodingInput<'a>;
    type Output = FloodingOutput;

    fn handle(&mut self, now: Time, input: FloodingInput<'_>) {
        match input {
            FloodingInput::Nodes(nodes) => self.set_nodes(now, nodes),
            FloodingInput::NetworkChanged => {
                self.verdict = None;
                self.postpone(now);
            }
            FloodingInput::Report { node, number, report } => {
                if self.running.as_ref().is_some_and(|running| running.number == number) {
                    self.on_report(now, node, report);
                }
            }
        }
    }

    fn poll(&mut self, now: Time) -> Poll<FloodingOutput> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Poll::Output(output);
            }
            if !self.advance(now) {
                return Poll::Idle(earliest(self.running.as_ref().map(|running| running.deadline), self.due));
            }
        }
    }
}

#[cfg(test)]
mod tests;
