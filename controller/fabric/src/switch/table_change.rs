//! The difference between two tables, and the OpenFlow messages that apply it.

use crate::intent::cookies;
use crate::intent::cookies::{COOKIE, COOKIE_MASK};
use crate::intent::failover::FAILOVERS;
use crate::intent::retained::RetainedEntries;
use crate::intent::tables::{FlowEntry, FlowKey, GROUPS, GroupBuckets, SwitchTables};
use crate::switch::reported_form;
use core::fmt;
use rs_openflow::{
    Action, Body, Bucket, ErrorMessage, ErrorType, FlowCommand, FlowMod, FlowStats, GroupCommand, GroupDesc,
    GroupId, GroupMod, GroupType, Instruction, PortNo, TableId,
};
use std::collections::BTreeSet;

/// Code of GROUP_MOD_FAILED: the group exists.
const GROUP_EXISTS: u16 = 0;

/// One change of a switch's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableChange {
    AddGroup(u32, GroupBuckets),
    ModifyGroup(u32, GroupBuckets),
    /// Adds a flow or replaces it.
    PutFlow(FlowKey, FlowEntry),
    DeleteFlow(FlowKey),
    DeleteGroup(u32),
}

/// Entries in which two tables may differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeScope {
    pub(crate) flows: BTreeSet<FlowKey>,
    pub(crate) groups: BTreeSet<u32>,
}

impl ChangeScope {
    /// Returns all entries of two tables.
    pub(crate) fn all(installed: &SwitchTables, desired: &SwitchTables) -> ChangeScope {
        ChangeScope {
            flows: installed.flows.keys().chain(desired.flows.keys()).cloned().collect(),
            groups: installed.groups.keys().chain(desired.groups.keys()).copied().collect(),
        }
    }
}

/// Returns the changes that turn `installed` into `desired` within a scope. Each stage must be
/// acknowledged by a barrier before the next is sent (OpenFlow 1.3.5, 6.2). Groups precede the
/// flows that use them, and additions precede deletions. Flows are deleted before the groups that
/// they used, because a switch deletes the flows of a group together with it (6.5). Entries in
/// `retained` are kept.
pub(crate) fn stages(
    installed: &SwitchTables,
    desired: &SwitchTables,
    scope: ChangeScope,
    retained: &RetainedEntries,
) -> Vec<Vec<TableChange>> {
    let (mut groups, mut puts, mut removed, mut idle) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for id in scope.groups {
        match (installed.groups.get(&id), desired.groups.get(&id)) {
            (None, Some(Some(new))) => groups.push(TableChange::AddGroup(id, new.clone())),
            (Some(now), Some(Some(new))) if now.as_ref() != Some(new) => {
                groups.push(TableChange::ModifyGroup(id, new.clone()));
            }
            (Some(_), None) if !retained.group(id) => idle.push(TableChange::DeleteGroup(id)),
            _ => {}
        }
    }
    for key in scope.flows {
        match (installed.flows.get(&key), desired.flows.get(&key)) {
            (now, Some(flow)) if now != Some(flow) => puts.push(TableChange::PutFlow(key, flow.clone())),
            (Some(flow), None) if !retained.flow(&key, flow) => removed.push(TableChange::DeleteFlow(key)),
            _ => {}
        }
    }
    // If a table is too small, it must hold the most important flows.
    puts.sort_by_key(|put| match put {
        TableChange::PutFlow(_, flow) => cookies::rank(flow),
        _ => 0,
    });
    [groups, puts, removed, idle].into_iter().filter(|stage| !stage.is_empty()).collect()
}

/// Moves the deletions of these flows in front of all other changes.
pub(crate) fn delete_first(stages: &mut Vec<Vec<TableChange>>, keys: &BTreeSet<FlowKey>) {
    let is_early =
        |change: &mut TableChange| matches!(change, TableChange::DeleteFlow(key) if keys.contains(key));
    let early: Vec<TableChange> =
        stages.iter_mut().flat_map(|stage| stage.extract_if(.., is_early)).collect();
    stages.retain(|stage| !stage.is_empty());
    if !early.is_empty() {
        stages.insert(0, early);
    }
}

/// Returns whether a switch may merely report its entries in another form: no group is missing, and
/// there is another flow for each missing one.
pub(crate) fn may_be_a_form(drift: &[Vec<TableChange>], reported: &SwitchTables) -> bool {
    let changes = || drift.iter().flatten();
    let misses_group = changes().any(|change| matches!(change, TableChange::AddGroup(..)));
    let is_missing = |change: &&TableChange| matches!(change, TableChange::PutFlow(key, _) if !reported.flows.contains_key(key));
    let further = changes().filter(|change| matches!(change, TableChange::DeleteFlow(_)));
    !misses_group && changes().filter(is_missing).count() <= further.count()
}

