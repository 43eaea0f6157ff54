//! Engines in one process, connected by a network that loses, delays, reorders and doubles datagrams by a
//! seed. Time is made up.

use crate::{
    CallRequest, ConnectionId, DEFAULT_PEER_TIMEOUT, Engine, GroupSpec, Input, MemberSpec, Output,
    TransferRequest, TreeScope, TreeSpec,
};
use cool_collective::{Call, CostModel, Plan};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use cool_proto::local::{Failure, Stats};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

pub(super) const CHUNK: u32 = 1424;

/// Of what goes over connections.
const DELAY: Duration = Duration::from_micros(200);

/// What travels or happens.
enum Event {
    Datagram { from: SocketAddrV4, bytes: Vec<u8> },
    Connected { node: String, connection: ConnectionId },
    Accepted { connection: ConnectionId, from: Ipv4Addr },
    Unreachable { node: String },
    Bytes { connection: ConnectionId, bytes: Vec<u8> },
    Written { connection: ConnectionId, bytes: u64 },
    Closed { connection: ConnectionId },
    Call { token: u64, request: CallRequest },
    Transfer { token: u64, request: TransferRequest },
    Picked { group: (u64, u32), call: Call, plan: Plan },
}

pub(super) struct Network {
    pub(super) engines: Vec<Engine>,
    deadlines: Vec<Option<Time>>,
    pub(super) now: Time,
    events: BTreeMap<(Time, u64), (usize, Event)>,
    serial: u64,
    picks: BTreeMap<String, Plan>,
    random: u64,
    /// Of a thousand datagrams, how many are lost.
    pub(super) loss: u64,
    pub(super) cut: BTreeSet<usize>,
    /// The longest that a connection takes to tell the other side that it was closed.
    pub(super) hangup: Duration,
    /// Connections that were closed to nodes that are silent.
    unheard: Vec<(usize, ConnectionId)>,
    listeners: BTreeMap<SocketAddrV4, BTreeSet<usize>>,
    /// The other end of a connection.
    ends: BTreeMap<(usize, ConnectionId), (usize, ConnectionId)>,
    connections: u64,
    pub(super) done: BTreeMap<u64, Result<Stats, Failure>>,
    pub(super) datagrams: u64,
    /// Steps since time last moved.
    still: u32,
}

fn ip(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, (node / 200) as u8, (node % 200) as u8 + 1)
}

impl Network {
    pub(super) fn new(nodes: usize, seed: u64, loss: u64, copies: u64) -> Network {
        Network {
            engines: (0..nodes)
                .map(|n| Engine::new(&format!("h{n}"), copies, DEFAULT_PEER_TIMEOUT))
                .collect(),
            deadlines: vec![None; nodes],
            now: Time::ZERO,
            events: BTreeMap::new(),
            serial: 0,
            picks: BTreeMap::new(),
            random: seed,
            loss,
            cut: BTreeSet::new(),
            hangup: DELAY,
            unheard: Vec::new(),
            listeners: BTreeMap::new(),
            ends: BTreeMap::new(),
            connections: 0,
            done: BTreeMap::new(),
            datagrams: 0,
            still: 0,
        }
    }

    /// splitmix64
    pub(super) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A group with rank `i` on node `places[i]`; node `n` is in rack `racks[n]`. Of trees over all nodes it has two.
    pub(super) fn spec(id: u64, places: &[usize], racks: &[u32], trees: bool) -> GroupSpec {
        let member = |(rank, node): (u32, &usize)| MemberSpec {
            rank,
            node: format!("h{node}"),
            rack: racks[*node],
            ip: ip(*node),
            udp_port: 7420,
            tcp_port: 7420,
        };
        let used: BTreeSet<u32> = places.iter().map(|node| racks[*node]).collect();
        let scopes = [TreeScope::All, TreeScope::All, TreeScope::Leaders]
            .into_iter()
            .chain(used.into_iter().map(TreeScope::Rack));
        let tree = |(index, scope)| TreeSpec {
            scope,
            address: Ipv4Addr::new(239, 192, id as u8, index),
            port: 7420,
            bytes_per_second: 12_500_000,
        };
        GroupSpec {
            id,
            epoch: 1,
            members: (0..).zip(places).map(member).collect(),
            trees: if trees { (0..).zip(scopes).map(tree).collect() } else { Vec::new() },
            chunk_bytes: CHUNK,
            host_bytes_per_second: 12_500_000,
            cost_model: CostModel::default(),
        }
    }

    /// Makes a group on all its nodes.
    pub(super) fn make_group(&mut self, spec: &GroupSpec) {
        let nodes: BTreeSet<usize> = spec.members.iter().map(|m| m.node[1..].parse().unwrap()).collect();
        self.make_group_on(spec, nodes);
    }

