//! The querier of multicast groups on networks without OpenFlow switches. Switches with IGMP or MLD
//! snooping forget the members of groups unless a querier asks for them, usually a router. If no
//! node hears one for some time, one of the nodes becomes the querier, in each network segment.

use super::GroupRegistry;
use crate::agents::{AgentRegistry, Session};
use crate::flooding::FloodingMonitor;
use cool_daemon::clock::Clock;
use cool_fabric::Fabric;
use cool_machine::{Duration, Time};
use cool_proto::control::controller_message::Body;
use cool_proto::control::{AppointQuerier, QuerierChanged};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Notify;
use tracing::info;

/// Time between two appointments, within which other nodes of the segment hear the first querier.
const APPOINTMENT_INTERVAL: Duration = Duration::from_secs(5);

/// The nodes that listen for queriers, and those that are appointed.
#[derive(Debug)]
pub struct Queriers {
    clock: Clock,
    agents: Arc<AgentRegistry>,
    table: Mutex<QuerierTable>,
    changed: Notify,
}

/// The state of the nodes, by the number of the session.
#[derive(Debug)]
struct QuerierTable {
    /// Time without a querier after which a node is appointed.
    patience: Duration,
    nodes: BTreeMap<u32, ListeningNode>,
    /// When the next node may be appointed.
    next_appointment: Time,
}

#[derive(Debug)]
struct ListeningNode {
    heard: Option<IpAddr>,
    /// Since when no querier is heard.
    silent_since: Time,
    is_appointed: bool,
}

/// The consequences of a report.
#[derive(Debug, PartialEq, Eq)]
struct RecordedReport {
    /// The node hears a querier, and heard none before.
    hears_first: bool,
    /// The appointment of the node ends.
    is_dismissed: bool,
}

impl QuerierTable {
    fn new(patience: Duration) -> QuerierTable {
        QuerierTable { patience, nodes: BTreeMap::new(), next_appointment: Time::ZERO }
    }

    /// Records the report of a node that can query.
    fn record(&mut self, now: Time, number: u32, heard: Option<IpAddr>) -> RecordedReport {
        let fresh = ListeningNode { heard: None, silent_since: now, is_appointed: false };
        let node = self.nodes.entry(number).or_insert(fresh);
        if heard.is_none() && node.heard.is_some() {
            node.silent_since = now;
        }
        let hears_first = heard.is_some() && node.heard.is_none();
        node.heard = heard;
        let is_dismissed = heard.is_some() && std::mem::take(&mut node.is_appointed);
        RecordedReport { hears_first, is_dismissed }
    }

    /// Removes a node. If it was the querier, nodes that heard it need not wait for another one.
    fn remove(&mut self, now: Time, number: u32) {
        if !self.nodes.remove(&number).is_some_and(|node| node.is_appointed) {
            return;
        }
        let overdue = Time::ZERO + now.since(Time::ZERO).saturating_sub(self.patience);
        for node in self.nodes.values_mut().filter(|node| node.heard.is_some_and(|ip| ip.is_unspecified())) {
            (node.heard, node.silent_since) = (None, overdue);
        }
    }

    /// Appoints the first node that has heard no querier for too long, and returns it.
    /// `is_eligible` must return whether a node is on a network without OpenFlow switches.
    fn appoint(&mut self, now: Time, is_eligible: impl Fn(u32) -> bool) -> Option<u32> {
        let patience = self.patience;
        let is_due = |node: &ListeningNode| node.is_silent() && node.silent_since + patience <= now;
        if self.next_appointment > now {
            return None;
        }
        let (number, node) =
            self.nodes.iter_mut().find(|(number, node)| is_due(node) && is_eligible(**number))?;
        node.is_appointed = true;
        self.next_appointment = now + APPOINTMENT_INTERVAL;
        Some(*number)
    }

    /// Returns when a node may have to be appointed next.
    fn deadline(&self) -> Option<Time> {
        let due = self.nodes.values().filter(|node| node.is_silent()).map(|node| node.silent_since);
        Some((due.min()? + self.patience).max(self.next_appointment))
    }
}

impl ListeningNode {
    fn is_silent(&self) -> bool {
        self.heard.is_none() && !self.is_appointed
    }
}

impl Queriers {
    /// Returns the state without nodes. A node becomes querier after `patience` without one.
    pub fn new(agents: Arc<AgentRegistry>, patience: Duration) -> Queriers {
        let table = Mutex::new(QuerierTable::new(patience));
        Queriers { clock: Clock::start(), agents, table, changed: Notify::new() }
    }

