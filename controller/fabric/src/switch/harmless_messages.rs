//! The messages that change nothing in a switch. An observing controller sends no others.

use crate::frames::is_lldp;
use rs_openflow::{Action, Body, MultipartRequest, PacketOut, PortNo};

/// Returns whether a message only reads the state of a switch, keeps the connection alive, or sends
/// an LLDP frame out of ports.
///
/// Every other message is refused, also one that only concerns this connection, such as a request
/// for a role or for notifications: whether it changes anything depends on the switch.
pub(crate) fn is_harmless(body: &Body) -> bool {
    match body {
        Body::Hello(_)
        | Body::Error(_)
        | Body::EchoRequest(_)
        | Body::EchoReply(_)
        | Body::FeaturesRequest
        | Body::GetConfigRequest
        | Body::GetAsyncRequest
        | Body::QueueGetConfigRequest(_)
        | Body::BarrierRequest => true,
        Body::MultipartRequest(request) => match &request.body {
            // With a list, the request changes the tables.
            MultipartRequest::TableFeatures(features) => features.is_empty(),
            MultipartRequest::Experimenter(_) => false,
            _ => true,
        },
        Body::PacketOut(packet) => is_announcement(packet),
        _ => false,
    }
}

/// Returns whether a packet-out sends an LLDP frame out of ports of the switch, past its flows and
/// groups.
fn is_announcement(packet: &PacketOut) -> bool {
    let to_port = |action: &Action| match action {
        Action::Output { port, .. } => *port <= PortNo::MAX || *port == PortNo::LOCAL,
        _ => false,
    };
    is_lldp(&packet.data) && packet.actions.iter().all(to_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_topology::lldp::Announcement;
    use cool_topology::{DatapathId, MacAddr};
    use rs_openflow::{
        AsyncConfig, BufferId, ControllerRole, FlowMod, FragmentHandling, GroupCommand, GroupId, GroupMod,
        GroupType, MeterCommand, MeterFlags, MeterId, MeterMod, PortConfig, PortFeatures, PortMod,
        RoleConfig, SwitchConfig, TableConfig, TableId, TableMod,
    };

    fn packet_out(port: PortNo, data: Vec<u8>) -> Body {
        Body::PacketOut(PacketOut::to_each([port], data))
    }

    fn lldp() -> Vec<u8> {
        let announcement = Announcement::Switch { switch: DatapathId(1), port: 1 };
        announcement.encode(MacAddr(2, 0, 0, 0, 0, 1), &[1; 32].into(), 1).unwrap()
    }

    #[test]
    fn messages_that_change_a_switch_are_not_harmless() {
        let role = RoleConfig { role: ControllerRole::EQUAL, generation: 0 };
        let asynchronous = AsyncConfig {
            packet_in: 0,
            packet_in_slave: 0,
            port_status: 0,
            port_status_slave: 0,
            flow_removed: 0,
            flow_removed_slave: 0,
        };
        let port = PortMod {
            port: PortNo(1),
            hw_addr: MacAddr(2, 0, 0, 0, 0, 1),
            config: PortConfig::NO_FWD,
            mask: PortConfig::NO_FWD,
            advertise: PortFeatures::NONE,
        };
        let command = GroupCommand::ADD;
        let group = GroupMod { command, kind: GroupType::ALL, group: GroupId(1), buckets: Vec::new() };
        let command = MeterCommand::ADD;
        let meter = MeterMod { command, flags: MeterFlags::PKTPS, meter: MeterId(1), bands: Vec::new() };
        let into_group = PacketOut {
            buffer: BufferId::NONE,
            in_port: PortNo(1),
            actions: vec![Action::Group(GroupId(1))],
            data: lldp(),
        };
        let config = SwitchConfig { fragments: FragmentHandling::NORMAL, miss_send_len: 128 };
        let changing = [
            Body::FlowMod(FlowMod::default()),
            Body::GroupMod(group),
            Body::MeterMod(meter),
            Body::PortMod(port),
            Body::TableMod(TableMod { table: TableId(0), config: TableConfig::NONE }),
            Body::SetConfig(config),
            Body::SetAsync(asynchronous),
            Body::RoleRequest(role),
            Body::PacketOut(into_group),
            packet_out(PortNo::TABLE, lldp()),
            packet_out(PortNo::FLOOD, lldp()),
            packet_out(PortNo(1), vec![0xff; 60]),
        ];
        for body in changing {
            assert!(!is_harmless(&body), "{body:?}");
        }
    }

    #[test]
    fn requests_for_state_and_lldp_frames_are_harmless() {
        let request = |request: MultipartRequest| Body::MultipartRequest(request.into());
        let harmless = [
            Body::FeaturesRequest,
            Body::BarrierRequest,
            request(MultipartRequest::GroupDesc),
            request(MultipartRequest::TableFeatures(Vec::new())),
            packet_out(PortNo(1), lldp()),
        ];
        for body in harmless {
            assert!(is_harmless(&body), "{body:?}");
        }
    }
}
