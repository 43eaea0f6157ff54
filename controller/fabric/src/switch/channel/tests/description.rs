//! Optional properties that a switch may report: its name and its capacity.

use super::*;
use std::sync::Arc;

#[test]
fn the_operators_name_counts_and_may_be_required() {
    for (number, named) in [(0x2a, true), (0x2b, false)] {
        let names = BTreeMap::from([(DatapathId(number), "leaf1".to_owned())]);
        let admission =
            AdmissionPolicy { names: Arc::new(names), only_named: true, ..AdmissionPolicy::default() };
        let config = ChannelConfig { admission, ..config() };
        let mut peer = TestPeer { channel: Channel::new(Time::ZERO, config), ..TestPeer::new() };
        peer.receive(Body::Hello(Hello::default()));
        peer.receive(features(0));
        if !named {
            assert!(peer.closed().contains("--switches"), "{}", peer.closed());
            continue;
        }
        let requests = peer.receive(ports(vec![port(PortNo::LOCAL.0, "br0")]));
        let requests = peer.finish(&requests);
        peer.tables_are_empty(&requests);
        let [Output::Up(info)] = &peer.outputs[..] else { panic!("{:?}", peer.outputs) };
        assert_eq!(info.name, "leaf1");
    }
}

/// How a switch reacts to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Acknowledged,
    Refused,
    Unreadable,
    Ignored,
}

proptest! {
    #[test]
    fn optional_requests_may_be_answered_in_any_order_or_not(
        order in Just([DESCRIPTION, METERS, GROUPS, TABLES]).prop_shuffle(),
        manners in prop::array::uniform4(prop::sample::select(vec![
            Manner::Acknowledged, Manner::Refused, Manner::Unreadable, Manner::Ignored,
        ])),
    ) {
        let (mut peer, requests) = TestPeer::with_ports(vec![port(1, "a")]);
        for question in order {
            let xid = requests[question].xid;
            let answer = || match question {
                DESCRIPTION => description("spine 3"),
                METERS => Body::MultipartReply(meters(100).into()),
                GROUPS => Body::MultipartReply(group_features().into()),
                _ => Body::MultipartReply(table_features().into()),
            };
            match manners[question] {
                Manner::Acknowledged => drop(peer.receive_as(xid, answer())),
                Manner::Refused => drop(peer.receive_as(xid, refusal(ErrorType::BAD_REQUEST, 2))),
                Manner::Unreadable => peer.unreadable(MessageType::MULTIPART_REPLY, xid),
                Manner::Ignored => {}
            }
        }
        let mut requests = peer.finish(&requests);
        let has = |question: usize| manners[question] == Manner::Acknowledged;
        let metered = requests.iter().any(|message| matches!(message.body, Body::MeterMod(_)));
        prop_assert_eq!(metered, has(METERS));
        if metered {
            requests = peer.finish(&requests);
        }
        peer.tables_are_empty(&requests);
        let Some(Output::Up(info)) = peer.outputs.last() else { panic!("{:?}", peer.outputs) };
        prop_assert_eq!(info.name.as_str(), if has(DESCRIPTION) { "spine 3" } else { "dpid:000000000000002a" });
        prop_assert_eq!(info.capacity.flows, has(TABLES).then_some(2000));
        let groups = match manners[GROUPS] {
            Manner::Acknowledged => Some(40),
            Manner::Ignored => None,
            Manner::Refused | Manner::Unreadable => Some(0),
        };
        prop_assert_eq!(info.capacity.groups, groups);
    }
}

#[test]
fn a_switch_without_roles_and_groups_is_served_without_groups() {
    let mut peer = TestPeer::new();
    peer.receive(Body::Hello(Hello::default()));
    let requests = peer.receive(features(0));
    peer.receive_as(requests[0].xid, refusal(ErrorType::BAD_REQUEST, 1));
    let requests = peer.receive(ports(vec![port(PortNo::LOCAL.0, "s1")]));
    for question in [METERS, GROUPS, TABLES] {
        peer.receive_as(requests[question].xid, refusal(ErrorType::BAD_REQUEST, 2));
    }
    let requests = peer.finish(&requests);
    peer.tables_are_empty(&requests[..1]);
    peer.receive_as(requests[1].xid, refusal(ErrorType::BAD_REQUEST, 2));
    let [Output::Up(info)] = &peer.outputs[..] else { panic!("{:?}", peer.outputs) };
    assert_eq!(
        info.capacity,
        TableCapacity { groups: Some(0), failovers: Some(0), ..TableCapacity::default() }
    );
}

/// Room for 40 groups, 30 of them for fast failover.
fn group_features() -> MultipartReply {
    let each = |all, ff| PerGroupType { all, select: 0, indirect: 0, ff };
    let types = 1 << GroupType::ALL.0 | 1 << GroupType::FF.0;
    let capabilities = GroupCapabilities::NONE;
    MultipartReply::GroupFeatures(GroupFeatures {
        types,
        capabilities,
        max_groups: each(40, 30),
        actions: each(1, 1),
    })
}

/// Room for 2000 flows in the first table.
fn table_features() -> MultipartReply {
    let table = |table, max_entries| TableFeatures {
        table: TableId(table),
        name: FixedText::new("t").unwrap(),
        metadata_match: 0,
        metadata_write: 0,
        config: TableConfig(0),
        max_entries,
        properties: Vec::new(),
    };
    MultipartReply::TableFeatures(vec![table(0, 2000), table(1, 9)])
}

#[test]
fn the_reported_capacity_is_known_when_a_switch_is_up() {
    let (mut peer, requests) = TestPeer::with_ports(vec![port(PortNo::LOCAL.0, "s1")]);
    peer.receive_as(requests[GROUPS].xid, Body::MultipartReply(group_features().into()));
    peer.receive_as(requests[TABLES].xid, Body::MultipartReply(table_features().into()));
    let requests = peer.finish(&requests);
    peer.tables_are_empty(&requests);
    let [Output::Up(info)] = &peer.outputs[..] else { panic!("{:?}", peer.outputs) };
    assert_eq!(
        info.capacity,
        TableCapacity { groups: Some(40), failovers: Some(30), flows: Some(2000), meters: None }
    );
    assert_eq!(info.capacity.failovers(), 20);
}
