//! A cabled network of model switches, each with its reconciler, under one [`Fabric`]. After every
//! step of every switch it is checked that no packet can loop.

use super::super::*;
use crate::api::TableCapacity;
use crate::api::{GroupRequest, MacAddr, NodeRegistration};
use crate::frames::pmac;
use crate::intent::addresses::IpVersion;
use crate::intent::tables::GROUPS;
use crate::request::FabricRequest;
use crate::request::RequestReply;
use crate::switch::connection::PendingUpdate;
use crate::switch::model::{self, ModelPacket};
use crate::switch::port_info::PortInfo;
use crate::switch::reconciler::{self, Reconciler};
use cool_topology::Graph;
use cool_topology::lldp::Announcement;
use core::net::{IpAddr, Ipv4Addr};
use std::collections::VecDeque;
use tokio::sync::{mpsc, oneshot};

/// A switch with its reconciler, without bytes between them.
pub(crate) struct Device {
    pub(crate) connection: ConnectionId,
    pub(crate) reconciler: Reconciler,
    pub(crate) switch: model::ModelSwitch,
    pub(crate) updates: Arc<PendingUpdate>,
    pub(crate) packets: mpsc::Receiver<(Vec<u32>, Vec<u8>)>,
    /// Whether it ignores messages and loses the frames it is sent.
    pub(crate) stuck: bool,
    pub(crate) read: bool,
    /// Whether its groups do not leave out the ingress port.
    pub(crate) returns_packets: bool,
}

impl Device {
    /// Returns the trees of which the switch has a part.
    pub(crate) fn trees(&self) -> Vec<u32> {
        self.switch.groups.range(GROUPS).map(|(number, _)| *number).collect()
    }
}

/// A cabled network of devices under one [`Fabric`].
pub(crate) struct World {
    pub(crate) truth: Graph,
    /// Other ends of cables that were pulled.
    pulled: BTreeMap<Port, Port>,
    pub(crate) network: Network,
    pub(crate) watch: watch::Receiver<Arc<TopologySnapshot>>,
    pub(crate) devices: BTreeMap<DatapathId, Device>,
    pub(crate) now: Time,
    pub(crate) deadline: Option<Time>,
    pub(crate) connections: u64,
    /// Nodes with silent agents.
    pub(crate) mute: BTreeSet<String>,
    /// Packets that switches have returned to their ingress port, with that port.
    returned: Vec<(Port, Vec<u8>)>,
    /// Ports that a switch without OpenFlow connects to each other.
    pub(crate) foreign_segment: BTreeSet<Port>,
}

/// An address that programs on hosts and nodes join.
pub(crate) const MULTICAST: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// An Ethernet address of multicast packets. Switches match their IP addresses.
const MULTICAST_MAC: MacAddr = MacAddr(1, 0, 0x5e, 1, 2, 3);

pub(crate) fn dpid(number: u64) -> DatapathId {
    DatapathId(number)
}

pub(crate) fn at(switch: u64, number: u32) -> Port {
    Port { switch: dpid(switch), number }
}

pub(crate) fn node(n: u8) -> NodeRegistration {
    let (name, lldp_key) = (format!("h{n}"), [n; 32].into());
    NodeRegistration {
        name,
        ip: ipv4(n).into(),
        mac: MacAddr(2, 0, 0, 0, 0, n),
        lldp_key,
        rack: None,
        neighbor: None,
    }
}

