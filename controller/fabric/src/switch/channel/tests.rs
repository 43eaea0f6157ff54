//! The channel against well-behaved and misbehaving peers.

use super::*;
use crate::switch::port_info::kbps;

use proptest::prelude::*;
use rs_openflow::{
    BandType, BufferId, Capabilities, ControllerRole, Description, FixedText, GroupCapabilities,
    GroupFeatures, GroupType, HelloElement, MacAddr, Match, MeterFeatures, MeterFlags, Multipart,
    MultipartFlags, MultipartReply, PacketIn, PacketInReason, PerGroupType, PortFeatures, PortStatus,
    RoleConfig, SwitchFeatures, TableConfig, TableFeatures, TableId,
};
use rs_openflow::{PortConfig, PortReason, PortState};

mod description;
mod observe;
mod requests;

fn port(number: u32, name: &str) -> rs_openflow::Port {
    rs_openflow::Port {
        port: PortNo(number),
        hw_addr: MacAddr(2, 0, 0, 0, 1, number as u8),
        name: FixedText::new(name).unwrap(),
        config: PortConfig::NONE,
        state: PortState::LIVE,
        current: PortFeatures::FD_1G,
        advertised: PortFeatures::NONE,
        supported: PortFeatures::NONE,
        peer: PortFeatures::NONE,
        current_kbps: 1_000_000,
        max_kbps: 0,
    }
}

fn features(auxiliary_id: u8) -> Body {
    Body::FeaturesReply(SwitchFeatures {
        datapath_id: 0x2a,
        buffers: 0,
        tables: 1,
        auxiliary_id,
        capabilities: Capabilities::NONE,
        reserved: 0,
    })
}

fn description(name: &str) -> Body {
    let text = FixedText::new("x").unwrap();
    let serial_number = FixedText::new("").unwrap();
    let datapath = FixedText::new(name).unwrap();
    let description =
        Description { manufacturer: text, hardware: text, software: text, serial_number, datapath };
    Body::MultipartReply(MultipartReply::Desc(Box::new(description)).into())
}

fn ports(list: Vec<rs_openflow::Port>) -> Body {
    Body::MultipartReply(MultipartReply::PortDesc(list).into())
}

fn config() -> ChannelConfig {
    ChannelConfig {
        packet_ins_per_second: 100,
        keepalive_interval: Duration::from_secs(1),
        counters_interval: Duration::from_secs(1000),
        max_meters: None,
        max_flows: None,
        pipeline: Pipeline::default(),
        admission: AdmissionPolicy::default(),
        generation: Some(7),
        observes: false,
    }
}

/// Position of the request for the description among the requests.
const DESCRIPTION: usize = 0;
const METERS: usize = 1;
const GROUPS: usize = 2;
const TABLES: usize = 3;
const CONFIG: usize = 4;

/// A channel, with the messages that it has sent to its peer and its other outputs. The test acts
/// as the peer.
struct TestPeer {
    channel: Channel,
    now: Time,
    sent: Vec<Message>,
    outputs: Vec<Output>,
}

impl TestPeer {
    fn new() -> TestPeer {
        let mut peer = TestPeer {
            channel: Channel::new(Time::ZERO, config()),
            now: Time::ZERO,
            sent: Vec::new(),
            outputs: Vec::new(),
        };
        peer.drain();
        peer
    }

    fn drain(&mut self) -> Option<Time> {
        loop {
            match self.channel.poll(self.now) {
                Poll::Output(Output::Send(message)) => self.sent.push(message),
                Poll::Output(other) => self.outputs.push(other),
                Poll::Idle(deadline) => return deadline,
            }
        }
    }

    /// The peer sends this message. Returns the replies.
    fn receive(&mut self, body: Body) -> Vec<Message> {
        self.receive_as(9, body)
    }

    fn receive_as(&mut self, xid: u32, body: Body) -> Vec<Message> {
        self.channel.handle(self.now, Input::Received(Message::new(xid, body)));
        self.sent.clear();
        self.drain();
        self.sent.clone()
    }

    /// The peer sends a message with a valid header and an invalid body.
    fn unreadable(&mut self, kind: MessageType, xid: u32) {
        let header = MessageHeader { version: 4, kind, xid };
        let error = Error::Version { version: 0x47, kind: kind.0 };
        self.channel.handle(self.now, Input::Unreadable(Some(header), error));
        self.drain();
    }

