//! What the node has sent and repaired for calls, and refused, as the engine's thread counts it and others read it.

use cool_engine::TrafficTotals;
use cool_transport::tagged::TagError;
use cool_types::Operation;
use std::sync::atomic::{AtomicU64, Ordering};

const OPERATIONS: usize = Operation::ALL.len();

/// Traffic by operation. Written by one thread; each figure is read whole, but not all at one instant.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters([[AtomicU64; 4]; OPERATIONS]);

impl TrafficCounters {
    /// What has been counted by now.
    pub(crate) fn set(&self, all: &[TrafficTotals; OPERATIONS]) {
        for (counters, traffic) in self.0.iter().zip(all) {
            let TrafficTotals { bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent } = *traffic;
            let counts = [bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent];
            counters.iter().zip(counts).for_each(|(counter, count)| counter.store(count, Ordering::Relaxed));
        }
    }

    /// What has gone over the network for an operation.
    pub(crate) fn get(&self, operation: Operation) -> TrafficTotals {
        let [bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent] =
            self.0[operation as usize].each_ref().map(|counter| counter.load(Ordering::Relaxed));
        TrafficTotals { bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent }
    }
}

/// What was refused, since it came without proof of its group or agent.
#[derive(Debug, Default)]
pub(crate) struct RefusalCounters([AtomicU64; RefusalReason::ALL.len()]);

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// A datagram of a group that is not here, or that has no key.
    Unknown,
    /// A datagram whose tag is wrong.
    Forged,
    /// A datagram that has come before.
    Replayed,
    /// A packet or a connection of a group or an agent with a key, that shows none.
    Unproven,
    /// A connection that was begun and does not know the agent's key.
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
    /// One more.
    pub(crate) fn count(&self, why: RefusalReason) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// There are as many.
    pub(crate) fn set(&self, why: RefusalReason, count: u64) {
        self.0[why as usize].store(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, why: RefusalReason) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }
}
