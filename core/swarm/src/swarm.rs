//! The machine of one member.

mod demand;
mod receivers;
mod sending;

use crate::api::{BlockAnnouncement, Input, Output, Signal, SwarmSpec, SwarmStats, Waits};
use crate::generation::CodedBlock;
use crate::holdings::{Code, Holdings, HoldingsReport};
use crate::lane::Lane;
use crate::link_rates::{BlockTime, LinkRateEstimator};
use crate::peers::Peers;
use crate::pollution::{Origin, Pollution};
use crate::rings::{Member, Rings};
use crate::transfers::{Transfer, Transfers};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// A member of a swarm. The crate's front page describes how to drive it.
#[derive(Debug)]
pub struct Swarm {
    spec: SwarmSpec,
    rings: Rings,
    peers: Peers,
    holdings: Holdings,
    /// The joint holdings of this node's rack, as known to this node.
    rack: Holdings,
    /// The coded blocks that have left this rack for other racks.
    left: Holdings,
    pollution: Pollution,
    rng: ChaCha8Rng,
    incoming: Transfers,
    outgoing: Transfers,
    outbox: VecDeque<Output>,
    /// The ring and attempt of the next offer, and the number of the last transfer.
    ring: u64,
    attempt: u8,
    transfer: u32,
    /// The receiver of the last block within the rack.
    last: Option<Member>,
    /// The last member that requested a block.
    asked: Option<Member>,
    /// Transfer times of received blocks, and this member's link rate.
    link_rates: LinkRateEstimator,
    /// Pauses and refusals of offers within the rack, and beyond it.
    near: Lane,
    far: Lane,
    /// The paper's round: the number of blocks that the source has sent.
    round: u64,
    settled: u32,
    /// When this node next requests a block, how long it waits after that request, and when it
    /// reports that it is starved.
    asks_at: Time,
    ask_wait: Duration,
    starves_at: Option<Time>,
    done: bool,
    stats: SwarmStats,
}

impl Swarm {
    /// Creates a member that starts at `now`, either without blocks or, as a source, with all of
    /// them.
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
            rng: ChaCha8Rng::seed_from_u64(spec.chance),
            incoming: Transfers::new(spec.me),
            outgoing: Transfers::new(spec.me),
            outbox: VecDeque::new(),
            ring: 0,
            attempt: 0,
            transfer: 0,
            last: None,
            asked: None,
            link_rates: LinkRateEstimator::default(),
            near: Lane::new(now, spec.waits.block),
            far: Lane::new(now, spec.waits.block),
            round: 0,
            settled: 0,
            asks_at: now + spec.waits.block * 4 + spec.waits.answer,
            ask_wait: spec.waits.block / 2,
            starves_at: spec.source.is_none().then(|| now + spec.waits.starved),
            done: false,
            stats: SwarmStats::default(),
            spec,
        }
    }

    /// Returns the blocks that this member holds.
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// Returns the counters of this member's activity.
    pub fn stats(&self) -> SwarmStats {
        self.stats
    }

    /// Advances to a later ring that another member uses.
    fn follow(&mut self, ring: u64) {
        if ring > self.ring {
            (self.ring, self.attempt) = (ring, 0);
        }
    }

    /// Records the ring and link rate that a member sent.
    fn update_peer(&mut self, from: Member, ring: u64, block_time: BlockTime) {
        self.follow(ring);
        self.peers.record_block_time(from, block_time);
    }

    fn send_signal(&mut self, to: Member, signal: Signal) {
        self.outbox.push_back(Output::Signal { to, signal });
    }

    fn signal(&mut self, now: Time, from: Member, signal: &Signal) {
        if !self.peers.is_here(from) {
            return;
        }
        match signal {
            Signal::Offer { transfer, ring, block_time } => {
                self.update_peer(from, *ring, *block_time);
                self.offered(now, from, *transfer);
            }
            Signal::Head(head) => self.announced(now, from, head),
            Signal::Withdraw { transfer } => self.withdrawn(from, *transfer),
            Signal::Grant { transfer, ring, block_time, have } => {
                self.update_peer(from, *ring, *block_time);
                self.granted(now, from, *transfer, have);
            }
            Signal::Refuse { transfer, ring, block_time, complete } => {
                self.update_peer(from, *ring, *block_time);
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
                self.peers.record_holdings(from, have);
                self.peers.set_incomplete(from);
                self.asked = Some(from);
            }
        }
    }
}

