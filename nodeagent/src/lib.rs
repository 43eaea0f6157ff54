//! The node agent: executes the schedules of its node's ranks over multicast and TCP.
//!
//! The agent itself makes few decisions: `cool_engine` executes the collectives, on the thread of
//! [`engine`] (`net`: sockets, timers, congestion control), and the controller decides on groups
//! and jobs. The modules of this crate connect the engine to the ranks, the controller and the
//! operators:
//!
//! - [`local`]: the ranks on this node, over a Unix socket; `agent`: the groups that they are in,
//!   and how they get new ones;
//! - [`control`]: the session with the controller, and the execution of its commands;
//!   `node_inventory`: the groups and ranks that the agent reports to the next controller;
//!   `output_backlog`: the events that wait for a connection to a controller;
//! - [`launcher`]: the processes of ranks;
//! - [`options`]: the command line;
//! - `shared_segment`: the memory in which ranks of this node execute calls themselves;
//!   `leader_probe`: the test of datagrams before the first quick call;
//!   `async_socket`: a socket that wakes its task only when there is something to read;
//! - [`interface`], `lldp`, `lldp_receiver`, `multicast_querier`, `flooding_role`, [`probe`]: the
//!   data interface, its announcement, the switch at which it is, the querier of multicast groups,
//!   the search for networks that flood, and measurements between nodes; `packet_socket`: sockets
//!   for these frames;
//! - `resource_pool`: the shares of users in resources of the agent;
//! - [`metrics`], `traces`, `rank_calls`, `diagnostics`: information for operators;
//!   `call_counters`: the counters of calls in the metrics; [`loss_injector`]: losses for tests;
//! - [`embedded`]: many agents in one process, without a controller.
//!
//! # Adding a request of a rank
//!
//! All requests of ranks are listed once, as [`RankRequest`](cool_engine::RankRequest) (with a
//! reply) and [`RankCommand`](cool_engine::RankCommand) (without). Everything between the socket
//! and the engine passes them on unchanged. A new request therefore touches three files on its way
//! to the group that serves it:
//!
//! 1. `local.proto` of `cool-proto`: the frame;
//! 2. `local/rank.rs`: the conversion of the frame to a request;
//! 3. `api.rs` of `cool-engine`: the variant of `RankRequest` or `RankCommand`.
//!
//! The group handles it in `group/rank_requests.rs` of `cool-engine`. A `RankRequest` also needs an
//! arm in `source` and `map` (in `api.rs`), and in `agent/attachment.rs`.

mod agent;
mod async_socket;
pub mod blocking_threads;
mod call_counters;
pub mod control;
mod datagram_faults;
mod diagnostics;
pub mod embedded;
pub mod engine;
mod flooding_role;
pub mod interface;
pub mod launcher;
mod leader_probe;
mod lldp;
mod lldp_receiver;
pub mod local;
pub mod loss_injector;
pub mod metrics;
mod multicast_querier;
mod net;
mod node_inventory;
pub mod options;
mod output_backlog;
mod packet_socket;
pub mod probe;
pub mod quick_socket;
mod rank_calls;
mod resource_pool;
mod shared_segment;
mod traces;

pub use agent::Agent;
pub use net::cpu_costs;
