//! The machine of one member.

mod demand;
mod receivers;
mod sending;

use crate::api::{BlockHead, Input, Output, Signal, Stats, SwarmSpec, Waits};
use crate::generation::Row;
use crate::holdings::{Code, Have, Holdings};
use crate::lane::Lane;
use crate::paces::{Pace, Paces};
use crate::peers::Peers;
use crate::pollution::{Origin, Pollution};
use crate::rings::{Member, Rings};
use crate::transfers::{Transfer, Transfers};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// A member of a swarm: see the crate's front page.
#[derive(Debug)]
pub struct Swarm {
    spec: SwarmSpec,
    rings: Rings,
    peers: Peers,
    holdings: Holdings,
    /// What the members of this node's rack hold together, as far as it has heard.
    rack: Holdings,
    /// What has gone from there to other racks.
    left: Holdings,
    pollution: Pollution,
    chance: ChaCha8Rng,
    incoming: Transfers,
    outgoing: Transfers,
    outbox: VecDeque<Output>,
    /// Of the next offer, and the number of the next transfer.
    ring: u64,
    attempt: u8,
    transfer: u32,
    /// Whom the last block went to.
    last: Option<Member>,
    /// Who has asked last for a block.
    asked: Option<Member>,
    /// What blocks that came have taken.
    paces: Paces,
    /// Offers within the rack, and beyond it.
    near: Lane,
    far: Lane,
    /// The paper's round: how many blocks the source has sent.
    round: u64,
    settled: u32,
    /// When this node asks for blocks next, and when it is to report that nothing comes.
    asks_at: Time,
    ask_wait: Duration,
    starves_at: Option<Time>,
    done: bool,
    stats: Stats,
}

impl Swarm {
    /// A member that begins at `now`, with nothing or, a source, with all.
    pub fn new(now: Time, spec: SwarmSpec) -> Swarm {
        let (division, code, order) = (spec.division, spec.code, spec.order);
        let mut rings = Rings::new(spec.seed, spec.epoch, Vec::new());
        spec.members.iter().for_each(|member| rings.include(*member));
        rings.include(spec.me);
        let others = spec.members.iter().copied().filter(|member| *member != spec.me);
        let counted = (code == Code::RarestBlock).then_some(division.blocks);
        let holdings = match spec.source {
            Some(share) => Holdings::source(division, code, order, share),
            None => Holdings::empty(division, code, order),
        };
        Swarm {
            rings,
            peers: Peers::new(others, counted),
            rack: holdings.clone(),
            left: Holdings::empty(division, code, order),
            holdings,
            pollution: Pollution::default(),
            chance: ChaCha8Rng::seed_from_u64(spec.chance),
            incoming: Transfers::new(spec.me),
            outgoing: Transfers::new(spec.me),
            outbox: VecDeque::new(),
            ring: 0,
            attempt: 0,
            transfer: 0,
            last: None,
            asked: None,
            paces: Paces::default(),
            near: Lane::new(now, spec.waits.block),
            far: Lane::new(now, spec.waits.block),
            round: 0,
            settled: 0,
            asks_at: now + spec.waits.block * 4 + spec.waits.answer,
            ask_wait: spec.waits.block / 2,
            starves_at: spec.source.is_none().then(|| now + spec.waits.starved),
            done: false,
            stats: Stats::default(),
            spec,
        }
    }

    /// What is held here.
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Goes on to a later ring that another member is in.
    fn follow(&mut self, ring: u64) {
        if ring > self.ring {
            (self.ring, self.attempt) = (ring, 0);
        }
    }

    /// A member is in that ring, and of that pace.
    fn hears(&mut self, from: Member, ring: u64, pace: Pace) {
        self.follow(ring);
        self.peers.goes(from, pace);
    }

    fn say(&mut self, to: Member, signal: Signal) {
        self.outbox.push_back(Output::Signal { to, signal });
    }

    fn signal(&mut self, now: Time, from: Member, signal: &Signal) {
        if !self.peers.is_here(from) {
            return;
        }
        match signal {
            Signal::Offer { transfer, ring, pace } => {
                self.hears(from, *ring, *pace);
                self.offered(now, from, *transfer);
            }
            Signal::Head(head) => self.announced(now, from, head),
            Signal::Withdraw { transfer } => self.withdrawn(from, *transfer),
            Signal::Grant { transfer, ring, pace, have } => {
                self.hears(from, *ring, *pace);
                self.granted(now, from, *transfer, have);
            }
            Signal::Refuse { transfer, ring, pace, complete } => {
                self.hears(from, *ring, *pace);
                if self.outgoing.take(from, *transfer).is_some() {
                    self.refused(now, from, *complete);
                }
            }
            Signal::Stop { transfer } => self.stopped(now, from, *transfer),
            Signal::Entered { generation, row } => {
                if !self.is_far(from) {
                    self.rack.learn(*generation, row);
                }
            }
            Signal::Left { generation, row } => {
                if !self.is_far(from) {
                    self.left.learn(*generation, row);
                }
            }
            Signal::Ask { have } => {
                self.peers.said(from, have);
                self.peers.lacks(from);
                self.asked = Some(from);
            }
        }
    }
}

