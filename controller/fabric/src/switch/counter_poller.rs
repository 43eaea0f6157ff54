//! Requests the counters of a switch from time to time, and combines the replies.

use crate::intent::cookies;
use crate::telemetry::counters::{PortCounters, SwitchCounters};
use cool_machine::{Duration, Time};
use rs_openflow::{
    Body, Counter, FlowStatsRequest, MultipartReply, MultipartRequest, PortNo, PortStats, PortStatsRequest,
    TableId,
};

/// Maximum number of ports with kept counters.
const MAX_PORTS: usize = 1 << 16;

/// Time after the deletion of a tree's flows in which non-member packets do not count.
///
/// A switch with a flow cache, such as Open vSwitch, credits packets to flows with a delay. Packets
/// that members sent into a tree are then credited to the flow that matches when the cache is read,
/// and after the tree's flows are deleted that is the one that drops packets of non-members.
const SETTLING_TIME: Duration = Duration::from_secs(5);

/// Requests for counters, and the replies so far.
#[derive(Debug)]
pub(crate) struct CounterPoller {
    every: Duration,
    next: Option<Time>,
    /// Transactions of the requests for ports and for flows, while replies are outstanding.
    ports: Option<u32>,
    flows: Option<u32>,
    gathered: SwitchCounters,
    nonmembers: NonmemberCount,
}

/// Separates packets of non-members from packets of members that were credited to the wrong flow.
#[derive(Debug, Default)]
struct NonmemberCount {
    /// Time and count of the last report.
    last: Option<(Time, u64)>,
    /// Part of the count that is not due to non-members.
    excused: u64,
    /// When the last flow of a tree was deleted.
    tree_deleted_at: Option<Time>,
}

impl NonmemberCount {
    /// Returns how many of the `reported` packets non-members have sent.
    fn update(&mut self, now: Time, reported: u64) -> u64 {
        if let Some((then, before)) = self.last {
            let settles = self.tree_deleted_at.is_some_and(|at| then < at + SETTLING_TIME);
            match reported.checked_sub(before) {
                Some(more) if settles => self.excused += more,
                Some(_) => {}
                // The switch counts from zero again.
                None => self.excused = 0,
            }
        }
        self.last = Some((now, reported));
        reported.saturating_sub(self.excused)
    }
}

impl CounterPoller {
    pub(crate) fn new(every: Duration) -> CounterPoller {
        CounterPoller {
            every,
            next: None,
            ports: None,
            flows: None,
            gathered: SwitchCounters::default(),
            nonmembers: NonmemberCount::default(),
        }
    }

    /// Starts requesting counters.
    pub(crate) fn start(&mut self, now: Time) {
        self.next = Some(now + self.every);
    }

    /// Records that a flow of a tree was deleted. The count of non-member packets then excludes
    /// packets that the switch credits late.
    pub(crate) fn tree_flow_deleted(&mut self, now: Time) {
        self.nonmembers.tree_deleted_at = Some(now);
    }

    /// Returns when the next request is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next
    }

    /// Returns the requests that are due. `number` assigns the transactions. Returns nothing while
    /// replies are outstanding.
    pub(crate) fn requests(&mut self, now: Time, mut number: impl FnMut() -> u32) -> Vec<(u32, Body)> {
        if self.next.is_none_or(|next| next > now) {
            return Vec::new();
        }
        self.next = Some(now + self.every);
        if self.ports.is_some() || self.flows.is_some() {
            return Vec::new();
        }
        let (ports, flows) = (number(), number());
        (self.ports, self.flows, self.gathered) = (Some(ports), Some(flows), SwitchCounters::default());
        let (cookie, cookie_mask) = cookies::NONMEMBERS;
        let nonmember_packets =
            FlowStatsRequest { table: TableId(0), cookie, cookie_mask, ..FlowStatsRequest::default() };
        vec![
            (ports, MultipartRequest::PortStats(PortStatsRequest { port: PortNo::ANY })),
            (flows, MultipartRequest::Flow(nonmember_packets)),
        ]
        .into_iter()
        .map(|(xid, request)| (xid, Body::MultipartRequest(request.into())))
        .collect()
    }

    /// Processes a reply. Returns all counters if it was the last one.
    pub(crate) fn reply(
        &mut self,
        now: Time,
        xid: u32,
        reply: &MultipartReply,
        more: bool,
    ) -> Option<SwitchCounters> {
        match reply {
            MultipartReply::PortStats(ports) if self.ports == Some(xid) => {
                let room = MAX_PORTS.saturating_sub(self.gathered.ports.len());
                // The local port of a bridge that does not use it may drop packets all the time.
                let ports = ports.iter().filter(|port| port.port <= PortNo::MAX).take(room);
                self.gathered.ports.extend(ports.map(|port| (port.port.0, counters(port))));
                self.ports.take_if(|_| !more);
            }
            MultipartReply::Flow(flows) if self.flows == Some(xid) => {
                // Some switches report all flows, whatever cookie was requested.
                let (cookie, mask) = cookies::NONMEMBERS;
                let nonmember_packets = flows.iter().filter(|flow| flow.cookie & mask == cookie);
                let sum = nonmember_packets.fold(0u64, |sum, flow| sum.saturating_add(known(flow.packets)));
                self.gathered.nonmember_packets = self.gathered.nonmember_packets.saturating_add(sum);
                self.flows.take_if(|_| !more);
            }
            _ => return None,
        }
        let done = self.ports.is_none() && self.flows.is_none();
        done.then(|| {
            let counters = core::mem::take(&mut self.gathered);
            let nonmember_packets = self.nonmembers.update(now, counters.nonmember_packets);
            SwitchCounters { nonmember_packets, ..counters }
        })
    }

    /// Returns whether an error answers a request of this poller. The counters of that request are
    /// then left out.
    pub(crate) fn refused(&mut self, xid: u32) -> bool {
        let ours = self.ports == Some(xid) || self.flows == Some(xid);
        self.ports.take_if(|ports| *ports == xid);
        self.flows.take_if(|flows| *flows == xid);
        ours
    }
}

fn counters(port: &PortStats) -> PortCounters {
    let lost = [port.rx_dropped, port.tx_dropped, port.rx_errors, port.tx_errors];
    PortCounters {
        rx_packets: known(port.rx_packets),
        rx_bytes: known(port.rx_bytes),
        tx_packets: known(port.tx_packets),
        tx_bytes: known(port.tx_bytes),
        lost: lost.into_iter().fold(0, |sum, count| sum.saturating_add(known(count))),
    }
}

/// Returns 0 for a counter that the switch does not have.
fn known(counter: Counter) -> u64 {
    if counter == Counter::UNAVAILABLE { 0 } else { counter.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_credited_late_to_a_deleted_tree_are_not_nonmembers() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let mut count = NonmemberCount::default();
        assert_eq!([count.update(at(0), 3), count.update(at(2), 5)], [3, 5]);
        // Reports at 4 and 8 cover the 5 s after the deletion, the one at 10 does not.
        count.tree_deleted_at = Some(at(3));
        assert_eq!([4, 6, 8].map(|seconds| count.update(at(seconds), 5 + 10 * seconds)), [5, 5, 5]);
        assert_eq!(count.update(at(10), 5 + 10 * 8 + 1), 6);
        assert_eq!(count.update(at(12), 5 + 10 * 8 + 4), 9);
        // A switch that restarts counts from zero.
        assert_eq!([count.update(at(14), 2), count.update(at(16), 3)], [2, 3]);
    }
}
