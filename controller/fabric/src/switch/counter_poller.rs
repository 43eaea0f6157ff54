//! What a switch counts: asks it every now and then, and puts the answers together.

use crate::intent::cookies;
use crate::telemetry::counters::{PortCounters, SwitchCounters};
use cool_machine::{Duration, Time};
use rs_openflow::{
    Body, Counter, FlowStatsRequest, MultipartReply, MultipartRequest, PortNo, PortStats, PortStatsRequest,
    TableId,
};

/// Ports that are listened to.
const MAX_PORTS: usize = 1 << 16;

/// Asks, and listens for the answers.
#[derive(Debug)]
pub(crate) struct CounterPoller {
    every: Duration,
    next: Option<Time>,
    /// The transactions whose answers are still to come.
    ports: Option<u32>,
    flows: Option<u32>,
    gathered: SwitchCounters,
}

impl CounterPoller {
    pub(crate) fn new(every: Duration) -> CounterPoller {
        CounterPoller { every, next: None, ports: None, flows: None, gathered: SwitchCounters::default() }
    }

    /// From now on there is somebody to ask.
    pub(crate) fn start(&mut self, now: Time) {
        self.next = Some(now + self.every);
    }

    /// When to ask next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next
    }

    /// The questions that are due; `number` gives each its transaction. A switch that still owes answers is left
    /// alone.
    pub(crate) fn ask(&mut self, now: Time, mut number: impl FnMut() -> u32) -> Vec<(u32, Body)> {
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

    /// Takes an answer, if it is one; returns all that was counted when that was the last.
    pub(crate) fn reply(&mut self, xid: u32, reply: &MultipartReply, more: bool) -> Option<SwitchCounters> {
        match reply {
            MultipartReply::PortStats(ports) if self.ports == Some(xid) => {
                let room = MAX_PORTS.saturating_sub(self.gathered.ports.len());
                // Others than those with a cable do not count.
                let ports = ports.iter().filter(|port| port.port <= PortNo::MAX).take(room);
                self.gathered.ports.extend(ports.map(|port| (port.port.0, counters(port))));
                self.ports.take_if(|_| !more);
            }
            MultipartReply::Flow(flows) if self.flows == Some(xid) => {
                // There are switches that tell of all flows, whatever cookie they are asked for.
                let (cookie, mask) = cookies::NONMEMBERS;
                let nonmember_packets = flows.iter().filter(|flow| flow.cookie & mask == cookie);
                let sum = nonmember_packets.fold(0u64, |sum, flow| sum.saturating_add(known(flow.packets)));
                self.gathered.nonmember_packets = self.gathered.nonmember_packets.saturating_add(sum);
                self.flows.take_if(|_| !more);
            }
            _ => return None,
        }
        let done = self.ports.is_none() && self.flows.is_none();
        done.then(|| core::mem::take(&mut self.gathered))
    }

    /// Whether an error is the answer to one of our questions; then it goes without.
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

/// A counter that the switch does not have counts nothing.
fn known(counter: Counter) -> u64 {
    if counter == Counter::UNAVAILABLE { 0 } else { counter.0 }
}
