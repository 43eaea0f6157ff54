//! Messages that a switch sends.

use rs_openflow::{
    Action, AggregateStats, AsyncConfig, Band, BandEffect, Body, Bucket, BufferId, Capabilities,
    ControllerRole, Counter, Description, EtherType, FixedText, FlowFlags, FlowRemoved, FlowRemovedReason,
    FlowStats, FragmentHandling, GroupCapabilities, GroupDesc, GroupFeatures, GroupId, GroupStats, GroupType,
    Instruction, MacAddr, Match, MeterConfig, MeterCounters, MeterFeatures, MeterFlags, MeterId, MeterStats,
    MultipartReply, PacketIn, PacketInReason, PartStats, PerGroupType, Port, PortConfig, PortFeatures,
    PortNo, PortReason, PortState, PortStats, PortStatus, Queue, QueueConfig, QueueId, QueueProperty,
    QueueStats, RoleConfig, SwitchConfig, SwitchFeatures, TableConfig, TableFeatures, TableId, TableProperty,
    TablePropertyType, TableStats,
};

use crate::means;

fn port() -> Port {
    Port {
        port: PortNo(3),
        hw_addr: MacAddr(2, 0, 0, 0, 0, 3),
        name: FixedText::new("s1-eth3").unwrap(),
        config: PortConfig::NO_FWD,
        state: PortState::LIVE,
        current: PortFeatures::FD_10G | PortFeatures::COPPER,
        advertised: PortFeatures::FD_1G,
        supported: PortFeatures::FD_100M,
        peer: PortFeatures::FD_10M,
        current_kbps: 10_000_000,
        max_kbps: 20_000_000,
    }
}

#[test]
fn a_switch_introduces_itself() {
    let features = SwitchFeatures {
        datapath_id: 0x1_0000_0000_0007,
        buffers: 256,
        tables: 254,
        auxiliary_id: 1,
        capabilities: Capabilities::FLOW_STATS | Capabilities::GROUP_STATS,
        reserved: 0,
    };
    means(
        Body::FeaturesReply(features),
        "OFPT_FEATURES_REPLY: dpid:0001000000000007 n_tables:254, n_buffers:256, auxiliary_id:1 \
         capabilities: FLOW_STATS GROUP_STATS",
    );
    let config = SwitchConfig { fragments: FragmentHandling::NORMAL, miss_send_len: 65535 };
    means(Body::GetConfigReply(config), "OFPT_GET_CONFIG_REPLY: frags=normal miss_send_len=65535");
    means(Body::BarrierReply, "OFPT_BARRIER_REPLY:");
    means(
        Body::RoleReply(RoleConfig { role: ControllerRole::SLAVE, generation: 9 }),
        "OFPT_ROLE_REPLY: role=secondary generation_id=9",
    );
    let config = AsyncConfig {
        packet_in: 1,
        packet_in_slave: 2,
        port_status: 4,
        port_status_slave: 1,
        flow_removed: 2,
        flow_removed_slave: 8,
    };
    means(
        Body::GetAsyncReply(config),
        "OFPT_GET_ASYNC_REPLY: primary: PACKET_IN: no_match PORT_STATUS: modify FLOW_REMOVED: hard \
         ROLE_STATUS: (off) TABLE_STATUS: (off) REQUESTFORWARD: (off) secondary: PACKET_IN: action \
         PORT_STATUS: add FLOW_REMOVED: group_delete ROLE_STATUS: (off) TABLE_STATUS: (off) \
         REQUESTFORWARD: (off)",
    );
}

#[test]
fn a_switch_reports_events() {
    let frame = [[0xff; 6].as_slice(), &[2, 0, 0, 0, 0, 1, 0x88, 0xcc], &[0; 46]].concat();
    let packet = PacketIn {
        buffer: BufferId::NONE,
        total_len: 60,
        reason: PacketInReason::ACTION,
        table: TableId(2),
        cookie: 0xabc,
        matching: Match::new().in_port(PortNo(5)),
        data: frame,
    };
    means(
        Body::PacketIn(packet),
        "OFPT_PACKET_IN: table_id=2 cookie=0xabc total_len=60 in_port=5 (via action) data_len=60 \
         (unbuffered) vlan_tci=0x0000,dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,dl_type=0x88cc",
    );
    means(
        Body::PortStatus(PortStatus { reason: PortReason::MODIFY, port: port() }),
        "OFPT_PORT_STATUS: MOD: 3(s1-eth3): addr:02:00:00:00:00:03 config: NO_FWD state: LIVE current: \
         10GB-FD COPPER advertised: 1GB-FD supported: 100MB-FD peer: 10MB-FD speed: 10000 Mbps now, \
         20000 Mbps max",
    );
    let removed = FlowRemoved {
        cookie: 0x77,
        priority: 8,
        reason: FlowRemovedReason::IDLE_TIMEOUT,
        table: TableId(1),
        duration_s: 12,
        duration_ns: 500_000_000,
        idle_timeout: 5,
        hard_timeout: 6,
        packets: Counter(100),
        bytes: Counter(6400),
        matching: Match::new().in_port(PortNo(2)),
    };
    means(
        Body::FlowRemoved(removed),
        "OFPT_FLOW_REMOVED: priority=8,in_port=2 reason=idle table_id=1 cookie:0x77 duration12.500s \
         idle5 hard6 pkts100 bytes6400",
    );
}

