//! Delivers events of a job to its caller, the tool that started it or attached to it later.
//!
//! Events are queued until the caller reads them, and the job never waits for this. If the
//! connection breaks, the job continues and its caller has a grace time to reconnect.
//!
//! If a connected caller does not read, ranks block when they print, as with a pipe. While the
//! caller is disconnected, ranks continue, and the oldest lines are dropped when the queue is full.
//! Lines are numbered, so that the caller detects missing ones.

use cool_proto::control::{JobEvent, JobSpec, job_event::Body};
use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tracing::{info, warn};

/// Maximum size of all lines waiting for a caller.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// Ranks block while more than the first limit is waiting, until it falls below the second.
const HOLD_ABOVE_BYTES: usize = 1 << 20;
const HOLD_BELOW_BYTES: usize = 256 << 10;
/// Maximum size of lines that are sent again on a new connection, because the previous one may have
/// failed before they were delivered.
const MAX_REPEATED_BYTES: usize = 2 << 20;

/// Channel to the caller of a job.
pub type JobEventSender = mpsc::Sender<Result<JobEvent, Status>>;

/// A caller that connects.
#[derive(Debug)]
pub struct CallerArrival {
    /// Channel to the caller.
    pub sender: JobEventSender,
    /// The job that it requested.
    pub spec: JobSpec,
    /// Whether it can detect repeated lines by their numbers.
    pub numbered: bool,
}

/// An event that the job must handle.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallerEvent {
    /// The caller did not reconnect in time.
    CallerLost,
    /// Ranks must block when they print (true), or may continue (false).
    Hold(bool),
}

/// Queue of events for the caller of one job.
#[derive(Debug)]
pub(crate) struct CallerEventStream {
    caller: Option<JobEventSender>,
    arrivals: mpsc::Receiver<CallerArrival>,
    /// Time since which there has been no caller.
    away: Instant,
    grace: Duration,
    /// Time since which the controller has been connected to any agent or switch. Grace times do
    /// not elapse while it is isolated.
    connected_since: watch::Receiver<Option<Instant>>,
    /// The start of the job, which is reported to every new caller.
    started: Option<JobEvent>,
    /// Events sent on the current connection that may not have been delivered.
    taken: EventBuffer,
    waiting: EventBuffer,
    held: bool,
    dropped: DroppedLines,
}

/// Lines that were dropped since a caller last connected. A job decides how many lines it prints,
/// so the log contains one message per caller instead of one per line.
#[derive(Debug, Default)]
struct DroppedLines(usize);

impl DroppedLines {
    /// Counts lines. Returns whether they are the first ones.
    fn add(&mut self, lines: usize) -> bool {
        let first = self.0 == 0 && lines > 0;
        self.0 += lines;
        first
    }

    /// Logs the number of lines, and starts again.
    fn report(&mut self) {
        let lines = std::mem::take(&mut self.0);
        if lines > 0 {
            warn!(lines, "output of the job was dropped, because its caller did not read it");
        }
    }
}

/// Events in order, and the total size of their lines.
#[derive(Debug, Default)]
struct EventBuffer {
    events: VecDeque<JobEvent>,
    bytes: usize,
}

impl EventBuffer {
    fn push(&mut self, event: JobEvent) {
        self.bytes += size(&event);
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<JobEvent> {
        let event = self.events.pop_front()?;
        self.bytes -= size(&event);
        Some(event)
    }

    /// Drops the oldest lines beyond a total size. Returns their number.
    fn bound(&mut self, bytes: usize) -> usize {
        let before = self.events.len();
        while self.bytes > bytes {
            let Some(oldest) = self.events.iter().position(|event| size(event) > 0) else { break };
            self.bytes -= self.events.remove(oldest).as_ref().map_or(0, size);
        }
        before - self.events.len()
    }
}

/// Returns the size of an event's line, or 0 if it has none.
fn size(event: &JobEvent) -> usize {
    match &event.body {
        Some(Body::Output(output)) => output.line.len() + 64,
        _ => 0,
    }
}

/// Returns whether a caller can recognize the event if it is sent twice: a numbered line or the end
/// of a rank.
fn may_be_repeated(event: &JobEvent) -> bool {
    match &event.body {
        Some(Body::Output(output)) => output.number > 0,
        Some(Body::Exited(_) | Body::Finished(_)) => true,
        _ => false,
    }
}

impl CallerEventStream {
    /// Returns a stream without a caller.
    pub(crate) fn new(
        arrivals: mpsc::Receiver<CallerArrival>,
        grace: Duration,
        connected_since: watch::Receiver<Option<Instant>>,
    ) -> CallerEventStream {
        CallerEventStream {
            caller: None,
            arrivals,
            away: Instant::now(),
            grace,
            connected_since,
            started: None,
            taken: EventBuffer::default(),
            waiting: EventBuffer::default(),
            held: false,
            dropped: DroppedLines::default(),
        }
    }

    /// Queues an event for the caller.
    pub(crate) fn queue_event(&mut self, body: Body) {
        let starts = matches!(body, Body::Started(_));
        let event = JobEvent { body: Some(body) };
        if starts {
            self.started = Some(event.clone());
        }
        self.waiting.push(event);
        if self.dropped.add(self.waiting.bound(MAX_WAITING_BYTES)) {
            warn!("the caller of the job does not read its output; the oldest lines are dropped");
        }
    }

