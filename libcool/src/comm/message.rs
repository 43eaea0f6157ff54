//! Descriptions of messages from one rank to another.

use crate::element::{Array, ArrayMut};

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Rank that sent the message.
    pub source: usize,
    /// Tag of the message.
    pub tag: u32,
    /// Number of received elements. Elements of the array beyond them are unchanged.
    pub count: usize,
}

/// A queued message that a receive would match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Rank that sent the message.
    pub source: usize,
    /// Tag of the message.
    pub tag: u32,
    /// Length of the message in bytes, for any element type.
    pub bytes: usize,
}

/// A message to or from another rank, with an array of a type that is known only at run time.
#[derive(Debug)]
pub enum Message<'s, 'r> {
    /// Sends an array to a rank.
    Send {
        /// Array to send.
        data: Array<'s>,
        /// Rank that receives the message.
        dest: usize,
        /// Tag of the message.
        tag: u32,
    },
    /// Sends an array, and completes only when a receive has matched the message.
    SynchronousSend {
        /// Array to send.
        data: Array<'s>,
        /// Rank that receives the message.
        dest: usize,
        /// Tag of the message.
        tag: u32,
    },
    /// Receives into an array.
    Receive {
        /// Array for the received elements, which may be longer than the message.
        data: ArrayMut<'r>,
        /// Rank to receive from, or `None` for any rank.
        source: Option<usize>,
        /// Tag to receive, or `None` for any tag.
        tag: Option<u32>,
    },
}
