//! What the agent answers, and who waits for it. Whoever waits first receives for all; when nobody does, the thread of
//! [`super::common_receiver`] does once somebody wants to know without waiting.

use super::heap::{CallMemory, SharedBlock};
use cool_proto::RUNNING_INTERVAL;
use cool_proto::frame::FrameError;
use cool_proto::local::{Done, frame::Body};
use cool_proto::socket::{FrameReceiver, SocketError};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

/// An agent from which nothing is received for this long while it works on a call is gone.
const SILENCE: Duration = RUNNING_INTERVAL.saturating_mul(6);

/// The same of one in this process, which nobody can stop or kill alone: it is silent_in_waits because other work takes the processors.
const SILENCE_WITHIN: Duration = RUNNING_INTERVAL.saturating_mul(60);

/// How long a poll_connection takes at most.
const GLANCE: Duration = Duration::from_millis(1);

/// Why nothing comes any more.
#[derive(Clone, Debug)]
pub(super) enum Disconnected {
    /// The connection is of no use.
    Lost(Arc<SocketError>),
    /// The agent said why it hung up.
    Refused(String),
}

/// A call that the agent works on.
#[derive(Debug, Default)]
struct OpenCall {
    waker: Option<Waker>,
    /// Its memory, once nobody waits for it any more.
    abandoned: Option<CallMemory>,
    /// What the agent uses beside it.
    retained: Option<SharedBlock>,
}

/// The answer to what is no call, of which there is one at a time.
#[derive(Debug)]
enum ReplySlot {
    /// Nothing was asked: one that comes is unexpected.
    Empty,
    Awaited,
    Received(Body),
}

#[derive(Debug)]
struct InboxState {
    /// Absent while somebody receives.
    receiver: Option<FrameReceiver>,
    open: BTreeMap<u64, OpenCall>,
    /// Calls that are done and have not been asked for.
    done: BTreeMap<u64, Done>,
    answer: ReplySlot,
    disconnected: Option<Disconnected>,
    /// How long short waits received nothing, one after the other.
    silent_in_waits: Duration,
    /// How many frames were received, and how many of them when the common thread looked last.
    received: u64,
    received_before: u64,
    /// For how long that has received nothing while nobody else received.
    silent_in_thread: Duration,
    /// The common thread receives too.
    in_thread: bool,
    /// Something may be there of which the common thread will not be told: who receives takes in all.
    may_have_more: bool,
}

/// The receiving side of a session. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct AgentInbox {
    shared: Arc<(Mutex<InboxState>, Condvar)>,
    stream: Arc<UnixStream>,
    /// How long the agent may be silent_in_waits while it works on a call.
    silence: Duration,
}