impl TableChange {
    /// Returns the number of the tree or failover group that the change concerns.
    pub(crate) fn group(&self) -> Option<u32> {
        match self {
            TableChange::AddGroup(id, _) | TableChange::ModifyGroup(id, _) | TableChange::DeleteGroup(id) => {
                Some(*id)
            }
            TableChange::PutFlow(_, flow) => cookies::tree_of(flow),
            TableChange::DeleteFlow(_) => None,
        }
    }

    /// Adds the entry that the change concerns to a scope.
    pub(crate) fn add_to(&self, scope: &mut ChangeScope) {
        match self {
            TableChange::AddGroup(id, _) | TableChange::ModifyGroup(id, _) | TableChange::DeleteGroup(id) => {
                scope.groups.insert(*id);
            }
            TableChange::PutFlow(key, _) | TableChange::DeleteFlow(key) => {
                scope.flows.insert(key.clone());
            }
        }
    }

    /// Applies the change to tables.
    pub(crate) fn apply(&self, tables: &mut SwitchTables) {
        match self {
            TableChange::AddGroup(id, new) | TableChange::ModifyGroup(id, new) => {
                tables.groups.insert(*id, Some(new.clone()));
            }
            TableChange::PutFlow(key, flow) => {
                tables.flows.insert(key.clone(), flow.clone());
            }
            TableChange::DeleteFlow(key) => {
                tables.flows.remove(key);
            }
            TableChange::DeleteGroup(id) => {
                tables.groups.remove(id);
            }
        }
    }

    /// Updates the tables after the switch has refused the change, so that the next difference
    /// tries again if that can help.
    pub(crate) fn refused(&self, tables: &mut SwitchTables, failure: &ErrorMessage) {
        match self {
            // The group exists unexpectedly: the next difference must modify it.
            TableChange::AddGroup(id, _)
                if (failure.kind, failure.code) == (ErrorType::GROUP_MOD_FAILED, GROUP_EXISTS) =>
            {
                tables.groups.insert(*id, None);
            }
            TableChange::AddGroup(id, _) | TableChange::ModifyGroup(id, _) | TableChange::DeleteGroup(id) => {
                tables.groups.remove(id);
            }
            TableChange::PutFlow(key, _) | TableChange::DeleteFlow(key) => {
                tables.flows.remove(key);
            }
        }
    }

    /// Returns the message that requests the change. Deletions name the cookie of this controller,
    /// because they must not delete entries of others.
    pub(crate) fn message(&self) -> Body {
        let flow = |command, key: &FlowKey, cookie, instructions: &[Instruction]| {
            Body::FlowMod(FlowMod {
                command,
                cookie,
                cookie_mask: if command == FlowCommand::DELETE_STRICT { COOKIE_MASK } else { 0 },
                priority: key.priority,
                matching: (*key.matching).clone(),
                instructions: instructions.to_vec(),
                ..FlowMod::default()
            })
        };
        let group = |command, id: u32, kind, buckets| {
            Body::GroupMod(GroupMod { command, kind, group: GroupId(id), buckets })
        };
        match self {
            TableChange::AddGroup(id, new) => group(GroupCommand::ADD, *id, new.kind(), new.write()),
            TableChange::ModifyGroup(id, new) => group(GroupCommand::MODIFY, *id, new.kind(), new.write()),
            TableChange::PutFlow(key, new) => flow(FlowCommand::ADD, key, new.cookie, &new.instructions),
            TableChange::DeleteFlow(key) => flow(FlowCommand::DELETE_STRICT, key, COOKIE, &[]),
            TableChange::DeleteGroup(id) => group(GroupCommand::DELETE, *id, GroupType::ALL, Vec::new()),
        }
    }
}

impl GroupBuckets {
    fn kind(&self) -> GroupType {
        match self {
            GroupBuckets::All(_) => GroupType::ALL,
            GroupBuckets::FirstUp(_) => GroupType::FF,
        }
    }

    fn write(&self) -> Vec<Bucket> {
        let to = |port: u32| vec![Action::output(PortNo(port))];
        match self {
            GroupBuckets::All(ports) => ports.iter().map(|port| Bucket::new(to(*port))).collect(),
            GroupBuckets::FirstUp(ports) => {
                ports.iter().map(|port| Bucket::watching(PortNo(*port), to(*port))).collect()
            }
        }
    }

