//! Events to the machine, and its outputs to links, memory and contents.

use crate::links::{Event, Heard, Links, listen, sleep_until};
use crate::memory::{Bytes, Memory, Sum, sum_of_blocks, sum_of_rows};
use crate::peer::{Board, Contents, MemberRole, PeerProgress, SwarmPlan, Told};
use crate::pollution::{decode, is_filled_up, wrong_rows};
use crate::receiving::{Receiving, Step};
use crate::sending::{Sending, Transfer};
use crate::welcome;
use crate::wire::Frame;
use cool_machine::{Machine, Poll, Time};
use cool_swarm::{Division, Input, Member, Order, Output, Signal, Swarm, SwarmSpec, Term, Waits};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::spawn_blocking;

/// Generations that a node gets parts of at once: what it keeps in memory is about as much.
const WINDOW: u32 = 4;
/// Events that wait; with more, who speaks waits.
const EVENTS: usize = 256;
/// Generations that wait to be written; with more, nothing is heard, so that the network waits for the disk.
const UNWRITTEN: usize = 8;
/// An answer takes a way to and fro, both perhaps behind a block, and the turn of a busy processor.
const ANSWER_MIN: Duration = Duration::from_millis(250);
/// A block may wait for other traffic, and for a node that is busy.
const TRANSFER_MIN: Duration = Duration::from_secs(10);
/// Two blocks may fail before a node counts as starved.
const STARVED_MIN: Duration = Duration::from_secs(20);
/// Racks, and members of each, that late ones may make known: more than there are ports.
const MEMBERS_MAX: u32 = 1 << 16;
/// Of links whose rates are unknown, in bytes per second.
const RATE: u64 = 125_000_000;

/// What was done beside the driver.
enum Work<E> {
    /// A block is added up; the generation that had to be read for it.
    Added { transfer: Transfer, bytes: Bytes, read: Option<(u32, Bytes)> },
    /// All of a generation is there, with what its last block is filled up with, and was compared with its hash.
    Decoded { generation: u32, padded: Bytes, right: bool },
    /// Wrong rows were found: who sent them, and whether it had checked their generation.
    Audited(Vec<(Member, bool)>),
    /// A generation is kept.
    Kept { generation: u32 },
    /// One that has asked what members know needs no more of that.
    Prepared(Member),
    /// The content cannot be read or kept.
    Failed(E),
}

/// A generation of which every block is here: its first bytes, and what its last block is filled up with.
struct Whole {
    generation: u32,
    bytes: usize,
    padded: Bytes,
}

pub(crate) struct Driver<C: Contents> {
    plan: SwarmPlan,
    machine: Swarm,
    began: Instant,
    memory: Memory,
    contents: Arc<C>,
    links: Links,
    receiving: Receiving,
    /// A block that has come, until the machine has said what becomes of it, which it does next.
    arrived: Option<(Member, u32, Vec<u8>)>,
    sending: Sending,
    board: Arc<Board>,
    /// Who came late, and when it was heard last.
    guests: BTreeMap<Member, Instant>,
    /// Who will come.
    preparing: BTreeSet<Member>,
    events: Receiver<Event>,
    done: UnboundedSender<Work<C::Error>>,
    work: UnboundedReceiver<Work<C::Error>>,
    /// Whole generations on their way to the contents.
    keep: UnboundedSender<Whole>,
    /// How many of them.
    unwritten: usize,
}

