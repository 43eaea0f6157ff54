//! All ranks with quick calls of a cluster, and the events that happen to them.

use super::rank::{QuickRank, RankCall};
use cool_machine::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A rank, identified by its group and number.
pub(in super::super) type RankId = (u64, u32);

/// An event that happens to a rank.
#[derive(Debug)]
pub(in super::super) enum RankEvent {
    /// Its process starts: whether it can execute quick calls, and the size of its socket's buffer.
    Start(bool, usize),
    /// It makes a call.
    Call(Box<RankCall>),
    /// It is paused for this long.
    Pause(Duration),
}

/// All ranks with quick calls of a cluster, and counts of their messages.
#[derive(Debug, Default)]
pub(in super::super) struct QuickRanks {
    pub(super) ranks: BTreeMap<RankId, QuickRank>,
    /// The tree of each group that spans all its nodes.
    pub(super) trees: BTreeMap<u64, SocketAddr>,
    /// Number of calls that ranks have left incomplete because of an error.
    pub(super) incomplete: u64,
    /// Number of datagrams that ranks have received.
    pub(super) received: u64,
    /// Number of replies to NAKs that agents have sent.
    pub(super) answered: u64,
    /// Number of calls that agents were requested to watch.
    pub(super) watched: u64,
}

impl QuickRanks {
    /// Returns the rank of a group on a node that is attached to this incarnation of the agent.
    pub(super) fn of_node(&mut self, group: u64, node: u16, life: u32) -> Option<(RankId, &mut QuickRank)> {
        let of_group = self.ranks.range_mut((group, 0)..=(group, u32::MAX));
        of_group.map(|(id, rank)| (*id, rank)).find(|(_, rank)| (rank.node, rank.life) == (node, life))
    }
}
