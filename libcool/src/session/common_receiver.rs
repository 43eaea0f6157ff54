//! The thread that receives for all sessions of the process, if a caller needs to detect the
//! completion of a call without waiting. The first such call starts it.

use super::agent_inbox::{AgentInbox, WeakAgentInbox};
use crate::signal_mask::with_signals_blocked;
use cool_proto::RUNNING_INTERVAL;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of sessions handled after one system call.
const EVENTS: usize = 64;

/// The receiver of this process, once it is needed.
static RECEIVER: Mutex<Option<Arc<CommonReceiver>>> = Mutex::new(None);

#[derive(Debug)]
struct CommonReceiver {
    /// The process that has the thread. A forked process does not have it.
    process: u32,
    epoll: OwnedFd,
    sessions: Mutex<RegisteredSessions>,
}

#[derive(Debug, Default)]
struct RegisteredSessions {
    next: u64,
    by_number: BTreeMap<u64, WeakAgentInbox>,
}

/// Receives all frames of a session from now on, until the session is dropped.
pub(super) fn register(inbox: WeakAgentInbox, stream: impl AsFd) -> io::Result<()> {
    let mut common = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner);
    let receiver = match &*common {
        Some(receiver) if receiver.process == std::process::id() => Arc::clone(receiver),
        _ => Arc::clone(common.insert(CommonReceiver::start()?)),
    };
    let mut sessions = receiver.sessions();
    let number = sessions.next;
    // Edge-triggered: epoll reports new data once, so every receiving thread must drain the
    // connection.
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&receiver.epoll, stream, epoll::EventData::new_u64(number), flags)?;
    sessions.next += 1;
    sessions.by_number.insert(number, inbox);
    Ok(())
}

impl CommonReceiver {
    fn start() -> io::Result<Arc<CommonReceiver>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let receiver =
            Arc::new(CommonReceiver { process: std::process::id(), epoll, sessions: Mutex::default() });
        let own = Arc::clone(&receiver);
        let thread = std::thread::Builder::new().name("cool-receiver".into());
        with_signals_blocked(|| thread.spawn(move || own.receive_for_all()))?;
        Ok(receiver)
    }

    /// Main function of the thread.
    fn receive_for_all(&self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut looked = Instant::now();
        loop {
            let due = RUNNING_INTERVAL.saturating_sub(looked.elapsed());
            let timeout = Timespec::try_from(due).ok();
            events.clear();
            // The wait fails only if a signal interrupts it, because the descriptor is valid and
            // the buffer has room.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref());
            for event in &events {
                let session = self.sessions().by_number.get(&event.data.u64()).and_then(WeakAgentInbox::get);
                session.as_ref().inspect(|session| session.drain());
            }
            let passed = looked.elapsed();
            if passed >= RUNNING_INTERVAL {
                looked = Instant::now();
                self.check_silent_sessions(passed);
            }
        }
    }

    /// Ends sessions that have received no frame for too long, and removes sessions that were
    /// dropped.
    fn check_silent_sessions(&self, passed: Duration) {
        let sessions: Vec<AgentInbox> = {
            let mut sessions = self.sessions();
            sessions.by_number.retain(|_, inbox| inbox.get().is_some());
            sessions.by_number.values().filter_map(WeakAgentInbox::get).collect()
        };
        sessions.iter().for_each(|session| session.check_silence(passed));
    }

    fn sessions(&self) -> MutexGuard<'_, RegisteredSessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
