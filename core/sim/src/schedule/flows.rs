//! Flows that share links. Each link's rate is divided among its flows in a max-min fair way, up to
//! a maximum for each flow. This module does not know the traffic that the flows carry.
//!
//! Rates change when flows begin and end. They are recomputed only for flows that share links with
//! the changed ones, directly or indirectly. Because thousands of messages begin and end at almost
//! the same time, changes within a 256th of a flow's duration are combined.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// Changes within a flow's duration divided by this number are combined.
const GRAINS: f64 = 256.0;

/// The number of a flow. Numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowId(pub(crate) u32);

/// When a flow will end. A change of its rate also changes its version, which invalidates this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub(crate) flow: FlowId,
    pub(crate) version: u32,
    pub(crate) at: u64,
}

#[derive(Debug)]
struct SharedLink {
    rate: f64,
    flows: Vec<u32>,
    /// Number of bytes that may pass at once, as of `at`.
    tokens: f64,
    at: u64,
    used: f64,
    /// Used while rates are computed: the computation, the rate that is left, and the number of
    /// flows without a rate.
    turn: u32,
    left: f64,
    waiting: u32,
}

#[derive(Debug, Default)]
struct SharedFlow {
    links: Vec<u32>,
    most: f64,
    /// Number of bytes left, as of `at`.
    left: f64,
    at: u64,
    rate: f64,
    grain: u64,
    version: u32,
    turn: u32,
    /// Used while rates are computed: the new rate.
    fresh: Option<f64>,
}

/// All flows of a network.
#[derive(Debug)]
pub(crate) struct Flows {
    links: Vec<SharedLink>,
    flows: Vec<SharedFlow>,
    unused: Vec<u32>,
    burst: f64,
    /// Links with changed flows, and when rates must be recomputed.
    changed: Vec<u32>,
    due: Option<u64>,
    turn: u32,
}

impl Flows {
    /// Returns the state without any flows, on links of the given rates in bytes per nanosecond.
    pub(crate) fn new(rates: impl Iterator<Item = f64>, burst: u64, spent: u64) -> Flows {
        let burst = burst as f64;
        let link = |rate| SharedLink {
            rate,
            flows: Vec::new(),
            tokens: (burst - spent as f64).max(0.0),
            at: 0,
            used: 0.0,
            turn: 0,
            left: 0.0,
            waiting: 0,
        };
        Flows {
            links: rates.map(link).collect(),
            flows: Vec::new(),
            unused: Vec::new(),
            burst,
            changed: Vec::new(),
            due: None,
            turn: 0,
        }
    }

    /// Returns when [`Flows::share`] must be called, in nanoseconds.
    pub(crate) fn due(&self) -> Option<u64> {
        self.due
    }

    /// Returns the lowest rate of some links.
    pub(crate) fn narrowest(&self, links: &[u32]) -> f64 {
        links.iter().map(|link| self.links[*link as usize].rate).fold(f64::INFINITY, f64::min)
    }

    /// Begins a flow of `bytes` at no more than `most` bytes per nanosecond. Returns none if idle
    /// links let it pass at once. Otherwise the caller must call [`Flows::share`] when it is due.
    pub(crate) fn begin(&mut self, now: u64, links: Vec<u32>, bytes: u64, most: f64) -> Option<FlowId> {
        let mut left = bytes as f64;
        if self.burst > 0.0 {
            let mut burst = left;
            for link in &links {
                burst = burst.min(self.tokens(now, *link));
            }
            for link in &links {
                self.links[*link as usize].tokens -= burst;
            }
            left -= burst;
            if left < 1.0 {
                return None;
            }
        }
        let sharers = links.iter().map(|link| self.links[*link as usize].flows.len()).max().unwrap_or(0) + 1;
        let duration = left * sharers as f64 / self.narrowest(&links).min(most);
        let id = self.unused.pop().unwrap_or_else(|| {
            self.flows.push(SharedFlow::default());
            self.flows.len() as u32 - 1
        });
        for link in &links {
            self.links[*link as usize].flows.push(id);
        }
        self.changed.extend(&links);
        let flow = &mut self.flows[id as usize];
        let (version, turn) = (flow.version + 1, flow.turn);
        let grain = grain(duration);
        *flow = SharedFlow { links, most, left, at: now, rate: 0.0, grain, version, turn, fresh: None };
        self.due_within(now, grain);
        Some(FlowId(id))
    }

    fn tokens(&mut self, now: u64, link: u32) -> f64 {
        let link = &mut self.links[link as usize];
        let earned = (link.rate - link.used).max(0.0) * (now - link.at) as f64;
        link.tokens = (link.tokens + earned).min(self.burst);
        link.at = now;
        link.tokens
    }

