//! The ports of a switch, as it describes them and reports their changes.

use super::{Channel, ChannelPhase, Output};
use crate::switch::admission_policy::safe_name;
use crate::switch::port_info::{PortInfo, may_lead_to_host};
use rs_openflow::{PortNo, PortReason};

/// Maximum number of ports of a switch.
pub(super) const MAX_PORTS: usize = 1 << 16;
/// Maximum number of recorded meter messages that the switch may still refuse.
const MAX_METERS_UNKNOWN: usize = 1 << 12;

impl Channel {
    pub(super) fn record_port(&mut self, port: &rs_openflow::Port) {
        if port.port == PortNo::LOCAL {
            self.name = Some(safe_name(&port.name.text())).filter(|name| !name.is_empty());
        }
        if may_lead_to_host(port.port) {
            let info = PortInfo::from_port(port);
            self.ports.insert(info.number, info);
        }
    }

    pub(super) fn port_status(&mut self, reason: PortReason, port: &rs_openflow::Port) {
        if !may_lead_to_host(port.port) {
            return;
        }
        // Before the switch is up, only the final list of ports matters.
        let up = self.phase == ChannelPhase::Up;
        if reason == PortReason::DELETE {
            return self.remove_port(port.port.0);
        }
        let info = PortInfo::from_port(port);
        let new = self.ports.insert(info.number, info.clone()).is_none();
        if new && self.phase > ChannelPhase::Description {
            self.make_meter(Some(info.number));
            // Errors for the oldest meter messages would have arrived by now, so they need not be
            // recorded.
            while self.meter_mods.len() > MAX_METERS_UNKNOWN {
                self.meter_mods.pop_first();
            }
        }
        if self.ports.len() > MAX_PORTS {
            return self.close(format!("it reports more than {MAX_PORTS} ports"));
        }
        if up {
            self.outputs.push_back(Output::PortChanged(info));
        }
    }

    /// Removes a port that the switch no longer has.
    pub(super) fn remove_port(&mut self, number: u32) {
        self.ports.remove(&number);
        [true, false].into_iter().for_each(|lldp| self.policer.forget((number, lldp)));
        if self.phase == ChannelPhase::Up {
            self.outputs.push_back(Output::PortRemoved(number));
        }
    }
}
