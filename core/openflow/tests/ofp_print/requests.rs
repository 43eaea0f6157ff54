//! Messages that a controller sends, except flow modifications.

use rs_openflow::{
    Action, AsyncConfig, Band, BandEffect, Body, Bucket, ControllerRole, ErrorMessage, ErrorType,
    Experimenter, FlowStatsRequest, FragmentHandling, GroupCommand, GroupId, GroupMod, GroupStatsRequest,
    GroupType, Hello, MacAddr, Masked, MeterCommand, MeterFlags, MeterId, MeterMod, MeterRequest,
    MultipartRequest, Oxm, PacketOut, PortConfig, PortFeatures, PortMod, PortNo, PortStatsRequest,
    QueueConfigRequest, QueueId, QueueStatsRequest, RoleConfig, SwitchConfig, TableConfig, TableId, TableMod,
};

use crate::means;

#[test]
fn a_session_is_set_up() {
    means(Body::Hello(Hello::default()), "OFPT_HELLO: version bitmap: 0x04");
    means(Body::FeaturesRequest, "OFPT_FEATURES_REQUEST:");
    means(Body::EchoRequest(vec![1, 2]), "OFPT_ECHO_REQUEST: 2 bytes of payload 00000000 01 02 |.. |");
    means(Body::EchoReply(vec![1, 2, 3]), "OFPT_ECHO_REPLY: 3 bytes of payload 00000000 01 02 03 |... |");
    means(Body::BarrierRequest, "OFPT_BARRIER_REQUEST:");
    means(Body::GetConfigRequest, "OFPT_GET_CONFIG_REQUEST:");
    let config = SwitchConfig { fragments: FragmentHandling::DROP, miss_send_len: 128 };
    means(Body::SetConfig(config), "OFPT_SET_CONFIG: frags=drop miss_send_len=128");
    means(
        Body::RoleRequest(RoleConfig { role: ControllerRole::MASTER, generation: 7 }),
        "OFPT_ROLE_REQUEST: role=primary generation_id=7",
    );
    means(Body::GetAsyncRequest, "OFPT_GET_ASYNC_REQUEST:");
    let config = AsyncConfig {
        packet_in: 7,
        packet_in_slave: 0,
        port_status: 7,
        port_status_slave: 4,
        flow_removed: 1,
        flow_removed_slave: 0,
    };
    means(
        Body::SetAsync(config),
        "OFPT_SET_ASYNC: primary: PACKET_IN: no_match action invalid_ttl PORT_STATUS: add delete modify \
         FLOW_REMOVED: idle ROLE_STATUS: (off) TABLE_STATUS: (off) REQUESTFORWARD: (off) secondary: \
         PACKET_IN: (off) PORT_STATUS: modify FLOW_REMOVED: (off) ROLE_STATUS: (off) TABLE_STATUS: (off) \
         REQUESTFORWARD: (off)",
    );
}

#[test]
fn errors_have_names() {
    let error = ErrorMessage::new(ErrorType::HELLO_FAILED, 0, b"speak 1.3".to_vec());
    means(Body::Error(error), "OFPT_ERROR: OFPHFC_INCOMPATIBLE speak 1.3");
    let error = ErrorMessage::new(ErrorType::GROUP_MOD_FAILED, 8, vec![4, 20, 0, 8, 0, 0, 0, 9]);
    means(Body::Error(error), "OFPT_ERROR: OFPGMFC_UNKNOWN_GROUP OFPT_BARRIER_REQUEST (OF1.3) (xid=0x9):");
}

#[test]
fn an_experimenters_message_is_handed_through() {
    // The request of Nicira that sets the format of packet-ins.
    let body = Experimenter { experimenter: 0x2320, kind: 16, data: vec![0, 0, 0, 1] };
    means(Body::Experimenter(body), "NXT_SET_PACKET_IN_FORMAT: format=nxt_packet_in");
}

#[test]
fn a_packet_is_sent() {
    let frame = [[0xff; 6].as_slice(), &[2, 0, 0, 0, 0, 1, 0x88, 0xcc], &[0; 46]].concat();
    means(
        Body::PacketOut(PacketOut::new(PortNo(3), frame)),
        "OFPT_PACKET_OUT: in_port=CONTROLLER actions=output:3 data_len=60 vlan_tci=0x0000,\
         dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,dl_type=0x88cc",
    );
}