    /// Returns the buckets that a switch reports, or `None` if this controller makes no such
    /// buckets.
    fn read(kind: GroupType, reported: &[Bucket]) -> Option<GroupBuckets> {
        let mut ports = reported.iter().map(|bucket| match bucket.actions[..] {
            [Action::Output { port, .. }] => Some(port.0),
            _ => None,
        });
        let buckets = match kind {
            GroupType::ALL => GroupBuckets::All(ports.collect::<Option<_>>()?),
            GroupType::FF => GroupBuckets::FirstUp([ports.next()??, ports.next()??]),
            _ => return None,
        };
        // The watched ports must be right as well. Weights have no meaning for these types.
        let watched = reported.iter().map(|bucket| bucket.watch_port);
        let is_right = watched.eq(buckets.write().iter().map(|bucket| bucket.watch_port));
        (kind == GroupType::ALL || is_right).then_some(buckets)
    }
}

impl fmt::Display for GroupBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupBuckets::All(ports) => write!(f, "to {} ports", ports.len()),
            GroupBuckets::FirstUp([port, alternate]) => {
                write!(f, "to port {port}, or {alternate} while that is down")
            }
        }
    }
}

impl fmt::Display for TableChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableChange::AddGroup(id, new) => write!(f, "adding group {id:#x} {new}"),
            TableChange::ModifyGroup(id, new) => write!(f, "changing group {id:#x} {new}"),
            TableChange::PutFlow(key, _) => write!(f, "flow priority={} {}", key.priority, key.matching),
            TableChange::DeleteFlow(key) => {
                write!(f, "deleting flow priority={} {}", key.priority, key.matching)
            }
            TableChange::DeleteGroup(id) => write!(f, "deleting group {id:#x}"),
        }
    }
}

/// Records a flow that a switch reports, if the flow belongs to this controller.
pub(crate) fn record_flow(tables: &mut SwitchTables, reported: FlowStats) {
    if reported.cookie & COOKIE_MASK == COOKIE && reported.table == TableId(0) {
        let (key, flow) = reported_form::normal_flow(reported);
        tables.flows.insert(key, flow);
    }
}

/// Records a group that a switch reports, if the group belongs to this controller.
pub(crate) fn record_group(tables: &mut SwitchTables, reported: GroupDesc) {
    if GROUPS.contains(&reported.group.0) || FAILOVERS.contains(&reported.group.0) {
        tables.groups.insert(reported.group.0, GroupBuckets::read(reported.kind, &reported.buckets));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::flows;
    use crate::switch::model;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;
    use rs_openflow::{EtherType, Match};

    fn tables() -> impl Strategy<Value = SwitchTables> {
        let flow = (0u32..6, 0u32..4);
        (prop::collection::vec(flow, 0..8), prop::collection::vec((0u32..4, 1u32..8), 0..4)).prop_map(
            |(flows, groups)| {
                let mut tables = SwitchTables::default();
                for (id, port) in groups {
                    let buckets = match id {
                        0 => GroupBuckets::FirstUp([port, port + 1]),
                        _ => GroupBuckets::All(BTreeSet::from([port, port + 1])),
                    };
                    tables.groups.insert(GROUPS.start + id, Some(buckets));
                }
                let known: Vec<u32> = tables.groups.keys().copied().collect();
                for (port, pick) in flows {
                    let action = match known.get(pick as usize) {
                        Some(group) => Action::Group(GroupId(*group)),
                        None => Action::output(PortNo(pick)),
                    };
                    let matching = Match::new().eth_type(EtherType::IPV4).in_port(PortNo(port));
                    let instructions = vec![Instruction::ApplyActions(vec![action])];
                    tables.flows.insert(
                        FlowKey::new(7, matching),
                        FlowEntry { cookie: COOKIE, instructions: instructions.into() },
                    );
                }
                tables
            },
        )
    }

    #[test]
    fn only_deletions_of_tree_flows_are_recognized() {
        let address = Ipv4Addr::new(239, 192, 0, 0).into();
        let (tree, entry) = flows::tree_flow((GROUPS.start, address), 1, None);
        let (other, _) = flows::drop_rest(0);
        let deletes = |change: TableChange| flows::deletes_tree_flow(&change.message());
        assert!(deletes(TableChange::DeleteFlow(tree.clone())));
        assert!(!deletes(TableChange::PutFlow(tree, entry)) && !deletes(TableChange::DeleteFlow(other)));
    }

    fn differences(from: &SwitchTables, to: &SwitchTables) -> Vec<Vec<TableChange>> {
        stages(from, to, ChangeScope::all(from, to), &RetainedEntries::default())
    }

    proptest! {
        #[test]
        fn stages_turn_any_tables_into_any_others(from in tables(), to in tables()) {
            let mut switch = model::ModelSwitch::default();
            for start in [&from, &to] {
                let now = switch.tables();
                for stage in differences(&now, start) {
                    for change in stage {
                        prop_assert_eq!(switch.obey(&change.message()), Ok(()), "{}", change);
                    }
                }
                prop_assert_eq!(&switch.tables(), start);
            }
            prop_assert_eq!(differences(&to, &to), Vec::<Vec<TableChange>>::new());
        }
    }
}
