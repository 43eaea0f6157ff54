//! What the agent answers, and who waits for it. Whoever waits first receives for all; a thread of the inbox's
//! own does so once somebody wants to know without waiting.

use super::heap::{Block, Memory};
use cool_proto::RUNNING_INTERVAL;
use cool_proto::frame::FrameError;
use cool_proto::local::{Done, frame::Body};
use cool_proto::socket::{Receiver, SocketError};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// An agent from which nothing is heard for this long while it works on a call is gone.
const SILENCE: Duration = RUNNING_INTERVAL.saturating_mul(6);

/// The same of one in this process, which nobody can stop or kill alone: it is silent because other work takes the processors.
const SILENCE_WITHIN: Duration = RUNNING_INTERVAL.saturating_mul(60);

/// How long a glance takes at most.
const GLANCE: Duration = Duration::from_millis(1);

/// Why nothing comes any more.
#[derive(Clone, Debug)]
pub(super) enum Disconnected {
    /// The connection is of no use.
    Gone(Arc<SocketError>),
    /// The agent said why it hung up.
    Refused(String),
}

/// A call that the agent works on.
#[derive(Debug, Default)]
struct Open {
    waker: Option<Waker>,
    /// Its memory, once nobody waits for it any more.
    left: Option<Memory>,
    /// What the agent uses beside it.
    kept: Option<Block>,
}

/// The answer to what is no call, of which there is one at a time.
#[derive(Debug)]
enum Answer {
    /// Nothing was asked: one that comes is unexpected.
    None,
    Awaited,
    Came(Body),
}

#[derive(Debug)]
struct State {
    /// Absent while somebody receives.
    receiver: Option<Receiver>,
    open: BTreeMap<u64, Open>,
    /// Calls that are done and have not been asked for.
    done: BTreeMap<u64, Done>,
    answer: Answer,
    disconnected: Option<Disconnected>,
    /// How long short waits heard nothing, one after the other.
    silent: Duration,
    /// The thread has been started.
    thread: bool,
}

/// The receiving side of a session. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Inbox {
    shared: Arc<(Mutex<State>, Condvar)>,
    /// How long the agent may be silent while it works on a call.
    silence: Duration,
}

impl Inbox {
    pub(super) fn new(receiver: Receiver) -> Inbox {
        let silence = if receiver.agent_is_in_this_process() { SILENCE_WITHIN } else { SILENCE };
        let state = State {
            receiver: Some(receiver),
            open: BTreeMap::new(),
            done: BTreeMap::new(),
            answer: Answer::None,
            disconnected: None,
            silent: Duration::ZERO,
            thread: false,
        };
        Inbox { shared: Arc::new((Mutex::new(state), Condvar::new())), silence }
    }

    /// The descriptor that came with the last answer.
    pub(super) fn descriptor(&self) -> Option<OwnedFd> {
        self.lock().receiver.as_mut()?.descriptor()
    }

