//! Blocks that go, within the rack and beyond it: in each lane a few at a time, the next when one of them is half through.

use crate::memory::Bytes;
use crate::pacer::Pacer;
use cool_swarm::{Member, blocks_at_a_time};
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Who gets a block, and its number.
pub(crate) type Transfer = (Member, u32);

#[derive(Debug)]
struct Current {
    transfer: Transfer,
    /// The system has all of it, and the receiver half of it.
    handed_over: bool,
    half: bool,
}

#[derive(Debug)]
struct Lane {
    ready: VecDeque<(Transfer, Bytes)>,
    current: Vec<Current>,
    /// As many at most.
    at_a_time: usize,
}

#[derive(Debug)]
pub(crate) struct Sending {
    rack: u32,
    /// Asked for, and not added up yet.
    adding: BTreeSet<Transfer>,
    /// What goes beyond the rack shares an uplink with others, and holds up nothing that goes within it.
    near: Lane,
    far: Lane,
    pace: Pacer,
}

impl Sending {
    /// From a member of that rack; `limit` bytes go in a second at most.
    pub(crate) fn new(rack: u32, limit: Option<u64>) -> Sending {
        let [near, far] = [false, true].map(|far| Lane::new(blocks_at_a_time(far)));
        Sending { rack, adding: BTreeSet::new(), near, far, pace: Pacer::new(limit, Duration::ZERO) }
    }

    fn lane(&mut self, to: Member) -> &mut Lane {
        if to.rack == self.rack { &mut self.near } else { &mut self.far }
    }

    /// A block is being added up.
    pub(crate) fn add(&mut self, transfer: Transfer) {
        self.adding.insert(transfer);
    }

    /// It is; nothing becomes of it if it was cancelled meanwhile.
    pub(crate) fn added(&mut self, transfer: Transfer, bytes: Bytes) {
        if self.adding.remove(&transfer) {
            self.lane(transfer.0).ready.push_back((transfer, bytes));
        }
    }

    /// The next block to hand over at `now`, if its turn has come.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(Transfer, Bytes)> {
        if self.pace.due().is_some_and(|due| now < due) {
            return None;
        }
        let lane = [&mut self.far, &mut self.near].into_iter().find(|lane| lane.can_go())?;
        let (transfer, bytes) = lane.ready.pop_front()?;
        lane.current.push(Current { transfer, handed_over: false, half: false });
        self.pace.went(now, bytes.len());
        Some((transfer, bytes))
    }

    /// When a block may go that has to wait only for its time.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.pace.due().filter(|_| self.far.can_go() || self.near.can_go())
    }

    pub(crate) fn handed_over(&mut self, transfer: Transfer) {
        self.lane(transfer.0).step(transfer, |current| current.handed_over = true);
    }

    pub(crate) fn half(&mut self, transfer: Transfer) {
        self.lane(transfer.0).step(transfer, |current| current.half = true);
    }

    /// It has arrived, or is not sent any more.
    pub(crate) fn end(&mut self, transfer: Transfer) {
        self.adding.remove(&transfer);
        self.lane(transfer.0).end(|other| other == transfer);
    }

    /// Nothing goes to a member any more.
    pub(crate) fn end_all(&mut self, to: Member) {
        self.adding.retain(|(other, _)| *other != to);
        self.lane(to).end(|(other, _)| other == to);
    }
}

impl Lane {
    fn new(at_a_time: usize) -> Lane {
        Lane { ready: VecDeque::new(), current: Vec::new(), at_a_time }
    }

    fn can_go(&self) -> bool {
        self.current.len() < self.at_a_time && !self.ready.is_empty()
    }

    fn end(&mut self, such: impl Fn(Transfer) -> bool) {
        self.ready.retain(|(transfer, _)| !such(*transfer));
        self.current.retain(|current| !such(current.transfer));
    }

    fn step(&mut self, transfer: Transfer, step: impl FnOnce(&mut Current)) {
        if let Some(current) = self.current.iter_mut().find(|current| current.transfer == transfer) {
            step(current);
        }
        self.current.retain(|current| !(current.handed_over && current.half));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One more than go at a time.
    fn receivers(rack: u32) -> Vec<Member> {
        (0..=blocks_at_a_time(rack != 0) as u32).map(|slot| Member { rack, slot }).collect()
    }

    fn with_blocks_to(receivers: &[Member], limit: Option<u64>) -> Sending {
        let mut sending = Sending::new(0, limit);
        receivers.iter().for_each(|to| ready(&mut sending, *to));
        sending
    }

    fn ready(sending: &mut Sending, to: Member) {
        sending.add((to, 1));
        sending.added((to, 1), vec![0; 100].into());
    }

    /// All that go at once.
    fn gone(sending: &mut Sending, now: Instant) -> Vec<Member> {
        core::iter::from_fn(|| sending.next(now)).map(|((to, _), _)| to).collect()
    }

    #[test]
    fn what_goes_beyond_the_rack_waits_for_nothing_within_it() {
        let now = Instant::now();
        let (near, far) = (receivers(0), receivers(1));
        let mut sending = with_blocks_to(&near, None);
        assert_eq!(gone(&mut sending, now), near[..near.len() - 1]);
        far.iter().for_each(|to| ready(&mut sending, *to));
        assert_eq!(gone(&mut sending, now), far[..far.len() - 1]);
    }

    #[test]
    fn a_block_goes_when_one_before_is_half_through_or_given_up() {
        let now = Instant::now();
        let to = receivers(0);
        let last = *to.last().unwrap();
        let mut sending = with_blocks_to(&to, None);
        gone(&mut sending, now);
        sending.handed_over((to[1], 1));
        assert!(sending.next(now).is_none(), "it may wait anywhere on its way");
        sending.half((to[1], 1));
        assert_eq!(gone(&mut sending, now), [last]);
        let mut sending = with_blocks_to(&to, None);
        gone(&mut sending, now);
        sending.end_all(to[0]);
        assert_eq!(gone(&mut sending, now), [last]);
    }

    #[test]
    fn what_was_cancelled_while_it_was_added_up_does_not_go() {
        let mut sending = Sending::new(0, None);
        let to = Member { rack: 0, slot: 1 };
        sending.add((to, 1));
        sending.end((to, 1));
        sending.added((to, 1), vec![0; 100].into());
        assert!(sending.next(Instant::now()).is_none());
    }

    #[test]
    fn no_more_goes_in_a_second_than_is_allowed() {
        let now = Instant::now();
        let mut sending = with_blocks_to(&receivers(0), Some(200));
        sending.next(now);
        assert!(sending.next(now + Duration::from_millis(499)).is_none());
        assert_eq!(sending.due(), Some(now + Duration::from_millis(500)));
        assert!(sending.next(now + Duration::from_millis(500)).is_some());
    }
}