    /// Handles a node's report on the querier that it hears. Returns whether it hears one for the
    /// first time, so that multicasts may arrive now that did not before.
    pub fn record(&self, session: &Session, report: &QuerierChanged) -> bool {
        if !report.can_query {
            return false;
        }
        let heard = report.ip.parse().ok();
        let recorded = self.table.lock().record(self.clock.now(), session.number, heard);
        if recorded.is_dismissed {
            info!(
                node = session.agent.name,
                querier = report.ip,
                "another querier is heard, so the node queries no longer"
            );
            // If the session has ended, so has the appointment.
            let _ = session.send(Body::AppointQuerier(AppointQuerier { appointed: false }));
        }
        self.changed.notify_one();
        recorded.hears_first
    }

    /// Removes a node that is lost.
    pub fn remove(&self, session: &Session) {
        self.table.lock().remove(self.clock.now(), session.number);
        self.changed.notify_one();
    }

    /// Returns whether a node is the querier of its network segment.
    pub fn is_appointed(&self, number: u32) -> bool {
        self.table.lock().nodes.get(&number).is_some_and(|node| node.is_appointed)
    }

    /// Appoints queriers where they are needed, and lets the groups try multicast and the nodes
    /// examine the network again then. Never returns.
    pub async fn run(
        self: Arc<Queriers>,
        network: Arc<dyn Fabric>,
        groups: Arc<GroupRegistry>,
        flooding: Arc<FloodingMonitor>,
    ) {
        loop {
            let deadline = self.table.lock().deadline();
            tokio::select! {
                () = self.clock.wait(deadline) => {
                    if self.appoint(&*network) {
                        groups.retry_multicast();
                        flooding.on_network_change();
                    }
                }
                () = self.changed.notified() => {}
            }
        }
    }

    /// Appoints a querier if one is needed. Returns whether it has.
    fn appoint(&self, network: &dyn Fabric) -> bool {
        let topology = network.topology();
        let is_eligible = |session: &Arc<Session>| topology.reported_racks.contains_key(&session.agent.name);
        let eligible: BTreeMap<u32, Arc<Session>> =
            self.agents.all().into_iter().filter(is_eligible).map(|s| (s.number, s)).collect();
        let now = self.clock.now();
        let mut table = self.table.lock();
        let appointed = table.appoint(now, |number| eligible.contains_key(&number));
        let Some(session) = appointed.and_then(|number| eligible.get(&number)) else {
            // Nodes may be located later.
            table.next_appointment = table.next_appointment.max(now + APPOINTMENT_INTERVAL);
            return false;
        };
        info!(node = session.agent.name, "no querier of multicast groups is heard, so the node queries");
        // If the session has ended, the node is removed soon.
        let _ = session.send(Body::AppointQuerier(AppointQuerier { appointed: true }));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    /// Returns a table with the nodes 1, 2 and 3, which hear no querier.
    fn table() -> QuerierTable {
        let mut table = QuerierTable::new(Duration::from_secs(130));
        for node in [1, 2, 3] {
            table.record(at(0), node, None);
        }
        table
    }

    const ROUTER: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 254)));
    const COOL: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));

    #[test]
    fn one_node_of_each_silent_segment_becomes_querier() {
        let mut table = table();
        assert_eq!(table.deadline(), Some(at(130)));
        assert_eq!(table.appoint(at(129), |_| true), None);
        assert_eq!(table.appoint(at(130), |node| node > 1), Some(2));
        assert_eq!((table.appoint(at(134), |_| true), table.deadline()), (None, Some(at(135))));
        // Node 1 hears node 2, and node 3 is in another segment.
        let recorded = RecordedReport { hears_first: true, is_dismissed: false };
        assert_eq!(table.record(at(131), 1, COOL), recorded);
        assert_eq!(table.appoint(at(135), |_| true), Some(3));
        assert_eq!((table.appoint(at(1000), |_| true), table.deadline()), (None, None));
    }

    #[test]
    fn a_router_ends_the_appointment_until_it_is_silent() {
        let mut table = table();
        assert_eq!(table.appoint(at(130), |_| true), Some(1));
        let dismissed = [1, 2, 3].map(|node| table.record(at(140), node, ROUTER).is_dismissed);
        assert_eq!(dismissed, [true, false, false]);
        assert_eq!(table.deadline(), None);
        for node in [1, 2, 3] {
            table.record(at(500), node, None);
        }
        assert_eq!((table.appoint(at(629), |_| true), table.appoint(at(630), |_| true)), (None, Some(1)));
    }

    #[test]
    fn another_node_replaces_a_lost_querier_at_once() {
        let mut table = table();
        assert_eq!(table.appoint(at(130), |_| true), Some(1));
        table.record(at(131), 2, COOL);
        table.record(at(131), 3, ROUTER);
        table.remove(at(200), 3);
        assert_eq!(table.appoint(at(201), |_| true), None);
        table.remove(at(201), 1);
        assert_eq!(table.appoint(at(201), |_| true), Some(2));
    }
}
