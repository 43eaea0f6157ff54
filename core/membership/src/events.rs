//! What the service is told, and what it asks for and says.

use crate::recovery::Purpose;
use cool_machine::Duration;
use std::collections::BTreeSet;

/// Where a rank runs.
pub trait Place: Clone {
    /// Stands for its node: ranks of one node are told together.
    fn node(&self) -> u32;
    /// The node's name, for people.
    fn name(&self) -> &str;
}

/// What happens. Nodes are named by [`Place::node`].
#[derive(Debug)]
pub enum Input<'a, P> {
    /// A rank wants to be in a new group with all others that give the same key.
    Enlist {
        /// Where it is.
        place: P,
        /// By what it finds the others.
        key: String,
        /// Its rank in the group.
        rank: u32,
        /// How many ranks the group has.
        size: u32,
        /// How long it waits for the others; the shortest of all counts.
        timeout: Duration,
        /// Its node's number for it alone; 0: it has none.
        ticket: u64,
    },
    /// A rank that had enlisted is gone.
    Withdraw {
        /// Its node.
        node: u32,
        /// The key that it gave.
        key: &'a str,
        /// Its rank.
        rank: u32,
    },
    /// A rank meets the other survivors of its group.
    Recover {
        /// Where it is.
        place: P,
        /// Its group, and how many ranks that had at first.
        group: (u64, u32),
        /// Its rank there.
        rank: u32,
        /// What it came for.
        purpose: Purpose,
        /// How long it waits for the others; the shortest of all counts.
        timeout: Duration,
        /// Ranks whose nodes it cannot reach.
        misses: Vec<u32>,
    },
    /// Ranks have left a group.
    RanksLeft {
        /// The group, and how many ranks it had at first.
        group: (u64, u32),
        /// The ranks.
        ranks: &'a [u32],
    },
    /// No rank of a node uses a group any more.
    Unused {
        /// The group.
        group: u64,
        /// The node.
        node: u32,
    },
    /// A node is gone, and all its ranks with it.
    NodeLeft {
        /// The node.
        node: u32,
        /// Its name.
        name: &'a str,
        /// Why.
        reason: &'a str,
        /// Its ranks, of each group that they are in; with each the ranks that the group had at first.
        ranks: Vec<((u64, u32), Vec<u32>)>,
    },
    /// A node is ready for a group that is being formed.
    Ready {
        /// The group.
        group: u64,
        /// The node.
        node: u32,
    },
    /// All nodes have been told of a group that is being formed, or as many as could be: the time begins in which they are to
    /// be ready.
    Announced(u64),
    /// A group cannot be formed. It is released when it has been announced, too.
    FormFailed {
        /// The group.
        group: u64,
        /// Why.
        reason: String,
        /// Nodes that are gone, without which it may be possible.
        gone: BTreeSet<u32>,
    },
    /// A group of an earlier life of this service: who stops using it is remembered until it is resumed.
    Reserve(u64),
    /// All nodes of a reserved group have come back.
    Resume {
        /// The group.
        group: u64,
        /// Where its ranks are.
        places: Vec<P>,
        /// The nodes that use it.
        users: BTreeSet<u32>,
    },
    /// A reserved group will not be resumed.
    Forget(u64),
    /// The numbers of all groups there are now, also those that others have made: who recovers another waits in vain.
    InUse(&'a BTreeSet<u64>),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output<P> {
    /// Form a group, and say when it has been [`Input::Announced`], of each node when it is [`Input::Ready`], and if it
    /// [`Input::FormFailed`].
    Form {
        /// Its number.
        group: u64,
        /// Where its ranks are.
        places: Vec<P>,
    },
    /// Release a group everywhere; also one that could not be formed.
    Release {
        /// Its number.
        group: u64,
        /// Where its ranks were.
        places: Vec<P>,
    },
    /// The survivors of a group go on without a node whose ranks are there.
    LeftBehind(P),
    /// Tell a node what has become of ranks that enlisted.
    Enlisted(P, Enlisted),
    /// Tell a node what survivors have agreed on.
    Recovered(P, Recovered),
}

/// What has become of ranks that enlisted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enlisted {
    /// The key that they gave.
    pub key: String,
    /// Their group; 0: there will be none.
    pub group: u64,
    /// Why.
    pub reason: String,
    /// Whom it concerns; none: all of the node that gave the key.
    pub rank: Option<u32>,
    /// Of these, those alone that have these tickets; empty if one who came has none.
    pub tickets: Vec<u64>,
}

/// What survivors have agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The group that lost ranks.
    pub group: u64,
    /// Its ranks that are gone, ascending.
    pub gone: Vec<u32>,
    /// The bitwise and of what those gave who agree.
    pub flags: u64,
    /// The survivors' new group; 0: none was asked for, or there is none.
    pub new_group: u64,
    /// Why there is no agreement; empty if there is one.
    pub failure: String,
    /// Whom it concerns; none: all of the node that wait.
    pub rank: Option<u32>,
}
