//! Moves bytes between a switch's socket and its [`session`](crate::switch::channel), and events between the session
//! and the [`network`](crate::network).

use crate::switch::catching_up::CatchingUp;
use crate::switch::channel::{Channel, ChannelConfig, Input, Output, PortInfo, SwitchInfo};
use crate::switch::reconcile::{Refusals, Update};
use crate::telemetry::Telemetry;
use cool_daemon::clock::Clock;
use cool_daemon::listen::Connection;
use cool_machine::{Machine, Poll, Time, earliest};
use cool_tls::MaybeTlsStream;
use cool_topology::DatapathId;
use core::net::SocketAddr;
use core::time::Duration;
use parking_lot::Mutex;
use rs_openflow::{Framer, Message, MessageHeader, Padding};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, watch};
use tracing::{info, warn};

/// Frames that may wait to be sent; more are lost, as frames may be.
const PACKETS: usize = 4096;
/// Bytes that may wait for the switch to read them; beyond, frames are lost.
const MAX_WAITING: usize = 1 << 20;
/// Bytes that may wait at all: room for the largest batch of changes.
const MAX_UNREAD: usize = 1 << 25;
/// Bytes read at once.
const READ: usize = 1 << 16;
/// How long a last message may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Tells connections apart, also of the same switch.
pub(crate) type ConnectionId = u64;

/// What the network hears of a switch.
#[derive(Debug)]
pub(crate) enum Event {
    Up(SwitchInfo, Handle),
    PortChanged(PortInfo),
    PortGone(u32),
    PacketIn(u32, Vec<u8>),
    /// It has said something, and nothing more is there to be read: all frames that it has handed in are told.
    CaughtUp,
    Answered(u64, Refusals),
    Down,
}

/// An event, and where from.
#[derive(Debug)]
pub(crate) struct FromSwitch {
    pub(crate) connection: ConnectionId,
    pub(crate) switch: DatapathId,
    pub(crate) event: Event,
}

/// How the network reaches a switch; dropped, the connection ends.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) updates: Arc<PendingUpdate>,
    pub(crate) packets: mpsc::Sender<(Vec<u32>, Vec<u8>)>,
}

/// The update that a switch has not been sent yet: those that pile up are merged into one, so none waits in a queue.
#[derive(Debug, Default)]
pub(crate) struct PendingUpdate {
    pending: Mutex<Option<Update>>,
    /// Something is there.
    there: Notify,
}

impl PendingUpdate {
    pub(crate) fn add(&self, update: Update) {
        match &mut *self.pending.lock() {
            Some(pending) => pending.append(update),
            pending => *pending = Some(update),
        }
        self.there.notify_one();
    }

    pub(crate) fn take(&self) -> Option<Update> {
        self.pending.lock().take()
    }
}

/// What all connections have in common.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionContext {
    pub(crate) channel: ChannelConfig,
    /// As which generation this controller leads; none while it stands by.
    pub(crate) generation: watch::Receiver<Option<u64>>,
    /// The least time between two [`Event::CaughtUp`].
    pub(crate) caught_up_interval: Duration,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// Runs one connection to its end.
pub(crate) async fn run(
    connection: ConnectionId,
    taken: Connection,
    events: mpsc::Sender<FromSwitch>,
    connection_context: ConnectionContext,
) {
    let clock = Clock::start();
    let ConnectionContext { mut channel, mut generation, caught_up_interval, telemetry } = connection_context;
    channel.generation = *generation.borrow_and_update();
    let certified = taken.client.identity.map(|identity| identity.datapaths).unwrap_or_default();
    channel.admission.bound = certified.into_iter().map(DatapathId).collect();
    let updates = Arc::new(PendingUpdate::default());
    let (packets_in, packets) = mpsc::channel(PACKETS);
    let driver = Driver {
        connection,
        peer: taken.client.address,
        clock,
        session: Channel::new(clock.now(), channel),
        framer: Framer::new(Padding::Ignore),
        waiting: Vec::new(),
        unflushed: false,
        handle: Some(Handle { updates: updates.clone(), packets: packets_in }),
        switch: None,
        updating: None,
        catching_up: CatchingUp::new(caught_up_interval, clock.now()),
        generation,
        telemetry,
        events,
    };
    driver.run(taken.stream, &updates, packets).await;
}

