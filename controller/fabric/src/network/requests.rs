//! Requests of the controller: registers nodes, and answers requests for groups. `group_creation`
//! makes new groups.

use super::Network;
use super::acknowledgments::AckWaiter;
use super::group_creation::MulticastKind;
use super::host_forwarder::Input as HostInput;
use super::tree_grants;
use crate::api::{FabricError, NodeRegistration, Unicast};
use crate::request::{FabricRequest, RequestReply};
use cool_machine::{Machine, Time};
use cool_topology::discovery::Input;
use tracing::debug;

impl Network {
    /// Executes a request, or begins to.
    pub(crate) fn handle_request(&mut self, now: Time, request: FabricRequest) {
        match request {
            FabricRequest::Register(node, reply) => answer(reply, self.register(now, node)),
            FabricRequest::SetNeighbor(name, neighbor, reply) => {
                self.set_neighbor(now, &name, neighbor);
                answer(reply, Ok(()));
            }
            FabricRequest::Unregister(name, reply) => {
                self.unregister(now, &name);
                answer(reply, Ok(()));
            }
            FabricRequest::CreateGroup(request, reply) => match self.locate(&request) {
                Ok(MulticastKind::Installed(racks)) => self.create_group(now, &request, &racks, reply),
                Ok(MulticastKind::Snooped(racks)) => {
                    let trees = self.create_snooped(&request, &racks);
                    self.answer_created(request.id, reply, trees);
                }
                Ok(MulticastKind::None) => answer(reply, Ok(Vec::new())),
                Err(error) => answer(reply, Err(error)),
            },
            FabricRequest::AdoptGroup(request, trees, reply) => {
                self.adopt(request, &trees);
                answer(reply, Ok(()));
            }
            FabricRequest::Trees(id, reply) => {
                if let Some(trees) = self.snooped_grants(id) {
                    return answer(reply, Ok(trees));
                }
                let set = self.sharing.set_of(id);
                let group = set.and_then(|set| self.multicast.group(set));
                let group = group.ok_or(FabricError::NoSuchGroup { id });
                answer(reply, group.map(|group| tree_grants::grants(self, group)));
            }
            FabricRequest::ReleaseGroup(id, reply) => {
                let known = self.sharing.set_of(id).is_some() || self.snooped.has(id);
                self.release(id);
                answer(reply, if known { Ok(()) } else { Err(FabricError::NoSuchGroup { id }) });
            }
            FabricRequest::Observation(reply) => answer(reply, Ok(self.observation())),
        }
    }

    fn register(&mut self, now: Time, node: NodeRegistration) -> Result<(), FabricError> {
        if node.ip.is_ipv6() && !self.host_forwarder.serves_hosts() && self.config.unicast == Unicast::Routed
        {
            return Err(FabricError::BadRegistration {
                name: node.name,
                reason: "its agent uses IPv6, which --agents-only does not support; give its data interface an IPv4 address, or start the \
                         controller without --agents-only"
                    .to_owned(),
            });
        }
        if self.nodes.register(node.clone())? {
            self.handle_hosts(now, HostInput::NodeReset(&node.name));
        }
        self.presence.registered(now, &node.name);
        self.discovery.handle(now, Input::NodeRegistered(&node.name, node.mac, &node.lldp_key));
        self.observe_neighbor(now, &node.name, node.neighbor.as_ref());
        self.expect_location(now, &node.name);
        self.changes.nodes.insert(node.name);
        Ok(())
    }

    fn unregister(&mut self, now: Time, name: &str) {
        let vlan = self.nodes.vlan(name);
        let node = self.nodes.get(name).cloned();
        let port = self.surroundings().place_of(name);
        if self.nodes.unregister(name) {
            self.presence.left(name);
            self.node_unregistered(name);
            self.self_location.remove(name);
            self.discovery.handle(now, Input::NodeUnregistered(name));
            self.changes.nodes.insert(name.to_owned());
        }
        if let Some(node) = &node {
            self.handle_hosts(now, HostInput::NodeUnregistered { node, vlan, port });
        }
    }

    /// Releases a group. Its trees are removed unless another group uses them.
    pub(crate) fn release(&mut self, id: u64) {
        if let Some(numbers) = self.snooped.release(id) {
            return numbers.into_iter().for_each(|number| self.multicast.free(number));
        }
        let set = self.sharing.leave(id);
        let Some(group) = set.and_then(|set| self.multicast.remove(set)) else { return };
        for tree in &group.trees {
            self.acknowledgments.forget(AckWaiter::Tree(tree.number));
        }
        if let Some(adopted) = group.adopted {
            self.disown(&adopted);
        }
        if let Some(caller) = group.caller {
            answer(caller, Err(FabricError::NoSuchGroup { id }));
        }
    }
}

/// Sends the result of a request. A caller that no longer waits needs none.
pub(crate) fn answer<T>(reply: RequestReply<T>, result: Result<T, FabricError>) {
    if reply.send(result).is_err() {
        debug!("a caller did not wait for its answer");
    }
}
