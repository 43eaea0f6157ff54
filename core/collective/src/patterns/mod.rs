//! Patterns: how the members of one subgroup execute one step of a collective among themselves.
//! Each pattern has a file and an entry in the list below. A pattern only chooses the messages. The
//! other levels and the segments belong to `levels`.
//!
//! A pattern offers the operations that make sense for it. It adds messages in an order in which
//! they could happen one by one, and the builder derives from their bytes for which others each
//! must wait. Values are combined in the order of the given list, starting at the member that gets
//! the result and wrapping around, unless the pattern documents another order. The pattern
//! determines how they are grouped. Neither order nor grouping depends on when messages arrive.

mod binomial;
mod bruck;
mod chain;
mod double_tree;
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
pub(crate) static PATTERNS: [&Pattern; 13] = [
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
    &double_tree::DOUBLE_TREE,
];

/// Moves one span from its holder to `dst` of every member. Members that do not need it must be
/// left out of the subgroup.
pub(crate) type BcastFn = fn(&mut ScheduleBuilder<'_>, &Subgroup, RankSpan, &dyn Fn(Rank) -> Span);
/// Combines the members' values at the last argument, which must be at a member.
pub(crate) type ReduceFn = fn(&mut ScheduleBuilder<'_>, &[RankSpan], RankSpan);
/// Combines the members' values, with the same result at `dst` of every member.
pub(crate) type AllreduceFn = fn(&mut ScheduleBuilder<'_>, &Subgroup, &[RankSpan], &dyn Fn(Rank) -> Span);
/// Moves parts between members and a root. Each member occurs in one move.
pub(crate) type ExchangeFn = fn(&mut ScheduleBuilder<'_>, &[(RankSpan, RankSpan)]);
/// Moves each member's span to all other members, that of member `i` to `dst(rank, i)`. Each
/// member's own span must be in place.
pub(crate) type AllgatherFn =
    fn(&mut ScheduleBuilder<'_>, &Subgroup, &[RankSpan], &dyn Fn(Rank, usize) -> Span);
/// Combines the members' values, part `i` at the `i`th place, which must be at member `i`.
pub(crate) type ReduceScatterFn = fn(&mut ScheduleBuilder<'_>, &[RankSpan], &[Range<u64>], &[RankSpan]);
/// Moves a block from each member to each member: that from member `i` to `j` between the two spans
/// of `(i, j)`.
pub(crate) type AlltoallFn = fn(&mut ScheduleBuilder<'_>, &[Rank], &dyn Fn(usize, usize) -> (Span, Span));
/// Combines, at the `i`th place, the values of the first `i` members, and that of member `i` itself
/// unless the flag is set (exclusive). The order must be that of the list.
pub(crate) type ScanFn = fn(&mut ScheduleBuilder<'_>, &[RankSpan], bool, &[RankSpan]);

/// Returns a pattern's function. Plans that need a function which the pattern does not offer must
/// be refused before.
macro_rules! offered {
    ($($what:ident: $type:ty),* $(,)?) => {
        $(pub(crate) fn $what(&self) -> $type {
            debug_assert!(self.$what.is_some(), "{} has no {}", self.name, stringify!($what));
            self.$what.or(PARALLEL.$what).expect("the parallel pattern offers all functions")
        })*
    };
}

/// The functions that a pattern offers.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) name: &'static str,
    /// Number of segments of an array, in plans that use only this pattern.
    pub(crate) segments: u64,
    /// Whether messages hold one member's share of a segment, so that segments may be larger.
    pub(crate) shares: bool,
    /// Whether agents of the previous release do not know it. The planner chooses it only if all
    /// agents of the group do, because all must make the same choice.
    pub(crate) is_new: bool,
    /// Whether it multicasts over a tree that reaches all members.
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
    /// Returns a pattern that offers nothing yet.
    const fn new(name: &'static str) -> Pattern {
        Pattern {
            name,
            segments: 1,
            shares: false,
            is_new: false,
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
    /// The members, in the order in which values are combined.
    pub(crate) members: Vec<Rank>,
    /// The tree over the members; none within a node.
    pub(crate) tree: Option<MulticastScope>,
}

/// Returns the items in their order, starting at the one for which `first` holds and wrapping
/// around.
fn rotated<T: Clone>(items: &[T], first: impl Fn(&T) -> bool) -> Vec<T> {
    let start = items.iter().position(first).unwrap_or(0);
    [&items[start..], &items[..start]].concat()
}
