//! Behavior that applications observe, with ranks and agents in one process.

mod completions;
mod failures;
mod functions;
mod groups;
mod join;
mod messages;
mod operations;
mod recovery;
mod started;
mod types;
