//! A channel to a switch that is only observed.

use super::*;
use rs_openflow::{AggregateStats, Counter, GroupDesc, GroupId};

/// Returns a channel to an observed switch without entries that is up, and all messages that were
/// sent to it.
fn observed() -> (TestPeer, Vec<Message>) {
    let observes = ChannelConfig { observes: true, ..config() };
    let mut peer = TestPeer { channel: Channel::new(Time::ZERO, observes), ..TestPeer::new() };
    peer.drain();
    let mut sent = core::mem::take(&mut peer.sent);
    sent.extend(peer.receive(Body::Hello(Hello::default())));
    sent.extend(peer.receive(features(0)));
    let requests = peer.receive(ports(vec![port(1, "a"), port(2, "b")]));
    sent.extend(requests.clone());
    peer.receive_as(requests[DESCRIPTION].xid, description("leaf"));
    peer.receive_as(requests[METERS].xid, meter_features());
    let mut requests = peer.finish(&requests);
    sent.extend(requests.clone());
    // Without meters there is no barrier.
    if matches!(requests[..], [Message { body: Body::BarrierRequest, .. }]) {
        requests = peer.finish(&requests);
        sent.extend(requests.clone());
    }
    for message in requests {
        let Body::MultipartRequest(request) = &message.body else { panic!("{message}") };
        let reply = match &request.body {
            MultipartRequest::Flow(_) => MultipartReply::Flow(Vec::new()),
            MultipartRequest::GroupDesc => MultipartReply::GroupDesc(Vec::new()),
            other => panic!("{other:?}"),
        };
        sent.extend(peer.receive_as(message.xid, Body::MultipartReply(reply.into())));
    }
    (peer, sent)
}

fn meter_features() -> Body {
    let features = MeterFeatures {
        max_meters: 100,
        band_types: 2,
        capabilities: (MeterFlags::PKTPS | MeterFlags::BURST).0.into(),
        max_bands: 1,
        max_color: 0,
    };
    Body::MultipartReply(MultipartReply::MeterFeatures(features).into())
}

/// Returns the names of messages that may change a switch. This list is independent of the one that
/// the channel uses.
fn changes(sent: &[Message]) -> Vec<String> {
    let is_change = |body: &Body| match body {
        Body::MultipartRequest(request) => {
            matches!(&request.body, MultipartRequest::TableFeatures(features) if !features.is_empty())
        }
        Body::PacketOut(packet) => !crate::frames::is_lldp(&packet.data),
        Body::FlowMod(_)
        | Body::GroupMod(_)
        | Body::MeterMod(_)
        | Body::PortMod(_)
        | Body::TableMod(_)
        | Body::SetConfig(_)
        | Body::SetAsync(_)
        | Body::RoleRequest(_) => true,
        _ => false,
    };
    sent.iter().filter(|message| is_change(&message.body)).map(ToString::to_string).collect()
}

#[test]
fn an_observed_switch_comes_up_without_any_change() {
    let (mut peer, mut sent) = observed();
    assert!(matches!(peer.outputs[0], Output::Up(_)), "{:?}", peer.outputs);
    let mut update = TableUpdate { version: 1, ..TableUpdate::default() };
    update.delta.blocked.insert(1, true);
    update.delta.group_test = Some((1, vec![7; 60]));
    let (key, flow) = crate::intent::flows::drop_rest(0);
    update.delta.flows.insert(key, Some(flow));
    peer.channel.handle(peer.now, Input::Update(update));
    peer.channel.handle(peer.now, Input::Packet(vec![1], vec![0xff; 60]));
    peer.sent.clear();
    peer.drain();
    sent.extend(peer.sent.clone());
    assert_eq!(changes(&sent), [""; 0]);
    assert!(peer.outputs.contains(&Output::Acknowledged(1, EntryRefusals::new())), "{:?}", peer.outputs);
    // A controller sends all of that.
    assert_ne!(changes(&TestPeer::with_ports(vec![port(1, "a")]).1), [""; 0]);
}

#[test]
fn the_standby_of_an_observer_asks_for_nothing() {
    let observes = ChannelConfig { observes: true, generation: None, ..config() };
    let mut peer = TestPeer { channel: Channel::new(Time::ZERO, observes), ..TestPeer::new() };
    peer.drain();
    assert_eq!(peer.receive(Body::Hello(Hello::default())), []);
    peer.channel.handle(peer.now, Input::Lead(9));
    peer.sent.clear();
    peer.drain();
    assert!(matches!(peer.sent[..], [Message { body: Body::FeaturesRequest, .. }]), "{:?}", peer.sent);
}

#[test]
fn entries_are_counted_and_ports_followed_without_notifications() {
    let (mut peer, sent) = observed();
    let mut state = port(2, "b");
    state.state = PortState::LINK_DOWN;
    let mut flows = 5;
    for message in sent {
        let reply = match &message.body {
            Body::GetConfigRequest => Body::GetConfigReply(rs_openflow::SwitchConfig {
                fragments: rs_openflow::FragmentHandling::NORMAL,
                miss_send_len: 0,
            }),
            Body::MultipartRequest(request) => {
                let reply = match &request.body {
                    MultipartRequest::Aggregate(_) => {
                        flows -= 1;
                        MultipartReply::Aggregate(AggregateStats {
                            packets: Counter(0),
                            bytes: Counter(0),
                            flows,
                        })
                    }
                    MultipartRequest::GroupDesc => MultipartReply::GroupDesc(
                        [7, crate::intent::tables::GROUPS.start]
                            .map(|number| GroupDesc {
                                kind: GroupType::ALL,
                                group: GroupId(number),
                                buckets: Vec::new(),
                            })
                            .into(),
                    ),
                    // The first one was answered before.
                    MultipartRequest::PortDesc => MultipartReply::PortDesc(vec![state.clone()]),
                    MultipartRequest::MeterConfig(_) => {
                        peer.receive_as(message.xid, refusal(ErrorType::BAD_REQUEST, 2));
                        continue;
                    }
                    _ => continue,
                };
                Body::MultipartReply(reply.into())
            }
            _ => continue,
        };
        peer.receive_as(message.xid, reply);
    }
    let counted = peer.outputs.iter().find_map(|output| match output {
        Output::Counted(inventory) => Some(inventory.clone()),
        _ => None,
    });
    let expected = SwitchInventory {
        flows: Some(4),
        table_flows: Some(3),
        foreign_groups: Some(1),
        meters: None,
        meter_demand: Some(crate::observation::MeterDemand { needed: 5, most: 100 }),
        miss_send_len: Some(0),
    };
    assert_eq!(counted, Some(expected));
    assert!(peer.outputs.contains(&Output::PortRemoved(1)), "{:?}", peer.outputs);
    let down = |output: &Output| matches!(output, Output::PortChanged(port) if port.number == 2 && !port.up);
    assert!(peer.outputs.iter().any(down), "{:?}", peer.outputs);
}
