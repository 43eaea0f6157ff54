//! Receives the agent's replies.
//!
//! The first thread that waits receives for all others. If no thread waits, the thread of
//! [`super::common_receiver`] receives, once a caller needs to detect completions without waiting.

use super::shared_memory_allocator::{CallMemory, SharedBlock};
use cool_proto::RUNNING_INTERVAL;
use cool_proto::frame::FrameError;
use cool_proto::local::{Done, frame::Body};
use cool_proto::socket::{LocalFrameReceiver, SocketError};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Time without any frame after which an agent that works on a call counts as lost.
const SILENCE: Duration = RUNNING_INTERVAL.saturating_mul(6);

/// As [`SILENCE`], for an agent in this process, which cannot be stopped or killed alone: it is
/// silent only if other work occupies the CPUs.
const SILENCE_WITHIN: Duration = RUNNING_INTERVAL.saturating_mul(60);

/// Time that one check counts as silence at most. A process may be stopped for long, for example by
/// SIGSTOP, and the time for which it did not look is no evidence.
const SILENCE_PER_CHECK: Duration = RUNNING_INTERVAL.saturating_mul(2);

/// Maximum duration of [`AgentInbox::poll_connection`].
const GLANCE: Duration = Duration::from_millis(1);

/// Reasons why no more frames can be received.
#[derive(Clone, Debug)]
pub(super) enum SessionFailure {
    /// The connection is unusable.
    Lost(Arc<SocketError>),
    /// The agent closed the connection with this reason.
    Refused(String),
}

/// A call that the agent executes.
#[derive(Debug, Default)]
struct InFlightCall {
    waker: Option<Waker>,
    /// Memory of a call whose request was dropped.
    abandoned: Option<CallMemory>,
    /// Further memory that the agent reads, such as counts, until the call is complete.
    retained: Option<SharedBlock>,
}

/// The reply to a request other than a call, of which there is at most one at a time.
#[derive(Debug)]
enum ReplySlot {
    /// No request was sent, so a reply is unexpected.
    Empty,
    Awaited,
    Received(Body),
}

#[derive(Debug)]
struct InboxState {
    /// Absent while a thread receives.
    receiver: Option<LocalFrameReceiver>,
    open: BTreeMap<u64, InFlightCall>,
    /// Completed calls that were not waited for yet.
    done: BTreeMap<u64, Done>,
    answer: ReplySlot,
    disconnected: Option<SessionFailure>,
    /// Duration for which consecutive short waits have received nothing.
    silent_in_waits: Duration,
    /// Number of frames received, and their number when the common thread checked last.
    received: u64,
    received_before: u64,
    /// Duration for which the common thread has received nothing while no other thread received.
    silent_in_thread: Duration,
    /// Whether the common thread receives for this session, too.
    in_thread: bool,
    /// Whether data may be available that epoll will not report to the common thread again. The
    /// next thread that receives must then drain the connection.
    may_have_more: bool,
}

/// The receiving side of a session. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct AgentInbox {
    shared: Arc<(Mutex<InboxState>, Condvar)>,
    stream: Arc<UnixStream>,
    /// Time without any frame after which the agent counts as lost while it works on a call.
    silence: Duration,
}

/// An inbox that may have been dropped.
#[derive(Clone, Debug)]
pub(super) struct WeakAgentInbox {
    shared: Weak<(Mutex<InboxState>, Condvar)>,
    stream: Weak<UnixStream>,
    silence: Duration,
}

impl WeakAgentInbox {
    pub(super) fn get(&self) -> Option<AgentInbox> {
        Some(AgentInbox {
            shared: self.shared.upgrade()?,
            stream: self.stream.upgrade()?,
            silence: self.silence,
        })
    }
}

impl AgentInbox {
    pub(super) fn new(receiver: LocalFrameReceiver) -> AgentInbox {
        let silence = if receiver.agent_is_in_this_process() { SILENCE_WITHIN } else { SILENCE };
        let stream = receiver.stream();
        let state = InboxState {
            receiver: Some(receiver),
            open: BTreeMap::new(),
            done: BTreeMap::new(),
            answer: ReplySlot::Empty,
            disconnected: None,
            silent_in_waits: Duration::ZERO,
            received: 0,
            received_before: 0,
            silent_in_thread: Duration::ZERO,
            in_thread: false,
            may_have_more: false,
        };
        AgentInbox { shared: Arc::new((Mutex::new(state), Condvar::new())), stream, silence }
    }

