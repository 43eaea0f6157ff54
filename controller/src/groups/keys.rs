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
}

/// A group some of whose agents cannot tag datagrams.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the agents of {} cannot tag their datagrams, and --require-tags is set; install this release on them",
    nodes.join(", ")
)]
pub struct Untagged {
    nodes: Vec<String>,
}

impl GroupKeys {
    /// The key of a group; none if not all of its agents know how to use one.
    ///
    /// # Errors
    /// If all have to.
    pub fn of(&self, (group, epoch): (u64, u32), places: &[Place]) -> Result<Option<Secret>, Untagged> {
        let nodes = untagged(places);
        if nodes.is_empty() {
            let key = self.secret.derive(format!("group {group} {epoch}").as_bytes());
            return Ok(Some(secret(&key)));
        }
        if self.required {
            return Err(Untagged { nodes });
        }
        warn!(group, nodes = nodes.join(", "), "the group's datagrams are not tagged: these agents cannot");
        Ok(None)
    }
}

/// The nodes of a group whose agents cannot tag datagrams.
fn untagged(places: &[Place]) -> Vec<String> {
    let cannot = places.iter().filter(|place| !place.session.agent.has(features::TAGS));
    let nodes: BTreeSet<&str> = cannot.map(|place| place.session.agent.name.as_str()).collect();
    nodes.into_iter().map(str::to_owned).collect()
}

/// A key as it is told.
pub(super) fn secret(key: &Key) -> Secret {
    Secret { value: key.bytes().to_vec() }
}

/// Bytes that each datagram of a group is longer for its key.
pub(super) fn tag_bytes(key: Option<&Secret>) -> u64 {
    if key.is_some() { wire::STREAM_TAG } else { 0 }
}
