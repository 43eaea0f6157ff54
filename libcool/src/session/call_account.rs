//! Accounting of a call that ranks executed themselves: a record for the agent, for traces and
//! metrics, and statistics for the program. Both contain the same figures.

use crate::error::Error;
use crate::segment::{DescribedCall, Interrupted};
use cool_proto::local;
use cool_shm::segment::RankPart;
use cool_shm::segment::records::{self, ARRIVALS, RankArrival, RankPlan, RankRecord, RankTraffic};

/// Traffic of the leader of a node during a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaderTraffic {
    pub(super) traffic: RankTraffic,
    pub(super) arrivals: [Option<RankArrival>; ARRIVALS],
}

/// A call from its beginning until it is recorded.
pub(super) struct CallAccount<'a> {
    /// This rank's part of the segment.
    pub(super) part: RankPart<'a>,
    pub(super) number: u64,
    pub(super) call: &'a DescribedCall,
    pub(super) plan: RankPlan,
    /// Start of the call, by [`records::now`].
    pub(super) begun: u64,
}

impl CallAccount<'_> {
    /// Records the call. A call that the agent must execute is not recorded, because the agent
    /// records it.
    pub(super) fn close(
        self,
        exchanged: LeaderTraffic,
        carried: Result<(), Interrupted<Error>>,
    ) -> Result<local::Stats, Interrupted<Error>> {
        if matches!(carried, Err(Interrupted::Fallback)) {
            return Err(Interrupted::Fallback);
        }
        let took = records::now().saturating_sub(self.begun);
        let DescribedCall { dtype, op, call, .. } = self.call;
        let all = |counts: &[u64]| counts.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        self.part.record(&RankRecord {
            number: self.number,
            operation: call.operation,
            element: *dtype,
            reduce: *op,
            root: call.root.0,
            bytes: call.counts.as_deref().map_or(call.bytes, all),
            unequal: call.counts.is_some(),
            plan: self.plan,
            failed: carried.is_err(),
            begun: self.begun,
            took,
            traffic: exchanged.traffic,
            arrivals: exchanged.arrivals,
        });
        let RankTraffic { multicast, unicast, retransmitted, .. } = exchanged.traffic;
        carried.map(|()| local::Stats {
            nanoseconds: took,
            bytes_multicast: multicast.into(),
            bytes_unicast: unicast.into(),
            chunks_repaired: retransmitted.into(),
            plan: self.plan.name().to_owned(),
            ..local::Stats::default()
        })
    }
}
