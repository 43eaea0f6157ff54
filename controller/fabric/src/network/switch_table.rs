//! The switches that are known: what each said of itself, its connection, what it was sent last, and how long it
//! retains what an earlier controller left in it.

use super::deadlines::Deadlines;
use crate::api::ConnectionId;
use crate::api::TableCapacity;
use crate::intent::retained::StaleEntries;
use crate::intent::tables::TableDelta;
use crate::switch::channel::PortInfo;
use crate::switch::connection::SwitchHandle;
use crate::switch::reconciler::{EntryRefusals, TableUpdate};
use cool_machine::{Time, earliest};
use cool_topology::{DatapathId, MacAddr};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tracing::warn;

/// A switch, also while its connection is away for a moment.
pub(crate) struct SwitchState {
    pub(crate) name: String,
    pub(crate) ports: BTreeMap<u32, PortInfo>,
    connection: Option<(ConnectionId, SwitchHandle)>,
    /// The version by which this connection was sent all that is desired; `None` until then.
    joining: Option<u64>,
    /// True once the switch has confirmed that version; only then are its ports given to discovery.
    joined: bool,
    /// Of what it was sent last.
    version: u64,
    /// What it refused of that.
    pub(crate) refused: EntryRefusals,
    pub(crate) capacity: TableCapacity,
    stale: StaleEntries,
}

/// A switch that has connected, and until when it is treated with care.
pub(crate) struct ConnectedSwitch {
    pub(crate) name: String,
    pub(crate) ports: Vec<PortInfo>,
    pub(crate) connection: ConnectionId,
    pub(crate) handle: SwitchHandle,
    pub(crate) capacity: TableCapacity,
    /// The trees of an earlier controller that it retains.
    pub(crate) stale_trees: Arc<BTreeSet<u32>>,
    /// When its neighbourhood has been discovered.
    pub(crate) discovered_at: Time,
    /// How long it retains unicast flows that nobody has asked for.
    pub(crate) retain_until: Time,
}

/// What an answer of a switch tells.
#[derive(Default)]
pub(crate) struct AckResult {
    /// EntryRefusals that it has not reported before.
    pub(crate) refused: Vec<String>,
    /// It has joined: number and address of its ports that are up.
    pub(crate) joined: Option<Vec<(u32, MacAddr)>>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct SwitchTable {
    by_id: BTreeMap<DatapathId, SwitchState>,
    /// Of what was sent last, to any.
    version: u64,
    /// When the neighbourhood of each has been discovered.
    discovering: Deadlines<DatapathId>,
    /// When each has retained stale unicast flows for long enough.
    retaining: Deadlines<DatapathId>,
    revision: u64,
}

impl SwitchState {
    /// Whether it can be reached now.
    pub(crate) fn connected(&self) -> bool {
        self.connection.is_some()
    }

    /// The way to it.
    pub(crate) fn handle(&self) -> Option<&SwitchHandle> {
        self.connection.as_ref().map(|(_, handle)| handle)
    }

    #[cfg(test)]
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}

impl SwitchTable {
    /// The switch, if it is known.
    pub(crate) fn get(&self, switch: DatapathId) -> Option<&SwitchState> {
        self.by_id.get(&switch)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (DatapathId, &SwitchState)> {
        self.by_id.iter().map(|(switch, state)| (*switch, state))
    }

    /// Counts the changes that a snapshot of the network shows.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether this is the connection of the switch, and not one that was replaced.
    pub(crate) fn is_current(&self, switch: DatapathId, connection: ConnectionId) -> bool {
        let current = self.get(switch).and_then(|state| state.connection.as_ref());
        current.is_some_and(|(current, _)| *current == connection)
    }

    /// A switch has connected, perhaps again.
    pub(crate) fn connect(&mut self, switch: DatapathId, connected: ConnectedSwitch) {
        let ConnectedSwitch { name, ports, connection, handle, capacity, stale_trees, .. } = connected;
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
        };
        self.revision += 1;
        if let Some(old) = self.by_id.insert(switch, state).filter(SwitchState::connected) {
            warn!(%switch, "switch {} connected again; the older connection is given up", old.name);
        }
    }

    /// The name of a switch, or where another one has it already, as bridges on several machines do, with the datapath id.
    fn unique_name(&self, switch: DatapathId, name: String) -> String {
        if !self.iter().any(|(other, state)| other != switch && state.name == name) {
            return name;
        }
        warn!(%switch, "several switches call themselves {name:?}: --switches gives them names of their own");
        format!("{name}-{:x}", switch.0)
    }

    /// The connection of a switch has ended.
    pub(crate) fn disconnect(&mut self, switch: DatapathId) {
        if let Some(state) = self.by_id.get_mut(&switch) {
            (state.connection, state.joining, state.joined) = (None, None, false);
            self.revision += 1;
        }
    }

    /// The switch is gone for good.
    pub(crate) fn remove(&mut self, switch: DatapathId) -> bool {
        self.discovering.clear(switch);
        self.retaining.clear(switch);
        self.revision += 1;
        self.by_id.remove(&switch).is_some()
    }

    /// Something of a port has changed; returns whether discovery knows of the switch's ports.
    pub(crate) fn port_changed(&mut self, switch: DatapathId, port: PortInfo) -> bool {
        let Some(state) = self.by_id.get_mut(&switch) else { return false };
        state.ports.insert(port.number, port);
        self.revision += 1;
        state.joined
    }

    /// A port is gone.
    pub(crate) fn port_removed(&mut self, switch: DatapathId, number: u32) {
        if let Some(state) = self.by_id.get_mut(&switch) {
            state.ports.remove(&number);
            self.revision += 1;
        }
    }

    /// The switch has answered for a version.
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

    /// Sends a switch what has changed for it, or `full` to a connection that has been sent nothing; returns the version
    /// that it is to confirm.
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

    /// A switch retains a stale tree no longer; returns whether it is known.
    pub(crate) fn release_tree(&mut self, switch: DatapathId, number: u32) -> bool {
        let Some(state) = self.by_id.get_mut(&switch) else { return false };
        Arc::make_mut(&mut state.stale.trees).remove(&number);
        true
    }

    /// The neighbourhood of switches may count as discovered now, and those that are returned retain stale unicast flows no
    /// longer.
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

    /// Whether the neighbourhood of every switch has been discovered.
    pub(crate) fn is_settled(&self) -> bool {
        self.discovering.is_empty()
    }

    /// When to pass time next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        earliest(self.discovering.next(), self.retaining.next())
    }

    #[cfg(test)]
    pub(crate) fn limit(&mut self, switch: DatapathId, capacity: TableCapacity) {
        self.by_id.get_mut(&switch).unwrap().capacity = capacity;
    }
}
