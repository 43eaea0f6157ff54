//! The ways in which a broadcast can violate the contract of its stream.

use cool_machine::Time;
use cool_transport::SpecError;

/// A violation of the stream's contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BroadcastError {
    /// The settings are not valid for a stream.
    Spec(SpecError),
    /// A node was notified of a complete message but has other bytes.
    Bytes {
        /// The node.
        node: u16,
    },
    /// A node was notified twice of a complete message, or had to store or send data that it had
    /// released.
    Order {
        /// The node.
        node: u16,
        /// The violation.
        what: &'static str,
    },
    /// A packet could not be decoded from its bytes.
    Packet,
    /// A machine requested to be polled again at once without end.
    Spin {
        /// The node.
        node: u16,
    },
    /// A machine was still open although there were no more events or the time limit had passed.
    Stall {
        /// The node.
        node: u16,
        /// When that was detected.
        at: Time,
    },
}
