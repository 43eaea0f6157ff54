//! Node agent: runs the schedules of its ranks over multicast and TCP.
//!
//! The [`engine`] runs collectives. Around it stand the edges: local ranks ([`local`]), the controller
//! ([`control`]), the ranks' processes ([`launcher`]), LLDP ([`interface`] and `lldp`), probes of the network
//! ([`probe`]), metrics ([`metrics`]), losses for tests ([`fault_injection`]). [`embedded`] is many agents in one process, without a controller.

mod agent;
pub mod control;
mod diagnostics;
pub mod embedded;
pub mod engine;
pub mod fault_injection;
pub mod interface;
pub mod launcher;
mod lldp;
pub mod local;
pub mod metrics;
mod net;
mod node_inventory;
mod output_backlog;
pub mod probe;
mod readable;
mod traces;

pub use agent::Agent;
