//! Jobs: where their ranks run, how they run and end, and how callers follow them.

pub mod allocation;
pub mod caller_event_stream;
pub mod control;
pub mod drain_state;
pub mod errors;
pub mod job_failure;
mod job_summary;
mod lingering_ranks;
mod node_filter;
pub mod registry;
pub mod running_job;

pub use errors::{JobError, SubmitError, UnusableNodes};
pub use registry::{JobChannels, JobRegistry, deliver};
