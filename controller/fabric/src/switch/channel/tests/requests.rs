//! Requests about notifications, ports and groups, which a switch may refuse.

use super::*;
use crate::intent::tables::TEST_GROUP;
use crate::switch::channel::requests::NO_NOTIFICATIONS;
use rs_openflow::{Action, GroupId};

#[test]
fn a_blocked_port_only_receives_and_a_refusal_is_reported() {
    let mut peer = TestPeer::up();
    let blocks = |peer: &mut TestPeer, blocked| {
        let mut update = TableUpdate::default();
        update.delta.blocked.insert(1, blocked);
        peer.channel.handle(peer.now, Input::Update(update));
        peer.sent.clear();
        peer.drain();
        let [Message { xid, body: Body::PortMod(change) }] = &peer.sent[..] else {
            panic!("{:?}", peer.sent)
        };
        assert_eq!(
            (change.port, change.hw_addr, change.mask),
            (PortNo(1), port(1, "").hw_addr, PortConfig::NO_FWD)
        );
        (*xid, change.config)
    };
    let (xid, config) = blocks(&mut peer, true);
    assert_eq!(config, PortConfig::NO_FWD);
    assert_eq!(blocks(&mut peer, false).1, PortConfig::NONE);
    peer.receive_as(xid, refusal(ErrorType::PORT_MOD_FAILED, 0));
    assert!(peer.outputs.contains(&Output::BlockRefused(1)), "{:?}", peer.outputs);
}

#[test]
fn a_test_of_groups_may_be_refused() {
    let mut peer = TestPeer::up();
    let mut update = TableUpdate::default();
    update.delta.group_test = Some((1, vec![7; 60]));
    peer.channel.handle(peer.now, Input::Update(update));
    peer.sent.clear();
    peer.drain();
    let packet = peer.sent.iter().find_map(|message| match &message.body {
        Body::PacketOut(packet) => Some((packet.in_port, packet.actions.clone())),
        _ => None,
    });
    assert_eq!(packet, Some((PortNo(1), vec![Action::Group(GroupId(TEST_GROUP))])));
    for Message { xid, .. } in peer.sent.clone() {
        peer.receive_as(xid, refusal(ErrorType::GROUP_MOD_FAILED, 0));
    }
    assert!(!peer.outputs.iter().any(|output| matches!(output, Output::Warning(_))), "{:?}", peer.outputs);
}

#[test]
fn a_standby_is_notified_of_nothing_until_it_leads() {
    let standby = ChannelConfig { generation: None, ..config() };
    let mut peer = TestPeer { channel: Channel::new(Time::ZERO, standby), ..TestPeer::new() };
    peer.drain();
    let silenced = peer.receive(Body::Hello(Hello::default()));
    let [Message { xid, body: Body::SetAsync(masks) }] = &silenced[..] else { panic!("{silenced:?}") };
    assert_eq!(*masks, NO_NOTIFICATIONS);
    // Not every switch supports it.
    peer.receive_as(*xid, refusal(ErrorType::BAD_REQUEST, 1));
    peer.channel.handle(peer.now, Input::Lead(9));
    peer.sent.clear();
    peer.drain();
    let [Message { xid, body: Body::SetAsync(masks) }, _] = &peer.sent[..] else { panic!("{:?}", peer.sent) };
    assert_eq!((masks.packet_in, masks.port_status), (0b11, 0b111));
    peer.receive_as(*xid, refusal(ErrorType::BAD_REQUEST, 1));
    assert!(peer.outputs.is_empty(), "{:?}", peer.outputs);
}
