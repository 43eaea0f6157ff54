//! Nodes that no switch of the controller locates. They are located by the report of their agent.
//! The operator names their racks, or the LLDP of ordinary switches does ([`RackSource`]).

use super::Network;
use super::group_creation::MulticastKind;
use crate::api::{
    GroupRequest, LldpNeighbor, MulticastModel, NetworkMode, NodeRegistration, RackSource, RackTable,
    ReportedRack,
};
use cool_machine::{Machine, Time};
use cool_topology::discovery::Input;
use cool_topology::racks::MAX_RACKS;
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::{info, warn};

/// LLDP intervals after registration in which a switch may locate a node, if no switch is
/// connected.
const WITHOUT_SWITCHES_INTERVALS: u32 = 3;
/// LLDP intervals after registration in which a switch may locate a node, if switches are
/// connected. Nodes wait longer then, because their groups are much faster with trees.
const WITH_SWITCHES_INTERVALS: u32 = 10;

/// The nodes that no switch has located since they were registered.
#[derive(Debug, Default)]
pub(crate) struct SelfLocation {
    /// When each node that has no location yet is located by its report.
    pending: BTreeMap<String, Time>,
    /// The rack of each node that is located by its report, with its number.
    racks: BTreeMap<String, (u32, ReportedRack)>,
    /// Names of racks by the chassis id of their switch.
    chassis_names: BTreeMap<String, String>,
    revision: u64,
}

impl SelfLocation {
    /// Records that a switch has located a node, or that the node is no longer registered.
    pub(super) fn remove(&mut self, name: &str) {
        self.pending.remove(name);
        self.revision += u64::from(self.racks.remove(name).is_some());
    }

    /// Returns the rack of a node that is located by its report.
    pub(crate) fn rack(&self, name: &str) -> Option<u32> {
        self.racks.get(name).map(|(number, _)| *number)
    }

    /// Returns the racks of all nodes that are located by their reports.
    pub(crate) fn reported(&self) -> BTreeMap<String, ReportedRack> {
        self.racks.iter().map(|(name, (_, rack))| (name.clone(), rack.clone())).collect()
    }

    /// Returns when the next node is located by its report.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.pending.values().min().copied()
    }

    /// Returns the number of changes so far that are visible in a snapshot of the network.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the rack of a node that no switch locates. An operator's statement takes precedence
    /// over LLDP, because it may be more exact, or correct a frame of a device that is no switch.
    fn find_rack(&mut self, node: &NodeRegistration, table: &RackTable) -> ReportedRack {
        let named = |name: &str| Some(name.to_owned());
        let (name, source) = if let Some(rack) = &node.rack {
            (named(rack), RackSource::AgentOption)
        } else if let Some(rack) = table.rack(&node.name) {
            (named(rack), RackSource::RackTable)
        } else if let Some(neighbor) = &node.neighbor {
            (Some(self.name_of_chassis(neighbor)), RackSource::Neighbor)
        } else {
            (None, RackSource::Nothing)
        };
        ReportedRack { name, source, neighbor: node.neighbor.clone() }
    }

    /// Returns the name of a switch's rack. It remains the same while the controller runs, so that
    /// the nodes of a switch stay together. Switches of the same name have different racks.
    fn name_of_chassis(&mut self, neighbor: &LldpNeighbor) -> String {
        let LldpNeighbor { chassis, system_name, .. } = neighbor;
        if let Some(name) = self.chassis_names.get(chassis) {
            return name.clone();
        }
        let mut name = system_name.as_ref().unwrap_or(chassis).clone();
        if self.chassis_names.values().any(|other| *other == name) {
            name = format!("{name} ({chassis})");
        }
        // No more names than racks can be used.
        if self.chassis_names.len() < MAX_RACKS as usize {
            self.chassis_names.insert(chassis.clone(), name.clone());
        }
        name
    }
}

impl Network {
    /// Records that a node is registered. If no switch locates it soon, its report does.
    pub(super) fn expect_location(&mut self, now: Time, name: &str) {
        if self.discovery.graph().host(name).is_some() {
            return;
        }
        let intervals = match self.config.mode {
            NetworkMode::OpenFlow => return,
            NetworkMode::Plain | NetworkMode::Snooping => 0,
            NetworkMode::Auto if self.switches.iter().any(|(_, state)| state.connected()) => {
                WITH_SWITCHES_INTERVALS
            }
            NetworkMode::Auto => WITHOUT_SWITCHES_INTERVALS,
        };
        // An agent that registers again may name a different rack.
        if intervals == 0 || self.self_location.racks.contains_key(name) {
            self.self_location.pending.remove(name);
            return self.locate_by_report(name);
        }
        self.self_location.pending.insert(name.to_owned(), now + self.config.lldp_interval * intervals);
    }