/// Receiving.
impl Swarm {
    fn offered(&mut self, now: Time, from: Member, transfer: u32) {
        let known = self.incoming.find(from, transfer).map(|granted| granted.block.is_some());
        // What is not checked yet may be polluted, and come again.
        let complete = self.holdings.is_whole();
        // What the rack has comes from within it; unless it does not, as if what was announced there has not come.
        let idle = self.incoming.is_empty() && self.ask_wait > self.ask_wait_min();
        let held = if self.is_far(from) && !idle { &self.rack } else { &self.holdings };
        let mut have = held.expected(self.incoming.blocks());
        self.pollution.withheld(now, from).for_each(|number| have.fill(&self.spec.division, number));
        match known {
            Some(true) => {}
            None if !self.incoming.room(from) || self.holdings.completes(&have) => {
                // Others than the one that is waited for are not called.
                self.lane(from).turned_away = Some(from).filter(|_| self.pollution.is_clear());
                self.say(
                    from,
                    Signal::Refuse { transfer, ring: self.ring, pace: self.paces.pace(), complete },
                );
            }
            _ => {
                if known.is_none() {
                    let until = now + self.spec.waits.answer * 2;
                    self.incoming.add(from, transfer, until);
                }
                let null_vectors = held.null_vectors(self.incoming.blocks(), &mut self.chance);
                let have = Have { null_vectors, ..have };
                self.say(from, Signal::Grant { transfer, ring: self.ring, pace: self.paces.pace(), have });
            }
        }
    }

    /// Whether a row is new beside what is held, and beside what is under way as far as can be told.
    fn wants(&self, generation: u32, row: &Row) -> bool {
        let under_way = || self.incoming.blocks().filter(|(of, _)| *of == generation);
        let Some(held) = self.holdings.generation(generation) else { return false };
        let room = under_way().count() < usize::from(held.size() - held.rank());
        room && held.lacks(row) && under_way().all(|(_, other)| other != row)
    }

    fn announced(&mut self, now: Time, from: Member, head: &BlockHead) {
        self.round = self.round.max(head.round);
        let BlockHead { transfer, generation, row, checked, .. } = head;
        if self.incoming.find(from, *transfer).is_some_and(|known| known.block.is_some()) {
            return;
        }
        let wanted = self.pollution.admits(now, from, *generation, *checked) && self.wants(*generation, row);
        let Waits { answer, transfer: whole, .. } = self.spec.waits;
        // A block in place of one that was not new has a number of its own.
        if let Some(granted) = self.incoming.granted(from) {
            granted.number = *transfer;
            granted.until = now + if wanted { whole } else { answer * 2 };
            granted.block = wanted.then(|| (*generation, row.clone()));
            granted.checked = *checked;
            if wanted {
                if self.pollution.expect(from, *generation, now + whole) {
                    self.drop_rows(now, *generation, Some(from));
                }
                return self.enters(from, *generation, row);
            }
        }
        self.say(from, Signal::Stop { transfer: *transfer });
    }

    fn received(&mut self, now: Time, from: Member, transfer: u32) {
        let came = self.incoming.take(from, transfer);
        let checked = came.as_ref().is_some_and(|transfer| transfer.checked);
        let block = came.and_then(|transfer| transfer.block);
        let slot = block.as_ref().and_then(|(generation, row)| self.holdings.insert(*generation, row));
        self.ask_wait = self.ask_wait_min();
        self.asks_at = now + self.ask_wait + self.spec.waits.answer;
        match (block, slot) {
            (Some((generation, row)), Some(slot)) => {
                self.outbox.push_back(Output::Store { from, transfer, generation, slot });
                self.rack.learn(generation, &row);
                self.pollution.came(generation, Origin { from, checked, row, slot });
                self.grown(now, generation);
            }
            _ => {
                self.stats.vain += 1;
                self.outbox.push_back(Output::Discard { from, transfer });
            }
        }
        self.call_back();
    }

