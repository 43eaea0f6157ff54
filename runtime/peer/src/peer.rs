//! A member as its user sees it.

use crate::channel::SwarmKey;
use crate::driver::Driver;
use cool_swarm::{Code, Member, Share};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// What all members of a swarm know alike.
#[derive(Clone, Debug)]
pub struct SwarmPlan {
    /// Who has it takes part.
    pub key: SwarmKey,
    /// From which rings follow.
    pub seed: u64,
    /// Who takes part, and where each listens.
    pub members: Vec<(Member, SocketAddr)>,
    /// Bytes of each generation.
    pub generations: Vec<u64>,
    /// Blocks of a generation, 1 to [`cool_swarm::GENERATION_MAX`].
    pub blocks: u16,
    /// What is sent.
    pub code: Code,
    /// What the slowest member's link carries, in bytes per second, if it is known: what is waited for follows from it.
    pub rate: Option<u64>,
    /// Bytes in a second that a member sends at most.
    pub limit: Option<u64>,
}

/// What a member is.
#[derive(Debug)]
pub struct MemberRole {
    /// Which of the members.
    pub me: Member,
    /// Where it listens.
    pub socket: TcpListener,
    /// Generations that are here from the beginning.
    pub here: Vec<u32>,
    /// Set at a source, which has all of them.
    pub source: Option<Share>,
    /// What its own link carries, in bytes per second, if it is known: it sends no faster.
    pub rate: Option<u64>,
    /// Whether the others do not know of it yet: it comes when they are under way, and says so to each of them.
    pub late: bool,
}

/// Where a member's content is.
pub trait Contents: Send + Sync + 'static {
    /// Why something cannot be read or kept.
    type Error: Send + 'static;

    /// The bytes of a generation that is here.
    ///
    /// # Errors
    /// If they cannot be had any more; the member takes part no longer.
    fn read(&self, generation: u32) -> Result<Vec<u8>, Self::Error>;

    /// Whether these are the bytes of a generation.
    fn is_right(&self, generation: u32, bytes: &[u8]) -> bool;

    /// Keeps the bytes of a generation that has come, which are right.
    ///
    /// # Errors
    /// If they cannot be kept; the member takes part no longer.
    fn keep(&self, generation: u32, bytes: &[u8]) -> Result<(), Self::Error>;

    /// What the content is, for one that comes late ([`crate::inquire`]).
    fn describe(&self) -> Vec<u8>;
}

/// How far a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerProgress {
    /// Bytes that are not kept yet.
    pub lacking: u64,
    /// Bytes of blocks that were sent.
    pub sent: u64,
    /// Nothing new has come for long, and something is lacking.
    pub starved: bool,
    /// Members that came late and may lack something, or still prepare; not those that were silent for 20 s.
    pub guests: usize,
    /// Whether another member can be reached that may lack something.
    pub wanted: bool,
    /// Whether no other member can be reached, and all that came from them is kept.
    pub alone: bool,
    /// Members that sent wrong bytes of what they had checked ([`SwarmPeer::expelled`]).
    pub expelled: usize,
    /// It takes part no longer.
    pub ended: bool,
}

impl PeerProgress {
    /// Whether everything is kept.
    pub fn is_whole(&self) -> bool {
        self.lacking == 0
    }
}

/// How far it is, for whoever waits.
#[derive(Debug, Default)]
pub(crate) struct Board {
    progress: Mutex<PeerProgress>,
    changed: Condvar,
    expelled: Mutex<BTreeSet<Member>>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, PeerProgress> {
        // Numbers are right even if whoever changed them has panicked.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and wakes whoever waits, only if that is so.
    pub(crate) fn change_if(
        &self,
        differs: impl FnOnce(&PeerProgress) -> bool,
        change: impl FnOnce(&mut PeerProgress),
    ) {
        let mut progress = self.lock();
        if differs(&progress) {
            change(&mut progress);
            self.changed.notify_all();
        }
    }

    pub(crate) fn expel(&self, member: Member) {
        let mut expelled = self.expelled.lock().unwrap_or_else(PoisonError::into_inner);
        expelled.insert(member);
        self.change(|progress| progress.expelled = expelled.len());
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut PeerProgress)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

/// What a member's user says.
pub(crate) enum Told {
    Join(Member, SocketAddr),
    Leave(Member),
}

/// A member that takes part, in a thread of its own, until it is stopped.
pub struct SwarmPeer<C: Contents> {
    tell: UnboundedSender<Told>,
    board: Arc<Board>,
    thread: JoinHandle<Result<(), C::Error>>,
}

impl<C: Contents> SwarmPeer<C> {
    /// Begins to take part.
    ///
    /// # Errors
    /// If there can be no thread, or the socket is none to listen on.
    pub fn start(plan: SwarmPlan, role: MemberRole, contents: Arc<C>) -> std::io::Result<SwarmPeer<C>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        role.socket.set_nonblocking(true)?;
        let board = Arc::new(Board::default());
        let (tell, told) = unbounded_channel();
        let shown = Arc::clone(&board);
        let driver = {
            let _entered = runtime.enter();
            Driver::new(plan, role, contents, shown)?
        };
        let shown = Arc::clone(&board);
        let thread = thread::Builder::new().name("peer".into()).spawn(move || {
            let outcome = runtime.block_on(driver.run(told));
            shown.change(|progress| progress.ended = true);
            outcome
        })?;
        Ok(SwarmPeer { tell, board, thread })
    }

    /// How far it is.
    pub fn progress(&self) -> PeerProgress {
        *self.board.lock()
    }

    /// Members that sent wrong bytes of what they had checked; nothing more was taken of them.
    pub fn expelled(&self) -> BTreeSet<Member> {
        self.board.expelled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it is so, it takes part no longer, or the time is over.
    pub fn wait_until(&self, is_so: impl Fn(&PeerProgress) -> bool, at_most: Duration) -> PeerProgress {
        let waits = |progress: &mut PeerProgress| !is_so(progress) && !progress.ended;
        let waited = self.board.changed.wait_timeout_while(self.board.lock(), at_most, waits);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// A member takes part from now on, or again with nothing.
    pub fn join(&self, member: Member, address: SocketAddr) {
        // Whoever has ended is told by `stop`.
        drop(self.tell.send(Told::Join(member, address)));
    }

    /// A member takes part no longer.
    pub fn leave(&self, member: Member) {
        drop(self.tell.send(Told::Leave(member)));
    }

    /// Ends it; the others go on without it.
    ///
    /// # Errors
    /// Why it had ended before.
    pub fn stop(self) -> Result<(), C::Error> {
        drop(self.tell);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
