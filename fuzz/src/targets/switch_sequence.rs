//! Sequences of messages of switches: two switches follow the standard, each with quirks, while a
//! third peer sends any messages of OpenFlow, connects and disconnects, and hosts send any frames.
//! Cables are pulled, nodes and groups come and go, and flows are lost.
//!
//! The two switches must stay connected, and after a quiet time have exactly the entries that the
//! controller intends. The third peer must not change these entries: the same sequence without it
//! must lead to the same ones. Each step causes a bounded number of messages, and nothing remains
//! of peers that have disconnected. If the controller only observes, the same sequence causes no
//! message that may change a switch.

use crate::Bytes;
use cool_fabric::testing::{FabricSimulation, InstalledEntries, SimulatedSwitch, SwitchQuirks, packet_in};
use cool_fabric::{DatapathId, FabricConfig, HostLimits, MacAddr, NodeRegistration, Port};
use rs_openflow::{
    Body, ErrorMessage, ErrorType, FlowRemoved, Match, Message, MultipartFlags, MultipartReply, PortNo,
    PortReason, VERSION,
};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Maximum number of steps of an input.
const STEPS_MAX: usize = 48;

/// The switches that follow the standard, and the datapath id of the third peer.
const SWITCHES: [DatapathId; 2] = [DatapathId(1), DatapathId(2)];
const PEER: DatapathId = DatapathId(9);

/// Ports of the switches: the cable between them, nodes, and hosts without an agent.
const PORTS: u32 = 5;
const CABLE: u32 = 1;
const NODE_PORTS: [u32; 2] = [2, 3];
const HOST_PORTS: [u32; 2] = [4, 5];

/// Names of the nodes, two at each switch.
const NODES: u8 = 4;

/// Number of groups that a sequence uses.
const GROUPS: u8 = 3;

/// Kinds of steps: those of the network, and from [`PEER_STEP`] on those of the third peer.
const NETWORK_STEPS: u8 = 11;
const PEER_STEP: u8 = 100;
const PEER_STEPS: u8 = 16;

/// Maximum number of bytes of a step.
const STEP_BYTES_MAX: u8 = 100;

/// Maximum number of messages to the two switches that one step without a passage of time may
/// cause: all entries are sent anew, with barriers and announcements.
const MESSAGES_PER_STEP_MAX: u64 = 600;

/// Maximum number of messages to them in a second, once nothing changes.
const MESSAGES_PER_QUIET_SECOND_MAX: u64 = 60;

/// Time in which everything settles: longer than the interval of checks of the tables, the grace
/// for disconnected switches, and the retention of stale trees.
const QUIET: Duration = Duration::from_secs(100);

fn config(observes: bool) -> FabricConfig {
    FabricConfig {
        observes,
        lldp_interval: Duration::from_secs(1),
        stale_time: Duration::from_secs(4),
        grace: Duration::from_secs(5),
        counters_interval: Duration::from_secs(10),
        hosts: Some(HostLimits { all: 6, per_port: 2 }),
        ..FabricConfig::default()
    }
}

fn node(number: u8) -> (NodeRegistration, Port) {
    let registration = NodeRegistration {
        name: format!("h{number}"),
        ip: Ipv4Addr::new(10, 0, 0, number + 1).into(),
        mac: MacAddr(2, 0, 0, 0, 0, number),
        lldp_key: [number; 32].into(),
        rack: None,
        neighbor: None,
    };
    let place = Port {
        switch: SWITCHES[usize::from(number / 2) % SWITCHES.len()],
        number: NODE_PORTS[usize::from(number) % NODE_PORTS.len()],
    };
    (registration, place)
}

fn quirks(byte: u8) -> SwitchQuirks {
    SwitchQuirks {
        no_groups: byte & 1 != 0,
        max_flows: (byte & 2 != 0).then_some(usize::from(byte / 16)),
        part_delay: Duration::from_secs(if byte & 4 != 0 { 3 } else { 0 }),
        barrier_delay: Duration::from_secs(if byte & 8 != 0 { 7 } else { 0 }),
    }
}

/// The network of one run, and the connections to it.
struct Sequence {
    fabric: FabricSimulation,
    /// Connections of the two switches.
    switches: [u64; 2],
    quirks: [SwitchQuirks; 2],
    /// Connection of the third peer.
    peer: Option<u64>,
    /// Answers for it, when it behaves.
    model: SimulatedSwitch,
    /// Number of messages that may have changed it, on earlier connections.
    peer_changes: u64,
    /// Last transactions of the controller on its connection.
    transactions: VecDeque<u32>,
}