/// Writes some of the bytes, and returns how many; if there are none, sees to it that those before leave.
async fn write(writer: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) -> std::io::Result<usize> {
    if bytes.is_empty() {
        writer.flush().await?;
        return Ok(0);
    }
    writer.write(bytes).await
}

struct Driver {
    connection: ConnectionId,
    peer: SocketAddr,
    clock: Clock,
    session: Channel,
    framer: Framer,
    /// Bytes for the switch.
    waiting: Vec<u8>,
    /// Something was written that TLS may hold back.
    unflushed: bool,
    /// Until the switch is up and the network has it.
    handle: Option<Handle>,
    switch: Option<(DatapathId, String)>,
    /// The last update without an answer, and since when one has been missing.
    updating: Option<(u64, Time)>,
    catching_up: CatchingUp,
    generation: watch::Receiver<Option<u64>>,
    telemetry: Arc<Telemetry>,
    events: mpsc::Sender<FromSwitch>,
}

/// What the loop woke up for.
enum Woken {
    Read(std::io::Result<usize>),
    Wrote(std::io::Result<usize>),
    Update(Option<Update>),
    Packet(Vec<u32>, Vec<u8>),
    Leads,
    Replaced,
    Deadline,
}

impl Driver {
    async fn run(
        mut self,
        stream: MaybeTlsStream,
        updates: &PendingUpdate,
        mut packets: mpsc::Receiver<(Vec<u32>, Vec<u8>)>,
    ) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut buffer = vec![0; READ];
        let why = loop {
            let deadline = match self.drain().await {
                Ok(deadline) => deadline,
                Err(why) => break why,
            };
            let deadline = earliest(deadline, self.catching_up.due());
            let woken = tokio::select! {
                read = reader.read(&mut buffer) => Woken::Read(read),
                wrote = write(&mut writer, &self.waiting), if self.unflushed || !self.waiting.is_empty() => {
                    Woken::Wrote(wrote)
                }
                () = updates.there.notified() => Woken::Update(updates.take()),
                // The channel ends when the network drops its handle, or has ended itself.
                packet = packets.recv() => match packet {
                    Some((ports, frame)) => Woken::Packet(ports, frame),
                    None => Woken::Replaced,
                },
                Ok(()) = self.generation.changed() => Woken::Leads,
                () = self.clock.wait(deadline) => Woken::Deadline,
            };
            match woken {
                Woken::Read(read) => {
                    if let Err(why) = self.take(read, &buffer).await {
                        break why;
                    }
                }
                Woken::Wrote(Err(error)) => break error.to_string(),
                Woken::Wrote(Ok(wrote)) => {
                    self.waiting.drain(..wrote);
                    self.unflushed = wrote > 0;
                }
                Woken::Update(Some(update)) => {
                    let since = self.updating.map_or(self.clock.now(), |(_, since)| since);
                    self.updating = Some((update.version, since));
                    self.session.handle(self.clock.now(), Input::Update(update));
                }
                Woken::Packet(ports, frame) if self.waiting.len() <= MAX_WAITING => {
                    self.session.handle(self.clock.now(), Input::Packet(ports, frame));
                }
                Woken::Leads => {
                    if let Some(generation) = *self.generation.borrow_and_update() {
                        self.session.handle(self.clock.now(), Input::Lead(generation));
                    }
                }
                Woken::Update(None) | Woken::Packet(..) | Woken::Deadline => {}
                Woken::Replaced => {
                    break "a newer connection took its place, or the controller ends".to_owned();
                }
            }
            if let Err(why) = self.catch_up(&mut reader, &mut buffer).await {
                break why;
            }
        };
        // What is left says why we hang up; whether it arrives is not ours to care.
        let farewell = async {
            writer.write_all(&self.waiting).await?;
            writer.shutdown().await
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
        match &self.switch {
            Some((switch, name)) => {
                warn!(peer = %self.peer, switch = %switch, "switch {name} disconnected: {why}");
                self.telemetry.ended(self.connection, *switch);
                self.tell(Event::Down).await;
            }
            None => warn!(peer = %self.peer, "switch at {} turned away: {why}", self.peer),
        }
    }

