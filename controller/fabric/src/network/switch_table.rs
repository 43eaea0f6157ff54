//! The known switches: their properties, their connections, the last version that each was sent,
//! and how long each retains stale entries.

use super::deadlines::Deadlines;
use crate::api::ConnectionId;
use crate::api::TableCapacity;
use crate::intent::retained::StaleEntries;
use crate::intent::tables::TableDelta;
use crate::observation::{SwitchInventory, WithheldChanges};
use crate::switch::connection::SwitchHandle;
use crate::switch::port_info::PortInfo;
use crate::switch::reconciler::{EntryRefusals, TableUpdate};
use cool_machine::{Time, earliest};
use cool_topology::{DatapathId, MacAddr, Port};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tracing::warn;

/// State of a switch, which survives short losses of the connection.
pub(crate) struct SwitchState {
    pub(crate) name: String,
    pub(crate) ports: BTreeMap<u32, PortInfo>,
    connection: Option<(ConnectionId, SwitchHandle)>,
    /// First version with all desired entries on this connection; `None` until it is sent.
    joining: Option<u64>,
    /// Whether the switch has acknowledged that version. Only then may discovery use its ports.
    joined: bool,
    /// Last version that was sent to the switch.
    version: u64,
    /// Entries of that version that the switch refused.
    pub(crate) refused: EntryRefusals,
    pub(crate) capacity: TableCapacity,
    stale: StaleEntries,
    /// Its manufacturer, hardware and software, and the number of its flow tables.
    pub(crate) model: String,
    pub(crate) tables: u8,
    /// Numbers of its entries, and changes that are not sent to it, if it is only observed.
    pub(crate) inventory: Option<SwitchInventory>,
    pub(crate) withheld: Option<WithheldChanges>,
}

/// A switch that has just connected.
pub(crate) struct ConnectedSwitch {
    pub(crate) name: String,
    pub(crate) ports: Vec<PortInfo>,
    pub(crate) model: String,
    pub(crate) tables: u8,
    pub(crate) connection: ConnectionId,
    pub(crate) handle: SwitchHandle,
    pub(crate) capacity: TableCapacity,
    /// Trees of an earlier controller that it retains.
    pub(crate) stale_trees: Arc<BTreeSet<u32>>,
    /// When its neighborhood counts as discovered.
    pub(crate) discovered_at: Time,
    /// Time until which it retains unicast flows that are not desired.
    pub(crate) retain_until: Time,
}

/// Result of an acknowledgment.
#[derive(Default)]
pub(crate) struct AckResult {
    /// Refusals that the switch has not reported before.
    pub(crate) refused: Vec<String>,
    /// Set if the switch has joined: number and address of its ports that are up.
    pub(crate) joined: Option<Vec<(u32, MacAddr)>>,
}

/// All switches.
#[derive(Default)]
pub(crate) struct SwitchTable {
    by_id: BTreeMap<DatapathId, SwitchState>,
    /// Last version that was sent to any switch.
    version: u64,
    /// When the neighborhood of each switch counts as discovered.
    discovering: Deadlines<DatapathId>,
    /// When each switch stops retaining stale unicast flows.
    retaining: Deadlines<DatapathId>,
    revision: u64,
}

impl SwitchState {
    /// Returns whether the switch is connected.
    pub(crate) fn connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Returns the handle on the connection.
    pub(crate) fn handle(&self) -> Option<&SwitchHandle> {
        self.connection.as_ref().map(|(_, handle)| handle)
    }

    #[cfg(test)]
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}

impl SwitchTable {
    /// Returns the state of a switch.
    pub(crate) fn get(&self, switch: DatapathId) -> Option<&SwitchState> {
        self.by_id.get(&switch)
    }

