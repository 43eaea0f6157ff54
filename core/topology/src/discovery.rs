//! Discovery: a machine that finds the network by LLDP and keeps the [`Graph`] of it.
//!
//! Every interval, which in large networks is longer, it announces each port of each connected switch that is new or has another switch at it, and some of the
//! others in turn: a link that comes there by itself is found a little later. What is heard at a port is the port's
//! neighbour until three announcements in a row have been missed, or the port goes down. Two ports that are
//! each other's neighbours are a link. A registered node is located at the port that hears its name and
//! address. A port has one neighbour at a time: what else it hears is reported, not believed.
//!
//! A switch that says nothing may be cut off from here, and well forward without its controller: nothing that only it could tell is
//! missed. One that answers and has no frame to hand in is not cut off, its links are silent; unless all are so, which tells more of the way here. When its session ends, it keeps its place for a grace time. If it is really gone, its neighbours' ports go down and its links with them, and one without links
//! is lost after three intervals. While no switch has a session, this machine is itself cut off, and none is lost.
//!
//! While what a switch has handed in waits for longer than an interval, this program is behind and cannot tell who is silent there: it puts off to judge that, but not for ever.
//!
//! An announcement is believed only if it is genuine and fresh: a switch's must be one of the last few that
//! this machine has made for that port, a node's newer than all before it, and each is believed once. What a
//! host captured and sends again, or elsewhere, is therefore refused and reported. A host can still carry a frame
//! to another host before anybody else has heard it; so a port where a node lives, whose genuine word
//! outweighs any switch's, never becomes part of a link.

mod checks;
mod sessions;

use crate::lldp::{Announcement, LldpError};
use crate::{DatapathId, Graph, Key, Link, MacAddr, Port};
use checks::Sent;
use cool_machine::{Duration, Machine, Poll, Time};
use core::fmt;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use checks::Refused;

/// Announcements in a row that may be missed.
const MISSED: u8 = 3;
/// A port without another switch is announced in each of its first 8 intervals, and then in one of 8.
const SELDOM: u32 = 8;
/// What an announcement takes of a controller's time at least: of more ports than are announced in an interval at this pace, intervals
/// are longer. Else a large network would keep it busy with nothing but this (docs/measurements/scale.md).
const ANNOUNCEMENT: Duration = Duration::from_micros(100);
/// Intervals that a warning stays after its cause was last seen.
const WARNED: u8 = 10;

/// What may happen.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A switch has a session; these of its ports are up, with their addresses. Its other ports are down.
    SwitchUp {
        /// The switch.
        switch: DatapathId,
        /// Number and address of each port that is up.
        ports: &'a [(u32, MacAddr)],
    },
    /// A switch's session has ended.
    SwitchDown(DatapathId),
    /// A port has come up.
    PortUp(Port, MacAddr),
    /// A port has gone down or away.
    PortDown(Port),
    /// A port has heard a frame.
    Received(Port, &'a [u8]),
    /// A switch has said something, and all that it had handed in by a moment ago has been told here.
    CaughtUp(DatapathId),
    /// A node is registered with this name and address, and proves its announcements with this key.
    NodeRegistered(&'a str, MacAddr, &'a Key),
    /// A node is registered no more.
    NodeLeft(&'a str),
}

/// What to do, or to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this frame out of this port.
    Announce(Port, Vec<u8>),
    /// A link is there.
    LinkUp(Link),
    /// A link is gone.
    LinkDown(Link),
    /// A switch is there.
    SwitchFound(DatapathId),
    /// A switch is gone, with all that hung on it.
    SwitchLost(DatapathId),
    /// A node is at this port.
    NodeLocated(String, Port),
    /// A node is no longer at this port.
    NodeLost(String, Port),
    /// Something an operator should look at; not repeated while it lasts.
    Warning(Warning),
}

/// Something wrong in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Where.
    pub port: Port,
    /// What.
    pub cause: Cause,
}

