//! OpenFlow controller: discovery, forwarding, multicast trees, groups and jobs.
//!
//! ```text
//!   switches ==OpenFlow== fabric <---------> job, groups <-- jobs <-- service ==gRPC== agents, tools
//!                                                  |                      |
//!                                                  +------> agents <------+
//!                                                  |
//!                                       costs <-- prober
//!                                       all of them <-- status <-- metrics, pages ==HTTP== people, Prometheus
//! ```
//!
//! [`cool_fabric`] runs the network and knows nothing of jobs; the rest knows nothing of OpenFlow and reaches the
//! fabric as a [`cool_fabric::Fabric`]. [`jobs::allocate`] and [`costs`] are pure.

pub mod access;
pub mod agents;
pub mod costs;
pub mod groups;
pub mod jobs;
pub mod leadership;
pub mod options;
pub mod pages;
pub mod restart;
pub mod server;
pub mod service;
