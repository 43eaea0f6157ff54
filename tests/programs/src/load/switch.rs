//! A played switch: shakes hands, keeps its flows and groups, passes on what it is told to send.

use crate::fabric::{Fabric, port_of, text};
use crate::pump::Pump;
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

/// Entries told in one message: few enough to fit.
const ENTRIES: usize = 200;
/// Entries of its group table, as hardware has them.
const GROUPS: u32 = 4096;
const NONE: PerGroupType = PerGroupType { all: 0, select: 0, indirect: 0, ff: 0 };
/// What is read at once.
const READ: usize = 1 << 14;

/// LLDP's and ARP's EtherTypes.
const LLDP: [u8; 2] = [0x88, 0xcc];
const ARP: [u8; 2] = [0x08, 0x06];

pub(crate) struct Switch {
    number: usize,
    fabric: Arc<Fabric>,
    pump: Arc<Pump>,
    flows: BTreeMap<(u16, Match), FlowMod>,
    groups: BTreeMap<u32, GroupMod>,
}

impl Switch {
    pub(crate) fn new(number: usize, fabric: Arc<Fabric>, pump: Arc<Pump>) -> Switch {
        Switch { number, fabric, pump, flows: BTreeMap::new(), groups: BTreeMap::new() }
    }

    /// Plays the switch until the controller hangs up.
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
                while bytes.len() < READ
                    && let Ok(more) = queue.try_recv()
                {
                    bytes.extend(more);
                }
                writer.write_all(&bytes).await?;
            }
            Ok::<(), std::io::Error>(())
        });
        self.fabric.tell(self.number, Message::new(1, Body::Hello(Hello::default()))).await;
        let (mut framer, mut buffer) = (Framer::default(), vec![0; READ]);
        loop {
            let read = reader.read(&mut buffer).await?;
            if read == 0 {
                writing.abort();
                return Err(std::io::Error::other(format!(
                    "the controller hung up on switch {}",
                    self.number
                )));
            }
            framer.push(&buffer[..read]);
            for message in framer.by_ref() {
                self.take(message.map_err(std::io::Error::other)?).await;
            }
        }
    }

    async fn take(&mut self, Message { xid, body }: Message) {
        match body {
            Body::FlowMod(flow) => self.flow(flow),
            Body::GroupMod(group) => self.group(group),
            Body::PacketOut(packet) => self.send(&packet),
            body => {
                if matches!(body, Body::FeaturesRequest) {
                    self.fabric.is_up(self.number);
                }
                for answer in self.answers(body) {
                    self.fabric.tell(self.number, Message::new(xid, answer)).await;
                }
            }
        }
    }

    fn send(&self, packet: &PacketOut) {
        let outputs = packet.actions.iter().filter_map(|action| match action {
            Action::Output { port, .. } => Some(port.0),
            _ => None,
        });
        match packet.data.get(12..14) {
            Some(kind) if kind == LLDP => {
                outputs.for_each(|port| self.fabric.leave(self.number, port, &packet.data));
            }
            Some(kind) if kind == ARP => self.pump.answered(&self.fabric, self.number),
            _ => {}
        }
    }

    fn flow(&mut self, flow: FlowMod) {
        let before = self.flows.len();
        let key = (flow.priority, flow.matching.clone());
        match flow.command {
            FlowCommand::DELETE_STRICT => drop(self.flows.remove(&key)),
            FlowCommand::DELETE => self.flows.clear(),
            _ => drop(self.flows.insert(key, flow)),
        }
        count(&self.fabric.counts.flows, before, self.flows.len());
        self.fabric.note_change();
    }

    fn group(&mut self, group: GroupMod) {
        let number = group.group.0;
        let now = (group.command != GroupCommand::DELETE).then_some(group.kind);
        let before = match now {
            Some(_) => self.groups.insert(number, group),
            None => self.groups.remove(&number),
        };
        let is_tree = |kind: GroupType| usize::from(kind == GroupType::ALL);
        let before = before.map(|group| group.kind);
        let counts = &self.fabric.counts;
        count(&counts.groups, before.iter().len(), now.iter().len());
        count(&counts.trees, before.map_or(0, is_tree), now.map_or(0, is_tree));
        self.fabric.note_change();
    }

    fn answers(&self, body: Body) -> Vec<Body> {
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
                    manufacturer: text("cool-load"),
                    hardware: text(""),
                    software: text(""),
                    serial_number: text(""),
                    datapath: text(&format!("s{}", self.number + 1)),
                }))),
                MultipartRequest::Flow(asked) => {
                    let asked_for = |flow: &&FlowMod| (flow.cookie ^ asked.cookie) & asked.cookie_mask == 0;
                    parts(
                        self.flows.values().filter(asked_for).cloned().map(FlowStats::from),
                        MultipartReply::Flow,
                    )
                }
                MultipartRequest::PortStats(_) => {
                    let ports = self.fabric.plan.switches[self.number].ports.keys();
                    parts(ports.map(|number| idle(*number)), MultipartReply::PortStats)
                }
                MultipartRequest::GroupFeatures => one(MultipartReply::GroupFeatures(GroupFeatures {
                    types: 1 << GroupType::ALL.0 | 1 << GroupType::FF.0,
                    capabilities: GroupCapabilities::NONE,
                    max_groups: PerGroupType { all: GROUPS, ff: GROUPS, ..NONE },
                    actions: PerGroupType {
                        all: 1 << ActionType::OUTPUT.0,
                        ff: 1 << ActionType::OUTPUT.0,
                        ..NONE
                    },
                })),
                MultipartRequest::GroupDesc => {
                    parts(self.groups.values().map(description), MultipartReply::GroupDesc)
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}

fn count(counter: &std::sync::atomic::AtomicU64, before: usize, after: usize) {
    // Wraps round and back: a sum of differences.
    counter.fetch_add((after as u64).wrapping_sub(before as u64), Ordering::Relaxed);
}

/// An answer in as many messages as it needs.
fn parts<T>(entries: impl Iterator<Item = T>, reply: impl Fn(Vec<T>) -> MultipartReply) -> Vec<Body> {
    let (mut messages, mut part) = (Vec::new(), Vec::new());
    for entry in entries {
        if part.len() == ENTRIES {
            let body = reply(core::mem::take(&mut part));
            messages.push(Body::MultipartReply(Multipart { flags: MultipartFlags::MORE, body }));
        }
        part.push(entry);
    }
    messages.push(Body::MultipartReply(reply(part).into()));
    messages
}

/// What a port tells that counts nothing.
fn idle(number: u32) -> PortStats {
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

fn description(group: &GroupMod) -> GroupDesc {
    GroupDesc { kind: group.kind, group: group.group, buckets: group.buckets.clone() }
}
