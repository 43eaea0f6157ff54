//! What the controller and the agent have in common as programs: options from flags and a file, accepting connections, the log
//! with its events, what the service manager is told, and pages over HTTP. What is served, and what the pages say, is left to the programs.

pub mod accept;
pub mod clock;
pub mod config;
pub mod listen;
pub mod log;
mod process;
pub mod reload;
pub mod supervision;
pub mod web;
