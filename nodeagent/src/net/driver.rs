//! The driver on the engine's thread: waits for the next event and passes it to the engine.

use super::agent_connection::{self, ReadOutcome};
use super::engine_host::EngineHost;
use super::tcp;
use super::udp::{DatagramInbox, Socket};
use super::{DriverEvent, DriverEvents};
use crate::engine::{EngineCommand, QueuedCommand};
use crate::loss_injector::LossInjector;
use cool_engine::{AgentConnectionId, Input};
use rustix::io::Errno;
use std::future::{pending, poll_fn};
use std::io::ErrorKind;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// How long datagrams may be read before other events are handled, if datagrams keep arriving.
/// Pings should be answered within 20 ms.
const DATAGRAM_READ_TIME_MAX: Duration = Duration::from_millis(10);

/// How long waiting events may be handled before datagrams are read again, if datagrams keep
/// arriving.
const EVENT_TIME_MAX: Duration = Duration::from_millis(5);

/// How many times a connection may be read before other events are handled.
const READS_PER_TURN_MAX: usize = 8;

/// A turn of the engine's thread that takes at least this long is logged.
const LONG_TURN: Duration = Duration::from_millis(20);

/// The event that ended the driver's wait.
enum DriverWakeup {
    EngineCommand(EngineCommand),
    DriverEvent(DriverEvent),
    /// Datagrams have arrived.
    Readable,
    /// The system has room for datagrams again.
    Room,
    /// The engine must be polled.
    Due,
}

pub(super) struct EngineDriver {
    host: EngineHost,
    inbox: DatagramInbox,
    losses: Option<LossInjector>,
    /// The buffer for data that arrives over a connection and has no known destination.
    scratch: Vec<u8>,
    /// The age of the engine up to which all arrived datagrams have been passed to it. Timers may
    /// expire only up to this time, because otherwise datagrams that wait on a busy machine would
    /// count as lost.
    known: Duration,
    events: DriverEvents,
    queue: mpsc::Receiver<DriverEvent>,
}

impl EngineDriver {
    pub(super) fn new(
        host: EngineHost,
        losses: Option<LossInjector>,
        events: DriverEvents,
        queue: mpsc::Receiver<DriverEvent>,
    ) -> EngineDriver {
        let (inbox, scratch, known) = (DatagramInbox::new(), vec![0; agent_connection::READ], Duration::ZERO);
        EngineDriver { host, inbox, losses, scratch, known, events, queue }
    }

