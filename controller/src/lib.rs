//! OpenFlow controller: discovery, forwarding, multicast trees, groups and jobs.
//!
//! ```text
//!   switches ==OpenFlow== fabric --Network--> job, groups <-- jobs <-- service ==gRPC== agents, tools
//!                                                  |                      |
//!                                                  +------> agents <------+
//!                                                  |
//!                                       costs <-- prober
//!                                       all of them <-- status <-- metrics, pages ==HTTP== people, Prometheus
//! ```
//!
//! [`fabric`] runs the network and knows nothing of jobs; the rest knows nothing of OpenFlow and reaches the
//! fabric as a [`network::Network`]. [`allocate`] and [`costs`] are pure.

pub mod agents;
pub mod allocate;
pub mod costs;
pub mod doctor;
pub mod fabric;
pub mod groups;
pub mod interrupts;
pub mod job;
pub mod jobs;
pub mod listen;
pub mod membership;
pub mod metrics;
pub mod network;
pub mod options;
pub mod pages;
pub mod prober;
pub mod server;
pub mod service;
pub mod status;
pub mod takeover;
pub mod traces;
