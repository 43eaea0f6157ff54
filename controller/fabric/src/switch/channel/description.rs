//! What a switch is asked for before it is served: its ports, description, meters, capacity and
//! tables, and the replies to these and later requests for its state.

use super::ports::MAX_PORTS;
use super::{Channel, ChannelPhase, Output};
use crate::observation::{MeterDemand, SwitchInventory};
use crate::switch::admission_policy::safe_name;
use crate::switch::capacity::CapacityQuery;
use crate::switch::inventory::CountedEntries;
use crate::switch::port_info::{PortInfo, may_lead_to_host};
use crate::switch::reconciler;
use crate::telemetry::counters::SwitchCounters;
use cool_machine::{Machine, Time};
use rs_openflow::{Body, FragmentHandling, MultipartReply, MultipartRequest, PortReason, SwitchConfig};
use std::collections::BTreeSet;

/// Length of a packet-in that is not truncated (OFPCML_NO_BUFFER).
const NO_BUFFER: u16 = 0xffff;

impl Channel {
    pub(super) fn described(&mut self, now: Time, xid: u32, reply: MultipartReply, more: bool) {
        match reply {
            MultipartReply::MeterFeatures(features)
                if self.meter_features_xid == Some(xid) && self.phase == ChannelPhase::Description =>
            {
                self.metering.learn(&features);
                self.capacity_query.learn_meters(&features);
            }
            reply @ (MultipartReply::GroupFeatures(_) | MultipartReply::TableFeatures(_)) => {
                self.capacity_query.reply(xid, &reply);
            }
            reply @ (MultipartReply::PortStats(_) | MultipartReply::Flow(_)) => {
                if let Some(counted) = self.counters.reply(now, xid, &reply, more) {
                    let counted = SwitchCounters {
                        packet_ins: self.packet_ins,
                        packet_ins_dropped: self.policer.dropped(),
                        meters: self.metering.in_switch(),
                        group_tables: self.capacity_query.group_tables,
                        is_in_user_space: self.capacity_query.is_in_user_space(),
                        ..counted
                    };
                    self.outputs.push_back(Output::Counters(counted));
                }
            }
            reply @ (MultipartReply::Aggregate(_)
            | MultipartReply::GroupDesc(_)
            | MultipartReply::MeterConfig(_)) => self.inventory.reply(xid, reply, more),
            reply @ MultipartReply::PortDesc(_) if self.phase == ChannelPhase::Up => {
                self.inventory.reply(xid, reply, more);
            }
            MultipartReply::PortDesc(ports) if self.phase == ChannelPhase::Ports => {
                ports.iter().for_each(|port| self.record_port(port));
                if self.ports.len() > MAX_PORTS {
                    return self.close(format!("it reports more than {MAX_PORTS} ports"));
                }
                if !more {
                    self.request_description();
                }
            }
            MultipartReply::Desc(description) if self.phase == ChannelPhase::Description => {
                self.capacity_query.describe(&description.hardware.text());
                let model = [
                    description.manufacturer.text(),
                    description.hardware.text(),
                    description.software.text(),
                ];
                self.model = safe_name(model.join(" ").trim());
                let reported = safe_name(&description.datapath.text());
                // Open vSwitch reports "None" if it was given no name.
                if self.name.is_none() && !reported.is_empty() && reported != "None" {
                    self.name = Some(reported);
                }
            }
            _ => {}
        }
    }

    /// Requests properties that a switch need not report. It may answer in any order or not at all,
    /// but it has answered what it can when it replies to the barrier (OpenFlow 1.3.5, 6.2). Meters
    /// must be made before flows refer to them.
    pub(super) fn request_description(&mut self) {
        self.phase = ChannelPhase::Description;
        let mut ask = |question: MultipartRequest| self.send(Body::MultipartRequest(question.into()));
        let description = [MultipartRequest::Desc, MultipartRequest::MeterFeatures].map(&mut ask);
        let capabilities = CapacityQuery::requests().map(ask);
        [self.description_xid, self.meter_features_xid] = description.map(Some);
        self.capacity_query.requested(capabilities);
        // Some switches truncate all packet-ins to this length, and LLDP must arrive whole.
        let config = SwitchConfig { fragments: FragmentHandling::NORMAL, miss_send_len: NO_BUFFER };
        self.config_xid = Some(self.send(Body::SetConfig(config)));
        self.barrier = Some(self.send(Body::BarrierRequest));
    }

    /// Makes the meters that flows will refer to, and waits until the switch has them.
    pub(super) fn make_meters(&mut self) {
        if !self.metering.in_switch() {
            return self.read_tables();
        }
        self.phase = ChannelPhase::Meters;
        let ports: Vec<u32> = self.ports.keys().copied().collect();
        self.make_meter(None);
        ports.into_iter().for_each(|port| self.make_meter(Some(port)));
        self.barrier = Some(self.send(Body::BarrierRequest));
    }

    pub(super) fn make_meter(&mut self, port: Option<u32>) {
        for body in self.metering.make(port) {
            let xid = self.send(body);
            self.meter_mods.insert(xid);
        }
    }

    pub(super) fn read_tables(&mut self) {
        self.phase = ChannelPhase::SwitchTables;
        // Large tables may take long. The reconciler limits the time between their parts.
        self.handshake = None;
        self.reconciler.handle(self.keepalive.last(), reconciler::Input::Start);
    }

    /// Publishes an inventory. Ports that have changed without a notification are reported, too,
    /// because a switch may send an observer none.
    pub(super) fn counted(&mut self, (counted, ports): CountedEntries) {
        let own: Vec<u32> = self.ports.keys().copied().collect();
        let meters = self.metering.needed(&own).map(|(needed, most)| MeterDemand { needed, most });
        self.outputs.push_back(Output::Counted(SwitchInventory { meter_demand: meters, ..counted }));
        let Some(ports) = ports else { return };
        let present: BTreeSet<u32> = ports.iter().map(|port| port.port.0).collect();
        own.into_iter()
            .filter(|number| !present.contains(number))
            .for_each(|number| self.remove_port(number));
        for port in ports.iter().filter(|port| may_lead_to_host(port.port)) {
            if self.ports.get(&port.port.0) != Some(&PortInfo::from_port(port)) {
                self.port_status(PortReason::MODIFY, port);
            }
        }
    }
}
