//! A member of a swarm, as its user controls it.

use crate::channel::SwarmKey;
use crate::driver::Driver;
use cool_swarm::{Code, Member, Share};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The common state of all members of a swarm. It must be the same at all of them.
#[derive(Clone, Debug)]
pub struct SwarmPlan {
    /// The key of the swarm. Every node that has it may take part.
    pub key: SwarmKey,
    /// Seed of the rings.
    pub seed: u64,
    /// All members, and the addresses at which they listen.
    pub members: Vec<(Member, SocketAddr)>,
    /// Number of bytes of each generation.
    pub generations: Vec<u64>,
    /// Number of blocks of a generation, 1 to [`cool_swarm::GENERATION_MAX`].
    pub blocks: u16,
    /// Which blocks are sent: coded ones, or originals only.
    pub code: Code,
    /// Rate of the slowest member's link in bytes per second, if known. Timeouts follow from it.
    pub rate: Option<u64>,
    /// Maximum rate at which a member sends blocks, in bytes per second.
    pub limit: Option<u64>,
}

/// The role of one member.
#[derive(Debug)]
pub struct MemberRole {
    /// This member.
    pub me: Member,
    /// The socket on which it listens.
    pub socket: TcpListener,
    /// Generations that it holds from the beginning.
    pub here: Vec<u32>,
    /// Set at a source, which holds all generations.
    pub source: Option<Share>,
    /// Rate of its own link in bytes per second, if known. It sends no faster.
    pub rate: Option<u64>,
    /// Whether the other members do not know about it yet. A late member greets each of them.
    pub late: bool,
}

/// Access to the content at a member.
pub trait Contents: Send + Sync + 'static {
    /// Why a generation cannot be read or stored.
    type Error: Send + 'static;

    /// Returns the bytes of a generation that the member holds.
    ///
    /// # Errors If they cannot be read any more. The member then ends.
    fn read(&self, generation: u32) -> Result<Vec<u8>, Self::Error>;

    /// Returns whether these are the right bytes of a generation.
    fn is_right(&self, generation: u32, bytes: &[u8]) -> bool;

    /// Stores the bytes of a generation that has arrived and is right.
    ///
    /// # Errors If they cannot be stored. The member then ends.
    fn keep(&self, generation: u32, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Returns a description of the content for late members ([`crate::inquire`]).
    fn describe(&self) -> Vec<u8>;
}

/// The progress of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerProgress {
    /// Number of bytes that are not stored yet.
    pub lacking: u64,
    /// Number of bytes of blocks that were sent.
    pub sent: u64,
    /// Whether no new block has arrived for a long time although some are missing.
    pub starved: bool,
    /// Number of late members that may be missing blocks or are still preparing, except those that
    /// have been silent for 20 s.
    pub guests: usize,
    /// Whether a reachable member may be missing blocks.
    pub wanted: bool,
    /// Whether no other member is reachable, and everything that arrived is stored.
    pub alone: bool,
    /// Number of members that sent wrong bytes of generations that they had checked
    /// ([`SwarmPeer::expelled`]).
    pub expelled: usize,
    /// Whether the member has ended.
    pub ended: bool,
}

impl PeerProgress {
    /// Returns whether everything is stored.
    pub fn is_whole(&self) -> bool {
        self.lacking == 0
    }
}

/// The progress of a member, shared with the threads that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Board {
    progress: Mutex<PeerProgress>,
    changed: Condvar,
    expelled: Mutex<BTreeSet<Member>>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, PeerProgress> {
        // The numbers are right even if a thread panicked while it held the lock.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the progress and wakes the waiting threads, but only if `differs` returns true.
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

/// A command of the member's user.
pub(crate) enum MemberCommand {
    Join(Member, SocketAddr),
    Leave(Member),
}

/// A member that runs in its own thread until it is stopped.
pub struct SwarmPeer<C: Contents> {
    command_sender: UnboundedSender<MemberCommand>,
    board: Arc<Board>,
    thread: JoinHandle<Result<(), C::Error>>,
}

impl<C: Contents> SwarmPeer<C> {
    /// Starts a member.
    ///
    /// # Errors If the thread cannot be started, or if the socket is not a listening socket.
    pub fn start(plan: SwarmPlan, role: MemberRole, contents: Arc<C>) -> std::io::Result<SwarmPeer<C>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        role.socket.set_nonblocking(true)?;
        let board = Arc::new(Board::default());
        let (command_sender, commands) = unbounded_channel();
        let shown = Arc::clone(&board);
        let driver = {
            let _entered = runtime.enter();
            Driver::new(plan, role, contents, shown)?
        };
        let shown = Arc::clone(&board);
        let thread = thread::Builder::new().name("peer".into()).spawn(move || {
            let outcome = runtime.block_on(driver.run(commands));
            shown.change(|progress| progress.ended = true);
            outcome
        })?;
        Ok(SwarmPeer { command_sender, board, thread })
    }

    /// Returns the member's progress.
    pub fn progress(&self) -> PeerProgress {
        *self.board.lock()
    }

    /// Returns the members that sent wrong bytes of generations that they had checked. Nothing more
    /// is accepted from them.
    pub fn expelled(&self) -> BTreeSet<Member> {
        self.board.expelled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `is_so` returns true, the member has ended, or the time has passed. Returns the
    /// progress at that point.
    pub fn wait_until(&self, is_so: impl Fn(&PeerProgress) -> bool, at_most: Duration) -> PeerProgress {
        let waits = |progress: &mut PeerProgress| !is_so(progress) && !progress.ended;
        let waited = self.board.changed.wait_timeout_while(self.board.lock(), at_most, waits);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Reports that a member has joined, or has returned without any blocks.
    pub fn join(&self, member: Member, address: SocketAddr) {
        // If the driver has ended, `stop` returns its error.
        drop(self.command_sender.send(MemberCommand::Join(member, address)));
    }

    /// Reports that a member has left for good.
    pub fn leave(&self, member: Member) {
        drop(self.command_sender.send(MemberCommand::Leave(member)));
    }

    /// Stops the member. The others continue without it.
    ///
    /// # Errors Returns the error with which the member ended before, if there was one.
    pub fn stop(self) -> Result<(), C::Error> {
        drop(self.command_sender);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
