//! A rank's session with its agent: how it begins, questions that are no calls, and how it ends. Calls and their memory are
//! in [`agent_requests`]; which arguments make sense is checked before, in [`crate::call`].

mod agent_inbox;
mod agent_requests;
mod call_account;
mod common_receiver;
mod heap;
mod quick_session;
mod segment_session;
mod segment_wait;
mod spin_policy;
mod watched_call;

use crate::Operation;
use crate::environment::JoinMode;
use crate::error::Error;
use agent_inbox::{AgentInbox, Disconnected};
pub(crate) use agent_requests::{AgentRequest, Started};
use cool_proto::VERSION;
use cool_proto::frame::MAX_PLAN;
use cool_proto::local::{self, Attach, CheckPlan, Enlist, Leave, Recover, Revoke, frame::Body};
use cool_proto::socket::{FrameSender, SocketError};
use cool_shm::region::RegionError;
use cool_shm::segment::Segment;
use heap::Heap;
pub(crate) use heap::SharedBlock;
use quick_session::QuickSession;
use segment_session::SegmentSession;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the agent may take for what needs no other node.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A rank's session with its agent.
#[derive(Debug)]
pub(crate) struct RankSession {
    rank: usize,
    /// The process that has attached. One that it forks has the same connection, but none of the threads.
    process: u32,
    group: u64,
    socket: PathBuf,
    /// One frame, or a call with the regions that it needs, at a time.
    call_sender: Mutex<CallSender>,
    /// One question that is no call at a time.
    request_lock: Mutex<()>,
    heap: Heap,
    inbox: AgentInbox,
    /// If the ranks of the group can carry out calls themselves.
    segment_session: Option<SegmentSession>,
    /// If they can by datagrams.
    quick: Option<QuickSession>,
    /// Whether what this rank's node multicasts for its calls gives way to others.
    background: AtomicBool,
    /// The agent knows probes, synchronous sends and how to cancel receives.
    can_probe: bool,
}

#[derive(Debug)]
struct CallSender {
    sender: FrameSender,
    /// By which calls and messages are answered.
    next_call: u64,
    /// Which of the group's calls is the next.
    next_number: u64,
}

impl CallSender {
    /// The number of the rank's next call on the group.
    fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

/// The shortest that counts is one.
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
            call_sender: Mutex::new(CallSender { sender, next_call: 0, next_number: 0 }),
            request_lock: Mutex::default(),
            heap: Heap::default(),
            inbox: AgentInbox::new(receiver),
            segment_session: None,
            quick: None,
            background: AtomicBool::new(false),
            can_probe: false,
        })
    }

    /// Whether later calls are in the background.
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
            JoinMode::Member { group } => {
                Body::Attach(Attach { version: VERSION, group: *group, rank, segment: true, quick: true })
            }
            JoinMode::Enlist { key, size, timeout } => Body::Enlist(Enlist {
                version: VERSION,
                key: key.clone(),
                rank,
                size: *size,
                timeout_ms: milliseconds(*timeout),
                segment: true,
                quick: true,
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

    /// The agent has taken the rank in.
    fn on_attached(&mut self, doing: &'static str, attached: &local::Attached) -> Result<(), Error> {
        self.group = attached.group;
        self.can_probe = attached.can_probe;
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

    /// Meets the other survivors of the group: the session of the new group, and who is gone.
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

    /// Meets the other survivors of the group: the and of what all give, and who is gone.
    pub(crate) fn agree(&self, flags: u64, timeout: Duration) -> Result<(u64, Vec<usize>), Error> {
        let (_, recovered) = self.recover("agree", Some(flags), timeout)?;
        Ok((recovered.flags, ranks(&recovered.gone)))
    }

    /// By a connection of its own: the group may have failed, and this one waits for its calls.
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
        };
        match session.request(doing, Body::Recover(recover))? {
            Body::Recovered(recovered) => Ok((session, recovered)),
            _ => Err(session.disconnected(doing, agent_inbox::unexpected())),
        }
    }

    /// Lets all calls of the group fail, at every rank.
    pub(crate) fn revoke(&self) -> Result<(), Error> {
        let doing = "revoke";
        self.check_process(doing)?;
        self.send(&mut self.call_sender(), doing, Body::Revoke(Revoke {}), None)?;
        // No call that begins after this one succeeds, at this rank at least.
        self.segment_session.iter().for_each(SegmentSession::fail);
        self.quick.iter().for_each(QuickSession::fail);
        Ok(())
    }

    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// In a process that was forked off the rank's, locks may be held and answers awaited by threads that are not there, and
    /// what it sends would come between the rank's frames. So nothing else is touched there.
    fn check_process(&self, operation: &'static str) -> Result<(), Error> {
        if !self.is_forked() {
            return Ok(());
        }
        let reason = format!(
            "this process was forked off process {}, which is the rank; call from there, or fork before the rank attaches",
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

    /// The agent's socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The group's number in the network.
    pub(crate) fn group(&self) -> u64 {
        self.group
    }

    /// What keeps a plan from carrying out calls of an operation; `None` if it can.
    pub(crate) fn check_plan(&self, operation: Operation, plan: &str) -> Result<Option<String>, Error> {
        if plan.len() > MAX_PLAN {
            return Ok(Some(format!(
                "a text of {} bytes is no plan; the longest has {MAX_PLAN}",
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

    /// Sends what is no call and waits for the answer.
    fn request(&self, doing: &'static str, question: Body) -> Result<Body, Error> {
        self.check_process(doing)?;
        let _one = self.request_lock.lock().unwrap_or_else(PoisonError::into_inner);
        // First: another thread may receive meanwhile.
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
            e => self.disconnected(doing, Disconnected::Lost(Arc::new(e))),
        })
    }

    /// The session is over, with the words for it.
    fn disconnected(&self, doing: &'static str, why: Disconnected) -> Error {
        self.inbox.close(why.clone());
        let (rank, socket) = (self.rank, self.socket.clone());
        match why {
            Disconnected::Lost(source) => Error::Agent { rank, doing, socket, source },
            Disconnected::Refused(message) => Error::Refused { rank, doing, socket, message },
        }
    }

    fn call_sender(&self) -> MutexGuard<'_, CallSender> {
        self.call_sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The agent learns that the rank is done, and carries out its open calls without it; of a rank that panics, it
/// learns that it is lost. Whoever receives learns that there is nothing more.
impl Drop for RankSession {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        if !std::thread::panicking() {
            // Whose session is over already has nobody to tell.
            let _ = self.send(&mut self.call_sender(), "leave", Body::Leave(Leave {}), None);
        }
        self.call_sender().sender.close();
        self.inbox.close(Disconnected::Lost(Arc::new(SocketError::Closed)));
    }
}
