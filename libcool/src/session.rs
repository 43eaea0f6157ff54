//! A rank's session with its agent: its start, requests other than calls, and its end.
//!
//! [`agent_requests`] sends calls and manages their memory. [`crate::call`] has checked the
//! arguments before.

mod agent_inbox;
mod agent_requests;
mod begun_call;
mod call_account;
mod common_receiver;
mod quick_session;
mod segment_session;
mod segment_wait;
mod shared_memory_allocator;
mod spin_policy;
mod watched_call;

use crate::Operation;
use crate::environment::JoinMode;
use crate::error::Error;
use agent_inbox::{AgentInbox, SessionFailure};
pub(crate) use agent_requests::{AgentRequest, StartedCall};
use cool_proto::VERSION;
use cool_proto::frame::MAX_PLAN;
use cool_proto::local::{self, Attach, CheckPlan, Enlist, Leave, Recover, Revoke, frame::Body};
use cool_proto::socket::{LocalFrameSender, SocketError};
use cool_shm::region::RegionError;
use cool_shm::segment::Segment;
use quick_session::QuickSession;
use segment_session::SegmentSession;
pub(crate) use shared_memory_allocator::SharedBlock;
use shared_memory_allocator::SharedMemoryAllocator;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum time for a reply that requires no other node.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A rank's session with its agent.
#[derive(Debug)]
pub(crate) struct RankSession {
    rank: usize,
    /// The process that attached. A process that it forks shares the connection but has none of the
    /// threads.
    process: u32,
    group: u64,
    socket: PathBuf,
    /// Sends one frame at a time, or a call together with the regions it needs.
    call_sender: Mutex<CallSender>,
    /// Serializes requests that are not calls.
    request_lock: Mutex<()>,
    allocator: SharedMemoryAllocator,
    inbox: AgentInbox,
    /// Present if the ranks of the group can execute calls in a segment.
    segment_session: Option<SegmentSession>,
    /// Present if the ranks of the group can execute quick calls.
    quick: Option<QuickSession>,
    /// Whether this rank's calls are in the background: its node's multicasts for them yield to
    /// other traffic.
    background: AtomicBool,
    /// Whether the agent supports probes, synchronous sends and the cancellation of receives.
    can_probe: bool,
    /// Number of calls that the agent accepts in addition to [`OPEN_CALLS`], for calls in which the
    /// program waits.
    ///
    /// [`OPEN_CALLS`]: cool_types::limits::OPEN_CALLS
    waiting_calls: usize,
}

#[derive(Debug)]
struct CallSender {
    sender: LocalFrameSender,
    /// Identifies the next call or message to the agent.
    next_request_id: u64,
    /// Number of the next collective call, equal at all ranks. It is counted only if ranks can
    /// execute calls themselves.
    next_call_number: u64,
}

impl CallSender {
    /// Returns the number of the rank's next call on the group.
    fn next_call_number(&mut self) -> u64 {
        self.next_call_number += 1;
        self.next_call_number - 1
    }
}

/// Returns a duration in milliseconds, at least 1.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn ranks(ranks: &[u32]) -> Vec<usize> {
    ranks.iter().map(|rank| *rank as usize).collect()
}

impl RankSession {
    /// Connects to the agent.
    fn connect(socket: &Path, rank: usize, doing: &'static str) -> Result<RankSession, Error> {
        let agent =
            |source| Error::Agent { rank, doing, socket: socket.to_path_buf(), source: Arc::new(source) };
        let (sender, receiver) = cool_proto::socket::open(socket, REPLY_TIMEOUT).map_err(agent)?;
        Ok(RankSession {
            rank,
            process: std::process::id(),
            group: 0,
            socket: socket.to_path_buf(),
            call_sender: Mutex::new(CallSender { sender, next_request_id: 0, next_call_number: 0 }),
            request_lock: Mutex::default(),
            allocator: SharedMemoryAllocator::default(),
            inbox: AgentInbox::new(receiver),
            segment_session: None,
            quick: None,
            background: AtomicBool::new(false),
            can_probe: false,
            waiting_calls: 0,
        })
    }

    /// Sets whether later calls run in the background.
    pub(crate) fn set_background(&self, background: bool) {
        self.background.store(background, Ordering::Relaxed);
    }

