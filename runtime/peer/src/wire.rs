//! What members say to each other over a channel, as bytes: one message of Noise each.

use cool_swarm::{Member, Signal};
use serde::{Deserialize, Serialize, Serializer};
use std::net::SocketAddr;

/// Bytes of a block in a message at most: what a signal waits behind.
pub(crate) const PART_BYTES: usize = 16 << 10;
/// Of a message, sealed, at most (Noise, revision 34, section 3).
pub(crate) const MESSAGE_BYTES: usize = 65_535;
/// By which a message is longer once it is sealed.
pub(crate) const TAG_BYTES: usize = 16;

/// A message. The first on a channel is a [`Frame::Hello`] or a [`Frame::Inquire`], and no other is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame<'a> {
    /// Who speaks on this channel, and where it listens: members may not know of it yet.
    Hello {
        /// Who.
        member: Member,
        /// Where it can be reached.
        contact: SocketAddr,
    },
    /// Of the protocol.
    Signal(Signal),
    /// The next bytes of a block that was announced.
    Part {
        /// The sender's number of the transfer.
        transfer: u32,
        /// At most some KiB.
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
    /// By one that is no member yet: what all members know is to go back over the same channel, as parts of a block. As long
    /// as that is open and it has not said hello, it prepares for being a member.
    Inquire {
        /// Which one it will be.
        member: Member,
    },
}

/// As bytes, which are not looked at one by one.
fn at_once<S: Serializer>(bytes: &&[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Something else, or cut short.
    #[error("it is no message: {0}")]
    Decode(postcard::Error),
    /// There are bytes behind it.
    #[error("{0} bytes follow the message")]
    Rest(usize),
    /// It does not fit into a message.
    #[error("a message of {0} bytes is too long")]
    Long(usize),
}

impl<'a> Frame<'a> {
    /// As bytes.
    ///
    /// # Errors
    /// If it is longer than a message can be: ranks of too many generations.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let bytes = postcard::to_allocvec(self).map_err(WireError::Decode)?;
        if bytes.len() + TAG_BYTES > MESSAGE_BYTES { Err(WireError::Long(bytes.len())) } else { Ok(bytes) }
    }

    /// What bytes say.
    ///
    /// # Errors
    /// If they are none.
    pub fn decode(bytes: &'a [u8]) -> Result<Frame<'a>, WireError> {
        let (frame, rest) = postcard::take_from_bytes(bytes).map_err(WireError::Decode)?;
        if rest.is_empty() { Ok(frame) } else { Err(WireError::Rest(rest.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_swarm::{BlockHead, Have, Pace, Row};
    use proptest::prelude::*;

    fn frames() -> Vec<Frame<'static>> {
        let have =
            Have { ranks: vec![3, 300, 0], blocks: vec![u64::MAX], null_vectors: vec![(1, [7; 32].into())] };
        let coded = Row::Coded([1, 0, 255].into());
        let head =
            |row| Signal::Head(BlockHead { transfer: 9, generation: 4, row, checked: true, round: 1 << 40 });
        vec![
            Frame::Hello {
                member: Member { rack: 3, slot: 70_000 },
                contact: "[fd00::7]:9000".parse().unwrap(),
            },
            Frame::Inquire { member: Member { rack: 0, slot: 300 } },
            Frame::Signal(Signal::Grant { transfer: 7, ring: 1 << 50, pace: Pace(Some(9)), have }),
            Frame::Signal(head(coded)),
            Frame::Signal(head(Row::Block(1023))),
            Frame::Part { transfer: u32::MAX, bytes: &[0, 1, 2] },
            Frame::Half { transfer: 1 },
            Frame::Whole { transfer: 2 },
        ]
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_not_if_bytes_are_lacking_or_left() {
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
    fn what_fits_into_no_message_is_not_sent() {
        let have = Have { ranks: vec![300; 40_000], ..Have::default() };
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