    /// Returns the descriptor that accompanied the last reply.
    pub(super) fn descriptor(&self) -> Option<OwnedFd> {
        self.lock().receiver.as_mut()?.descriptor()
    }

    /// Registers a call that is about to be sent.
    pub(super) fn expect_call(&self, call: u64) {
        self.lock().open.insert(call, InFlightCall::default());
        self.shared.1.notify_all();
    }

    /// Removes a call that was not sent.
    pub(super) fn forget(&self, call: u64) {
        self.lock().open.remove(&call);
    }

    /// Returns the number of calls that the agent is executing.
    pub(super) fn open(&self) -> usize {
        self.lock().open.len()
    }

    /// Waits until the agent has completed a call.
    pub(super) fn wait(&self, call: u64) -> Result<Done, SessionFailure> {
        self.wait_for(self.silence, |state| state.done.remove(&call))
    }

    /// Waits until a call is complete or can no longer complete, but at most for `at_most`. Returns
    /// whether one of both is the case.
    pub(super) fn wait_at_most(&self, call: u64, at_most: Duration) -> bool {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            if state.is_over(call) {
                return true;
            }
            let before = begun.elapsed();
            state = self.step_at_most(state, at_most.saturating_sub(before));
            if before >= at_most {
                return state.is_over(call);
            }
        }
    }

    /// Waits until the agent executes fewer than `limit` calls, or no call can complete any more,
    /// but at most for `at_most`. Returns whether one of both is the case.
    pub(super) fn wait_for_room(&self, limit: usize, at_most: Duration) -> bool {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            if state.disconnected.is_some() || state.open.len() < limit {
                return true;
            }
            let left = at_most.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            state = self.step_at_most(state, left);
        }
    }

    /// Registers a request that is about to be sent, so that the receiving thread keeps the reply.
    pub(super) fn expect_reply(&self) {
        self.lock().answer = ReplySlot::Awaited;
    }

    /// Waits for the reply to the registered request.
    pub(super) fn reply(&self, timeout: Duration) -> Result<Body, SessionFailure> {
        self.wait_for(timeout, |state| match std::mem::replace(&mut state.answer, ReplySlot::Empty) {
            ReplySlot::Received(body) => Some(body),
            awaited => {
                state.answer = awaited;
                None
            }
        })
    }

    /// Waits for the end of a connection that the agent has closed, and returns the reason.
    pub(super) fn closed(&self, timeout: Duration) -> SessionFailure {
        self.wait_for(timeout, |_| None::<Infallible>).err().unwrap_or_else(unexpected)
    }

    /// Returns whether a call is complete or can no longer complete. If not, wakes `waker` as soon
    /// as one of both is the case.
    pub(super) fn poll(&self, call: u64, waker: &Waker) -> std::io::Result<bool> {
        let mut state = self.lock();
        if state.is_over(call) {
            return Ok(true);
        }
        if let Some(open) = state.open.get_mut(&call) {
            open.waker = Some(waker.clone());
        }
        if !state.in_thread {
            super::common_receiver::register(self.weak(), &self.stream)?;
            state.in_thread = true;
            // Frames may have arrived together with those that other threads received.
            state.may_have_more = true;
            state = self.drain_rest(state);
        }
        Ok(state.is_over(call))
    }

    fn weak(&self) -> WeakAgentInbox {
        WeakAgentInbox {
            shared: Arc::downgrade(&self.shared),
            stream: Arc::downgrade(&self.stream),
            silence: self.silence,
        }
    }

    /// Keeps memory that the agent uses until it has completed a call.
    pub(super) fn retain(&self, call: u64, memory: SharedBlock) {
        if let Some(open) = self.lock().open.get_mut(&call) {
            open.retained = Some(memory);
        }
    }

    /// Receives all available frames, or lets the currently receiving thread do so.
    pub(super) fn drain(&self) {
        let mut state = self.lock();
        state.may_have_more = true;
        drop(self.drain_rest(state));
    }

    /// Checks for silence after the common thread has watched for `passed`: an agent that executes
    /// calls and sends nothing is lost. First receives what has arrived, because a process that was
    /// stopped has not received the agent's frames yet.
    pub(super) fn check_silence(&self, passed: Duration) {
        let mut state = self.lock();
        state.may_have_more = true;
        state = self.drain_rest(state);
        if state.receiver.is_none() || state.open.is_empty() || state.received != state.received_before {
            state.received_before = state.received;
            state.silent_in_thread = Duration::ZERO;
            return;
        }
        state.silent_in_thread += passed.min(SILENCE_PER_CHECK);
        if state.silent_in_thread >= self.silence {
            let silent_in_waits = SocketError::TimedOut(state.silent_in_thread);
            state.end(SessionFailure::Lost(Arc::new(silent_in_waits)));
            self.shared.1.notify_all();
        }
    }

    /// Receives available frames if no other thread does. Returns the reason if no more frames can
    /// be received.
    pub(super) fn poll_connection(&self) -> Option<SessionFailure> {
        let state = self.lock();
        if state.receiver.is_none() {
            return state.disconnected.clone();
        }
        self.step_at_most(state, GLANCE).disconnected.clone()
    }

    /// Discards the result of a call. Its memory is freed when the call completes.
    pub(super) fn abandon(&self, call: u64, memory: CallMemory) {
        let mut state = self.lock();
        if state.done.remove(&call).is_none()
            && let Some(open) = state.open.get_mut(&call)
        {
            open.waker = None;
            open.abandoned = Some(memory);
        }
    }

    /// Closes the inbox and wakes all waiting threads with the reason.
    pub(super) fn close(&self, why: SessionFailure) {
        self.lock().end(why);
        self.shared.1.notify_all();
    }

    /// Returns the reason if no more frames can be received.
    pub(super) fn disconnected(&self) -> Option<SessionFailure> {
        self.lock().disconnected.clone()
    }

    fn wait_for<R>(
        &self,
        timeout: Duration,
        found: impl Fn(&mut InboxState) -> Option<R>,
    ) -> Result<R, SessionFailure> {
        let mut state = self.lock();
        loop {
            if let Some(result) = found(&mut state) {
                return Ok(result);
            }
            if let Some(why) = &state.disconnected {
                return Err(why.clone());
            }
            state = self.step(state, timeout);
        }
    }

    /// Receives a frame, or waits until another thread has received one.
    fn step<'a>(
        &'a self,
        mut state: MutexGuard<'a, InboxState>,
        timeout: Duration,
    ) -> MutexGuard<'a, InboxState> {
        match state.receiver.take() {
            None => self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(receiver) => {
                let state = self.receive(state, receiver, timeout, |_| true);
                self.drain_rest(state)
            }
        }
    }

    /// As `step`, for at most `at_most`. The agent counts as lost only when consecutive steps
    /// together received nothing for too long.
    fn step_at_most<'a>(
        &'a self,
        mut state: MutexGuard<'a, InboxState>,
        at_most: Duration,
    ) -> MutexGuard<'a, InboxState> {
        match state.receiver.take() {
            None => self.shared.1.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0,
            Some(receiver) => {
                let state = self.receive(state, receiver, at_most, |state| {
                    state.silent_in_waits = state.silent_in_waits.saturating_add(at_most);
                    state.silent_in_waits >= self.silence
                });
                self.drain_rest(state)
            }
        }
    }

    /// Receives all available frames, if epoll will not report them to the common thread.
    fn drain_rest<'a>(&'a self, mut state: MutexGuard<'a, InboxState>) -> MutexGuard<'a, InboxState> {
        while state.may_have_more && state.disconnected.is_none() {
            let Some(receiver) = state.receiver.take() else { break };
            state.may_have_more = false;
            let received = state.received;
            state = self.receive(state, receiver, Duration::ZERO, |_| false);
            // Repeat until nothing is available.
            state.may_have_more |= state.received != received;
        }
        state
    }

    /// Receives a frame. If none arrives in time, `is_lost` decides whether the agent counts as
    /// lost.
    fn receive<'a>(
        &'a self,
        state: MutexGuard<'a, InboxState>,
        mut receiver: LocalFrameReceiver,
        timeout: Duration,
        is_lost: impl FnOnce(&mut InboxState) -> bool,
    ) -> MutexGuard<'a, InboxState> {
        drop(state);
        let received = receiver.receive(timeout);
        let mut state = self.lock();
        state.receiver = Some(receiver);
        match received {
            Ok(body) => {
                state.silent_in_waits = Duration::ZERO;
                state.received += 1;
                // More frames may have arrived with it, which epoll does not report to the common
                // thread.
                state.may_have_more |= state.in_thread;
                state.take(body);
            }
            Err(SocketError::TimedOut(_)) if !is_lost(&mut state) => {}
            Err(e) => state.end(SessionFailure::Lost(Arc::new(e))),
        }
        self.shared.1.notify_all();
        state
    }

    /// Returns the state, even after a panic, because every change to it is complete when the lock
    /// is released.
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InboxState {
    /// Returns whether a call is complete or can no longer complete.
    fn is_over(&self, call: u64) -> bool {
        self.disconnected.is_some() || self.done.contains_key(&call)
    }

    fn take(&mut self, body: Body) {
        match body {
            Body::Running(_) => {}
            Body::Done(done) => match self.open.remove(&done.id) {
                // Dropping the entry frees its memory.
                Some(InFlightCall { abandoned: Some(_), .. }) => {}
                Some(InFlightCall { waker, abandoned: None, .. }) => {
                    self.done.insert(done.id, done);
                    waker.into_iter().for_each(Waker::wake);
                }
                None => self.end(unexpected()),
            },
            Body::Refused(refused) => self.end(SessionFailure::Refused(refused.message)),
            body if matches!(self.answer, ReplySlot::Awaited) => self.answer = ReplySlot::Received(body),
            _ => self.end(unexpected()),
        }
    }

    fn end(&mut self, why: SessionFailure) {
        self.disconnected.get_or_insert(why);
        self.open.values_mut().filter_map(|open| open.waker.take()).for_each(Waker::wake);
    }
}

