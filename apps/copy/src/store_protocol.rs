//! The contract between the store commands and their ranks: one request for all ranks, and the
//! replies of each. Both are JSON, with names that are part of the contract.

use crate::protocol::StoreLocation;
use cool_content::Digest;
use cool_store::StoreName;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A request to the stores of nodes: the same for all ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreRequest {
    /// The stores' directory.
    pub store: StoreLocation,
    /// Name of the objects concerned; `None` for all objects.
    pub name: Option<StoreName>,
    /// The operation of the ranks.
    #[serde(rename = "deed")]
    pub operation: StoreOperation,
}

/// An operation on the stores of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreOperation {
    /// List the objects.
    List,
    /// Remove a name.
    Remove,
    /// Read all files again.
    Verify {
        /// Whether damaged objects are removed.
        drop: bool,
    },
}

/// A name in a node's store and its object; an object with several names has several entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// The name.
    pub name: StoreName,
    /// Identity of the object: a hash of its paths, modes, times and bytes.
    pub id: Digest,
    /// Time at which it was put, in milliseconds since 1970.
    pub put_ms: u64,
    /// Time at which it was put or read last, in milliseconds since 1970.
    pub used_ms: u64,
    /// Total size, in bytes.
    pub bytes: u64,
    /// Number of its files, directories and links.
    pub items: usize,
    /// Path of its files on the node.
    pub tree: PathBuf,
}

/// A reply of a rank. A rank sends any number of replies; the last is `Ended`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreReply {
    /// An object in the store.
    #[serde(rename = "content")]
    Object(ObjectInfo),
    /// The store itself, if the node has one.
    Store {
        /// Its directory.
        folder: PathBuf,
        /// Total size, in bytes.
        bytes: u64,
        /// Its quota in bytes, if it has one.
        quota: Option<u64>,
    },
    /// The name was removed.
    Removed,
    /// An object was read again, and is intact.
    #[serde(rename = "whole")]
    Intact {
        /// Total size, in bytes.
        bytes: u64,
    },
    /// An object is damaged.
    Damaged {
        /// One of its names.
        name: StoreName,
        /// The file and what is wrong with it.
        #[serde(rename = "what")]
        damage: String,
    },
    /// The last reply of every rank.
    Ended {
        /// The reason, if the rank has not completed the request.
        error: Option<String>,
    },
}