    /// Runs until all senders of commands have been dropped.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<QueuedCommand>,
        listener: TcpListener,
    ) {
        tokio::spawn(tcp::accept(
            listener,
            self.host.security().clone(),
            self.host.refusals(),
            self.events.clone(),
        ));
        loop {
            let deadline = self.host.deadline();
            let timer = async {
                match deadline {
                    // A deadline that has passed needs no timer, which in Tokio would take up to a
                    // millisecond.
                    Some(at) if at <= Instant::now() => tokio::task::yield_now().await,
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => pending().await,
                }
            };
            let readable = poll_fn(|context| {
                match self.host.sockets().any(|socket| socket.poll_ready(context).is_ready()) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            });
            let next = tokio::select! {
                command = commands.recv() => match command {
                    Some(QueuedCommand { command, permit }) => {
                        drop(permit);
                        DriverWakeup::EngineCommand(command)
                    }
                    None => return,
                },
                Some(event) = self.queue.recv() => DriverWakeup::DriverEvent(event),
                () = readable => DriverWakeup::Readable,
                () = self.host.room() => DriverWakeup::Room,
                () = timer => DriverWakeup::Due,
            };
            if self.turn(next) {
                self.catch_up();
                // Otherwise, Tokio would run the thread's other tasks only after many such turns:
                // the sessions of ranks, and those that read and write connections.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Handles the events that wait, up to a limit, because a turn handles one of them, and turns
    /// are long while datagrams arrive faster than they are handled.
    fn catch_up(&mut self) {
        let began = Instant::now();
        while began.elapsed() < EVENT_TIME_MAX
            && let Ok(event) = self.queue.try_recv()
        {
            self.event(event);
        }
        self.host.end_turn(self.known);
    }

    /// Handles an event and everything that follows from it. Nothing else is handled meanwhile.
    /// Returns whether datagrams are left that no time remained to read.
    fn turn(&mut self, next: DriverWakeup) -> bool {
        let began = Instant::now();
        match next {
            DriverWakeup::EngineCommand(command) => self.command(command),
            DriverWakeup::DriverEvent(event) => self.event(event),
            DriverWakeup::Room => self.host.resume(),
            DriverWakeup::Readable | DriverWakeup::Due => {}
        }
        let is_drained = self.drain();
        self.host.end_turn(self.known);
        let took = began.elapsed();
        if took >= LONG_TURN {
            tracing::debug!(?took, "a long turn of the engine's thread");
        }
        !is_drained
    }

    /// Passes the arrived datagrams to the engine, each with the time of its arrival, and sets
    /// `known`. Returns whether all of them have been passed.
    fn drain(&mut self) -> bool {
        let began = Instant::now();
        loop {
            let sockets: Vec<&Socket> = self.host.sockets().collect();
            let has_data = self.inbox.receive(&sockets);
            let now = self.host.elapsed();
            if !has_data {
                self.known = now;
                return true;
            }
            self.known = now;
            for at in 0..self.inbox.len() {
                let (age, (from, to), bytes) = self.inbox.datagram(at);
                self.known = now.saturating_sub(age);
                if self.losses.as_mut().is_some_and(LossInjector::drops_next) {
                    continue;
                }
                let Some((len, proven)) = self.host.examine(bytes, (from, to)) else { continue };
                let input = Input::Datagram { from, bytes: &bytes[..len], proven };
                self.host.handle_at(self.known, input);
            }
            self.host.flush();
            if began.elapsed() >= DATAGRAM_READ_TIME_MAX {
                return false;
            }
        }
    }

    fn command(&mut self, command: EngineCommand) {
        let host = &mut self.host;
        match command {
            EngineCommand::MakeGroup(spec, reply) => host.make_group(&spec, reply),
            EngineCommand::ProveTrees { group, number, time_max, reply } => {
                host.prove_trees((group, number), time_max, reply);
            }
            EngineCommand::ReportSilentTrees(groups) => host.report_silent_trees(groups),
            EngineCommand::Request(request, reply) => host.request(request, reply),
            EngineCommand::Input(input) => host.handle(input),
            EngineCommand::Share { group, segment } => host.share(group, segment),
            // The caller may have stopped waiting.
            EngineCommand::LostRanks { group, reply } => drop(reply.send(host.lost_ranks(group))),
            EngineCommand::DroppedDatagrams(reply) => drop(reply.send(host.dropped_datagrams())),
            EngineCommand::Trace { last, group, reply } => drop(reply.send(host.trace(last, group))),
        }
    }

    fn event(&mut self, event: DriverEvent) {
        let host = &mut self.host;
        match event {
            DriverEvent::Accepted { streams, records, from, proven } => {
                let connection = host.connect(streams, records);
                host.handle(Input::Accepted { connection, from, proven });
            }
            DriverEvent::Connected { node, streams, records } => {
                let connection = host.connect(streams, records);
                host.handle(Input::Connected { node, connection });
            }
            DriverEvent::Unreachable { node, why } => host.handle(Input::Unreachable { node, why }),
            DriverEvent::Readable(connection) => self.read(connection),
            DriverEvent::Written { connection, stream, bytes } => {
                if let Some(writer) = host.connection(connection) {
                    writer.wrote_rest(stream, bytes);
                }
                host.handle(Input::Written { connection, bytes });
            }
            DriverEvent::StreamFailed { connection, why } => {
                // The other side may have ended the connection after its last frames.
                self.read(connection);
                self.host.closed(connection, why);
            }
            DriverEvent::Closed { connection, why } => host.closed(connection, why),
            DriverEvent::TreesJoined { group, reply, joined } => host.trees_joined(group, reply, joined),
            DriverEvent::QuickProbed { group, passed } => host.handle(Input::QuickProbed { group, passed }),
            DriverEvent::WorkDone(id) => host.handle(Input::WorkDone(id)),
            DriverEvent::Prepared(id, prepared) => host.handle(Input::Prepared(id, *prepared)),
            DriverEvent::WorkPanicked => panic!("a thread that works for the engine has panicked; see above"),
        }
    }

    /// Reads the data that has arrived over a connection, up to a limit.
    fn read(&mut self, id: AgentConnectionId) {
        for _ in 0..READS_PER_TURN_MAX {
            let Some((missing, place)) = self.host.connection(id).map(|reader| reader.awaited) else {
                return;
            };
            let memory = place.map(|place| place.memory);
            let place = place.and_then(|place| self.host.memory(place));
            let Some(reader) = self.host.connection(id) else { return };
            let outcome = match reader.read((missing, place), &mut self.scratch) {
                Ok(ReadOutcome { placed: 0, tail: 0, .. }) => {
                    return self.host.closed(id, "its agent closed the connection".to_owned());
                }
                Ok(outcome) => outcome,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The system could not store the bytes in a rank's memory, so it has kept them.
                Err(error)
                    if error.raw_os_error() == Some(Errno::FAULT.raw_os_error())
                        && memory.is_some_and(|memory| self.host.on_missing_memory(memory)) =>
                {
                    continue;
                }
                Err(error) => return self.host.closed(id, agent_connection::failed(&error)),
            };
            // The length of a frame's payload is a `u32`.
            let (placed, bytes) = (outcome.placed as u32, &self.scratch[..outcome.tail]);
            self.host.handle(Input::Bytes { connection: id, placed, bytes });
            if outcome.drained {
                break;
            }
        }
        if let Some(reader) = self.host.connection(id) {
            reader.await_more();
        }
    }
}
