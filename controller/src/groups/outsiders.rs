//! Packets to groups from hosts that are not members.

use cool_fabric::{Fabric, SwitchView};
use cool_proto::control::Outsiders;

/// Returns the switches that dropped packets of non-members to groups.
pub fn outsiders(fabric: &dyn Fabric) -> Vec<Outsiders> {
    let (network, measured) = (fabric.topology(), fabric.measurements());
    let of = |s: &SwitchView| {
        let packets = measured.switches.get(&s.datapath_id).map_or(0, |load| load.nonmember_packets);
        Outsiders { datapath_id: s.datapath_id.0, name: s.name.clone(), packets }
    };
    network.switches.iter().map(of).filter(|outsiders| outsiders.packets > 0).collect()
}
