//! A node of the simulated cluster: an engine, its memory and the state of its driver.

use super::cipher::Checksum;
use super::memories::Memories;
use cool_engine::{AgentConnectionId, AgentId, Engine, MemoryRange};
use cool_machine::{Duration, Time};
use cool_transport::tagged::Tagger;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// The destination address used in the tags of simulated datagrams, because a receiver does not
/// know over which tree a datagram arrived.
pub(super) const ANYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The state of a node and its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// The agent is running.
    Running,
    /// The whole node is stopped, and its links carry nothing, until it is resumed.
    Stopped,
    /// The agent's process has ended. The system has closed its connections and refuses new ones.
    Crashed,
    /// The node is powered off. It sends nothing, not even a notice that it is lost.
    Off,
}

#[derive(Debug)]
pub(super) struct ClusterNode {
    pub(super) engine: Engine,
    pub(super) memories: Memories,
    pub(super) host: Host,
    /// The number of agents that ran here before this one.
    pub(super) life: u32,
    /// The memory range for the next bytes of a connection.
    pub(super) awaited: BTreeMap<AgentConnectionId, MemoryRange>,
    /// The bytes of the last input.
    pub(super) input: Vec<u8>,
    /// When the engine requested to be polled.
    pub(super) deadline: Option<Time>,
    /// The earliest timer that is set for that.
    pub(super) wake: Option<Time>,
    /// Groups that the engine has created and not removed, each with this node's place in it and
    /// the number of its nodes.
    pub(super) groups: BTreeMap<u64, (u16, u16)>,
    /// Tags and verifies datagrams with the keys of these groups.
    pub(super) tagger: Tagger<Checksum>,
}

impl ClusterNode {
    pub(super) fn new(node: u16, bounce_bytes: u64, peer_timeout: Duration, life: u32) -> ClusterNode {
        let me = AgentId { node: format!("h{node}"), incarnation: life.into() };
        ClusterNode {
            engine: Engine::new(me, bounce_bytes, peer_timeout),
            memories: Memories::default(),
            host: Host::Running,
            life,
            awaited: BTreeMap::new(),
            input: Vec::new(),
            deadline: None,
            wake: None,
            groups: BTreeMap::new(),
            tagger: Tagger::default(),
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.host == Host::Running
    }

    /// Returns a description of the state that the engine still holds although it should have freed
    /// everything.
    pub(super) fn leftovers(&self) -> Option<String> {
        let allocated = self.memories.allocated();
        let held = !self.groups.is_empty() || allocated > 0 || self.deadline.is_some();
        (self.runs() && held)
            .then(|| format!("groups {:?}, {allocated} memories, polled at {:?}", self.groups, self.deadline))
    }
}
