//! The driver: it reports events to the machine, and executes the machine's outputs on links,
//! memory and the store of the generations.

use crate::config::{MemberRole, SwarmConfig};
use crate::decoding::{decode, is_filled_up, wrong_rows};
use crate::generation_store::GenerationStore;
use crate::keys::{ChannelKeys, Contact};
use crate::late_join;
use crate::links::{LinkEvent, LinkMessage, Links, listen, sleep_until};
use crate::memory::{BlockMemory, BlockSum, SharedBytes, sum_of_blocks, sum_of_rows};
use crate::progress::{PeerProgress, ProgressBoard};
use crate::receiving::{IncomingBlocks, PartEffect};
use crate::sending::{OutgoingBlocks, OutgoingTransfer};
use crate::wire::Frame;
use cool_machine::{Machine, Poll, Time};
use cool_swarm::{Division, Input, Member, Order, Output, Signal, Swarm, SwarmSpec, Term, Waits};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::spawn_blocking;

/// Number of generations that a node receives in part at a time. It keeps about as many in memory.
const WINDOW: u32 = 4;
/// Capacity of the event queue. When it is full, senders of events wait.
const EVENTS: usize = 256;
/// Maximum number of generations that wait to be written. Beyond it no event is handled, so that
/// the network waits for the disk.
const UNWRITTEN: usize = 8;
/// Minimum timeout of a reply. A reply needs a round trip, in which it may wait behind a block in
/// each direction, and CPU time at a busy node.
const ANSWER_MIN: Duration = Duration::from_millis(250);
/// Minimum timeout of a block, which may wait for other traffic and for a busy node.
const TRANSFER_MIN: Duration = Duration::from_secs(10);
/// Minimum time without a new block after which a node counts as starved. It is long enough for two
/// transfers to time out.
const STARVED_MIN: Duration = Duration::from_secs(20);
/// Number below which the rack and the slot of a late member must be. A rack has fewer members than
/// this, because a node has fewer ports.
const MEMBERS_MAX: u32 = 1 << 16;
/// Rate assumed for links of unknown rate, in bytes per second.
const RATE: u64 = 125_000_000;

/// A command of the member's user.
pub(crate) enum MemberCommand {
    Join(Member, Contact),
    Leave(Member),
}

/// A result of work that was executed in another thread.
enum WorkResult<E> {
    /// The sum for a block has been computed. If a generation had to be read for it, `read`
    /// contains that generation.
    Added { transfer: OutgoingTransfer, bytes: SharedBytes, read: Option<(u32, SharedBytes)> },
    /// A generation has been decoded and compared with its hash. The bytes include the padding of
    /// the last block.
    Decoded { generation: u32, padded: SharedBytes, right: bool },
    /// Coded blocks have been compared with the right ones. The list contains the sender of each
    /// wrong one, and whether it had checked the generation.
    Audited(Vec<(Member, bool)>),
    /// A generation has been written.
    Kept { generation: u32 },
    /// A node that requested the common state has become a member or has given up.
    Prepared(Member),
    /// The content could not be read or written.
    Failed(E),
}

/// A generation with all blocks: the number of its bytes, and these bytes with the padding of the
/// last block.
struct WholeGeneration {
    generation: u32,
    bytes: usize,
    padded: SharedBytes,
}

pub(crate) struct Driver<C: GenerationStore> {
    config: SwarmConfig,
    machine: Swarm,
    began: Instant,
    memory: BlockMemory,
    store: Arc<C>,
    links: Links,
    receiving: IncomingBlocks,
    /// A block that has arrived. The machine's next output for it is to store or to discard it.
    arrived: Option<(Member, u32, Vec<u8>)>,
    sending: OutgoingBlocks,
    /// Generations that are being read, each with the sums that need it. Each generation is read
    /// once for all of them.
    reading: BTreeMap<u32, Vec<(OutgoingTransfer, Vec<Term>)>>,
    board: Arc<ProgressBoard>,
    /// Late members, and when the last message of each arrived.
    guests: BTreeMap<Member, Instant>,
    /// Nodes that requested the common state and are not members yet.
    preparing: BTreeSet<Member>,
    events: Receiver<LinkEvent>,
    done: UnboundedSender<WorkResult<C::Error>>,
    work: UnboundedReceiver<WorkResult<C::Error>>,
    /// Whole generations that are to be written to the store.
    keep: UnboundedSender<WholeGeneration>,
    /// The number of whole generations that have not been written yet.
    unwritten: usize,
}

