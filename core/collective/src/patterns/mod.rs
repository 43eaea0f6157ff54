//! Patterns: how the members of one subgroup do one step of a collective among themselves. One file each,
//! and one list, below. A pattern says which messages; what lies above and below its level, and in
//! which segments, is `levels`' business.
//!
//! A pattern offers what makes sense for it. Messages are written in an order in which they could happen one
//! by one; what each must wait for, the builder finds from the bytes. Where values are combined, the order is
//! that of the list given, beginning with the member that gets the result and going round, unless the pattern
//! says otherwise; the brackets are the pattern's. Neither depends on when messages arrive.

mod binomial;
mod bruck;
mod chain;
mod k_nomial;
mod linear;
mod minimum_spanning_tree;
mod parallel;
mod recursive_doubling;
mod recursive_halving;
mod ring;
mod scatter_allgather;
mod tree;

use crate::builder::{RankSpan, ScheduleBuilder};
use crate::layout::MulticastScope;
use crate::schedule::{Rank, Span};
use core::ops::Range;

pub(crate) use binomial::BINOMIAL;
pub(crate) use parallel::PARALLEL;
pub(crate) use recursive_doubling::RECURSIVE_DOUBLING;

/// All patterns.
pub(crate) static PATTERNS: [&Pattern; 12] = [
    &PARALLEL,
    &linear::LINEAR,
    &BINOMIAL,
    &k_nomial::FOUR_NOMIAL,
    &k_nomial::EIGHT_NOMIAL,
    &minimum_spanning_tree::MINIMUM_SPANNING_TREE,
    &chain::CHAIN,
    &RECURSIVE_DOUBLING,
    &recursive_halving::RECURSIVE_HALVING,
    &ring::RING,
    &bruck::BRUCK,
    &scatter_allgather::SCATTER_ALLGATHER,
];

/// Moves one span from its holder to `dst` of every member; members that need nothing are left out.
pub(crate) type BcastFn = fn(&mut ScheduleBuilder<'_>, &Subgroup, RankSpan, &dyn Fn(Rank) -> Span);
/// Combines the members' values at the last argument, whose rank is a member.
pub(crate) type ReduceFn = fn(&mut ScheduleBuilder<'_>, &[RankSpan], RankSpan);
/// Combines the members' values, alike, at `dst` of every member.
pub(crate) type AllreduceFn = fn(&mut ScheduleBuilder<'_>, &Subgroup, &[RankSpan], &dyn Fn(Rank) -> Span);
/// Moves parts between members, each in one move, and a root, each from one place to another.
pub(crate) type ExchangeFn = fn(&mut ScheduleBuilder<'_>, &[(RankSpan, RankSpan)]);
/// Moves each member's span to all other members, that of member `i` to `dst(rank, i)`. Its own is there.
pub(crate) type AllgatherFn =
    fn(&mut ScheduleBuilder<'_>, &Subgroup, &[RankSpan], &dyn Fn(Rank, usize) -> Span);
/// Combines the members' values, part `i` at the `i`th of the given places, that of member `i`.
pub(crate) type ReduceScatterFn = fn(&mut ScheduleBuilder<'_>, &[RankSpan], &[Range<u64>], &[RankSpan]);
/// Moves a block from each of the members to each: from member `i` to `j` between the two spans of `(i, j)`.
pub(crate) type AlltoallFn = fn(&mut ScheduleBuilder<'_>, &[Rank], &dyn Fn(usize, usize) -> (Span, Span));
/// Combines at the `i`th place the values of the first `i` members, and that of member `i` itself unless the
/// flag says that it is exclusive. The order is that of the list.
pub(crate) type ScanFn = fn(&mut ScheduleBuilder<'_>, &[RankSpan], bool, &[RankSpan]);

/// Access to what a plan asks of a pattern. Plans whose patterns lack something are refused before.
macro_rules! offered {
    ($($what:ident: $type:ty),* $(,)?) => {
        $(pub(crate) fn $what(&self) -> $type {
            debug_assert!(self.$what.is_some(), "{} has no {}", self.name, stringify!($what));
            self.$what.or(PARALLEL.$what).expect("the parallel pattern has all")
        })*
    };
}

/// What a pattern can do. A plan asks it only for what it offers.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) name: &'static str,
    /// Segments of an array that suit it, when it is a plan's only one.
    pub(crate) segments: u64,
    /// Whether messages hold one member's share of a segment, so that segments may be larger.
    pub(crate) shares: bool,
    /// Whether it uses a tree, along which a message reaches all members.
    pub(crate) multicasts: bool,
    pub(crate) bcast: Option<BcastFn>,
    pub(crate) reduce: Option<ReduceFn>,
    pub(crate) allreduce: Option<AllreduceFn>,
    pub(crate) gather: Option<ExchangeFn>,
    pub(crate) scatter: Option<ExchangeFn>,
    pub(crate) allgather: Option<AllgatherFn>,
    pub(crate) reduce_scatter: Option<ReduceScatterFn>,
    pub(crate) alltoall: Option<AlltoallFn>,
    pub(crate) scan: Option<ScanFn>,
}

impl Pattern {
    /// One that offers nothing yet.
    const fn new(name: &'static str) -> Pattern {
        Pattern {
            name,
            segments: 1,
            shares: false,
            multicasts: false,
            bcast: None,
            reduce: None,
            allreduce: None,
            gather: None,
            scatter: None,
            allgather: None,
            reduce_scatter: None,
            alltoall: None,
            scan: None,
        }
    }

    offered! {
        bcast: BcastFn, reduce: ReduceFn, gather: ExchangeFn, scatter: ExchangeFn,
        reduce_scatter: ReduceScatterFn, alltoall: AlltoallFn, scan: ScanFn,
    }
}

/// The ranks of a node, or the leaders that one tree connects.
#[derive(Clone, Debug)]
pub(crate) struct Subgroup {
    /// In the order in which values are combined.
    pub(crate) members: Vec<Rank>,
    /// The tree over the members; none inside a node.
    pub(crate) tree: Option<MulticastScope>,
}

/// The items in their order, beginning with the one for which `first` holds and going round.
fn rotated<T: Clone>(items: &[T], first: impl Fn(&T) -> bool) -> Vec<T> {
    let start = items.iter().position(first).unwrap_or(0);
    [&items[start..], &items[..start]].concat()
}
