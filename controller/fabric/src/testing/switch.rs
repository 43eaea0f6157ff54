//! A switch that follows the standard: it answers every request, as slowly and with as little room
//! as its [`SwitchQuirks`] state.

use crate::intent::tables::SwitchTables;
use crate::switch::model::ModelSwitch;
use cool_machine::{Duration, Time};
use cool_topology::{DatapathId, MacAddr};
use rs_openflow::{
    Action, Body, BufferId, Capabilities, Description, ErrorMessage, ErrorType, FixedText, FlowStats,
    FlowStatsRequest, Match, Message, Multipart, MultipartFlags, MultipartReply, MultipartRequest, PacketIn,
    PacketInReason, PacketOut, PortConfig, PortFeatures, PortNo, PortReason, PortState, PortStatus,
    SwitchFeatures, TableId,
};
use std::collections::VecDeque;

/// Transaction of messages that the switch sends by itself.
const OWN_XID: u32 = 0;

/// Code of BAD_REQUEST: the multipart type is not supported.
const BAD_MULTIPART: u16 = 2;
/// Code of GROUP_MOD_FAILED: the switch has no room for groups.
const OUT_OF_GROUPS: u16 = 3;

/// Maximum number of parts with entries of a slow report.
const PARTS: usize = 3;

/// Properties in which switches that follow the standard differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct SwitchQuirks {
    /// It has no group tables: it refuses all requests and messages about groups.
    pub no_groups: bool,
    /// Maximum number of flows; a flow beyond it is refused.
    pub max_flows: Option<usize>,
    /// Time until each part of a report about tables, which then consists of up to three parts
    /// with entries and an empty one.
    pub part_delay: Duration,
    /// Time until the reply to a barrier.
    pub barrier_delay: Duration,
}

/// A switch that follows the standard.
#[derive(Clone, Debug)]
pub struct SimulatedSwitch {
    datapath_id: DatapathId,
    ports: Vec<(u32, bool)>,
    quirks: SwitchQuirks,
    model: ModelSwitch,
    /// Number of messages that may have changed the switch.
    change_count: u64,
    /// Messages to the controller, each with the time from which on it can be sent.
    replies: VecDeque<(Time, Message)>,
}

impl SimulatedSwitch {
    /// Returns a switch without entries, all of whose ports, 1 to `ports`, are up.
    pub fn new(datapath_id: DatapathId, ports: u32, quirks: SwitchQuirks) -> SimulatedSwitch {
        let ports = (1..=ports).map(|number| (number, true)).collect();
        let model = ModelSwitch { capacity: quirks.max_flows, ..ModelSwitch::default() };
        SimulatedSwitch { datapath_id, ports, quirks, model, change_count: 0, replies: VecDeque::new() }
    }

    /// Returns the datapath id.
    pub fn datapath_id(&self) -> DatapathId {
        self.datapath_id
    }

    /// Prepares for a new connection: drops messages of the earlier one, and all entries if the
    /// switch `restarts`.
    pub fn reconnect(&mut self, restarts: bool) {
        self.replies.clear();
        if restarts {
            (self.model.flows, self.model.groups) = Default::default();
        }
    }

    /// Removes the flow at this index, as another program may do. Returns whether it existed.
    pub fn lose_flow(&mut self, index: usize) -> bool {
        let exists = index < self.model.flows.len();
        if exists {
            self.model.flows.remove(index);
        }
        exists
    }

    /// Returns the flows as the switch reports them.
    pub fn flow_stats(&self) -> Vec<FlowStats> {
        self.model.flow_stats()
    }

    pub(super) fn tables(&self) -> SwitchTables {
        self.model.tables()
    }

    /// Changes the state of a port, and reports it.
    pub(super) fn set_port(&mut self, number: u32, up: bool) {
        let Some(entry) = self.ports.iter_mut().find(|(port, _)| *port == number) else { return };
        entry.1 = up;
        let status = PortStatus { reason: PortReason::MODIFY, port: port(self.datapath_id, number, up) };
        self.reply(Time::ZERO, OWN_XID, Body::PortStatus(status));
    }