/// What is wrong at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It hears LLDP that nobody can read.
    Unreadable(LldpError),
    /// It hears somebody beside its neighbour.
    SecondNeighbour {
        /// The neighbour.
        first: Announcement,
        /// The other.
        second: Announcement,
    },
    /// It hears an announcement that neither this controller nor the node's agent has made.
    Forged(Announcement),
    /// It hears a genuine announcement that has been heard before, or is too old.
    Replayed(Announcement),
    /// It hears a switch though a node lives at one of the two ports, so the node's host carries the frames.
    Relayed {
        /// The switch heard.
        heard: Announcement,
        /// The node.
        node: String,
    },
    /// It is cabled to its own switch.
    OwnSwitch,
    /// It hears a node that is located elsewhere.
    NodeElsewhere {
        /// The node.
        name: String,
        /// Where it is located.
        at: Port,
    },
    /// It hears a node whose address differs from the registered one.
    WrongAddress {
        /// The node.
        name: String,
        /// The address heard.
        heard: MacAddr,
        /// The address registered.
        registered: MacAddr,
    },
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Announcement::Switch { switch, port } => write!(f, "switch {switch} port {port}"),
            Announcement::Node { name, mac } => write!(f, "node {name} ({mac})"),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}: ", self.port)?;
        match &self.cause {
            Cause::Unreadable(error) => write!(f, "hears LLDP that cannot be read: {error}"),
            Cause::SecondNeighbour { first, second } => {
                write!(f, "hears {second} beside {first}; connect one device to a port")
            }
            Cause::Forged(who) => {
                write!(
                    f,
                    "hears {who}, but the frame is forged, or of another controller; look who sends there"
                )
            }
            Cause::Replayed(who) => {
                write!(f, "hears an old announcement of {who} again; look who sends there")
            }
            Cause::Relayed { heard, node } => {
                write!(
                    f,
                    "hears {heard} by way of node {node}, which should not forward LLDP; look at that host"
                )
            }
            Cause::OwnSwitch => write!(f, "is cabled to its own switch; remove the cable"),
            Cause::NodeElsewhere { name, at } => {
                write!(f, "hears node {name}, which is located at {at}; give each node its own name")
            }
            Cause::WrongAddress { name, heard, registered } => {
                write!(f, "hears node {name} with address {heard}, but it registered {registered}")
            }
        }
    }
}

/// A port that is up.
#[derive(Clone, Debug)]
struct Entry {
    mac: MacAddr,
    neighbour: Option<Announcement>,
    /// Intervals since the neighbour was last heard.
    missed: u8,
    /// Intervals that it has been up.
    age: u32,
    sent: Sent,
}

impl Entry {
    /// An interval is over. Tells whether the port is announced now.
    fn ends_interval(&mut self, port: Port) -> bool {
        self.age = self.age.wrapping_add(1);
        let linked = matches!(self.neighbour, Some(Announcement::Switch { .. }));
        // Not all in the same interval.
        linked || self.age <= SELDOM || self.age.wrapping_add(port.number).is_multiple_of(SELDOM)
    }
}

/// A registered node.
#[derive(Clone, Debug)]
struct Registered {
    mac: MacAddr,
    key: Key,
    /// The number of its last announcement.
    last: u64,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Discovery {
    interval: Duration,
    /// Intervals that a switch without a session stays.
    grace: u32,
    key: Key,
    /// Of the last announcement made.
    number: u64,
    refused: Refused,
    /// When to announce next; `None` until the first input.
    next: Option<Time>,
    /// Ports that are up, of connected switches and of those that may come back.
    ports: BTreeMap<Port, Entry>,
    /// Switches without a session, and announcements missed since.
    gone: BTreeMap<DatapathId, u32>,
    /// Switches that have handed in a frame in this interval.
    vocal: BTreeSet<DatapathId>,
    /// Switches that have said something in this interval and were caught up with.
    caught_up: BTreeSet<DatapathId>,
    /// Switches that have handed in more than was told since, and for how many intervals.
    behind: BTreeMap<DatapathId, u8>,
    registered: BTreeMap<String, Registered>,
    /// The ports whose neighbour has this name.
    heard: BTreeMap<String, BTreeSet<Port>>,
    graph: Graph,
    /// By port and kind of cause, so that their number is bounded; with the intervals left.
    warnings: BTreeMap<(Port, u8), (Warning, u8)>,
    outputs: VecDeque<Output>,
    revision: u64,
}

impl Discovery {
    /// Announces every `interval`, proved by `key`, which nobody else may have. A switch without a session stays for `grace`.
    pub fn new(interval: Duration, grace: Duration, key: Key) -> Discovery {
        let intervals = grace.as_nanos().div_ceil(interval.as_nanos().max(1));
        Discovery {
            interval,
            grace: u32::try_from(intervals).unwrap_or(u32::MAX),
            key,
            number: 0,
            refused: Refused::default(),
            next: None,
            ports: BTreeMap::new(),
            gone: BTreeMap::new(),
            vocal: BTreeSet::new(),
            caught_up: BTreeSet::new(),
            behind: BTreeMap::new(),
            registered: BTreeMap::new(),
            heard: BTreeMap::new(),
            graph: Graph::default(),
            warnings: BTreeMap::new(),
            outputs: VecDeque::new(),
            revision: 0,
        }
    }