/// Receiving.
impl Swarm {
    fn offered(&mut self, now: Time, from: Member, transfer: u32) {
        let known = self.incoming.find(from, transfer).map(|granted| granted.block.is_some());
        // The member is complete only after decoding, because an unchecked generation may be
        // polluted and needed again.
        let complete = self.holdings.is_whole();
        // Blocks that the rack holds should arrive from within it. If nothing arrives for a while,
        // they may be requested from other racks too, because an announced block may have been
        // lost.
        let idle = self.incoming.is_empty() && self.ask_wait > self.ask_wait_min();
        let held = if self.is_far(from) && !idle { &self.rack } else { &self.holdings };
        let mut have = held.expected(self.incoming.blocks());
        self.pollution.withheld(now, from).for_each(|number| have.fill(&self.spec.division, number));
        match known {
            Some(true) => {}
            None if !self.incoming.room(from) || self.holdings.suffices(&have) => {
                // While a generation is accepted from one member only, no other member is called
                // back.
                self.lane(from).turned_away = Some(from).filter(|_| self.pollution.is_clear());
                self.send_signal(
                    from,
                    Signal::Refuse {
                        transfer,
                        ring: self.ring,
                        block_time: self.link_rates.block_time(),
                        complete,
                    },
                );
            }
            _ => {
                if known.is_none() {
                    let until = now + self.spec.waits.answer * 2;
                    self.incoming.add(from, transfer, until);
                }
                let null_vectors = held.null_vectors(self.incoming.blocks(), &mut self.rng);
                let have = HoldingsReport { null_vectors, ..have };
                self.send_signal(
                    from,
                    Signal::Grant {
                        transfer,
                        ring: self.ring,
                        block_time: self.link_rates.block_time(),
                        have,
                    },
                );
            }
        }
    }

    /// Returns whether a coded block is new in addition to those held and, as far as can be decided
    /// without decoding, those under way.
    fn wants(&self, generation: u32, row: &CodedBlock) -> bool {
        let under_way = || self.incoming.blocks().filter(|(of, _)| *of == generation);
        let Some(held) = self.holdings.generation(generation) else { return false };
        let room = under_way().count() < usize::from(held.size() - held.rank());
        room && held.needs(row) && under_way().all(|(_, other)| other != row)
    }

