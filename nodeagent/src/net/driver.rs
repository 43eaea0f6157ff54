//! The engine's thread: waits for whatever comes first, tells the engine, does what it asks.

use super::congestion::Link;
use super::tcp::{self, Came, Connection};
use super::udp::{Inbox, Outbox, Socket};
use super::{EVENTS, Event, Events, congestion, udp};
use crate::engine::{Command, EngineConfig, Trace};
use crate::fault_injection::Picker;
use cool_collective::{Call, Plan, Planner};
use cool_engine::{COPIES_BYTES, ConnectionId, Engine, GroupError, GroupSpec, Input, Output};
use cool_machine::{Machine, Poll, Time};
use cool_proto::local::{Failure, Stats};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

/// How often the sockets are read before anything else gets its turn, if there is always more.
const DRAINS: usize = 64;

/// How often a connection is read before anything else gets its turn.
const READS: usize = 8;

/// A tree that this node listens to.
struct Tree {
    groups: BTreeSet<u64>,
    socket: Socket,
}

/// Where the answer to a call goes.
type Reply = oneshot::Sender<Result<Stats, Failure>>;

pub(super) struct Driver {
    engine: Engine,
    ip: Ipv4Addr,
    origin: Instant,
    /// The latest time that the engine was told.
    clock: Time,
    udp: Socket,
    inbox: Inbox,
    losses: Option<Picker>,
    outbox: Outbox,
    /// What came over a connection and has no known place.
    scratch: Vec<u8>,
    trees: BTreeMap<SocketAddrV4, Tree>,
    connections: BTreeMap<ConnectionId, Connection>,
    link: Link,
    /// What each group's links carry.
    paces: BTreeMap<u64, u32>,
    next_connection: u64,
    calls: BTreeMap<u64, Reply>,
    next_call: u64,
    events: Events,
    queue: mpsc::Receiver<Event>,
}

impl Driver {
    pub(super) fn new(config: EngineConfig, udp: Socket) -> Driver {
        let (events, queue) = mpsc::channel(EVENTS);
        Driver {
            engine: Engine::new(&config.node, COPIES_BYTES, config.peer_timeout),
            ip: config.ip,
            origin: Instant::now(),
            clock: Time::ZERO,
            udp,
            inbox: Inbox::new(),
            losses: config.losses.map(Picker::new),
            outbox: Outbox::default(),
            scratch: vec![0; tcp::READ],
            trees: BTreeMap::new(),
            connections: BTreeMap::new(),
            link: Link::default(),
            paces: BTreeMap::new(),
            next_connection: 0,
            calls: BTreeMap::new(),
            next_call: 0,
            events,
            queue,
        }
    }

