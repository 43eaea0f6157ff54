//! The retransmissions that nodes further down the chain have requested, and their order.

use crate::inputs_outputs::PacketTarget;
use crate::intervals::IntervalSet;
use crate::packet::{MAX_RANGES, Via};
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

/// Most ranges that are stored for one requester. Further chunks must be requested again.
const RANGES_MAX: usize = 1024;
/// The serial of chunks that arrived after they were requested.
const FORWARDED: u16 = 0;

/// A chunk to be retransmitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Retransmission {
    pub(crate) to: PacketTarget,
    pub(crate) chunk: u32,
    pub(crate) echo: u16,
    pub(crate) via: Via,
    /// The part of the chunk, or zero for the whole chunk.
    pub(crate) part: u8,
}

/// The requests of one node.
#[derive(Debug, Default)]
struct NodeRequests {
    /// The chunks to be sent, with the serial of their NAK, or zero for chunks that arrived later.
    /// The order is that of the NAKs and arrivals, because the requester detects losses by it.
    queue: VecDeque<(u16, Range<u32>)>,
    /// The chunks in `queue`.
    queued: IntervalSet,
    /// Requested chunks that are not held yet.
    pending: IntervalSet,
    /// Whether chunks that arrive over the tree must be forwarded too.
    forward_live: bool,
    /// Whether chunks must be sent in parts.
    in_parts: bool,
    /// Number of parts of the first chunk in `queue` that have been sent.
    parts_sent: u8,
}

impl NodeRequests {
    /// Queues the chunks that are not queued yet, until the queue is full.
    fn enqueue(&mut self, serial: u16, chunks: Range<u32>) {
        let new: Vec<Range<u32>> = self.queued.gaps(chunks).collect();
        for part in new {
            let full = self.queue.len() >= RANGES_MAX;
            match self.queue.back_mut() {
                Some((last, range)) if *last == serial && range.end == part.start => range.end = part.end,
                _ if full => return,
                _ => self.queue.push_back((serial, part.clone())),
            }
            self.queued.insert(part);
        }
    }

    /// Returns the next serial, chunk and part. `parts` returns the number of parts of a chunk.
    fn dequeue(&mut self, parts: impl Fn(u32) -> u8) -> Option<(u16, u32, u8)> {
        let (serial, chunks) = self.queue.front_mut()?;
        let parts = if self.in_parts { parts(chunks.start) } else { 1 };
        let part = if parts > 1 { self.parts_sent + 1 } else { 0 };
        let next = (*serial, chunks.start, part);
        if part > 0 && part < parts {
            self.parts_sent = part;
            return Some(next);
        }
        self.parts_sent = 0;
        chunks.start += 1;
        if chunks.start >= chunks.end {
            self.queue.pop_front();
        }
        self.queued.remove(next.1..next.1 + 1);
        Some(next)
    }
}

/// All requests that are pending at this node.
#[derive(Debug, Default)]
pub(crate) struct RetransmitQueue {
    wants: BTreeMap<u16, NodeRequests>,
    /// Chunks to be multicast in this rack, each of which has just arrived.
    to_rack: VecDeque<u32>,
    /// The node served last. Nodes take turns.
    last: u16,
}

impl RetransmitQueue {
    /// Handles a NAK of a node. Returns the chunks that are not in `held`, up to the number that a
    /// confirmation can hold.
    pub(crate) fn on_nak(
        &mut self,
        node: u16,
        (serial, forward_live): (u16, bool),
        chunks: &[Range<u32>],
        held: &IntervalSet,
    ) -> Vec<Range<u32>> {
        let want = self.wants.entry(node).or_default();
        want.forward_live = forward_live;
        let mut missing = Vec::new();
        for range in chunks {
            for part in held.overlaps(range.clone()) {
                want.enqueue(serial, part);
            }
            for part in held.gaps(range.clone()) {
                if want.pending.range_count() < RANGES_MAX && missing.len() < MAX_RANGES {
                    want.pending.insert(part.clone());
                    missing.push(part);
                }
            }
        }
        missing
    }

