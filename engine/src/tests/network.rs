//! Engines in one process, connected by a network that loses, delays, reorders and doubles datagrams by a
//! seed. Time is made up.

use crate::testing::Buffer;
use crate::{
    CallRequest, ConnectionId, DEFAULT_PEER_TIMEOUT, Engine, Failure, GroupSpec, Input, MemberSpec, MemoryId,
    MemoryRange, NodeId, Output, Preparation, Stats, TransferRequest, TreeScope, TreeSpec, Work, WorkId,
    combine,
};
use cool_collective::{CostModel, Plan};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

pub(super) const CHUNK: u32 = 1424;

/// Of what goes over connections.
const DELAY: Duration = Duration::from_micros(200);

/// What travels or happens.
enum Event {
    Datagram { from: SocketAddrV4, bytes: Vec<u8> },
    Connected { node: NodeId, connection: ConnectionId },
    Accepted { connection: ConnectionId, from: Ipv4Addr },
    Unreachable { node: NodeId },
    Bytes { connection: ConnectionId, bytes: Vec<u8> },
    Written { connection: ConnectionId, bytes: u64 },
    Closed { connection: ConnectionId },
    Call { token: u64, request: CallRequest<Buffer> },
    Transfer { token: u64, request: TransferRequest<Buffer> },
    Prepare { id: WorkId, preparation: Box<Preparation> },
    Work { id: WorkId, work: Work, own: Vec<(MemoryId, Buffer)> },
}

/// The memories of a node.
#[derive(Default)]
struct Memories {
    by_id: BTreeMap<MemoryId, Buffer>,
    /// Those of each call that is not answered.
    of_token: BTreeMap<u64, Vec<MemoryId>>,
    last: u64,
}

impl Memories {
    fn register(&mut self, token: u64, buffer: Buffer) -> MemoryRange {
        self.last += 1;
        let memory = MemoryId::Registered(self.last);
        let len = buffer.with(|bytes| bytes.len()) as u64;
        self.by_id.insert(memory, buffer);
        self.of_token.entry(token).or_default().push(memory);
        MemoryRange { memory, offset: 0, len }
    }

    /// A call is answered: its memory must not be named any more.
    fn answered(&mut self, token: u64) {
        for memory in self.of_token.remove(&token).unwrap_or_default() {
            self.by_id.remove(&memory);
        }
    }

    fn read(&self, range: MemoryRange) -> Vec<u8> {
        if range.len == 0 {
            return Vec::new();
        }
        let (from, to) = (range.offset as usize, (range.offset + range.len) as usize);
        self.by_id[&range.memory].with(|bytes| bytes[from..to].to_vec())
    }

    fn write(&self, range: MemoryRange, from: &[u8]) {
        if range.len > 0 {
            let at = range.offset as usize;
            self.by_id[&range.memory].with(|bytes| bytes[at..][..range.len as usize].copy_from_slice(from));
        }
    }

    /// The engine's own memories that work is on.
    fn own(&self, work: &Work) -> Vec<(MemoryId, Buffer)> {
        let (Work::Copy { from, to } | Work::Reduce { from, to, .. }) = work else { return Vec::new() };
        let own = [from.memory, to.memory].into_iter().filter(|id| matches!(id, MemoryId::Own(_)));
        own.map(|id| (id, self.by_id[&id].clone())).collect()
    }

    /// Does work on memories of which the engine's own may have been freed; a rank's are there, or the test fails.
    fn work_on(&mut self, work: &Work, own: Vec<(MemoryId, Buffer)>) {
        let freed: Vec<MemoryId> =
            own.iter().map(|(id, _)| *id).filter(|id| !self.by_id.contains_key(id)).collect();
        self.by_id.extend(own);
        self.work(work);
        freed.iter().for_each(|id| drop(self.by_id.remove(id)));
    }

    fn work(&self, work: &Work) {
        match work {
            Work::Copy { from, to } => self.write(*to, &self.read(*from)),
            Work::Reduce { element, op, from, to } => {
                let mut result = self.read(*to);
                combine(*element, *op, &mut result, &self.read(*from));
                self.write(*to, &result);
            }
            Work::Prepare(_) => {}
        }
    }
}