    fn announced(&mut self, now: Time, from: Member, head: &BlockAnnouncement) {
        self.round = self.round.max(head.round);
        let BlockAnnouncement { transfer, generation, row, checked, .. } = head;
        if self.incoming.find(from, *transfer).is_some_and(|known| known.block.is_some()) {
            return;
        }
        let wanted = self.pollution.admits(now, from, *generation, *checked) && self.wants(*generation, row);
        let Waits { answer, transfer: whole, .. } = self.spec.waits;
        // A block that replaces one that was not new has its own number.
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
        self.send_signal(from, Signal::Stop { transfer: *transfer });
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
                self.pollution.record(generation, Origin { from, checked, row, slot });
                self.grown(now, generation);
            }
            _ => {
                self.stats.not_new += 1;
                self.outbox.push_back(Output::Discard { from, transfer });
            }
        }
        self.call_back();
    }

    /// Handles the withdrawal of a granted transfer: either of the block that was announced, or of
    /// one that was to replace a block that was not new.
    fn withdrawn(&mut self, from: Member, transfer: u32) {
        let granted =
            self.incoming.granted(from).map(|granted| granted.number).filter(|number| *number <= transfer);
        let announced = self.incoming.take(from, transfer);
        if let Some(withdrawn) = announced.or_else(|| self.incoming.take(from, granted?)) {
            self.discard(&withdrawn);
        }
    }

    /// Notifies the members of this rack of a coded block that arrives from another rack.
    fn enters(&mut self, from: Member, generation: u32, row: &CodedBlock) {
        if !self.is_far(from) {
            return;
        }
        self.rack.learn(generation, row);
        self.notify_rack(&Signal::Entered { generation, row: row.clone() });
    }

    /// Notifies the members of this rack of a coded block that is sent to another rack.
    fn leaves(&mut self, to: Member, generation: u32, row: &CodedBlock) {
        if self.is_far(to) {
            self.left.learn(generation, row);
            self.notify_rack(&Signal::Left { generation, row: row.clone() });
        }
    }

    fn notify_rack(&mut self, signal: &Signal) {
        let signals =
            self.peers.in_rack(self.spec.me.rack).map(|to| Output::Signal { to, signal: signal.clone() });
        self.outbox.extend(signals);
    }

    fn ask_of(&mut self, to: Member) {
        self.stats.asks += 1;
        self.send_signal(to, Signal::Ask { have: self.holdings.expected(core::iter::empty()) });
    }

    fn placed(&mut self, now: Time, block: u32) {
        let (generation, block) = self.holdings.division().place(block);
        if self.holdings.insert(generation, &CodedBlock::Original(block)).is_some() {
            self.rack.learn(generation, &CodedBlock::Original(block));
            self.grown(now, generation);
        }
    }

    /// Handles a new coded block of a generation.
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
        let not_new = self.incoming.without(|_, of, row| of == generation && !holdings.needs(of, row));
        self.stop(not_new);
    }

    /// Restarts the starvation timer, or stops it if everything is held.
    fn starves_later(&mut self, now: Time) {
        self.starves_at = (!self.holdings.is_complete()).then(|| now + self.spec.waits.starved);
    }

    /// Cancels transfers of blocks that are no longer needed.
    fn stop(&mut self, transfers: Vec<Transfer>) {
        for transfer in transfers {
            self.send_signal(transfer.peer, Signal::Stop { transfer: transfer.number });
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

    /// Handles a generation with coded blocks that do not match their announcements.
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

    /// Drops the coded blocks of a generation that are held, and those under way from members other
    /// than `but`.
    fn drop_rows(&mut self, now: Time, generation: u32, but: Option<Member>) {
        self.pollution.drop_rows(generation);
        self.holdings.reset(generation);
        // The reports of other members may be wrong too.
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

    /// Requests a block, each time from another member, while no transfer is under way.
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
            let missing_of = |generation| {
                let rank = self.holdings.generation(generation).map_or(0, |held| held.rank());
                (generation, division.size(generation) - rank)
            };
            let missing = (0..division.generations()).map(missing_of).filter(|(_, rows)| *rows > 0).collect();
            self.outbox.push_back(Output::Starved { missing });
        }
    }
}

/// Members and time.
impl Swarm {
    fn joined(&mut self, now: Time, member: Member) {
        if member == self.spec.me || self.pollution.is_expelled(member) {
            return;
        }
        self.end_transfers(member);
        self.rings.include(member);
        self.peers.join(member);
        self.lane(member).end_pause(now);
    }

    fn gone(&mut self, member: Member) {
        self.end_transfers(member);
        self.peers.leave(member);
        self.pollution.forget(member);
    }

    /// Ends all transfers with a member.
    fn end_transfers(&mut self, member: Member) {
        if !self.is_far(member) {
            // Blocks that only this member held are no longer available in the rack.
            self.rack = self.holdings.clone();
        } else {
            // Likewise, blocks that only this member received may no longer exist outside the rack.
            self.left = Holdings::empty(self.spec.division, self.spec.code, self.spec.order);
        }
        let outgoing = self.outgoing.of(member);
        outgoing.into_iter().for_each(|transfer| self.give_up(transfer));
        for transfer in self.incoming.of(member) {
            self.discard(&transfer);
        }
        self.last = self.last.filter(|last| *last != member);
        self.asked = self.asked.filter(|asked| *asked != member);
        self.lane(member).turned_away.take_if(|away| *away == member);
    }

    fn give_up(&mut self, transfer: Transfer) {
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

    /// Gives up transfers that have timed out.
    fn expire(&mut self, now: Time) {
        for transfer in self.outgoing.expired(now) {
            // A member that does not reply, or is too slow, receives no offer for a while. Whether
            // it is lost is detected elsewhere.
            self.peers.rest(transfer.peer, now + self.spec.waits.block * 4);
            self.lane(transfer.peer).refused();
            self.give_up(transfer);
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
                self.lane(peer).end_pause(now);
            }
            Input::Nearly { peer, transfer, sent: false } => {
                self.incoming.nearly(peer, transfer);
                self.call_back();
            }
            Input::Received { from, transfer, took } => {
                if let Some(took) = took {
                    // The blocks that are still under way shared the link.
                    let share = self.incoming.blocks().count().max(1) as u32;
                    self.link_rates.record(took / share, self.peers.block_time(from));
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