/// What must be the same with and without the third peer.
#[derive(Debug, PartialEq)]
struct Outcome {
    entries: Vec<Option<InstalledEntries>>,
    nodes: Vec<(String, Option<Port>)>,
}

impl Sequence {
    fn start(quirk_bytes: [u8; 2], observes: bool) -> Sequence {
        let mut fabric = FabricSimulation::new(config(observes), [77; 32].into());
        let quirks = quirk_bytes.map(quirks);
        let switches = [0, 1].map(|i| {
            fabric.connect(address(i), Some(SimulatedSwitch::new(SWITCHES[i], PORTS, quirks[i])))
        });
        fabric.set_cable(SWITCHES.map(|switch| Port { switch, number: CABLE }), true);
        for number in 0..NODES {
            let (registration, port) = node(number);
            fabric.register(registration, port).expect("nodes have different addresses");
        }
        fabric.pass_time(Duration::from_secs(8));
        let model = SimulatedSwitch::new(PEER, PORTS, SwitchQuirks::default());
        let transactions = VecDeque::new();
        Sequence { fabric, switches, quirks, peer: None, model, peer_changes: 0, transactions }
    }

    /// Receives a message of the third peer.
    fn receive(&mut self, xid: u32, body: Body) {
        // Some values cannot be encoded; such a message cannot be sent either.
        if let (Some(peer), Ok(bytes)) = (self.peer, Message::new(xid, body).encode()) {
            self.fabric.receive(peer, &bytes);
        }
    }

    /// Takes the messages to the third peer, up to `most`. Sends the answers if it `answers`.
    fn take_sent(&mut self, most: u8, answers: bool) {
        let Some(peer) = self.peer else { return };
        for _ in 0..most {
            let Some(message) = self.fabric.next_sent(peer) else { break };
            self.transactions.push_front(message.xid);
            self.transactions.truncate(16);
            if answers {
                for answer in self.model.answers(&message) {
                    self.receive(answer.xid, answer.body);
                }
            }
        }
    }

    /// Returns one of the last transactions of the controller, or any other one.
    fn xid(&self, byte: u8) -> u32 {
        self.transactions.get(usize::from(byte % 32)).copied().unwrap_or(u32::from(byte) | u32::from(byte & 1) << 31)
    }

