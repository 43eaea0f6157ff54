//! The values that agents exchange over a unicast stream: identities, names of messages, and
//! notices about groups. Their encoding is in [`super::frame`].

/// The identity of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentId {
    /// The name of its node.
    pub node: String,
    /// The incarnation of the agent. Each restart of an agent on the node increases it (SWIM: Das
    /// et al., DSN 2002).
    pub incarnation: u64,
}

/// The name of a message, on both sides. It must never be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageName {
    /// The group.
    pub group: u64,
    /// The epoch of its membership.
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

/// A message of one agent to another about a group. Its meaning belongs to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The group failed.
    Abort {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
        /// The kind of failure, a number that the engine defines.
        kind: u8,
        /// The ranks concerned.
        ranks: Vec<u32>,
        /// The reason, as text.
        text: String,
    },
    /// Ranks of the sender's node have entered a call.
    RanksArrived {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
        /// The number of the call.
        call: u64,
        /// The digest of their call.
        digest: u64,
        /// The ranks.
        ranks: Vec<u32>,
        /// Their call, as text.
        text: String,
    },
    /// A rank of the sender's node is lost.
    RankLost {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
        /// The number of calls that it made. It takes part in no later call.
        call: u64,
        /// The rank.
        rank: u32,
        /// The reason, as text.
        text: String,
    },
    /// The sender is about to give up a call or message, and asks which other ranks wait. The
    /// answer is [`Notice::WaitingRanks`].
    WaitingQuery {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
    },
    /// The ranks of the sender's node that wait.
    WaitingRanks {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
        /// The ranks that wait in calls, or for a message from any rank.
        ranks: Vec<u32>,
        /// The ranks that wait to send or receive a message, each with the rank at the other end.
        messages: Vec<(u32, u32)>,
    },
    /// Whether the rank of the sender's node, which has joined, can execute quick calls.
    QuickCapability {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
        /// Whether it can.
        able: bool,
    },
    /// Whether datagrams of full length have arrived at the sender's node before the first quick
    /// call. It must be sent only in a group whose agents all support it.
    QuickProbed {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
        /// Whether they have.
        passed: bool,
    },
}

impl Notice {
    /// Returns the group that the notice is about, with the epoch of its membership.
    pub fn group(&self) -> (u64, u32) {
        match self {
            Notice::Abort { group, epoch, .. }
            | Notice::RanksArrived { group, epoch, .. }
            | Notice::RankLost { group, epoch, .. }
            | Notice::WaitingQuery { group, epoch }
            | Notice::WaitingRanks { group, epoch, .. }
            | Notice::QuickCapability { group, epoch, .. }
            | Notice::QuickProbed { group, epoch, .. } => (*group, *epoch),
        }
    }
}