    /// Connects to the agent and attaches as a rank of a group.
    pub(crate) fn open(
        socket: &Path,
        rank: u32,
        mode: &JoinMode,
        doing: &'static str,
    ) -> Result<(RankSession, local::Attached), Error> {
        let mut session = RankSession::connect(socket, rank as usize, doing)?;
        let first = match mode {
            JoinMode::Member { group } => Body::Attach(Attach {
                version: VERSION,
                group: *group,
                rank,
                segment: true,
                quick: true,
                long_quick: true,
            }),
            JoinMode::Enlist { key, size, timeout } => Body::Enlist(Enlist {
                version: VERSION,
                key: key.clone(),
                rank,
                size: *size,
                timeout_ms: milliseconds(*timeout),
                segment: true,
                quick: true,
                long_quick: true,
            }),
        };
        match session.request(doing, first)? {
            Body::Attached(attached) if attached.places.len() > rank as usize => {
                session.on_attached(doing, &attached)?;
                Ok((session, attached))
            }
            _ => Err(session.disconnected(doing, agent_inbox::unexpected())),
        }
    }

    /// Stores the agent's reply to a rank that attaches, and opens the segment and the socket that
    /// accompany the reply.
    fn on_attached(&mut self, doing: &'static str, attached: &local::Attached) -> Result<(), Error> {
        self.group = attached.group;
        self.can_probe = attached.can_probe;
        self.waiting_calls = attached.waiting_calls as usize;
        if attached.segment > 0 {
            let unexpected = || self.disconnected(doing, agent_inbox::unexpected());
            let size = attached.places.len();
            let file = self.inbox.descriptor().ok_or_else(unexpected)?;
            match &attached.quick {
                None => {
                    let segment = Segment::open(file, attached.segment, size);
                    let segment = segment.map_err(|e| self.memory_error(doing, e))?;
                    self.segment_session = Some(SegmentSession::new(segment, self.rank, size));
                }
                Some(told) => {
                    let ranks = quick_session::ranks_of_node(attached, self.rank);
                    let segment = Segment::open_for_node(file, attached.segment, ranks.len());
                    let segment = segment.map_err(|e| self.memory_error(doing, e))?;
                    let leads = ranks.first().is_some_and(|leader| *leader as usize == self.rank);
                    let socket = leads.then(|| self.inbox.descriptor().ok_or_else(unexpected)).transpose()?;
                    let quick = QuickSession::new(told, attached, (self.rank, ranks), segment, socket);
                    self.quick = Some(quick.ok_or_else(unexpected)?);
                }
            }
        }
        Ok(())
    }

    /// Joins the other survivors of the group. Returns the session of the new group and the lost
    /// ranks.
    pub(crate) fn shrink(
        &self,
        timeout: Duration,
    ) -> Result<(RankSession, local::Attached, Vec<usize>), Error> {
        let doing = "shrink";
        let (mut session, recovered) = self.recover(doing, None, timeout)?;
        session.inbox.expect_reply();
        let answer = session.inbox.reply(REPLY_TIMEOUT).map_err(|why| session.disconnected(doing, why))?;
        let gone = ranks(&recovered.gone);
        session.rank -= gone.iter().filter(|rank| **rank < self.rank).count();
        match answer {
            Body::Attached(attached) if attached.places.len() > session.rank => {
                session.on_attached(doing, &attached)?;
                Ok((session, attached, gone))
            }
            _ => Err(session.disconnected(doing, agent_inbox::unexpected())),
        }
    }

    /// Joins the other survivors of the group. Returns the bitwise AND of their flags and the lost
    /// ranks.
    pub(crate) fn agree(&self, flags: u64, timeout: Duration) -> Result<(u64, Vec<usize>), Error> {
        let (_, recovered) = self.recover("agree", Some(flags), timeout)?;
        Ok((recovered.flags, ranks(&recovered.gone)))
    }

    /// Joins the other survivors of the group, to agree on the flags `agree` or, if they are
    /// `None`, to shrink the group. Returns the session that was used, and the reply. Uses a
    /// separate connection, because the group may have failed while this connection still awaits
    /// replies to calls.
    fn recover(
        &self,
        doing: &'static str,
        agree: Option<u64>,
        timeout: Duration,
    ) -> Result<(RankSession, local::Recovered), Error> {
        self.check_process(doing)?;
        let session = RankSession::connect(&self.socket, self.rank, doing)?;
        let recover = Recover {
            version: VERSION,
            group: self.group,
            rank: self.rank as u32,
            timeout_ms: milliseconds(timeout),
            agree,
            segment: true,
            quick: true,
            long_quick: true,
        };
        match session.request(doing, Body::Recover(recover))? {
            Body::Recovered(recovered) => Ok((session, recovered)),
            _ => Err(session.disconnected(doing, agent_inbox::unexpected())),
        }
    }