impl<C: GenerationStore> Driver<C> {
    /// Creates a driver and starts its tasks. Must be called within a runtime.
    pub(crate) fn new(
        config: SwarmConfig,
        role: MemberRole,
        store: Arc<C>,
        board: Arc<ProgressBoard>,
    ) -> std::io::Result<Driver<C>> {
        let (give, events) = channel(EVENTS);
        let (done, work) = unbounded_channel();
        let (keep, kept) = unbounded_channel();
        let contact = role.socket.local_addr()?;
        let socket = tokio::net::TcpListener::from_std(role.socket)?;
        let keys = Arc::new(ChannelKeys { swarm: config.key, own: role.key_pair });
        tokio::spawn(listen(socket, Arc::clone(&keys), give.clone()));
        spawn_blocking({
            let (store, done) = (Arc::clone(&store), done.clone());
            move || keep_all(&*store, kept, &done)
        });
        let links = Links::new(keys, (role.me, contact), role.rate, config.members.iter().copied(), give);
        let mut chance = [0; 8];
        getrandom::fill(&mut chance)?;
        let spec = spec(&config, role.me, role.source, u64::from_ne_bytes(chance));
        let mut driver = Driver {
            machine: Swarm::new(Time::ZERO, spec),
            began: Instant::now(),
            memory: BlockMemory::default(),
            store,
            links,
            receiving: IncomingBlocks::default(),
            arrived: None,
            sending: OutgoingBlocks::new(role.me.rack, config.limit),
            reading: BTreeMap::new(),
            board,
            guests: BTreeMap::new(),
            preparing: BTreeSet::new(),
            events,
            done,
            work,
            keep,
            unwritten: 0,
            config,
        };
        let all = role.source.is_some();
        let present: BTreeSet<u32> = role.here.iter().copied().collect();
        let here = |generation: u32| all || present.contains(&generation);
        let lacking = (0..).zip(&driver.config.generations).filter(|(generation, _)| !here(*generation));
        let lacking = lacking.map(|(_, bytes)| *bytes).sum();
        driver.board.change(|progress| progress.lacking = lacking);
        let division = *driver.machine.holdings().division();
        for generation in role.here.iter().filter(|_| !all) {
            let first = division.first(*generation);
            for block in first..first + u32::from(division.size(*generation)) {
                driver.handle(Input::Placed { block });
            }
        }
        if role.late {
            driver.links.greet_all();
        }
        Ok(driver)
    }

