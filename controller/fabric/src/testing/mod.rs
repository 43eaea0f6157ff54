//! A fabric whose switches exchange messages in memory, for tests of other crates. Time is an
//! argument, and no task or socket is involved.
//!
//! The [`FabricSimulation`] contains the real network and, for each connection, the real channel
//! with its reconciler. Some switches follow the standard ([`SimulatedSwitch`]); the caller sends
//! the messages of all others.

mod switch;

use crate::api::{ConnectionId, DatapathId, FabricConfig, GroupRequest, Key, NodeRegistration, Port};
use crate::api::{FabricError, TopologySnapshot, TreeGrant};
use crate::intent::tables::SwitchTables;
use crate::network::Network;
use crate::request::{FabricRequest, RequestReply};
use crate::switch::catch_up::CatchUpNotifier;
use crate::switch::channel::{Channel, Input, Output};
use crate::switch::connection::{ConnectionContext, FromSwitch, PendingUpdate, SwitchEvent, SwitchHandle};
use crate::telemetry::Measurements;
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use cool_topology::lldp::Announcement;
use core::net::IpAddr;
use rs_openflow::{Framer, Message, MessageHeader, Padding};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

pub use switch::{SimulatedSwitch, SwitchQuirks, packet_in};

/// Maximum number of frames that wait to be sent to a switch.
const PACKETS: usize = 256;

/// Maximum number of rounds in which switches and controller react to each other without time
/// passing. More of them are a message storm.
const ROUNDS_MAX: usize = 300;

/// The entries that a switch holds.
#[derive(Clone, Debug, PartialEq)]
pub struct InstalledEntries(SwitchTables);

/// One connection, without bytes in flight.
struct SimulatedConnection {
    address: IpAddr,
    channel: Channel,
    framer: Framer,
    handle: Option<SwitchHandle>,
    updates: Arc<PendingUpdate>,
    packets: mpsc::Receiver<(Vec<u32>, Vec<u8>)>,
    /// The datapath id, once the switch is up.
    switch: Option<DatapathId>,
    catch_up: CatchUpNotifier,
    /// A switch that follows the standard. `None` if the caller sends the messages.
    peer: Option<SimulatedSwitch>,
    /// Messages for a switch whose messages the caller sends, oldest first.
    sent: VecDeque<Message>,
    /// Number of messages sent to the switch.
    sent_count: u64,
}

/// A node whose agent announces it at a port.
struct AnnouncedNode {
    registration: NodeRegistration,
    port: Port,
}

/// The network under simulated switches.
pub struct FabricSimulation {
    network: Network,
    context: ConnectionContext,
    snapshots: watch::Receiver<Arc<TopologySnapshot>>,
    connections: BTreeMap<ConnectionId, SimulatedConnection>,
    last_connection: ConnectionId,
    /// Why connections have ended.
    ended: BTreeMap<ConnectionId, String>,
    cables: BTreeMap<Port, Port>,
    nodes: BTreeMap<String, AnnouncedNode>,
    now: Time,
    network_deadline: Option<Time>,
    next_announcement: Time,
    announcement_interval: Duration,
}

impl FabricSimulation {
    /// Returns a fabric without switches at time zero. `key` authenticates the LLDP of its ports.
    pub fn new(config: FabricConfig, key: Key) -> FabricSimulation {
        let (publish, snapshots) = watch::channel(Arc::default());
        let (_, generation) = watch::channel(config.generation);
        let announcement_interval = config.lldp_interval;
        let network = Network::new(config, key, publish, Arc::default());
        let context = network.connection_context(generation);
        FabricSimulation {
            network,
            context,
            snapshots,
            connections: BTreeMap::new(),
            last_connection: 0,
            ended: BTreeMap::new(),
            cables: BTreeMap::new(),
            nodes: BTreeMap::new(),
            now: Time::ZERO,
            network_deadline: None,
            next_announcement: Time::ZERO,
            announcement_interval,
        }
    }

    /// Connects a switch from this address. Without `peer`, the caller sends its messages. Returns
    /// the number of the connection.
    pub fn connect(&mut self, address: IpAddr, peer: Option<SimulatedSwitch>) -> ConnectionId {
        self.last_connection += 1;
        let updates = Arc::new(PendingUpdate::default());
        let (packets_in, packets) = mpsc::channel(PACKETS);
        let connection = SimulatedConnection {
            address,
            channel: Channel::new(self.now, self.context.channel.clone()),
            framer: Framer::new(Padding::Ignore),
            handle: Some(SwitchHandle { updates: updates.clone(), packets: packets_in }),
            updates,
            packets,
            switch: None,
            catch_up: CatchUpNotifier::new(self.context.caught_up_interval, self.now),
            peer,
            sent: VecDeque::new(),
            sent_count: 0,
        };
        self.connections.insert(self.last_connection, connection);
        self.settle();
        self.last_connection
    }

