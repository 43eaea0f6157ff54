//! Moves bytes between a switch's socket and its [`channel`](crate::switch::channel), and events
//! between the channel and the [`network`](crate::network).

use crate::api::{ConnectionId, NotAdmitted};
use crate::observation::{SwitchInventory, WithheldChanges};
use crate::switch::catch_up::CatchUpNotifier;
use crate::switch::channel::{Channel, ChannelConfig, Input, Output, SwitchInfo};
use crate::switch::connected_peers::ConnectedPeers;
use crate::switch::port_info::PortInfo;
use crate::switch::reconciler::{EntryRefusals, TableUpdate};
use crate::telemetry::Telemetry;
use cool_daemon::clock::Clock;
use cool_daemon::listen::ClientConnection;
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

/// Maximum number of frames that wait to be sent. Further frames are dropped, as frames may be.
const PACKETS: usize = 4096;
/// Maximum number of bytes that wait for the switch to read. Beyond it, frames are dropped.
const MAX_WAITING: usize = 1 << 20;
/// Number of bytes waiting for the switch beyond which the connection is closed. The largest batch
/// of changes must fit.
const MAX_UNREAD: usize = 1 << 25;
/// Maximum number of bytes that are read at once.
const READ: usize = 1 << 16;
/// Maximum time for sending the last message.
const FAREWELL: Duration = Duration::from_secs(1);

/// An event of a switch, for the network.
#[derive(Debug)]
pub(crate) enum SwitchEvent {
    Up(Box<SwitchInfo>, SwitchHandle),
    PortChanged(PortInfo),
    PortRemoved(u32),
    PacketIn(u32, Vec<u8>),
    /// The switch has refused to block this port.
    BlockRefused(u32),
    /// The entries of a switch that is only observed have been counted.
    Counted(SwitchInventory),
    /// These changes are not sent, because the switch is only observed.
    Withheld(WithheldChanges),
    /// The switch has sent something, and nothing remains to be read: all its frames have been
    /// passed on.
    CaughtUp,
    Acknowledged(u64, EntryRefusals),
    Down,
}

/// An event with its origin.
#[derive(Debug)]
pub(crate) struct FromSwitch {
    pub(crate) connection: ConnectionId,
    pub(crate) switch: DatapathId,
    pub(crate) event: SwitchEvent,
}

/// The network's handle on a switch. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct SwitchHandle {
    pub(crate) updates: Arc<PendingUpdate>,
    pub(crate) packets: mpsc::Sender<(Vec<u32>, Vec<u8>)>,
}

/// The update that has not been passed to a switch yet. Later updates are merged into it, because a
/// queue could grow without bound.
#[derive(Debug, Default)]
pub(crate) struct PendingUpdate {
    pending: Mutex<Option<TableUpdate>>,
    /// Signals that an update is pending.
    there: Notify,
}

impl PendingUpdate {
    pub(crate) fn add(&self, update: TableUpdate) {
        match &mut *self.pending.lock() {
            Some(pending) => pending.append(update),
            pending => *pending = Some(update),
        }
        self.there.notify_one();
    }

    pub(crate) fn take(&self) -> Option<TableUpdate> {
        self.pending.lock().take()
    }
}

/// Context of all connections.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionContext {
    pub(crate) channel: ChannelConfig,
    /// Generation with which this controller leads; `None` on standby.
    pub(crate) generation: watch::Receiver<Option<u64>>,
    /// Minimum time between two [`SwitchEvent::CaughtUp`].
    pub(crate) caught_up_interval: Duration,
    pub(crate) telemetry: Arc<Telemetry>,
    /// The connected switches.
    pub(crate) peers: Arc<ConnectedPeers>,
}

/// Serves one connection until it ends.
pub(crate) async fn run(
    connection: ConnectionId,
    taken: ClientConnection,
    events: mpsc::Sender<FromSwitch>,
    connection_context: ConnectionContext,
) {
    let clock = Clock::start();
    let ConnectionContext { channel: mut config, mut generation, caught_up_interval, telemetry, peers } =
        connection_context;
    config.generation = *generation.borrow_and_update();
    let certified = taken.client.identity.map(|identity| identity.datapaths).unwrap_or_default();
    config.admission.bound = certified.into_iter().map(DatapathId).collect();
    let updates = Arc::new(PendingUpdate::default());
    let (packets_in, packets) = mpsc::channel(PACKETS);
    let driver = ConnectionDriver {
        connection,
        peer: taken.client.address,
        clock,
        channel: Channel::new(clock.now(), config),
        framer: Framer::new(Padding::Ignore),
        waiting: Vec::new(),
        unflushed: false,
        handle: Some(SwitchHandle { updates: updates.clone(), packets: packets_in }),
        switch: None,
        rejected: false,
        updating: None,
        catch_up: CatchUpNotifier::new(caught_up_interval, clock.now()),
        generation,
        telemetry,
        peers,
        events,
    };
    driver.run(taken.stream, &updates, packets).await;
}

