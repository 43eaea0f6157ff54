//! Discovery of the network: a machine that sends and receives LLDP, and keeps the [`Graph`] of the
//! network.
//!
//! In every interval, which is longer in large networks, it announces each port of connected
//! switches that is new or leads to another switch, and some of the other ports in turn. A link
//! that appears at one of these is therefore found a little later. The announcement that a port
//! receives makes its sender the port's neighbor, until three announcements in a row are missed or
//! the port goes down. Two ports that are each other's neighbors form a link. A registered node is
//! located at the port that receives its name and address. A port has only one neighbor at a time:
//! other announcements are reported, but not believed.
//!
//! A silent switch may be disconnected from the controller and still forward packets. An interval
//! therefore counts as missed only for ports that the switch could have reported. A switch that
//! answers without handing in frames is connected, so its links are silent. If that holds for all
//! switches, the connection to them is more likely to blame. After the end of its session, a switch
//! keeps its place for a grace time. If it has really failed, the ports of its neighbors go down
//! and its links vanish, and a switch without links is lost after three intervals. While no switch
//! has a session, the controller itself is disconnected, and no switch is lost.
//!
//! If packet-ins of a switch wait for longer than an interval, this program is behind and cannot
//! tell which ports are silent. It then defers that decision, but not forever.
//!
//! An announcement must be authentic and fresh to be believed. That of a switch must be one of the
//! last few that this machine made for the port, and that of a node must be newer than all before.
//! Each is believed once only. Frames that a host captured and sends again, or elsewhere, are
//! therefore refused and reported. A host can still forward a frame to another host before any
//! other port receives it. For this reason a port of a node never becomes part of a link: the
//! node's announcement outweighs that of any switch.

mod checks;
mod silent_switches;
mod warning;

