//! What people and monitoring see of a running controller: its state as one value, the live page, metrics for
//! Prometheus, and the examination of the whole deployment. Nothing here changes anything.

pub mod doctor;
pub mod metrics;
pub mod standby;
pub mod status;
pub mod web;
