//! Views of a running controller for people and monitoring: its status as one value, the live page,
//! metrics for Prometheus, an examination of the whole deployment, and the pages of a standby. All
//! are read-only.

pub mod doctor;
pub mod metrics;
mod multicast_findings;
mod observed_findings;
pub mod standby;
pub mod status;
pub mod web;