    /// Makes a group on some of its nodes.
    pub(super) fn make_group_on(&mut self, spec: &GroupSpec, nodes: impl IntoIterator<Item = usize>) {
        for node in nodes {
            for tree in self.engines[node].make_group(self.now, spec).unwrap() {
                self.listeners.entry(tree).or_default().insert(node);
            }
            self.pump(node);
        }
    }

    pub(super) fn release_group(&mut self, node: usize, id: u64) {
        self.engines[node].release_group(self.now, id);
        self.pump(node);
    }

    /// A rank on a node calls after some time.
    pub(super) fn call(&mut self, node: usize, token: u64, request: CallRequest, after: Duration) {
        self.push(node, after, Event::Call { token, request });
    }

    /// A rank on a node sends or receives after some time.
    pub(super) fn transfer(&mut self, node: usize, token: u64, request: TransferRequest, after: Duration) {
        self.push(node, after, Event::Transfer { token, request });
    }

    pub(super) fn lose_rank(&mut self, node: usize, group: u64, rank: u32) {
        self.engines[node].lose_rank(self.now, group, rank, "its process ended".to_owned());
        self.pump(node);
    }

    /// A node is stopped or cut off: it says nothing more.
    pub(super) fn silence(&mut self, node: usize) {
        self.cut.insert(node);
    }

    /// A node that was silent goes on, and hears a moment later which connections others have given up meanwhile.
    pub(super) fn restore(&mut self, node: usize) {
        self.cut.remove(&node);
        let (heard, unheard) = std::mem::take(&mut self.unheard).into_iter().partition(|(n, _)| *n == node);
        self.unheard = unheard;
        let heard: Vec<(usize, ConnectionId)> = heard;
        for (node, connection) in heard {
            self.push(node, Duration::from_millis(300), Event::Closed { connection });
        }
        self.pump(node);
    }

    /// A node is gone: its connections break, its packets go nowhere.
    pub(super) fn kill(&mut self, node: usize) {
        self.cut.insert(node);
        let broken: Vec<_> = self.ends.iter().filter(|(end, _)| end.0 == node).map(|(_, end)| *end).collect();
        for (peer, connection) in broken {
            self.push(peer, Duration::from_millis(1), Event::Closed { connection });
        }
        self.ends.retain(|a, b| a.0 != node && b.0 != node);
    }

    /// Runs until so many calls are done.
    pub(super) fn run(&mut self, done: usize) {
        let limit = self.now + Duration::from_secs(3600);
        while self.done.len() < done {
            assert!(
                self.step(),
                "nothing will ever happen, and {} of {done} calls are done",
                self.done.len()
            );
            assert!(self.now < limit, "{} of {done} calls are done after an hour", self.done.len());
        }
    }