#[test]
fn groups_are_changed() {
    let group =
        |command, kind, buckets| Body::GroupMod(GroupMod { command, kind, group: GroupId(9), buckets });
    let to = |port| vec![Action::output(PortNo(port))];
    let rewrite = Action::SetField(Oxm::EthDst(Masked::exact(MacAddr(2, 0, 0, 0, 0, 7))));
    let buckets = vec![Bucket::new(to(1)), Bucket::new(vec![rewrite, Action::output(PortNo(2))])];
    means(
        group(GroupCommand::ADD, GroupType::ALL, buckets),
        "OFPT_GROUP_MOD: ADD group_id=9,type=all,bucket=actions=output:1,\
         bucket=actions=set_field:02:00:00:00:00:07->eth_dst,output:2",
    );
    let buckets =
        vec![Bucket { weight: 5, ..Bucket::new(to(1)) }, Bucket { weight: 7, ..Bucket::new(to(2)) }];
    means(
        group(GroupCommand::MODIFY, GroupType::SELECT, buckets),
        "OFPT_GROUP_MOD: MOD group_id=9,type=select,bucket=weight:5,actions=output:1,bucket=weight:7,\
         actions=output:2",
    );
    means(
        group(GroupCommand::ADD, GroupType::INDIRECT, vec![Bucket::new(to(1))]),
        "OFPT_GROUP_MOD: ADD group_id=9,type=indirect,bucket=actions=output:1",
    );
    let buckets = vec![
        Bucket::watching(PortNo(1), to(1)),
        Bucket { watch_group: GroupId(2), ..Bucket::new(vec![Action::Group(GroupId(2))]) },
    ];
    means(
        group(GroupCommand::ADD, GroupType::FF, buckets),
        "OFPT_GROUP_MOD: ADD group_id=9,type=ff,bucket=watch_port:1,actions=output:1,\
         bucket=watch_group:2,actions=group:2",
    );
    means(group(GroupCommand::DELETE, GroupType::ALL, Vec::new()), "OFPT_GROUP_MOD: DEL group_id=9,type=all");
}

#[test]
fn meters_ports_and_tables_are_changed() {
    let bands = vec![
        Band { rate: 1000, burst: 50, effect: BandEffect::Drop },
        Band { rate: 500, burst: 20, effect: BandEffect::DscpRemark(1) },
    ];
    let flags = MeterFlags::KBPS | MeterFlags::BURST | MeterFlags::STATS;
    let meter = MeterMod { command: MeterCommand::ADD, flags, meter: MeterId(4), bands };
    means(
        Body::MeterMod(meter),
        "OFPT_METER_MOD: ADD meter=4 kbps burst stats bands= type=drop rate=1000 burst_size=50 \
         type=dscp_remark rate=500 burst_size=20 prec_level=1",
    );

    let port = PortMod {
        port: PortNo(2),
        hw_addr: MacAddr(2, 0, 0, 0, 0, 1),
        config: PortConfig::PORT_DOWN,
        mask: PortConfig::PORT_DOWN | PortConfig::NO_FWD,
        advertise: PortFeatures::FD_10G | PortFeatures::COPPER,
    };
    means(
        Body::PortMod(port),
        "OFPT_PORT_MOD: port: 2: addr:02:00:00:00:00:01 config: PORT_DOWN mask: PORT_DOWN NO_FWD \
         advertise: 10GB-FD COPPER",
    );
    let table = TableMod { table: TableId(3), config: TableConfig::NONE };
    means(Body::TableMod(table), "OFPT_TABLE_MOD: table_id=3");
}

#[track_caller]
fn ask(request: MultipartRequest, expected: &str) {
    means(Body::MultipartRequest(request.into()), expected);
}

#[test]
fn state_is_requested() {
    ask(MultipartRequest::Desc, "OFPST_DESC request:");
    ask(MultipartRequest::Flow(FlowStatsRequest::default()), "OFPST_FLOW request:");
    let some = FlowStatsRequest { table: TableId(2), out_port: PortNo(3), ..FlowStatsRequest::default() };
    ask(MultipartRequest::Aggregate(some), "OFPST_AGGREGATE request: table=2 out_port=3");
    ask(MultipartRequest::Table, "OFPST_TABLE request:");
    ask(MultipartRequest::PortStats(PortStatsRequest { port: PortNo(5) }), "OFPST_PORT request: port_no=5");
    ask(
        MultipartRequest::Queue(QueueStatsRequest { port: PortNo::ANY, queue: QueueId::ALL }),
        "OFPST_QUEUE request: port=ANY queue=ALL",
    );
    ask(MultipartRequest::Group(GroupStatsRequest { group: GroupId(8) }), "OFPST_GROUP request: group_id=8");
    ask(MultipartRequest::GroupDesc, "OFPST_GROUP_DESC request: group_id=ALL");
    ask(MultipartRequest::GroupFeatures, "OFPST_GROUP_FEATURES request:");
    ask(MultipartRequest::Meter(MeterRequest { meter: MeterId(3) }), "OFPST_METER request: meter=3");
    ask(
        MultipartRequest::MeterConfig(MeterRequest { meter: MeterId::ALL }),
        "OFPST_METER_CONFIG request: meter=all",
    );
    ask(MultipartRequest::MeterFeatures, "OFPST_METER_FEATURES request:");
    ask(MultipartRequest::TableFeatures(Vec::new()), "OFPST_TABLE_FEATURES request:");
    ask(MultipartRequest::PortDesc, "OFPST_PORT_DESC request: port=ANY");
    means(
        Body::QueueGetConfigRequest(QueueConfigRequest { port: PortNo(1) }),
        "OFPT_QUEUE_GET_CONFIG_REQUEST: port=1",
    );
}
