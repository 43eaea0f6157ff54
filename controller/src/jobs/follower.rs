//! Whoever started a job and follows it, from anywhere: what there is to hear is kept until it is taken, and the job never waits for
//! that. A connection that breaks is no reason to end a job: its caller has a grace time to come back.
//!
//! A caller that is there and does not read makes the ranks wait when they print, as a pipe would. For one that is away the job
//! runs on, and what exceeds the room is lost, the oldest lines first: lines are numbered, so the caller knows what it lacks.

use cool_proto::control::{JobEvent, JobSpec, job_event::Body};
use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tracing::{info, warn};

/// Bytes of lines that wait for a caller.
const WAITING_MAX: usize = 4 << 20;
/// Ranks wait when so much does, and go on below the second.
const HOLD_ABOVE: usize = 1 << 20;
const HOLD_BELOW: usize = 256 << 10;
/// Bytes of lines that a connection has taken, and are said again on the next one: it may have broken with that unread.
const REPEATED_MAX: usize = 2 << 20;

/// To the caller of a job.
pub type Caller = mpsc::Sender<Result<JobEvent, Status>>;

/// A caller who comes.
#[derive(Debug)]
pub struct CallerArrival {
    /// The way to it.
    pub caller: Caller,
    /// What it asked for.
    pub spec: JobSpec,
    /// Whether it knows lines by their numbers, and so may be told some twice.
    pub numbered: bool,
}

/// What its caller means for the job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// It has been away for too long, and is given up.
    GivenUp,
    /// The ranks are to wait when they print, or no more.
    Hold(bool),
}

/// The caller of one job, and what it is still to hear.
#[derive(Debug)]
pub(crate) struct Follower {
    caller: Option<Caller>,
    arrivals: mpsc::Receiver<CallerArrival>,
    /// Since when it is away, if it is.
    away: Instant,
    grace: Duration,
    /// Since when the controller hears anybody: while it is cut off itself, nobody's time runs.
    hearing: watch::Receiver<Option<Instant>>,
    /// That the job has started: said to everybody who comes.
    started: Option<JobEvent>,
    /// What the latest connection has taken and may not have delivered.
    taken: Lines,
    waiting: Lines,
    held: bool,
}

/// Events in order, and the bytes of lines among them.
#[derive(Debug, Default)]
struct Lines {
    events: VecDeque<JobEvent>,
    bytes: usize,
}

impl Lines {
    fn push(&mut self, event: JobEvent) {
        self.bytes += size(&event);
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<JobEvent> {
        let event = self.events.pop_front()?;
        self.bytes -= size(&event);
        Some(event)
    }

    /// Drops the oldest lines beyond this; returns how many.
    fn bound(&mut self, bytes: usize) -> usize {
        let before = self.events.len();
        while self.bytes > bytes {
            let Some(oldest) = self.events.iter().position(|event| size(event) > 0) else { break };
            self.bytes -= self.events.remove(oldest).as_ref().map_or(0, size);
        }
        before - self.events.len()
    }
}

/// What of the room for lines an event takes.
fn size(event: &JobEvent) -> usize {
    match &event.body {
        Some(Body::Output(output)) => output.line.len() + 64,
        _ => 0,
    }
}

/// Whether a caller who has heard it knows that: a line with a number, or how a rank ended.
fn may_be_repeated(event: &JobEvent) -> bool {
    match &event.body {
        Some(Body::Output(output)) => output.number > 0,
        Some(Body::Exited(_) | Body::Finished(_)) => true,
        _ => false,
    }
}

impl Follower {
    /// Nobody is there yet.
    pub(crate) fn new(
        arrivals: mpsc::Receiver<CallerArrival>,
        grace: Duration,
        hearing: watch::Receiver<Option<Instant>>,
    ) -> Follower {
        Follower {
            caller: None,
            arrivals,
            away: Instant::now(),
            grace,
            hearing,
            started: None,
            taken: Lines::default(),
            waiting: Lines::default(),
            held: false,
        }
    }

    /// There is something to hear.
    pub(crate) fn tell(&mut self, body: Body) {
        let starts = matches!(body, Body::Started(_));
        let event = JobEvent { body: Some(body) };
        if starts {
            self.started = Some(event.clone());
        }
        self.waiting.push(event);
        let lost = self.waiting.bound(WAITING_MAX);
        if lost > 0 {
            warn!(lines = lost, "output is lost: whoever started the job takes none");
        }
    }

