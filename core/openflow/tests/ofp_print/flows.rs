//! Flows: every match field, every action, every instruction.

use rs_openflow::{
    Action, Body, BufferId, EtherType, FlowCommand, FlowFlags, FlowMod, GroupId, Instruction, IpProtocol,
    MacAddr, Masked, Match, MaxLen, MeterId, Oxm, PortNo, QueueId, TableId, UnknownOxm, VlanId,
};

use crate::means;

const MAC: MacAddr = MacAddr(2, 0, 0, 0, 0, 0x2a);

/// Experimenter number of Nicira, under which Open vSwitch defines its own actions.
const NICIRA: u32 = 0x2320;

fn flow(matching: Match, instructions: Vec<Instruction>) -> Body {
    Body::FlowMod(FlowMod { matching, instructions, priority: 7, ..FlowMod::default() })
}

#[track_caller]
fn matches(matching: Match, expected: &str) {
    let expected = format!("OFPT_FLOW_MOD: ADD priority=7,{expected} actions=drop");
    means(flow(matching, Vec::new()), &expected);
}

#[track_caller]
fn acts(matching: Match, actions: Vec<Action>, expected: &str) {
    let text = matching_text(&matching);
    let body = flow(matching, vec![Instruction::ApplyActions(actions)]);
    means(body, &format!("OFPT_FLOW_MOD: ADD priority=7{text} actions={expected}"));
}

/// Returns how Open vSwitch prints the match that the tested actions require.
fn matching_text(matching: &Match) -> &'static str {
    match matching.fields.last() {
        Some(Oxm::EthType(Masked { value: EtherType::IPV4, .. })) => ",ip",
        Some(Oxm::EthType(Masked { value: EtherType::MPLS, .. })) => ",mpls",
        Some(_) => ",vlan_tci=0x1000/0x1000",
        None => "",
    }
}

fn of(kind: EtherType) -> Match {
    Match::new().eth_type(kind)
}

fn ip(protocol: IpProtocol) -> Match {
    of(EtherType::IPV4).ip_proto(protocol)
}

#[test]
fn fields_of_port_and_ethernet_are_matched() {
    matches(Match::new().in_port(PortNo(3)), "in_port=3");
    matches(Match::new().metadata(0x12), "metadata=0x12");
    matches(Match::new().metadata_masked(0x12, 0xff), "metadata=0x12/0xff");
    matches(Match::new().tunnel_id(5), "tun_id=0x5");
    matches(Match::new().tunnel_id_masked(5, 0xf), "tun_id=0x5/0xf");
    matches(Match::new().eth_dst(MAC).eth_src(MAC), "dl_src=02:00:00:00:00:2a,dl_dst=02:00:00:00:00:2a");
    let rack = MacAddr(2, 0xc0, 0, 1, 0, 0);
    let mask = MacAddr(0xff, 0xff, 0xff, 0xff, 0, 0);
    matches(
        Match::new().eth_dst_masked(rack, mask).eth_src_masked(rack, mask),
        "dl_src=02:c0:00:01:00:00/ff:ff:ff:ff:00:00,dl_dst=02:c0:00:01:00:00/ff:ff:ff:ff:00:00",
    );
    matches(of(EtherType::LLDP), "dl_type=0x88cc");
    matches(Match::new().vlan_vid(VlanId::tagged(7)).vlan_pcp(3), "dl_vlan=7,dl_vlan_pcp=3");
    matches(Match::new().vlan_vid(VlanId::NONE), "vlan_tci=0x0000/0x1fff");
    matches(Match::new().vlan_vid_masked(VlanId::PRESENT, VlanId::PRESENT), "vlan_tci=0x1000/0x1000");
}

#[test]
fn fields_of_ip_and_its_payload_are_matched() {
    let net = ([10, 1, 0, 0].into(), [255, 255, 0, 0].into());
    matches(of(EtherType::IPV4).ipv4_src([10, 0, 0, 1].into()), "ip,nw_src=10.0.0.1");
    matches(of(EtherType::IPV4).ipv4_src_masked(net.0, net.1), "ip,nw_src=10.1.0.0/16");
    matches(of(EtherType::IPV4).ipv4_dst([239, 192, 0, 1].into()), "ip,nw_dst=239.192.0.1");
    matches(of(EtherType::IPV4).ipv4_dst_masked(net.0, net.1), "ip,nw_dst=10.1.0.0/16");
    matches(of(EtherType::IPV4).ip_dscp(8).ip_ecn(1), "ip,nw_tos=32,nw_ecn=1");
    matches(ip(IpProtocol::TCP).tcp_src(80).tcp_dst(81), "tcp,tp_src=80,tp_dst=81");
    matches(ip(IpProtocol::UDP).udp_src(67).udp_dst(68), "udp,tp_src=67,tp_dst=68");
    matches(ip(IpProtocol::SCTP).sctp_src(1).sctp_dst(2), "sctp,tp_src=1,tp_dst=2");
    matches(ip(IpProtocol::ICMP).icmpv4_type(8).icmpv4_code(0), "icmp,icmp_type=8,icmp_code=0");
}

