//! Node agent: runs the schedules of its ranks over multicast and TCP.
//!
//! The [`engine`] runs collectives. Around it stand the edges: local ranks ([`local`]), the controller
//! ([`control`]), the ranks' processes ([`launcher`]), LLDP ([`interface`] and `lldp`), probes of the network
//! ([`probe`]), metrics ([`metrics`]), losses for tests ([`losses`]). [`embedded`] is many agents in one process, without a controller.

mod agent;
pub mod control;
pub mod embedded;
pub mod engine;
mod health;
mod held;
pub mod interface;
pub mod launcher;
mod lldp;
pub mod local;
pub mod losses;
pub mod metrics;
mod net;
pub mod probe;
mod readable;
mod traces;

pub use agent::Agent;