#[track_caller]
fn states_address(reply: MultipartReply, expected: &str) {
    means(Body::MultipartReply(reply.into()), expected);
}

#[test]
fn a_switch_describes_itself_and_its_ports() {
    let description = Description {
        manufacturer: FixedText::new("maker").unwrap(),
        hardware: FixedText::new("metal").unwrap(),
        software: FixedText::new("thought").unwrap(),
        serial_number: FixedText::new("7").unwrap(),
        datapath: FixedText::new("rack 1").unwrap(),
    };
    states_address(
        MultipartReply::Desc(Box::new(description)),
        "OFPST_DESC reply: Manufacturer: maker Hardware: metal Software: thought Serial Num: 7 DP \
         Description: rack 1",
    );
    states_address(
        MultipartReply::PortDesc(vec![port()]),
        "OFPST_PORT_DESC reply: 3(s1-eth3): addr:02:00:00:00:00:03 config: NO_FWD state: LIVE current: \
         10GB-FD COPPER advertised: 1GB-FD supported: 100MB-FD peer: 10MB-FD speed: 10000 Mbps now, \
         20000 Mbps max",
    );
}

#[test]
fn a_switch_reports_its_flows_and_tables() {
    let flow = FlowStats {
        table: TableId(1),
        duration_s: 2,
        duration_ns: 250_000_000,
        priority: 9,
        idle_timeout: 3,
        hard_timeout: 4,
        flags: FlowFlags::SEND_FLOW_REM,
        cookie: 0xd00d,
        packets: Counter(5),
        bytes: Counter(500),
        matching: Match::new().eth_type(EtherType::ARP),
        instructions: vec![Instruction::ApplyActions(vec![Action::output(PortNo(6))])],
    };
    let other = FlowStats { matching: Match::new(), instructions: Vec::new(), ..flow.clone() };
    states_address(
        MultipartReply::Flow(vec![flow, other]),
        "OFPST_FLOW reply: cookie=0xd00d, duration=2.250s, table=1, n_packets=5, n_bytes=500, \
         idle_timeout=3, hard_timeout=4, send_flow_rem priority=9,arp actions=output:6 cookie=0xd00d, \
         duration=2.250s, table=1, n_packets=5, n_bytes=500, idle_timeout=3, hard_timeout=4, \
         send_flow_rem priority=9 actions=drop",
    );
    let sum = AggregateStats { packets: Counter(7), bytes: Counter(700), flows: 2 };
    states_address(
        MultipartReply::Aggregate(sum),
        "OFPST_AGGREGATE reply: packet_count=7 byte_count=700 flow_count=2",
    );
    let table = TableStats { table: TableId(0), active: 3, lookups: Counter(30), matched: Counter(20) };
    states_address(
        MultipartReply::Table(vec![table]),
        "OFPST_TABLE reply: table 0: active=3, lookup=30, matched=20",
    );
    let features = TableFeatures {
        table: TableId(0),
        name: FixedText::new("classifier").unwrap(),
        metadata_match: u64::MAX,
        metadata_write: 0xff,
        config: TableConfig::NONE,
        max_entries: 1000,
        properties: vec![
            TableProperty { kind: TablePropertyType::INSTRUCTIONS, data: vec![0, 1, 0, 4] },
            TableProperty { kind: TablePropertyType::NEXT_TABLES, data: vec![1, 2, 3] },
            TableProperty { kind: TablePropertyType::WRITE_ACTIONS, data: vec![0, 0, 0, 4] },
            TableProperty { kind: TablePropertyType::APPLY_ACTIONS, data: vec![0, 0, 0, 4] },
            TableProperty { kind: TablePropertyType::MATCH, data: vec![0x80, 0, 0, 4] },
            TableProperty { kind: TablePropertyType::WILDCARDS, data: vec![0x80, 0, 0, 4] },
            TableProperty { kind: TablePropertyType::WRITE_SETFIELD, data: Vec::new() },
            TableProperty { kind: TablePropertyType::APPLY_SETFIELD, data: Vec::new() },
        ],
    };
    states_address(
        MultipartReply::TableFeatures(vec![features]),
        "OFPST_TABLE_FEATURES reply: table 0 (\"classifier\"): metadata: match=0xffffffffffffffff \
         write=0xff max_entries=1000 instructions (table miss and others): next tables: 1-3 \
         instructions: goto_table Write-Actions and Apply-Actions features: actions: output matching: \
         exact match or wildcard: in_port_oxm",
    );
}