#[test]
fn fields_of_arp_are_matched() {
    let arp = || of(EtherType::ARP);
    let (one, net, mask) = ([10, 0, 0, 1].into(), [10, 0, 0, 0].into(), [255, 0, 0, 0].into());
    matches(arp().arp_op(1).arp_spa(one).arp_tpa(one), "arp,arp_spa=10.0.0.1,arp_tpa=10.0.0.1,arp_op=1");
    matches(
        arp().arp_spa_masked(net, mask).arp_tpa_masked(net, mask),
        "arp,arp_spa=10.0.0.0/8,arp_tpa=10.0.0.0/8",
    );
    matches(arp().arp_sha(MAC).arp_tha(MAC), "arp,arp_sha=02:00:00:00:00:2a,arp_tha=02:00:00:00:00:2a");
    let maker = MacAddr(0xff, 0xff, 0xff, 0, 0, 0);
    let prefix = MacAddr(2, 0, 0, 0, 0, 0);
    matches(
        arp().arp_sha_masked(prefix, maker).arp_tha_masked(prefix, maker),
        "arp,arp_sha=02:00:00:00:00:00/ff:ff:ff:00:00:00,arp_tha=02:00:00:00:00:00/ff:ff:ff:00:00:00",
    );
}

#[test]
fn fields_of_ipv6_are_matched() {
    let ipv6 = || of(EtherType::IPV6);
    let (one, net, mask) =
        ("fe80::1".parse().unwrap(), "2001:db8::".parse().unwrap(), "ffff:ffff::".parse().unwrap());
    matches(ipv6().ipv6_src(one).ipv6_dst(one), "ipv6,ipv6_src=fe80::1,ipv6_dst=fe80::1");
    matches(
        ipv6().ipv6_src_masked(net, mask).ipv6_dst_masked(net, mask),
        "ipv6,ipv6_src=2001:db8::/32,ipv6_dst=2001:db8::/32",
    );
    matches(ipv6().ipv6_flabel(0x12345), "ipv6,ipv6_label=0x12345");
    matches(ipv6().ipv6_flabel_masked(0x12300, 0xfff00), "ipv6,ipv6_label=0x12300/0xfff00");
    let icmp = |kind| ipv6().ip_proto(IpProtocol::ICMPV6).icmpv6_type(kind).icmpv6_code(0);
    matches(
        icmp(135).ipv6_nd_target(one).ipv6_nd_sll(MAC),
        "icmp6,icmp_type=135,icmp_code=0,nd_target=fe80::1,nd_sll=02:00:00:00:00:2a",
    );
    matches(
        icmp(136).ipv6_nd_target(one).ipv6_nd_tll(MAC),
        "icmp6,icmp_type=136,icmp_code=0,nd_target=fe80::1,nd_tll=02:00:00:00:00:2a",
    );
}

#[test]
fn fields_of_mpls_and_unknown_ones_are_matched() {
    let mpls = of(EtherType::MPLS).mpls_label(77).mpls_tc(5).mpls_bos(1);
    matches(mpls, "mpls,mpls_label=77,mpls_tc=5,mpls_bos=1");
    // This field is register 0, which Open vSwitch defines in a class of its own.
    let register = UnknownOxm { class: 1, field: 0, has_mask: false, payload: vec![0, 0, 0, 9] };
    matches(Match::new().with(Oxm::Unknown(register)), "reg0=0x9");
}

#[test]
fn actions_on_ports_groups_and_queues_are_done() {
    let all = Match::new;
    acts(all(), vec![Action::output(PortNo(2))], "output:2");
    acts(all(), vec![Action::output(PortNo::CONTROLLER)], "CONTROLLER:65535");
    let some = Action::Output { port: PortNo::CONTROLLER, max_len: MaxLen(128) };
    acts(all(), vec![some], "CONTROLLER:128");
    let reserved = [PortNo::IN_PORT, PortNo::NORMAL, PortNo::FLOOD, PortNo::ALL, PortNo::LOCAL];
    acts(all(), reserved.map(Action::output).to_vec(), "IN_PORT,NORMAL,FLOOD,ALL,LOCAL");
    acts(all(), vec![Action::Group(GroupId(5))], "group:5");
    acts(all(), vec![Action::SetQueue(QueueId(3)), Action::output(PortNo(1))], "set_queue:3,output:1");
}

