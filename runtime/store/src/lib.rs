//! A user's store on a node: one folder with contents (files or folders) that stay there under names from job to job.
//!
//! A content is an object, known by the hash of its manifest, so that it is there once whatever names it has. It comes into being by a
//! [`Put`], is read under a lock ([`ObjectReading`]), and goes when no name is left, or when room is needed: the one that was used
//! longest ago first. How bytes come into an object's tree and are checked is left to whoever copies.
//!
//! ```text
//! format                 the format's version
//! lock                   held while names, objects or the quota change
//! quota                  bytes that all objects may have; none if it is not there
//! names/NAME             the object's identity, and when it was put
//! objects/ID/manifest    locked shared by who reads or writes the object; its time is that of the last use
//! objects/ID/tree        the file or folder, which gets there by one rename when it is whole
//! gone/                  what is being removed
//! ```
//!
//! Every step is one rename, so that whatever ends a program, the store opens: an object without a name is collected by the next
//! put that finds it unlocked.

mod error;
mod files;
mod name;
mod object;
mod put;
mod quota;
mod store;

pub use error::StoreError;
pub use files::remove_tree;
pub use name::StoreName;
pub use object::{NameEntry, NamedObject, ObjectAbout, ObjectReading};
pub use put::{Put, PutRequest};
pub use quota::Unfit;
pub use store::{Store, StoreUsage};

#[cfg(test)]
mod tests;
