//! The distributed program behind `cool copy`, `cool put`, `cool get` and the other store commands.
//!
//! The command line (`apps/cli`) submits a job that runs this crate as its ranks, one on each node.
//! It passes each rank a task as JSON ([`CopyTask`], [`StreamTask`], [`StoreRequest`]); a rank
//! prints its events as lines of JSON ([`CopyEvent`], [`StoreReply`]), which the command turns into
//! progress bars, tables and exit codes.
//!
//! The parts of a copy, from the source's disk to a node's disk:
//!
//! | file | purpose |
//! | --- | --- |
//! | `manifest_scan.rs` | turns a file or directory into a manifest of blocks |
//! | `rank.rs` | one rank of a copy: its passes, and what happens when a node is lost |
//! | `source.rs`, `pipeline.rs` | read pieces at the source, and broadcast them one behind the other |
//! | `piece_writer.rs`, `destination.rs`, `install.rs` | write a node's copy, and rename it into place |
//! | `work_directory.rs`, `block_files.rs` | the locked directory next to DEST, and the files in it |
//! | `previous_destination.rs`, `placement.rs` | keep content of DEST that a copy must not replace |
//! | `copy_group.rs` | functions that every copy uses on its group of ranks |
//! | `swarm.rs`, `generations.rs` | distribute the data by swarm instead of broadcasts |
//! | `admission.rs`, `join.rs` | nodes that are late: for broadcasts, and for a swarm |
//! | `stream/` | copies of standard input while it is being read |
//! | `stored.rs`, `store_rank.rs` | copies out of and into stores, and requests to stores |

mod admission;
mod background;
mod block_files;
mod block_reader;
mod copy_group;
mod destination;
mod errors;
mod generations;
mod in_flight;
mod install;
mod join;
mod link_rates;
mod manifest_scan;
mod missing_blocks;
mod piece_writer;
mod pipeline;
mod placement;
mod previous_destination;
mod progress_reporter;
mod protocol;
mod rank;
mod rank_output;
mod rank_result;
mod secret;
mod source;
mod store_protocol;
mod store_rank;
mod stored;
mod stream;
mod swarm;
mod verify;
mod work_directory;

pub use cool_peer::Contact;
pub use errors::{RankError, without_os_code};
pub use generations::{BLOCK_MIN_BYTES, GENERATION_BLOCKS, block_bytes};
pub use link_rates::NodeLinkRates;
pub use protocol::{
    CopyEvent, CopyTask, CopyVia, LateMember, LateRank, PutTask, StoreLocation, StoreTask, StreamTask,
};
pub use rank::run_copy_rank;
pub use rank_output::parse_event;
pub use secret::{CopySecret, SECRET_VARIABLE};
pub use store_protocol::{ObjectInfo, StoreOperation, StoreReply, StoreRequest};
pub use store_rank::{run_store_rank, unix_ms};
pub use stream::{read_some, run_stream_rank, send_frames};

#[cfg(test)]
mod tests;
