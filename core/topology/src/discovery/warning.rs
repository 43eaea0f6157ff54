//! Faults of the network that discovery notices.

use crate::lldp::{Announcement, LldpError};
use crate::{MacAddr, Port};
use core::fmt;

/// A fault in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Port at which it was noticed.
    pub port: Port,
    /// Cause of the fault.
    pub cause: Cause,
}

/// Cause of a fault at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The port receives LLDP that cannot be read.
    Unreadable(LldpError),
    /// The port receives announcements of a second sender.
    SecondNeighbor {
        /// The neighbor.
        first: Announcement,
        /// The other sender.
        second: Announcement,
    },
    /// The port receives an announcement that neither this controller nor the node's agent has
    /// made.
    Forged(Announcement),
    /// The port receives an authentic announcement again, or too late.
    Replayed(Announcement),
    /// The port receives a switch's announcement although a node is at one of the two ports, so the
    /// node's host forwards the frames.
    Relayed {
        /// The announcement received.
        received: Announcement,
        /// The node.
        node: String,
    },
    /// The port is cabled to its own switch.
    OwnSwitch,
    /// The port receives announcements of a node that is located elsewhere.
    NodeElsewhere {
        /// The node.
        name: String,
        /// Place of the node.
        at: Port,
    },
    /// The port receives announcements of a node with another address than the registered one.
    WrongAddress {
        /// The node.
        name: String,
        /// The address received.
        received: MacAddr,
        /// The registered address.
        registered: MacAddr,
    },
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Announcement::Switch { switch, port } => write!(f, "switch {switch} port {port}"),
            Announcement::Node { name, mac } => write!(f, "node {name} ({mac})"),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}: ", self.port)?;
        match &self.cause {
            Cause::Unreadable(error) => write!(f, "receives LLDP that cannot be read: {error}"),
            Cause::SecondNeighbor { first, second } => {
                write!(f, "receives {second} in addition to {first}; connect only one device to a port")
            }
            Cause::Forged(who) => {
                write!(
                    f,
                    "receives {who}, but the frame is forged, or of another controller; find its sender"
                )
            }
            Cause::Replayed(who) => {
                write!(f, "receives an old announcement of {who} again; find its sender")
            }
            Cause::Relayed { received, node } => {
                write!(
                    f,
                    "receives {received} through node {node}, which should not forward LLDP; check that host"
                )
            }
            Cause::OwnSwitch => write!(f, "is cabled to its own switch; remove the cable"),
            Cause::NodeElsewhere { name, at } => {
                write!(f, "receives node {name}, which is located at {at}; give each node its own name")
            }
            Cause::WrongAddress { name, received, registered } => {
                write!(f, "receives node {name} with address {received}, but it registered {registered}")
            }
        }
    }
}
