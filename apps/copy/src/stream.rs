//! Copies of standard input while it is being read: `cool copy --stream`.
//!
//! The command sends its standard input in frames to the rank on its own node, over a socket that
//! only its user can open. That rank broadcasts it to the others, in order. An empty frame marks
//! the end: if the command exits before it, there is no copy.

mod frames;
mod rank;
mod sink;
mod source;

pub use frames::{read_some, send_frames};
pub use rank::run_stream_rank;