    /// Locates the nodes by their reports that no switch has located in time.
    pub(super) fn locate_by_reports(&mut self, now: Time) {
        let due: Vec<String> =
            self.self_location.pending.extract_if(.., |_, due| *due <= now).map(|(name, _)| name).collect();
        for name in due {
            self.locate_by_report(&name);
        }
    }

    /// Locates a node by its report.
    fn locate_by_report(&mut self, name: &str) {
        let Some(node) = self.nodes.get(name) else { return };
        let rack = self.self_location.find_rack(node, &self.config.racks);
        let rack_name = rack.name.clone().unwrap_or_default();
        let Some(number) = self.racks.number_by_name(&rack_name) else {
            return warn!(
                node = name,
                rack = rack_name,
                "cannot locate the node, because there are too many racks"
            );
        };
        let located = (number, rack);
        if self.self_location.racks.get(name) != Some(&located) {
            let source = located.1.source;
            info!(
                node = name,
                rack = rack_name,
                ?source,
                "no switch locates the node, so its agent's report does"
            );
            self.self_location.racks.insert(name.to_owned(), located);
            self.self_location.revision += 1;
        }
    }

    /// Records the neighbor of a node, which may name its rack.
    pub(super) fn set_neighbor(&mut self, now: Time, name: &str, neighbor: Option<LldpNeighbor>) {
        self.observe_neighbor(now, name, neighbor.as_ref());
        self.nodes.set_neighbor(name, neighbor);
        if self.self_location.racks.contains_key(name) {
            self.locate_by_report(name);
        }
    }

    /// Locates a node at the port of which it receives LLDP, if switches are only observed: they
    /// may hand in no LLDP of nodes. Otherwise only LLDP that the node has authenticated locates
    /// it.
    pub(super) fn observe_neighbor(&mut self, now: Time, name: &str, neighbor: Option<&LldpNeighbor>) {
        if self.config.observes {
            let port = neighbor.and_then(LldpNeighbor::announced_port);
            self.discovery.handle(now, Input::NodeReported(name, port));
        }
    }

    /// Replaces the operator's table of racks.
    pub(crate) fn set_racks(&mut self, racks: Arc<RackTable>) {
        self.config.racks = racks;
        let names: Vec<String> = self.self_location.racks.keys().cloned().collect();
        for name in names {
            self.locate_by_report(&name);
        }
    }

    /// Returns how a group can use multicast if OpenFlow switches install no trees for it: because
    /// they never do, or because no switch has located one of its nodes.
    pub(super) fn kind_without_switches(&self, request: &GroupRequest) -> Option<MulticastKind> {
        if self.config.observes {
            return Some(MulticastKind::None);
        }
        let by_report = |name: &String| self.self_location.rack(name).is_some();
        let snooped = match self.config.mode {
            NetworkMode::Plain => false,
            NetworkMode::Snooping => true,
            _ if !request.members.iter().any(by_report) => return None,
            // OpenFlow switches drop multicasts that they have no entries for.
            NetworkMode::Auto | NetworkMode::OpenFlow => request.members.iter().all(by_report),
        };
        let rack = |name: &String| Some((name.clone(), self.rack(name)?));
        let racks: Option<BTreeMap<String, u32>> = request.members.iter().map(rack).collect();
        let can_use = match self.config.multicast {
            MulticastModel::Asm => request.can_prove,
            MulticastModel::Ssm => request.can_join_sources,
        };
        if snooped && !can_use && self.config.multicast == MulticastModel::Ssm {
            warn!(
                group = request.id,
                "some agents of the group are of a release without source-specific multicast: the group uses chains"
            );
        }
        let racks = racks.filter(|_| snooped && can_use);
        Some(racks.map_or(MulticastKind::None, MulticastKind::Snooped))
    }

    /// Returns the rack of a node that has been located.
    fn rack(&self, name: &str) -> Option<u32> {
        let by_switch = self.discovery.graph().host(name).and_then(|port| self.racks.number(port.switch));
        by_switch.or_else(|| self.self_location.rack(name))
    }
}