    /// Nothing comes of what was granted: not the block that was announced, nor one in place of a block that was not new.
    fn withdrawn(&mut self, from: Member, transfer: u32) {
        let granted =
            self.incoming.granted(from).map(|granted| granted.number).filter(|number| *number <= transfer);
        let announced = self.incoming.take(from, transfer);
        if let Some(withdrawn) = announced.or_else(|| self.incoming.take(from, granted?)) {
            self.discard(&withdrawn);
        }
    }

    /// A row comes: if it is from another rack, all in this one are told.
    fn enters(&mut self, from: Member, generation: u32, row: &Row) {
        if !self.is_far(from) {
            return;
        }
        self.rack.learn(generation, row);
        self.tell_rack(&Signal::Entered { generation, row: row.clone() });
    }

    /// A row goes: if it is to another rack, all in this one are told.
    fn leaves(&mut self, to: Member, generation: u32, row: &Row) {
        if self.is_far(to) {
            self.left.learn(generation, row);
            self.tell_rack(&Signal::Left { generation, row: row.clone() });
        }
    }

    fn tell_rack(&mut self, signal: &Signal) {
        let signals =
            self.peers.in_rack(self.spec.me.rack).map(|to| Output::Signal { to, signal: signal.clone() });
        self.outbox.extend(signals);
    }

    fn ask_of(&mut self, to: Member) {
        self.stats.asks += 1;
        self.say(to, Signal::Ask { have: self.holdings.have().clone() });
    }

    fn placed(&mut self, now: Time, block: u32) {
        let (generation, block) = self.holdings.division().place(block);
        if self.holdings.insert(generation, &Row::Block(block)).is_some() {
            self.rack.learn(generation, &Row::Block(block));
            self.grown(now, generation);
        }
    }

    /// Something new is here.
    fn grown(&mut self, now: Time, generation: u32) {
        if self.pollution.is_progress(generation) {
            self.starves_later(now);
        }
        if let Some(recoveries) = self.holdings.decoding(generation) {
            if self.pollution.is_of_others(generation) {
                self.outbox.push_back(Output::Decode { generation, recoveries });
            } else {
                self.decoded(generation);
            }
        }
        let holdings = &self.holdings;
        let vain = self.incoming.without(|_, of, row| of == generation && !holdings.lacks(of, row));
        self.stop(vain);
    }

    /// Something new is here, unless all is.
    fn starves_later(&mut self, now: Time) {
        self.starves_at = (!self.holdings.is_complete()).then(|| now + self.spec.waits.starved);
    }

    /// Blocks that are under way need not come.
    fn stop(&mut self, transfers: Vec<Transfer>) {
        for transfer in transfers {
            self.say(transfer.peer, Signal::Stop { transfer: transfer.number });
            self.discard(&transfer);
        }
    }

    fn decoded(&mut self, generation: u32) {
        if let Some(suspects) = self.pollution.right(generation) {
            self.outbox.push_back(Output::Audit { generation, suspects });
        }
        self.holdings.decoded(generation);
        if self.holdings.is_whole() && !core::mem::replace(&mut self.done, true) {
            self.outbox.push_back(Output::Done);
        }
    }

    /// The rows of a generation are not what their heads said.
    fn polluted(&mut self, now: Time, generation: u32) {
        let liar = self.pollution.polluted(generation);
        self.drop_rows(now, generation, None);
        if let Some(liar) = liar {
            self.expel(liar);
        }
    }

    fn refuted(&mut self, from: Member, checked: bool) {
        if checked {
            self.expel(from);
        } else {
            self.pollution.doubt(from);
        }
    }

    fn expel(&mut self, member: Member) {
        if self.pollution.expel(member) {
            self.gone(member);
            self.outbox.push_back(Output::Expelled(member));
        }
    }

    /// Rows of a generation that are held, and under way from others than one, count no more.
    fn drop_rows(&mut self, now: Time, generation: u32, but: Option<Member>) {
        self.pollution.drop_rows(generation);
        self.holdings.reset(generation);
        // What others have said that they hold may be as wrong.
        self.rack = self.holdings.clone();
        self.left = Holdings::empty(self.spec.division, self.spec.code, self.spec.order);
        let others = self.incoming.without(|from, of, _| of == generation && but != Some(from));
        self.stop(others);
        self.starves_at.get_or_insert(now + self.spec.waits.starved);
        self.asks_at = now;
    }

    fn ask_wait_min(&self) -> Duration {
        self.spec.waits.block / 2
    }

    /// Asks somebody else each time, while nothing is under way.
    fn ask(&mut self, now: Time) {
        if self.holdings.is_complete() || now < self.asks_at {
            return;
        }
        self.ask_wait = (self.ask_wait * 2).min(self.spec.waits.block * 16);
        self.asks_at = now + self.ask_wait + self.spec.waits.answer;
        if self.incoming.is_empty()
            && let Some(to) = self.pollution.sole(now).or_else(|| self.next_in_ring(|_, _| true))
        {
            self.ask_of(to);
        }
    }

