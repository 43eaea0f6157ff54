//! How long quick calls may be. All ranks of a group have the same limits, because each decides by
//! them whether a call is quick.

use crate::leaders::NodeLeaders;

/// Length in bytes of the longest message that is sent as one datagram, whatever the MTU: three
/// Ethernet packets, which the system reassembles (IP fragments).
pub const MESSAGE_BYTES_MAX: u64 = 4096;

/// Length in bytes of the longest message that is sent in [parts](crate::in_parts). With headers,
/// the parts of a message are not longer together than the longest UDP datagram, so one system call
/// sends them all.
pub(crate) const LONG_MESSAGE_BYTES_MAX: u64 = 56 << 10;

/// Bytes of long messages that a rank may have sent since all ranks last heard from each other. The
/// retransmission buffer must hold them.
pub const LONG_MESSAGES_BYTES_MAX: u64 = 384 << 10;

/// Limits for the calls of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Length of the longest message.
    pub(crate) message_bytes: u64,
    /// Length of the longest vector that is reduced along a tree. Ranks reduce longer ones in
    /// shares, so that each link carries about one vector, with more messages.
    pub(crate) tree_bytes: u64,
    /// Length of the longest vector, and of all parts of an allgather together. For short calls
    /// this is TCP's initial window (RFC 6928), which may be sent at once at any rate.
    pub(crate) vector_bytes: u64,
    /// Bytes that may arrive at one rank from many others at once. They must fit into the queue of
    /// a switch port, or for long calls into the receive buffer of the rank's socket: a port of 1
    /// Gbit/s and more passes them on in a few milliseconds.
    pub(crate) window_bytes: u64,
    /// Length of the longest vector, or of all parts together, that is executed in pieces, each of
    /// which is within the other limits. 0 if calls are not divided into pieces, as where nodes
    /// have several ranks: agents pass data on to these while they receive more of it.
    pub(crate) pieces_bytes: u64,
}

impl CallLimits {
    /// Returns the limits of a group that divides long messages into datagrams of this length; 0 if
    /// its ranks execute only short calls.
    pub fn for_group(datagram_bytes: usize, leaders: &NodeLeaders) -> CallLimits {
        let has_one_rank_per_node = leaders.size() == leaders.layout().size();
        match datagram_bytes {
            0 => CallLimits::SHORT,
            _ if has_one_rank_per_node => CallLimits::LONG,
            _ => CallLimits { pieces_bytes: 0, ..CallLimits::LONG },
        }
    }

    /// The limits where the rate of the path is low or unknown.
    pub const SHORT: CallLimits = CallLimits {
        message_bytes: MESSAGE_BYTES_MAX,
        tree_bytes: MESSAGE_BYTES_MAX,
        vector_bytes: 16 << 10,
        window_bytes: 64 << 10,
        pieces_bytes: 0,
    };

    /// The limits where all links are fast and all agents and ranks support messages in parts.
    pub const LONG: CallLimits = CallLimits {
        message_bytes: LONG_MESSAGE_BYTES_MAX,
        tree_bytes: 256 << 10,
        vector_bytes: 256 << 10,
        window_bytes: LONG_MESSAGES_BYTES_MAX,
        pieces_bytes: 16 << 20,
    };
}
