//! Which agents are away, for how long, and which nodes are gone for it: drives [`Absences`] with what sessions and the network
//! tell. What follows when a node is gone is the caller's.

use super::absence::{Absences, Gone, Input};
use cool_daemon::clock::Clock;
use cool_fabric::{Fabric, TopologySnapshot};
use cool_machine::{Machine, Poll, Time};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Who is here and who is away.
#[derive(Debug)]
pub struct Attendance {
    /// The time of its machine.
    clock: Clock,
    absences: Mutex<Absences>,
    /// Something has happened: the next deadline may be another.
    changed: Notify,
    /// Since when anybody is heard.
    hearing: watch::Sender<Option<Instant>>,
}

impl Attendance {
    /// Nobody has come yet. Whoever is away has so long to come back.
    pub fn new(grace: Duration) -> Attendance {
        let absences = Mutex::new(Absences::new(grace));
        Attendance {
            clock: Clock::start(),
            absences,
            changed: Notify::new(),
            hearing: watch::Sender::default(),
        }
    }

    /// Since when the controller hears anybody, agents or switches; none while it is cut off itself.
    pub fn hearing(&self) -> watch::Receiver<Option<Instant>> {
        self.hearing.subscribe()
    }

    /// An agent has a connection.
    pub fn here(&self, node: &str) {
        self.take(Input::Here(node));
    }

    /// An agent has none any more.
    pub fn away(&self, node: &str) {
        self.take(Input::Away(node));
    }

    /// A node is gone.
    pub fn left(&self, node: &str) {
        self.take(Input::Left(node));
    }

    /// For how long an agent has been away, if it is.
    pub fn away_for(&self, node: &str) -> Option<Duration> {
        let since = self.absences.lock().since(node)?;
        Some(self.clock.now().since(since))
    }

    /// What to say of agents that are away, to whoever looks at the network.
    pub fn warnings(&self) -> Vec<String> {
        let (absences, now) = (self.absences.lock(), self.clock.now());
        let warning = |(node, since): (&str, Time)| {
            let seconds = now.since(since).as_secs();
            format!("node {node}: its agent has been away for {seconds} s; the node keeps what it has")
        };
        absences.all().map(warning).collect()
    }

    /// Waits until a node is gone since its agent was away.
    pub async fn gone(&self, network: &dyn Fabric) -> Gone {
        let mut snapshots = network.watch();
        loop {
            self.look(&snapshots.borrow_and_update());
            let deadline = match self.absences.lock().poll(self.clock.now()) {
                Poll::Output(gone) => return gone,
                Poll::Idle(deadline) => deadline,
            };
            tokio::select! {
                () = self.clock.wait(deadline) => {}
                () = self.changed.notified() => {}
                // A network that has ended changes no more.
                Ok(()) = snapshots.changed() => {}
            }
        }
    }

    /// What switches hear. Where there are none, that none hears a node means nothing.
    fn look(&self, network: &TopologySnapshot) {
        let switches = network.switches.iter().any(|switch| switch.connected);
        let located = |node: &str| network.node(node).is_some_and(|node| node.location.is_some());
        self.handle(Input::Heard(&|node| !switches || located(node), switches));
    }

    fn take(&self, input: Input<'_>) {
        self.handle(input);
        self.changed.notify_one();
    }

    fn handle(&self, input: Input<'_>) {
        let mut absences = self.absences.lock();
        absences.handle(self.clock.now(), input);
        let hearing = absences.hearing().map(|since| self.clock.instant(since));
        self.hearing.send_if_modified(|known| std::mem::replace(known, hearing) != hearing);
    }
}
