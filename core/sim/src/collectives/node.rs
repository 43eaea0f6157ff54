//! A node of the simulated cluster: an engine, its memories and what its driver remembers.

use super::cipher::Checksum;
use super::memories::Memories;
use cool_engine::{AgentConnectionId, AgentId, Engine, MemoryRange};
use cool_machine::{Duration, Time};
use cool_transport::tagged::Tagger;
use std::collections::BTreeMap;

/// What a node and its agent do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// The agent runs.
    Running,
    /// All of it stands still, and no link of it carries anything, until it goes on.
    Stopped,
    /// The agent's process has ended. The system has closed its connections and refuses new ones.
    Crashed,
    /// It is without power: it says nothing, not even that it is gone.
    Off,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) engine: Engine,
    pub(super) memories: Memories,
    pub(super) host: Host,
    /// How many agents have run here before this one.
    pub(super) life: u32,
    /// Where what comes next over a connection belongs.
    pub(super) awaited: BTreeMap<AgentConnectionId, MemoryRange>,
    /// The bytes of the input that was handed over last.
    pub(super) input: Vec<u8>,
    /// When the engine wants to be polled.
    pub(super) deadline: Option<Time>,
    /// The earliest time at which it will be.
    pub(super) wake: Option<Time>,
    /// Those that its engine has made and not forgotten: its place in each, among how many nodes.
    pub(super) groups: BTreeMap<u64, (u16, u16)>,
    /// With the keys of these.
    pub(super) tagger: Tagger<Checksum>,
}

impl Node {
    pub(super) fn new(node: u16, bounce_bytes: u64, peer_timeout: Duration, life: u32) -> Node {
        let me = AgentId { node: format!("h{node}"), incarnation: life.into() };
        Node {
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

    /// What its engine still holds although it should have let go of all, in words.
    pub(super) fn leftovers(&self) -> Option<String> {
        let allocated = self.memories.allocated();
        let held = !self.groups.is_empty() || allocated > 0 || self.deadline.is_some();
        (self.runs() && held)
            .then(|| format!("groups {:?}, {allocated} memories, polled at {:?}", self.groups, self.deadline))
    }
}