    /// Returns all switches.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (DatapathId, &SwitchState)> {
        self.by_id.iter().map(|(switch, state)| (*switch, state))
    }

    /// Returns the name of a switch as operators know it.
    pub(crate) fn name(&self, switch: DatapathId) -> String {
        self.get(switch).map_or_else(|| format!("dpid:{switch}"), |state| state.name.clone())
    }

    /// Returns the name of a port as operators know it, for example "s1:2".
    pub(crate) fn port_name(&self, port: Port) -> String {
        format!("{}:{}", self.name(port.switch), Port::number_text(port.number))
    }

    /// Returns the number of changes so far that are visible in a snapshot of the network.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns whether this is the current connection of the switch, and not one that was replaced.
    pub(crate) fn is_current(&self, switch: DatapathId, connection: ConnectionId) -> bool {
        let current = self.get(switch).and_then(|state| state.connection.as_ref());
        current.is_some_and(|(current, _)| *current == connection)
    }

    /// Records a switch that has connected, perhaps again.
    pub(crate) fn connect(&mut self, switch: DatapathId, connected: ConnectedSwitch) {
        let ConnectedSwitch { name, ports, model, tables, connection, handle, capacity, stale_trees, .. } =
            connected;
        let name = self.unique_name(switch, name);
        self.discovering.set(switch, connected.discovered_at);
        self.retaining.set(switch, connected.retain_until);
        let state = SwitchState {
            name,
            ports: ports.into_iter().map(|port| (port.number, port)).collect(),
            connection: Some((connection, handle)),
            joining: None,
            joined: false,
            version: 0,
            refused: EntryRefusals::new(),
            capacity,
            stale: StaleEntries { unicast: true, trees: stale_trees },
            model,
            tables,
            inventory: None,
            withheld: None,
        };
        self.revision += 1;
        if let Some(old) = self.by_id.insert(switch, state).filter(SwitchState::connected) {
            warn!(%switch, "switch {} connected again; the older connection is closed", old.name);
        }
    }

    /// Records the numbers of entries of a switch.
    pub(crate) fn counted(&mut self, switch: DatapathId, inventory: SwitchInventory) {
        if let Some(state) = self.by_id.get_mut(&switch) {
            state.inventory = Some(inventory);
        }
    }

    /// Records the changes that are not sent to a switch.
    pub(crate) fn withheld(&mut self, switch: DatapathId, changes: WithheldChanges) {
        if let Some(state) = self.by_id.get_mut(&switch) {
            state.withheld = Some(changes);
        }
    }

    /// Returns the name of a switch. If another one has the same name, as bridges on several
    /// machines do, the datapath id is appended.
    fn unique_name(&self, switch: DatapathId, name: String) -> String {
        if !self.iter().any(|(other, state)| other != switch && state.name == name) {
            return name;
        }
        warn!(%switch, "several switches have the name {name:?}; give them different names with --switches");
        format!("{name}-{:x}", switch.0)
    }

    /// Records that the connection of a switch has ended.
    pub(crate) fn disconnect(&mut self, switch: DatapathId) {
        if let Some(state) = self.by_id.get_mut(&switch) {
            (state.connection, state.joining, state.joined) = (None, None, false);
            self.revision += 1;
        }
    }

    /// Removes a switch. Returns whether it was known.
    pub(crate) fn remove(&mut self, switch: DatapathId) -> bool {
        self.discovering.clear(switch);
        self.retaining.clear(switch);
        self.revision += 1;
        self.by_id.remove(&switch).is_some()
    }

    /// Records a change of a port. Returns whether discovery uses the switch's ports.
    pub(crate) fn port_changed(&mut self, switch: DatapathId, port: PortInfo) -> bool {
        let Some(state) = self.by_id.get_mut(&switch) else { return false };
        state.ports.insert(port.number, port);
        self.revision += 1;
        state.joined
    }

    /// Records that a port was removed.
    pub(crate) fn port_removed(&mut self, switch: DatapathId, number: u32) {
        if let Some(state) = self.by_id.get_mut(&switch) {
            state.ports.remove(&number);
            self.revision += 1;
        }
    }

    /// Records the acknowledgment of a version.
    pub(crate) fn acknowledged(
        &mut self,
        switch: DatapathId,
        version: u64,
        refused: EntryRefusals,
    ) -> AckResult {
        let Some(state) = self.by_id.get_mut(&switch) else { return AckResult::default() };
        let new = refused.iter().filter(|(about, what)| state.refused.get(about) != Some(what));
        let mut answer = AckResult { refused: new.map(|(_, what)| what.clone()).collect(), joined: None };
        if state.refused != refused {
            state.refused = refused;
            self.revision += 1;
        }
        if !state.joined && state.joining.is_some_and(|joining| joining <= version) {
            state.joined = true;
            let up = state.ports.values().filter(|port| port.up);
            answer.joined = Some(up.map(|port| (port.number, port.mac)).collect());
        }
        answer
    }

    /// Sends a change to a switch, or `full` to a connection that has not been sent anything yet.
    /// Returns the version that the switch must acknowledge.
    pub(crate) fn send(
        &mut self,
        switch: DatapathId,
        delta: TableDelta,
        full: impl FnOnce() -> TableDelta,
    ) -> Option<u64> {
        let state = self.by_id.get_mut(&switch)?;
        self.version += 1;
        state.version = self.version;
        if let Some((_, handle)) = &state.connection {
            let delta = if state.joining.is_none() { full() } else { delta };
            state.joining.get_or_insert(self.version);
            handle.updates.add(TableUpdate { version: self.version, delta, stale: state.stale.clone() });
        }
        Some(self.version)
    }

    /// Records that a switch cannot have trees.
    pub(crate) fn forbid_groups(&mut self, switch: DatapathId) {
        if let Some(state) = self.by_id.get_mut(&switch) {
            state.capacity.groups = Some(0);
            self.revision += 1;
        }
    }

    /// Stops retaining a stale tree at a switch. Returns whether the switch is known.
    pub(crate) fn release_tree(&mut self, switch: DatapathId, number: u32) -> bool {
        let Some(state) = self.by_id.get_mut(&switch) else { return false };
        Arc::make_mut(&mut state.stale.trees).remove(&number);
        true
    }

    /// Ends periods that have expired. Returns the switches that stop retaining stale unicast
    /// flows.
    pub(crate) fn pass_time(&mut self, now: Time) -> Vec<DatapathId> {
        while self.discovering.expired(now).is_some() {}
        let mut released = Vec::new();
        while let Some(switch) = self.retaining.expired(now) {
            if let Some(state) = self.by_id.get_mut(&switch) {
                state.stale.unicast = false;
                released.push(switch);
            }
        }
        released
    }

    /// Returns whether the neighborhood of every switch counts as discovered.
    pub(crate) fn is_settled(&self) -> bool {
        self.discovering.is_empty()
    }

    /// Returns when the next period ends.
    pub(crate) fn deadline(&self) -> Option<Time> {
        earliest(self.discovering.next(), self.retaining.next())
    }

    #[cfg(test)]
    pub(crate) fn limit(&mut self, switch: DatapathId, capacity: TableCapacity) {
        self.by_id.get_mut(&switch).unwrap().capacity = capacity;
    }
}