#[test]
fn actions_on_headers_are_done() {
    let tagged = || Match::new().vlan_vid_masked(VlanId::PRESENT, VlanId::PRESENT);
    acts(Match::new(), vec![Action::PushVlan(EtherType::VLAN)], "push_vlan:0x8100");
    acts(tagged(), vec![Action::PopVlan], "pop_vlan");
    acts(Match::new(), vec![Action::PushMpls(EtherType::MPLS)], "push_mpls:0x8847");
    acts(of(EtherType::MPLS), vec![Action::PopMpls(EtherType::IPV4)], "pop_mpls:0x0800");
    acts(
        of(EtherType::MPLS),
        vec![Action::SetMplsTtl(64), Action::DecMplsTtl],
        "set_mpls_ttl(64),dec_mpls_ttl",
    );
    acts(of(EtherType::IPV4), vec![Action::SetNwTtl(9), Action::DecNwTtl], "mod_nw_ttl:9,dec_ttl");
    let field = |field| vec![Action::SetField(field)];
    acts(Match::new(), field(Oxm::EthDst(Masked::exact(MAC))), "set_field:02:00:00:00:00:2a->eth_dst");
    acts(Match::new(), field(Oxm::EthSrc(Masked::exact(MAC))), "set_field:02:00:00:00:00:2a->eth_src");
    let address = Masked::exact([10, 0, 0, 9].into());
    acts(of(EtherType::IPV4), field(Oxm::Ipv4Dst(address)), "set_field:10.0.0.9->ip_dst");
    acts(tagged(), field(Oxm::VlanVid(Masked::exact(VlanId::tagged(5)))), "set_field:4101->vlan_vid");
    acts(Match::new(), field(Oxm::TunnelId(Masked::exact(0x77))), "set_field:0x77->tun_id");
}

#[test]
fn an_experimenters_action_is_handed_through() {
    // The resubmit action of Nicira, to table 3.
    let data = vec![0, 14, 0xff, 0xf8, 3, 0, 0, 0];
    let action = Action::Experimenter { experimenter: NICIRA, data };
    acts(Match::new(), vec![action], "resubmit(,3)");
}

#[test]
fn instructions_are_followed() {
    let instructions = vec![
        Instruction::Meter(MeterId(6)),
        Instruction::ApplyActions(vec![Action::output(PortNo(1))]),
        Instruction::ClearActions,
        Instruction::WriteActions(vec![Action::output(PortNo(2))]),
        Instruction::WriteMetadata { metadata: 0x5, mask: 0xff },
        Instruction::GotoTable(TableId(4)),
    ];
    means(
        flow(Match::new(), instructions),
        "OFPT_FLOW_MOD: ADD priority=7 \
         actions=meter:6,output:1,clear_actions,write_actions(output:2),write_metadata:0x5/0xff,goto_table:4",
    );
}

#[test]
fn numbers_of_a_flow_arrive() {
    let flow = FlowMod {
        cookie: 0xc001,
        table: TableId(3),
        idle_timeout: 10,
        hard_timeout: 20,
        priority: 30,
        buffer: BufferId(0x99),
        flags: FlowFlags::SEND_FLOW_REM | FlowFlags::CHECK_OVERLAP | FlowFlags::RESET_COUNTS,
        ..FlowMod::default()
    };
    means(
        Body::FlowMod(flow),
        "OFPT_FLOW_MOD: ADD table:3 priority=30 cookie:0xc001 idle:10 hard:20 buf:0x99 \
         send_flow_rem check_overlap reset_counts actions=drop",
    );
}

#[track_caller]
fn changes(command: FlowCommand, table: TableId, expected: &str) {
    let (cookie, cookie_mask, out_port) = (0xc000, 0xf000, PortNo(4));
    let flow = FlowMod { command, table, cookie, cookie_mask, out_port, ..FlowMod::default() };
    means(Body::FlowMod(flow), expected);
}

#[test]
fn flows_are_modified_and_deleted() {
    changes(
        FlowCommand::MODIFY,
        TableId(1),
        "OFPT_FLOW_MOD: MOD table:1 cookie:0xc000/0xf000 out_port:4 actions=drop",
    );
    changes(
        FlowCommand::MODIFY_STRICT,
        TableId(1),
        "OFPT_FLOW_MOD: MOD_STRICT table:1 cookie:0xc000/0xf000 out_port:4 actions=drop",
    );
    changes(
        FlowCommand::DELETE,
        TableId::ALL,
        "OFPT_FLOW_MOD: DEL table:255 cookie:0xc000/0xf000 out_port:4 actions=drop",
    );
    changes(
        FlowCommand::DELETE_STRICT,
        TableId::ALL,
        "OFPT_FLOW_MOD: DEL_STRICT table:255 cookie:0xc000/0xf000 out_port:4 actions=drop",
    );
}
