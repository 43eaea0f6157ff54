//! OpenFlow channel of one switch (OpenFlow 1.3.5, section 6) as a machine: it negotiates the
//! version, learns identity and ports, keeps the connection alive, and then passes packets in both
//! directions. The [`reconciler`](crate::switch::reconciler) of the tables is part of it.
//! [`connection`](crate::switch::connection) handles bytes and sockets.

mod description;
mod ports;
mod requests;

use crate::api::{NotAdmitted, Pipeline, TableCapacity};
use crate::intent::{self, inherited_state::InheritedState};
use crate::observation::{SwitchInventory, WithheldChanges};
use crate::switch::admission_policy::AdmissionPolicy;
use crate::switch::capacity::CapacityQuery;
use crate::switch::counter_poller::CounterPoller;
use crate::switch::harmless_messages::is_harmless;
use crate::switch::inventory::InventoryPoller;
use crate::switch::keepalive::{DEAD_AFTER, Keepalive};
use crate::switch::master_role::MasterRole;
use crate::switch::metering::{METER_EXISTS, Policer, PortMeters};
use crate::switch::port_info::PortInfo;
use crate::switch::reconciler::{self, EntryRefusals, Reconciler, TableUpdate};
use crate::telemetry::counters::SwitchCounters;
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use cool_topology::DatapathId;
use rs_openflow::{
    Body, Error, ErrorMessage, ErrorType, Hello, Message, MessageHeader, MessageType, MultipartRequest,
    PacketOut, PortNo, VERSION,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Time within which a peer must complete the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Code of HELLO_FAILED: no common version.
const INCOMPATIBLE: u16 = 0;

/// Configuration of channels.
#[derive(Clone, Debug)]
pub(crate) struct ChannelConfig {
    /// Packet-ins per second that each port may cause.
    pub(crate) packet_ins_per_second: u32,
    /// Maximum interval between messages of a switch; echo requests enforce it.
    pub(crate) keepalive_interval: Duration,
    /// Interval at which counters are requested.
    pub(crate) counters_interval: Duration,
    /// Maximum number of meters.
    pub(crate) max_meters: Option<u32>,
    /// Maximum number of flows.
    pub(crate) max_flows: Option<u32>,
    /// The flow table and group numbers of this controller.
    pub(crate) pipeline: Pipeline,
    /// The switches that are accepted.
    pub(crate) admission: AdmissionPolicy,
    /// Distinguishes this controller from earlier ones. `None` on standby.
    pub(crate) generation: Option<u64>,
    /// Whether the switch is only observed ([`is_harmless`]).
    pub(crate) observes: bool,
}

/// A switch as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwitchInfo {
    pub(crate) datapath_id: DatapathId,
    pub(crate) name: String,
    pub(crate) ports: Vec<PortInfo>,
    /// State from an earlier controller that it still holds.
    pub(crate) inherited: InheritedState,
    /// Capacity that it reports.
    pub(crate) capacity: TableCapacity,
    /// Its manufacturer, hardware and software; empty if it does not report them.
    pub(crate) model: String,
    /// Number of its flow tables.
    pub(crate) tables: u8,
}

/// Input of the machine.
#[derive(Debug)]
pub(crate) enum Input {
    /// A message was received.
    Received(Message),
    /// Received bytes are no valid message. The header is given if at least that can be read.
    Unreadable(Option<MessageHeader>, Error),
    /// The desired state has changed.
    Update(TableUpdate),
    /// This frame must be sent out of these ports.
    Packet(Vec<u32>, Vec<u8>),
    /// This controller leads from now on, with this generation.
    Lead(u64),
}