/// Writes some of the bytes, and returns how many. Without bytes, flushes the earlier ones.
async fn write(writer: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) -> std::io::Result<usize> {
    if bytes.is_empty() {
        writer.flush().await?;
        return Ok(0);
    }
    writer.write(bytes).await
}

struct ConnectionDriver {
    connection: ConnectionId,
    peer: SocketAddr,
    clock: Clock,
    channel: Channel,
    framer: Framer,
    /// Bytes to send to the switch.
    waiting: Vec<u8>,
    /// Whether bytes were written that TLS may still hold.
    unflushed: bool,
    /// Held until the switch is up, then passed to the network.
    handle: Option<SwitchHandle>,
    switch: Option<(DatapathId, String)>,
    /// Whether the switch was rejected.
    rejected: bool,
    /// Version of the last update that the switch has not acknowledged, and the time since which an
    /// acknowledgment has been outstanding.
    updating: Option<(u64, Time)>,
    catch_up: CatchUpNotifier,
    generation: watch::Receiver<Option<u64>>,
    telemetry: Arc<Telemetry>,
    peers: Arc<ConnectedPeers>,
    events: mpsc::Sender<FromSwitch>,
}

/// Reason why the loop woke up.
enum Wakeup {
    Read(std::io::Result<usize>),
    Wrote(std::io::Result<usize>),
    Update(Option<TableUpdate>),
    Packet(Vec<u32>, Vec<u8>),
    Leads,
    Replaced,
    Deadline,
}