    /// A call is about to be sent.
    pub(super) fn expect(&self, call: u64) {
        self.lock().open.insert(call, Open::default());
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
    pub(super) fn expect_answer(&self) {
        self.lock().answer = Answer::Awaited;
    }

    /// Waits for the answer that was expected.
    pub(super) fn answer(&self, patience: Duration) -> Result<Body, Disconnected> {
        self.wait_for(patience, |state| match std::mem::replace(&mut state.answer, Answer::None) {
            Answer::Came(body) => Some(body),
            awaited => {
                state.answer = awaited;
                None
            }
        })
    }

    /// Waits for the end of a connection that the agent has closed: it may have said why.
    pub(super) fn closed(&self, patience: Duration) -> Disconnected {
        self.wait_for(patience, |_| None::<Infallible>).err().unwrap_or_else(unexpected)
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
        if !state.thread {
            let inbox = self.clone();
            std::thread::Builder::new()
                .name("cool-receiver".into())
                .spawn(move || inbox.receive_for_all())?;
            state.thread = true;
        }
        Ok(false)
    }

    /// The agent uses memory until it has done a call.
    pub(super) fn keep(&self, call: u64, memory: Block) {
        if let Some(open) = self.lock().open.get_mut(&call) {
            open.kept = Some(memory);
        }
    }

    /// Takes in what has come, if nobody does. Why nothing comes any more, if so.
    pub(super) fn glance(&self) -> Option<Disconnected> {
        let state = self.lock();
        if state.receiver.is_none() {
            return state.disconnected.clone();
        }
        self.step_at_most(state, GLANCE).disconnected.clone()
    }

    /// Nobody waits for a call any more; its memory is free when it is done.
    pub(super) fn leave(&self, call: u64, memory: Memory) {
        let mut state = self.lock();
        if state.done.remove(&call).is_none()
            && let Some(open) = state.open.get_mut(&call)
        {
            open.waker = None;
            open.left = Some(memory);
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
        patience: Duration,
        found: impl Fn(&mut State) -> Option<R>,
    ) -> Result<R, Disconnected> {
        let mut state = self.lock();
        loop {
            if let Some(result) = found(&mut state) {
                return Ok(result);
            }
            if let Some(why) = &state.disconnected {
                return Err(why.clone());
            }
            state = self.step(state, patience);
        }
    }

    /// Receives something, or waits until somebody has.
    fn step<'a>(&'a self, mut state: MutexGuard<'a, State>, patience: Duration) -> MutexGuard<'a, State> {
        match state.receiver.take() {
            None => self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(receiver) => self.receive(state, receiver, patience, |_| true),
        }
    }

    /// The same, for at most this long: the agent is gone only when such steps together heard nothing for long.
    fn step_at_most<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        at_most: Duration,
    ) -> MutexGuard<'a, State> {
        match state.receiver.take() {
            None => self.shared.1.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0,
            Some(receiver) => self.receive(state, receiver, at_most, |state| {
                state.silent += at_most;
                state.silent >= self.silence
            }),
        }
    }

    /// Receives something; `is_gone` says whether the agent is gone if nothing comes in time.
    fn receive<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut receiver: Receiver,
        patience: Duration,
        is_gone: impl FnOnce(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        drop(state);
        let heard = receiver.receive(patience);
        let mut state = self.lock();
        state.receiver = Some(receiver);
        match heard {
            Ok(body) => {
                state.silent = Duration::ZERO;
                state.take(body);
            }
            Err(SocketError::TimedOut(_)) if !is_gone(&mut state) => {}
            Err(e) => state.end(Disconnected::Gone(Arc::new(e))),
        }
        self.shared.1.notify_all();
        state
    }

    /// The thread: receives while calls are open.
    fn receive_for_all(&self) {
        let mut state = self.lock();
        while state.disconnected.is_none() {
            state = if state.open.is_empty() {
                self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.step(state, self.silence)
            };
        }
    }

    /// The state, even after a panic: every change to it is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether a call is done, or will never be.
    fn is_over(&self, call: u64) -> bool {
        self.disconnected.is_some() || self.done.contains_key(&call)
    }

    fn take(&mut self, body: Body) {
        match body {
            Body::Running(_) => {}
            Body::Done(done) => match self.open.remove(&done.id) {
                // Its memory is given back here.
                Some(Open { left: Some(_), .. }) => {}
                Some(Open { waker, left: None, .. }) => {
                    self.done.insert(done.id, done);
                    waker.into_iter().for_each(Waker::wake);
                }
                None => self.end(unexpected()),
            },
            Body::Refused(refused) => self.end(Disconnected::Refused(refused.message)),
            body if matches!(self.answer, Answer::Awaited) => self.answer = Answer::Came(body),
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
    Disconnected::Gone(Arc::new(SocketError::Frame(FrameError::Unknown)))
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
        let inbox = Inbox::new(receiver);
        assert_eq!(inbox.silence, SILENCE_WITHIN, "the listener is in this process");
        inbox.expect(7);
        inbox.expect_answer();
        say(Body::PlanChecked(PlanChecked { wrong: "no".into() }));
        say(Body::Done(Done { id: 7, ..Done::default() }));
        // As another thread does that waits for a call while this one has asked and not yet begun to wait.
        assert_eq!(inbox.wait(7).unwrap().id, 7);
        assert!(matches!(inbox.answer(SILENCE), Ok(Body::PlanChecked(checked)) if checked.wrong == "no"));
        say(Body::PlanChecked(PlanChecked::default()));
        inbox.expect(8);
        assert!(matches!(inbox.wait(8), Err(Disconnected::Gone(_))));
    }
}