    /// The peer reports empty tables.
    fn tables_are_empty(&mut self, requests: &[Message]) {
        for message in requests {
            let Body::MultipartRequest(request) = &message.body else { panic!("{message}") };
            let reply = match &request.body {
                MultipartRequest::Flow(_) => MultipartReply::Flow(Vec::new()),
                MultipartRequest::GroupDesc => MultipartReply::GroupDesc(Vec::new()),
                other => panic!("{other:?}"),
            };
            self.receive_as(message.xid, Body::MultipartReply(reply.into()));
        }
    }

    /// Returns a channel to a switch that has reported its ports, and the next requests:
    /// [`DESCRIPTION`], [`METERS`], [`GROUPS`], [`TABLES`], the configuration and a barrier.
    fn with_ports(list: Vec<rs_openflow::Port>) -> (TestPeer, Vec<Message>) {
        let mut peer = TestPeer::new();
        peer.receive(Body::Hello(Hello::default()));
        peer.receive(features(0));
        let requests = peer.receive(ports(list));
        assert_eq!(requests.len(), 6);
        assert!(matches!(&requests[CONFIG].body, Body::SetConfig(config) if config.miss_send_len == 0xffff));
        (peer, requests)
    }

    /// The peer replies to the barrier. Returns the next requests.
    fn finish(&mut self, requests: &[Message]) -> Vec<Message> {
        let Some(Message { xid, body: Body::BarrierRequest }) = requests.last() else {
            panic!("{requests:?}")
        };
        self.receive_as(*xid, Body::BarrierReply)
    }

    fn up() -> TestPeer {
        let (mut peer, requests) =
            TestPeer::with_ports(vec![port(1, "s1-eth1"), port(PortNo::LOCAL.0, "s1")]);
        peer.receive_as(requests[DESCRIPTION].xid, description("None"));
        let requests = peer.finish(&requests);
        peer.tables_are_empty(&requests);
        peer
    }

    fn closed(&self) -> &str {
        match self.outputs.last() {
            Some(Output::Close(why)) => why,
            other => panic!("not closed: {other:?}"),
        }
    }

    /// Lets time pass from deadline to deadline until the channel closes. Returns the time.
    fn wait_for_close(&mut self) -> Duration {
        while !matches!(self.outputs.last(), Some(Output::Close(_))) {
            self.now = self.drain().expect("a channel that waits for ever");
            self.drain();
        }
        self.now - Time::ZERO
    }
}

#[test]
fn a_switch_is_up_after_reporting_ports_name_and_tables() {
    let peer = TestPeer::up();
    let [Output::Up(info)] = &peer.outputs[..] else { panic!("{:?}", peer.outputs) };
    assert_eq!((info.datapath_id, info.name.as_str()), (DatapathId(0x2a), "s1"));
    let ports: Vec<_> = info.ports.iter().map(|port| (port.number, port.up, port.bytes_per_second)).collect();
    assert_eq!(ports, [(1, true, 125_000_000), (PortNo::LOCAL.0, true, 125_000_000)]);
}

#[test]
fn a_name_is_the_description_or_the_datapath_id() {
    for (reported, name) in [("spine 3", "spine 3"), ("None", "dpid:000000000000002a")] {
        let mut peer = TestPeer::new();
        peer.receive(Body::Hello(Hello::default()));
        peer.receive(features(0));
        let mut more = Multipart::from(MultipartReply::PortDesc(vec![port(1, "a")]));
        more.flags = MultipartFlags::MORE;
        assert_eq!(peer.receive(Body::MultipartReply(more)), []);
        let requests = peer.receive(ports(vec![port(2, "b")]));
        peer.receive_as(requests[DESCRIPTION].xid, description(reported));
        let requests = peer.finish(&requests);
        peer.tables_are_empty(&requests);
        let [Output::Up(info)] = &peer.outputs[..] else { panic!("{:?}", peer.outputs) };
        assert_eq!((info.name.as_str(), info.ports.len()), (name, 2));
    }
}

