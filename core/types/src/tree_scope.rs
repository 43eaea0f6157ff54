//! The nodes of a group that a multicast tree connects.

use core::fmt;

/// The nodes of a group that a tree connects, for the controller and its agents. A rack has the
/// controller's number here, and its index in the layout in `cool_collective::MulticastScope`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreeScope {
    /// All nodes.
    All,
    /// The nodes of the rack leaders, which are the smallest rank of each rack.
    Leaders,
    /// The nodes of the rack with this number.
    Rack(u32),
}

impl fmt::Display for TreeScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeScope::All => f.write_str("all"),
            TreeScope::Leaders => f.write_str("leaders"),
            TreeScope::Rack(rack) => write!(f, "rack {rack}"),
        }
    }
}