    /// The network as it is known: links heard in both directions, registered nodes at their ports.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How many frames were not believed.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// Counts the changes of what is known: of the graph and of the warnings.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// What is wrong at present.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.warnings.values().map(|(warning, _)| warning)
    }

    fn switch_up(&mut self, switch: DatapathId, ports: &[(u32, MacAddr)]) {
        self.gone.remove(&switch);
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
        // A port of a switch that never came up would outlive it.
        if !self.graph.contains(port.switch) {
            return;
        }
        let sent = Sent::after(self.number);
        let new = Entry { mac, neighbour: None, missed: 0, age: 0, sent };
        self.ports.entry(port).or_insert(new).mac = mac;
        self.announce(port);
    }

    fn port_down(&mut self, port: Port) {
        if let Some(peer) = self.graph.peer(port) {
            // Its neighbour would only age; forgotten now, a new one is believed at once.
            self.forget_neighbour(peer);
        }
        self.forget_neighbour(port);
        self.ports.remove(&port);
    }

    fn announce(&mut self, port: Port) {
        if self.gone.contains_key(&port.switch) {
            return;
        }
        let Some(entry) = self.ports.get_mut(&port) else { return };
        self.number += 1;
        entry.sent.note(self.number);
        let announcement = Announcement::Switch { switch: port.switch, port: port.number };
        if let Ok(frame) = announcement.encode(entry.mac, &self.key, self.number) {
            self.outputs.push_back(Output::Announce(port, frame));
        }
    }

    fn heard(&mut self, port: Port, frame: &[u8]) {
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
        match (&entry.neighbour, &announcement) {
            (Some(known), _) if *known == announcement => {
                entry.missed = 0;
                return self.check_node(port);
            }
            // The host at this port carried a switch's frames; now that its agent is heard, they are worth nothing.
            (Some(Announcement::Switch { .. }), Announcement::Node { .. }) => self.forget_neighbour(port),
            (Some(known), _) => {
                let first = known.clone();
                return self.warn(port, Cause::SecondNeighbour { first, second: announcement });
            }
            (None, _) => {}
        }
        let Some(entry) = self.ports.get_mut(&port) else { return };
        entry.missed = 0;
        entry.neighbour = Some(announcement.clone());
        match announcement {
            Announcement::Switch { switch, .. } if switch == port.switch => self.warn(port, Cause::OwnSwitch),
            Announcement::Switch { .. } => {
                // The other side may have come up before we could reach it: let it hear us now.
                self.announce(port);
                self.check_link(port);
            }
            Announcement::Node { name, .. } => {
                self.heard.entry(name.clone()).or_default().insert(port);
                self.locate(&name);
                self.check_node(port);
            }
        }
    }

    fn forget_neighbour(&mut self, port: Port) {
        let Some(neighbour) = self.ports.get_mut(&port).and_then(|entry| entry.neighbour.take()) else {
            return;
        };
        match neighbour {
            Announcement::Switch { .. } => self.check_link(port),
            Announcement::Node { name, .. } => {
                if let Some(ports) = self.heard.get_mut(&name) {
                    ports.remove(&port);
                    if ports.is_empty() {
                        self.heard.remove(&name);
                    }
                }
                self.locate(&name);
            }
        }
    }

    /// The port of another switch that is this port's neighbour.
    fn neighbour(&self, port: Port) -> Option<Port> {
        match self.ports.get(&port)?.neighbour {
            Some(Announcement::Switch { switch, port: number }) => Some(Port { switch, number }),
            _ => None,
        }
    }