#[test]
fn a_switch_with_version_1_0_only_is_rejected() {
    let mut peer = TestPeer::new();
    let sent = peer.receive(Body::Hello(Hello { version: 1, elements: Vec::new(), rest: Vec::new() }));
    let [Message { body: Body::Error(failure), .. }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((failure.kind, failure.code), (ErrorType::HELLO_FAILED, INCOMPATIBLE));
    assert!(peer.closed().contains("0x01 (1.0)"), "{}", peer.closed());
    assert!(!peer.closed().contains('\n'));
    // The channel ignores all further messages.
    assert_eq!(peer.receive(Body::EchoRequest(Vec::new())), []);
}

#[test]
fn a_newer_switch_is_accepted_if_it_also_speaks_1_3() {
    let elements = vec![HelloElement::VersionBitmap(vec![1 << 4 | 1 << 6])];
    let mut peer = TestPeer::new();
    let sent = peer.receive(Body::Hello(Hello { version: 6, elements, rest: Vec::new() }));
    assert_eq!(sent[0].body, Body::FeaturesRequest);
    let mut peer = TestPeer::new();
    let elements = vec![HelloElement::VersionBitmap(vec![1 << 6])];
    peer.receive(Body::Hello(Hello { version: 6, elements, rest: Vec::new() }));
    assert!(peer.closed().contains("1.5"), "{}", peer.closed());
}

#[test]
fn a_peer_that_is_no_switch_is_disconnected() {
    let mut peer = TestPeer::new();
    peer.receive(features(0));
    assert!(peer.closed().contains("hello"));
    let mut peer = TestPeer::new();
    peer.unreadable(MessageType(0x45), 9);
    peer.drain();
    assert!(peer.closed().contains("0x47"), "{}", peer.closed());
    let mut peer = TestPeer::new();
    peer.receive(Body::Hello(Hello::default()));
    peer.receive(features(1));
    assert!(peer.closed().contains("auxiliary"));
}

#[test]
fn a_peer_stuck_in_the_handshake_is_dropped_despite_echoes() {
    assert_eq!(TestPeer::new().wait_for_close(), HANDSHAKE);
    let mut peer = TestPeer::new();
    peer.receive(Body::Hello(Hello::default()));
    for second in 1..10 {
        peer.now = Time::ZERO + Duration::from_secs(second);
        assert_eq!(peer.receive(Body::EchoRequest(vec![7])), [Message::new(9, Body::EchoReply(vec![7]))]);
    }
    assert_eq!(peer.wait_for_close(), HANDSHAKE);
}

#[test]
fn a_switch_may_take_long_to_report_large_tables() {
    let (mut peer, requests) = TestPeer::with_ports(vec![port(1, "a")]);
    peer.receive_as(requests[CONFIG].xid, refusal(ErrorType::BAD_REQUEST, 1));
    let requests = peer.finish(&requests);
    for _ in 0..5 {
        peer.now += Duration::from_secs(4);
        let mut part = Multipart::from(MultipartReply::Flow(Vec::new()));
        part.flags = MultipartFlags::MORE;
        peer.receive_as(requests[0].xid, Body::MultipartReply(part));
    }
    peer.tables_are_empty(&requests);
    assert!(matches!(peer.outputs[..], [Output::Up(_)]), "{:?}", peer.outputs);
    // One that stops reporting is dropped, despite echoes.
    let (mut peer, requests) = TestPeer::with_ports(vec![port(1, "a")]);
    peer.finish(&requests);
    for _ in 0..10 {
        peer.now += Duration::from_secs(1);
        peer.receive(Body::EchoReply(Vec::new()));
    }
    assert!(peer.closed().contains("did not report its tables"), "{}", peer.closed());
}

#[test]
fn a_silent_switch_is_asked_and_dropped_if_it_does_not_answer() {
    let mut peer = TestPeer::up();
    peer.sent.clear();
    for _ in 0..3 {
        peer.now = peer.drain().unwrap();
        peer.drain();
        assert!(matches!(peer.sent.last(), Some(Message { body: Body::EchoRequest(_), .. })));
        peer.receive(Body::EchoReply(Vec::new()));
    }
    assert_eq!(peer.outputs.len(), 1);
    let last_received = peer.now;
    peer.wait_for_close();
    assert_eq!(peer.now, last_received + DEAD_AFTER);
}

#[test]
fn ports_and_frames_are_reported_except_of_reserved_ports() {
    let mut peer = TestPeer::up();
    let status = |reason, port| Body::PortStatus(PortStatus { reason, port });
    let mut down = port(1, "a");
    down.state = PortState::LINK_DOWN;
    peer.receive(status(PortReason::MODIFY, down));
    peer.receive(status(PortReason::ADD, port(PortNo::FLOOD.0, "s1")));
    let frame = |in_port| {
        Body::PacketIn(PacketIn {
            buffer: BufferId::NONE,
            total_len: 3,
            reason: PacketInReason::ACTION,
            table: TableId(0),
            cookie: 0,
            matching: Match::new().in_port(in_port),
            data: vec![1, 2, 3],
        })
    };
    peer.receive(frame(PortNo(1)));
    peer.receive(frame(PortNo(4)));
    peer.receive(frame(PortNo::FLOOD));
    peer.receive(status(PortReason::DELETE, port(1, "a")));
    let [Output::Up(_), Output::PortChanged(changed), Output::PacketIn(1, data), Output::PortRemoved(1)] =
        &peer.outputs[..]
    else {
        panic!("{:?}", peer.outputs)
    };
    assert_eq!((changed.up, &data[..]), (false, &[1, 2, 3][..]));
}

#[test]
fn frames_go_out_as_packets_out() {
    let mut peer = TestPeer::up();
    peer.sent.clear();
    peer.channel.handle(peer.now, Input::Packet(vec![3], vec![9]));
    peer.drain();
    assert_eq!(peer.sent[0].body, Body::PacketOut(PacketOut::new(PortNo(3), vec![9])));
}

fn meters(max_meters: u32) -> MultipartReply {
    MultipartReply::MeterFeatures(MeterFeatures {
        max_meters,
        band_types: 1 << BandType::DROP.0,
        capabilities: u32::from((MeterFlags::PKTPS | MeterFlags::BURST).0),
        max_bands: 1,
        max_color: 0,
    })
}

/// Returns a channel to a switch with meters, up to the barrier after them, and the meter messages.
fn metered() -> (TestPeer, Vec<Message>) {
    let (mut peer, requests) = TestPeer::with_ports(vec![port(1, "s1-eth1"), port(PortNo::LOCAL.0, "s1")]);
    peer.receive_as(requests[METERS].xid, Body::MultipartReply(meters(100).into()));
    let made = peer.finish(&requests);
    (peer, made)
}

#[test]
fn meters_for_all_ports_are_made_before_tables_are_read() {
    let (mut peer, made) = metered();
    let numbers: Vec<u32> = made
        .iter()
        .filter_map(|m| match &m.body {
            Body::MeterMod(meter) => Some(meter.meter.0),
            _ => None,
        })
        .collect();
    // The local port shares the meter of all other ports.
    assert_eq!(numbers, [1, 1, 2, 2, 100, 100, 99, 99, 100, 100]);
    let barrier = made.last().unwrap();
    assert_eq!(barrier.body, Body::BarrierRequest);
    // Meters that exist already are fine as well.
    let exists = ErrorMessage::new(ErrorType::METER_MOD_FAILED, METER_EXISTS, Vec::new());
    assert_eq!(peer.receive_as(made[0].xid, Body::Error(exists)), []);
    let requests = peer.receive_as(barrier.xid, Body::BarrierReply);
    peer.tables_are_empty(&requests);
    assert!(matches!(peer.outputs[..], [Output::Up(_)]), "{:?}", peer.outputs);
    let status = PortStatus { reason: PortReason::ADD, port: port(7, "new") };
    assert_eq!(peer.receive(Body::PortStatus(status)).len(), 2);
}

#[test]
fn unreadable_messages_are_ignored_if_the_switch_works_without() {
    let mut peer = TestPeer::up();
    peer.outputs.clear();
    for _ in 0..100 {
        peer.unreadable(MessageType::PACKET_IN, 0);
        peer.unreadable(MessageType::EXPERIMENTER, 0);
    }
    assert_eq!(peer.outputs.len(), 8, "{:?}", peer.outputs);
    assert!(peer.outputs.iter().all(|output| matches!(output, Output::Warning(_))));
    peer.unreadable(MessageType::PORT_STATUS, 0);
    assert!(peer.closed().contains("invalid message"), "{}", peer.closed());
}

#[test]
fn a_ports_rate_follows_from_its_bits_or_else_its_number() {
    let rate = |current, current_kbps| kbps(&rs_openflow::Port { current, current_kbps, ..port(1, "a") });
    assert_eq!(rate(PortFeatures::FD_10G, 0), 10_000_000);
    assert_eq!(rate(PortFeatures::HD_100M | PortFeatures::FIBER, 0), 100_000);
    assert_eq!(rate(PortFeatures::FD_1G | PortFeatures::FD_40G, 7), 40_000_000);
    assert_eq!(rate(PortFeatures::OTHER, 25_000_000), 25_000_000);
    assert_eq!(rate(PortFeatures::NONE, 0), 0);
}

#[test]
fn a_switch_that_refuses_a_meter_is_served_without_meters() {
    let (mut peer, made) = metered();
    let full = ErrorMessage::new(ErrorType::METER_MOD_FAILED, 11, Vec::new());
    peer.receive_as(made[0].xid, Body::Error(full));
    assert!(
        matches!(&peer.outputs[..], [Output::Warning(text)] if text.contains("meter")),
        "{:?}",
        peer.outputs
    );
    let requests = peer.receive_as(made.last().unwrap().xid, Body::BarrierReply);
    peer.tables_are_empty(&requests);
    assert!(matches!(peer.outputs.last(), Some(Output::Up(_))));
}

#[test]
fn packet_ins_of_a_flooding_port_are_limited() {
    let mut peer = TestPeer::up();
    let matching = Match::new().in_port(PortNo(1));
    let (buffer, reason, table) = (BufferId::NONE, PacketInReason::ACTION, TableId(0));
    let flood = PacketIn { buffer, total_len: 1, reason, table, cookie: 0, matching, data: vec![1] };
    for _ in 0..1000 {
        peer.receive(Body::PacketIn(flood.clone()));
    }
    assert_eq!(peer.outputs.iter().filter(|output| matches!(output, Output::PacketIn(..))).count(), 200);
}

#[test]
fn counters_are_requested_only_after_all_earlier_replies() {
    let mut peer = TestPeer::up();
    peer.channel.counters = CounterPoller::new(Duration::from_secs(7));
    peer.channel.counters.start(peer.now);
    let requests_of = |peer: &mut TestPeer| {
        peer.sent.clear();
        peer.now = peer.channel.counters.deadline().unwrap();
        peer.channel.keepalive.on_message(peer.now);
        peer.drain();
        peer.sent.iter().filter(|m| matches!(m.body, Body::MultipartRequest(_))).cloned().collect::<Vec<_>>()
    };
    let requests = requests_of(&mut peer);
    let [ports, flows] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!(requests_of(&mut peer), []);
    let reply = |xid, reply: MultipartReply| (xid, Body::MultipartReply(reply.into()));
    let (xid, body) = reply(ports.xid, MultipartReply::PortStats(Vec::new()));
    peer.receive_as(xid, body);
    let (xid, body) = reply(flows.xid, MultipartReply::Flow(Vec::new()));
    peer.receive_as(xid, body);
    assert!(matches!(peer.outputs.last(), Some(Output::Counters(_))), "{:?}", peer.outputs);
    assert_eq!(requests_of(&mut peer).len(), 2);
}

fn refusal(kind: ErrorType, code: u16) -> Body {
    Body::Error(ErrorMessage::new(kind, code, Vec::new()))
}

#[test]
fn a_later_controller_takes_a_switch_over() {
    let mut peer = TestPeer::new();
    peer.receive(Body::Hello(Hello::default()));
    let requests = peer.receive(features(0));
    let master = RoleConfig { role: ControllerRole::MASTER, generation: 7 };
    assert_eq!(requests[0].body, Body::RoleRequest(master));
    peer.receive_as(requests[0].xid, refusal(ErrorType::ROLE_REQUEST_FAILED, 0));
    assert!(peer.closed().contains("a controller that started later runs it"), "{}", peer.closed());

    let mut peer = TestPeer::up();
    peer.receive_as(77, refusal(ErrorType::BAD_REQUEST, 10));
    assert!(peer.closed().contains("has taken it over"), "{}", peer.closed());
}

#[test]
fn a_standby_requests_nothing_of_a_switch_until_it_leads() {
    let standby = ChannelConfig { generation: None, ..config() };
    let mut peer = TestPeer { channel: Channel::new(Time::ZERO, standby), ..TestPeer::new() };
    peer.drain();
    peer.receive(Body::Hello(Hello::default()));
    assert!(matches!(
        peer.receive(Body::EchoRequest(vec![1]))[..],
        [Message { body: Body::EchoReply(_), .. }]
    ));
    let status = Body::PortStatus(PortStatus { reason: PortReason::ADD, port: port(1, "p") });
    assert_eq!(peer.receive(status), [], "of the master's concern");
    // The standby lasts longer than a handshake may take, because the peer still answers.
    for _ in 0..=HANDSHAKE.as_secs() {
        peer.now += config().keepalive_interval;
        peer.sent.clear();
        peer.drain();
        assert!(matches!(peer.sent[..], [Message { body: Body::EchoRequest(_), .. }]), "{:?}", peer.sent);
        peer.receive(Body::EchoReply(Vec::new()));
    }
    peer.channel.handle(peer.now, Input::Lead(9));
    peer.sent.clear();
    peer.drain();
    assert_eq!(peer.sent.last().map(|message| &message.body), Some(&Body::FeaturesRequest));
    let requests = peer.receive(features(0));
    let master = RoleConfig { role: ControllerRole::MASTER, generation: 9 };
    assert_eq!(requests[0].body, Body::RoleRequest(master));
    assert!(peer.outputs.is_empty(), "{:?}", peer.outputs);
}

/// Generates messages that a switch may send, and some that it must not.
fn any_message() -> impl Strategy<Value = Body> {
    let kinds = [ErrorType::BAD_REQUEST, ErrorType::ROLE_REQUEST_FAILED, ErrorType::FLOW_MOD_FAILED];
    let status = |(number, removed): (u32, bool)| {
        let reason = if removed { PortReason::DELETE } else { PortReason::ADD };
        Body::PortStatus(PortStatus { reason, port: port(number, "p") })
    };
    let reply = |reply: MultipartReply| Just(Body::MultipartReply(reply.into()));
    prop_oneof![
        Just(Body::Hello(Hello::default())),
        (0u8..2).prop_map(features),
        Just(ports(vec![port(1, "s1-eth1"), port(PortNo::LOCAL.0, "s1")])),
        Just(description("None")),
        (0u32..300).prop_map(|most| Body::MultipartReply(meters(most).into())),
        reply(MultipartReply::Flow(Vec::new())),
        reply(MultipartReply::GroupDesc(Vec::new())),
        reply(MultipartReply::TableFeatures(Vec::new())),
        Just(Body::BarrierReply),
        Just(Body::EchoRequest(vec![1])),
        Just(Body::EchoReply(Vec::new())),
        (0u32..5, any::<bool>()).prop_map(status),
        (prop::sample::select(kinds.to_vec()), 0u16..12).prop_map(|(kind, code)| refusal(kind, code)),
    ]
}

proptest! {
    /// Messages may arrive in any order, and as replies to any request.
    #[test]
    fn any_peer_is_up_at_most_once_and_closed_at_most_once(
        messages in prop::collection::vec((0u32..16, any::<bool>(), any_message(), 0u64..4000), 1..60),
    ) {
        let mut peer = TestPeer::new();
        for (xid, table, body, wait) in messages {
            let closed = matches!(peer.outputs.last(), Some(Output::Close(_)));
            peer.now += Duration::from_millis(wait);
            let answers = peer.receive_as(if table { xid | reconciler::XID_BIT } else { xid }, body);
            prop_assert!(!closed || answers.is_empty(), "{answers:?}");
        }
        let closes = peer.outputs.iter().filter(|output| matches!(output, Output::Close(_))).count();
        let ups = peer.outputs.iter().filter(|output| matches!(output, Output::Up(_))).count();
        prop_assert!(closes <= 1 && ups <= 1);
        prop_assert!(closes == 0 || matches!(peer.outputs.last(), Some(Output::Close(_))), "{:?}", peer.outputs);
    }
}