    /// Runs the member until its user drops the command channel.
    pub(crate) async fn run(
        mut self,
        mut commands: UnboundedReceiver<MemberCommand>,
    ) -> Result<(), C::Error> {
        loop {
            let wakes = self.poll();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(MemberCommand::Join(member, contact)) => self.join(member, contact),
                    Some(MemberCommand::Leave(member)) => self.leave(member),
                    None => return Ok(()),
                },
                // The result is never `None`, because this driver holds a sender.
                Some(work) = self.work.recv() => self.finish(work)?,
                // The result is never `None`, because the links hold a sender.
                Some(event) = self.events.recv(), if self.unwritten < UNWRITTEN => self.on_event(event),
                () = sleep_until(wakes) => {}
            }
        }
    }

    fn now(&self) -> Time {
        // Fits, because a member runs for less than 584 years.
        Time::from_nanos(self.began.elapsed().as_nanos() as u64)
    }

    fn handle(&mut self, input: Input<'_>) {
        self.machine.handle(self.now(), input);
    }

    /// Executes all outputs that are due. Returns when to poll again.
    fn poll(&mut self) -> Option<Instant> {
        loop {
            match self.machine.poll(self.now()) {
                Poll::Output(output) => self.execute(output),
                Poll::Idle(at) => {
                    self.send_next();
                    self.publish_state();
                    let at = at.map(|at| self.began + Duration::from_nanos(at.as_nanos()));
                    return [at, self.sending.due()].into_iter().flatten().min();
                }
            }
        }
    }

    /// Updates the state of the other members and the memory in use on the board, if they have
    /// changed.
    fn publish_state(&self) {
        self.board.record_memory(self.memory.bytes());
        let now = Instant::now();
        let is_recent = |at: Instant| now.saturating_duration_since(at) < STARVED_MIN;
        let needs_blocks =
            |(member, at): &(&Member, &Instant)| is_recent(**at) && self.machine.may_need(**member);
        let guests = self.guests.iter().filter(needs_blocks).count() + self.preparing.len();
        let (wanted, unreached) = (self.machine.is_wanted(), self.machine.is_alone());
        // Other members leave once everything has arrived here, although some generations may still
        // have to be decoded and written.
        let complete = self.machine.holdings().is_complete();
        let alone = |progress: &PeerProgress| unreached && (!complete || progress.is_whole());
        self.board.change_if(
            |progress| {
                (progress.guests, progress.wanted, progress.alone) != (guests, wanted, alone(progress))
            },
            |progress| (progress.guests, progress.wanted, progress.alone) = (guests, wanted, alone(progress)),
        );
    }

    fn execute(&mut self, output: Output) {
        match output {
            Output::Signal { to, signal } => {
                if let Signal::Stop { transfer } = signal {
                    self.receiving.forget(to, transfer);
                }
                self.links.send_frame(to, Frame::Signal(signal));
            }
            Output::Transmit { to, transfer, generation, terms } => {
                self.sending.add((to, transfer));
                self.add_up((to, transfer), generation, terms);
            }
            Output::Cancel { to, transfer } => {
                self.sending.end((to, transfer));
                self.links.cancel(to, transfer);
            }
            Output::Store { from, transfer, generation, slot } => {
                self.board.change(|progress| progress.starved = false);
                let arrived = self.arrived.take();
                if let Some((.., bytes)) =
                    arrived.filter(|(peer, number, _)| (*peer, *number) == (from, transfer))
                {
                    self.memory.store(generation, slot, bytes.into());
                }
            }
            Output::Discard { from, transfer } => self.receiving.forget(from, transfer),
            Output::Decode { generation, recoveries } => {
                let rows = recoveries.iter().map(|r| (r.block, self.memory.rows(generation, &r.terms)));
                let (rows, block): (Vec<_>, _) = (rows.collect(), self.block(generation));
                let (originals, bytes) = (self.memory.blocks(generation), self.bytes(generation));
                let (store, done) = (Arc::clone(&self.store), self.done.clone());
                spawn_blocking(move || {
                    let padded = decode(originals, &rows, block);
                    let right = is_filled_up(&padded, bytes) && store.is_right(generation, &padded[..bytes]);
                    // The driver may have ended.
                    drop(done.send(WorkResult::Decoded { generation, padded, right }));
                });
            }
            Output::Audit { generation, suspects } => {
                let Some((rows, right)) = self.memory.take_aside(generation) else { return };
                let (block, done) = (self.block(generation), self.done.clone());
                spawn_blocking(move || {
                    // The driver may have ended.
                    drop(done.send(WorkResult::Audited(wrong_rows(&suspects, &rows, &right, block))));
                });
            }
            Output::Expelled(member) => {
                tracing::debug!("expelled {member:?}: it sent wrong bytes of a checked generation");
                self.leave(member);
                self.board.expel(member);
            }
            Output::Done => {}
            Output::Starved { missing } => {
                tracing::debug!("no new block for a long time; missing, by generation: {missing:?}");
                self.board.change(|progress| progress.starved = true);
            }
        }
    }

    /// Returns the number of bytes of a generation.
    fn bytes(&self, generation: u32) -> usize {
        self.config.generations.get(generation as usize).copied().unwrap_or(0) as usize
    }

    /// Returns the size of a generation's blocks in bytes. The last block is padded with zeros.
    fn block(&self, generation: u32) -> usize {
        self.bytes(generation).div_ceil(usize::from(self.config.blocks.max(1))).max(1)
    }

    /// Computes the sum for an outgoing block in another thread.
    fn add_up(&mut self, transfer: OutgoingTransfer, generation: u32, terms: Vec<Term>) {
        let sum = match self.memory.sum(generation, terms) {
            BlockSum::Unread(terms) => match self.reading.entry(generation) {
                Entry::Occupied(mut reading) => return reading.get_mut().push((transfer, terms)),
                Entry::Vacant(none) => {
                    none.insert(Vec::new());
                    BlockSum::Unread(terms)
                }
            },
            sum => sum,
        };
        let block = self.block(generation);
        let (store, done) = (Arc::clone(&self.store), self.done.clone());
        let padded = block * usize::from(self.config.blocks);
        spawn_blocking(move || {
            let added = match sum {
                BlockSum::Rows(rows) => Ok((sum_of_rows(&rows, block), None)),
                BlockSum::Whole(whole, terms) => Ok((sum_of_blocks(&whole, &terms, block), None)),
                BlockSum::Unread(terms) => store.read(generation).map(|mut read| {
                    read.resize(padded, 0);
                    let whole = SharedBytes::from(read);
                    (sum_of_blocks(&whole, &terms, block), Some((generation, whole)))
                }),
            };
            // The driver may have ended.
            drop(done.send(match added {
                Ok((bytes, read)) => WorkResult::Added { transfer, bytes, read },
                Err(error) => WorkResult::Failed(error),
            }));
        });
    }

    fn finish(&mut self, work: WorkResult<C::Error>) -> Result<(), C::Error> {
        match work {
            WorkResult::Added { transfer, bytes, read } => {
                self.sending.added(transfer, bytes);
                if let Some((generation, whole)) = read {
                    self.memory.remember(generation, whole);
                    for (transfer, terms) in self.reading.remove(&generation).unwrap_or_default() {
                        self.add_up(transfer, generation, terms);
                    }
                }
            }
            WorkResult::Decoded { generation, padded, right: true } => {
                self.memory.complete(generation, Arc::clone(&padded));
                self.handle(Input::Decoded { generation });
                let bytes = self.bytes(generation);
                self.unwritten += 1;
                // The receiver ends early only after an error, which `finish` receives as
                // `WorkResult::Failed`.
                drop(self.keep.send(WholeGeneration { generation, bytes, padded }));
            }
            WorkResult::Decoded { generation, right: false, .. } => {
                tracing::debug!("generation {generation} is polluted");
                self.memory.set_aside(generation);
                self.handle(Input::Polluted { generation });
            }
            WorkResult::Audited(wrong) => {
                for (from, checked) in wrong {
                    self.handle(Input::Refuted { from, checked });
                }
            }
            WorkResult::Kept { generation } => {
                self.memory.written(generation);
                self.unwritten -= 1;
                let bytes = self.bytes(generation) as u64;
                self.board.change(|progress| progress.lacking = progress.lacking.saturating_sub(bytes));
            }
            WorkResult::Prepared(member) => {
                self.preparing.remove(&member);
            }
            WorkResult::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn send_next(&mut self) {
        while let Some(((to, transfer), bytes)) = self.sending.next(Instant::now()) {
            self.board.change(|progress| progress.sent += bytes.len() as u64);
            self.links.send(to, transfer, bytes);
        }
    }
}

/// The handling of events that concern other members.
impl<C: GenerationStore> Driver<C> {
    fn on_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Greeted { from, contact, ip, channel } => {
                if contact.address.ip().to_canonical() == ip.to_canonical()
                    && self.links.is_new(from)
                    && from.rack.max(from.slot) < MEMBERS_MAX
                {
                    self.guests.insert(from, Instant::now());
                    self.join(from, contact);
                }
                if let Some(had_failed) = self.links.greeted(from, contact.key, channel) {
                    self.preparing.remove(&from);
                    if had_failed {
                        self.handle(Input::Joined(from));
                    }
                }
            }
            LinkEvent::Inquired { by, sender } => {
                self.preparing.insert(by);
                let state = late_join::CommonState::new(&self.config, self.links.members());
                let store = Arc::clone(&self.store);
                let done = self.done.clone();
                tokio::spawn(async move {
                    late_join::answer(sender, state, move || store.describe()).await;
                    // The driver may have ended.
                    drop(done.send(WorkResult::Prepared(by)));
                });
            }
            LinkEvent::Opened { to } => {
                if self.links.opened(to) {
                    self.handle(Input::Joined(to));
                }
            }
            LinkEvent::Closed { with, channel } => {
                if self.links.closed(with, channel) {
                    self.end_transfers(with);
                }
            }
            LinkEvent::Reopen(member) => self.links.reopen(member),
            LinkEvent::HandedOver { to, transfer } => self.sending.handed_over((to, transfer)),
            LinkEvent::Received { from, channel, message } => {
                if self.links.accepts(from, channel) {
                    self.receive(from, message);
                }
            }
        }
    }

    fn receive(&mut self, from: Member, message: LinkMessage) {
        if let Some(at) = self.guests.get_mut(&from) {
            *at = Instant::now();
        }
        match message {
            LinkMessage::Signal(signal) => {
                if let Signal::Head(head) = &signal
                    && (head.generation as usize) < self.config.generations.len()
                {
                    self.receiving.expect(from, head.transfer, self.block(head.generation));
                }
                self.handle(Input::Signal { from, signal: &signal });
            }
            LinkMessage::Part { transfer, bytes } => {
                match self.receiving.take(Instant::now(), from, transfer, &bytes) {
                    PartEffect::More => {}
                    PartEffect::Half => {
                        self.links.send_frame(from, Frame::Half { transfer });
                        self.handle(Input::Nearly { peer: from, transfer, sent: false });
                    }
                    PartEffect::Whole(bytes, took) => {
                        self.links.send_frame(from, Frame::Whole { transfer });
                        self.arrived = Some((from, transfer, bytes));
                        self.handle(Input::Received { from, transfer, took });
                    }
                }
            }
            LinkMessage::Half { transfer } => {
                self.sending.half((from, transfer));
                self.handle(Input::Nearly { peer: from, transfer, sent: true });
            }
            LinkMessage::Whole { transfer } => {
                self.sending.end((from, transfer));
                self.handle(Input::Sent { to: from, transfer, arrived: true });
            }
        }
    }

    /// Ends all transfers with a member, because its link has failed or it has left.
    fn end_transfers(&mut self, member: Member) {
        self.receiving.forget_all(member);
        self.sending.end_all(member);
        self.handle(Input::Gone(member));
    }

    fn join(&mut self, member: Member, contact: Contact) {
        self.links.join(member, contact);
        self.handle(Input::Joined(member));
    }

    fn leave(&mut self, member: Member) {
        self.guests.remove(&member);
        self.links.leave(member);
        self.end_transfers(member);
    }
}

