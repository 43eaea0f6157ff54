//! The keys of groups: who gets one.

use super::Place;
use cool_proto::control::Secret;
use cool_proto::features;
use cool_types::{Key, wire};
use std::collections::BTreeSet;
use tracing::warn;

/// How the data of groups is protected.
#[derive(Clone, Debug)]
pub struct GroupKeys {
    /// What keys are derived from: a secret of this run.
    pub secret: Key,
    /// Groups whose agents cannot tag their datagrams are refused.
    pub required: bool,
    /// Groups on more nodes are told without the keys of their agents, which prove who they are by the group's, and connect on
    /// demand: all with all others would be too many connections, and too much to tell.
    pub mesh_nodes: u32,
}

/// A group whose agents cannot protect it alike.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Some of them cannot tag datagrams.
    #[error(
        "the agents of {} cannot tag their datagrams, and --require-tags is set; install this release on them",
        .0.join(", ")
    )]
    Untagged(Vec<String>),
    /// Some encrypt, and speak with nobody who does not.
    #[error(
        "the agents of {} encrypt (--encrypt), and those of {} do not; start all alike, or name nodes by --hosts",
        .encrypted.join(", "), .plain.join(", ")
    )]
    Mixed {
        /// Nodes whose agents encrypt.
        encrypted: Vec<String>,
        /// Those of the others.
        plain: Vec<String>,
    },
}

/// The key of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedBy {
    /// As it is told.
    pub secret: Secret,
    /// Whether payload is encrypted with it as well.
    pub encrypted: bool,
    /// Whether its agents prove by it who they are, and connect on demand.
    pub proves: bool,
}

impl TaggedBy {
    /// Bytes that each datagram of the group is longer.
    pub(super) fn tag_bytes(&self) -> u64 {
        if self.encrypted { wire::STREAM_CIPHER_TAG } else { wire::STREAM_TAG }
    }
}

impl GroupKeys {
    /// The key of a group; none if not all of its agents know how to use one.
    ///
    /// # Errors
    /// If all have to, or some encrypt and some do not.
    pub fn of(&self, (group, epoch): (u64, u32), places: &[Place]) -> Result<Option<TaggedBy>, KeyError> {
        let encrypted = all_have(places, features::ENCRYPTION);
        if !encrypted && places.iter().any(|place| place.session.agent.has(features::ENCRYPTION)) {
            let [encrypted, plain] = [true, false].map(|has| nodes(places, features::ENCRYPTION, has));
            return Err(KeyError::Mixed { encrypted, plain });
        }
        let untagged = nodes(places, features::TAGS, false);
        if untagged.is_empty() {
            let key = self.secret.derive(format!("group {group} {epoch}").as_bytes());
            let proves = self.proves(places);
            return Ok(Some(TaggedBy { secret: secret(&key), encrypted, proves }));
        }
        if self.required {
            return Err(KeyError::Untagged(untagged));
        }
        let nodes = untagged.join(", ");
        warn!(group, nodes, "the group's datagrams are not tagged: these agents cannot");
        Ok(None)
    }

    /// Whether the agents of a group are too many for each to know the keys of all, and can do without.
    fn proves(&self, places: &[Place]) -> bool {
        let nodes: BTreeSet<u32> = places.iter().map(|place| place.session.number).collect();
        nodes.len() > self.mesh_nodes as usize && all_have(places, features::DESCRIPTIONS)
    }
}

/// Whether the agents of all places have a feature.
pub(super) fn all_have(places: &[Place], feature: u64) -> bool {
    places.iter().all(|place| place.session.agent.has(feature))
}

/// The nodes of a group whose agents have a feature, or have it not.
fn nodes(places: &[Place], feature: u64, has: bool) -> Vec<String> {
    let found = places.iter().filter(|place| place.session.agent.has(feature) == has);
    let nodes: BTreeSet<&str> = found.map(|place| place.session.agent.name.as_str()).collect();
    nodes.into_iter().map(str::to_owned).collect()
}

/// A key as it is told.
pub(super) fn secret(key: &Key) -> Secret {
    Secret { value: key.bytes().to_vec() }
}
