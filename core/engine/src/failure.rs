//! How calls and messages end: with what they cost, or with a failure that names ranks and a remedy.

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CallFailureKind {
    /// The call makes no sense.
    Invalid = 1,
    /// Ranks called different operations, sizes, types or roots.
    Mismatch = 2,
    /// Somebody did not come in time.
    Timeout = 3,
    /// A rank, node or agent went away.
    Lost = 4,
    /// The group failed before.
    Aborted = 5,
    /// A rank has revoked the group.
    Revoked = 6,
    /// A message was longer than its receive, which alone fails.
    Truncated = 7,
    /// A receive was cancelled, which alone fails.
    Cancelled = 8,
}

impl CallFailureKind {
    /// Its code between agents.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The kind with a code; [`CallFailureKind::Lost`] if there is none, since the other agent is of another make.
    pub(crate) fn of_code(code: u8) -> CallFailureKind {
        use CallFailureKind::{Aborted, Cancelled, Invalid, Lost, Mismatch, Revoked, Timeout, Truncated};
        [Invalid, Mismatch, Timeout, Lost, Aborted, Revoked, Truncated, Cancelled]
            .into_iter()
            .find(|kind| kind.code() == code)
            .unwrap_or(Lost)
    }
}

/// Why a call or message failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallFailure {
    /// Its kind.
    pub kind: CallFailureKind,
    /// What happened and what to do about it, with ranks and operation.
    pub message: String,
    /// The ranks that it concerns.
    pub ranks: Vec<u32>,
}

impl CallFailure {
    /// A failure of a kind that concerns some ranks.
    pub fn new(kind: CallFailureKind, message: impl Into<String>, ranks: Vec<u32>) -> CallFailure {
        CallFailure { kind, message: message.into(), ranks }
    }
}

/// What went over the network for calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficTotals {
    /// Payload bytes sent by multicast for the first time.
    pub bytes_multicast: u64,
    /// Payload bytes sent by unicast, repairs excluded.
    pub bytes_unicast: u64,
    /// Chunks that this node lacked and got by repair.
    pub chunks_repaired: u64,
    /// Chunks that this node sent as repair.
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

/// What a call or message of a rank cost this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStats {
    /// From the call to its answer.
    pub nanoseconds: u64,
    /// What it sent and repaired, with what streams of the rank's earlier calls did after these were answered.
    pub traffic: TrafficTotals,
    /// By which plan a collective was carried out.
    pub plan: String,
    /// What a receive got.
    pub arrived: Option<ReceivedMessage>,
    /// Of a watched call: others have it carried out here, and this rank is to call again, with the same number, as they did.
    pub by_agent: bool,
}

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The rank that sent it.
    pub source: u32,
    /// Its tag.
    pub tag: u32,
    /// Its length.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_a_code_of_its_own_and_an_unknown_code_means_a_lost_peer() {
        for code in 0..=u8::MAX {
            let kind = CallFailureKind::of_code(code);
            assert!(kind.code() == code || kind == CallFailureKind::Lost);
        }
        assert_eq!(CallFailureKind::of_code(2), CallFailureKind::Mismatch);
    }
}