pub(crate) fn ipv4(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// Returns the same node with an agent that uses IPv6.
pub(crate) fn node_by_ipv6(n: u8) -> NodeRegistration {
    NodeRegistration { ip: [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into(), ..node(n) }
}

/// Returns a ring of four ToRs 1 to 4 with two hosts each.
pub(crate) fn ring() -> Graph {
    let mut graph = Graph::default();
    for tor in 1..=4u64 {
        graph.link(at(tor, 1), at(tor % 4 + 1, 2));
        graph.place(&format!("h{}", 2 * tor - 1), at(tor, 3));
        graph.place(&format!("h{}", 2 * tor), at(tor, 4));
    }
    graph
}

impl World {
    pub(crate) fn new(truth: Graph) -> World {
        World::of(truth, node)
    }

    pub(crate) fn of(truth: Graph, node: fn(u8) -> NodeRegistration) -> World {
        World::with(FabricConfig::default(), truth, node)
    }

    /// Returns a world whose controller has this configuration.
    pub(crate) fn with(config: FabricConfig, truth: Graph, node: fn(u8) -> NodeRegistration) -> World {
        let (publish, watch) = watch::channel(Arc::default());
        let network = Network::new(config, [77; 32].into(), publish, Arc::default());
        let mut world = World {
            truth,
            pulled: BTreeMap::new(),
            network,
            watch,
            devices: BTreeMap::new(),
            now: Time::ZERO,
            deadline: None,
            connections: 0,
            mute: BTreeSet::new(),
            returned: Vec::new(),
            foreign_segment: BTreeSet::new(),
        };
        for switch in world.truth.switches().collect::<Vec<_>>() {
            world.connect(switch, model::ModelSwitch::default());
        }
        for n in 1..=8 {
            let (reply, _) = oneshot::channel();
            world.network.handle_request(world.now, FabricRequest::Register(node(n), reply));
        }
        world.settle();
        world
    }

    pub(crate) fn connect(&mut self, switch: DatapathId, model: model::ModelSwitch) {
        let updates = Arc::new(PendingUpdate::default());
        let (packets_in, packets) = mpsc::channel(1000);
        self.connections += 1;
        let ports = (1..=4).map(|number| PortInfo {
            number,
            mac: MacAddr(2, 1, 0, 0, 0, number as u8),
            up: true,
            blocked: false,
            forwards: true,
            bytes_per_second: 1000 * u64::from(number),
        });
        let info = SwitchInfo {
            datapath_id: switch,
            name: format!("s{}", switch.0),
            ports: ports.collect(),
            inherited: crate::intent::inherited_state::InheritedState::read(&model.tables()),
            capacity: TableCapacity::default(),
            model: "model".to_owned(),
            tables: 1,
        };
        let connection = self.connections;
        let mut reconciler = Reconciler::new(None, self.network.config.observes);
        reconciler.handle(self.now, reconciler::Input::Start);
        let handle = SwitchHandle { updates: updates.clone(), packets: packets_in };
        let device = Device {
            connection,
            reconciler,
            switch: model,
            updates,
            packets,
            stuck: false,
            read: false,
            returns_packets: false,
        };
        self.devices.insert(switch, device);
        let event = SwitchEvent::Up(Box::new(info), handle);
        self.network.event(self.now, FromSwitch { connection, switch, event });
    }

    pub(crate) fn event(&mut self, switch: DatapathId, event: SwitchEvent) {
        let connection = self.devices[&switch].connection;
        for event in [event, SwitchEvent::CaughtUp] {
            self.network.event(self.now, FromSwitch { connection, switch, event });
        }
    }

    /// Lets one device do everything it can. Returns its events.
    fn run_device(&mut self, switch: DatapathId) -> Vec<SwitchEvent> {
        let now = self.now;
        let Some(device) = self.devices.get_mut(&switch) else { return Vec::new() };
        let mut events = Vec::new();
        if device.stuck {
            return events;
        }
        loop {
            if device.read
                && let Some(mut update) = device.updates.take()
            {
                let test = update.delta.group_test.take().filter(|_| device.returns_packets);
                self.returned.extend(test.map(|(number, frame)| (Port { switch, number }, frame)));
                device.reconciler.handle(now, reconciler::Input::Update(update));
            }
            match device.reconciler.poll(now) {
                Poll::Output(reconciler::Output::Send(message)) => {
                    for answer in device.switch.answer(&message) {
                        device.reconciler.handle(now, reconciler::Input::Reply(answer));
                    }
                }
                Poll::Output(reconciler::Output::Read(_)) => device.read = true,
                Poll::Output(reconciler::Output::Acknowledged(version, refusals)) => {
                    events.push(SwitchEvent::Acknowledged(version, refusals));
                }
                Poll::Output(reconciler::Output::Withheld(changes)) => {
                    events.push(SwitchEvent::Withheld(changes));
                }
                Poll::Output(reconciler::Output::Drifted(_) | reconciler::Output::Unrestorable(..)) => {}
                Poll::Output(reconciler::Output::Failed(why)) => panic!("{why}"),
                Poll::Idle(_) => return events,
            }
        }
    }

    /// Processes everything that can happen at the current time. No packet may loop meanwhile.
    pub(crate) fn settle(&mut self) {
        loop {
            self.deadline = self.network.advance(self.now);
            let mut events: VecDeque<(DatapathId, SwitchEvent)> = VecDeque::new();
            for switch in self.devices.keys().copied().collect::<Vec<_>>() {
                events.extend(self.run_device(switch).into_iter().map(|event| (switch, event)));
                // After every single switch, so that old and new tables are mixed.
                self.no_loops();
                while let Some(device) = self.devices.get_mut(&switch)
                    && let Ok((numbers, frame)) = device.packets.try_recv()
                {
                    for number in numbers {
                        for port in self.receivers(Port { switch, number }, &frame) {
                            events
                                .push_back((port.switch, SwitchEvent::PacketIn(port.number, frame.clone())));
                        }
                    }
                }
            }
            for (port, frame) in core::mem::take(&mut self.returned) {
                let peer = self.truth.peer(port).unwrap();
                events.push_back((peer.switch, SwitchEvent::PacketIn(peer.number, frame)));
            }
            if events.is_empty() {
                return;
            }
            for (switch, event) in events {
                if self.devices.contains_key(&switch) {
                    self.event(switch, event);
                }
            }
        }
    }

    /// Returns the ports that receive a frame that leaves by a port.
    fn receivers(&self, port: Port, frame: &[u8]) -> Vec<Port> {
        let by_cable = self.truth.peer(port);
        let passes = self.foreign_segment.contains(&port) && !crate::frames::is_lldp(frame);
        let others = self.foreign_segment.iter().copied().filter(|other| passes && *other != port);
        by_cable.into_iter().chain(others).collect()
    }

    /// Lets `count` LLDP intervals pass, in which agents announce themselves.
    pub(crate) fn intervals(&mut self, count: u32) {
        for _ in 0..count {
            self.now += FabricConfig::default().lldp_interval;
            let hosts: Vec<(String, Port)> = self.truth.hosts().map(|(n, p)| (n.to_owned(), p)).collect();
            for (name, port) in hosts {
                if self.mute.contains(&name) {
                    continue;
                }
                let Some(NodeRegistration { mac, lldp_key, .. }) = self.network.nodes.get(&name) else {
                    continue;
                };
                let (mac, number) = (*mac, self.now.as_nanos() + 1);
                let frame = Announcement::Node { name, mac }.encode(mac, lldp_key, number).unwrap();
                if self.devices.contains_key(&port.switch) {
                    self.event(port.switch, SwitchEvent::PacketIn(port.number, frame));
                }
            }
            self.settle();
        }
    }

    /// Limits a switch to `groups` more group entries than it has.
    pub(crate) fn leave_room(&mut self, switch: DatapathId, groups: u32) {
        let used = self.network.intent.rules(switch).unwrap().groups as u32;
        let capacity = TableCapacity { groups: Some(used + groups), ..TableCapacity::default() };
        self.network.switches.limit(switch, capacity);
    }

    pub(crate) fn model(&self) -> model::ModelNetwork<'_> {
        let switches = self.devices.iter().map(|(s, d)| (*s, d.switch.clone())).collect();
        model::ModelNetwork { graph: &self.truth, switches }
    }

    pub(crate) fn send(&self, from: u8, address: IpAddr) -> Vec<String> {
        let name = format!("h{from}");
        let ip = self.network.nodes.get(&name).map_or(node(from).ip, |node| node.ip);
        let packet = ModelPacket::from_ips(MULTICAST_MAC, (ip, address));
        let place = self.truth.host(&name).unwrap();
        self.model().send(place, packet).hosts.into_iter().map(|(host, _)| host).collect()
    }

    /// Sends packets from every member into every tree, from every host to another program's
    /// multicast address, and to every node; the model panics if one loops. Packets to nodes are
    /// also sent with each cable pulled while only the switches at its ends have noticed.
    fn no_loops(&self) {
        let mut model = self.model();
        let numbers = GROUPS.start..GROUPS.start + 4;
        let addresses = numbers.flat_map(|tree| [IpVersion::V4, IpVersion::V6].map(|ip| ip.address(tree)));
        let trees = addresses.map(|address| (address, MULTICAST_MAC));
        self.sent_from_everywhere(&model, trees);
        for (_, place) in self.truth.hosts() {
            model.send(place, ModelPacket::from_ips(MULTICAST_MAC, (ipv4(0).into(), MULTICAST.into())));
        }
        let places =
            || (0..4).filter_map(|rack| Some((Ipv4Addr::UNSPECIFIED.into(), pmac::for_port(rack, 3)?)));
        self.sent_from_everywhere(&model, places());
        for link in self.truth.links() {
            model.cable(link, false);
            self.sent_from_everywhere(&model, places());
            model.cable(link, true);
        }
    }

    fn sent_from_everywhere(
        &self,
        model: &model::ModelNetwork<'_>,
        to: impl Iterator<Item = (IpAddr, MacAddr)> + Clone,
    ) {
        for (name, place) in self.truth.hosts() {
            let Some(node) = self.network.nodes.get(name) else { continue };
            for (address, eth_dst) in to.clone() {
                model.send(place, ModelPacket::from_ips(eth_dst, (node.ip, address)));
            }
        }
    }

    pub(crate) fn ask<T>(
        &mut self,
        request: impl FnOnce(RequestReply<T>) -> FabricRequest,
    ) -> oneshot::Receiver<Result<T, FabricError>> {
        let (reply, answer) = oneshot::channel();
        self.network.handle_request(self.now, request(reply));
        self.settle();
        answer
    }

    pub(crate) fn group(
        &mut self,
        id: u64,
        members: &[u8],
    ) -> oneshot::Receiver<Result<Vec<TreeGrant>, FabricError>> {
        let members = members.iter().map(|n| format!("h{n}")).collect();
        self.ask(|reply| {
            FabricRequest::CreateGroup(
                GroupRequest { id, members, can_prove: false, can_join_sources: false },
                reply,
            )
        })
    }

    /// Pulls or connects the cable at a port. Both ends notice.
    pub(crate) fn cable(&mut self, port: Port, up: bool) {
        let peer = self.truth.peer(port).or_else(|| self.pulled.get(&port).copied()).unwrap();
        match up {
            true => self.truth.link(port, peer),
            false => drop(self.truth.unlink(port)),
        }
        self.pulled.insert(port, peer);
        for end in [port, peer] {
            let mac = MacAddr(2, 1, 0, 0, 0, end.number as u8);
            let info =
                PortInfo { number: end.number, mac, up, blocked: false, forwards: true, bytes_per_second: 0 };
            let down = &mut self.devices.get_mut(&end.switch).unwrap().switch.down;
            match up {
                true => down.remove(&end.number),
                false => down.insert(end.number),
            };
            self.event(end.switch, SwitchEvent::PortChanged(info));
        }
    }
}