impl<C: Contents> Driver<C> {
    /// Begins; within a runtime.
    pub(crate) fn new(
        plan: SwarmPlan,
        role: MemberRole,
        contents: Arc<C>,
        board: Arc<Board>,
    ) -> std::io::Result<Driver<C>> {
        let (give, events) = channel(EVENTS);
        let (done, work) = unbounded_channel();
        let (keep, kept) = unbounded_channel();
        let contact = role.socket.local_addr()?;
        let socket = tokio::net::TcpListener::from_std(role.socket)?;
        tokio::spawn(listen(socket, plan.key, give.clone()));
        spawn_blocking({
            let (contents, done) = (Arc::clone(&contents), done.clone());
            move || keep_all(&*contents, kept, &done)
        });
        let links = Links::new(plan.key, (role.me, contact), role.rate, plan.members.iter().copied(), give);
        let mut chance = [0; 8];
        getrandom::fill(&mut chance)?;
        let spec = spec(&plan, role.me, role.source, u64::from_ne_bytes(chance));
        let mut driver = Driver {
            machine: Swarm::new(Time::ZERO, spec),
            began: Instant::now(),
            memory: Memory::default(),
            contents,
            links,
            receiving: Receiving::default(),
            arrived: None,
            sending: Sending::new(role.me.rack, plan.limit),
            board,
            guests: BTreeMap::new(),
            preparing: BTreeSet::new(),
            events,
            done,
            work,
            keep,
            unwritten: 0,
            plan,
        };
        let all = role.source.is_some();
        let here = |generation: u32| all || role.here.contains(&generation);
        let lacking = (0..).zip(&driver.plan.generations).filter(|(generation, _)| !here(*generation));
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

    /// Takes part until nobody wants to tell it anything any more.
    pub(crate) async fn run(mut self, mut told: UnboundedReceiver<Told>) -> Result<(), C::Error> {
        loop {
            let wakes = self.poll();
            tokio::select! {
                told = told.recv() => match told {
                    Some(Told::Join(member, address)) => self.join(member, address),
                    Some(Told::Leave(member)) => self.leave(member),
                    None => return Ok(()),
                },
                // This holds a sender.
                Some(work) = self.work.recv() => self.finish(work)?,
                // There is a sender as long as links are.
                Some(event) = self.events.recv(), if self.unwritten < UNWRITTEN => self.happen(event),
                () = sleep_until(wakes) => {}
            }
        }
    }

    fn now(&self) -> Time {
        // It runs for less than 584 years.
        Time::from_nanos(self.began.elapsed().as_nanos() as u64)
    }

    fn handle(&mut self, input: Input<'_>) {
        self.machine.handle(self.now(), input);
    }

    /// Does all there is to do; when to look again.
    fn poll(&mut self) -> Option<Instant> {
        loop {
            match self.machine.poll(self.now()) {
                Poll::Output(output) => self.act(output),
                Poll::Idle(at) => {
                    self.send_next();
                    self.show_others();
                    let at = at.map(|at| self.began + Duration::from_nanos(at.as_nanos()));
                    return [at, self.sending.due()].into_iter().flatten().min();
                }
            }
        }
    }

    /// Tells whoever waits what others lack, if that has changed.
    fn show_others(&self) {
        let now = Instant::now();
        let heard = |at: Instant| now.saturating_duration_since(at) < STARVED_MIN;
        let lacks = |(member, at): &(&Member, &Instant)| heard(**at) && self.machine.may_need(**member);
        let guests = self.guests.iter().filter(lacks).count() + self.preparing.len();
        let (wanted, unreached) = (self.machine.is_wanted(), self.machine.is_alone());
        // Others leave when all has come, some of which may be still to be decoded and kept.
        let complete = self.machine.holdings().is_complete();
        let alone = |progress: &PeerProgress| unreached && (!complete || progress.is_whole());
        self.board.change_if(
            |progress| {
                (progress.guests, progress.wanted, progress.alone) != (guests, wanted, alone(progress))
            },
            |progress| (progress.guests, progress.wanted, progress.alone) = (guests, wanted, alone(progress)),
        );
    }

    fn act(&mut self, output: Output) {
        match output {
            Output::Signal { to, signal } => {
                if let Signal::Stop { transfer } = signal {
                    self.receiving.forget(to, transfer);
                }
                self.links.say(to, Frame::Signal(signal));
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
                let came = self.arrived.take();
                if let Some((.., bytes)) =
                    came.filter(|(peer, number, _)| (*peer, *number) == (from, transfer))
                {
                    self.memory.store(generation, slot, bytes.into());
                }
            }
            Output::Discard { from, transfer } => self.receiving.forget(from, transfer),
            Output::Decode { generation, recoveries } => {
                let rows = recoveries.iter().map(|r| (r.block, self.memory.rows(generation, &r.terms)));
                let (rows, block): (Vec<_>, _) = (rows.collect(), self.block(generation));
                let (came, bytes) = (self.memory.blocks(generation), self.bytes(generation));
                let (contents, done) = (Arc::clone(&self.contents), self.done.clone());
                spawn_blocking(move || {
                    let padded = decode(came, &rows, block);
                    let right =
                        is_filled_up(&padded, bytes) && contents.is_right(generation, &padded[..bytes]);
                    // Nobody may want it any more.
                    drop(done.send(Work::Decoded { generation, padded, right }));
                });
            }
            Output::Audit { generation, suspects } => {
                let Some((rows, right)) = self.memory.take_aside(generation) else { return };
                let (block, done) = (self.block(generation), self.done.clone());
                spawn_blocking(move || {
                    // Nobody may want it any more.
                    drop(done.send(Work::Audited(wrong_rows(&suspects, &rows, &right, block))));
                });
            }
            Output::Expelled(member) => {
                tracing::debug!("{member:?} has sent wrong bytes of what it had checked; it is expelled");
                self.leave(member);
                self.board.expel(member);
            }
            Output::Done => {}
            Output::Starved { missing } => {
                tracing::debug!("nothing new came for long; lacking, by generation: {lacking:?}");
                self.board.change(|progress| progress.starved = true);
            }
        }
    }

    /// Bytes of a generation, which fit into memory.
    fn bytes(&self, generation: u32) -> usize {
        self.plan.generations.get(generation as usize).copied().unwrap_or(0) as usize
    }

    /// Bytes of a generation's blocks; the last one is filled up with zeros.
    fn block(&self, generation: u32) -> usize {
        self.bytes(generation).div_ceil(usize::from(self.plan.blocks.max(1))).max(1)
    }

    /// Adds up a block that is to be sent, beside the driver.
    fn add_up(&mut self, transfer: Transfer, generation: u32, terms: Vec<Term>) {
        let (sum, block) = (self.memory.sum(generation, terms), self.block(generation));
        let (contents, done) = (Arc::clone(&self.contents), self.done.clone());
        let padded = block * usize::from(self.plan.blocks);
        spawn_blocking(move || {
            let added = match sum {
                Sum::Rows(rows) => Ok((sum_of_rows(&rows, block), None)),
                Sum::Whole(whole, terms) => Ok((sum_of_blocks(&whole, &terms, block), None)),
                Sum::Unread(terms) => contents.read(generation).map(|mut bytes| {
                    bytes.resize(padded, 0);
                    let whole = Bytes::from(bytes);
                    (sum_of_blocks(&whole, &terms, block), Some((generation, whole)))
                }),
            };
            // Nobody may want it any more.
            drop(done.send(match added {
                Ok((bytes, read)) => Work::Added { transfer, bytes, read },
                Err(error) => Work::Failed(error),
            }));
        });
    }

    fn finish(&mut self, work: Work<C::Error>) -> Result<(), C::Error> {
        match work {
            Work::Added { transfer, bytes, read } => {
                if let Some((generation, whole)) = read {
                    self.memory.remember(generation, whole);
                }
                self.sending.added(transfer, bytes);
            }
            Work::Decoded { generation, padded, right: true } => {
                self.memory.complete(generation, Arc::clone(&padded));
                self.handle(Input::Decoded { generation });
                let bytes = self.bytes(generation);
                self.unwritten += 1;
                // Whoever keeps them has ended only with an error, which comes as work.
                drop(self.keep.send(Whole { generation, bytes, padded }));
            }
            Work::Decoded { generation, right: false, .. } => {
                tracing::debug!("generation {generation} is polluted");
                self.memory.set_aside(generation);
                self.handle(Input::Polluted { generation });
            }
            Work::Audited(wrong) => {
                for (from, checked) in wrong {
                    self.handle(Input::Refuted { from, checked });
                }
            }
            Work::Kept { generation } => {
                self.memory.written(generation);
                self.unwritten -= 1;
                let bytes = self.bytes(generation) as u64;
                self.board.change(|progress| progress.lacking = progress.lacking.saturating_sub(bytes));
            }
            Work::Prepared(member) => {
                self.preparing.remove(&member);
            }
            Work::Failed(error) => return Err(error),
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

/// What comes from others.
impl<C: Contents> Driver<C> {
    fn happen(&mut self, event: Event) {
        match event {
            Event::Greeted { from, contact, channel } => {
                self.preparing.remove(&from);
                if self.links.is_new(from) && from.rack.max(from.slot) < MEMBERS_MAX {
                    self.guests.insert(from, Instant::now());
                    self.join(from, contact);
                }
                if self.links.greeted(from, channel) == Some(true) {
                    self.handle(Input::Joined(from));
                }
            }
            Event::Inquired { by, speaker } => {
                self.preparing.insert(by);
                let told = welcome::Told::new(&self.plan, self.links.members());
                let contents = Arc::clone(&self.contents);
                let done = self.done.clone();
                tokio::spawn(async move {
                    welcome::answer(speaker, told, move || contents.describe()).await;
                    // Nobody may want it any more.
                    drop(done.send(Work::Prepared(by)));
                });
            }
            Event::Opened { to } => {
                if self.links.opened(to) {
                    self.handle(Input::Joined(to));
                }
            }
            Event::Closed { with, channel } => {
                if self.links.closed(with, channel) {
                    self.part(with);
                }
            }
            Event::Reopen(member) => self.links.reopen(member),
            Event::HandedOver { to, transfer } => self.sending.handed_over((to, transfer)),
            Event::Heard { from, heard } => self.hear(from, heard),
        }
    }

    fn hear(&mut self, from: Member, heard: Heard) {
        if let Some(at) = self.guests.get_mut(&from) {
            *at = Instant::now();
        }
        match heard {
            Heard::Signal(signal) => {
                if let Signal::Head(head) = &signal
                    && (head.generation as usize) < self.plan.generations.len()
                {
                    self.receiving.expect(from, head.transfer, self.block(head.generation));
                }
                self.handle(Input::Signal { from, signal: &signal });
            }
            Heard::Part { transfer, bytes } => {
                match self.receiving.take(Instant::now(), from, transfer, &bytes) {
                    Step::More => {}
                    Step::Half => {
                        self.links.say(from, Frame::Half { transfer });
                        self.handle(Input::Nearly { peer: from, transfer, sent: false });
                    }
                    Step::Whole(bytes, took) => {
                        self.links.say(from, Frame::Whole { transfer });
                        self.arrived = Some((from, transfer, bytes));
                        self.handle(Input::Received { from, transfer, took });
                    }
                }
            }
            Heard::Half { transfer } => {
                self.sending.half((from, transfer));
                self.handle(Input::Nearly { peer: from, transfer, sent: true });
            }
            Heard::Whole { transfer } => {
                self.sending.end((from, transfer));
                self.handle(Input::Sent { to: from, transfer, arrived: true });
            }
        }
    }

    /// Nothing goes to a member or comes from it any more.
    fn part(&mut self, member: Member) {
        self.receiving.forget_all(member);
        self.sending.end_all(member);
        self.handle(Input::Gone(member));
    }

    fn join(&mut self, member: Member, address: SocketAddr) {
        self.links.join(member, address);
        self.handle(Input::Joined(member));
    }

    fn leave(&mut self, member: Member) {
        self.guests.remove(&member);
        self.links.leave(member);
        self.part(member);
    }
}

fn spec(plan: &SwarmPlan, me: Member, source: Option<cool_swarm::Share>, chance: u64) -> SwarmSpec {
    let generations = plan.generations.len() as u32;
    // Those behind the first ones may be longer: what only late members lack.
    let block = plan.generations.first().copied().unwrap_or(0) / u64::from(plan.blocks.max(1));
    let block = Duration::from_secs_f64(block as f64 / plan.rate.unwrap_or(RATE).max(1) as f64);
    SwarmSpec {
        seed: plan.seed,
        epoch: 1,
        members: plan.members.iter().map(|(member, _)| *member).collect(),
        me,
        chance,
        division: Division { blocks: generations * u32::from(plan.blocks), generation: plan.blocks },
        code: plan.code,
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

/// Writes generations one after the other.
fn keep_all<C: Contents>(
    contents: &C,
    mut whole: UnboundedReceiver<Whole>,
    done: &UnboundedSender<Work<C::Error>>,
) {
    while let Some(Whole { generation, bytes, padded }) = whole.blocking_recv() {
        let work = match contents.keep(generation, &padded[..bytes]) {
            Ok(()) => Work::Kept { generation },
            Err(error) => Work::Failed(error),
        };
        if done.send(work).is_err() {
            return;
        }
    }
}