    /// Takes what was read.
    async fn take(&mut self, read: std::io::Result<usize>, buffer: &[u8]) -> Result<(), String> {
        match read {
            Ok(0) => Err("it hung up".to_owned()),
            Ok(read) => self.read(&buffer[..read]).await,
            Err(error) => Err(error.to_string()),
        }
    }

    /// Tells the network that it has heard all, if that is due and so; else takes more.
    async fn catch_up(
        &mut self,
        reader: &mut (impl AsyncReadExt + Unpin),
        buffer: &mut [u8],
    ) -> Result<(), String> {
        let now = self.clock.now();
        if self.catching_up.due().is_none_or(|due| now < due) {
            return Ok(());
        }
        // A task that has used up its turn would be told that nothing is there.
        let more = tokio::task::unconstrained(async {
            tokio::select! {
                biased;
                read = reader.read(buffer) => Some(read),
                () = core::future::ready(()) => None,
            }
        });
        match more.await {
            Some(read) => self.take(read, buffer).await,
            None => {
                self.catching_up.told(now);
                self.tell(Event::CaughtUp).await;
                Ok(())
            }
        }
    }

    /// Hands bytes to the session, message by message, so that no more than one push is ever kept.
    async fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.framer.push(bytes);
        while let Some(bytes) = self.framer.next_bytes() {
            let input = match bytes.map(|bytes| (bytes, Message::decode_with(bytes, Padding::Ignore))) {
                Ok((_, Ok(message))) => Input::Received(message),
                Ok((bytes, Err(error))) => Input::Unreadable(MessageHeader::read(bytes), error),
                Err(error) => Input::Unreadable(None, error),
            };
            self.catching_up.heard();
            self.session.handle(self.clock.now(), input);
            self.drain().await?;
        }
        Ok(())
    }

    /// Does all that the session asks for; returns when to poll it again, or why to hang up.
    async fn drain(&mut self) -> Result<Option<Time>, String> {
        loop {
            let output = match self.session.poll(self.clock.now()) {
                Poll::Output(output) => output,
                Poll::Idle(deadline) => return Ok(deadline),
            };
            match output {
                Output::Send(message) => {
                    let bytes = message.encode().map_err(|e| format!("cannot write {message}: {e}"))?;
                    self.waiting.extend(bytes);
                    if self.waiting.len() > MAX_UNREAD {
                        return Err("it does not read what it is sent".to_owned());
                    }
                }
                Output::Up(info) => {
                    let Some(handle) = self.handle.take() else { continue };
                    info!(peer = %self.peer, switch = %info.datapath_id, ports = info.ports.len(), "switch {} connected", info.name);
                    self.switch = Some((info.datapath_id, info.name.clone()));
                    self.tell(Event::Up(info, handle)).await;
                }
                Output::NotAdmitted(claimed, why) => {
                    self.telemetry.not_admitted(claimed, self.peer.ip(), why)
                }
                Output::PortChanged(port) => self.tell(Event::PortChanged(port)).await,
                Output::PortGone(port) => self.tell(Event::PortGone(port)).await,
                Output::PacketIn(port, frame) => self.tell(Event::PacketIn(port, frame)).await,
                Output::Counted(counted) => {
                    if let Some((switch, _)) = &self.switch {
                        self.telemetry.counted(self.connection, *switch, self.clock.now(), counted);
                    }
                }
                Output::Answered(version, refusals) => {
                    if let Some((_, since)) = self.updating.take_if(|(updating, _)| *updating == version) {
                        self.telemetry.installed(self.clock.now() - since);
                    }
                    self.tell(Event::Answered(version, refusals)).await;
                }
                Output::Warning(text) => warn!(peer = %self.peer, "{}: {text}", self.name()),
                Output::Close(why) => return Err(why),
            }
        }
    }

    fn name(&self) -> &str {
        self.switch.as_ref().map_or("switch", |(_, name)| name)
    }

    /// The network takes events in turn, so a busy switch waits for itself. If the network has ended, the
    /// handle is gone too, and the loop ends.
    async fn tell(&self, event: Event) {
        if let Some((switch, _)) = &self.switch {
            let told = FromSwitch { connection: self.connection, switch: *switch, event };
            if self.events.send(told).await.is_err() {
                info!(peer = %self.peer, "the controller ends");
            }
        }
    }
}