    /// Executes a step of the third peer. Returns whether time has passed, which is never the case.
    fn peer_step(&mut self, kind: u8, bytes: &mut Bytes<'_>) -> bool {
        let claimed = [PEER, DatapathId(10), SWITCHES[0], SWITCHES[1]];
        match kind {
            0 => {
                self.disconnect_peer();
                let host = bytes.below(2);
                let claimed = claimed[usize::from(bytes.below(4))];
                self.peer_changes += self.model.change_count();
                self.model = SimulatedSwitch::new(claimed, PORTS, SwitchQuirks::default());
                self.peer = Some(self.fabric.connect(address(10 + usize::from(host)), None));
            }
            1 => self.disconnect_peer(),
            // It behaves for a while.
            2..=5 => self.take_sent(bytes.byte(), true),
            6 => self.take_sent(bytes.byte(), false),
            7 => {
                // Answers with parts missing, repeated, or to other requests.
                let Some(message) = self.peer.and_then(|peer| self.fabric.next_sent(peer)) else { return false };
                let (variant, other) = (bytes.byte(), bytes.byte());
                self.transactions.push_front(message.xid);
                for mut answer in self.model.answers(&message) {
                    if let Body::MultipartReply(reply) = &mut answer.body
                        && variant & 1 != 0
                    {
                        reply.flags = MultipartFlags::MORE;
                    }
                    let xid = if variant & 2 != 0 { self.xid(other) } else { answer.xid };
                    for _ in 0..=variant / 64 {
                        self.receive(xid, answer.body.clone());
                    }
                }
            }
            8 => {
                let (xid, kind, code) = (bytes.byte(), bytes.byte(), bytes.below(14));
                let failure = ErrorMessage::new(ErrorType(u16::from(kind % 14)), u16::from(code), Vec::new());
                self.receive(self.xid(xid), Body::Error(failure));
            }
            9 => {
                let xid = self.xid(bytes.byte());
                self.receive(xid, Body::BarrierReply);
            }
            10 => {
                let (port, reason) = (bytes.byte(), bytes.below(4));
                let reason = [PortReason::ADD, PortReason::DELETE, PortReason::MODIFY, PortReason(9)]
                    [usize::from(reason)];
                let status = SimulatedSwitch::port_status(u32::from(port % 8), port < 128, reason);
                self.receive(0, Body::PortStatus(status));
            }
            11 | 12 => {
                let (port, frame) = (bytes.below(8), frame(bytes));
                self.receive(0, Body::PacketIn(packet_in(u32::from(port), &frame)));
            }
            13 => {
                // Flows of the controller, in a report that was requested or not.
                let (xid, which, change, purpose) = (bytes.byte(), bytes.byte(), bytes.byte(), bytes.byte());
                let honest = self.fabric.switch(self.switches[0]);
                let mut flows = honest.map(SimulatedSwitch::flow_stats).unwrap_or_default();
                if !flows.is_empty() {
                    let from = usize::from(which) % flows.len();
                    flows.rotate_left(from);
                }
                flows.truncate(usize::from(change % 8) + 1);
                for flow in &mut flows {
                    flow.cookie = flow.cookie & !0xff00_0000 | u64::from(purpose % 16) << 24;
                    flow.cookie ^= u64::from(change);
                }
                self.receive(self.xid(xid), Body::MultipartReply(MultipartReply::Flow(flows).into()));
            }
            14 => {
                let removed = FlowRemoved {
                    cookie: u64::from(bytes.byte()),
                    priority: 0,
                    reason: rs_openflow::FlowRemovedReason::DELETE,
                    table: rs_openflow::TableId(0),
                    duration_s: 0,
                    duration_ns: 0,
                    idle_timeout: 0,
                    hard_timeout: 0,
                    packets: rs_openflow::Counter(0),
                    bytes: rs_openflow::Counter(0),
                    matching: Match::new().in_port(PortNo(1)),
                };
                self.receive(0, Body::FlowRemoved(removed));
            }
            _ => {
                // Any bytes behind a valid header.
                let (kind, xid, rest) = (bytes.byte(), bytes.byte(), bytes.take(96));
                let length = (8 + rest.len() as u16).to_be_bytes();
                let header = [&[VERSION, kind % 32][..], &length, &self.xid(xid).to_be_bytes()].concat();
                if let Some(peer) = self.peer {
                    self.fabric.receive(peer, &[&header[..], rest].concat());
                }
            }
        }
        false
    }

    fn disconnect_peer(&mut self) {
        if let Some(peer) = self.peer.take() {
            self.fabric.disconnect(peer);
        }
        self.transactions.clear();
    }

    /// Executes a step that concerns the network of the two switches. Returns whether time has
    /// passed.
    fn network_step(&mut self, kind: u8, bytes: &mut Bytes<'_>) -> bool {
        match kind {
            0 => {
                let up = bytes.below(2) == 0;
                self.fabric.set_cable(SWITCHES.map(|switch| Port { switch, number: CABLE }), up);
            }
            1 => {
                // A new connection, with or without the entries.
                let (at, restarts) = (usize::from(bytes.below(2)), bytes.below(2) == 0);
                if let Some(mut switch) = self.fabric.disconnect(self.switches[at]) {
                    switch.reconnect(restarts);
                    self.switches[at] = self.fabric.connect(address(at), Some(switch));
                }
            }
            2 => {
                let (at, index) = (usize::from(bytes.below(2)), bytes.byte());
                if let Some(switch) = self.fabric.switch_mut(self.switches[at]) {
                    switch.lose_flow(usize::from(index));
                }
            }
            3 => {
                let id = u64::from(bytes.below(GROUPS));
                let members = bytes.byte();
                let members = (0..NODES).filter(|number| members & (1 << number) != 0);
                self.fabric.create_group(id, members.map(|number| format!("h{number}")).collect());
            }
            4 => self.fabric.release_group(u64::from(bytes.below(GROUPS))),
            5 => self.fabric.unregister(&format!("h{}", bytes.below(NODES))),
            6 => {
                let (registration, port) = node(bytes.below(NODES));
                // The node may be registered already.
                self.fabric.register(registration, port).expect("nodes have different addresses");
            }
            7 | 8 => {
                let (switch, number) = (SWITCHES[usize::from(bytes.below(2))], HOST_PORTS[usize::from(bytes.below(2))]);
                let frame = frame(bytes);
                self.fabric.receive_frame(Port { switch, number }, &frame);
            }
            _ => {
                let duration = Duration::from_millis(u64::from(bytes.byte()) * 40);
                self.fabric.pass_time(duration);
                return true;
            }
        }
        false
    }

