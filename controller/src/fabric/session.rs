//! One switch's OpenFlow session as a machine: version, identity, ports, keepalive; then packets both ways,
//! with the [`reconciler`](super::reconcile) inside. Bytes and sockets are [`connection`](super::connection)'s.

use super::reconcile::{self, Former, Reconciler, Refusals, Wish};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use cool_topology::{DatapathId, Mac};
use rs_openflow::{
    Body, Error, Failure, FailureType, Hello, Message, MultipartReply, MultipartRequest, PacketOut,
    PortConfig, PortNo, PortReason, PortState, VERSION,
};
use std::collections::{BTreeMap, VecDeque};

/// How long a peer may take to say what it is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After this silence it is asked whether it is there.
const QUIET: Duration = Duration::from_secs(5);
/// After this silence it is not.
const DEAD: Duration = Duration::from_secs(15);
/// Ports that a switch may tell of.
const MAX_PORTS: usize = 1 << 16;
/// HELLO_FAILED: no common version.
const INCOMPATIBLE: u16 = 0;

/// A port as its switch tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortInfo {
    pub(super) number: u32,
    pub(super) mac: Mac,
    pub(super) up: bool,
    /// 0: unknown.
    pub(super) bytes_per_second: u64,
}

/// A switch as it tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SwitchInfo {
    pub(super) datapath_id: DatapathId,
    pub(super) name: String,
    pub(super) ports: Vec<PortInfo>,
    /// What it still holds of an earlier life of the controller.
    pub(super) former: Former,
}

/// What may happen.
#[derive(Debug)]
pub(super) enum Input {
    /// A message came.
    Received(Message),
    /// Bytes came that are no message.
    Unreadable(Error),
    /// This is wanted from now on.
    Want(Wish),
    /// Send this frame out of this port.
    Packet(u32, Vec<u8>),
}

/// What to do, or to know.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output {
    Send(Message),
    /// The switch is ready to be told what it shall hold. Comes once, before all that follows.
    Up(SwitchInfo),
    PortChanged(PortInfo),
    PortGone(u32),
    /// A port received this frame.
    PacketIn(u32, Vec<u8>),
    Answered(u64, Refusals),
    /// Worth an operator's look.
    Warning(String),
    /// Send what is left to send and hang up, for this reason.
    Close(String),
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Hello,
    Features,
    Ports,
    Description,
    Tables,
    Up,
    Closed,
}

/// The machine.
#[derive(Debug)]
pub(super) struct Session {
    phase: Phase,
    datapath_id: DatapathId,
    name: Option<String>,
    ports: BTreeMap<u32, PortInfo>,
    reconciler: Reconciler,
    next_xid: u32,
    heard: Time,
    /// When to ask whether the peer is there; `None` while an answer is due.
    ask: Option<Time>,
    handshake: Option<Time>,
    outputs: VecDeque<Output>,
}

impl Session {
    pub(super) fn new(now: Time) -> Session {
        let mut session = Session {
            phase: Phase::Hello,
            datapath_id: DatapathId(0),
            name: None,
            ports: BTreeMap::new(),
            reconciler: Reconciler::new(),
            next_xid: 0,
            heard: now,
            ask: None,
            handshake: Some(now + HANDSHAKE),
            outputs: VecDeque::new(),
        };
        session.send(Body::Hello(Hello::default()));
        session
    }

    fn send(&mut self, body: Body) {
        self.next_xid = (self.next_xid + 1) & !reconcile::XID;
        self.outputs.push_back(Output::Send(Message::new(self.next_xid, body)));
    }

    fn close(&mut self, why: impl Into<String>) {
        self.phase = Phase::Closed;
        self.outputs.push_back(Output::Close(why.into()));
    }

    fn received(&mut self, now: Time, message: Message) {
        self.heard = now;
        if self.phase != Phase::Hello {
            self.ask = Some(now + QUIET);
        }
        if message.xid & reconcile::XID != 0
            && matches!(message.body, Body::Error(_) | Body::MultipartReply(_) | Body::BarrierReply)
        {
            return self.reconciler.handle(now, reconcile::Input::Told(message));
        }
        match message.body {
            Body::Hello(hello) if self.phase == Phase::Hello => self.hello(now, &hello),
            Body::EchoRequest(data) => {
                let reply = Message::new(message.xid, Body::EchoReply(data));
                self.outputs.push_back(Output::Send(reply));
            }
            Body::Error(failure) => self.error(&failure),
            _ if self.phase == Phase::Hello => self.close("its first message is no hello"),
            Body::FeaturesReply(features) if self.phase == Phase::Features => {
                if features.auxiliary_id != 0 {
                    return self.close("it is an auxiliary connection; only main connections are used");
                }
                self.datapath_id = DatapathId(features.datapath_id);
                self.phase = Phase::Ports;
                self.send(Body::MultipartRequest(MultipartRequest::PortDesc.into()));
            }
            Body::MultipartReply(reply) => {
                let more = reply.more();
                self.described(reply.body, more);
            }
            Body::PortStatus(status) => self.port_status(status.reason, &status.port),
            Body::PacketIn(packet) if self.phase == Phase::Up => {
                if let Some(port) = packet.in_port().filter(|port| *port <= PortNo::MAX) {
                    self.outputs.push_back(Output::PacketIn(port.0, packet.data));
                }
            }
            _ => {}
        }
    }

    fn hello(&mut self, now: Time, hello: &Hello) {
        if !hello.speaks(VERSION) {
            let text = "this controller speaks OpenFlow 1.3 only";
            self.send(Body::Error(Failure::new(FailureType::HELLO_FAILED, INCOMPATIBLE, text.into())));
            return self.close(format!(
                "it offers OpenFlow version {:#04x} ({}), but 0x04 (1.3) is needed; enable 1.3 on the switch",
                hello.version,
                version_name(hello.version)
            ));
        }
        self.phase = Phase::Features;
        self.ask = Some(now + QUIET);
        self.send(Body::FeaturesRequest);
    }

