//! The network as a graph: its elements ([`ids`], [`graph`]), its discovery ([`lldp`],
//! [`discovery`]; without OpenFlow [`lldp_neighbor`], [`rack_table`]), the members of multicast
//! groups ([`membership_query`], [`membership_report`], [`querier`]) and the nodes that multicasts
//! reach besides them ([`flooding_probe`]), algorithms on the graph ([`switch_adjacency`],
//! [`racks`], [`routes`], [`trees`], [`spanning_tree`]), a drawing of it ([`picture`]), and the
//! [`checksum`] of packets.
//!
//! The crate is pure: it uses no sockets or clocks, and equal inputs return equal results.
//! Programming the switches is up to the controller.

pub mod checksum;
pub mod discovery;
pub mod flooding_probe;
pub mod graph;
pub mod ids;
pub mod lldp;
pub mod lldp_neighbor;
pub mod membership_query;
pub mod membership_report;
pub mod picture;
pub mod querier;
pub mod rack_table;
pub mod racks;
pub mod routes;
#[cfg(test)]
mod samples;
pub mod spanning_tree;
pub mod switch_adjacency;
pub mod trees;

pub use cool_types::Key;
pub use discovery::Discovery;
pub use graph::{Graph, Link};
pub use ids::{DatapathId, Port};
pub use lldp_neighbor::LldpNeighbor;
pub use pnet_base::MacAddr;
pub use rack_table::RackTable;
pub use racks::Racks;
pub use routes::Routes;
pub use switch_adjacency::SwitchAdjacency;
pub use trees::Tree;
