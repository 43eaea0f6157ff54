//! The C interface of libcool. `include/cool.h` is generated from it.
//!
//! Communicators and requests are numbers instead of pointers, so that a freed one is rejected
//! instead of dereferenced. No panic leaves a function. The operations are documented in detail at
//! `cool::Comm`.

#![allow(non_camel_case_types, reason = "C's names")]

mod arguments;
mod codes;
mod collectives;
mod comm;
mod error;
mod files;
mod functions;
mod handles;
mod memory;
mod messages;
mod nonblocking;
mod own_counts;
mod pointers;
mod queues;
mod recover;
mod requests;

pub use codes::*;
pub use collectives::*;
pub use comm::*;
pub use error::{cool_error_message, cool_error_ranks};
pub use files::*;
pub use functions::*;
pub use memory::*;
pub use messages::*;
pub use nonblocking::*;
pub use own_counts::*;
pub use queues::*;
pub use recover::*;
pub use requests::*;