    /// Checks what must hold at any time.
    fn check(&self) {
        for (at, connection) in self.switches.iter().enumerate() {
            let reason = self.fabric.reason_of_end(*connection);
            assert_eq!(reason, None, "the connection of switch {at}, which follows the standard, has ended");
        }
        let snapshot = self.fabric.snapshot();
        assert!(snapshot.hosts.len() <= 6, "{:?}", snapshot.hosts);
        assert!(snapshot.switches.len() <= 4, "{:?}", snapshot.switches);
        let looped = snapshot.warnings.iter().find(|warning| warning.contains("closed to hosts"));
        assert_eq!(looped, None, "no port is connected to another one outside of the network");
    }

    /// Waits until nothing changes any more, and returns the result.
    fn finish(&mut self) -> Outcome {
        self.disconnect_peer();
        self.fabric.pass_time(QUIET);
        let before = self.messages();
        self.fabric.pass_time(Duration::from_secs(5));
        let messages = self.messages() - before;
        assert!(messages <= 5 * MESSAGES_PER_QUIET_SECOND_MAX, "{messages} messages although nothing happens");
        self.check();
        for (at, connection) in self.switches.iter().enumerate() {
            let may_lack = self.quirks[at].max_flows.is_some() || self.quirks[at].no_groups;
            let differences = self.fabric.differences(*connection, may_lack);
            assert_eq!(differences, [""; 0], "switch {at}");
        }
        assert_eq!(self.fabric.kept_switches(), (2, 2), "nothing may remain of the other peer");
        let measured: Vec<_> = self.fabric.measurements().switches.into_keys().collect();
        assert_eq!(measured, SWITCHES);
        let nodes = &self.fabric.snapshot().nodes;
        let nodes = nodes.iter().map(|node| (node.name.clone(), node.location.and_then(|location| location.port)));
        Outcome {
            entries: self.switches.map(|connection| self.fabric.entries(connection)).into(),
            nodes: nodes.collect(),
        }
    }

    /// Waits until nothing changes any more, and checks that nothing has changed the switches.
    fn finish_observing(&mut self) {
        self.fabric.pass_time(QUIET);
        for (at, connection) in self.switches.iter().enumerate() {
            let switch = self.fabric.switch(*connection);
            assert_eq!(switch.map(SimulatedSwitch::change_count), Some(0), "switch {at}");
            assert_eq!(switch.map(|switch| switch.flow_stats().len()), Some(0), "switch {at}");
        }
        assert_eq!(self.peer_changes + self.model.change_count(), 0, "the third peer");
    }

    /// Returns the number of messages to the two switches on their current connections.
    fn messages(&self) -> u64 {
        self.switches.iter().map(|connection| self.fabric.sent_count(*connection)).sum()
    }
}

fn address(of: usize) -> IpAddr {
    Ipv4Addr::new(192, 168, 0, of as u8).into()
}

/// Returns a frame of a host: an ARP packet, a broadcast, DHCP, LLDP, or any bytes.
fn frame(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let (kind, from, to) = (bytes.below(6), bytes.below(8), bytes.below(8));
    let source = [2, 0, 0, 0, 0, 0x40 + from];
    // A third of the hosts send from addresses of nodes.
    let source = if from >= 6 { [2, 0, 0, 0, 0, to] } else { source };
    let ip = |of: u8| [10, 0, 0, of];
    let broadcast = [0xff; 6];
    match kind {
        0 => {
            let operation = 1 + from % 2;
            let arp = [&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation][..], &source, &ip(0x40 + from), &[0; 6], &ip(to)];
            [&broadcast[..], &source, &arp.concat()].concat()
        }
        1 => [&broadcast[..], &source, &[8, 0, to], &[7; 46]].concat(),
        2 => [&[2, 0, 0, 0, 0, to][..], &source, &[8, 0], &[0; 46]].concat(),
        3 => {
            let ip = [0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 68, 0, 67];
            [&broadcast[..], &source, &[8, 0], &ip, &[0; 40]].concat()
        }
        4 => [&[1, 0x80, 0xc2, 0, 0, 0x0e][..], &source, &[0x88, 0xcc], bytes.take(80)].concat(),
        _ => [&broadcast[..], &source, bytes.take(80)].concat(),
    }
}

pub(crate) fn check(bytes: &[u8]) {
    let with = run(bytes, true, false).finish();
    assert_eq!(with, run(bytes, false, false).finish(), "with and without the third peer");
    run(bytes, true, true).finish_observing();
}