/// Output of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Send(Message),
    /// The switch is ready for updates. Sent once, before all following outputs.
    Up(SwitchInfo),
    /// The switch reports this datapath id and is rejected. [`Output::Close`] follows.
    NotAdmitted(DatapathId, NotAdmitted),
    PortChanged(PortInfo),
    PortRemoved(u32),
    /// A port received this frame.
    PacketIn(u32, Vec<u8>),
    /// The switch has reported its counters.
    Counters(SwitchCounters),
    Acknowledged(u64, EntryRefusals),
    /// The switch has refused to block this port.
    BlockRefused(u32),
    /// The entries of the switch have been counted, because it is only observed.
    Counted(SwitchInventory),
    /// Changes that are not sent, because the switch is only observed.
    Withheld(WithheldChanges),
    /// A condition that an operator should look at.
    Warning(String),
    /// The driver must send the remaining messages and close the connection, for this reason.
    Close(String),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ChannelPhase {
    Hello,
    /// The switch is kept connected until this controller leads. Another one may be its master
    /// meanwhile.
    Standby,
    Features,
    Ports,
    /// The switch is asked for properties that it need not report.
    Description,
    Meters,
    SwitchTables,
    Up,
    Closed,
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Channel {
    phase: ChannelPhase,
    datapath_id: DatapathId,
    name: Option<String>,
    ports: BTreeMap<u32, PortInfo>,
    reconciler: Reconciler,
    metering: PortMeters,
    role: MasterRole,
    capacity_query: CapacityQuery,
    pipeline: Pipeline,
    admission: AdmissionPolicy,
    observes: bool,
    inventory: InventoryPoller,
    /// Manufacturer, hardware and software, and number of flow tables.
    model: String,
    tables: u8,
    /// Requests for the description and for the features of meters.
    description_xid: Option<u32>,
    meter_features_xid: Option<u32>,
    /// The configuration of packet-ins.
    config_xid: Option<u32>,
    /// The requests to notify this controller of nothing on standby, and later of everything.
    async_xids: [Option<u32>; 2],
    /// The last test of groups.
    group_test_xids: Vec<u32>,
    /// Barrier after the requests for the description, then the one after the meters.
    barrier: Option<u32>,
    /// Meter messages that may still be refused.
    meter_mods: BTreeSet<u32>,
    /// Messages that block a port and may still be refused, with the port of each.
    port_mods: BTreeMap<u32, u32>,
    /// Limits the packet-ins of each port. LLDP (`true`) and other frames have separate token
    /// buckets.
    policer: Policer<(u32, bool)>,
    packet_ins: u64,
    /// Number of messages that were ignored because they could not be read.
    unreadable: u64,
    /// Number of errors that concern no request.
    errors: u64,
    counters: CounterPoller,
    /// Whether the deletion of a tree's flows has been sent and is not acknowledged yet.
    deletes_tree_flows: bool,
    next_xid: u32,
    keepalive: Keepalive,
    handshake: Option<Time>,
    outputs: VecDeque<Output>,
}

impl Channel {
    pub(crate) fn new(now: Time, config: ChannelConfig) -> Channel {
        let mut channel = Channel {
            phase: ChannelPhase::Hello,
            datapath_id: DatapathId(0),
            name: None,
            ports: BTreeMap::new(),
            reconciler: Reconciler::new(config.max_flows, config.observes),
            metering: PortMeters::new(config.packet_ins_per_second, config.max_meters),
            role: MasterRole::new(config.generation),
            capacity_query: CapacityQuery::default(),
            pipeline: config.pipeline,
            admission: config.admission,
            observes: config.observes,
            inventory: InventoryPoller::default(),
            model: String::new(),
            tables: 0,
            description_xid: None,
            meter_features_xid: None,
            config_xid: None,
            async_xids: [None; 2],
            group_test_xids: Vec::new(),
            barrier: None,
            meter_mods: BTreeSet::new(),
            port_mods: BTreeMap::new(),
            policer: Policer::new(config.packet_ins_per_second),
            packet_ins: 0,
            unreadable: 0,
            errors: 0,
            counters: CounterPoller::new(config.counters_interval),
            deletes_tree_flows: false,
            next_xid: 0,
            keepalive: Keepalive::new(config.keepalive_interval, now),
            handshake: Some(now + HANDSHAKE),
            outputs: VecDeque::new(),
        };
        channel.send(Body::Hello(Hello::default()));
        channel
    }

    /// Returns the datapath id, once the switch has stated it.
    pub(crate) fn datapath_id(&self) -> Option<DatapathId> {
        Some(self.datapath_id).filter(|stated| *stated != DatapathId(0))
    }

    fn send(&mut self, body: Body) -> u32 {
        self.next_xid = (self.next_xid + 1) & !reconciler::XID_BIT;
        self.outputs.push_back(Output::Send(Message::new(self.next_xid, body)));
        self.next_xid
    }

    fn close(&mut self, why: impl Into<String>) {
        self.phase = ChannelPhase::Closed;
        self.outputs.push_back(Output::Close(why.into()));
    }

    fn received(&mut self, now: Time, mut message: Message) {
        self.keepalive.on_message(now);
        if let Body::Error(failure) = &message.body
            && let Some(why) = self.role.lost(message.xid, failure).filter(|_| !self.observes)
        {
            return self.close(why);
        }
        self.pipeline.translate_back(&mut message.body);
        if message.xid & reconciler::XID_BIT != 0
            && matches!(message.body, Body::Error(_) | Body::MultipartReply(_) | Body::BarrierReply)
        {
            self.metering.strip_meters(&mut message.body);
            return self.reconciler.handle(now, reconciler::Input::Reply(message));
        }
        match message.body {
            Body::Hello(hello) if self.phase == ChannelPhase::Hello => self.hello(now, &hello),
            Body::EchoRequest(data) => {
                let reply = Message::new(message.xid, Body::EchoReply(data));
                self.outputs.push_back(Output::Send(reply));
            }
            Body::Error(failure) => self.error(message.xid, &failure),
            Body::BarrierReply if self.barrier == Some(message.xid) => match self.phase {
                ChannelPhase::Description => self.make_meters(),
                ChannelPhase::Meters => self.read_tables(),
                _ => {}
            },
            _ if self.phase == ChannelPhase::Hello => self.close("its first message is not a hello"),
            // These messages concern another controller.
            _ if self.phase == ChannelPhase::Standby => {}
            Body::FeaturesReply(features) if self.phase == ChannelPhase::Features => {
                if features.auxiliary_id != 0 {
                    return self.close("it is an auxiliary connection; only main connections are used");
                }
                self.datapath_id = DatapathId(features.datapath_id);
                if let Err(why) = self.admission.check(self.datapath_id) {
                    self.outputs.push_back(Output::NotAdmitted(self.datapath_id, why.clone()));
                    return self.close(why.to_string());
                }
                (self.phase, self.tables) = (ChannelPhase::Ports, features.tables);
                if let Some(role) = self.role.request() {
                    let asked = self.send(role);
                    self.role.requested(asked);
                }
                self.send(Body::MultipartRequest(MultipartRequest::PortDesc.into()));
            }
            Body::MultipartReply(reply) => {
                let more = reply.more();
                self.described(now, message.xid, reply.body, more);
            }
            Body::GetConfigReply(config) => self.inventory.configured(message.xid, config.miss_send_len),
            Body::PortStatus(status) => self.port_status(status.reason, &status.port),
            Body::PacketIn(packet) if self.phase == ChannelPhase::Up => {
                if let Some(port) = packet.in_port().filter(|port| self.ports.contains_key(&port.0)) {
                    self.packet_ins += 1;
                    if self.policer.admit(now, (port.0, crate::frames::is_lldp(&packet.data))) {
                        self.outputs.push_back(Output::PacketIn(port.0, packet.data));
                    }
                }
            }
            _ => {}
        }
    }

    fn hello(&mut self, now: Time, hello: &Hello) {
        if !hello.speaks(VERSION) {
            let text = "this controller speaks OpenFlow 1.3 only";
            self.send(Body::Error(ErrorMessage::new(ErrorType::HELLO_FAILED, INCOMPATIBLE, text.into())));
            return self.close(format!(
                "it offers OpenFlow version {:#04x} ({}), but 0x04 (1.3) is needed; enable 1.3 on the switch",
                hello.version,
                version_name(hello.version)
            ));
        }
        match self.role.request() {
            Some(_) => self.request_features(now),
            None => {
                (self.phase, self.handshake) = (ChannelPhase::Standby, None);
                // The leader handles packet-ins. Copies for a standby would only load the switch.
                self.async_xids[0] = Some(self.send(Body::SetAsync(requests::NO_NOTIFICATIONS)));
            }
        }
    }

    fn request_features(&mut self, now: Time) {
        (self.phase, self.handshake) = (ChannelPhase::Features, Some(now + HANDSHAKE));
        self.send(Body::FeaturesRequest);
    }

    fn lead(&mut self, now: Time, generation: u64) {
        self.role.lead(generation);
        if self.phase == ChannelPhase::Standby {
            self.async_xids[1] = Some(self.send(Body::SetAsync(requests::ALL_NOTIFICATIONS)));
            self.request_features(now);
        }
    }

    fn error(&mut self, xid: u32, failure: &ErrorMessage) {
        if self.role.refused(xid) || self.is_optional(xid) {
            return;
        }
        if self.meter_mods.remove(&xid) {
            if (failure.kind, failure.code) != (ErrorType::METER_MOD_FAILED, METER_EXISTS) {
                self.metering.give_up();
                let text = format!("it refused a meter, so only the controller limits packet-ins: {failure}");
                self.outputs.push_back(Output::Warning(text));
            }
            return;
        }
        if let Some(port) = self.port_mods.remove(&xid) {
            return self.outputs.push_back(Output::BlockRefused(port));
        }
        if failure.kind == ErrorType::HELLO_FAILED {
            let text = String::from_utf8_lossy(&failure.data);
            return self.close(format!("it refused OpenFlow 1.3: {text:?}"));
        }
        match self.phase {
            ChannelPhase::Up => {
                self.errors += 1;
                if self.errors.is_power_of_two() {
                    let text = format!("it has reported {} errors, the last one: {failure}", self.errors);
                    self.outputs.push_back(Output::Warning(text));
                }
            }
            _ => self.close(format!("it refused the handshake: {failure}")),
        }
    }

    /// Returns whether an error answers an optional request. Not every switch describes itself, or
    /// has group tables, meters or all counters.
    fn is_optional(&mut self, xid: u32) -> bool {
        let described = [self.description_xid, self.meter_features_xid, self.config_xid].contains(&Some(xid));
        let is_test = self.group_test_xids.contains(&xid);
        let notified = is_test || self.async_xids.contains(&Some(xid));
        let counted = self.counters.refused(xid) || self.inventory.refused(xid);
        described || notified || counted || self.capacity_query.refused(xid)
    }

    /// Ignores a message that cannot be read if the switch can be served without it, because
    /// switches in the field send properties and fields of their vendors. Closes the connection if
    /// ports or tables would be unknown otherwise.
    fn unreadable(&mut self, now: Time, header: Option<MessageHeader>, error: &Error) {
        let Some(header) = header else { return self.close(format!("it sent an invalid message: {error}")) };
        let dispensable = match header.kind {
            _ if self.phase <= ChannelPhase::Hello => false,
            MessageType::MULTIPART_REPLY => self.is_optional(header.xid),
            MessageType::PACKET_IN | MessageType::FLOW_REMOVED | MessageType::EXPERIMENTER => true,
            _ => false,
        };
        if !dispensable {
            return self.close(format!("it sent an invalid message: {error}"));
        }
        self.keepalive.on_message(now);
        self.unreadable += 1;
        // One message is enough for the operator, and later ones must not fill the log.
        if self.unreadable.is_power_of_two() {
            let text =
                format!("{} of its messages could not be read and were ignored: {error}", self.unreadable);
            self.outputs.push_back(Output::Warning(text));
        }
    }

    fn reconciled(&mut self, now: Time, output: reconciler::Output) {
        let output = match output {
            reconciler::Output::Send(mut message) => {
                if intent::flows::deletes_tree_flow(&message.body) {
                    self.deletes_tree_flows = true;
                    self.counters.tree_flow_deleted(now);
                }
                self.metering.attach_meters(&mut message.body);
                Output::Send(message)
            }
            reconciler::Output::Read(inherited) => {
                self.phase = ChannelPhase::Up;
                self.counters.start(self.keepalive.last());
                if self.observes {
                    self.inventory.start(self.keepalive.last());
                }
                let name = self.admission.names.get(&self.datapath_id).or(self.name.as_ref()).cloned();
                let name = name.unwrap_or_else(|| format!("dpid:{}", self.datapath_id));
                let ports = self.ports.values().cloned().collect();
                let capacity = self.capacity_query.room();
                let (datapath_id, model, tables) = (self.datapath_id, self.model.clone(), self.tables);
                Output::Up(SwitchInfo { datapath_id, name, ports, inherited, capacity, model, tables })
            }
            reconciler::Output::Acknowledged(version, refusals) => {
                // The switch may have deleted the flows only now.
                if core::mem::take(&mut self.deletes_tree_flows) {
                    self.counters.tree_flow_deleted(now);
                }
                Output::Acknowledged(version, refusals)
            }
            reconciler::Output::Withheld(changes) => Output::Withheld(changes),
            reconciler::Output::Drifted(entries) => Output::Warning(format!(
                "restoring {entries} entries of this controller that others had changed"
            )),
            reconciler::Output::Unrestorable(entries, first) => Output::Warning(format!(
                "{entries} entries still differ after {first} and were restored several times, so they are left: the \
                 switch reports or stores entries in another form than it was given, or another controller changes them"
            )),
            reconciler::Output::Failed(why) => return self.close(why),
        };
        self.outputs.push_back(output);
    }

    fn time_out(&mut self, now: Time) {
        if self.handshake.is_some_and(|deadline| deadline <= now) {
            self.handshake = None;
            return self.close(format!("it did not complete the handshake within {HANDSHAKE:?}"));
        }
        if self.keepalive.is_dead(now) {
            return self.close(format!("nothing was received from it for {DEAD_AFTER:?}"));
        }
        if self.keepalive.is_probe_due(now) {
            self.send(Body::EchoRequest(Vec::new()));
        }
    }
}

fn version_name(version: u8) -> &'static str {
    match version {
        1 => "1.0",
        2 => "1.1",
        3 => "1.2",
        4 => "1.3",
        5 => "1.4",
        6 => "1.5",
        _ => "unknown",
    }
}