    /// Hands a frame that a port has received to the controller.
    pub(super) fn receive_frame(&mut self, port: u32, frame: &[u8]) {
        if self.ports.contains(&(port, true)) {
            self.reply(Time::ZERO, OWN_XID, Body::PacketIn(packet_in(port, frame)));
        }
    }

    /// Returns when the next message can be sent.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.replies.front().map(|(time, _)| *time)
    }

    /// Returns the next message to the controller that can be sent now.
    pub(super) fn next_message(&mut self, now: Time) -> Option<Message> {
        self.replies.pop_front_if(|(time, _)| *time <= now).map(|(_, message)| message)
    }

    fn reply(&mut self, at: Time, xid: u32, body: Body) {
        // Messages of one connection stay in order.
        let at = self.replies.back().map_or(at, |(last, _)| at.max(*last));
        self.replies.push_back((at, Message::new(xid, body)));
    }

    /// Returns the number of messages so far that may have changed the switch, whether or not it
    /// accepted them.
    pub fn change_count(&self) -> u64 {
        self.change_count
    }

    /// Receives a message of the controller. Returns the frames that leave by ports.
    pub fn receive(&mut self, now: Time, message: &Message) -> Vec<(u32, Vec<u8>)> {
        self.change_count += u64::from(may_change(&message.body));
        match &message.body {
            Body::PacketOut(PacketOut { actions, data, .. }) => {
                let ports = actions.iter().filter_map(|action| match action {
                    Action::Output { port, .. } => Some(port.0),
                    _ => None,
                });
                let up = |port: &u32| self.ports.contains(&(*port, true));
                return ports.filter(up).map(|port| (port, data.clone())).collect();
            }
            Body::MultipartRequest(request) => self.report(now, message.xid, &request.body),
            body => {
                if let Some(reply) = self.answer(body) {
                    let delay = matches!(body, Body::BarrierRequest).then_some(self.quirks.barrier_delay);
                    self.reply(now + delay.unwrap_or_default(), message.xid, reply);
                }
            }
        }
        Vec::new()
    }

    /// Receives a message of the controller, without regard to time. Returns the answers.
    pub fn answers(&mut self, message: &Message) -> Vec<Message> {
        self.receive(Time::ZERO, message);
        self.replies.drain(..).map(|(_, message)| message).collect()
    }

    /// Returns the message that a port has changed.
    pub fn port_status(number: u32, up: bool, reason: PortReason) -> PortStatus {
        PortStatus { reason, port: port(DatapathId(0), number, up) }
    }

    fn answer(&mut self, body: &Body) -> Option<Body> {
        match body {
            Body::Hello(hello) => Some(Body::Hello(hello.clone())),
            Body::EchoRequest(data) => Some(Body::EchoReply(data.clone())),
            Body::FeaturesRequest => Some(Body::FeaturesReply(SwitchFeatures {
                datapath_id: self.datapath_id.0,
                buffers: 0,
                tables: 1,
                auxiliary_id: 0,
                capabilities: Capabilities::NONE,
                reserved: 0,
            })),
            Body::RoleRequest(role) => Some(Body::RoleReply(role.clone())),
            Body::BarrierRequest => Some(Body::BarrierReply),
            Body::GroupMod(_) if self.quirks.no_groups => {
                let failure = ErrorMessage::new(ErrorType::GROUP_MOD_FAILED, OUT_OF_GROUPS, Vec::new());
                Some(Body::Error(failure))
            }
            body => {
                let refused = self.model.obey(body).err();
                refused.map(|(kind, code)| Body::Error(ErrorMessage::new(kind, code, Vec::new())))
            }
        }
    }

    /// Reports what the controller requests.
    fn report(&mut self, now: Time, xid: u32, request: &MultipartRequest) {
        let unsupported = || ErrorMessage::new(ErrorType::BAD_REQUEST, BAD_MULTIPART, Vec::new());
        let reply = match request {
            MultipartRequest::PortDesc => {
                let ports = self.ports.iter().map(|(number, up)| port(self.datapath_id, *number, *up));
                MultipartReply::PortDesc(ports.collect())
            }
            MultipartRequest::Desc => MultipartReply::Desc(Box::new(self.description())),
            MultipartRequest::PortStats(_) => MultipartReply::PortStats(Vec::new()),
            MultipartRequest::Flow(FlowStatsRequest { cookie, cookie_mask, .. }) => {
                let mut flows = self.model.flow_stats();
                flows.retain(|flow| (flow.cookie ^ cookie) & cookie_mask == 0);
                return self.report_parts(now, xid, flows, MultipartReply::Flow);
            }
            MultipartRequest::GroupDesc if !self.quirks.no_groups => {
                let groups = self.model.group_descs();
                return self.report_parts(now, xid, groups, MultipartReply::GroupDesc);
            }
            _ => return self.reply(now, xid, Body::Error(unsupported())),
        };
        self.reply(now, xid, Body::MultipartReply(reply.into()));
    }

    fn report_parts<T>(
        &mut self,
        now: Time,
        xid: u32,
        entries: Vec<T>,
        reply: impl Fn(Vec<T>) -> MultipartReply,
    ) {
        if self.quirks.part_delay == Duration::ZERO {
            return self.reply(now, xid, Body::MultipartReply(reply(entries).into()));
        }
        let mut at = self.replies.back().map_or(now, |(last, _)| now.max(*last));
        let most = entries.len().div_ceil(PARTS).max(1);
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            at += self.quirks.part_delay;
            let mut part = Multipart::from(reply(entries.by_ref().take(most).collect()));
            part.flags = MultipartFlags::MORE;
            self.reply(at, xid, Body::MultipartReply(part));
        }
        self.reply(at + self.quirks.part_delay, xid, Body::MultipartReply(reply(Vec::new()).into()));
    }

    fn description(&self) -> Description {
        Description {
            manufacturer: text("COOL"),
            hardware: text("none"),
            software: text("simulation"),
            serial_number: text(""),
            datapath: text(&format!("s{}", self.datapath_id.0)),
        }
    }
}

