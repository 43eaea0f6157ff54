//! Counters of the data that the node has sent and repaired for calls, and of refused data. The
//! engine's thread writes them, and others read them.

use cool_engine::TrafficTotals;
use cool_transport::tagged::TagError;
use cool_types::Operation;
use std::sync::atomic::{AtomicU64, Ordering};

const OPERATIONS: usize = Operation::ALL.len();

/// Traffic by operation. One thread writes it. Each figure is consistent, but the figures may be
/// read at slightly different times.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters([[AtomicU64; 4]; OPERATIONS]);

impl TrafficCounters {
    /// Sets the counters of all operations.
    pub(crate) fn set(&self, all: &[TrafficTotals; OPERATIONS]) {
        for (counters, traffic) in self.0.iter().zip(all) {
            let TrafficTotals { bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent } = *traffic;
            let counts = [bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent];
            counters.iter().zip(counts).for_each(|(counter, count)| counter.store(count, Ordering::Relaxed));
        }
    }

    /// Returns the traffic of an operation.
    pub(crate) fn get(&self, operation: Operation) -> TrafficTotals {
        let [bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent] =
            self.0[operation as usize].each_ref().map(|counter| counter.load(Ordering::Relaxed));
        TrafficTotals { bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent }
    }
}

/// The numbers of datagrams and connections that were refused, by reason.
#[derive(Debug, Default)]
pub(crate) struct RefusalCounters([AtomicU64; RefusalReason::ALL.len()]);

/// The reasons for refusing data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// A datagram of a group that does not exist here, or that has no key.
    Unknown,
    /// A datagram with a tag that was not made from its bytes with the group's key.
    Forged,
    /// A datagram that was received before.
    Replayed,
    /// A packet or a connection without proof, although its group or agent has a key.
    Unproven,
    /// A connection with a failed handshake, for example because the other side does not know this
    /// agent's key.
    Handshake,
}

impl RefusalReason {
    pub(crate) const ALL: [RefusalReason; 5] = [
        RefusalReason::Unknown,
        RefusalReason::Forged,
        RefusalReason::Replayed,
        RefusalReason::Unproven,
        RefusalReason::Handshake,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            RefusalReason::Unknown => "unknown",
            RefusalReason::Forged => "forged",
            RefusalReason::Replayed => "replayed",
            RefusalReason::Unproven => "unproven",
            RefusalReason::Handshake => "handshake",
        }
    }
}

impl From<TagError> for RefusalReason {
    fn from(refusal: TagError) -> RefusalReason {
        match refusal {
            TagError::Unknown => RefusalReason::Unknown,
            TagError::Forged => RefusalReason::Forged,
            TagError::Replayed => RefusalReason::Replayed,
        }
    }
}

impl RefusalCounters {
    /// Counts one refusal.
    pub(crate) fn count(&self, why: RefusalReason) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the number of refusals for this reason.
    pub(crate) fn set(&self, why: RefusalReason, count: u64) {
        self.0[why as usize].store(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, why: RefusalReason) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }
}
