//! Patterns: how the members of one subgroup do one step of a collective among themselves. One file each,
//! and one list, below. A pattern says which messages; what lies above and below its level, and in
//! which segments, is `levels`' business.

mod parallel;

use crate::builder::{Builder, Held};
use crate::layout::Scope;
use crate::schedule::{Rank, Span};

pub(crate) use parallel::PARALLEL;

/// Moves one span from its holder to `dst` of every member; members that need nothing are left out.
pub(crate) type Bcast = fn(&mut Builder<'_>, &Subgroup, Held, &dyn Fn(Rank) -> Span);
/// Combines the members' values, in their order, at the last argument.
pub(crate) type Reduce = fn(&mut Builder<'_>, &[Held], Held);
/// Combines the members' values, in their order and alike, at `dst` of every member.
pub(crate) type Allreduce = fn(&mut Builder<'_>, &Subgroup, &[Held], &dyn Fn(Rank) -> Span);
/// Moves parts between members and a root, each from one place to another.
pub(crate) type Exchange = fn(&mut Builder<'_>, &[(Held, Held)]);
/// Moves each member's span to all other members, that of member `i` to `dst(rank, i)`.
pub(crate) type Allgather = fn(&mut Builder<'_>, &Subgroup, &[Held], &dyn Fn(Rank, usize) -> Span);

/// What a pattern can do.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) bcast: Bcast,
    pub(crate) reduce: Reduce,
    pub(crate) allreduce: Allreduce,
    pub(crate) gather: Exchange,
    pub(crate) scatter: Exchange,
    pub(crate) allgather: Allgather,
}

/// The ranks of a node, or the leaders that one tree connects.
#[derive(Clone, Debug)]
pub(crate) struct Subgroup {
    /// In the order in which values are combined.
    pub(crate) members: Vec<Rank>,
    /// The tree over the members; none inside a node.
    pub(crate) tree: Option<Scope>,
}
