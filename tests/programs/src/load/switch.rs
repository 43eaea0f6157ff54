//! A simulated switch: performs the OpenFlow handshake, stores flows and groups, and forwards the
//! packets of packet-outs.

use crate::fabric::{SimulatedFabric, fixed_text, port_of};
use crate::pump::RequestPump;
use rs_openflow::{
    Action, ActionType, Body, Capabilities, Counter, Description, FlowCommand, FlowMod, FlowStats, Framer,
    GroupCapabilities, GroupCommand, GroupDesc, GroupFeatures, GroupMod, GroupType, Hello, Match, Message,
    Multipart, MultipartFlags, MultipartReply, MultipartRequest, PacketOut, PerGroupType, PortNo, PortStats,
    SwitchFeatures,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Most entries in one message. They must fit into the 64 KiB of an OpenFlow message.
const ENTRIES_PER_MESSAGE: usize = 200;
/// Size of the group table, as in hardware switches.
const GROUP_TABLE_ENTRIES: u32 = 4096;
const NO_TYPES: PerGroupType = PerGroupType { all: 0, select: 0, indirect: 0, ff: 0 };
/// Size of the read buffer, and of batches of messages that are written together.
const READ_BYTES: usize = 1 << 14;

/// EtherTypes of LLDP and ARP.
const LLDP: [u8; 2] = [0x88, 0xcc];
const ARP: [u8; 2] = [0x08, 0x06];

/// A switch with one flow table. Its ports count nothing.
pub(crate) struct SimulatedSwitch {
    number: usize,
    fabric: Arc<SimulatedFabric>,
    pump: Arc<RequestPump>,
    flows: BTreeMap<(u16, Match), FlowMod>,
    groups: BTreeMap<u32, GroupMod>,
}

impl SimulatedSwitch {
    /// Returns a switch with empty tables. It is the switch of this number in the network plan.
    pub(crate) fn new(
        number: usize,
        fabric: Arc<SimulatedFabric>,
        pump: Arc<RequestPump>,
    ) -> SimulatedSwitch {
        SimulatedSwitch { number, fabric, pump, flows: BTreeMap::new(), groups: BTreeMap::new() }
    }

    /// Simulates the switch until the controller closes the connection. `queue` contains the
    /// messages to send.
    ///
    /// # Errors
    /// Always returns an error, because the controller must not close the connection.
    pub(crate) async fn run(
        mut self,
        controller: SocketAddr,
        mut queue: mpsc::Receiver<Vec<u8>>,
    ) -> std::io::Result<()> {
        let socket = TcpStream::connect(controller).await?;
        socket.set_nodelay(true)?;
        let (mut reader, mut writer) = socket.into_split();
        let writing = tokio::spawn(async move {
            let mut bytes = Vec::new();
            while let Some(message) = queue.recv().await {
                bytes.clear();
                bytes.extend(message);
                while bytes.len() < READ_BYTES
                    && let Ok(more) = queue.try_recv()
                {
                    bytes.extend(more);
                }
                writer.write_all(&bytes).await?;
            }
            Ok::<(), std::io::Error>(())
        });
        self.fabric.send(self.number, Message::new(1, Body::Hello(Hello::default()))).await;
        let (mut framer, mut buffer) = (Framer::default(), vec![0; READ_BYTES]);
        loop {
            let read = reader.read(&mut buffer).await?;
            if read == 0 {
                writing.abort();
                return Err(std::io::Error::other(format!(
                    "the controller closed the connection of switch {}",
                    self.number
                )));
            }
            framer.push(&buffer[..read]);
            for message in framer.by_ref() {
                self.handle(message.map_err(std::io::Error::other)?).await;
            }
        }
    }

    /// Applies a message from the controller, and sends the replies.
    async fn handle(&mut self, Message { xid, body }: Message) {
        match body {
            Body::FlowMod(flow) => self.flow_mod(flow),
            Body::GroupMod(group) => self.group_mod(group),
            Body::PacketOut(packet) => self.packet_out(&packet),
            body => {
                if matches!(body, Body::FeaturesRequest) {
                    self.fabric.mark_up(self.number);
                }
                for reply in self.replies(body) {
                    self.fabric.send(self.number, Message::new(xid, reply)).await;
                }
            }
        }
    }

    /// Forwards LLDP frames through their output ports. An ARP frame is the response to a request.
    fn packet_out(&self, packet: &PacketOut) {
        let outputs = packet.actions.iter().filter_map(|action| match action {
            Action::Output { port, .. } => Some(port.0),
            _ => None,
        });
        match packet.data.get(12..14) {
            Some(kind) if kind == LLDP => {
                outputs.for_each(|port| self.fabric.send_frame(self.number, port, &packet.data));
            }
            Some(kind) if kind == ARP => self.pump.on_response(&self.fabric, self.number),
            _ => {}
        }
    }

    /// Changes the flow table.
    fn flow_mod(&mut self, flow: FlowMod) {
        let before = self.flows.len();
        let key = (flow.priority, flow.matching.clone());
        match flow.command {
            FlowCommand::DELETE_STRICT => drop(self.flows.remove(&key)),
            FlowCommand::DELETE => self.flows.clear(),
            _ => drop(self.flows.insert(key, flow)),
        }
        add_difference(&self.fabric.counts.flows, before, self.flows.len());
        self.fabric.record_change();
    }

    /// Changes the group table.
    fn group_mod(&mut self, group: GroupMod) {
        let number = group.group.0;
        let now = (group.command != GroupCommand::DELETE).then_some(group.kind);
        let before = match now {
            Some(_) => self.groups.insert(number, group),
            None => self.groups.remove(&number),
        };
        let is_tree = |kind: GroupType| usize::from(kind == GroupType::ALL);
        let before = before.map(|group| group.kind);
        let counts = &self.fabric.counts;
        add_difference(&counts.groups, before.iter().len(), now.iter().len());
        add_difference(&counts.trees, before.map_or(0, is_tree), now.map_or(0, is_tree));
        self.fabric.record_change();
    }

    /// Returns the replies to a request. There are none to messages that change nothing here.
    fn replies(&self, body: Body) -> Vec<Body> {
        let one = |reply: MultipartReply| vec![Body::MultipartReply(reply.into())];
        match body {
            Body::EchoRequest(data) => vec![Body::EchoReply(data)],
            Body::BarrierRequest => vec![Body::BarrierReply],
            Body::FeaturesRequest => vec![Body::FeaturesReply(SwitchFeatures {
                datapath_id: self.number as u64 + 1,
                buffers: 0,
                tables: 1,
                auxiliary_id: 0,
                capabilities: Capabilities::NONE,
                reserved: 0,
            })],
            Body::MultipartRequest(request) => match request.body {
                MultipartRequest::PortDesc => {
                    let ports = self.fabric.plan.switches[self.number].ports.keys();
                    one(MultipartReply::PortDesc(ports.map(|n| port_of(self.number, *n, true)).collect()))
                }
                MultipartRequest::Desc => one(MultipartReply::Desc(Box::new(Description {
                    manufacturer: fixed_text("cool-load"),
                    hardware: fixed_text(""),
                    software: fixed_text(""),
                    serial_number: fixed_text(""),
                    datapath: fixed_text(&format!("s{}", self.number + 1)),
                }))),
                MultipartRequest::Flow(request) => {
                    let is_requested =
                        |flow: &&FlowMod| (flow.cookie ^ request.cookie) & request.cookie_mask == 0;
                    multipart(
                        self.flows.values().filter(is_requested).cloned().map(FlowStats::from),
                        MultipartReply::Flow,
                    )
                }
                MultipartRequest::PortStats(_) => {
                    let ports = self.fabric.plan.switches[self.number].ports.keys();
                    multipart(ports.map(|number| zero_counters(*number)), MultipartReply::PortStats)
                }
                MultipartRequest::GroupFeatures => one(MultipartReply::GroupFeatures(GroupFeatures {
                    types: 1 << GroupType::ALL.0 | 1 << GroupType::FF.0,
                    capabilities: GroupCapabilities::NONE,
                    max_groups: PerGroupType {
                        all: GROUP_TABLE_ENTRIES,
                        ff: GROUP_TABLE_ENTRIES,
                        ..NO_TYPES
                    },
                    actions: PerGroupType {
                        all: 1 << ActionType::OUTPUT.0,
                        ff: 1 << ActionType::OUTPUT.0,
                        ..NO_TYPES
                    },
                })),
                MultipartRequest::GroupDesc => {
                    multipart(self.groups.values().map(group_desc), MultipartReply::GroupDesc)
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}

/// Adds the change of a number of entries to a counter.
fn add_difference(counter: &std::sync::atomic::AtomicU64, before: usize, after: usize) {
    // The counter is a sum of differences, which may be negative: they wrap around.
    counter.fetch_add((after as u64).wrapping_sub(before as u64), Ordering::Relaxed);
}

/// Returns a reply in as many messages as it needs.
fn multipart<T>(entries: impl Iterator<Item = T>, reply: impl Fn(Vec<T>) -> MultipartReply) -> Vec<Body> {
    let (mut messages, mut part) = (Vec::new(), Vec::new());
    for entry in entries {
        if part.len() == ENTRIES_PER_MESSAGE {
            let body = reply(core::mem::take(&mut part));
            messages.push(Body::MultipartReply(Multipart { flags: MultipartFlags::MORE, body }));
        }
        part.push(entry);
    }
    messages.push(Body::MultipartReply(reply(part).into()));
    messages
}

/// Returns the statistics of a port that has counted nothing.
fn zero_counters(number: u32) -> PortStats {
    let none = Counter(0);
    PortStats {
        port: PortNo(number),
        rx_packets: none,
        tx_packets: none,
        rx_bytes: none,
        tx_bytes: none,
        rx_dropped: none,
        tx_dropped: none,
        rx_errors: none,
        tx_errors: none,
        rx_frame_errors: none,
        rx_over_errors: none,
        rx_crc_errors: none,
        collisions: none,
        duration_s: 0,
        duration_ns: 0,
    }
}

fn group_desc(group: &GroupMod) -> GroupDesc {
    GroupDesc { kind: group.kind, group: group.group, buckets: group.buckets.clone() }
}
