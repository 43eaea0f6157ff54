//! Quick calls as the session has them: the rank's socket, what it keeps for its agent to answer with, and how it waits. When that takes
//! long the agent watches, as it does over calls in a segment.

use super::calls::{Course, stats_of};
use super::watch::{LOOK_AFTER_AGENT, Watch};
use super::{Disconnected, Session, SocketError};
use crate::collective::Checked;
use crate::error::Error;
use crate::segment::{Described, Descriptions, Stop};
use cool_collective::{Layout, Place, Rank};
use cool_machine::{Machine, Poll, Time};
use cool_proto::local::{self, Attached};
use cool_proto::segment::{DATAGRAM_BYTES, DATAGRAMS_KEPT, Segment};
use cool_quick::{Begin, DATAGRAM_MAX, Input, Output, QuickCalls, QuickSchedule, SendTo, WINDOW};
use cool_types::{Call, Key};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Schedules that are kept: programs repeat the same few calls.
const SCHEDULES: usize = 64;

/// Times to wait are multiples of this, so that the socket is seldom told another one.
const STEP: Duration = Duration::from_millis(10);

// The segment has room for all that others may lack.
const _: () = assert!(DATAGRAM_MAX <= DATAGRAM_BYTES && WINDOW as u64 <= DATAGRAMS_KEPT);

/// A rank's quick calls: one at a time.
#[derive(Debug)]
pub(super) struct Quick {
    segment: Segment,
    link: Link,
    calls: Mutex<Calls>,
}

/// How other ranks are reached.
#[derive(Debug)]
struct Link {
    socket: UdpSocket,
    tree: Ipv4Addr,
    /// Of ranks' sockets; agents are asked at the next one.
    port: u16,
    /// Of each rank's node.
    addresses: Vec<Ipv4Addr>,
}

#[derive(Debug)]
struct Calls {
    machine: QuickCalls,
    descriptions: Descriptions,
    layout: Layout,
    rank: Rank,
    /// The latest kinds of calls, and how they go if they are quick.
    schedules: VecDeque<(Call, Option<Arc<QuickSchedule>>)>,
    /// Datagrams kept so far.
    kept: u64,
    /// It is known that all can.
    ready: bool,
    /// What the socket waits at most.
    waits: Duration,
    origin: Instant,
    buffer: Vec<u8>,
}

impl Quick {
    /// A rank's quick calls, as its agent has told of them; `None` if that makes no sense.
    pub(super) fn new(
        told: &local::Quick,
        attached: &Attached,
        rank: usize,
        segment: Segment,
        socket: OwnedFd,
    ) -> Option<Quick> {
        let places = attached.places.iter().map(|place| Place { rack: place.rack, node: place.node });
        let layout = Layout::new(&places.collect::<Vec<Place>>()).ok()?;
        let key: [u8; 32] = told.key.as_slice().try_into().ok()?;
        let port = u16::try_from(told.port).ok().filter(|port| *port < u16::MAX)?;
        let addresses: Vec<Ipv4Addr> = told.addresses.iter().copied().map(Ipv4Addr::from_bits).collect();
        let rank = Rank(rank as u32);
        let machine = QuickCalls::new(Key::from(key), (attached.group, told.epoch), rank, layout.clone())?;
        let link = Link { socket: socket.into(), tree: Ipv4Addr::from_bits(told.tree), port, addresses };
        let calls = Calls {
            machine,
            descriptions: Descriptions::default(),
            layout,
            rank,
            schedules: VecDeque::new(),
            kept: 0,
            ready: false,
            waits: Duration::ZERO,
            origin: Instant::now(),
            buffer: vec![0; DATAGRAM_MAX],
        };
        (link.addresses.len() == attached.places.len()).then(|| Quick {
            segment,
            link,
            calls: Mutex::new(calls),
        })
    }

    /// All calls fail from now on: the agent knows why.
    pub(super) fn fail(&self) {
        self.segment.fail();
    }
}

