//! Requests to a switch besides those of the handshake and of the reconciler: which notifications
//! it sends, which ports it blocks, and a test of its groups.

use super::Channel;
use crate::intent::tables::TEST_GROUP;
use rs_openflow::{
    Action, AsyncConfig, Body, Bucket, BufferId, GroupCommand, GroupId, GroupMod, GroupType, PacketInReason,
    PacketOut, PortConfig, PortFeatures, PortMod, PortNo, PortReason,
};

/// Maximum number of recorded messages about ports that the switch may still refuse.
const MAX_PORT_MODS_UNKNOWN: usize = 1 << 12;
/// Notifications that a standby receives.
pub(super) const NO_NOTIFICATIONS: AsyncConfig = AsyncConfig {
    packet_in: 0,
    packet_in_slave: 0,
    port_status: 0,
    port_status_slave: 0,
    flow_removed: 0,
    flow_removed_slave: 0,
};
/// Notifications that a leader receives, as after connecting (OpenFlow 1.3.5, 6.1.1): packet-ins
/// for each reason except an invalid time to live, and all changes of ports.
pub(super) const ALL_NOTIFICATIONS: AsyncConfig = AsyncConfig {
    packet_in: 1 << PacketInReason::NO_MATCH.0 | 1 << PacketInReason::ACTION.0,
    port_status: 1 << PortReason::ADD.0 | 1 << PortReason::DELETE.0 | 1 << PortReason::MODIFY.0,
    ..NO_NOTIFICATIONS
};

impl Channel {
    /// Blocks a port: the switch sends nothing out of it, but still hands in what it receives.
    pub(super) fn block(&mut self, port: u32, blocked: bool) {
        let Some(info) = self.ports.get(&port) else { return };
        let change = PortMod {
            port: PortNo(port),
            hw_addr: info.mac,
            config: if blocked { PortConfig::NO_FWD } else { PortConfig::NONE },
            mask: PortConfig::NO_FWD,
            advertise: PortFeatures::NONE,
        };
        let xid = self.send(Body::PortMod(change));
        if blocked {
            self.port_mods.insert(xid, port);
        }
        while self.port_mods.len() > MAX_PORT_MODS_UNKNOWN {
            self.port_mods.pop_first();
        }
    }

    /// Sends a packet into a group of one port, as if that port had received it. The switch must
    /// not send it out of the port. A switch that refuses the test has no such groups.
    pub(super) fn test_groups(&mut self, port: u32, packet: Vec<u8>) {
        let group = GroupId(TEST_GROUP);
        let buckets = vec![Bucket::new(vec![Action::output(PortNo(port))])];
        let change =
            |command, buckets| Body::GroupMod(GroupMod { command, kind: GroupType::ALL, group, buckets });
        let packet = PacketOut {
            buffer: BufferId::NONE,
            in_port: PortNo(port),
            actions: vec![Action::Group(group)],
            data: packet,
        };
        let steps = [
            // It may exist since an earlier connection.
            change(GroupCommand::DELETE, Vec::new()),
            change(GroupCommand::ADD, buckets),
            Body::BarrierRequest,
            Body::PacketOut(packet),
            Body::BarrierRequest,
            change(GroupCommand::DELETE, Vec::new()),
        ];
        self.group_test_xids = steps.into_iter().map(|step| self.send(step)).collect();
    }
}
