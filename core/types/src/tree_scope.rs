//! Which nodes of a group a multicast tree connects.

use core::fmt;

/// Which nodes of a group a tree connects, with racks by the controller's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreeScope {
    /// All.
    All,
    /// Those of the rack leaders: of the smallest rank in each rack.
    Leaders,
    /// Those in the rack of this number.
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