/// An unexpected frame ends the session, because later frames could be mistaken for other replies.
pub(super) fn unexpected() -> SessionFailure {
    SessionFailure::Lost(Arc::new(SocketError::Frame(FrameError::Unknown)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::frame::{MAX_TO_RANK, encode};
    use cool_proto::local::{PlanChecked, Running};
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    /// Returns an inbox and the agent's end of its connection.
    fn inbox() -> (AgentInbox, UnixStream) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (_sender, receiver) = cool_proto::socket::open(&path, SILENCE).unwrap();
        (AgentInbox::new(receiver), listener.accept().unwrap().0)
    }

    fn send(agent: &mut UnixStream, body: Body) {
        agent.write_all(&encode(body, MAX_TO_RANK).unwrap()).unwrap();
    }

    #[test]
    fn a_rank_that_was_stopped_does_not_lose_its_agent() {
        let (inbox, mut agent) = inbox();
        inbox.expect_call(7);
        // The agent's frames arrive while this process does not look for a day.
        let day = Duration::from_secs(86_400);
        for _ in 0..50 {
            send(&mut agent, Body::Running(Running {}));
            inbox.check_silence(day);
            assert!(inbox.disconnected().is_none());
        }
        // Nothing arrives, but one look after a day proves nothing, and many looks do.
        inbox.check_silence(day);
        assert!(inbox.disconnected().is_none());
        let looks = SILENCE_WITHIN.as_secs() / SILENCE_PER_CHECK.as_secs();
        (0..looks).for_each(|_| inbox.check_silence(day));
        assert!(matches!(inbox.disconnected(), Some(SessionFailure::Lost(_))));
    }

    #[test]
    fn a_call_may_be_waited_for_without_a_limit() {
        let (inbox, mut agent) = inbox();
        inbox.expect_call(7);
        send(&mut agent, Body::Done(Done { id: 7, ..Done::default() }));
        assert!(inbox.wait_at_most(7, Duration::MAX));
    }

    #[test]
    fn any_thread_keeps_a_reply_but_an_unexpected_one_is_fatal() {
        let (inbox, mut agent) = inbox();
        let mut say = |body| send(&mut agent, body);
        assert_eq!(inbox.silence, SILENCE_WITHIN, "the listener is in this process");
        inbox.expect_call(7);
        inbox.expect_reply();
        say(Body::PlanChecked(PlanChecked { wrong: "no".into() }));
        say(Body::Done(Done { id: 7, ..Done::default() }));
        // Another thread may wait for a call between the request of this thread and its wait.
        assert_eq!(inbox.wait(7).unwrap().id, 7);
        assert!(matches!(inbox.reply(SILENCE), Ok(Body::PlanChecked(checked)) if checked.wrong == "no"));
        say(Body::PlanChecked(PlanChecked::default()));
        inbox.expect_call(8);
        assert!(matches!(inbox.wait(8), Err(SessionFailure::Lost(_))));
    }
}
