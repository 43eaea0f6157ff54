//! The network as a graph: what it is made of ([`ids`], [`graph`]), how it is found ([`lldp`],
//! [`discovery`]), and what is computed from it ([`index`], [`racks`], [`routes`], [`trees`]), and
//! how it looks ([`picture`]).
//!
//! Pure: no sockets, no clocks, and equal inputs give equal answers. What switches are told about it is the
//! controller's matter.

pub mod discovery;
pub mod graph;
pub mod ids;
pub mod index;
pub mod lldp;
pub mod picture;
pub mod racks;
pub mod routes;
#[cfg(test)]
mod samples;
pub mod trees;

pub use cool_types::Key;
pub use discovery::Discovery;
pub use graph::{Graph, Link};
pub use ids::{DatapathId, Port};
pub use index::Index;
pub use pnet_base::MacAddr;
pub use racks::Racks;
pub use routes::Routes;
pub use trees::Tree;