    /// Runs for some time.
    pub(super) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.next().is_some_and(|at| at <= until) {
            self.step();
        }
        self.now = until;
    }

    fn next(&self) -> Option<Time> {
        let event = self.events.first_key_value().map(|((at, _), _)| *at);
        let alive = (0..self.engines.len()).filter(|n| !self.cut.contains(n));
        alive.map(|n| self.deadlines[n]).fold(event, earliest)
    }

    fn step(&mut self) -> bool {
        let Some(next) = self.next() else { return false };
        self.still = if next > self.now { 0 } else { self.still + 1 };
        assert!(self.still < 10_000, "at {:?} an engine asks to be polled at once, for ever", self.now);
        self.now = self.now.max(next);
        while let Some(entry) = self.events.first_entry().filter(|e| e.key().0 <= self.now) {
            let (node, event) = entry.remove();
            match event {
                Event::Closed { connection } if self.cut.contains(&node) => {
                    self.unheard.push((node, connection))
                }
                event if !self.cut.contains(&node) => self.happen(node, event),
                _ => {}
            }
        }
        for node in 0..self.engines.len() {
            if !self.cut.contains(&node) && self.deadlines[node].is_some_and(|at| at <= self.now) {
                self.pump(node);
            }
        }
        true
    }

    fn happen(&mut self, node: usize, event: Event) {
        let (engine, now) = (&mut self.engines[node], self.now);
        match &event {
            Event::Datagram { from, bytes } => engine.handle(now, Input::Datagram { from: *from, bytes }),
            Event::Connected { node, connection } => {
                engine.handle(now, Input::Connected { node: node.clone(), connection: *connection });
            }
            Event::Accepted { connection, from } => {
                engine.handle(now, Input::Accepted { connection: *connection, from: *from });
            }
            Event::Unreachable { node } => {
                engine.handle(now, Input::Unreachable { node: node.clone(), why: "refused".to_owned() });
            }
            Event::Bytes { connection, bytes } => {
                deliver(engine, now, *connection, bytes);
            }
            Event::Written { connection, bytes } => {
                engine.handle(now, Input::Written { connection: *connection, bytes: *bytes });
            }
            Event::Closed { connection } => {
                let why = "its agent closed the connection".to_owned();
                engine.handle(now, Input::Closed { connection: *connection, why });
            }
            Event::Call { token, request } => engine.call(now, *token, request.clone()),
            Event::Transfer { token, request } => engine.transfer(now, *token, request.clone()),
            Event::Picked { group, call, plan } => {
                engine.handle(now, Input::Picked { group: *group, call: call.clone(), plan: *plan });
            }
        }
        self.pump(node);
    }

    fn push(&mut self, node: usize, after: Duration, event: Event) {
        self.serial += 1;
        self.events.insert((self.now + after, self.serial), (node, event));
    }

    fn pump(&mut self, node: usize) {
        loop {
            match self.engines[node].poll(self.now) {
                Poll::Idle(deadline) => {
                    self.deadlines[node] = deadline;
                    return;
                }
                Poll::Output(output) => self.output(node, output),
            }
        }
    }

    fn output(&mut self, node: usize, output: Output) {
        match output {
            Output::Datagram { to, bytes, .. } => self.datagram(node, to, &bytes),
            Output::Connect { node: name, to } => {
                let peer = (0..self.engines.len()).find(|n| ip(*n) == *to.ip()).unwrap();
                if self.cut.contains(&peer) {
                    return self.push(node, DELAY, Event::Unreachable { node: name });
                }
                self.connections += 1;
                let connection = ConnectionId(self.connections);
                self.ends.insert((node, connection), (peer, connection));
                self.ends.insert((peer, connection), (node, connection));
                self.push(peer, DELAY, Event::Accepted { connection, from: ip(node) });
                self.push(node, DELAY, Event::Connected { node: name, connection });
            }
            Output::Write { connection, head, payload } => {
                let mut bytes = head;
                if let Some(payload) = payload {
                    payload.append(0, payload.bytes() as usize, &mut bytes);
                }
                self.push(node, DELAY, Event::Written { connection, bytes: bytes.len() as u64 });
                if let Some((peer, connection)) = self.ends.get(&(node, connection)).copied() {
                    self.push(peer, DELAY, Event::Bytes { connection, bytes });
                }
            }
            Output::Hangup { connection } => {
                if let Some((peer, connection)) = self.ends.remove(&(node, connection)) {
                    self.ends.remove(&(peer, connection));
                    let spread = (self.hangup - DELAY).as_nanos() as u64 + 1;
                    let after = DELAY + Duration::from_nanos(self.random() % spread);
                    self.push(peer, after, Event::Closed { connection });
                }
            }
            Output::Done { token, result } => {
                assert!(self.done.insert(token, result).is_none(), "call {token} is done twice");
            }
            Output::Pick { group, planner, call } => {
                // All agents of a group find the same.
                let known = self.picks.entry(format!("{group:?} {call:?}"));
                let plan = *known.or_insert_with(|| planner.best(&call));
                self.push(node, DELAY, Event::Picked { group, call, plan });
            }
            Output::Forgotten { .. } => {}
        }
    }

    fn datagram(&mut self, node: usize, to: SocketAddrV4, bytes: &[u8]) {
        let listeners = if to.ip().is_multicast() {
            self.listeners.get(&to).cloned().unwrap_or_default()
        } else {
            (0..self.engines.len()).filter(|n| ip(*n) == *to.ip()).collect()
        };
        for peer in listeners.into_iter().filter(|peer| *peer != node) {
            self.datagrams += 1;
            let copies = if self.loss > 0 && self.random().is_multiple_of(100) { 2 } else { 1 };
            for _ in 0..copies {
                if self.random() % 1000 >= self.loss {
                    let delay = Duration::from_micros(100 + self.random() % 400);
                    let from = SocketAddrV4::new(ip(node), 7420);
                    self.push(peer, delay, Event::Datagram { from, bytes: bytes.to_vec() });
                }
            }
        }
    }
}

/// Hands over what came over a connection, after what belongs to a known place was put there.
fn deliver(engine: &mut Engine, now: Time, connection: ConnectionId, bytes: &[u8]) {
    let (_, place) = engine.awaited(connection);
    let placed = place.map_or(0, |place| {
        let placed = bytes.len().min(place.bytes() as usize);
        place.write(0, &bytes[..placed]);
        placed
    });
    engine.handle(now, Input::Bytes { connection, placed: placed as u32, bytes: &bytes[placed..] });
}
