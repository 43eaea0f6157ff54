//! What agents name and tell each other over a unicast stream: who they are, the names of messages, and notices about groups.
//! How they look as bytes is [`super::frame`]'s matter.

/// Who an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentId {
    /// The name of its node.
    pub node: String,
    /// Which of the agents that have run on the node, one after the other: of two the later one has the larger number
    /// (SWIM: Das et al., DSN 2002).
    pub incarnation: u64,
}

/// Names a message for ever, on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageName {
    /// The group.
    pub group: u64,
    /// The version of its membership.
    pub epoch: u32,
    /// The number of the call in its group.
    pub call: u64,
    /// The transfer in the call's schedule.
    pub transfer: u32,
    /// The sending rank.
    pub from: u32,
    /// The receiving rank.
    pub to: u32,
}

/// What agents tell each other about a group besides data; its meaning is the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The group failed.
    Abort {
        /// The group.
        group: u64,
        /// The version of its membership.
        epoch: u32,
        /// The kind of failure, a number of the engine's.
        kind: u8,
        /// The ranks concerned.
        ranks: Vec<u32>,
        /// In words.
        text: String,
    },
    /// Ranks of the sender's node have come to a call.
    RanksArrived {
        /// The group.
        group: u64,
        /// The version of its membership.
        epoch: u32,
        /// The number of the call.
        call: u64,
        /// The digest of what they called.
        digest: u64,
        /// The ranks.
        ranks: Vec<u32>,
        /// What they called, in words.
        text: String,
    },
    /// A rank of the sender's node went away.
    RankLost {
        /// The group.
        group: u64,
        /// The version of its membership.
        epoch: u32,
        /// How many calls it made; it takes part in no later one.
        call: u64,
        /// The rank.
        rank: u32,
        /// Why, in words.
        text: String,
    },
    /// The sender is about to give a call or message up: who waits there as well? Answered by [`Notice::WaitingRanks`].
    WaitingQuery {
        /// The group.
        group: u64,
        /// The version of its membership.
        epoch: u32,
    },
    /// Ranks of the sender's node that wait themselves.
    WaitingRanks {
        /// The group.
        group: u64,
        /// The version of its membership.
        epoch: u32,
        /// Those that wait in calls, or for a message from any rank.
        ranks: Vec<u32>,
        /// Those that wait for a message to go or to come, each with the rank at its other end.
        messages: Vec<(u32, u32)>,
    },
    /// Whether the rank of the sender's node, which has come, can carry out quick calls.
    QuickCapability {
        /// The group.
        group: u64,
        /// The version of its membership.
        epoch: u32,
        /// Whether.
        able: bool,
    },
}

impl Notice {
    /// The group it is about, with the version of its membership.
    pub fn group(&self) -> (u64, u32) {
        match self {
            Notice::Abort { group, epoch, .. }
            | Notice::RanksArrived { group, epoch, .. }
            | Notice::RankLost { group, epoch, .. }
            | Notice::WaitingQuery { group, epoch }
            | Notice::WaitingRanks { group, epoch, .. }
            | Notice::QuickCapability { group, epoch, .. } => (*group, *epoch),
        }
    }
}
