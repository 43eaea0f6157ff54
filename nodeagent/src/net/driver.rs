//! The engine's thread: waits for whatever comes first, tells the engine, does what it asks.

use super::tcp::{self, Connection};
use super::{EVENTS, Event, Events, udp};
use crate::engine::{Command, ConnectionId, Engine, EngineConfig, GroupError, GroupSpec, Input, Output};
use cool_machine::{Machine, Poll, Time};
use cool_proto::local::{Failure, Stats};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

/// A tree that this node listens to.
struct Tree {
    groups: BTreeSet<u64>,
    reader: AbortHandle,
}

pub(super) struct Driver {
    engine: Engine,
    ip: Ipv4Addr,
    origin: Instant,
    udp: Arc<UdpSocket>,
    trees: BTreeMap<SocketAddrV4, Tree>,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u64,
    calls: BTreeMap<u64, oneshot::Sender<Result<Stats, Failure>>>,
    next_call: u64,
    events: Events,
    queue: mpsc::Receiver<Event>,
}

impl Driver {
    pub(super) fn new(config: EngineConfig, udp: UdpSocket) -> Driver {
        let (events, queue) = mpsc::channel(EVENTS);
        Driver {
            engine: Engine::new(&config.node),
            ip: config.ip,
            origin: Instant::now(),
            udp: Arc::new(udp),
            trees: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            calls: BTreeMap::new(),
            next_call: 0,
            events,
            queue,
        }
    }

    /// Runs until all senders of commands are gone.
    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>, listener: TcpListener) {
        let socket = Arc::clone(&self.udp);
        let events = self.events.clone();
        tokio::spawn(async move { udp::read(&socket, events).await });
        tokio::spawn(tcp::accept(listener, self.events.clone()));
        loop {
            let deadline = self.pump().await;
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                Some(event) = self.queue.recv() => self.event(event).await,
                () = timer => {}
            }
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Does what the engine asks, until it is idle; answers with when to poll it again.
    async fn pump(&mut self) -> Option<Instant> {
        loop {
            match self.engine.poll(self.now()) {
                Poll::Idle(deadline) => {
                    return deadline.map(|at| self.origin + Duration::from_nanos(at.as_nanos()));
                }
                Poll::Output(Output::Datagram { to, bytes }) => udp::send(&self.udp, to, &bytes).await,
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
            Output::Write { connection, bytes } => {
                if let Some(connection) = self.connections.get(&connection) {
                    connection.write(bytes);
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
            Output::Forgotten { group } => self.leave_trees(group),
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
                let token = self.next_call;
                self.next_call += 1;
                self.calls.insert(token, reply);
                self.engine.call(now, token, request);
            }
            Command::LoseRank { group, rank, why } => self.engine.lose_rank(now, group, rank, why),
        }
    }

    fn make_group(&mut self, spec: &GroupSpec) -> Result<(), GroupError> {
        let trees = self.engine.make_group(self.now(), spec)?;
        for address in trees {
            if let Err(error) = self.join_tree(spec.id, address) {
                self.engine.release_group(self.now(), spec.id);
                let (address, reason) = (*address.ip(), error.to_string());
                return Err(GroupError::Multicast { group: spec.id, address, ip: self.ip, reason });
            }
        }
        Ok(())
    }

    fn join_tree(&mut self, group: u64, address: SocketAddrV4) -> std::io::Result<()> {
        if let Some(tree) = self.trees.get_mut(&address) {
            tree.groups.insert(group);
            return Ok(());
        }
        let socket = udp::listen(address, self.ip)?;
        let events = self.events.clone();
        let reader = tokio::spawn(async move { udp::read(&socket, events).await }).abort_handle();
        self.trees.insert(address, Tree { groups: BTreeSet::from([group]), reader });
        Ok(())
    }

    fn leave_trees(&mut self, group: u64) {
        self.trees.retain(|_, tree| {
            tree.groups.remove(&group);
            if tree.groups.is_empty() {
                tree.reader.abort();
            }
            !tree.groups.is_empty()
        });
    }

    async fn event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Datagrams(batch) => {
                for (from, bytes) in batch {
                    self.engine.handle(self.now(), Input::Datagram { from, bytes: &bytes });
                    self.pump().await;
                }
            }
            Event::Accepted(stream, from) => {
                let connection = self.connection();
                self.connections.insert(connection, Connection::new(connection, stream, &self.events));
                self.engine.handle(now, Input::Accepted { connection, from });
            }
            Event::Connected { node, stream } => {
                let connection = self.connection();
                self.connections.insert(connection, Connection::new(connection, stream, &self.events));
                self.engine.handle(now, Input::Connected { node, connection });
            }
            Event::Unreachable { node, why } => self.engine.handle(now, Input::Unreachable { node, why }),
            Event::Bytes { connection, bytes } => {
                self.engine.handle(now, Input::Bytes { connection, bytes: &bytes });
            }
            Event::Written { connection, bytes } => {
                self.engine.handle(now, Input::Written { connection, bytes });
            }
            Event::Closed { connection, why } => {
                self.connections.remove(&connection);
                self.engine.handle(now, Input::Closed { connection, why });
            }
        }
    }

    fn connection(&mut self) -> ConnectionId {
        self.next_connection += 1;
        ConnectionId(self.next_connection)
    }
}
