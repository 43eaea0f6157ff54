//! What is asked of stores, and the lines by which their ranks answer.

use super::StorePlace;
use cool_content::Digest;
use cool_store::StoreName;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What ranks are to do, the same for all.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoreQuestion {
    pub(super) store: StorePlace,
    /// Only with this name.
    pub(super) name: Option<StoreName>,
    pub(super) deed: StoreDeed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StoreDeed {
    /// Say what is there.
    List,
    /// Take a name away.
    Remove,
    /// Read all again; remove what is damaged, if so.
    Verify { drop: bool },
}

/// A content of a node's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredContent {
    pub(super) name: StoreName,
    pub(super) id: Digest,
    pub(super) put_ms: u64,
    /// When it was put or read last.
    pub(super) used_ms: u64,
    pub(super) bytes: u64,
    pub(super) items: usize,
    /// Where it is.
    pub(super) tree: PathBuf,
}

/// A line of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StoreAnswer {
    /// A content that is there.
    Content(StoredContent),
    /// The store, if there is one.
    Store { folder: PathBuf, bytes: u64, quota: Option<u64> },
    /// There was such a name, and there is none any more.
    Removed,
    /// A content is whole.
    Whole { bytes: u64 },
    /// Something is not as it was put.
    Damaged { name: StoreName, what: String },
    /// The last line of each.
    Ended { error: Option<String> },
}