    /// Ends a connection from the side of the switch. Returns the switch if it follows the
    /// standard.
    pub fn disconnect(&mut self, id: ConnectionId) -> Option<SimulatedSwitch> {
        let peer = self.end(id, "it closed the connection".to_owned());
        self.settle();
        peer
    }

    /// Receives bytes of a switch whose messages the caller sends. Bytes on a connection that has
    /// ended are ignored.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8]) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.framer.push(bytes);
        }
        while let Some(connection) = self.connections.get_mut(&id)
            && let Some(bytes) = connection.framer.next_bytes()
        {
            let input = match bytes.map(|bytes| (bytes, Message::decode_with(bytes, Padding::Ignore))) {
                Ok((_, Ok(message))) => Input::Received(message),
                Ok((bytes, Err(error))) => Input::Unreadable(MessageHeader::read(bytes), error),
                Err(error) => Input::Unreadable(None, error),
            };
            connection.catch_up.on_message();
            connection.channel.handle(self.now, input);
            self.drain(id);
        }
        self.settle();
    }

    /// Lets a port receive a frame from outside of the network, if its switch is connected.
    pub fn receive_frame(&mut self, port: Port, frame: &[u8]) {
        self.deliver_frame(port, frame);
        self.settle();
    }

    /// Connects two ports by a cable, or pulls it. Both ends notice.
    pub fn set_cable(&mut self, ends: [Port; 2], up: bool) {
        for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            match up {
                true => self.cables.insert(end, peer),
                false => self.cables.remove(&end),
            };
            if let Some(peer) = self.peer_mut(end.switch) {
                peer.set_port(end.number, up);
            }
        }
        self.settle();
    }

    /// Registers a node, and lets its agent announce it at a port from now on.
    ///
    /// # Errors
    /// Returns the reason for which the registration is refused.
    pub fn register(&mut self, registration: NodeRegistration, port: Port) -> Result<(), FabricError> {
        self.request(|reply| FabricRequest::Register(registration.clone(), reply)).unwrap_or(Ok(()))?;
        self.nodes.insert(registration.name.clone(), AnnouncedNode { registration, port });
        Ok(())
    }

    /// Unregisters a node, and ends its announcements.
    pub fn unregister(&mut self, name: &str) {
        self.nodes.remove(name);
        // Unregistration never fails.
        let _ = self.request(|reply| FabricRequest::Unregister(name.to_owned(), reply));
    }

    /// Creates a group. Returns its trees, or `None` if switches have to acknowledge them first.
    pub fn create_group(
        &mut self,
        id: u64,
        members: Vec<String>,
    ) -> Option<Result<Vec<TreeGrant>, FabricError>> {
        self.request(|reply| {
            FabricRequest::CreateGroup(
                GroupRequest { id, members, can_prove: false, can_join_sources: false },
                reply,
            )
        })
    }

    /// Releases a group.
    pub fn release_group(&mut self, id: u64) {
        // The group may be unknown.
        let _ = self.request(|reply| FabricRequest::ReleaseGroup(id, reply));
    }

    fn request<T>(
        &mut self,
        request: impl FnOnce(RequestReply<T>) -> FabricRequest,
    ) -> Option<Result<T, FabricError>> {
        let (reply, mut answer) = oneshot::channel();
        self.network.handle_request(self.now, request(reply));
        self.settle();
        answer.try_recv().ok()
    }

    /// Lets time pass. Switches and agents act meanwhile.
    pub fn pass_time(&mut self, duration: Duration) {
        let end = self.now + duration;
        let mut rounds = 0;
        loop {
            let channels = self.connections.values_mut().map(|connection| {
                let channel = match connection.channel.poll(self.now) {
                    Poll::Idle(deadline) => deadline,
                    Poll::Output(output) => panic!("an output remains: {output:?}"),
                };
                earliest(channel, connection.catch_up.due())
            });
            let deadlines: Vec<Option<Time>> = channels.collect();
            let peers = self.connections.values().map(|connection| connection.peer.as_ref()?.deadline());
            let own = [self.network_deadline, Some(self.next_announcement)];
            let next = own.into_iter().chain(peers).chain(deadlines).fold(None, earliest);
            let Some(next) = next.filter(|next| *next <= end) else { break };
            rounds = if next > self.now { 0 } else { rounds + 1 };
            assert!(rounds < ROUNDS_MAX, "a deadline at {next:?} remains although it is {:?}", self.now);
            self.now = self.now.max(next);
            if self.now >= self.next_announcement {
                self.announce_nodes();
            }
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    fn announce_nodes(&mut self) {
        self.next_announcement = self.now + self.announcement_interval;
        let number = self.now.as_nanos() + 1;
        let announced = |AnnouncedNode { registration, port }: &AnnouncedNode| {
            let NodeRegistration { name, mac, lldp_key, .. } = registration;
            let announcement = Announcement::Node { name: name.clone(), mac: *mac };
            Some((*port, announcement.encode(*mac, lldp_key, number).ok()?))
        };
        for (port, frame) in self.nodes.values().filter_map(announced).collect::<Vec<_>>() {
            self.deliver_frame(port, &frame);
        }
    }

    /// Executes everything that can happen at the current time.
    ///
    /// # Panics
    /// If switches and controller do not stop reacting to each other.
    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.network_deadline = self.network.advance(self.now);
            let mut active = false;
            for id in self.connections.keys().copied().collect::<Vec<_>>() {
                active |= self.step(id);
            }
            if !active {
                return;
            }
        }
        panic!("switches and controller still exchange messages after {ROUNDS_MAX} rounds at {:?}", self.now);
    }

    /// Lets a connection do what it can now. Returns whether it did anything that may concern
    /// others.
    fn step(&mut self, id: ConnectionId) -> bool {
        let now = self.now;
        let mut active = false;
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        if let Some(update) = connection.updates.take() {
            connection.channel.handle(now, Input::Update(update));
            active = true;
        }
        loop {
            match connection.packets.try_recv() {
                Ok((ports, frame)) => {
                    connection.channel.handle(now, Input::Packet(ports, frame));
                    active = true;
                }
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.end(id, "a newer connection took its place".to_owned());
                    return true;
                }
            }
        }
        active |= self.drain(id);
        while let Some(connection) = self.connections.get_mut(&id)
            && let Some(message) = connection.peer.as_mut().and_then(|peer| peer.next_message(now))
        {
            connection.catch_up.on_message();
            connection.channel.handle(now, Input::Received(message));
            self.drain(id);
            active = true;
        }
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        if connection.catch_up.due().is_some_and(|due| due <= now) {
            connection.catch_up.notified(now);
            self.notify(id, SwitchEvent::CaughtUp);
            active = true;
        }
        active
    }

    /// Executes the outputs of a channel. Returns whether there were any.
    fn drain(&mut self, id: ConnectionId) -> bool {
        let mut active = false;
        while let Some(connection) = self.connections.get_mut(&id)
            && let Poll::Output(output) = connection.channel.poll(self.now)
        {
            active = true;
            match output {
                Output::Send(message) => self.send(id, message),
                Output::Up(info) => {
                    let Some(handle) = connection.handle.take() else { continue };
                    let (switch, address) = (info.datapath_id, connection.address);
                    if let Err(why) = self.context.peers.claim(switch, id, address) {
                        let text = why.to_string();
                        self.context.telemetry.not_admitted(switch, address, why);
                        self.end(id, text);
                        return true;
                    }
                    connection.switch = Some(switch);
                    self.notify(id, SwitchEvent::Up(Box::new(info), handle));
                }
                Output::NotAdmitted(claimed, why) => {
                    self.context.telemetry.not_admitted(claimed, connection.address, why);
                }
                Output::PortChanged(port) => self.notify(id, SwitchEvent::PortChanged(port)),
                Output::PortRemoved(port) => self.notify(id, SwitchEvent::PortRemoved(port)),
                Output::Counted(inventory) => self.notify(id, SwitchEvent::Counted(inventory)),
                Output::Withheld(changes) => self.notify(id, SwitchEvent::Withheld(changes)),
                Output::BlockRefused(port) => self.notify(id, SwitchEvent::BlockRefused(port)),
                Output::PacketIn(port, frame) => self.notify(id, SwitchEvent::PacketIn(port, frame)),
                Output::Counters(counted) => {
                    if let Some(switch) = connection.switch {
                        self.context.telemetry.counted(id, switch, self.now, counted);
                    }
                }
                Output::Acknowledged(version, refusals) => {
                    self.notify(id, SwitchEvent::Acknowledged(version, refusals));
                }
                Output::Warning(_) => {}
                Output::Close(why) => {
                    self.end(id, why);
                    return true;
                }
            }
        }
        active
    }

    fn send(&mut self, id: ConnectionId, message: Message) {
        // The bytes must be valid.
        let bytes = message.encode().unwrap_or_else(|error| panic!("cannot encode {message:?}: {error}"));
        debug_assert!(!bytes.is_empty());
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.sent_count += 1;
        let Some(peer) = &mut connection.peer else { return connection.sent.push_back(message) };
        let switch = peer.datapath_id();
        for (number, frame) in peer.receive(self.now, &message) {
            if let Some(to) = self.cables.get(&Port { switch, number }).copied() {
                self.deliver_frame(to, &frame);
            }
        }
    }

    fn deliver_frame(&mut self, port: Port, frame: &[u8]) {
        if let Some(peer) = self.peer_mut(port.switch) {
            peer.receive_frame(port.number, frame);
        }
    }

    fn peer_mut(&mut self, switch: DatapathId) -> Option<&mut SimulatedSwitch> {
        let mut peers = self.connections.values_mut().filter_map(|connection| connection.peer.as_mut());
        peers.find(|peer| peer.datapath_id() == switch)
    }

    fn notify(&mut self, id: ConnectionId, event: SwitchEvent) {
        if let Some(switch) = self.connections.get(&id).and_then(|connection| connection.switch) {
            self.network.event(self.now, FromSwitch { connection: id, switch, event });
        }
    }

    fn end(&mut self, id: ConnectionId, why: String) -> Option<SimulatedSwitch> {
        self.notify(id, SwitchEvent::Down);
        let connection = self.connections.remove(&id)?;
        if let Some(switch) = connection.switch {
            self.context.telemetry.ended(id, switch);
            self.context.peers.release(switch, id);
        }
        self.ended.insert(id, why);
        connection.peer
    }

    /// Returns why a connection has ended; `None` while it is open.
    pub fn reason_of_end(&self, id: ConnectionId) -> Option<&str> {
        self.ended.get(&id).map(String::as_str)
    }

    /// Returns the switch of an open connection, if it follows the standard.
    pub fn switch(&self, id: ConnectionId) -> Option<&SimulatedSwitch> {
        self.connections.get(&id)?.peer.as_ref()
    }

    /// Returns the switch of an open connection for changes, if it follows the standard.
    pub fn switch_mut(&mut self, id: ConnectionId) -> Option<&mut SimulatedSwitch> {
        self.connections.get_mut(&id)?.peer.as_mut()
    }

    /// Takes the oldest message to a switch whose messages the caller sends.
    pub fn next_sent(&mut self, id: ConnectionId) -> Option<Message> {
        self.connections.get_mut(&id)?.sent.pop_front()
    }

    /// Returns the number of messages that have been sent on an open connection.
    pub fn sent_count(&self, id: ConnectionId) -> u64 {
        self.connections.get(&id).map_or(0, |connection| connection.sent_count)
    }

    /// Returns the current snapshot of the network.
    pub fn snapshot(&self) -> Arc<TopologySnapshot> {
        self.snapshots.borrow().clone()
    }

    /// Returns the current measurements.
    pub fn measurements(&self) -> Measurements {
        self.context.telemetry.read()
    }

    /// Returns the number of switches about which the network keeps state, and the number of tables
    /// that it intends for switches.
    pub fn kept_switches(&self) -> (usize, usize) {
        (self.network.switches.iter().count(), self.network.intended_tables().len())
    }

    /// Returns the entries of a switch that follows the standard.
    pub fn entries(&self, id: ConnectionId) -> Option<InstalledEntries> {
        Some(InstalledEntries(self.switch(id)?.tables()))
    }

    /// Returns differences between the entries that a switch should have and those that it has.
    /// Missing entries are no difference if `may_lack` is set.
    pub fn differences(&self, id: ConnectionId, may_lack: bool) -> Vec<String> {
        let Some(peer) = self.switch(id) else { return vec!["it is not connected".to_owned()] };
        let Some(intended) = self.network.intended_tables().get(&peer.datapath_id()) else {
            return vec!["the network does not know the switch".to_owned()];
        };
        let installed = peer.tables();
        let mut differences = Vec::new();
        for (key, flow) in &intended.flows {
            match installed.flows.get(key) {
                None if may_lack => {}
                found if found == Some(flow) => {}
                found => differences.push(format!("{key:?}: {found:?} instead of {flow:?}")),
            }
        }
        for (number, buckets) in &intended.groups {
            match installed.groups.get(number) {
                None if may_lack => {}
                found if found == Some(buckets) => {}
                found => differences.push(format!("group {number}: {found:?} instead of {buckets:?}")),
            }
        }
        let flows = installed.flows.keys().filter(|key| !intended.flows.contains_key(key));
        differences.extend(flows.map(|key| format!("{key:?} should not be there")));
        let groups = installed.groups.keys().filter(|number| !intended.groups.contains_key(number));
        differences.extend(groups.map(|number| format!("group {number} should not be there")));
        differences
    }
}

impl core::fmt::Debug for FabricSimulation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FabricSimulation").field("now", &self.now).finish_non_exhaustive()
    }
}
