//! The difference between two tables, and the OpenFlow messages that make it.

use crate::intent::failover::FAILOVERS;
use crate::intent::tables::{Buckets, COOKIE, COOKIE_MASK, Flow, FlowKey, GROUPS, Tables};
use crate::intent::{self, Retained};
use core::fmt;
use rs_openflow::{
    Action, Body, Bucket, ErrorMessage, ErrorType, FlowCommand, FlowMod, FlowStats, GroupCommand, GroupDesc,
    GroupId, GroupMod, GroupType, Instruction, PortNo, TableId,
};
use std::collections::BTreeSet;

/// The code by which a group is refused that exists.
const GROUP_EXISTS: u16 = 0;

/// One change of a switch's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    AddGroup(u32, Buckets),
    ModifyGroup(u32, Buckets),
    /// Adds, or replaces if it is there.
    PutFlow(FlowKey, Flow),
    DeleteFlow(FlowKey),
    DeleteGroup(u32),
}

/// Which entries may differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) flows: BTreeSet<FlowKey>,
    pub(crate) groups: BTreeSet<u32>,
}

impl Scope {
    /// All of two tables.
    pub(crate) fn all(installed: &Tables, desired: &Tables) -> Scope {
        Scope {
            flows: installed.flows.keys().chain(desired.flows.keys()).cloned().collect(),
            groups: installed.groups.keys().chain(desired.groups.keys()).copied().collect(),
        }
    }
}

/// What makes `desired` of `installed` within a scope, in stages each of which must be confirmed before the
/// next (by barrier; OpenFlow 1.3.5, 6.2): groups before the flows that use them, all that is new before anything is deleted, and flows before
/// the groups that they used, since a switch deletes a group's flows with it (6.5). What is `retained` stays.
pub(crate) fn stages(
    installed: &Tables,
    desired: &Tables,
    scope: Scope,
    retained: &Retained,
) -> Vec<Vec<Change>> {
    let (mut groups, mut puts, mut gone, mut idle) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for id in scope.groups {
        match (installed.groups.get(&id), desired.groups.get(&id)) {
            (None, Some(Some(new))) => groups.push(Change::AddGroup(id, new.clone())),
            (Some(now), Some(Some(new))) if now.as_ref() != Some(new) => {
                groups.push(Change::ModifyGroup(id, new.clone()));
            }
            (Some(_), None) if !retained.group(id) => idle.push(Change::DeleteGroup(id)),
            _ => {}
        }
    }
    for key in scope.flows {
        match (installed.flows.get(&key), desired.flows.get(&key)) {
            (now, Some(flow)) if now != Some(flow) => puts.push(Change::PutFlow(key, flow.clone())),
            (Some(flow), None) if !retained.flow(&key, flow) => gone.push(Change::DeleteFlow(key)),
            _ => {}
        }
    }
    // Where a table is too small, what every switch needs is in it.
    puts.sort_by_key(|put| !matches!(put, Change::PutFlow(_, flow) if intent::is_everywhere(flow)));
    [groups, puts, gone, idle].into_iter().filter(|stage| !stage.is_empty()).collect()
}

impl Change {
    /// The number of the tree that the change is for, or of the group for fast failover, if it is for one.
    pub(crate) fn group(&self) -> Option<u32> {
        match self {
            Change::AddGroup(id, _) | Change::ModifyGroup(id, _) | Change::DeleteGroup(id) => Some(*id),
            Change::PutFlow(_, flow) => intent::tree(flow),
            Change::DeleteFlow(_) => None,
        }
    }

    /// Adds what the change concerns to a scope.
    pub(crate) fn note(&self, scope: &mut Scope) {
        match self {
            Change::AddGroup(id, _) | Change::ModifyGroup(id, _) | Change::DeleteGroup(id) => {
                scope.groups.insert(*id);
            }
            Change::PutFlow(key, _) | Change::DeleteFlow(key) => {
                scope.flows.insert(key.clone());
            }
        }
    }

    /// The tables once the change is made.
    pub(crate) fn apply(&self, tables: &mut Tables) {
        match self {
            Change::AddGroup(id, new) | Change::ModifyGroup(id, new) => {
                tables.groups.insert(*id, Some(new.clone()));
            }
            Change::PutFlow(key, flow) => {
                tables.flows.insert(key.clone(), flow.clone());
            }
            Change::DeleteFlow(key) => {
                tables.flows.remove(key);
            }
            Change::DeleteGroup(id) => {
                tables.groups.remove(id);
            }
        }
    }

    /// The tables once the switch has refused the change, as far as can be told: so that the next
    /// difference tries again what can help.
    pub(crate) fn refused(&self, tables: &mut Tables, failure: &ErrorMessage) {
        match self {
            // It exists, though we did not know: modify it next time.
            Change::AddGroup(id, _)
                if (failure.kind, failure.code) == (ErrorType::GROUP_MOD_FAILED, GROUP_EXISTS) =>
            {
                tables.groups.insert(*id, None);
            }
            Change::AddGroup(id, _) | Change::ModifyGroup(id, _) | Change::DeleteGroup(id) => {
                tables.groups.remove(id);
            }
            Change::PutFlow(key, _) | Change::DeleteFlow(key) => {
                tables.flows.remove(key);
            }
        }
    }

