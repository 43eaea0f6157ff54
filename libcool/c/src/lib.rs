//! libcool's C interface; `include/cool.h` is made of it.
//!
//! Communicators and requests are numbers, so that one that was freed is refused and never followed. No panic
//! leaves a function. What each operation does is said at `cool::Comm`.

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
mod own_counts;
mod queues;
mod recover;
mod requests;
mod started;

pub use codes::*;
pub use collectives::*;
pub use comm::*;
pub use error::{cool_error_message, cool_error_ranks};
pub use files::*;
pub use functions::*;
pub use memory::*;
pub use messages::*;
pub use own_counts::*;
pub use queues::*;
pub use recover::*;
pub use requests::*;
pub use started::*;
