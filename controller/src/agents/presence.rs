//! Tracks which agents are connected and reports lost nodes.
//!
//! It drives [`GraceTimers`] with events from sessions and the network. The caller must clean up
//! after a lost node.

use super::grace_timers::{GraceTimers, Input, NodeLost};
use cool_daemon::clock::Clock;
use cool_fabric::{Fabric, TopologySnapshot};
use cool_machine::{Machine, Poll, Time};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Connection state of all agents.
#[derive(Debug)]
pub struct AgentPresence {
    /// Clock of the timers.
    clock: Clock,
    timers: Mutex<GraceTimers>,
    /// Signals a change that may have moved the next deadline.
    changed: Notify,
    /// Time since which the controller has been connected to any agent or switch.
    connected_since: watch::Sender<Option<Instant>>,
}

impl AgentPresence {
    /// Returns a tracker without agents. A disconnected agent has `grace` to reconnect.
    pub fn new(grace: Duration) -> AgentPresence {
        let timers = Mutex::new(GraceTimers::new(grace));
        AgentPresence {
            clock: Clock::start(),
            timers,
            changed: Notify::new(),
            connected_since: watch::Sender::default(),
        }
    }

    /// Returns a receiver of the time since which the controller has been connected to any agent or
    /// switch. The value is `None` while the controller is isolated.
    pub fn connected_since(&self) -> watch::Receiver<Option<Instant>> {
        self.connected_since.subscribe()
    }

    /// Records that an agent has connected.
    pub fn connected(&self, node: &str) {
        self.record(Input::Connected(node));
    }

    /// Records that an agent has disconnected.
    pub fn disconnected(&self, node: &str) {
        self.record(Input::Disconnected(node));
    }

    /// Records that a node was removed.
    pub fn removed(&self, node: &str) {
        self.record(Input::Removed(node));
    }

    /// Returns for how long an agent has been disconnected, or `None` if it is connected.
    pub fn away_for(&self, node: &str) -> Option<Duration> {
        let since = self.timers.lock().away_since(node)?;
        Some(self.clock.now().since(since))
    }

    /// Returns a warning for each disconnected agent.
    pub fn warnings(&self) -> Vec<String> {
        let (timers, now) = (self.timers.lock(), self.clock.now());
        let warning = |(node, since): (&str, Time)| {
            let seconds = now.since(since).as_secs();
            format!(
                "node {node}: its agent has been disconnected for {seconds} s; the node keeps its flows, groups and jobs"
            )
        };
        timers.away().map(warning).collect()
    }

    /// Waits until a node is lost because its agent was disconnected.
    pub async fn lost_node(&self, network: &dyn Fabric) -> NodeLost {
        let mut snapshots = network.watch();
        loop {
            self.check_switches(&snapshots.borrow_and_update());
            let deadline = match self.timers.lock().poll(self.clock.now()) {
                Poll::Output(lost_node) => return lost_node,
                Poll::Idle(deadline) => deadline,
            };
            tokio::select! {
                () = self.clock.wait(deadline) => {}
                () = self.changed.notified() => {}
                // After the fabric has stopped, there are no more changes.
                Ok(()) = snapshots.changed() => {}
            }
        }
    }

    /// Reports which nodes are reachable. Without any connected switch, every node counts as
    /// reachable, because no switch could report its LLDP.
    fn check_switches(&self, network: &TopologySnapshot) {
        let switches = network.switches.iter().any(|switch| switch.connected);
        let located = |node: &str| network.node(node).is_some_and(|node| node.location.is_some());
        self.handle(Input::Reachability(&|node| !switches || located(node), switches));
    }

    fn record(&self, input: Input<'_>) {
        self.handle(input);
        self.changed.notify_one();
    }

    fn handle(&self, input: Input<'_>) {
        let mut timers = self.timers.lock();
        timers.handle(self.clock.now(), input);
        let connected_since = timers.connected_since().map(|since| self.clock.instant(since));
        self.connected_since
            .send_if_modified(|known| std::mem::replace(known, connected_since) != connected_since);
    }
}
