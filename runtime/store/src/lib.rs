//! A user's store on a node: a directory with contents (files or directories) that stay there under
//! names between jobs.
//!
//! A content is stored as an object, which is identified by the hash of its manifest. The same
//! content is therefore stored once, whatever names it has. A [`Put`] creates an object, and
//! [`ObjectReading`] reads it under a lock. An object is removed when its last name is removed, or
//! evicted when room is needed, the least recently used first. Copying and verifying the bytes of
//! an object is left to the caller.
//!
//! ```text
//! format                 version of the format
//! lock                   held while names, objects or the quota change
//! quota                  limit for the bytes of all objects; unlimited if the file does not exist
//! names/NAME             identity of the object, and when it was put
//! objects/ID/manifest    readers and writers of the object hold a shared lock on this file;
//!                        its modification time is that of the last use
//! objects/ID/tree        the file or directory, moved into place by one rename when it is complete
//! gone/                  objects that are being removed
//! ```
//!
//! Every step is one rename, so a store can be opened after a program has been interrupted at any
//! point. The next put collects unlocked objects without a name.

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