    /// The message that asks for the change. Deletions name our cookie, so that they cannot hit others.
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
            Change::AddGroup(id, new) => group(GroupCommand::ADD, *id, new.kind(), new.write()),
            Change::ModifyGroup(id, new) => group(GroupCommand::MODIFY, *id, new.kind(), new.write()),
            Change::PutFlow(key, new) => flow(FlowCommand::ADD, key, new.cookie, &new.instructions),
            Change::DeleteFlow(key) => flow(FlowCommand::DELETE_STRICT, key, COOKIE, &[]),
            Change::DeleteGroup(id) => group(GroupCommand::DELETE, *id, GroupType::ALL, Vec::new()),
        }
    }
}

impl Buckets {
    fn kind(&self) -> GroupType {
        match self {
            Buckets::All(_) => GroupType::ALL,
            Buckets::FirstUp(_) => GroupType::FF,
        }
    }

    fn write(&self) -> Vec<Bucket> {
        let to = |port: u32| vec![Action::output(PortNo(port))];
        match self {
            Buckets::All(ports) => ports.iter().map(|port| Bucket::new(to(*port))).collect(),
            Buckets::FirstUp(ports) => {
                ports.iter().map(|port| Bucket::watching(PortNo(*port), to(*port))).collect()
            }
        }
    }

    /// `None` if they are of another form than ours.
    fn read(kind: GroupType, told: &[Bucket]) -> Option<Buckets> {
        let mut ports = told.iter().map(|bucket| match bucket.actions[..] {
            [Action::Output { port, .. }] => Some(port.0),
            _ => None,
        });
        let buckets = match kind {
            GroupType::ALL => Buckets::All(ports.collect::<Option<_>>()?),
            GroupType::FF => Buckets::FirstUp([ports.next()??, ports.next()??]),
            _ => return None,
        };
        // Also what they watch counts.
        (kind == GroupType::ALL || buckets.write() == told).then_some(buckets)
    }
}

impl fmt::Display for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buckets::All(ports) => write!(f, "to {} ports", ports.len()),
            Buckets::FirstUp([port, alternate]) => {
                write!(f, "to port {port}, or {alternate} while that is down")
            }
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::AddGroup(id, new) => write!(f, "adding group {id:#x} {new}"),
            Change::ModifyGroup(id, new) => write!(f, "changing group {id:#x} {new}"),
            Change::PutFlow(key, _) => write!(f, "flow priority={} {}", key.priority, key.matching),
            Change::DeleteFlow(key) => write!(f, "deleting flow priority={} {}", key.priority, key.matching),
            Change::DeleteGroup(id) => write!(f, "deleting group {id:#x}"),
        }
    }
}

/// Notes a flow that a switch tells of, if it is ours.
pub(crate) fn note_flow(tables: &mut Tables, told: FlowStats) {
    if told.cookie & COOKIE_MASK == COOKIE && told.table == TableId(0) {
        let flow = Flow { cookie: told.cookie, instructions: told.instructions.into() };
        tables.flows.insert(FlowKey::new(told.priority, told.matching), flow);
    }
}

/// Notes a group that a switch tells of, if it is ours.
pub(crate) fn note_group(tables: &mut Tables, told: GroupDesc) {
    if GROUPS.contains(&told.group.0) || FAILOVERS.contains(&told.group.0) {
        tables.groups.insert(told.group.0, Buckets::read(told.kind, &told.buckets));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::model;
    use proptest::prelude::*;
    use rs_openflow::{EtherType, Match};

    fn tables() -> impl Strategy<Value = Tables> {
        let flow = (0u32..6, 0u32..4);
        (prop::collection::vec(flow, 0..8), prop::collection::vec((0u32..4, 1u32..8), 0..4)).prop_map(
            |(flows, groups)| {
                let mut tables = Tables::default();
                for (id, port) in groups {
                    let buckets = match id {
                        0 => Buckets::FirstUp([port, port + 1]),
                        _ => Buckets::All(BTreeSet::from([port, port + 1])),
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
                        Flow { cookie: COOKIE, instructions: instructions.into() },
                    );
                }
                tables
            },
        )
    }

    fn differences(from: &Tables, to: &Tables) -> Vec<Vec<Change>> {
        stages(from, to, Scope::all(from, to), &Retained::default())
    }

    proptest! {
        #[test]
        fn the_stages_turn_any_tables_into_any_others_on_a_strict_switch(from in tables(), to in tables()) {
            let mut switch = model::Switch::default();
            for start in [&from, &to] {
                let now = switch.tables();
                for stage in differences(&now, start) {
                    for change in stage {
                        prop_assert_eq!(switch.obey(&change.message()), Ok(()), "{}", change);
                    }
                }
                prop_assert_eq!(&switch.tables(), start);
            }
            prop_assert_eq!(differences(&to, &to), Vec::<Vec<Change>>::new());
        }
    }
}