fn spec(config: &SwarmConfig, me: Member, source: Option<cool_swarm::SourceIndex>, chance: u64) -> SwarmSpec {
    let generations = config.generations.len() as u32;
    // The timeouts follow from the first generation. Later ones may be longer, but only late
    // members can be missing those.
    let block = config.generations.first().copied().unwrap_or(0) / u64::from(config.blocks.max(1));
    let block = Duration::from_secs_f64(block as f64 / config.rate.unwrap_or(RATE).max(1) as f64);
    SwarmSpec {
        seed: config.seed,
        epoch: 1,
        members: config.members.iter().map(|(member, _)| *member).collect(),
        me,
        chance,
        division: Division {
            blocks: generations.saturating_mul(config.blocks.into()),
            generation: config.blocks,
        },
        code: config.code,
        order: Order::LowestRank { window: WINDOW },
        source,
        waits: Waits {
            answer: ANSWER_MIN.max(block * 8),
            block,
            transfer: TRANSFER_MIN.max(block * 64),
            starved: STARVED_MIN.max(block * 256),
        },
    }
}

/// Writes whole generations to the store, one after the other.
fn keep_all<C: GenerationStore>(
    store: &C,
    mut whole: UnboundedReceiver<WholeGeneration>,
    done: &UnboundedSender<WorkResult<C::Error>>,
) {
    while let Some(WholeGeneration { generation, bytes, padded }) = whole.blocking_recv() {
        let work = match store.keep(generation, &padded[..bytes]) {
            Ok(()) => WorkResult::Kept { generation },
            Err(error) => WorkResult::Failed(error),
        };
        if done.send(work).is_err() {
            return;
        }
    }
}