impl Session {
    /// Carries a call out by datagrams, if it is a quick one.
    pub(super) fn carry_out_quick(
        &self,
        checked: &mut Checked<'_, '_>,
        timeout: Duration,
    ) -> Result<Course, Error> {
        let usable = self.quick.as_ref().filter(|quick| quick.segment.is_usable());
        let Some(Quick { segment, link, calls }) = usable else { return Ok(Course::ByAgent(None)) };
        let begun = Instant::now();
        let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
        let call = calls.descriptions.describe(checked);
        let Some(schedule) = calls.schedule(&call.call) else { return Ok(Course::ByAgent(None)) };
        let number = self.wire().next_number();
        let (name, counts) = (checked.name, None);
        let watch =
            Watch { session: self, part: segment.rank(0), name, number, call: &call, counts, timeout };
        let quick = QuickCall { watch, segment, link, begun };
        let carried = quick.meet(&mut calls).and_then(|all| match all {
            true => quick.carry_out(&mut calls, &schedule, checked.input().unwrap_or_default()),
            false => Err(Stop::ByAgent),
        });
        let stats = carried.map(|()| {
            if checked.output().is_some() {
                let output = calls.machine.output();
                checked.buffers().output(0..output.len()).copy_from_slice(output);
            }
            segment.rank(0).leave(number + 1);
            stats_of(format!("quick {}", schedule.plan()), begun.elapsed())
        });
        Course::of(self, (name, number), stats)
    }
}

impl Calls {
    /// How a call goes, if it is a quick one.
    fn schedule(&mut self, call: &Call) -> Option<Arc<QuickSchedule>> {
        if let Some((_, known)) = self.schedules.iter().find(|(known, _)| known == call) {
            return known.clone();
        }
        let schedule = QuickSchedule::of(call, &self.layout, self.rank).map(Arc::new);
        self.schedules.truncate(SCHEDULES - 1);
        self.schedules.push_front((call.clone(), schedule.clone()));
        schedule
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A quick call that is under way.
struct QuickCall<'a> {
    watch: Watch<'a>,
    segment: &'a Segment,
    link: &'a Link,
    begun: Instant,
}

impl QuickCall<'_> {
    /// Waits until it is known whether all ranks can carry out quick calls.
    fn meet(&self, calls: &mut Calls) -> Result<bool, Stop<Error>> {
        let (segment, watch) = (self.segment, &self.watch);
        let is_known = || segment.is_ready() || segment.is_declined();
        let mut watched = None;
        while !calls.ready && !is_known() {
            let left = self.look(&mut watched, || {
                (0..self.link.addresses.len() as u32).filter(|rank| *rank != calls.rank.0).collect()
            })?;
            let awaited =
                || is_known() || segment.has_failed() || watched.is_some_and(|id| watch.is_answered(id));
            segment.rank(0).sleep(awaited, left);
        }
        watched.map_or(Ok(()), |id| watch.through(id))?;
        calls.ready |= segment.is_ready();
        Ok(!segment.is_declined())
    }

    fn carry_out(
        &self,
        calls: &mut Calls,
        schedule: &Arc<QuickSchedule>,
        input: &[u8],
    ) -> Result<(), Stop<Error>> {
        let Watch { number, call: Described { digest, text, dtype, op, .. }, .. } = self.watch;
        self.segment.rank(0).enter(number, *digest, text)?;
        let combining = dtype.zip(*op);
        let begin = Begin { number, digest: *digest, schedule, combining, input };
        let now = calls.now();
        calls.machine.handle(now, Input::Begin(begin));
        let mut watched = None;
        while let Some(next) = self.perform(calls, &mut watched)? {
            let left = self.look(&mut watched, || calls.machine.awaited().map(|rank| rank.0).collect())?;
            self.receive(calls, next.since(calls.now()).min(left))?;
        }
        watched.map_or(Ok(()), |id| self.watch.through(id))
    }

