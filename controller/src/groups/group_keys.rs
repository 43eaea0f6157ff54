//! Keys of groups.

use super::member_place::MemberPlace;
use cool_proto::control::Secret;
use cool_proto::features;
use cool_types::{Key, wire};
use std::collections::BTreeSet;
use tracing::warn;

/// How the datagrams of groups are protected.
#[derive(Clone, Debug)]
pub struct GroupKeys {
    /// Secret of this run from which group keys are derived.
    pub secret: Key,
    /// Whether to refuse groups with agents that cannot tag datagrams.
    pub required: bool,
    /// Maximum number of nodes for which agents receive each other's keys and connect in a full
    /// mesh. The agents of larger groups authenticate by the group's key and connect on demand,
    /// because there would be too many connections and keys.
    pub mesh_nodes: u32,
    /// Number of parallel TCP connections between two agents, if all agents of a group support
    /// more than one.
    pub connections_per_hop: u8,
}

/// Why the agents of a group cannot protect it consistently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Some agents cannot tag datagrams, but tags are required.
    #[error(
        "the agents of {} cannot tag their datagrams, but --require-tags is set; install this release there",
        .0.join(", ")
    )]
    Untagged(Vec<String>),
    /// Some agents encrypt. They refuse to communicate with agents that do not.
    #[error(
        "the agents of {} encrypt (--encrypt), but those of {} do not; start all agents alike, or select nodes with --hosts",
        .encrypted.join(", "), .plain.join(", ")
    )]
    Mixed {
        /// Nodes with agents that encrypt.
        encrypted: Vec<String>,
        /// Nodes with agents that do not encrypt.
        plain: Vec<String>,
    },
}

/// The key of a group and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupProtection {
    /// The key, as sent to agents.
    pub secret: Secret,
    /// Whether the payload is encrypted as well.
    pub encrypted: bool,
    /// Whether the group's agents authenticate by this key and connect on demand.
    pub connects_on_demand: bool,
    /// Number of parallel TCP connections between two of its agents.
    pub connections_per_hop: u8,
}

impl GroupProtection {
    /// Returns the size of the tag in each datagram.
    pub(super) fn tag_bytes(&self) -> u64 {
        if self.encrypted { wire::STREAM_CIPHER_TAG } else { wire::STREAM_TAG }
    }
}

impl GroupKeys {
    /// Returns the key of a group, or `None` if some of its agents cannot use one.
    ///
    /// # Errors
    /// Returns an error if all agents must use a key, or if only some of them encrypt.
    pub fn key_for(
        &self,
        (group, epoch): (u64, u32),
        places: &[MemberPlace],
    ) -> Result<Option<GroupProtection>, KeyError> {
        let encrypted = all_have(places, features::ENCRYPTION);
        if !encrypted && places.iter().any(|place| place.session.agent.has(features::ENCRYPTION)) {
            let [encrypted, plain] = [true, false].map(|has| nodes(places, features::ENCRYPTION, has));
            return Err(KeyError::Mixed { encrypted, plain });
        }
        let untagged = nodes(places, features::TAGS, false);
        if untagged.is_empty() {
            let key = self.secret.derive(format!("group {group} {epoch}").as_bytes());
            return Ok(Some(GroupProtection {
                secret: secret(&key),
                encrypted,
                connects_on_demand: self.connects_on_demand(places),
                connections_per_hop: self.connections_per_hop(places),
            }));
        }
        if self.required {
            return Err(KeyError::Untagged(untagged));
        }
        let nodes = untagged.join(", ");
        warn!(group, nodes, "the group's datagrams are not tagged, because these agents do not support it");
        Ok(None)
    }

    /// Returns whether the group has too many nodes for a full mesh, and its agents can connect on
    /// demand.
    fn connects_on_demand(&self, places: &[MemberPlace]) -> bool {
        let nodes: BTreeSet<u32> = places.iter().map(|place| place.session.number).collect();
        nodes.len() > self.mesh_nodes as usize && all_have(places, features::DESCRIPTIONS)
    }

    fn connections_per_hop(&self, places: &[MemberPlace]) -> u8 {
        if all_have(places, features::PARALLEL_CONNECTIONS) { self.connections_per_hop } else { 1 }
    }
}

/// Returns whether the agents of all places support a feature.
pub(super) fn all_have(places: &[MemberPlace], feature: u64) -> bool {
    places.iter().all(|place| place.session.agent.has(feature))
}

/// Returns the nodes of a group with (`has`) or without a feature.
fn nodes(places: &[MemberPlace], feature: u64, has: bool) -> Vec<String> {
    let found = places.iter().filter(|place| place.session.agent.has(feature) == has);
    let nodes: BTreeSet<&str> = found.map(|place| place.session.agent.name.as_str()).collect();
    nodes.into_iter().map(str::to_owned).collect()
}

/// Returns a key as a message.
pub(super) fn secret(key: &Key) -> Secret {
    Secret { value: key.bytes().to_vec() }
}
