//! Decides when a node is lost after its agent has disconnected.
//!
//! A failure of the management network must not stop running work (fail static): the node keeps its
//! flows, groups and jobs, and its agent has a grace time to reconnect.
//!
//! A node is lost before the grace time ends if no switch receives its LLDP, which agents continue
//! to send without a controller. No node is lost while the controller is isolated, that is,
//! connected to neither agents nor switches. When it is connected again, every grace time starts
//! over, because the controller could not have noticed a reconnection before.

use cool_machine::{Duration, Machine, Poll, Time, earliest};
use std::collections::{BTreeMap, BTreeSet};

/// How long a disconnected node may be unreachable at all switches. Equal to the time within which
/// a ping must be answered.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(3);

/// An event that the driver reports.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// An agent has connected.
    Connected(&'a str),
    /// An agent has disconnected.
    Disconnected(&'a str),
    /// A node was removed for any other reason.
    Removed(&'a str),
    /// Reports which disconnected nodes are reachable at a switch, and whether any switch is
    /// connected.
    Reachability(&'a dyn Fn(&str) -> bool, bool),
}

/// Why a node is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// Both the agent's connection and the node's link are down.
    #[error(
        "its agent disconnected and no switch receives its LLDP: its link is down, or its agent has exited"
    )]
    Unreachable,
    /// The grace time has expired.
    #[error("its agent has been disconnected for {0:?}")]
    GraceExpired(Duration),
}

/// Reports that a node is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLost {
    /// The node's name.
    pub node: String,
    /// Why it is lost.
    pub why: LossReason,
}

#[derive(Clone, Copy, Debug)]
struct AwayAgent {
    since: Time,
    /// Time since which no switch has received the node's LLDP. `None` if a switch receives it.
    unreachable: Option<Time>,
}

/// All agents, and a grace timer for each that is disconnected.
#[derive(Debug)]
pub struct GraceTimers {
    grace: Duration,
    connected: BTreeSet<String>,
    away: BTreeMap<String, AwayAgent>,
    /// Whether any switch is connected.
    switches: bool,
    /// Time since which the controller has been connected to an agent or switch. `None` while it is
    /// isolated.
    connected_since: Option<Time>,
}

impl GraceTimers {
    /// Returns timers without agents. A disconnected agent has `grace` to reconnect.
    pub fn new(grace: Duration) -> GraceTimers {
        GraceTimers {
            grace,
            connected: BTreeSet::new(),
            away: BTreeMap::new(),
            switches: false,
            connected_since: None,
        }
    }

    /// Returns the time at which an agent disconnected, or `None` if it is connected.
    pub fn away_since(&self, node: &str) -> Option<Time> {
        self.away.get(node).map(|away| away.since)
    }

    /// Returns the time since which the controller has been connected to any agent or switch.
    /// `None` while it is isolated.
    pub fn connected_since(&self) -> Option<Time> {
        self.connected_since
    }

    /// Returns all disconnected agents, each with the time at which it disconnected.
    pub fn away(&self) -> impl Iterator<Item = (&str, Time)> {
        self.away.iter().map(|(node, away)| (node.as_str(), away.since))
    }

    /// Returns when a node will be lost, and why.
    fn loss(&self, connected_since: Time, away: &AwayAgent) -> (Time, LossReason) {
        let over = (away.since.max(connected_since) + self.grace, LossReason::GraceExpired(self.grace));
        match away.unreachable.map(|unreachable| unreachable.max(connected_since) + UNREACHABLE_TIMEOUT) {
            Some(at) if at < over.0 => (at, LossReason::Unreachable),
            _ => over,
        }
    }
}

impl Machine for GraceTimers {
    type Input<'a> = Input<'a>;
    type Output = NodeLost;

    fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Connected(node) => {
                self.away.remove(node);
                self.connected.insert(node.to_owned());
            }
            Input::Disconnected(node) => {
                self.connected.remove(node);
                self.away.entry(node.to_owned()).or_insert(AwayAgent { since: now, unreachable: None });
            }
            Input::Removed(node) => {
                self.connected.remove(node);
                self.away.remove(node);
            }
            Input::Reachability(node, switches) => {
                self.switches = switches;
                for (name, away) in &mut self.away {
                    away.unreachable = if node(name) { None } else { away.unreachable.or(Some(now)) };
                }
            }
        }
        let is_connected = self.switches || !self.connected.is_empty();
        self.connected_since = is_connected.then(|| self.connected_since.unwrap_or(now));
    }

    fn poll(&mut self, now: Time) -> Poll<NodeLost> {
        let Some(connected_since) = self.connected_since else { return Poll::Idle(None) };
        let mut next = None;
        for (node, away) in &self.away {
            let (at, why) = self.loss(connected_since, away);
            if at <= now {
                let node = node.clone();
                self.away.remove(&node);
                return Poll::Output(NodeLost { node, why });
            }
            next = earliest(next, Some(at));
        }
        Poll::Idle(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    /// h1 and h2 have connected and are reachable.
    fn two() -> GraceTimers {
        let mut timers = GraceTimers::new(GRACE);
        timers.handle(at(0), Input::Connected("h1"));
        timers.handle(at(0), Input::Connected("h2"));
        timers.handle(at(0), Input::Reachability(&|_| true, true));
        timers
    }

    fn lost(timers: &mut GraceTimers, now: Time) -> Vec<(String, LossReason)> {
        std::iter::from_fn(|| match timers.poll(now) {
            Poll::Output(NodeLost { node, why }) => Some((node, why)),
            Poll::Idle(_) => None,
        })
        .collect()
    }

    #[test]
    fn a_node_is_lost_only_if_its_grace_time_expires() {
        let mut timers = two();
        timers.handle(at(10), Input::Disconnected("h1"));
        timers.handle(at(11), Input::Disconnected("h2"));
        assert_eq!(timers.away().collect::<Vec<_>>(), [("h1", at(10)), ("h2", at(11))]);
        timers.handle(at(18), Input::Connected("h1"));
        assert_eq!(timers.poll(at(70)), Poll::Idle(Some(at(71))));
        assert_eq!(lost(&mut timers, at(71)), [("h2".to_owned(), LossReason::GraceExpired(GRACE))]);
        assert_eq!(timers.poll(at(999)), Poll::Idle(None));
    }

    #[test]
    fn a_node_unreachable_at_all_switches_is_lost_sooner() {
        let mut timers = two();
        timers.handle(at(10), Input::Disconnected("h1"));
        timers.handle(at(12), Input::Reachability(&|_| false, true));
        timers.handle(at(14), Input::Reachability(&|_| true, true));
        assert_eq!(timers.poll(at(20)), Poll::Idle(Some(at(70))));
        timers.handle(at(30), Input::Reachability(&|node| node != "h1", true));
        // Another unreachable node does not extend the time of h1.
        timers.handle(at(32), Input::Reachability(&|_| false, true));
        assert_eq!(lost(&mut timers, at(33)), [("h1".to_owned(), LossReason::Unreachable)]);
        assert_eq!(timers.away_since("h2"), None);
    }

    #[test]
    fn an_isolated_controller_loses_no_node_and_restarts_timers() {
        let mut timers = two();
        timers.handle(at(10), Input::Disconnected("h1"));
        timers.handle(at(10), Input::Disconnected("h2"));
        timers.handle(at(10), Input::Reachability(&|_| false, false));
        assert_eq!(timers.poll(at(600)), Poll::Idle(None));
        timers.handle(at(600), Input::Connected("h2"));
        assert_eq!(timers.poll(at(600)), Poll::Idle(Some(at(603))));
        timers.handle(at(601), Input::Reachability(&|_| true, true));
        assert_eq!(timers.poll(at(601)), Poll::Idle(Some(at(660))));
        timers.handle(at(605), Input::Connected("h1"));
        assert_eq!(timers.away().count(), 0);
    }

    #[test]
    fn a_removed_node_has_no_timer() {
        let mut timers = two();
        timers.handle(at(10), Input::Disconnected("h1"));
        timers.handle(at(11), Input::Removed("h1"));
        assert_eq!(timers.poll(at(999)), Poll::Idle(None));
    }
}