    /// Does what the machine asks for: until when then to wait, or `None` if the call is done.
    fn perform(&self, calls: &mut Calls, watched: &mut Option<u64>) -> Result<Option<Time>, Stop<Error>> {
        loop {
            let now = calls.now();
            match calls.machine.poll(now) {
                Poll::Output(Output::Send(message)) => {
                    self.segment.rank(0).keep(calls.kept, message.name, &message.bytes)?;
                    calls.kept += 1;
                    self.send(message.to, &message.bytes)?;
                }
                Poll::Output(Output::Ask { of, bytes }) => self.send(SendTo::AgentOf(of), &bytes)?,
                Poll::Output(Output::Differs { rank, text, .. }) => {
                    let id = watched.map_or_else(|| self.watch.open(), Ok)?;
                    self.watch.differs(id, rank, text)?;
                }
                Poll::Output(Output::Done) => return Ok(None),
                Poll::Idle(next) => return Ok(Some(next.unwrap_or(now))),
            }
        }
    }

    fn send(&self, to: SendTo, bytes: &[u8]) -> Result<(), Stop<Error>> {
        let Link { socket, tree, port, addresses } = self.link;
        let of = |rank: Rank| addresses[rank.0 as usize];
        let to = match to {
            SendTo::All => SocketAddrV4::new(*tree, *port),
            SendTo::Rank(rank) => SocketAddrV4::new(of(rank), *port),
            SendTo::AgentOf(rank) => SocketAddrV4::new(of(rank), *port + 1),
        };
        match socket.send_to(bytes, to) {
            Ok(_) => Ok(()),
            // The interface is full or down: who lacks it asks for it.
            Err(e) if is_passing(&e) => Ok(()),
            Err(e) => Err(self.broken(e)),
        }
    }

    /// Looks after the call while the rank waits: how long it may wait until the next look.
    fn look(
        &self,
        watched: &mut Option<u64>,
        awaited: impl FnOnce() -> Vec<u32>,
    ) -> Result<Duration, Stop<Error>> {
        let (watch, waited) = (&self.watch, self.begun.elapsed());
        let patience = watch.patience();
        let id = match *watched {
            None if self.segment.has_failed() => return Err(Stop::ByAgent),
            None if waited < patience => return Ok(patience - waited),
            None => *watched.insert(watch.open()?),
            Some(id) => id,
        };
        if watch.is_answered(id) || self.segment.has_failed() {
            watch.ended(id)?;
        }
        let left = watch.timeout.saturating_sub(waited);
        if left.is_zero() {
            watch.overdue(id, awaited())?;
        }
        watch.check_agent()?;
        Ok(left.min(LOOK_AFTER_AGENT))
    }

    /// Waits for a datagram.
    fn receive(&self, calls: &mut Calls, timeout: Duration) -> Result<(), Stop<Error>> {
        let socket = &self.link.socket;
        let steps = timeout.as_millis().div_ceil(STEP.as_millis()).max(1);
        // The system takes a time of zero for none.
        let waits = STEP * steps as u32;
        if calls.waits != waits {
            socket.set_read_timeout(Some(waits)).map_err(|e| self.broken(e))?;
            calls.waits = waits;
        }
        match socket.recv(&mut calls.buffer) {
            Ok(len) => {
                let now = calls.now();
                calls.machine.handle(now, Input::Datagram(&calls.buffer[..len]));
                Ok(())
            }
            Err(e) if is_passing(&e) => Ok(()),
            Err(e) => Err(self.broken(e)),
        }
    }

    /// The rank's socket is of no use.
    fn broken(&self, error: std::io::Error) -> Stop<Error> {
        let why = Disconnected::Gone(Arc::new(SocketError::System(error)));
        Stop::Failed(self.watch.session.disconnected(self.watch.name, why))
    }
}

/// What datagrams meet that are lost.
fn is_passing(error: &std::io::Error) -> bool {
    use ErrorKind::{
        ConnectionRefused, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable, TimedOut,
        WouldBlock,
    };
    // What a full interface says has no kind of its own.
    let is_full = error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error());
    let kinds = [
        WouldBlock,
        TimedOut,
        Interrupted,
        ConnectionRefused,
        HostUnreachable,
        NetworkUnreachable,
        NetworkDown,
    ];
    is_full || kinds.contains(&error.kind())
}