/// Executes the steps of an input. Each step has its own bytes, so that the third peer's steps can
/// be left out. Returns the network after the last one.
fn run(bytes: &[u8], with_peer: bool, observes: bool) -> Sequence {
    let mut bytes = Bytes(bytes);
    let mut sequence = Sequence::start([bytes.byte(), bytes.byte()], observes);
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        let kind = bytes.byte();
        let mut step = Bytes(bytes.take(STEP_BYTES_MAX));
        let (before, connections) = (sequence.messages(), sequence.switches);
        let passes_time = match kind.checked_sub(PEER_STEP) {
            Some(kind) if with_peer => sequence.peer_step(kind % PEER_STEPS, &mut step),
            Some(_) => continue,
            None => sequence.network_step(kind % NETWORK_STEPS, &mut step),
        };
        if !passes_time && connections == sequence.switches {
            let messages = sequence.messages() - before;
            assert!(messages <= MESSAGES_PER_STEP_MAX, "a step {kind} caused {messages} messages");
        }
        sequence.check();
    }
    sequence
}

/// Returns an input with these quirks and steps.
#[cfg(test)]
fn input(quirks: [u8; 2], steps: &[(u8, &[u8])]) -> Vec<u8> {
    let steps = steps.iter().flat_map(|(kind, bytes)| [&[*kind, bytes.len() as u8], *bytes].concat());
    quirks.into_iter().chain(steps).collect()
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    const fn peer(kind: u8) -> u8 {
        PEER_STEP + kind
    }
    let up: [(u8, &[u8]); 3] = [(peer(0), &[0, 0]), (peer(2), &[255]), (peer(2), &[255])];
    let with_peer = |steps: &[(u8, &[u8])]| input([0, 0], &[&up[..], steps].concat());
    vec![
        // Groups, cables, lost flows and new connections, with and without the entries.
        input([0, 0], &[(3, &[0, 15]), (0, &[1]), (9, &[50]), (0, &[0]), (9, &[50]), (4, &[0])]),
        input([0, 0], &[(3, &[1, 7]), (2, &[0, 3]), (9, &[255]), (1, &[0, 0]), (9, &[99]), (1, &[1, 1])]),
        // Switches with slow reports and barriers, small tables, and no groups.
        input([4, 8], &[(3, &[0, 15]), (9, &[255]), (1, &[0, 1]), (9, &[255]), (2, &[1, 1]), (9, &[255])]),
        input([0x62, 1], &[(3, &[0, 15]), (9, &[99]), (1, &[1, 0]), (9, &[99]), (1, &[0, 0])]),
        // Hosts send frames, some of them with the bytes of another host.
        input([0, 0], &[(9, &[200]), (7, &[0, 0, 0, 1, 2]), (7, &[1, 0, 1, 1, 2]), (7, &[0, 1, 1, 1, 2])]),
        input([0, 0], &[(9, &[200]), (7, &[0, 0, 0, 1, 2]), (7, &[1, 1, 0, 2, 1]), (5, &[1]), (6, &[1])]),
        // The third peer behaves, then sends frames, errors and reports, and ends.
        with_peer(&[(9, &[50]), (peer(2), &[255]), (peer(11), &[1, 0, 2, 3]), (peer(11), &[2, 1, 6, 1])]),
        with_peer(&[(3, &[0, 15]), (peer(8), &[0, 5, 1]), (peer(9), &[0]), (peer(10), &[7, 1]), (9, &[40])]),
        with_peer(&[(peer(13), &[0, 3, 4, 8]), (peer(2), &[99]), (9, &[255]), (peer(1), &[]), (9, &[255])]),
        // It claims the datapath id of a switch.
        input([0, 0], &[(peer(0), &[0, 2]), (peer(2), &[255]), (peer(2), &[255]), (peer(11), &[2, 1, 1, 1])]),
        // It takes part in the handshake only in part, and sends messages that cannot be read.
        input([0, 0], &[(peer(0), &[1, 0]), (peer(7), &[0, 0]), (peer(7), &[1, 0]), (peer(15), &[19, 0, 0])]),
    ]
}

/// Checks that the third peer of a seed comes up, because otherwise its messages would be ignored.
#[test]
fn the_third_peer_of_a_seed_is_a_switch_of_the_network() {
    let mut sequence = Sequence::start([0, 0], false);
    sequence.peer_step(0, &mut Bytes(&[0, 0]));
    for _ in 0..2 {
        sequence.peer_step(2, &mut Bytes(&[255]));
    }
    assert_eq!(sequence.fabric.kept_switches(), (3, 3));
}

// Each input is executed three times, over more than a minute of simulated time.
target!(8);