    fn due_within(&mut self, now: u64, grain: u64) {
        let at = now.next_multiple_of(grain);
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Returns whether the flow still has this version.
    pub(crate) fn is_current(&self, finish: &Finish) -> bool {
        self.flows[finish.flow.0 as usize].version == finish.version
    }

    /// Returns the number of bytes that a flow has left.
    pub(crate) fn left(&mut self, now: u64, id: FlowId) -> f64 {
        let flow = &mut self.flows[id.0 as usize];
        if flow.rate > 0.0 {
            flow.left = (flow.left - flow.rate * (now - flow.at) as f64).max(0.0);
            flow.at = now;
        }
        flow.left
    }

    /// Changes the number of bytes that a flow has left. Returns when it will end, if it has a
    /// rate.
    pub(crate) fn set_left(&mut self, now: u64, id: FlowId, bytes: f64) -> Option<Finish> {
        self.left(now, id);
        let flow = &mut self.flows[id.0 as usize];
        flow.left = bytes;
        flow.version += 1;
        (flow.rate > 0.0).then(|| flow.finish(now, id))
    }

    /// Changes the maximum rate of a flow.
    pub(crate) fn set_most(&mut self, now: u64, id: FlowId, most: f64) {
        let flow = &mut self.flows[id.0 as usize];
        flow.most = most;
        let grain = flow.grain;
        self.changed.extend(flow.links.first());
        self.due_within(now, grain);
    }

    /// Ends a flow.
    pub(crate) fn end(&mut self, now: u64, id: FlowId) {
        let flow = &mut self.flows[id.0 as usize];
        flow.version += 1;
        let grain = flow.grain;
        for link in std::mem::take(&mut flow.links) {
            let flows = &mut self.links[link as usize].flows;
            if let Some(at) = flows.iter().position(|flow| *flow == id.0) {
                flows.swap_remove(at);
            }
            self.changed.push(link);
        }
        self.unused.push(id.0);
        self.due_within(now, grain);
    }

    /// Recomputes the rates of all affected flows, and reports each flow whose end changes.
    pub(crate) fn share(&mut self, now: u64, mut report: impl FnMut(Finish)) {
        self.due = None;
        self.turn += 1;
        let (links, flows) = self.concerned();
        self.fill(&links, &flows);
        for link in &links {
            self.tokens(now, *link);
            self.links[*link as usize].used = 0.0;
        }
        for id in flows {
            let flow = &mut self.flows[id as usize];
            let rate = flow.fresh.take().unwrap_or(0.0);
            for link in &flow.links {
                self.links[*link as usize].used += rate;
            }
            if (rate - flow.rate).abs() > 1e-9 * rate {
                // A new flow has waited for its first rate. It is credited for that time.
                let before = if flow.rate > 0.0 { flow.rate } else { rate };
                flow.left = (flow.left - before * (now - flow.at) as f64).max(0.0);
                flow.at = now;
                flow.rate = rate;
                flow.version += 1;
                report(flow.finish(now, FlowId(id)));
            }
        }
    }

    /// Returns the links and flows that are connected with the changed links.
    fn concerned(&mut self) -> (Vec<u32>, Vec<u32>) {
        let mut links = Vec::new();
        let mut flows = Vec::new();
        let turn = self.turn;
        for link in std::mem::take(&mut self.changed) {
            if std::mem::replace(&mut self.links[link as usize].turn, turn) != turn {
                links.push(link);
            }
        }
        let mut next = 0;
        while let Some(link) = links.get(next).copied() {
            next += 1;
            for i in 0..self.links[link as usize].flows.len() {
                let id = self.links[link as usize].flows[i];
                let flow = &mut self.flows[id as usize];
                if std::mem::replace(&mut flow.turn, turn) == turn {
                    continue;
                }
                flows.push(id);
                for link in &flow.links {
                    if std::mem::replace(&mut self.links[*link as usize].turn, turn) != turn {
                        links.push(*link);
                    }
                }
            }
        }
        (links, flows)
    }

    /// Computes max-min fair rates by progressive filling: the link with the least rate for each of
    /// its flows decides for these, then the next link. Flows with a lower maximum are settled
    /// first.
    fn fill(&mut self, links: &[u32], flows: &[u32]) {
        let mut shares = BinaryHeap::with_capacity(links.len());
        for id in links {
            let link = &mut self.links[*id as usize];
            (link.left, link.waiting) = (link.rate, link.flows.len() as u32);
            if link.waiting > 0 {
                shares.push(Reverse((FairShare(link.left / f64::from(link.waiting)), *id)));
            }
        }
        let mut modest: Vec<u32> = flows.to_vec();
        modest.sort_by(|a, b| self.flows[*a as usize].most.total_cmp(&self.flows[*b as usize].most));
        let mut modest = modest.into_iter().peekable();
        while let Some(Reverse((FairShare(share), id))) = shares.pop() {
            while let Some(flow) = modest.next_if(|flow| self.flows[*flow as usize].most <= share) {
                let most = self.flows[flow as usize].most;
                self.settle(flow, most);
            }
            let link = &self.links[id as usize];
            if link.waiting == 0 {
                continue;
            }
            let current = (link.left / f64::from(link.waiting)).max(0.0);
            if current > share * (1.0 + 1e-12) {
                shares.push(Reverse((FairShare(current), id)));
                continue;
            }
            for flow in link.flows.clone() {
                self.settle(flow, current);
            }
        }
    }

    /// Sets the rate of a flow, unless it already has one.
    fn settle(&mut self, id: u32, rate: f64) {
        let flow = &mut self.flows[id as usize];
        if flow.fresh.is_some() {
            return;
        }
        flow.fresh = Some(rate);
        for link in &flow.links {
            let link = &mut self.links[*link as usize];
            link.left -= rate;
            link.waiting -= 1;
        }
    }
}

impl SharedFlow {
    fn finish(&mut self, now: u64, id: FlowId) -> Finish {
        let duration = self.left / self.rate;
        self.grain = grain(duration);
        let at = (now as f64 + duration) as u64;
        let on_grain = (at + self.grain / 2) / self.grain * self.grain;
        Finish { flow: id, version: self.version, at: on_grain.max(now) }
    }
}

/// Returns the largest power of two, in nanoseconds, that is not more than a 256th of a duration.
fn grain(duration: f64) -> u64 {
    1 << ((duration / GRAINS) as u64).max(1).ilog2()
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct FairShare(f64);

impl Eq for FairShare {}

impl PartialOrd for FairShare {
    fn partial_cmp(&self, other: &FairShare) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FairShare {
    fn cmp(&self, other: &FairShare) -> core::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(flows: &mut Flows, ids: &[FlowId]) -> Vec<f64> {
        flows.share(1 << 40, |_| {});
        ids.iter().map(|id| flows.flows[id.0 as usize].rate).collect()
    }

    #[test]
    fn a_link_is_shared_fairly_and_unused_shares_go_to_others() {
        let mut flows = Flows::new([10.0, 4.0, 10.0].into_iter(), 0, 0);
        let mut begin = |links: &[u32], most| flows.begin(0, links.to_vec(), 1 << 40, most).unwrap();
        let ids = [begin(&[0, 1], 99.0), begin(&[0], 99.0), begin(&[1], 1.0), begin(&[2], 99.0)];
        assert_eq!(rates(&mut flows, &ids), [3.0, 7.0, 1.0, 10.0]);
        flows.end(1 << 40, ids[1]);
        assert_eq!(rates(&mut flows, &ids[..1]), [3.0]);
        flows.set_most(1 << 40, ids[2], 9.0);
        assert_eq!(rates(&mut flows, &[ids[0], ids[2]]), [2.0, 2.0]);
    }

    #[test]
    fn an_idle_link_lets_a_burst_pass_and_earns_the_next_with_time() {
        let mut flows = Flows::new([1.0].into_iter(), 1000, 0);
        assert_eq!(flows.begin(0, vec![0], 900, 9.0), None);
        let id = flows.begin(100, vec![0], 900, 9.0).unwrap();
        assert_eq!(flows.left(100, id), 700.0);
    }

    proptest! {
        /// The definition: every flow has its maximum rate, or crosses a full link on which no flow
        /// has a higher rate.
        #[test]
        fn rates_are_max_min_fair(
            capacities in prop::collection::vec(1u32..100, 1..8),
            paths in prop::collection::vec((prop::collection::btree_set(0u32..8, 1..4), 1u32..200), 1..20),
        ) {
            let count = capacities.len() as u32;
            let mut flows = Flows::new(capacities.iter().map(|rate| f64::from(*rate)), 0, 0);
            let mut ids = Vec::new();
            for (links, most) in paths {
                let links: std::collections::BTreeSet<u32> = links.iter().map(|link| link % count).collect();
                ids.push(flows.begin(0, links.into_iter().collect(), 1 << 40, f64::from(most)).unwrap());
            }
            flows.share(0, |_| {});
            let rate = |id: u32| flows.flows[id as usize].rate;
            for link in &flows.links {
                let used: f64 = link.flows.iter().map(|id| rate(*id)).sum();
                prop_assert!(used <= link.rate + 1e-6);
            }
            for id in ids {
                let flow = &flows.flows[id.0 as usize];
                let full = flow.links.iter().any(|link| {
                    let link = &flows.links[*link as usize];
                    let used: f64 = link.flows.iter().map(|id| rate(*id)).sum();
                    used > link.rate - 1e-6 && link.flows.iter().all(|id| rate(*id) <= flow.rate + 1e-6)
                });
                prop_assert!(full || flow.rate > flow.most - 1e-6, "{:?}", flow);
            }
        }
    }
}
