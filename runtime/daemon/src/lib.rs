//! Parts that the controller and the agent share as programs: options from flags and a file,
//! accepting connections, the log and its events, notifications to the service manager, and HTTP
//! pages.
//!
//! The programs decide which connections to serve, and provide the content of the pages.

pub mod accept;
pub mod clock;
pub mod config;
mod handshakes;
mod line_limit;
pub mod listen;
pub mod log;
mod process;
mod rejections;
pub mod reload;
pub mod service_notify;
pub mod web;
