//! Objects that stay on nodes by name: `cool put`, `get`, `ls`, `stat`, `rm` and `verify`.
//!
//! `put` and `get` are copies, as by `cool copy`. The other commands send a request to the stores:
//! a job with this program as its ranks (crate `cool-copy`), one on each node.

pub(crate) mod get;
mod holders;
pub(crate) mod list;
mod options;
pub(crate) mod put;
mod query;
pub(crate) mod remove;
mod search;
pub(crate) mod verify;