    /// Runs until all senders of commands are gone.
    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>, listener: TcpListener) {
        tokio::spawn(tcp::accept(listener, self.events.clone()));
        loop {
            self.drain().await;
            let now = self.now();
            let deadline = self.pump(now).await;
            self.outbox.flush(&self.udp).await;
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let sockets = poll_fn(|context| {
                let mut sockets = std::iter::once(&self.udp).chain(self.trees.values().map(|t| &t.socket));
                match sockets.any(|socket| socket.poll_ready(context).is_ready()) {
                    true => std::task::Poll::Ready(()),
                    false => std::task::Poll::Pending,
                }
            });
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                Some(event) = self.queue.recv() => self.event(event).await,
                () = sockets => {}
                () = timer => {}
            }
        }
    }

    fn now(&mut self) -> Time {
        let nanos = self.origin.elapsed().as_nanos();
        self.clock = self.clock.max(Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        self.clock
    }

    /// Tells the engine of all datagrams that have come, each at the time when it came: while they waited here,
    /// no timer runs out, so that this machine's being busy is not taken for a loss.
    async fn drain(&mut self) {
        for _ in 0..DRAINS {
            let sockets: Vec<&Socket> =
                std::iter::once(&self.udp).chain(self.trees.values().map(|tree| &tree.socket)).collect();
            if !self.inbox.receive(&sockets) {
                return;
            }
            let now = self.origin.elapsed();
            for at in 0..self.inbox.len() {
                if self.losses.as_mut().is_some_and(Picker::takes_next) {
                    continue;
                }
                let (age, from, bytes) = self.inbox.datagram(at);
                let came = u64::try_from(now.saturating_sub(age).as_nanos()).unwrap_or(u64::MAX);
                self.clock = self.clock.max(Time::from_nanos(came));
                self.engine.handle(self.clock, Input::Datagram { from, bytes });
                self.pump(self.clock).await;
            }
            self.outbox.flush(&self.udp).await;
        }
    }

    /// Does what the engine asks, until it is idle; answers with when to poll it again.
    async fn pump(&mut self, now: Time) -> Option<Instant> {
        loop {
            match self.engine.poll(now) {
                Poll::Idle(deadline) => {
                    return deadline.map(|at| self.origin + Duration::from_nanos(at.as_nanos()));
                }
                Poll::Output(Output::Datagram { to, bytes, .. }) => {
                    self.outbox.send(&self.udp, to, bytes).await;
                }
                Poll::Output(output) => self.output(output),
            }
        }
    }

    fn output(&mut self, output: Output) {
        match output {
            // Sent by the pump, which may wait.
            Output::Datagram { .. } => {}
            Output::Connect { node, to } => {
                tokio::spawn(tcp::connect(node, self.ip, to, self.events.clone()));
            }
            Output::Write { connection, head, payload } => {
                if let Some(writer) = self.connections.get_mut(&connection) {
                    let bytes = writer.write(head, payload);
                    let now = self.now();
                    self.engine.handle(now, Input::Written { connection, bytes });
                }
            }
            Output::Hangup { connection } => {
                self.connections.remove(&connection);
            }
            Output::Done { token, result } => {
                if let Some(reply) = self.calls.remove(&token) {
                    // The caller may have gone; its call went on for the sake of the others.
                    let _ = reply.send(result);
                }
            }
            Output::Pick { group, planner, call } => {
                tokio::spawn(pick(group, *planner, call, self.events.clone()));
            }
            Output::Forgotten { group } => {
                self.leave_trees(group);
                self.paces.remove(&group);
                self.share_link();
            }
        }
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::MakeGroup(spec, reply) => {
                let made = self.make_group(&spec);
                // Whoever asked may have gone; the group stays until it is released.
                let _ = reply.send(made);
            }
            Command::ReleaseGroup(group) => self.engine.release_group(now, group),
            Command::Call(request, reply) => {
                let token = self.token(reply);
                self.engine.call(now, token, request);
            }
            Command::Transfer(request, reply) => {
                let token = self.token(reply);
                self.engine.transfer(now, token, request);
            }
            Command::LoseRank { group, rank, why } => self.engine.lose_rank(now, group, rank, why),
            Command::Revoke { group, rank } => self.engine.revoke(now, group, rank),
            Command::Lost { group, reply } => {
                // Whoever asked may have gone.
                let _ = reply.send(self.engine.lost_ranks(group));
            }
            Command::Trace { last, group, reply } => {
                // The clock may have been set since the engine started: what it says now counts.
                let origin = SystemTime::now().checked_sub(self.origin.elapsed()).unwrap_or(UNIX_EPOCH);
                // As above.
                let _ = reply.send(Trace { origin, records: self.engine.trace(last, group) });
            }
        }
    }

    /// The name under which the engine answers.
    fn token(&mut self, reply: Reply) -> u64 {
        let token = self.next_call;
        self.next_call += 1;
        self.calls.insert(token, reply);
        token
    }

    fn make_group(&mut self, spec: &GroupSpec) -> Result<(), GroupError> {
        let now = self.now();
        let trees = self.engine.make_group(now, spec)?;
        self.paces.insert(spec.id, congestion::pace(spec.host_bytes_per_second, spec.cost_model.costs.mtu));
        self.share_link();
        for address in trees {
            if let Err(error) = self.join_tree(spec.id, address) {
                self.engine.release_group(now, spec.id);
                let (address, reason) = (*address.ip(), error.to_string());
                return Err(GroupError::Multicast { group: spec.id, address, ip: self.ip, reason });
            }
        }
        Ok(())
    }

    /// Groups share connections, so the fastest counts.
    fn share_link(&self) {
        if let Some(pace) = self.paces.values().max() {
            self.link.set_pace(*pace);
        }
    }

    fn join_tree(&mut self, group: u64, address: SocketAddrV4) -> std::io::Result<()> {
        if let Some(tree) = self.trees.get_mut(&address) {
            tree.groups.insert(group);
            return Ok(());
        }
        let socket = udp::listen(address, self.ip)?;
        self.trees.insert(address, Tree { groups: BTreeSet::from([group]), socket });
        Ok(())
    }

    fn leave_trees(&mut self, group: u64) {
        self.trees.retain(|_, tree| {
            tree.groups.remove(&group);
            !tree.groups.is_empty()
        });
    }

    async fn event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Accepted(stream, from) => {
                let connection = self.connect(stream);
                self.engine.handle(now, Input::Accepted { connection, from });
            }
            Event::Connected { node, stream } => {
                let connection = self.connect(stream);
                self.engine.handle(now, Input::Connected { node, connection });
            }
            Event::Unreachable { node, why } => self.engine.handle(now, Input::Unreachable { node, why }),
            Event::Readable(connection) => self.read(connection).await,
            Event::Written { connection, bytes } => {
                if let Some(writer) = self.connections.get_mut(&connection) {
                    writer.wrote_rest(bytes);
                }
                self.engine.handle(now, Input::Written { connection, bytes });
            }
            Event::Picked { group, call, plan } => {
                self.engine.handle(now, Input::Picked { group, call, plan });
            }
            Event::Closed { connection, why } => self.closed(connection, why),
        }
    }

    /// Reads what has come over a connection, within bounds.
    async fn read(&mut self, connection: ConnectionId) {
        for _ in 0..READS {
            let awaited = self.engine.awaited(connection);
            let Some(reader) = self.connections.get_mut(&connection) else { return };
            let came = match reader.read(awaited, &mut self.scratch) {
                Ok(Came { placed: 0, tail: 0, .. }) => {
                    return self.closed(connection, "its agent closed the connection".to_owned());
                }
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return self.closed(connection, tcp::failed(&error)),
            };
            let now = self.now();
            // A frame's payload is a u32.
            let (placed, bytes) = (came.placed as u32, &self.scratch[..came.tail]);
            self.engine.handle(now, Input::Bytes { connection, placed, bytes });
            self.pump(now).await;
            if came.drained {
                break;
            }
        }
        let (lacking, _) = self.engine.awaited(connection);
        if let Some(reader) = self.connections.get_mut(&connection) {
            reader.await_more(lacking);
        }
    }

    fn closed(&mut self, connection: ConnectionId, why: String) {
        self.connections.remove(&connection);
        let now = self.now();
        self.engine.handle(now, Input::Closed { connection, why });
    }

    fn connect(&mut self, stream: TcpStream) -> ConnectionId {
        self.next_connection += 1;
        let id = ConnectionId(self.next_connection);
        self.connections.insert(id, Connection::new(id, stream, &self.link, &self.events));
        id
    }
}

/// Finds a plan on a thread of its own.
async fn pick(group: (u64, u32), planner: Planner, call: Call, events: Events) {
    let like = call.clone();
    let layout = planner.layout().clone();
    let found = tokio::task::spawn_blocking(move || planner.best(&like)).await;
    let plan = found.unwrap_or_else(|fault| {
        tracing::error!(group = group.0, %fault, "no plan was found; please report it");
        Plan::default_for(&call, &layout)
    });
    // Without a driver nobody waits for it.
    let _ = events.send(Event::Picked { group, call, plan }).await;
}