    /// Sets whether chunks must be sent to a node in parts.
    pub(crate) fn set_in_parts(&mut self, node: u16, in_parts: bool) {
        let want = self.wants.entry(node).or_default();
        if std::mem::replace(&mut want.in_parts, in_parts) != in_parts {
            want.parts_sent = 0;
        }
    }

    /// Returns whether a node that receives the multicast waits for a chunk that is not held.
    pub(crate) fn is_awaited(&self, node: u16, chunk: u32) -> bool {
        self.wants.get(&node).is_some_and(|want| !want.forward_live && want.pending.contains(chunk))
    }

    /// Queues a chunk that has just arrived for a multicast in this rack.
    pub(crate) fn multicast(&mut self, chunk: u32) {
        self.to_rack.push_back(chunk);
    }

    /// Records a chunk that has arrived. `multicast_to` returns whether a node receives it by
    /// multicast; such a node is not sent the chunk unless it cannot receive multicasts.
    pub(crate) fn on_chunk(&mut self, chunk: u32, multicast_to: impl Fn(u16) -> bool) {
        for (node, want) in self.wants.iter_mut().filter(|(_, want)| !want.pending.is_empty()) {
            if want.pending.remove(chunk..chunk + 1) == 1 && (want.forward_live || !multicast_to(*node)) {
                want.enqueue(FORWARDED, chunk..chunk + 1);
            }
        }
    }

    /// Records that all chunks are held.
    pub(crate) fn on_all_chunks(&mut self) {
        for want in self.wants.values_mut() {
            for range in core::mem::take(&mut want.pending).ranges() {
                want.enqueue(FORWARDED, range);
            }
        }
    }

    /// Returns the entries of its lists.
    pub(crate) fn entries(&self) -> usize {
        let of =
            |want: &NodeRequests| want.queue.len() + want.queued.range_count() + want.pending.range_count();
        self.wants.values().map(of).sum::<usize>() + self.to_rack.len()
    }

    /// Returns whether a chunk is queued.
    pub(crate) fn is_busy(&self) -> bool {
        self.wants.values().any(|want| !want.queue.is_empty())
    }

