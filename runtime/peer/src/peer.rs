//! A member of a swarm, as its user controls it.

use crate::config::{MemberRole, SwarmConfig};
use crate::driver::{Driver, MemberCommand};
use crate::generation_store::GenerationStore;
use crate::keys::Contact;
use crate::progress::{PeerProgress, ProgressBoard};
use cool_swarm::Member;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// A member that runs in its own thread until it is stopped.
pub struct SwarmPeer<C: GenerationStore> {
    command_sender: UnboundedSender<MemberCommand>,
    board: Arc<ProgressBoard>,
    thread: JoinHandle<Result<(), C::Error>>,
}

impl<C: GenerationStore> SwarmPeer<C> {
    /// Starts a member of the swarm `config` with this role, in a new thread.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started, or if the socket is not a listening
    /// socket.
    pub fn start(config: SwarmConfig, role: MemberRole, store: Arc<C>) -> std::io::Result<SwarmPeer<C>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        role.socket.set_nonblocking(true)?;
        let board = Arc::new(ProgressBoard::default());
        let (command_sender, commands) = unbounded_channel();
        let shown = Arc::clone(&board);
        let driver = {
            let _entered = runtime.enter();
            Driver::new(config, role, store, shown)?
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
        self.board.progress()
    }

    /// Returns the members that sent wrong bytes of generations that they had checked. Nothing more
    /// is accepted from them.
    pub fn expelled(&self) -> BTreeSet<Member> {
        self.board.expelled()
    }

    /// Returns the greatest number of bytes of blocks that the member has held in memory so far.
    pub fn memory_peak(&self) -> usize {
        self.board.memory_peak()
    }

    /// Waits until `is_so` returns true, the member has ended, or the time has passed. Returns the
    /// progress at that point.
    pub fn wait_until(&self, is_so: impl Fn(&PeerProgress) -> bool, at_most: Duration) -> PeerProgress {
        self.board.wait_until(is_so, at_most)
    }

    /// Reports that a member has joined, or has returned without any blocks.
    pub fn join(&self, member: Member, contact: Contact) {
        // If the driver has ended, `stop` returns its error.
        drop(self.command_sender.send(MemberCommand::Join(member, contact)));
    }

    /// Reports that a member has left for good.
    pub fn leave(&self, member: Member) {
        drop(self.command_sender.send(MemberCommand::Leave(member)));
    }

    /// Stops the member. The others continue without it.
    ///
    /// # Errors
    /// Returns the error with which the member ended before, if there was one.
    pub fn stop(self) -> Result<(), C::Error> {
        drop(self.command_sender);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