/// An inbox that may be gone.
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
    pub(super) fn new(receiver: FrameReceiver) -> AgentInbox {
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

    /// The descriptor that came with the last answer.
    pub(super) fn descriptor(&self) -> Option<OwnedFd> {
        self.lock().receiver.as_mut()?.descriptor()
    }

    /// A call is about to be sent.
    pub(super) fn expect_call(&self, call: u64) {
        self.lock().open.insert(call, OpenCall::default());
        self.shared.1.notify_all();
    }

    /// A call was not sent after all.
    pub(super) fn forget(&self, call: u64) {
        self.lock().open.remove(&call);
    }

    /// Calls that the agent works on.
    pub(super) fn open(&self) -> usize {
        self.lock().open.len()
    }

    /// Waits until the agent has done a call.
    pub(super) fn wait(&self, call: u64) -> Result<Done, Disconnected> {
        self.wait_for(self.silence, |state| state.done.remove(&call))
    }

    /// Waits until the agent has done a call, or it is known that it never will; at most this long. Whether it is so.
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

    /// What is no call is about to be sent: whoever receives keeps the answer.
    pub(super) fn expect_reply(&self) {
        self.lock().answer = ReplySlot::Awaited;
    }

    /// Waits for the answer that was expected.
    pub(super) fn reply(&self, timeout: Duration) -> Result<Body, Disconnected> {
        self.wait_for(timeout, |state| match std::mem::replace(&mut state.answer, ReplySlot::Empty) {
            ReplySlot::Received(body) => Some(body),
            awaited => {
                state.answer = awaited;
                None
            }
        })
    }

    /// Waits for the end of a connection that the agent has closed: it may have said why.
    pub(super) fn closed(&self, timeout: Duration) -> Disconnected {
        self.wait_for(timeout, |_| None::<Infallible>).err().unwrap_or_else(unexpected)
    }

    /// Whether a call is done, or will never be. Else `waker` is told when.
    pub(super) fn poll(&self, call: u64, waker: &Waker) -> std::io::Result<bool> {
        let mut state = self.lock();
        if state.is_over(call) {
            return Ok(true);
        }
        if let Some(open) = state.open.get_mut(&call) {
            open.waker = Some(waker.clone());
        }
        if !state.in_thread {
            super::common_receiver::watch(self.weak(), &self.stream)?;
            state.in_thread = true;
            // Some may have come with what others have waited for.
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

    /// The agent uses memory until it has done a call.
    pub(super) fn retain(&self, call: u64, memory: SharedBlock) {
        if let Some(open) = self.lock().open.get_mut(&call) {
            open.retained = Some(memory);
        }
    }

    /// Takes in all that has come, or has whoever receives do so.
    pub(super) fn drain(&self) {
        let mut state = self.lock();
        state.may_have_more = true;
        drop(self.drain_rest(state));
    }

    /// The common thread has looked for so long: an agent that works on calls and says nothing is gone.
    pub(super) fn check_silence(&self, passed: Duration) {
        let mut state = self.lock();
        if state.receiver.is_none() || state.open.is_empty() || state.received != state.received_before {
            state.received_before = state.received;
            state.silent_in_thread = Duration::ZERO;
            return;
        }
        state.silent_in_thread += passed;
        if state.silent_in_thread >= self.silence {
            let silent_in_waits = SocketError::TimedOut(state.silent_in_thread);
            state.end(Disconnected::Lost(Arc::new(silent_in_waits)));
            self.shared.1.notify_all();
        }
    }

    /// Takes in what has come, if nobody does. Why nothing comes any more, if so.
    pub(super) fn poll_connection(&self) -> Option<Disconnected> {
        let state = self.lock();
        if state.receiver.is_none() {
            return state.disconnected.clone();
        }
        self.step_at_most(state, GLANCE).disconnected.clone()
    }

    /// Nobody waits for a call any more; its memory is free when it is done.
    pub(super) fn abandon(&self, call: u64, memory: CallMemory) {
        let mut state = self.lock();
        if state.done.remove(&call).is_none()
            && let Some(open) = state.open.get_mut(&call)
        {
            open.waker = None;
            open.abandoned = Some(memory);
        }
    }

    /// Nothing is wanted any more. Why, for those who wait.
    pub(super) fn close(&self, why: Disconnected) {
        self.lock().end(why);
        self.shared.1.notify_all();
    }

    /// Why nothing comes any more, if so.
    pub(super) fn disconnected(&self) -> Option<Disconnected> {
        self.lock().disconnected.clone()
    }

    fn wait_for<R>(
        &self,
        timeout: Duration,
        found: impl Fn(&mut InboxState) -> Option<R>,
    ) -> Result<R, Disconnected> {
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

    /// Receives something, or waits until somebody has.
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

    /// The same, for at most this long: the agent is gone only when such steps together received nothing for long.
    fn step_at_most<'a>(
        &'a self,
        mut state: MutexGuard<'a, InboxState>,
        at_most: Duration,
    ) -> MutexGuard<'a, InboxState> {
        match state.receiver.take() {
            None => self.shared.1.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0,
            Some(receiver) => {
                let state = self.receive(state, receiver, at_most, |state| {
                    state.silent_in_waits += at_most;
                    state.silent_in_waits >= self.silence
                });
                self.drain_rest(state)
            }
        }
    }

    /// Takes in all that is there, if the common thread was told of something that it could not take in.
    fn drain_rest<'a>(&'a self, mut state: MutexGuard<'a, InboxState>) -> MutexGuard<'a, InboxState> {
        while state.may_have_more && state.disconnected.is_none() {
            let Some(receiver) = state.receiver.take() else { break };
            state.may_have_more = false;
            let received = state.received;
            state = self.receive(state, receiver, Duration::ZERO, |_| false);
            // Until there is nothing.
            state.may_have_more |= state.received != received;
        }
        state
    }

    /// Receives something; `is_lost` says whether the agent is gone if nothing comes in time.
    fn receive<'a>(
        &'a self,
        state: MutexGuard<'a, InboxState>,
        mut receiver: FrameReceiver,
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
                // More may have come with it, of which the system then tells the common thread nothing.
                state.may_have_more |= state.in_thread;
                state.take(body);
            }
            Err(SocketError::TimedOut(_)) if !is_lost(&mut state) => {}
            Err(e) => state.end(Disconnected::Lost(Arc::new(e))),
        }
        self.shared.1.notify_all();
        state
    }

    /// The state, even after a panic: every change to it is whole.
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InboxState {
    /// Whether a call is done, or will never be.
    fn is_over(&self, call: u64) -> bool {
        self.disconnected.is_some() || self.done.contains_key(&call)
    }

    fn take(&mut self, body: Body) {
        match body {
            Body::Running(_) => {}
            Body::Done(done) => match self.open.remove(&done.id) {
                // Its memory is given back here.
                Some(OpenCall { abandoned: Some(_), .. }) => {}
                Some(OpenCall { waker, abandoned: None, .. }) => {
                    self.done.insert(done.id, done);
                    waker.into_iter().for_each(Waker::wake);
                }
                None => self.end(unexpected()),
            },
            Body::Refused(refused) => self.end(Disconnected::Refused(refused.message)),
            body if matches!(self.answer, ReplySlot::Awaited) => self.answer = ReplySlot::Received(body),
            _ => self.end(unexpected()),
        }
    }

    fn end(&mut self, why: Disconnected) {
        self.disconnected.get_or_insert(why);
        self.open.values_mut().filter_map(|open| open.waker.take()).for_each(Waker::wake);
    }
}