    /// Brings the link at a port in line with what the two ends have heard.
    fn check_link(&mut self, port: Port) {
        let mutual = self.neighbour(port).filter(|peer| self.neighbour(*peer) == Some(port));
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

    /// Brings a node's place in line with what is registered and heard. It stays where it is while it can.
    fn locate(&mut self, name: &str) {
        let now = self.graph.host(name);
        let registered = self.registered.get(name).map(|node| &node.mac);
        let fits = |port: &Port| match self.ports.get(port).and_then(|entry| entry.neighbour.as_ref()) {
            Some(Announcement::Node { name: heard, mac }) => heard == name && Some(mac) == registered,
            _ => false,
        };
        if now.as_ref().is_some_and(fits) {
            return;
        }
        let found = self.heard.get(name).and_then(|ports| ports.iter().find(|p| fits(p)).copied());
        if let Some(port) = self.graph.displace(name) {
            self.outputs.push_back(Output::NodeLost(name.to_owned(), port));
        }
        if let Some(port) = found {
            self.graph.place(name, port);
            self.outputs.push_back(Output::NodeLocated(name.to_owned(), port));
        }
    }

    /// Warns if the node heard at a port is not located there though it is registered.
    fn check_node(&mut self, port: Port) {
        let neighbour = self.ports.get(&port).and_then(|entry| entry.neighbour.as_ref());
        let Some(Announcement::Node { name, mac }) = neighbour else { return };
        let at = self.graph.host(name);
        // The usual case: it is where it is only as long as its address fits.
        if at == Some(port) {
            return;
        }
        let (name, heard) = (name.clone(), *mac);
        match (self.registered.get(&name).map(|node| node.mac), at) {
            (Some(registered), _) if registered != heard => {
                self.warn(port, Cause::WrongAddress { name, heard, registered });
            }
            (_, Some(at)) => self.warn(port, Cause::NodeElsewhere { name, at }),
            _ => {}
        }
    }

    fn warn(&mut self, port: Port, cause: Cause) {
        let kind = match cause {
            Cause::Unreadable(_) => 0,
            Cause::SecondNeighbour { .. } => 1,
            Cause::OwnSwitch => 2,
            Cause::NodeElsewhere { .. } => 3,
            Cause::WrongAddress { .. } => 4,
            Cause::Forged(_) => 5,
            Cause::Replayed(_) => 6,
            Cause::Relayed { .. } => 7,
        };
        let warning = Warning { port, cause };
        let before = self.warnings.insert((port, kind), (warning.clone(), WARNED));
        if before.as_ref().is_none_or(|(before, _)| *before != warning) {
            self.revision += 1;
        }
        if before.is_none() {
            self.outputs.push_back(Output::Warning(warning));
        }
    }

    fn node_left(&mut self, name: &str) {
        self.registered.remove(name);
        self.locate(name);
    }

    /// One interval is over: age, then announce.
    ///
    /// Age is counted in announcements, not in time: if this program was not run for a while, nothing has
    /// been missed. Returns how many ports are announced.
    fn tick(&mut self) -> u32 {
        let (vocal, caught_up) = (std::mem::take(&mut self.vocal), std::mem::take(&mut self.caught_up));
        let waited_for = self.waited_for(&vocal, &caught_up);
        let there = sessions::there(&vocal, &caught_up);
        let mut silent = Vec::new();
        let mut due = Vec::new();
        for (port, entry) in &mut self.ports {
            // What was announced before is not yet heard there: more would only wait with it, and make it old.
            if entry.concerns(*port, &waited_for) {
                continue;
            }
            if entry.ends_interval(*port) {
                due.push(*port);
            } else {
                // What it has announced gets old all the same.
                self.number += 1;
                entry.sent.note(self.number);
            }
            if entry.neighbour.is_some() && !entry.is_mute(*port, &there) {
                entry.missed += 1;
                if entry.missed > MISSED {
                    silent.push(*port);
                }
            }
        }
        for port in silent {
            self.forget_neighbour(port);
        }
        for switch in self.lost_switches() {
            for port in self.ports_of(switch) {
                self.port_down(port);
            }
            self.gone.remove(&switch);
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
            Input::Received(port, frame) => self.heard(port, frame),
            Input::CaughtUp(switch) => {
                self.caught_up.insert(switch);
            }
            Input::NodeRegistered(name, mac, key) => {
                let before = self.registered.get(name).filter(|node| node.key == *key);
                let last = before.map_or(0, |node| node.last);
                self.registered.insert(name.to_owned(), Registered { mac, key: key.clone(), last });
                self.locate(name);
                for port in self.heard.get(name).cloned().unwrap_or_default() {
                    self.check_node(port);
                }
            }
            Input::NodeLeft(name) => self.node_left(name),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        if self.outputs.is_empty() && self.next.is_some_and(|next| next <= now) {
            let announced = self.tick();
            self.next = Some(now + self.interval.max(ANNOUNCEMENT * announced));
        }
        match self.outputs.pop_front() {
            Some(output) => {
                // Whatever changes the graph is told.
                self.revision += u64::from(!matches!(output, Output::Announce(..)));
                Poll::Output(output)
            }
            None => Poll::Idle(self.next),
        }
    }
}

#[cfg(test)]
mod tests;
