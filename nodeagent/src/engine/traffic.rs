//! What the node has sent and repaired for calls, as the engine's thread counts it and others read it.

use cool_engine::Traffic;
use cool_types::Operation;
use std::sync::atomic::{AtomicU64, Ordering};

const OPERATIONS: usize = Operation::ALL.len();

/// Traffic by operation. Written by one thread; each figure is read whole, but not all at one instant.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters([[AtomicU64; 4]; OPERATIONS]);

impl TrafficCounters {
    /// What has been counted by now.
    pub(crate) fn set(&self, all: &[Traffic; OPERATIONS]) {
        for (counters, traffic) in self.0.iter().zip(all) {
            let Traffic { bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent } = *traffic;
            let counts = [bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent];
            counters.iter().zip(counts).for_each(|(counter, count)| counter.store(count, Ordering::Relaxed));
        }
    }

    /// What has gone over the network for an operation.
    pub(crate) fn of(&self, operation: Operation) -> Traffic {
        let [bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent] =
            self.0[operation as usize].each_ref().map(|counter| counter.load(Ordering::Relaxed));
        Traffic { bytes_multicast, bytes_unicast, chunks_repaired, chunks_resent }
    }
}
