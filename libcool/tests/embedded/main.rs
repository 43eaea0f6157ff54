//! What applications see, over ranks and agents in one process, on loopback: one program, since each would be linked with
//! a whole agent.

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
