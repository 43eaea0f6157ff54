//! What callers ask of the network: nodes and groups come and go.

use super::super::api::{FabricError, GroupRequest, NodeRegistration};
use super::super::groups::{GroupTree, scopes};
use super::super::tables::GROUPS;
use super::super::{Call, Reply, view};
use super::{Group, Network};
use cool_machine::{Machine, Time};
use cool_topology::discovery::Input;
use cool_topology::{Port, lldp, paths};
use std::collections::{BTreeMap, BTreeSet};
use tracing::debug;

impl Network {
    /// Does what a caller asks.
    pub(in super::super) fn call(&mut self, now: Time, call: Call) {
        match call {
            Call::Register(node, reply) => answer(reply, self.register(now, node)),
            Call::Unregister(name, reply) => {
                self.unregister(now, &name);
                answer(reply, Ok(()));
            }
            Call::CreateGroup(request, reply) => match self.create(&request) {
                Ok(trees) => {
                    let waiting = Some((reply, now + self.config.confirm_timeout));
                    self.groups.insert(request.id, Group { trees, waiting });
                    self.changed = true;
                }
                Err(error) => answer(reply, Err(error)),
            },
            Call::Trees(id, reply) => {
                let group = self.groups.get(&id).ok_or(FabricError::NoSuchGroup { id });
                answer(reply, group.map(|group| view::grants(self, group)));
            }
            Call::ReleaseGroup(id, reply) => {
                let group = self.groups.contains_key(&id);
                self.release(id);
                answer(reply, if group { Ok(()) } else { Err(FabricError::NoSuchGroup { id }) });
            }
        }
    }

    fn register(&mut self, now: Time, node: NodeRegistration) -> Result<(), FabricError> {
        let bad = |reason: &str| {
            Err(FabricError::BadRegistration { name: node.name.clone(), reason: reason.to_owned() })
        };
        if node.name.is_empty() || node.name.len() > lldp::MAX_NAME {
            return bad("a name has 1 to 254 bytes");
        }
        if !node.mac.is_unicast() {
            return bad("its Ethernet address names no interface");
        }
        if node.ip.is_unspecified() || node.ip.is_multicast() || node.ip.is_broadcast() {
            return bad("its IP address names no node");
        }
        let others = || self.nodes.values().filter(|other| other.name != node.name);
        if let Some(holder) = others().find(|other| other.ip == node.ip || other.mac == node.mac) {
            let address = if holder.ip == node.ip { node.ip.to_string() } else { node.mac.to_string() };
            return Err(FabricError::AddressTaken { name: node.name, address, holder: holder.name.clone() });
        }
        self.discovery.handle(now, Input::NodeRegistered(&node.name, node.mac));
        if let Some(before) = self.nodes.get(&node.name) {
            self.by_ip.remove(&before.ip);
        }
        self.by_ip.insert(node.ip, node.name.clone());
        self.nodes.insert(node.name.clone(), node);
        self.changed = true;
        Ok(())
    }

    fn unregister(&mut self, now: Time, name: &str) {
        if let Some(node) = self.nodes.remove(name) {
            self.by_ip.remove(&node.ip);
            self.discovery.handle(now, Input::NodeLeft(name));
            self.changed = true;
        }
    }

    fn create(&mut self, request: &GroupRequest) -> Result<Vec<GroupTree>, FabricError> {
        let id = request.id;
        if self.groups.contains_key(&id) {
            return Err(FabricError::GroupExists { id });
        }
        let Some(first) = request.members.first() else { return Err(FabricError::EmptyGroup { id }) };
        let graph = self.discovery.graph();
        let mut places: BTreeMap<&String, (Port, u32)> = BTreeMap::new();
        let mut unknown: BTreeSet<String> = BTreeSet::new();
        for name in &request.members {
            match graph.host(name).and_then(|port| Some((port, self.racks.number(port.switch)?))) {
                Some(place) => drop(places.insert(name, place)),
                None => drop(unknown.insert(name.clone())),
            }
        }
        if !unknown.is_empty() {
            return Err(FabricError::NotLocated { nodes: unknown.into_iter().collect() });
        }
        let reached =
            places.get(first).map(|(port, _)| paths::distances(graph, port.switch)).unwrap_or_default();
        if let Some((to, _)) = places.iter().find(|(_, (port, _))| !reached.contains_key(&port.switch)) {
            return Err(FabricError::Partitioned { from: first.clone(), to: (*to).clone() });
        }
        let racks = places.into_iter().map(|(name, (_, rack))| (name.clone(), rack)).collect();
        let mut trees: Vec<GroupTree> = Vec::new();
        for (scope, members) in scopes(request, &racks) {
            let Some(number) = self.numbers.take() else {
                trees.iter().for_each(|tree| self.numbers.give_back(tree.number));
                return Err(FabricError::OutOfAddresses { limit: GROUPS.end - GROUPS.start });
            };
            trees.push(GroupTree::new(graph, scope, number, members, id));
        }
        Ok(trees)
    }

    pub(super) fn release(&mut self, id: u64) {
        if let Some(group) = self.groups.remove(&id) {
            group.trees.iter().for_each(|tree| self.numbers.give_back(tree.number));
            self.changed = true;
            if let Some((reply, _)) = group.waiting {
                answer(reply, Err(FabricError::NoSuchGroup { id }));
            }
        }
    }
}

/// A caller that has gone away needs no answer.
pub(super) fn answer<T>(reply: Reply<T>, result: Result<T, FabricError>) {
    if reply.send(result).is_err() {
        debug!("a caller went away before it was answered");
    }
}
