//! The results of calls and transfers: their cost, or a failure that names ranks and a remedy.

/// The kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CallFailureKind {
    /// The call is invalid.
    Invalid = 1,
    /// Ranks called different operations, sizes, types or roots.
    Mismatch = 2,
    /// A rank did not join in time.
    Timeout = 3,
    /// A rank, node or agent was lost.
    Lost = 4,
    /// The group had failed before.
    Aborted = 5,
    /// A rank has revoked the group.
    Revoked = 6,
    /// A message was longer than the receive that matched it. Only this receive fails.
    Truncated = 7,
    /// A receive was cancelled. Only this receive fails.
    Cancelled = 8,
}

impl CallFailureKind {
    /// Returns the code of the kind in messages between agents.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// Returns the kind that has a code, or [`CallFailureKind::Lost`] if there is none, because
    /// then the other agent is of another version.
    pub(crate) fn of_code(code: u8) -> CallFailureKind {
        use CallFailureKind::{Aborted, Cancelled, Invalid, Lost, Mismatch, Revoked, Timeout, Truncated};
        [Invalid, Mismatch, Timeout, Lost, Aborted, Revoked, Truncated, Cancelled]
            .into_iter()
            .find(|kind| kind.code() == code)
            .unwrap_or(Lost)
    }
}

/// The reason why a call or transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallFailure {
    /// Its kind.
    pub kind: CallFailureKind,
    /// What happened and what to do about it; names the ranks and the operation.
    pub message: String,
    /// The ranks that the failure concerns.
    pub ranks: Vec<u32>,
}

impl CallFailure {
    /// Returns a failure of a kind that concerns some ranks.
    pub fn new(kind: CallFailureKind, message: impl Into<String>, ranks: Vec<u32>) -> CallFailure {
        CallFailure { kind, message: message.into(), ranks }
    }
}

/// The amount of data that this node exchanged over the network for calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficTotals {
    /// Payload bytes sent by multicast for the first time.
    pub bytes_multicast: u64,
    /// Payload bytes sent by unicast, without repairs.
    pub bytes_unicast: u64,
    /// Chunks that were missing at this node and that it received by repair.
    pub chunks_repaired: u64,
    /// Chunks that this node retransmitted for others.
    pub chunks_resent: u64,
}

impl core::ops::AddAssign for TrafficTotals {
    fn add_assign(&mut self, more: TrafficTotals) {
        self.bytes_multicast += more.bytes_multicast;
        self.bytes_unicast += more.bytes_unicast;
        self.chunks_repaired += more.chunks_repaired;
        self.chunks_resent += more.chunks_resent;
    }
}

/// The cost of a call or transfer of a rank at this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStats {
    /// The time from the request to the reply.
    pub nanoseconds: u64,
    /// The data sent and repaired for it, including the traffic of the rank's earlier streams that
    /// continued after their calls were answered.
    pub traffic: TrafficTotals,
    /// The plan by which a collective was executed.
    pub plan: String,
    /// The message that a receive or probe found.
    pub arrived: Option<ReceivedMessage>,
    /// For a watched call: other ranks have requested the call from their engine, so this rank must
    /// make the call again, with the same number, in the same way.
    pub by_agent: bool,
}

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The rank that sent the message.
    pub source: u32,
    /// Its tag.
    pub tag: u32,
    /// Its length in bytes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_unique_codes_and_unknown_codes_mean_lost() {
        for code in 0..=u8::MAX {
            let kind = CallFailureKind::of_code(code);
            assert!(kind.code() == code || kind == CallFailureKind::Lost);
        }
        assert_eq!(CallFailureKind::of_code(2), CallFailureKind::Mismatch);
    }
}