/// What comes later would be taken for the answer to something else.
pub(super) fn unexpected() -> Disconnected {
    Disconnected::Lost(Arc::new(SocketError::Frame(FrameError::Unknown)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::frame::{MAX_TO_RANK, encode};
    use cool_proto::local::PlanChecked;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    #[test]
    fn an_answer_is_kept_by_whoever_receives_it_and_one_that_nobody_expects_ends_the_session() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (_sender, receiver) = cool_proto::socket::open(&path, SILENCE).unwrap();
        let mut agent = listener.accept().unwrap().0;
        let mut say = |body| agent.write_all(&encode(body, MAX_TO_RANK).unwrap()).unwrap();
        let inbox = AgentInbox::new(receiver);
        assert_eq!(inbox.silence, SILENCE_WITHIN, "the listener is in this process");
        inbox.expect_call(7);
        inbox.expect_reply();
        say(Body::PlanChecked(PlanChecked { wrong: "no".into() }));
        say(Body::Done(Done { id: 7, ..Done::default() }));
        // As another thread does that waits for a call while this one has asked and not yet begun to wait.
        assert_eq!(inbox.wait(7).unwrap().id, 7);
        assert!(matches!(inbox.reply(SILENCE), Ok(Body::PlanChecked(checked)) if checked.wrong == "no"));
        say(Body::PlanChecked(PlanChecked::default()));
        inbox.expect_call(8);
        assert!(matches!(inbox.wait(8), Err(Disconnected::Lost(_))));
    }
}