    /// Returns the next chunk, or part of one, to send. `parts` returns the number of parts of a
    /// chunk.
    pub(crate) fn next(&mut self, parts: impl Fn(u32) -> u8) -> Option<Retransmission> {
        if let Some(chunk) = self.to_rack.pop_front() {
            let (to, via) = (PacketTarget::Rack, Via::Rack);
            return Some(Retransmission { to, chunk, echo: FORWARDED, via, part: 0 });
        }
        let mut after = self.wants.range(self.last.saturating_add(1)..).chain(self.wants.range(..=self.last));
        let node = *after.find(|(_, want)| !want.queue.is_empty())?.0;
        self.last = node;
        let (echo, chunk, part) = self.wants.get_mut(&node)?.dequeue(parts)?;
        let via = if echo == FORWARDED { Via::Forwarded } else { Via::Answer };
        Some(Retransmission { to: PacketTarget::Node(node), chunk, echo, via, part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[Range<u32>]) -> IntervalSet {
        ranges.iter().cloned().collect()
    }

    fn sent(queue: &mut RetransmitQueue) -> Vec<(PacketTarget, u32, Via)> {
        core::iter::from_fn(|| queue.next(|_| 3).map(|s| (s.to, s.chunk, s.via))).collect()
    }

    #[test]
    fn held_chunks_are_sent_at_once_and_others_when_they_arrive() {
        let mut queue = RetransmitQueue::default();
        let missing = queue.on_nak(7, (1, false), &[2..5], &set(&[0..3]));
        assert_eq!(missing, [3..5]);
        assert_eq!(sent(&mut queue), [(PacketTarget::Node(7), 2, Via::Answer)]);
        queue.on_chunk(4, |_| false);
        queue.on_chunk(9, |_| false);
        assert_eq!(sent(&mut queue), [(PacketTarget::Node(7), 4, Via::Forwarded)]);
    }

    #[test]
    fn tree_chunks_are_forwarded_only_to_nodes_off_the_tree() {
        let mut queue = RetransmitQueue::default();
        queue.on_nak(1, (1, false), &[0..1], &set(&[]));
        queue.on_nak(2, (1, true), &[0..1], &set(&[]));
        queue.on_chunk(0, |_| true);
        assert_eq!(sent(&mut queue), [(PacketTarget::Node(2), 0, Via::Forwarded)]);
        assert!(!queue.is_busy());
    }

    #[test]
    fn rack_multicasts_are_forwarded_only_out_of_the_rack() {
        let mut queue = RetransmitQueue::default();
        queue.on_nak(1, (1, false), &[0..2], &set(&[]));
        queue.on_nak(2, (1, false), &[0..2], &set(&[]));
        assert!(queue.is_awaited(1, 0) && !queue.is_awaited(1, 2) && !queue.is_awaited(3, 0));
        queue.multicast(0);
        queue.on_chunk(0, |node| node == 1);
        assert_eq!(
            sent(&mut queue),
            [(PacketTarget::Rack, 0, Via::Rack), (PacketTarget::Node(2), 0, Via::Forwarded)]
        );
    }

    #[test]
    fn requesters_take_turns_and_a_repeated_request_adds_nothing() {
        let mut queue = RetransmitQueue::default();
        let held = set(&[0..9]);
        queue.on_nak(1, (1, false), &[0..2], &held);
        queue.on_nak(1, (2, false), &[0..2], &held);
        queue.on_nak(2, (1, false), &[5..7], &held);
        let order: Vec<PacketTarget> = sent(&mut queue).into_iter().map(|(to, ..)| to).collect();
        assert_eq!(order, [1, 2, 1, 2].map(PacketTarget::Node));
    }

    #[test]
    fn answers_leave_in_the_order_of_their_requests() {
        let mut queue = RetransmitQueue::default();
        let held = set(&[0..9]);
        queue.on_nak(1, (1, false), &[6..8], &held);
        queue.on_nak(1, (2, false), &[1..2, 7..9], &held);
        let order: Vec<_> = core::iter::from_fn(|| queue.next(|_| 3).map(|s| (s.echo, s.chunk))).collect();
        assert_eq!(order, [(1, 6), (1, 7), (2, 1), (2, 8)]);
    }

    #[test]
    fn the_state_of_a_hostile_requester_is_bounded() {
        let mut queue = RetransmitQueue::default();
        for n in 0..100_000 {
            queue.on_nak(1, (1, false), &[2 * n..2 * n + 1], &set(&[]));
            queue.on_nak(1, (1, false), &[2 * n..2 * n + 1], &set(&[0..1_000_000]));
        }
        assert!(queue.wants[&1].pending.range_count() <= RANGES_MAX);
        assert!(queue.wants[&1].queue.len() <= RANGES_MAX);
    }

    #[test]
    fn chunks_are_sent_in_parts_to_nodes_that_request_it() {
        let mut queue = RetransmitQueue::default();
        let held = set(&[0..9]);
        queue.set_in_parts(1, true);
        queue.on_nak(1, (1, false), &[4..6], &held);
        let parts = |chunk| if chunk == 4 { 3 } else { 1 };
        let next = |queue: &mut RetransmitQueue| queue.next(parts).map(|s| (s.chunk, s.part));
        let sent: Vec<_> = core::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(sent, [(4, 1), (4, 2), (4, 3), (5, 0)]);
        // A node that changes its mind gets whole chunks.
        queue.on_nak(1, (2, false), &[4..5], &held);
        assert_eq!(next(&mut queue), Some((4, 1)));
        queue.set_in_parts(1, false);
        assert_eq!(next(&mut queue), Some((4, 0)));
        assert!(!queue.is_busy());
    }
}
