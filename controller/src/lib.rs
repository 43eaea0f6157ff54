//! The controller of a COOL cluster: agents, groups and jobs, on a network that `cool_fabric` runs
//! by OpenFlow.
//!
//! ```text
//!   switches ==OpenFlow== fabric <-------> job, groups <-- jobs <-- service ==gRPC== agents, tools
//!                                                |                      |
//!                                                +------> agents <------+
//!                                                |
//!                                     costs <-- prober
//!          all of them <-- status <-- metrics, pages ==HTTP== people, Prometheus
//! ```
//!
//! [`cool_fabric`] runs the network and has no notion of jobs. The other modules do not use
//! OpenFlow and access the fabric through the trait [`cool_fabric::Fabric`]. [`jobs::allocation`]
//! and [`costs::cost_model`] are pure.

pub mod abbreviation;
pub mod access;
pub mod agents;
pub mod costs;
pub mod flooding;
pub mod graceful_restart;
pub mod groups;
pub mod jobs;
pub mod leadership;
mod natural_order;
mod observation_message;
pub mod options;
pub mod pages;
pub mod racks_file;
pub mod request_limits;
pub mod server;
pub mod service;
mod shared_work;
pub mod timeouts;
mod topology_message;