impl ConnectionDriver {
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
            let deadline = earliest(deadline, self.catch_up.due());
            let woken = tokio::select! {
                read = reader.read(&mut buffer) => Wakeup::Read(read),
                wrote = write(&mut writer, &self.waiting), if self.unflushed || !self.waiting.is_empty() => {
                    Wakeup::Wrote(wrote)
                }
                () = updates.there.notified() => Wakeup::Update(updates.take()),
                // The queue ends when the network drops its handle, or has stopped.
                packet = packets.recv() => match packet {
                    Some((ports, frame)) => Wakeup::Packet(ports, frame),
                    None => Wakeup::Replaced,
                },
                Ok(()) = self.generation.changed() => Wakeup::Leads,
                () = self.clock.wait(deadline) => Wakeup::Deadline,
            };
            match woken {
                Wakeup::Read(read) => {
                    if let Err(why) = self.take(read, &buffer).await {
                        break why;
                    }
                }
                Wakeup::Wrote(Err(error)) => break error.to_string(),
                Wakeup::Wrote(Ok(wrote)) => {
                    self.waiting.drain(..wrote);
                    self.unflushed = wrote > 0;
                }
                Wakeup::Update(Some(update)) => {
                    let since = self.updating.map_or(self.clock.now(), |(_, since)| since);
                    self.updating = Some((update.version, since));
                    self.channel.handle(self.clock.now(), Input::Update(update));
                }
                Wakeup::Packet(ports, frame) if self.waiting.len() <= MAX_WAITING => {
                    self.channel.handle(self.clock.now(), Input::Packet(ports, frame));
                }
                Wakeup::Leads => {
                    if let Some(generation) = *self.generation.borrow_and_update() {
                        self.channel.handle(self.clock.now(), Input::Lead(generation));
                    }
                }
                Wakeup::Update(None) | Wakeup::Packet(..) | Wakeup::Deadline => {}
                Wakeup::Replaced => {
                    break "a newer connection took its place, or the controller is stopping".to_owned();
                }
            }
            if let Err(why) = self.read_remaining(&mut reader, &mut buffer).await {
                break why;
            }
        };
        // The remaining messages contain the reason for closing. Whether they arrive does not
        // matter here.
        let farewell = async {
            writer.write_all(&self.waiting).await?;
            writer.shutdown().await
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
        // Rejected switches are recorded by their reason.
        if !self.rejected {
            let known = self.switch.as_ref().map(|(switch, _)| *switch).or(self.channel.datapath_id());
            self.telemetry.connection_broken(known, self.peer.ip(), &why);
        }
        match &self.switch {
            Some((switch, name)) => {
                warn!(peer = %self.peer, switch = %switch, "switch {name} disconnected: {why}");
                self.telemetry.ended(self.connection, *switch);
                self.peers.release(*switch, self.connection);
                self.notify(SwitchEvent::Down).await;
            }
            None => warn!(peer = %self.peer, "switch at {} turned away: {why}", self.peer),
        }
    }

    /// Processes the result of reading.
    async fn take(&mut self, read: std::io::Result<usize>, buffer: &[u8]) -> Result<(), String> {
        match read {
            Ok(0) => Err("it closed the connection".to_owned()),
            Ok(read) => self.read(&buffer[..read]).await,
            Err(error) => Err(error.to_string()),
        }
    }

    /// Notifies the network that all messages have been read, if that is due and true. Otherwise
    /// reads more.
    async fn read_remaining(
        &mut self,
        reader: &mut (impl AsyncReadExt + Unpin),
        buffer: &mut [u8],
    ) -> Result<(), String> {
        let now = self.clock.now();
        if self.catch_up.due().is_none_or(|due| now < due) {
            return Ok(());
        }
        // Unconstrained, because a task without budget would find nothing to read.
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
                self.catch_up.notified(now);
                self.notify(SwitchEvent::CaughtUp).await;
                Ok(())
            }
        }
    }

    /// Passes bytes to the channel message by message, so that it never holds more than one read.
    async fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.framer.push(bytes);
        while let Some(bytes) = self.framer.next_bytes() {
            let input = match bytes.map(|bytes| (bytes, Message::decode_with(bytes, Padding::Ignore))) {
                Ok((_, Ok(message))) => Input::Received(message),
                Ok((bytes, Err(error))) => Input::Unreadable(MessageHeader::read(bytes), error),
                Err(error) => Input::Unreadable(None, error),
            };
            self.catch_up.on_message();
            self.channel.handle(self.clock.now(), input);
            self.drain().await?;
        }
        Ok(())
    }

    /// Executes the outputs of the channel. Returns when to poll it again.
    ///
    /// # Errors
    /// Returns the reason if the connection must be closed.
    async fn drain(&mut self) -> Result<Option<Time>, String> {
        loop {
            let output = match self.channel.poll(self.clock.now()) {
                Poll::Output(output) => output,
                Poll::Idle(deadline) => return Ok(deadline),
            };
            match output {
                Output::Send(message) => {
                    let bytes = message.encode().map_err(|e| format!("cannot write {message}: {e}"))?;
                    self.waiting.extend(bytes);
                    if self.waiting.len() > MAX_UNREAD {
                        return Err("send buffer full: the switch is not reading".to_owned());
                    }
                }
                Output::Up(info) => {
                    let Some(handle) = self.handle.take() else { continue };
                    let (switch, address) = (info.datapath_id, self.peer.ip());
                    if let Err(why) = self.peers.claim(switch, self.connection, address) {
                        let text = why.to_string();
                        self.reject(switch, why);
                        return Err(text);
                    }
                    info!(peer = %self.peer, switch = %info.datapath_id, ports = info.ports.len(), "switch {} connected", info.name);
                    self.switch = Some((info.datapath_id, info.name.clone()));
                    self.notify(SwitchEvent::Up(Box::new(info), handle)).await;
                }
                Output::NotAdmitted(claimed, why) => self.reject(claimed, why),
                Output::PortChanged(port) => self.notify(SwitchEvent::PortChanged(port)).await,
                Output::PortRemoved(port) => self.notify(SwitchEvent::PortRemoved(port)).await,
                Output::PacketIn(port, frame) => self.notify(SwitchEvent::PacketIn(port, frame)).await,
                Output::Counters(counted) => {
                    if let Some((switch, _)) = &self.switch {
                        self.telemetry.counted(self.connection, *switch, self.clock.now(), counted);
                    }
                }
                Output::Counted(inventory) => self.notify(SwitchEvent::Counted(inventory)).await,
                Output::Withheld(changes) => self.notify(SwitchEvent::Withheld(changes)).await,
                Output::BlockRefused(port) => self.notify(SwitchEvent::BlockRefused(port)).await,
                Output::Acknowledged(version, refusals) => {
                    if let Some((_, since)) = self.updating.take_if(|(updating, _)| *updating == version) {
                        self.telemetry.installed(self.clock.now() - since);
                    }
                    self.notify(SwitchEvent::Acknowledged(version, refusals)).await;
                }
                Output::Warning(text) => warn!(peer = %self.peer, "{}: {text}", self.name()),
                Output::Close(why) => return Err(why),
            }
        }
    }

    /// Records that the switch is rejected.
    fn reject(&mut self, claimed: DatapathId, why: NotAdmitted) {
        self.rejected = true;
        self.telemetry.not_admitted(claimed, self.peer.ip(), why);
    }

    fn name(&self) -> &str {
        self.switch.as_ref().map_or("switch", |(_, name)| name)
    }

    /// Passes an event to the network, which processes events in turn, so that a busy switch only
    /// delays itself. If the network has stopped, its handle is dropped as well, and the loop ends.
    async fn notify(&self, event: SwitchEvent) {
        if let Some((switch, _)) = &self.switch {
            let event = FromSwitch { connection: self.connection, switch: *switch, event };
            if self.events.send(event).await.is_err() {
                info!(peer = %self.peer, "the controller is stopping");
            }
        }
    }
}
