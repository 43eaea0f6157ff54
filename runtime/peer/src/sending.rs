//! Outgoing blocks, in two lanes: within the rack and beyond it. Each lane sends a few blocks at a
//! time, and the next one when half of one of them has arrived.

use crate::memory::SharedBytes;
use crate::pacer::Pacer;
use cool_swarm::{Member, blocks_at_a_time};
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// The receiver of a block, and the number of its transfer.
pub(crate) type OutgoingTransfer = (Member, u32);

#[derive(Debug)]
struct BlockInFlight {
    transfer: OutgoingTransfer,
    /// Whether the system has all of it, and whether the receiver has half of it.
    handed_over: bool,
    half: bool,
}

#[derive(Debug)]
struct SendLane {
    ready: VecDeque<(OutgoingTransfer, SharedBytes)>,
    current: Vec<BlockInFlight>,
    /// Maximum number of blocks that are sent at a time.
    at_a_time: usize,
}

#[derive(Debug)]
pub(crate) struct OutgoingBlocks {
    rack: u32,
    /// Blocks that were requested and are not computed yet.
    adding: BTreeSet<OutgoingTransfer>,
    /// Blocks beyond the rack share an uplink with those of other members. They must not delay
    /// blocks within the rack.
    near: SendLane,
    far: SendLane,
    pace: Pacer,
}

impl OutgoingBlocks {
    /// Creates the state for a member of the given rack. `limit` is the maximum rate in bytes per
    /// second.
    pub(crate) fn new(rack: u32, limit: Option<u64>) -> OutgoingBlocks {
        let [near, far] = [false, true].map(|far| SendLane::new(blocks_at_a_time(far)));
        OutgoingBlocks { rack, adding: BTreeSet::new(), near, far, pace: Pacer::new(limit, Duration::ZERO) }
    }

    fn lane(&mut self, to: Member) -> &mut SendLane {
        if to.rack == self.rack { &mut self.near } else { &mut self.far }
    }

    /// Records that the sum for a block is being computed.
    pub(crate) fn add(&mut self, transfer: OutgoingTransfer) {
        self.adding.insert(transfer);
    }

    /// Adds a computed block, unless it was cancelled in the meantime.
    pub(crate) fn added(&mut self, transfer: OutgoingTransfer, bytes: SharedBytes) {
        if self.adding.remove(&transfer) {
            self.lane(transfer.0).ready.push_back((transfer, bytes));
        }
    }

    /// Returns the next block to send at `now`, if one may be sent.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(OutgoingTransfer, SharedBytes)> {
        if self.pace.due().is_some_and(|due| now < due) {
            return None;
        }
        let lane = [&mut self.far, &mut self.near].into_iter().find(|lane| lane.can_go())?;
        let (transfer, bytes) = lane.ready.pop_front()?;
        lane.current.push(BlockInFlight { transfer, handed_over: false, half: false });
        self.pace.record_sent(now, bytes.len());
        Some((transfer, bytes))
    }

    /// Returns when a block may be sent that waits only for the rate limit.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.pace.due().filter(|_| self.far.can_go() || self.near.can_go())
    }

    pub(crate) fn handed_over(&mut self, transfer: OutgoingTransfer) {
        self.lane(transfer.0).step(transfer, |current| current.handed_over = true);
    }

    pub(crate) fn half(&mut self, transfer: OutgoingTransfer) {
        self.lane(transfer.0).step(transfer, |current| current.half = true);
    }

    /// Removes a block that has arrived, or that is not sent any more.
    pub(crate) fn end(&mut self, transfer: OutgoingTransfer) {
        self.adding.remove(&transfer);
        self.lane(transfer.0).end(|other| other == transfer);
    }

    /// Removes all blocks to a member.
    pub(crate) fn end_all(&mut self, to: Member) {
        self.adding.retain(|(other, _)| *other != to);
        self.lane(to).end(|(other, _)| other == to);
    }
}

impl SendLane {
    fn new(at_a_time: usize) -> SendLane {
        SendLane { ready: VecDeque::new(), current: Vec::new(), at_a_time }
    }

    fn can_go(&self) -> bool {
        self.current.len() < self.at_a_time && !self.ready.is_empty()
    }

    fn end(&mut self, such: impl Fn(OutgoingTransfer) -> bool) {
        self.ready.retain(|(transfer, _)| !such(*transfer));
        self.current.retain(|current| !such(current.transfer));
    }

    fn step(&mut self, transfer: OutgoingTransfer, step: impl FnOnce(&mut BlockInFlight)) {
        if let Some(current) = self.current.iter_mut().find(|current| current.transfer == transfer) {
            step(current);
        }
        self.current.retain(|current| !(current.handed_over && current.half));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one receiver more than blocks are sent at a time.
    fn receivers(rack: u32) -> Vec<Member> {
        (0..=blocks_at_a_time(rack != 0) as u32).map(|slot| Member { rack, slot }).collect()
    }

    fn with_blocks_to(receivers: &[Member], limit: Option<u64>) -> OutgoingBlocks {
        let mut sending = OutgoingBlocks::new(0, limit);
        receivers.iter().for_each(|to| ready(&mut sending, *to));
        sending
    }

    fn ready(sending: &mut OutgoingBlocks, to: Member) {
        sending.add((to, 1));
        sending.added((to, 1), vec![0; 100].into());
    }

    /// Returns the receivers of all blocks that may be sent at `now`.
    fn sent_at_once(sending: &mut OutgoingBlocks, now: Instant) -> Vec<Member> {
        core::iter::from_fn(|| sending.next(now)).map(|((to, _), _)| to).collect()
    }

    #[test]
    fn blocks_beyond_the_rack_do_not_wait_for_those_within_it() {
        let now = Instant::now();
        let (near, far) = (receivers(0), receivers(1));
        let mut sending = with_blocks_to(&near, None);
        assert_eq!(sent_at_once(&mut sending, now), near[..near.len() - 1]);
        far.iter().for_each(|to| ready(&mut sending, *to));
        assert_eq!(sent_at_once(&mut sending, now), far[..far.len() - 1]);
    }

    #[test]
    fn a_block_is_sent_when_another_has_half_arrived_or_ended() {
        let now = Instant::now();
        let to = receivers(0);
        let last = *to.last().unwrap();
        let mut sending = with_blocks_to(&to, None);
        sent_at_once(&mut sending, now);
        sending.handed_over((to[1], 1));
        assert!(sending.next(now).is_none(), "it may be queued anywhere in the network");
        sending.half((to[1], 1));
        assert_eq!(sent_at_once(&mut sending, now), [last]);
        let mut sending = with_blocks_to(&to, None);
        sent_at_once(&mut sending, now);
        sending.end_all(to[0]);
        assert_eq!(sent_at_once(&mut sending, now), [last]);
    }

    #[test]
    fn a_block_cancelled_while_it_is_computed_is_not_sent() {
        let mut sending = OutgoingBlocks::new(0, None);
        let to = Member { rack: 0, slot: 1 };
        sending.add((to, 1));
        sending.end((to, 1));
        sending.added((to, 1), vec![0; 100].into());
        assert!(sending.next(Instant::now()).is_none());
    }

    #[test]
    fn the_rate_limit_is_not_exceeded() {
        let now = Instant::now();
        let mut sending = with_blocks_to(&receivers(0), Some(200));
        sending.next(now);
        assert!(sending.next(now + Duration::from_millis(499)).is_none());
        assert_eq!(sending.due(), Some(now + Duration::from_millis(500)));
        assert!(sending.next(now + Duration::from_millis(500)).is_some());
    }
}