impl Machine for Channel {
    type Input<'a> = Input;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input) {
        if self.phase == ChannelPhase::Closed {
            return;
        }
        match input {
            Input::Received(message) => self.received(now, message),
            Input::Unreadable(header, error) => self.unreadable(now, header, &error),
            Input::Update(mut update) => {
                for (port, blocked) in core::mem::take(&mut update.delta.blocked) {
                    self.block(port, blocked);
                }
                if let Some((port, packet)) = update.delta.group_test.take() {
                    self.test_groups(port, packet);
                }
                self.reconciler.handle(now, reconciler::Input::Update(update));
            }
            Input::Packet(ports, frame) => {
                self.send(Body::PacketOut(PacketOut::to_each(ports.into_iter().map(PortNo), frame)));
            }
            Input::Lead(generation) => self.lead(now, generation),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        loop {
            if let Some(mut output) = self.outputs.pop_front() {
                if let Output::Send(message) = &mut output {
                    if self.observes && !is_harmless(&message.body) {
                        continue;
                    }
                    self.pipeline.translate(&mut message.body);
                }
                return Poll::Output(output);
            }
            if self.phase == ChannelPhase::Closed {
                return Poll::Idle(None);
            }
            let deadline = match self.reconciler.poll(now) {
                Poll::Output(output) => {
                    self.reconciled(now, output);
                    continue;
                }
                Poll::Idle(deadline) => deadline,
            };
            if let Some(counted) = self.inventory.finished(now) {
                self.counted(counted);
            }
            let next_xid = &mut self.next_xid;
            let mut number = || {
                *next_xid = (*next_xid + 1) & !reconciler::XID_BIT;
                *next_xid
            };
            let mut requests = self.counters.requests(now, &mut number);
            requests.extend(self.inventory.requests(now, self.pipeline.table, &mut number));
            for (xid, body) in requests {
                self.outputs.push_back(Output::Send(Message::new(xid, body)));
            }
            if !self.outputs.is_empty() {
                continue;
            }
            // A peer gets no echo request before it has sent its hello.
            let keepalive = (self.phase != ChannelPhase::Hello).then(|| self.keepalive.deadline());
            let own = earliest(self.handshake, keepalive);
            if own.is_some_and(|own| own <= now) {
                self.time_out(now);
                continue;
            }
            let polls = earliest(self.counters.deadline(), self.inventory.deadline());
            return Poll::Idle(earliest(earliest(deadline, own), polls));
        }
    }
}

#[cfg(test)]
mod tests;
