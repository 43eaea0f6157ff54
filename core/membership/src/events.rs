//! Inputs and outputs of the membership service.

use crate::recovery::RecoveryPurpose;
use cool_machine::Duration;
use std::collections::BTreeSet;

/// The node on which a rank runs.
pub trait RankLocation: Clone {
    /// Returns the node's number. Ranks with the same number receive one common report.
    fn node(&self) -> u32;
    /// Returns the node's name, for messages.
    fn name(&self) -> &str;
}

/// An event that the driver reports to the service. Nodes are numbered as by
/// [`RankLocation::node`].
#[derive(Debug)]
pub enum Input<'a, P> {
    /// A rank requests a new group with all other ranks that pass the same key.
    Enlist {
        /// The rank's location.
        place: P,
        /// The key that all ranks of the group have in common.
        key: String,
        /// The rank's number in the group.
        rank: u32,
        /// Number of ranks in the group.
        size: u32,
        /// How long the rank waits for the others. The shortest timeout of all ranks applies.
        timeout: Duration,
        /// Number by which the node identifies this request, or 0 if it has none.
        ticket: u64,
    },
    /// A waiting rank has exited or has canceled its request.
    Withdraw {
        /// The rank's node.
        node: u32,
        /// The key of its request.
        key: &'a str,
        /// The rank.
        rank: u32,
    },
    /// A rank waits for the other survivors of its group.
    Recover {
        /// The rank's location.
        place: P,
        /// The group, and its number of ranks when it was formed.
        group: (u64, u32),
        /// The rank's number in that group.
        rank: u32,
        /// The operation that the rank called.
        purpose: RecoveryPurpose,
        /// How long the rank waits for the others. The shortest timeout of all ranks applies.
        timeout: Duration,
        /// Ranks on nodes that this rank's node cannot reach.
        unreachable: Vec<u32>,
    },
    /// Ranks have left a group.
    RanksLeft {
        /// The group, and its number of ranks when it was formed.
        group: (u64, u32),
        /// The ranks that left.
        ranks: &'a [u32],
    },
    /// No rank of a node uses a group any more.
    Unused {
        /// The group.
        group: u64,
        /// The node.
        node: u32,
    },
    /// A node and all its ranks are lost.
    NodeLost {
        /// The node.
        node: u32,
        /// The node's name.
        name: &'a str,
        /// Why it was lost.
        reason: &'a str,
        /// The node's ranks in each of their groups. Each group is given with its number of ranks
        /// when it was formed.
        ranks: Vec<((u64, u32), Vec<u32>)>,
    },
    /// A node is ready for a group that is being formed.
    Ready {
        /// The group.
        group: u64,
        /// The node.
        node: u32,
    },
    /// The driver has sent a group that is being formed to all reachable nodes. The time limit for
    /// their [`Input::Ready`] starts now.
    Announced(u64),
    /// A group cannot be formed. The service releases it once it has been [`Input::Announced`].
    FormFailed {
        /// The group.
        group: u64,
        /// Why it cannot be formed.
        reason: String,
        /// Lost nodes. Survivors may try again without them.
        lost: BTreeSet<u32>,
    },
    /// Reserves a group that an earlier instance of this service formed. The service records which
    /// nodes stop using it until the group is resumed.
    Reserve(u64),
    /// All nodes of a reserved group have reconnected.
    Resume {
        /// The group.
        group: u64,
        /// Locations of its ranks.
        places: Vec<P>,
        /// The nodes that use it.
        users: BTreeSet<u32>,
    },
    /// A reserved group will not be resumed.
    Forget(u64),
    /// All groups that exist now, including those formed by other means. A recovery of any other
    /// group fails.
    GroupsInUse(&'a BTreeSet<u64>),
}

/// An action that the driver must execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output<P> {
    /// Form a group. The driver must report when it has been [`Input::Announced`], each node that
    /// is [`Input::Ready`], and a failure by [`Input::FormFailed`].
    Form {
        /// The group's number.
        group: u64,
        /// Locations of its ranks.
        places: Vec<P>,
    },
    /// Release a group on all nodes, even if it could not be formed completely.
    Release {
        /// The group's number.
        group: u64,
        /// Locations of its ranks.
        places: Vec<P>,
    },
    /// The survivors of a group continue without the ranks at this location.
    Excluded(P),
    /// Report the outcome of a rendezvous to a node.
    Enlisted(P, EnlistOutcome),
    /// Report the outcome of a recovery to a node.
    Recovered(P, RecoveryOutcome),
}

/// Outcome of a rendezvous.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnlistOutcome {
    /// The key that the ranks passed.
    pub key: String,
    /// Their group, or 0 if none was formed.
    pub group: u64,
    /// Why no group was formed.
    pub reason: String,
    /// The rank concerned. `None` means all ranks of the node that passed the key.
    pub rank: Option<u32>,
    /// Limits the report to requests with these tickets. Empty if a request had no ticket.
    pub tickets: Vec<u64>,
}

/// Outcome of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryOutcome {
    /// The group that lost ranks.
    pub group: u64,
    /// Its lost ranks, in ascending order.
    pub lost: Vec<u32>,
    /// Bitwise AND of the flags that the agreeing ranks passed.
    pub flags: u64,
    /// The survivors' new group, or 0 if none was requested or formed.
    pub new_group: u64,
    /// Why the survivors did not agree. Empty if they did.
    pub failure: String,
    /// The rank concerned. `None` means all waiting ranks of the node.
    pub rank: Option<u32>,
}