use crate::lldp::Announcement;
use crate::{DatapathId, Graph, Key, Link, MacAddr, Port};
use checks::SentAnnouncements;
use cool_machine::{Duration, Machine, Poll, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use checks::RefusedFrames;
pub use warning::{Cause, Warning};

/// A neighbor is forgotten when this many announcements in a row were missed. The interval in which
/// its last announcement arrived does not count.
const MISSED_MAX: u8 = 3;
/// A port that leads to no switch is announced in each of its first 8 intervals, and then in one of
/// 8.
const SPARSE_PERIOD: u32 = 8;
/// Minimum time per announcement. If more ports are announced than fit into an interval at this
/// rate, the interval is extended, because announcements alone would keep the controller busy in a
/// large network (docs/measurements/scale.md).
const ANNOUNCEMENT_TIME_MIN: Duration = Duration::from_micros(100);
/// Number of intervals that a warning stays after its cause was last seen.
const WARNING_INTERVALS: u8 = 10;

/// Input of the machine.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A switch has a session. These of its ports are up; all others are down.
    SwitchUp {
        /// The switch.
        switch: DatapathId,
        /// Number and address of each port that is up.
        ports: &'a [(u32, MacAddr)],
    },
    /// The session of a switch has ended.
    SwitchDown(DatapathId),
    /// A port is up.
    PortUp(Port, MacAddr),
    /// A port is down or was removed.
    PortDown(Port),
    /// A port has received a frame.
    Received(Port, &'a [u8]),
    /// A switch has sent something, and all frames that it handed in before have been passed to
    /// this machine.
    CaughtUp(DatapathId),
    /// A node is registered with this name and address. The key authenticates its announcements.
    NodeRegistered(&'a str, MacAddr, &'a Key),
    /// A node is no longer registered.
    NodeUnregistered(&'a str),
    /// A node states that it receives the announcements of this port, or of none. It is located
    /// there unless a port receives its own announcement. For networks in which switches hand in no
    /// frames.
    NodeReported(&'a str, Option<Port>),
}

/// Output of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// This frame must be sent out of this port.
    Announce(Port, Vec<u8>),
    /// A link was found.
    LinkUp(Link),
    /// A link was lost.
    LinkDown(Link),
    /// A switch was found.
    SwitchFound(DatapathId),
    /// A switch was lost, together with its links and nodes.
    SwitchLost(DatapathId),
    /// A node was located at this port.
    NodeLocated(String, Port),
    /// A node is no longer at this port.
    NodeLost(String, Port),
    /// A fault that an operator should look at. It is reported once, and not again while it lasts.
    Warning(Warning),
}

/// A port that is up.
#[derive(Clone, Debug)]
struct DiscoveredPort {
    mac: MacAddr,
    neighbor: Option<Announcement>,
    /// Number of intervals that have ended since the last announcement arrived. It is 1 at the end
    /// of the interval in which an announcement arrived.
    missed: u8,
    /// Intervals since the port came up.
    age: u32,
    sent: SentAnnouncements,
    /// The port of a switch of which an announcement has arrived since this port came up, the last
    /// one of several.
    heard_switch: Option<Port>,
}

impl DiscoveredPort {
    /// Ends an interval. Returns whether the port must be announced now.
    fn end_interval(&mut self, port: Port) -> bool {
        self.age = self.age.wrapping_add(1);
        let linked = matches!(self.neighbor, Some(Announcement::Switch { .. }));
        // Adding the port number spreads old ports over the intervals.
        linked
            || self.age <= SPARSE_PERIOD
            || self.age.wrapping_add(port.number).is_multiple_of(SPARSE_PERIOD)
    }
}

/// A registered node.
#[derive(Clone, Debug)]
struct RegisteredNode {
    mac: MacAddr,
    key: Key,
    /// Number of its last announcement.
    last: u64,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Discovery {
    interval: Duration,
    /// Number of intervals that a switch without a session stays.
    grace: u32,
    key: Key,
    /// Number of the last announcement made.
    number: u64,
    refused: RefusedFrames,
    /// When to announce next; `None` until the first input.
    next: Option<Time>,
    /// Ports that are up, of connected switches and of those that may return.
    ports: BTreeMap<Port, DiscoveredPort>,
    /// Switches without a session, each with the number of intervals since its session ended.
    absent: BTreeMap<DatapathId, u32>,
    /// Switches that have handed in a frame in this interval.
    vocal: BTreeSet<DatapathId>,
    /// Switches that have sent something in this interval and of which everything has been
    /// processed.
    caught_up: BTreeSet<DatapathId>,
    /// Switches with unprocessed frames, each with the number of intervals since it was caught up.
    behind: BTreeMap<DatapathId, u8>,
    registered: BTreeMap<String, RegisteredNode>,
    /// For each name of a node, the ports that have a neighbor of this name.
    announced_at: BTreeMap<String, BTreeSet<Port>>,
    /// The ports whose announcements nodes state that they receive.
    reported_at: BTreeMap<String, Port>,
    graph: Graph,
    /// One warning per port and kind of cause, so that their number is bounded, each with the
    /// number of intervals for which it stays.
    warnings: BTreeMap<(Port, u8), (Warning, u8)>,
    outputs: VecDeque<Output>,
    revision: u64,
}

impl Discovery {
    /// Creates a machine that announces every `interval`. `key` authenticates the announcements, so
    /// it must be secret. A switch without a session stays for `grace`.
    pub fn new(interval: Duration, grace: Duration, key: Key) -> Discovery {
        let intervals = grace.as_nanos().div_ceil(interval.as_nanos().max(1));
        Discovery {
            interval,
            grace: u32::try_from(intervals).unwrap_or(u32::MAX),
            key,
            number: 0,
            refused: RefusedFrames::default(),
            next: None,
            ports: BTreeMap::new(),
            absent: BTreeMap::new(),
            vocal: BTreeSet::new(),
            caught_up: BTreeSet::new(),
            behind: BTreeMap::new(),
            registered: BTreeMap::new(),
            announced_at: BTreeMap::new(),
            reported_at: BTreeMap::new(),
            graph: Graph::default(),
            warnings: BTreeMap::new(),
            outputs: VecDeque::new(),
            revision: 0,
        }
    }

    /// Returns the discovered network: links confirmed in both directions, and registered nodes at
    /// their ports.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the number of refused frames.
    pub fn refused(&self) -> RefusedFrames {
        self.refused
    }

    /// Returns the number of changes of the graph and of the warnings so far.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the current warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.warnings.values().map(|(warning, _)| warning)
    }

    /// Returns the port of a switch of which a port has received an authentic announcement since it
    /// came up, even if no link was found: the port may be connected to its own switch, or only one
    /// direction may work.
    pub fn heard_switch(&self, port: Port) -> Option<Port> {
        self.ports.get(&port)?.heard_switch
    }

    /// Returns all ports for which there is a [`heard_switch`](Discovery::heard_switch), each with
    /// it.
    pub fn heard_switches(&self) -> impl Iterator<Item = (Port, Port)> {
        self.ports.iter().filter_map(|(port, entry)| Some((*port, entry.heard_switch?)))
    }

    fn switch_up(&mut self, switch: DatapathId, ports: &[(u32, MacAddr)]) {
        self.absent.remove(&switch);
        if !self.graph.contains(switch) {
            self.graph.add_switch(switch);
            self.outputs.push_back(Output::SwitchFound(switch));
        }
        let up: BTreeSet<u32> = ports.iter().map(|(number, _)| *number).collect();
        for port in self.ports_of(switch) {
            if !up.contains(&port.number) {
                self.port_down(port);
            }
        }
        for (number, mac) in ports {
            self.port_up(Port { switch, number: *number }, *mac);
        }
    }

    fn ports_of(&self, switch: DatapathId) -> Vec<Port> {
        let all = Port { switch, number: 0 }..=Port { switch, number: u32::MAX };
        self.ports.range(all).map(|(port, _)| *port).collect()
    }

    fn port_up(&mut self, port: Port, mac: MacAddr) {
        // The port of an unknown switch would never be removed.
        if !self.graph.contains(port.switch) {
            return;
        }
        let sent = SentAnnouncements::after(self.number);
        let new = DiscoveredPort { mac, neighbor: None, missed: 0, age: 0, sent, heard_switch: None };
        self.ports.entry(port).or_insert(new).mac = mac;
        self.announce(port);
        self.locate_reported(port);
    }

    fn port_down(&mut self, port: Port) {
        if let Some(peer) = self.graph.peer(port) {
            // The other end would keep this port as its neighbor until three announcements are
            // missed. It forgets the port now, so that a new neighbor is believed at once.
            self.forget_neighbor(peer);
        }
        self.forget_neighbor(port);
        self.ports.remove(&port);
        self.locate_reported(port);
    }

    /// Locates the nodes that state to be at a port, after the port has changed.
    fn locate_reported(&mut self, port: Port) {
        let here = self.reported_at.iter().filter(|(_, at)| **at == port);
        for name in here.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.locate(&name);
        }
    }

    fn announce(&mut self, port: Port) {
        if self.absent.contains_key(&port.switch) {
            return;
        }
        let Some(entry) = self.ports.get_mut(&port) else { return };
        self.number += 1;
        entry.sent.record(self.number);
        let announcement = Announcement::Switch { switch: port.switch, port: port.number };
        if let Ok(frame) = announcement.encode(entry.mac, &self.key, self.number) {
            self.outputs.push_back(Output::Announce(port, frame));
        }
    }

    fn receive(&mut self, port: Port, frame: &[u8]) {
        if !self.ports.contains_key(&port) {
            return;
        }
        self.vocal.insert(port.switch);
        let announcement = match self.check(port, frame) {
            Ok(Some(announcement)) => announcement,
            Ok(None) => return,
            Err(cause) => {
                self.refused.count(&cause);
                return self.warn(port, cause);
            }
        };
        let Some(entry) = self.ports.get_mut(&port) else { return };
        if let Announcement::Switch { switch, port: number } = announcement {
            entry.heard_switch = Some(Port { switch, number });
        }
        match (&entry.neighbor, &announcement) {
            (Some(known), _) if *known == announcement => {
                entry.missed = 0;
                return self.check_node(port);
            }
            // The host at this port forwarded frames of a switch. They do not count any longer,
            // because the host's agent is heard.
            (Some(Announcement::Switch { .. }), Announcement::Node { .. }) => self.forget_neighbor(port),
            (Some(known), _) => {
                let first = known.clone();
                return self.warn(port, Cause::SecondNeighbor { first, second: announcement });
            }
            (None, _) => {}
        }
        let Some(entry) = self.ports.get_mut(&port) else { return };
        entry.missed = 0;
        entry.neighbor = Some(announcement.clone());
        match announcement {
            Announcement::Switch { switch, .. } if switch == port.switch => self.warn(port, Cause::OwnSwitch),
            Announcement::Switch { .. } => {
                // The other end may have come up after this port was last announced. The port is
                // therefore announced again.
                self.announce(port);
                self.check_link(port);
            }
            Announcement::Node { name, .. } => {
                self.announced_at.entry(name.clone()).or_default().insert(port);
                self.locate(&name);
                self.check_node(port);
            }
        }
    }

    fn forget_neighbor(&mut self, port: Port) {
        let Some(neighbor) = self.ports.get_mut(&port).and_then(|entry| entry.neighbor.take()) else {
            return;
        };
        match neighbor {
            Announcement::Switch { .. } => self.check_link(port),
            Announcement::Node { name, .. } => {
                if let Some(ports) = self.announced_at.get_mut(&name) {
                    ports.remove(&port);
                    if ports.is_empty() {
                        self.announced_at.remove(&name);
                    }
                }
                self.locate(&name);
            }
        }
    }

    /// Returns the port of a switch that is this port's neighbor, or `None` if the neighbor is a
    /// node or unknown.
    fn neighbor(&self, port: Port) -> Option<Port> {
        match self.ports.get(&port)?.neighbor {
            Some(Announcement::Switch { switch, port: number }) => Some(Port { switch, number }),
            _ => None,
        }
    }

    /// Adds or removes the link at a port, according to the neighbors of both ends.
    fn check_link(&mut self, port: Port) {
        let mutual = self.neighbor(port).filter(|peer| self.neighbor(*peer) == Some(port));
        if self.graph.peer(port) == mutual {
            return;
        }
        if let Some(link) = self.graph.unlink(port) {
            self.outputs.push_back(Output::LinkDown(link));
        }
        if let Some(peer) = mutual.filter(|peer| peer.switch != port.switch) {
            self.graph.link(port, peer);
            self.outputs.push_back(Output::LinkUp(Link::new(port, peer)));
        }
    }

    /// Locates a node, according to its registration and the announcements received. A node keeps
    /// its place while the announcements confirm it.
    fn locate(&mut self, name: &str) {
        let now = self.graph.host(name);
        let registered = self.registered.get(name).map(|node| &node.mac);
        let fits = |port: &Port| match self.ports.get(port).and_then(|entry| entry.neighbor.as_ref()) {
            Some(Announcement::Node { name: received, mac }) => received == name && Some(mac) == registered,
            _ => false,
        };
        if now.as_ref().is_some_and(fits) {
            return;
        }
        let announced = self.announced_at.get(name).and_then(|ports| ports.iter().find(|p| fits(p)).copied());
        let is_free = |port: &Port| self.ports.contains_key(port) && self.graph.peer(*port).is_none();
        let reported =
            self.reported_at.get(name).copied().filter(|port| registered.is_some() && is_free(port));
        let found = announced.or(reported);
        if found == now {
            return;
        }
        if let Some(port) = self.graph.displace(name) {
            self.outputs.push_back(Output::NodeLost(name.to_owned(), port));
        }
        if let Some(port) = found {
            self.graph.place(name, port);
            self.outputs.push_back(Output::NodeLocated(name.to_owned(), port));
        }
    }

    /// Warns if the node heard at a port is registered but not located there.
    fn check_node(&mut self, port: Port) {
        let neighbor = self.ports.get(&port).and_then(|entry| entry.neighbor.as_ref());
        let Some(Announcement::Node { name, mac }) = neighbor else { return };
        let at = self.graph.host(name);
        // This is the usual case. The node would not be located here if its address were wrong.
        if at == Some(port) {
            return;
        }
        let (name, received) = (name.clone(), *mac);
        match (self.registered.get(&name).map(|node| node.mac), at) {
            (Some(registered), _) if registered != received => {
                self.warn(port, Cause::WrongAddress { name, received, registered });
            }
            (_, Some(at)) => self.warn(port, Cause::NodeElsewhere { name, at }),
            _ => {}
        }
    }

    fn warn(&mut self, port: Port, cause: Cause) {
        let kind = match cause {
            Cause::Unreadable(_) => 0,
            Cause::SecondNeighbor { .. } => 1,
            Cause::OwnSwitch => 2,
            Cause::NodeElsewhere { .. } => 3,
            Cause::WrongAddress { .. } => 4,
            Cause::Forged(_) => 5,
            Cause::Replayed(_) => 6,
            Cause::Relayed { .. } => 7,
        };
        let warning = Warning { port, cause };
        let before = self.warnings.insert((port, kind), (warning.clone(), WARNING_INTERVALS));
        if before.as_ref().is_none_or(|(before, _)| *before != warning) {
            self.revision += 1;
        }
        if before.is_none() {
            self.outputs.push_back(Output::Warning(warning));
        }
    }

    fn node_unregistered(&mut self, name: &str) {
        self.registered.remove(name);
        self.reported_at.remove(name);
        self.locate(name);
    }

    fn node_reported(&mut self, name: &str, port: Option<Port>) {
        match port.filter(|_| self.registered.contains_key(name)) {
            Some(port) => drop(self.reported_at.insert(name.to_owned(), port)),
            None => drop(self.reported_at.remove(name)),
        }
        self.locate(name);
    }

    /// Ends an interval: ages the neighbors, then announces ports. Returns how many ports are
    /// announced.
    ///
    /// Age is counted in calls of this function, not in time, because no announcement is missed
    /// while this program does not run.
    fn tick(&mut self) -> u32 {
        let (vocal, caught_up) = (std::mem::take(&mut self.vocal), std::mem::take(&mut self.caught_up));
        let unprocessed = self.unprocessed(&vocal, &caught_up);
        let reporting = silent_switches::reporting(&vocal, &caught_up);
        let mut silent = Vec::new();
        let mut due = Vec::new();
        for (port, entry) in &mut self.ports {
            // Earlier announcements have not been processed yet. Further ones would only queue
            // behind them, and make them too old to be believed ([`SentAnnouncements`]).
            if entry.concerns(*port, &unprocessed) {
                continue;
            }
            if entry.end_interval(*port) {
                due.push(*port);
            } else {
                // The port is not announced, but its earlier announcements must still become too
                // old.
                self.number += 1;
                entry.sent.record(self.number);
            }
            if entry.neighbor.is_some() && !entry.could_not_report(*port, &reporting) {
                entry.missed += 1;
                if entry.missed > MISSED_MAX {
                    silent.push(*port);
                }
            }
        }
        for port in silent {
            self.forget_neighbor(port);
        }
        for switch in self.lost_switches() {
            for port in self.ports_of(switch) {
                self.port_down(port);
            }
            self.absent.remove(&switch);
            self.graph.remove_switch(switch);
            self.outputs.push_back(Output::SwitchLost(switch));
        }
        let warnings = self.warnings.len();
        self.warnings.retain(|_, (_, left)| {
            *left -= 1;
            *left > 0
        });
        self.revision += u64::from(self.warnings.len() < warnings);
        let announced = u32::try_from(due.len()).unwrap_or(u32::MAX);
        for port in due {
            self.announce(port);
        }
        announced
    }
}

impl Machine for Discovery {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input<'_>) {
        self.next.get_or_insert(now + self.interval);
        match input {
            Input::SwitchUp { switch, ports } => self.switch_up(switch, ports),
            Input::SwitchDown(switch) => self.session_ended(switch),
            Input::PortUp(port, mac) => self.port_up(port, mac),
            Input::PortDown(port) => self.port_down(port),
            Input::Received(port, frame) => self.receive(port, frame),
            Input::CaughtUp(switch) => {
                self.caught_up.insert(switch);
            }
            Input::NodeRegistered(name, mac, key) => {
                let before = self.registered.get(name).filter(|node| node.key == *key);
                let last = before.map_or(0, |node| node.last);
                self.registered.insert(name.to_owned(), RegisteredNode { mac, key: key.clone(), last });
                self.locate(name);
                for port in self.announced_at.get(name).cloned().unwrap_or_default() {
                    self.check_node(port);
                }
            }
            Input::NodeUnregistered(name) => self.node_unregistered(name),
            Input::NodeReported(name, port) => self.node_reported(name, port),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        if self.outputs.is_empty() && self.next.is_some_and(|next| next <= now) {
            let announced = self.tick();
            self.next = Some(now + self.interval.max(ANNOUNCEMENT_TIME_MIN * announced));
        }
        match self.outputs.pop_front() {
            Some(output) => {
                // Every output except an announcement reports a change.
                self.revision += u64::from(!matches!(output, Output::Announce(..)));
                Poll::Output(output)
            }
            None => Poll::Idle(self.next),
        }
    }
}

#[cfg(test)]
mod tests;