    fn error(&mut self, failure: &Failure) {
        if failure.kind == FailureType::HELLO_FAILED {
            let text = String::from_utf8_lossy(&failure.data);
            return self.close(format!("it refused OpenFlow 1.3: {text:?}"));
        }
        match self.phase {
            // Not every switch describes itself, and it can be done without.
            Phase::Description => self.read_tables(),
            Phase::Up => self.outputs.push_back(Output::Warning(format!("it reports an error: {failure}"))),
            _ => self.close(format!("it answers the handshake with an error: {failure}")),
        }
    }

    fn described(&mut self, reply: MultipartReply, more: bool) {
        match reply {
            MultipartReply::PortDesc(ports) if self.phase == Phase::Ports => {
                ports.iter().for_each(|port| self.note(port));
                if self.ports.len() > MAX_PORTS {
                    return self.close(format!("it tells of more than {MAX_PORTS} ports"));
                }
                if !more {
                    self.phase = Phase::Description;
                    self.send(Body::MultipartRequest(MultipartRequest::Desc.into()));
                }
            }
            MultipartReply::Desc(description) if self.phase == Phase::Description => {
                let told = description.datapath.text();
                // Open vSwitch says "None" if nobody named it.
                if self.name.is_none() && !told.is_empty() && told != "None" {
                    self.name = Some(told);
                }
                self.read_tables();
            }
            _ => {}
        }
    }

    fn read_tables(&mut self) {
        self.phase = Phase::Tables;
        self.reconciler.handle(self.heard, reconcile::Input::Start);
    }

    fn note(&mut self, port: &rs_openflow::Port) {
        if port.port == PortNo::LOCAL {
            self.name = Some(port.name.text()).filter(|name| !name.is_empty());
        }
        if port.port <= PortNo::MAX && port.port.0 != 0 {
            let info = port_info(port);
            self.ports.insert(info.number, info);
        }
    }

    fn port_status(&mut self, reason: PortReason, port: &rs_openflow::Port) {
        if port.port > PortNo::MAX || port.port.0 == 0 {
            return;
        }
        // Before the switch is up, only the list that will be told counts.
        let up = self.phase == Phase::Up;
        if reason == PortReason::DELETE {
            self.ports.remove(&port.port.0);
            if up {
                self.outputs.push_back(Output::PortGone(port.port.0));
            }
            return;
        }
        let info = port_info(port);
        self.ports.insert(info.number, info.clone());
        if self.ports.len() > MAX_PORTS {
            return self.close(format!("it tells of more than {MAX_PORTS} ports"));
        }
        if up {
            self.outputs.push_back(Output::PortChanged(info));
        }
    }

    fn reconciled(&mut self, output: reconcile::Output) {
        let output = match output {
            reconcile::Output::Send(message) => Output::Send(message),
            reconcile::Output::Read(former) => {
                self.phase = Phase::Up;
                self.handshake = None;
                let name = self.name.clone().unwrap_or_else(|| format!("dpid:{}", self.datapath_id));
                let ports = self.ports.values().cloned().collect();
                Output::Up(SwitchInfo { datapath_id: self.datapath_id, name, ports, former })
            }
            reconcile::Output::Answered(version, refusals) => Output::Answered(version, refusals),
            reconcile::Output::Drifted(entries) => Output::Warning(format!(
                "{entries} entries of this controller had been changed by somebody else; restoring them"
            )),
            reconcile::Output::Failed(why) => return self.close(why),
        };
        self.outputs.push_back(output);
    }

    fn late(&mut self, now: Time) {
        if self.handshake.is_some_and(|deadline| deadline <= now) {
            self.handshake = None;
            return self.close(format!("it did not finish the handshake within {HANDSHAKE:?}"));
        }
        if self.heard + DEAD <= now {
            return self.close(format!("nothing was heard of it for {DEAD:?}"));
        }
        if self.ask.is_some_and(|ask| ask <= now) {
            self.ask = None;
            self.send(Body::EchoRequest(Vec::new()));
        }
    }
}

fn port_info(port: &rs_openflow::Port) -> PortInfo {
    let down = port.state.contains(PortState::LINK_DOWN) || port.config.contains(PortConfig::PORT_DOWN);
    PortInfo {
        number: port.port.0,
        mac: Mac(port.hw_addr.0),
        up: !down,
        bytes_per_second: u64::from(port.current_kbps) * 1000 / 8,
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

impl Machine for Session {
    type Input<'a> = Input;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input) {
        if self.phase == Phase::Closed {
            return;
        }
        match input {
            Input::Received(message) => self.received(now, message),
            Input::Unreadable(error) => self.close(format!("it sent what cannot be read: {error}")),
            Input::Want(wish) => self.reconciler.handle(now, reconcile::Input::Want(wish)),
            Input::Packet(port, frame) => self.send(Body::PacketOut(PacketOut::new(PortNo(port), frame))),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Poll::Output(output);
            }
            if self.phase == Phase::Closed {
                return Poll::Idle(None);
            }
            let deadline = match self.reconciler.poll(now) {
                Poll::Output(output) => {
                    self.reconciled(output);
                    continue;
                }
                Poll::Idle(deadline) => deadline,
            };
            let own = earliest(earliest(self.handshake, self.ask), Some(self.heard + DEAD));
            if own.is_some_and(|own| own <= now) {
                self.late(now);
                continue;
            }
            return Poll::Idle(earliest(deadline, own));
        }
    }
}

#[cfg(test)]
mod tests;
