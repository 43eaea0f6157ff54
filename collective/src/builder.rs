//! Where patterns write their messages. A pattern says who sends which bytes to whom; the builder numbers
//! the transfers, puts both ends into the programs of the ranks that are kept, and finds what each action
//! must wait for from the bytes that it touches.

use crate::layout::{Layout, Scope};
use crate::schedule::{Action, ActionId, Buffer, Kind, Program, Rank, Span, TransferId};
use crate::track::Tracker;
use std::collections::BTreeMap;

/// Segments that may be under way through one piece of working memory: one arriving, one being worked on,
/// one leaving.
const WINDOW: usize = 3;

/// Slots in working memory begin at multiples of a cache line, so that any element type is aligned.
const ALIGN: u64 = 64;

/// Bytes at a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) rank: Rank,
    pub(crate) span: Span,
}

/// What a slot in a rank's working memory is for. Slots of one purpose are used in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Slot {
    /// What came from a rank and waits to be combined or put in its places.
    From(Rank),
    /// The combination of the values of a node or rack.
    Partial,
    /// The combination of all values, where its destination is elsewhere.
    Total,
    /// Parts on their way through a leader, by level: 0 node, 1 rack, 2 data center.
    Parts(u8),
    /// Parts put side by side for one message to a rank.
    To(Rank),
    /// What a multicast brings to the rank that has it already.
    Discard,
}

/// Offsets of slots, taken in turn.
#[derive(Debug, Default)]
struct Ring {
    slots: Vec<u64>,
    next: usize,
}

#[derive(Debug, Default)]
struct Draft {
    program: Program,
    tracker: Tracker,
    rings: BTreeMap<Slot, Ring>,
}

#[derive(Debug)]
pub(crate) struct Builder<'a> {
    layout: &'a Layout,
    drafts: Vec<Option<Draft>>,
    transfers: u64,
    slot_bytes: u64,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(layout: &'a Layout, keep: impl Fn(Rank) -> bool) -> Builder<'a> {
        let drafts = layout.ranks().map(|rank| keep(rank).then(Draft::default)).collect();
        Builder { layout, drafts, transfers: 0, slot_bytes: ALIGN }
    }

    pub(crate) fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Says how long the longest segment is, before the first slot is asked for.
    pub(crate) fn set_segment(&mut self, bytes: u64) {
        self.slot_bytes = bytes.next_multiple_of(ALIGN);
    }

    /// The programs; none if they have more transfers than have numbers.
    pub(crate) fn finish(self) -> Option<Vec<Option<Program>>> {
        u32::try_from(self.transfers).ok()?;
        Some(self.drafts.into_iter().map(|draft| Some(draft?.program)).collect())
    }

    /// `len` bytes of working memory at `rank`, free as soon as what last used them there is done.
    pub(crate) fn slot(&mut self, rank: Rank, slot: Slot, len: u64) -> Span {
        debug_assert!(len <= self.slot_bytes, "a slot of {len} bytes for segments of {}", self.slot_bytes);
        // Parts of all racks pass through the last leader at once.
        let window = if slot == Slot::Parts(2) { WINDOW * self.layout.racks() } else { WINDOW };
        let slot_bytes = self.slot_bytes;
        let Some(draft) = self.draft(rank) else { return Span { buffer: Buffer::Scratch, offset: 0, len } };
        let ring = draft.rings.entry(slot).or_default();
        if ring.slots.len() < window {
            ring.slots.push(draft.program.scratch);
            draft.program.scratch += slot_bytes;
        }
        let offset = ring.slots[ring.next % ring.slots.len()];
        ring.next += 1;
        Span { buffer: Buffer::Scratch, offset, len }
    }

    /// Moves bytes from one rank to another, or within one; nothing if they are where they should be.
    pub(crate) fn send(&mut self, from: Held, to: Held) {
        debug_assert_eq!(from.span.len, to.span.len);
        if from.rank == to.rank {
            if from.span != to.span {
                self.copy(from.rank, from.span, to.span);
            }
            return;
        }
        let transfer = self.transfer();
        self.act(from.rank, Kind::Send { to: to.rank, transfer, src: from.span });
        self.act(to.rank, Kind::Receive { from: from.rank, transfer, dst: to.span });
    }

    /// Moves bytes from one rank to the leaders of all other nodes of a tree, each putting them at `dst`.
    pub(crate) fn multicast(&mut self, from: Held, scope: Scope, sharers: usize, dst: &dyn Fn(Rank) -> Span) {
        let home = self.layout.node_of(from.rank);
        let nodes = self.layout.nodes_of(scope);
        debug_assert!(nodes.contains(&home), "{} is outside the tree {scope:?}", from.rank);
        if nodes.len() == 1 {
            return;
        }
        let transfer = self.transfer();
        let sharers = u32::try_from(sharers).unwrap_or(u32::MAX);
        self.act(from.rank, Kind::Multicast { scope, transfer, src: from.span, sharers });
        for node in nodes.into_iter().filter(|node| *node != home) {
            let to = self.layout.node_leader(node);
            self.act(to, Kind::Hear { from: from.rank, scope, transfer, dst: dst(to) });
        }
    }

    /// Combines `src` into `dst`, both at `rank`.
    pub(crate) fn reduce(&mut self, rank: Rank, src: Span, dst: Span) {
        self.local(rank, Kind::Reduce { src, dst }, src, dst);
    }

    /// Copies `src` to `dst`, both at `rank`.
    pub(crate) fn copy(&mut self, rank: Rank, src: Span, dst: Span) {
        self.local(rank, Kind::Copy { src, dst }, src, dst);
    }

    fn local(&mut self, rank: Rank, kind: Kind, src: Span, dst: Span) {
        if src.len > 0 {
            self.act(rank, kind);
        } else if let Some(draft) = self.draft(rank) {
            draft.tracker.pass_token(src, dst);
        }
    }

    fn act(&mut self, rank: Rank, kind: Kind) {
        let Some(draft) = self.draft(rank) else { return };
        let id = ActionId(draft.program.actions.len() as u32);
        let mut after = Vec::new();
        for span in kind.reads() {
            draft.tracker.read(span, id, &mut after);
        }
        if let Some(span) = kind.writes() {
            draft.tracker.write(span, id, &mut after);
        }
        after.sort_unstable();
        after.dedup();
        draft.program.actions.push(Action { kind, after });
    }

    fn draft(&mut self, rank: Rank) -> Option<&mut Draft> {
        self.drafts[rank.0 as usize].as_mut()
    }

    fn transfer(&mut self) -> TransferId {
        let id = TransferId(self.transfers as u32);
        self.transfers += 1;
        id
    }
}
