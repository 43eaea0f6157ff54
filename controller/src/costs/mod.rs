//! Costs of agents and of the network: the cost model of a group, and the probes that measure its
//! parameters.

pub mod agent_speed;
pub mod cost_model;
pub mod prober;

pub use agent_speed::AgentSpeed;
pub use cost_model::{ConfiguredRates, LinkRates, MeasuredCosts, ProbeResult};