#[test]
fn a_switch_counts_at_ports_and_queues() {
    let stats = PortStats {
        port: PortNo(1),
        rx_packets: Counter(1),
        tx_packets: Counter(2),
        rx_bytes: Counter(3),
        tx_bytes: Counter(4),
        rx_dropped: Counter(5),
        tx_dropped: Counter(6),
        rx_errors: Counter(7),
        tx_errors: Counter(8),
        rx_frame_errors: Counter(9),
        rx_over_errors: Counter(10),
        rx_crc_errors: Counter(11),
        collisions: Counter::UNAVAILABLE,
        duration_s: 12,
        duration_ns: 0,
    };
    states_address(
        MultipartReply::PortStats(vec![stats]),
        "OFPST_PORT reply: 1 ports port 1: rx pkts=1, bytes=3, drop=5, errs=7, frame=9, over=10, crc=11 \
         tx pkts=2, bytes=4, drop=6, errs=8, coll=? duration=12s",
    );
    let stats = QueueStats {
        port: PortNo(1),
        queue: QueueId(2),
        tx_bytes: Counter(3),
        tx_packets: Counter(4),
        tx_errors: Counter(5),
        duration_s: 6,
        duration_ns: 0,
    };
    states_address(
        MultipartReply::Queue(vec![stats]),
        "OFPST_QUEUE reply: 1 queues port 1 queue 2: bytes=3, pkts=4, errors=5, duration=6s",
    );
    let properties = vec![QueueProperty::MinRate(100), QueueProperty::MaxRate(500)];
    let queues = vec![Queue { queue: QueueId(2), port: PortNo(1), properties }];
    means(
        Body::QueueGetConfigReply(QueueConfig { port: PortNo(1), queues }),
        "OFPT_QUEUE_GET_CONFIG_REPLY: port=1 queue 2: min_rate:10.0% max_rate:50.0%",
    );
}

#[test]
fn a_switch_reports_its_groups() {
    let buckets = vec![PartStats { packets: Counter(1), bytes: Counter(2) }];
    let stats = GroupStats {
        group: GroupId(3),
        references: 1,
        packets: Counter(4),
        bytes: Counter(5),
        duration_s: 6,
        duration_ns: 0,
        buckets,
    };
    states_address(
        MultipartReply::Group(vec![stats]),
        "OFPST_GROUP reply: group_id=3,duration=6s,ref_count=1,packet_count=4,byte_count=5,\
         bucket0:packet_count=1,byte_count=2",
    );
    let buckets = vec![Bucket::new(vec![Action::output(PortNo(1))])];
    states_address(
        MultipartReply::GroupDesc(vec![GroupDesc { kind: GroupType::ALL, group: GroupId(3), buckets }]),
        "OFPST_GROUP_DESC reply: group_id=3,type=all,bucket=actions=output:1",
    );
    let features = GroupFeatures {
        types: 0b1001,
        capabilities: GroupCapabilities::CHAINING,
        max_groups: PerGroupType { all: 10, select: 0, indirect: 0, ff: 20 },
        actions: PerGroupType { all: 1, select: 0, indirect: 0, ff: 1 },
    };
    states_address(
        MultipartReply::GroupFeatures(features),
        "OFPST_GROUP_FEATURES reply: Group table: Types: 0x9 Capabilities: 0x4 all group: max_groups=0xa \
         actions: output fast failover group: max_groups=0x14 actions: output",
    );
}

#[test]
fn a_switch_reports_its_meters() {
    let counters = MeterCounters {
        flows: 1,
        packets: Counter(2),
        bytes: Counter(3),
        duration_s: 4,
        duration_ns: 0,
        bands: vec![PartStats { packets: Counter(5), bytes: Counter(6) }],
    };
    states_address(
        MultipartReply::Meter(vec![MeterStats { meter: MeterId(7), counters }]),
        "OFPST_METER reply: meter:7 flow_count:1 packet_in_count:2 byte_in_count:3 duration:4s bands: 0: \
         packet_count:5 byte_count:6",
    );
    let bands = vec![Band { rate: 100, burst: 0, effect: BandEffect::Drop }];
    let config = MeterConfig { flags: MeterFlags::PKTPS, meter: MeterId(7), bands };
    states_address(
        MultipartReply::MeterConfig(vec![config]),
        "OFPST_METER_CONFIG reply: meter=7 pktps bands= type=drop rate=100",
    );
    let features =
        MeterFeatures { max_meters: 9, band_types: 0b10, capabilities: 0b1111, max_bands: 4, max_color: 0 };
    states_address(
        MultipartReply::MeterFeatures(features),
        "OFPST_METER_FEATURES reply: max_meter:9 max_bands:4 max_color:0 band_types: drop capabilities: \
         kbps pktps burst stats",
    );
}