/// Returns whether a message may change a switch: its entries, its configuration, or the roles and
/// notifications of controllers. LLDP that leaves by a port does not.
fn may_change(body: &Body) -> bool {
    match body {
        Body::FlowMod(_)
        | Body::GroupMod(_)
        | Body::MeterMod(_)
        | Body::PortMod(_)
        | Body::TableMod(_)
        | Body::SetConfig(_)
        | Body::SetAsync(_)
        | Body::RoleRequest(_) => true,
        Body::MultipartRequest(request) => {
            matches!(&request.body, MultipartRequest::TableFeatures(features) if !features.is_empty())
        }
        Body::PacketOut(PacketOut { actions, data, .. }) => {
            let to_ports = actions
                .iter()
                .all(|action| matches!(action, Action::Output { port, .. } if *port <= PortNo::MAX));
            !(to_ports && crate::frames::is_lldp(data))
        }
        _ => false,
    }
}

fn port(switch: DatapathId, number: u32, up: bool) -> rs_openflow::Port {
    rs_openflow::Port {
        port: PortNo(number),
        hw_addr: MacAddr(2, 1, 0, 0, switch.0 as u8, number as u8),
        name: text(&format!("p{number}")),
        config: PortConfig::NONE,
        state: if up { PortState::LIVE } else { PortState::LINK_DOWN },
        current: PortFeatures::FD_1G,
        advertised: PortFeatures::NONE,
        supported: PortFeatures::NONE,
        peer: PortFeatures::NONE,
        current_kbps: 1_000_000,
        max_kbps: 0,
    }
}

fn text<const N: usize>(text: &str) -> FixedText<N> {
    FixedText::new(text).unwrap_or_else(|| panic!("{text:?} is too long"))
}

/// Returns the message that hands a frame of a port to the controller.
pub fn packet_in(port: u32, frame: &[u8]) -> PacketIn {
    PacketIn {
        buffer: BufferId::NONE,
        total_len: u16::try_from(frame.len()).unwrap_or(u16::MAX),
        reason: PacketInReason::ACTION,
        table: TableId(0),
        cookie: 0,
        matching: Match::new().in_port(PortNo(port)),
        data: frame.to_vec(),
    }
}