pub(super) struct Network {
    pub(super) engines: Vec<Engine>,
    memories: Vec<Memories>,
    /// What comes next over a connection, and where it belongs.
    awaited: BTreeMap<(usize, ConnectionId), MemoryRange>,
    /// The bytes of the input that a node was handed last.
    input: Vec<u8>,
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
            memories: (0..nodes).map(|_| Memories::default()).collect(),
            awaited: BTreeMap::new(),
            input: Vec::new(),
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
            self.handle(node, Input::MakeGroup(spec));
        }
    }

    pub(super) fn release_group(&mut self, node: usize, id: u64) {
        self.handle(node, Input::ReleaseGroup { group: id });
    }

    /// A rank on a node calls after some time.
    pub(super) fn call(&mut self, node: usize, token: u64, request: CallRequest<Buffer>, after: Duration) {
        self.push(node, after, Event::Call { token, request });
    }

    /// A rank on a node sends or receives after some time.
    pub(super) fn transfer(
        &mut self,
        node: usize,
        token: u64,
        request: TransferRequest<Buffer>,
        after: Duration,
    ) {
        self.push(node, after, Event::Transfer { token, request });
    }

    pub(super) fn lose_rank(&mut self, node: usize, group: u64, rank: u32) {
        self.handle(node, Input::RankLost { group, rank, why: "its process ended".to_owned() });
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

    /// Runs until `done` calls are done.
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

    fn handle(&mut self, node: usize, input: Input<'_>) {
        self.engines[node].handle(self.now, input);
        self.pump(node);
    }

    fn happen(&mut self, node: usize, event: Event) {
        match event {
            Event::Datagram { from, bytes } => {
                self.input.clone_from(&bytes);
                self.handle(node, Input::Datagram { from, bytes: &bytes });
            }
            Event::Connected { node: name, connection } => {
                self.handle(node, Input::Connected { node: name, connection });
            }
            Event::Accepted { connection, from } => self.handle(node, Input::Accepted { connection, from }),
            Event::Unreachable { node: name } => {
                self.handle(node, Input::Unreachable { node: name, why: "refused".to_owned() });
            }
            Event::Bytes { connection, bytes } => self.deliver(node, connection, &bytes),
            Event::Written { connection, bytes } => self.handle(node, Input::Written { connection, bytes }),
            Event::Closed { connection } => {
                let why = "its agent closed the connection".to_owned();
                self.handle(node, Input::Closed { connection, why });
            }
            Event::Call { token, request } => {
                let request = request.map(|buffer| self.memories[node].register(token, buffer));
                self.handle(node, Input::Call { token, request });
            }
            Event::Transfer { token, request } => {
                let request = request.map(|buffer| self.memories[node].register(token, buffer));
                self.handle(node, Input::Transfer { token, request });
            }
            Event::Prepare { id, preparation } => {
                // All agents of a group find the same.
                let key = format!("{:?} {:?}", preparation.group(), preparation.call());
                let plan = *self.picks.entry(key).or_insert_with(|| preparation.plan());
                self.handle(node, Input::Prepared(id, preparation.compile(plan)));
            }
            Event::Work { id, work, own } => {
                self.memories[node].work_on(&work, own);
                self.handle(node, Input::WorkDone(id));
            }
        }
    }

    /// Hands over what came over a connection, after what belongs to a known place was put there.
    fn deliver(&mut self, node: usize, connection: ConnectionId, bytes: &[u8]) {
        let place = self.awaited.get(&(node, connection)).copied().unwrap_or(MemoryRange::EMPTY);
        let placed = bytes.len().min(place.len as usize);
        self.memories[node].write(place.part(0, placed as u64), &bytes[..placed]);
        self.input = bytes[placed..].to_vec();
        self.handle(node, Input::Bytes { connection, placed: placed as u32, bytes: &bytes[placed..] });
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
        let memories = &mut self.memories[node];
        match output {
            Output::GroupMade { result, .. } => {
                for tree in result.unwrap() {
                    self.listeners.entry(tree).or_default().insert(node);
                }
            }
            Output::GroupForgotten { .. } => {}
            Output::Control { to, bytes } => self.datagram(node, to, &bytes),
            Output::Data { to, packet, payload } => {
                let mut bytes = Vec::new();
                packet.encode(&mut bytes);
                bytes.extend(memories.read(payload));
                self.datagram(node, to, &bytes);
            }
            Output::Await { connection, bytes, place } => {
                assert!(place.is_none_or(|place| place.len == bytes));
                self.awaited.insert((node, connection), place.unwrap_or(MemoryRange::EMPTY));
            }
            Output::Store { within, to } => memories.write(to, &self.input[within]),
            Output::Allocate { memory, bytes } => {
                memories.by_id.insert(memory, Buffer::new(vec![0; bytes as usize]));
            }
            Output::Free { memory } => {
                memories.by_id.remove(&memory).expect("what is freed was there");
            }
            Output::Copy { from, to } => memories.write(to, &memories.read(from)),
            Output::Work { id, work: Work::Prepare(preparation) } => {
                self.push(node, DELAY, Event::Prepare { id, preparation });
            }
            Output::Work { id, work } => self.work(node, id, work),
            Output::Done { token, result } => {
                memories.answered(token);
                assert!(self.done.insert(token, result).is_none(), "call {token} is done twice");
            }
            Output::Write { connection, mut head, payload } => {
                head.extend(payload.map(|payload| memories.read(payload)).unwrap_or_default());
                let bytes = head;
                self.push(node, DELAY, Event::Written { connection, bytes: bytes.len() as u64 });
                if let Some((peer, connection)) = self.ends.get(&(node, connection)).copied() {
                    self.push(peer, DELAY, Event::Bytes { connection, bytes });
                }
            }
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
            Output::Hangup { connection } => {
                if let Some((peer, connection)) = self.ends.remove(&(node, connection)) {
                    self.ends.remove(&(peer, connection));
                    let spread = (self.hangup - DELAY).as_nanos() as u64 + 1;
                    let after = DELAY + Duration::from_nanos(self.random() % spread);
                    self.push(peer, after, Event::Closed { connection });
                }
            }
        }
    }

    /// Work is done at once or some time later, as by another thread.
    fn work(&mut self, node: usize, id: WorkId, work: Work) {
        if self.random().is_multiple_of(4) {
            let after = Duration::from_micros(self.random() % 300);
            let own = self.memories[node].own(&work);
            self.push(node, after, Event::Work { id, work, own });
        } else {
            self.memories[node].work(&work);
            self.engines[node].handle(self.now, Input::WorkDone(id));
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
