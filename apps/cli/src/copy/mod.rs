//! `cool copy`, and what the store commands and `cool run --stage` share with it.
//!
//! A copy is a job with this program as its ranks (crate `cool-copy`), one on each node. These
//! files choose the nodes, submit the job, follow its events and present the outcome.

pub(crate) mod command;
mod input_feed;
mod late;
pub(crate) mod options;
pub(crate) mod outcome;
mod private_directory;
mod progress;
pub(crate) mod request;
mod spool;
pub(crate) mod stage;
mod stream;
