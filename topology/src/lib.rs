//! The network as a graph: what it is made of ([`ids`], [`graph`]), how it is found ([`lldp`],
//! [`discovery`]), and what is computed from it ([`racks`], [`paths`], [`trees`]).
//!
//! Pure: no sockets, no clocks, and equal inputs give equal answers. What switches are told about it is the
//! controller's matter.

pub mod ids;

pub use ids::{BadMac, DatapathId, Mac, Port};