    /// Tells the caller what there is, and takes note when it goes and comes, until that means something for the job. May be
    /// dropped and called again.
    pub(crate) async fn follow(&mut self) -> Reaction {
        loop {
            if let Some(hold) = self.changes_hold() {
                return Reaction::Hold(hold);
            }
            let Some(caller) = self.caller.clone() else {
                let (deadline, mut hearing) = (self.deadline(), self.hearing.clone());
                tokio::select! {
                    arrival = arrives(&mut self.arrivals) => drop(self.receive(arrival)),
                    () = at(deadline) => return Reaction::GivenUp,
                    () = changed(&mut hearing) => {}
                }
                continue;
            };
            tokio::select! {
                arrival = arrives(&mut self.arrivals) => drop(self.receive(arrival)),
                room = caller.reserve(), if !self.waiting.events.is_empty() => match room {
                    Ok(room) => {
                        if let Some(event) = self.take() {
                            room.send(Ok(event));
                        }
                    }
                    Err(_) => self.leaves(),
                },
                () = caller.closed() => self.leaves(),
            }
        }
    }

    /// Waits for somebody who comes; what it asked for. None when all have been given up.
    pub(crate) async fn comes(&mut self) -> Option<JobSpec> {
        loop {
            let (deadline, mut hearing) = (self.deadline(), self.hearing.clone());
            tokio::select! {
                arrival = arrives(&mut self.arrivals) => return Some(self.receive(arrival)),
                () = at(deadline) => return None,
                () = changed(&mut hearing) => {}
            }
        }
    }

    /// Tells a caller who is there all that there is, and then that the controller stops.
    pub(crate) async fn hand_over(&mut self) {
        let Some(caller) = self.caller.clone() else { return };
        while !self.waiting.events.is_empty() {
            let Ok(room) = caller.reserve().await else { return };
            if let Some(event) = self.take() {
                room.send(Ok(event));
            }
        }
        // Whoever has gone comes back to the next controller.
        let _ = caller.send(Err(Status::unavailable("the controller stops"))).await;
    }

    /// The job is over: waits until its caller has heard that, or is given up.
    pub(crate) async fn bid_farewell(&mut self) {
        while self.follow().await != Reaction::GivenUp {}
    }

    fn take(&mut self) -> Option<JobEvent> {
        let event = self.waiting.pop()?;
        if may_be_repeated(&event) {
            self.taken.push(event.clone());
            self.taken.bound(REPEATED_MAX);
        }
        Some(event)
    }

    /// A caller comes, in the place of any other; what it asked for.
    pub(crate) fn receive(&mut self, arrival: CallerArrival) -> JobSpec {
        let CallerArrival { caller, spec, numbered } = arrival;
        let taken = std::mem::take(&mut self.taken);
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.events.retain(|event| !matches!(event.body, Some(Body::Started(_))));
        let repeated = taken.events.into_iter().filter(|_| numbered);
        for event in self.started.clone().into_iter().chain(repeated).chain(waiting.events) {
            self.waiting.push(event);
        }
        self.caller = Some(caller);
        spec
    }

    fn leaves(&mut self) {
        info!("whoever started the job is away");
        (self.caller, self.away) = (None, Instant::now());
    }

    fn deadline(&mut self) -> Option<Instant> {
        let hearing = *self.hearing.borrow_and_update();
        Some(self.away.max(hearing?) + self.grace)
    }

    /// Whether the ranks are to wait from now on, or no more, if that is news.
    fn changes_hold(&mut self) -> Option<bool> {
        let above = if self.held { HOLD_BELOW } else { HOLD_ABOVE };
        let hold = self.caller.is_some() && self.waiting.bytes > above;
        (std::mem::replace(&mut self.held, hold) != hold).then_some(hold)
    }
}

/// The next caller who comes; none comes any more when nobody knows the job.
async fn arrives(arrivals: &mut mpsc::Receiver<CallerArrival>) -> CallerArrival {
    match arrivals.recv().await {
        Some(arrival) => arrival,
        None => pending().await,
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// The controller hears somebody, or nobody any more.
async fn changed(hearing: &mut watch::Receiver<Option<Instant>>) {
    if hearing.changed().await.is_err() {
        pending().await
    }
}
