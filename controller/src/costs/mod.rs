//! Costs of the network: the cost model of a group, and the probes that measure its parameters.

pub mod cost_model;
pub mod prober;

pub use cost_model::{ConfiguredRates, LinkRates, MeasuredCosts, ProbeResult};
