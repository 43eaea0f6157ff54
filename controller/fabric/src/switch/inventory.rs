//! Counts the entries of a switch that is only observed, from time to time: flows, groups and
//! meters of all controllers. It also asks for the ports, because a switch may notify an observer
//! of none of their changes.

use crate::intent::failover::FAILOVERS;
use crate::intent::tables::GROUPS;
use crate::observation::SwitchInventory;
use cool_machine::{Duration, Time};
use rs_openflow::{
    Body, FlowStatsRequest, MeterId, MeterRequest, MultipartReply, MultipartRequest, Port, TableId,
};
use std::collections::BTreeMap;

/// Interval at which the entries are counted.
const INVENTORY_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of ports of which descriptions are kept.
const PORTS_MAX: usize = 1 << 16;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    AllFlows,
    TableFlows,
    Groups,
    Meters,
    Config,
    Ports,
}

/// The poller. It does nothing until it is started.
#[derive(Debug, Default)]
pub(crate) struct InventoryPoller {
    next: Option<Time>,
    /// Whether requests were sent of which the result has not been returned.
    is_counting: bool,
    /// Requests without a complete reply, by transaction.
    pending: BTreeMap<u32, Question>,
    gathered: SwitchInventory,
    ports: Vec<Port>,
    /// Whether the list of ports is complete.
    has_ports: bool,
}

/// An inventory, and the ports if the switch has described them.
pub(crate) type CountedEntries = (SwitchInventory, Option<Vec<Port>>);

impl InventoryPoller {
    /// Starts counting at once.
    pub(crate) fn start(&mut self, now: Time) {
        self.next = Some(now);
    }

    /// Returns when the next requests are due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next
    }

    /// Returns what has been counted, once the switch has answered all requests, or when the next
    /// ones are due.
    pub(crate) fn finished(&mut self, now: Time) -> Option<CountedEntries> {
        let due = self.next.is_some_and(|next| next <= now);
        if !self.is_counting || !(due || self.pending.is_empty()) {
            return None;
        }
        self.is_counting = false;
        self.pending.clear();
        let ports = core::mem::take(&mut self.ports);
        let has_ports = core::mem::take(&mut self.has_ports);
        Some((core::mem::take(&mut self.gathered), has_ports.then_some(ports)))
    }

    /// Returns the requests that are due. `number` assigns the transactions, and `table` is the one
    /// that this controller uses.
    pub(crate) fn requests(
        &mut self,
        now: Time,
        table: u8,
        mut number: impl FnMut() -> u32,
    ) -> Vec<(u32, Body)> {
        if self.next.is_none_or(|next| next > now) {
            return Vec::new();
        }
        (self.next, self.is_counting) = (Some(now + INVENTORY_INTERVAL), true);
        let flows = |table| {
            let of_table = FlowStatsRequest { table, ..FlowStatsRequest::default() };
            Body::MultipartRequest(MultipartRequest::Aggregate(of_table).into())
        };
        let meters = MultipartRequest::MeterConfig(MeterRequest { meter: MeterId::ALL });
        let requests = [
            (Question::AllFlows, flows(TableId::ALL)),
            (Question::TableFlows, flows(TableId(table))),
            (Question::Groups, Body::MultipartRequest(MultipartRequest::GroupDesc.into())),
            (Question::Meters, Body::MultipartRequest(meters.into())),
            (Question::Config, Body::GetConfigRequest),
            (Question::Ports, Body::MultipartRequest(MultipartRequest::PortDesc.into())),
        ];
        let mut ask = |(question, body)| {
            let xid = number();
            self.pending.insert(xid, question);
            (xid, body)
        };
        requests.into_iter().map(&mut ask).collect()
    }

    /// Processes a reply.
    pub(crate) fn reply(&mut self, xid: u32, reply: MultipartReply, more: bool) {
        let Some(question) = self.pending.get(&xid) else { return };
        let gathered = &mut self.gathered;
        match (question, reply) {
            (Question::AllFlows, MultipartReply::Aggregate(sum)) => gathered.flows = Some(sum.flows),
            (Question::TableFlows, MultipartReply::Aggregate(sum)) => gathered.table_flows = Some(sum.flows),
            (Question::Groups, MultipartReply::GroupDesc(groups)) => {
                let is_own = |number: u32| (GROUPS.start..FAILOVERS.end).contains(&number);
                let foreign = groups.iter().filter(|group| !is_own(group.group.0)).count();
                add(&mut gathered.foreign_groups, foreign);
            }
            (Question::Meters, MultipartReply::MeterConfig(meters)) => {
                add(&mut gathered.meters, meters.len());
            }
            (Question::Ports, MultipartReply::PortDesc(ports)) => {
                let room = PORTS_MAX.saturating_sub(self.ports.len());
                self.ports.extend(ports.into_iter().take(room));
                self.has_ports = !more;
            }
            _ => return,
        }
        if !more {
            self.pending.remove(&xid);
        }
    }

    /// Processes the configuration of the switch.
    pub(crate) fn configured(&mut self, xid: u32, miss_send_len: u16) {
        if self.pending.get(&xid) == Some(&Question::Config) {
            self.gathered.miss_send_len = Some(miss_send_len);
            self.pending.remove(&xid);
        }
    }

    /// Returns whether an error answers a request of this poller. What it asks for is then unknown.
    pub(crate) fn refused(&mut self, xid: u32) -> bool {
        self.pending.remove(&xid).is_some()
    }
}

fn add(sum: &mut Option<u32>, count: usize) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    *sum = Some(sum.unwrap_or(0).saturating_add(count));
}