    /// Returns whether ranks must block when they print, because a connected caller does not read.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Sends queued events and handles callers that connect and disconnect. Returns when the job
    /// must react. Cancel-safe.
    pub(crate) async fn next_event(&mut self) -> CallerEvent {
        loop {
            if let Some(hold) = self.changes_hold() {
                return CallerEvent::Hold(hold);
            }
            let Some(caller) = self.caller.clone() else {
                let (deadline, mut connected_since) = (self.deadline(), self.connected_since.clone());
                tokio::select! {
                    arrival = next_arrival(&mut self.arrivals) => drop(self.receive(arrival)),
                    () = wait_until(deadline) => return CallerEvent::CallerLost,
                    () = changed(&mut connected_since) => {}
                }
                continue;
            };
            tokio::select! {
                arrival = next_arrival(&mut self.arrivals) => drop(self.receive(arrival)),
                room = caller.reserve(), if !self.waiting.events.is_empty() => match room {
                    Ok(room) => {
                        if let Some(event) = self.next_queued() {
                            room.send(Ok(event));
                        }
                    }
                    Err(_) => self.caller_left(),
                },
                () = caller.closed() => self.caller_left(),
            }
        }
    }

    /// Waits for a caller to connect. Returns the job that it requested, or `None` if no caller
    /// connects in time.
    pub(crate) async fn wait_for_caller(&mut self) -> Option<JobSpec> {
        loop {
            let (deadline, mut connected_since) = (self.deadline(), self.connected_since.clone());
            tokio::select! {
                arrival = next_arrival(&mut self.arrivals) => return Some(self.receive(arrival)),
                () = wait_until(deadline) => return None,
                () = changed(&mut connected_since) => {}
            }
        }
    }

    /// Sends all queued events to a connected caller, then reports that the controller is shutting
    /// down.
    pub(crate) async fn hand_over(&mut self) {
        let Some(caller) = self.caller.clone() else { return };
        while !self.waiting.events.is_empty() {
            let Ok(room) = caller.reserve().await else { return };
            if let Some(event) = self.next_queued() {
                room.send(Ok(event));
            }
        }
        // A caller that has disconnected will reconnect to the next controller.
        let _ = caller.send(Err(Status::unavailable("the controller is shutting down"))).await;
    }

    /// Waits until the caller has received the end of the job, or did not reconnect in time.
    pub(crate) async fn deliver_remaining(&mut self) {
        while self.next_event().await != CallerEvent::CallerLost {}
        self.dropped.report();
    }

    fn next_queued(&mut self) -> Option<JobEvent> {
        let event = self.waiting.pop()?;
        if may_be_repeated(&event) {
            self.taken.push(event.clone());
            self.taken.bound(MAX_REPEATED_BYTES);
        }
        Some(event)
    }

    /// Replaces the caller. Returns the job that the new one requested.
    pub(crate) fn receive(&mut self, arrival: CallerArrival) -> JobSpec {
        let CallerArrival { sender, spec, numbered } = arrival;
        self.dropped.report();
        let taken = std::mem::take(&mut self.taken);
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.events.retain(|event| !matches!(event.body, Some(Body::Started(_))));
        let repeated = taken.events.into_iter().filter(|_| numbered);
        for event in self.started.clone().into_iter().chain(repeated).chain(waiting.events) {
            self.waiting.push(event);
        }
        self.caller = Some(sender);
        spec
    }

    fn caller_left(&mut self) {
        info!("the caller of the job has disconnected");
        (self.caller, self.away) = (None, Instant::now());
    }

    fn deadline(&mut self) -> Option<Instant> {
        let connected_since = *self.connected_since.borrow_and_update();
        Some(self.away.max(connected_since?) + self.grace)
    }

    /// Returns whether ranks must block, if this has changed.
    fn changes_hold(&mut self) -> Option<bool> {
        let above = if self.held { HOLD_BELOW_BYTES } else { HOLD_ABOVE_BYTES };
        let hold = self.caller.is_some() && self.waiting.bytes > above;
        (std::mem::replace(&mut self.held, hold) != hold).then_some(hold)
    }
}

/// Waits for the next caller. Never completes once the job is no longer listed.
async fn next_arrival(arrivals: &mut mpsc::Receiver<CallerArrival>) -> CallerArrival {
    match arrivals.recv().await {
        Some(arrival) => arrival,
        None => pending().await,
    }
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Waits until the controller becomes connected or isolated.
async fn changed(connected_since: &mut watch::Receiver<Option<Instant>>) {
    if connected_since.changed().await.is_err() {
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::Output;

    #[tokio::test]
    async fn dropped_lines_are_logged_once_for_each_caller() {
        let (_arrivals, arriving) = mpsc::channel(1);
        let connected_since = watch::channel(None).1;
        let mut stream = CallerEventStream::new(arriving, Duration::from_secs(60), connected_since);
        let line = vec![0; 16 << 10];
        let print = |stream: &mut CallerEventStream| {
            stream.queue_event(Body::Output(Output { line: line.clone(), ..Output::default() }));
        };
        (0..MAX_WAITING_BYTES / line.len()).for_each(|_| print(&mut stream));
        let dropped_first = stream.dropped.0;
        (0..9).for_each(|_| print(&mut stream));
        assert_eq!(stream.dropped.0 - dropped_first, 9);
        assert!(!stream.dropped.add(1), "only the first lines are logged");
        let (sender, _events) = mpsc::channel(1);
        stream.receive(CallerArrival { sender, spec: JobSpec::default(), numbered: true });
        assert!(stream.dropped.add(1), "the next caller may stop reading, too");
    }
}