    /// Makes all calls of the group fail, at every rank.
    pub(crate) fn revoke(&self) -> Result<(), Error> {
        let doing = "revoke";
        self.check_process(doing)?;
        self.send(&mut self.call_sender(), doing, Body::Revoke(Revoke::default()), None)?;
        // No call that begins after this returns may succeed, at least at this rank.
        self.fail_segment();
        Ok(())
    }

    /// Makes all later calls of the ranks on this node fail. The agent reports the reason.
    fn fail_segment(&self) {
        self.segment_session.iter().for_each(SegmentSession::fail);
        self.quick.iter().for_each(QuickSession::fail);
    }

    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Rejects calls in a forked process.
    ///
    /// In such a process, the threads that hold locks or await replies do not exist, and its frames
    /// would mix with those of the rank. Therefore every method must call this before it uses
    /// anything else of the session.
    fn check_process(&self, operation: &'static str) -> Result<(), Error> {
        if !self.is_forked() {
            return Ok(());
        }
        let reason = format!(
            "this process was forked from process {}, which is the rank; call from there, or fork before the rank attaches",
            self.process
        );
        Err(Error::Argument { rank: self.rank, operation, reason })
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn can_probe(&self) -> bool {
        self.can_probe
    }

    /// Returns the agent's socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the group's number in the network.
    pub(crate) fn group(&self) -> u64 {
        self.group
    }

    /// Returns why a plan cannot execute calls of an operation, or `None` if it can.
    pub(crate) fn check_plan(&self, operation: Operation, plan: &str) -> Result<Option<String>, Error> {
        if plan.len() > MAX_PLAN {
            return Ok(Some(format!(
                "a text of {} bytes is no plan; plans have at most {MAX_PLAN} bytes",
                plan.len()
            )));
        }
        let doing = "set_plan";
        let check = CheckPlan { operation: local::Operation::from(operation).into(), plan: plan.to_owned() };
        match self.request(doing, Body::CheckPlan(check))? {
            Body::PlanChecked(checked) => Ok((!checked.wrong.is_empty()).then_some(checked.wrong)),
            _ => Err(self.disconnected(doing, agent_inbox::unexpected())),
        }
    }

    fn memory_error(&self, operation: &'static str, source: RegionError) -> Error {
        Error::Memory { rank: self.rank, operation, source }
    }

    /// Sends a request other than a call and returns the reply.
    fn request(&self, doing: &'static str, question: Body) -> Result<Body, Error> {
        self.check_process(doing)?;
        let _one = self.request_lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Must precede sending, because another thread may receive the reply.
        self.inbox.expect_reply();
        self.send(&mut self.call_sender(), doing, question, None)?;
        self.inbox.reply(REPLY_TIMEOUT).map_err(|why| self.disconnected(doing, why))
    }

    fn send(
        &self,
        call_sender: &mut CallSender,
        doing: &'static str,
        body: Body,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        if let Some(why) = self.inbox.disconnected() {
            return Err(self.disconnected(doing, why));
        }
        call_sender.sender.send_and_receive(body, descriptor, || self.inbox.drain()).map_err(|e| match e {
            SocketError::Closed => self.disconnected(doing, self.inbox.closed(REPLY_TIMEOUT)),
            e => self.disconnected(doing, SessionFailure::Lost(Arc::new(e))),
        })
    }

    /// Ends the session and returns the error that describes why.
    fn disconnected(&self, doing: &'static str, why: SessionFailure) -> Error {
        self.inbox.close(why.clone());
        let (rank, socket) = (self.rank, self.socket.clone());
        match why {
            SessionFailure::Lost(source) => Error::Agent { rank, doing, socket, source },
            SessionFailure::Refused(message) => Error::Refused { rank, doing, socket, message },
        }
    }

    fn call_sender(&self) -> MutexGuard<'_, CallSender> {
        self.call_sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notifies the agent that the rank has finished, so that it executes the rank's open calls without
/// it. A rank that panics counts as lost instead. Threads that receive are woken.
impl Drop for RankSession {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        if !std::thread::panicking() {
            // The agent is unreachable if the session has ended already.
            let _ = self.send(&mut self.call_sender(), "leave", Body::Leave(Leave {}), None);
        }
        self.call_sender().sender.close();
        self.inbox.close(SessionFailure::Lost(Arc::new(SocketError::Closed)));
    }
}
