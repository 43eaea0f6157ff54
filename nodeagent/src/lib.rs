//! Node agent: runs the schedules of its ranks over multicast and TCP.
//!
//! What is decided is left to others: collectives to `cool_engine`, which the thread of [`engine`] drives (`net`: sockets,
//! timers, congestion control), groups and jobs to the controller. Here are the edges, each a room of its own:
//!
//! - [`local`]: ranks on this node, over a unix socket; `agent`: which groups they are in, and how they get new ones;
//! - [`control`]: the session with the controller, and what it tells this node to do; `node_inventory`: what the next
//!   controller is told of groups and ranks; `output_backlog`: what ranks print meanwhile;
//! - [`launcher`]: the ranks' processes;
//! - [`interface`], `lldp`, [`probe`]: the data interface, its announcement, and measurements between nodes;
//! - [`metrics`], `traces`, `rank_calls`, `diagnostics`: what operators are told; [`loss_injector`]: losses for tests;
//! - [`embedded`]: many agents in one process, without a controller.

mod agent;
mod call_counters;
pub mod control;
mod diagnostics;
pub mod embedded;
pub mod engine;
pub mod interface;
pub mod launcher;
mod lldp;
pub mod local;
pub mod loss_injector;
pub mod metrics;
mod net;
mod node_inventory;
pub mod options;
mod output_backlog;
pub mod probe;
mod rank_calls;
mod readable;
mod shared_segment;
mod traces;

pub use agent::Agent;
