//! The messages that members exchange over a channel, and their encoding. Each is one message of
//! Noise.

use cool_swarm::{Member, Signal};
use serde::{Deserialize, Serialize, Serializer};
use std::net::SocketAddr;

/// Maximum number of bytes of a block in one message. A signal waits behind at most one such
/// message.
pub(crate) const PART_BYTES: usize = 16 << 10;
/// Maximum size of an encrypted message (Noise, revision 34, section 3).
pub(crate) const MESSAGE_BYTES: usize = 65_535;
/// Number of bytes that encryption adds to a message.
pub(crate) const TAG_BYTES: usize = 16;

/// A message. The first one on a channel must be a [`Frame::Hello`] or a [`Frame::Inquire`]; no
/// later one may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame<'a> {
    /// Identifies the sender and the address at which it listens, because members may not know
    /// about it yet.
    Hello {
        /// The sender.
        member: Member,
        /// The address at which it listens.
        contact: SocketAddr,
    },
    /// A signal of the protocol.
    Signal(Signal),
    /// The next bytes of an announced block.
    Part {
        /// The sender's number of the transfer.
        transfer: u32,
        /// The bytes, at most 16 KiB.
        #[serde(borrow, serialize_with = "at_once")]
        bytes: &'a [u8],
    },
    /// The receiver has half of a block.
    Half {
        /// The sender's number of the transfer.
        transfer: u32,
    },
    /// The receiver has all of a block.
    Whole {
        /// The sender's number of the transfer.
        transfer: u32,
    },
    /// Requests the common state, for a node that is not a member yet. The reply must be sent over
    /// the same channel, as parts of a block. Until the channel is closed or the node sends a
    /// hello, the node counts as preparing.
    Inquire {
        /// The member that the node will become.
        member: Member,
    },
}

/// Serializes bytes as one sequence, instead of one by one.
fn at_once<S: Serializer>(bytes: &&[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// The reasons why a message cannot be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes are not a message, or are truncated.
    #[error("not a valid message: {0}")]
    Decode(postcard::Error),
    /// Bytes follow the message.
    #[error("{0} bytes follow the message")]
    Rest(usize),
    /// The message is too long.
    #[error("a message of {0} bytes is too long")]
    Long(usize),
}

impl<'a> Frame<'a> {
    /// Returns the encoded message.
    ///
    /// # Errors
    /// Returns an error if it exceeds the maximum size, for example because it contains the ranks
    /// of too many generations.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let bytes = postcard::to_allocvec(self).map_err(WireError::Decode)?;
        if bytes.len() + TAG_BYTES > MESSAGE_BYTES { Err(WireError::Long(bytes.len())) } else { Ok(bytes) }
    }

    /// Returns the message that the bytes encode.
    ///
    /// # Errors
    /// Returns an error if they do not encode exactly one message.
    pub fn decode(bytes: &'a [u8]) -> Result<Frame<'a>, WireError> {
        let (frame, rest) = postcard::take_from_bytes(bytes).map_err(WireError::Decode)?;
        if rest.is_empty() { Ok(frame) } else { Err(WireError::Rest(rest.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_swarm::{BlockAnnouncement, BlockTime, CodedBlock, HoldingsReport};
    use proptest::prelude::*;

    fn frames() -> Vec<Frame<'static>> {
        let have = HoldingsReport {
            first: 70_000,
            ranks: vec![3, 300, 0],
            blocks: vec![u64::MAX],
            null_vectors: vec![(1, [7; 32].into())],
        };
        let coded = CodedBlock::Coded([1, 0, 255].into());
        let head = |row| {
            Signal::Head(BlockAnnouncement { transfer: 9, generation: 4, row, checked: true, round: 1 << 40 })
        };
        vec![
            Frame::Hello {
                member: Member { rack: 3, slot: 70_000 },
                contact: "[fd00::7]:9000".parse().unwrap(),
            },
            Frame::Inquire { member: Member { rack: 0, slot: 300 } },
            Frame::Signal(Signal::Grant { transfer: 7, ring: 1 << 50, block_time: BlockTime(Some(9)), have }),
            Frame::Signal(head(coded)),
            Frame::Signal(head(CodedBlock::Original(1023))),
            Frame::Part { transfer: u32::MAX, bytes: &[0, 1, 2] },
            Frame::Half { transfer: 1 },
            Frame::Whole { transfer: 2 },
        ]
    }

    #[test]
    fn only_complete_messages_decode_and_to_the_same_value() {
        for frame in frames() {
            let bytes = frame.encode().unwrap();
            assert_eq!(Frame::decode(&bytes), Ok(frame));
            for n in 0..bytes.len() {
                assert!(Frame::decode(&bytes[..n]).is_err(), "{n} of {bytes:?}");
            }
            assert_eq!(Frame::decode(&[&bytes[..], &[0]].concat()), Err(WireError::Rest(1)));
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_not_encoded() {
        let have = HoldingsReport { ranks: vec![300; 40_000], ..HoldingsReport::default() };
        assert!(matches!(Frame::Signal(Signal::Ask { have }).encode(), Err(WireError::Long(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(frame) = Frame::decode(&bytes) {
                let again = frame.encode().unwrap();
                prop_assert_eq!(Frame::decode(&again), Ok(frame));
            }
        }
    }
}