    fn starve(&mut self, now: Time) {
        if self.starves_at.is_some_and(|at| at <= now) {
            self.starves_at = None;
            let division = *self.holdings.division();
            let lacks = |generation| {
                let rank = self.holdings.generation(generation).map_or(0, |held| held.rank());
                (generation, division.size(generation) - rank)
            };
            let lacking = (0..division.generations()).map(lacks).filter(|(_, rows)| *rows > 0).collect();
            self.outbox.push_back(Output::Starved { lacking });
        }
    }
}

/// Members and time.
impl Swarm {
    fn joined(&mut self, now: Time, member: Member) {
        if member == self.spec.me || self.pollution.is_expelled(member) {
            return;
        }
        self.parted(member);
        self.rings.include(member);
        self.peers.join(member);
        self.lane(member).open(now);
    }

    fn gone(&mut self, member: Member) {
        self.parted(member);
        self.peers.leave(member);
        self.pollution.gone(member);
    }

    /// Ends what is under way with a member.
    fn parted(&mut self, member: Member) {
        if !self.is_far(member) {
            // What it alone held is held no more.
            self.rack = self.holdings.clone();
        } else {
            // Likewise, what it alone has got.
            self.left = Holdings::empty(self.spec.division, self.spec.code, self.spec.order);
        }
        let outgoing = self.outgoing.of(member);
        outgoing.into_iter().for_each(|transfer| self.given_up(transfer));
        for transfer in self.incoming.of(member) {
            self.discard(&transfer);
        }
        self.last = self.last.filter(|last| *last != member);
        self.asked = self.asked.filter(|asked| *asked != member);
        self.lane(member).turned_away.take_if(|away| *away == member);
    }

    fn given_up(&mut self, transfer: Transfer) {
        if let Some((generation, row)) = transfer.block {
            self.holdings.lost(generation, &row);
            self.outbox.push_back(Output::Cancel { to: transfer.peer, transfer: transfer.number });
        }
    }

    fn discard(&mut self, transfer: &Transfer) {
        if transfer.block.is_some() {
            self.outbox.push_back(Output::Discard { from: transfer.peer, transfer: transfer.number });
        }
    }

    /// Gives up what has been waited for long enough.
    fn expire(&mut self, now: Time) {
        for transfer in self.outgoing.expired(now) {
            // Who does not answer, or is too slow, is left alone for a while: whether it is gone others find out.
            self.peers.rest(transfer.peer, now + self.spec.waits.block * 4);
            self.lane(transfer.peer).refused();
            self.given_up(transfer);
        }
        for transfer in self.incoming.expired(now) {
            self.discard(&transfer);
        }
    }

    fn deadline(&self) -> Option<Time> {
        let complete = self.holdings.is_complete();
        let under_way = earliest(self.incoming.next(), self.outgoing.next());
        let offers = earliest(self.offers_at(false), self.offers_at(true));
        let own = earliest(self.starves_at, (!complete).then_some(self.asks_at));
        earliest(earliest(under_way, own), offers)
    }
}

impl Machine for Swarm {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Signal { from, signal } => self.signal(now, from, signal),
            Input::Nearly { peer, transfer, sent: true } => {
                self.outgoing.nearly(peer, transfer);
                self.lane(peer).open(now);
            }
            Input::Nearly { peer, transfer, sent: false } => {
                self.incoming.nearly(peer, transfer);
                self.call_back();
            }
            Input::Received { from, transfer, took } => {
                if let Some(took) = took {
                    // Those under way shared the link.
                    let share = self.incoming.blocks().count().max(1) as u32;
                    self.paces.came(took / share, self.peers.pace(from));
                }
                self.received(now, from, transfer);
            }
            Input::Sent { to, transfer, arrived } => self.sent(now, to, transfer, arrived),
            Input::Placed { block } => self.placed(now, block),
            Input::Decoded { generation } => self.decoded(generation),
            Input::Polluted { generation } => self.polluted(now, generation),
            Input::Refuted { from, checked } => self.refuted(from, checked),
            Input::Joined(member) => self.joined(now, member),
            Input::Gone(member) => self.gone(member),
            Input::Settled { generation } => self.settled = self.settled.max(generation),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        if self.outbox.is_empty() {
            self.expire(now);
            self.ask(now);
            self.starve(now);
            self.offer(now);
        }
        match self.outbox.pop_front() {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(self.deadline()),
        }
    }
}

#[cfg(test)]
mod tests;
