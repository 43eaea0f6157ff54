//! Messages of quick calls as bytes.
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | magic `C4` |
//! | 1 | kind |
//! | 2..4 | zero |
//! | 4..8 | epoch |
//! | 8..16 | group |
//! | 16..24 | call |
//! | 24..28 | transfer |
//! | 28..32 | the rank in whose name it is |
//! | 32..36 | of what is asked: the rank that is asked |
//! | 36..44 | digest of the call |
//! | 44.. | payload |
//! | last 16 | tag: HMAC-SHA-256 under the group's key for quick calls, cut (RFC 2104, section 5) |
//!
//! The name (group, epoch, call, transfer) says all there is to know of a message, so one that comes twice is recognized by it, and needs
//! no number of its own.

use crate::schedule::MESSAGE_MAX;
use cool_types::Key;

const MAGIC: u8 = 0xC4;
const HEAD: usize = 44;
const TAG: usize = 16;

/// Bytes of a datagram that are not its payload's.
pub(crate) const AROUND_PAYLOAD: usize = HEAD + TAG;

/// Bytes of the longest datagram.
pub const DATAGRAM_MAX: usize = AROUND_PAYLOAD + MESSAGE_MAX as usize;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramKind {
    /// A message of a schedule.
    Message,
    /// From a rank to the agent of another: that rank's message is lacking.
    Ask,
    /// An agent's answer: its rank has called something else, in words.
    Differs,
}

/// What stands before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: DatagramKind,
    /// The group.
    pub group: u64,
    /// The version of its membership.
    pub epoch: u32,
    /// The number of the call.
    pub call: u64,
    /// The transfer in its schedule.
    pub transfer: u32,
    /// The rank in whose name it is.
    pub from: u32,
    /// Of an [`DatagramKind::Ask`]: the rank that is asked. 0 else.
    pub asked: u32,
    /// Of the call, as that rank has called it.
    pub digest: u64,
}

/// Why a datagram is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// It is too short, or of another kind.
    #[error("it is no datagram of a quick call")]
    Malformed,
    /// It is of another group.
    #[error("it is of another group")]
    Elsewhere,
    /// It was not made with the key.
    #[error("its tag is wrong")]
    Forged,
}

/// A datagram that was made with the group's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// What it says of itself.
    pub head: Head,
    /// The rest.
    pub payload: &'a [u8],
}

impl Datagram<'_> {
    /// The bytes to send.
    pub fn seal(&self, key: &Key) -> Vec<u8> {
        let Head { kind, group, epoch, call, transfer, from, asked, digest } = self.head;
        let mut bytes = Vec::with_capacity(HEAD + self.payload.len() + TAG);
        bytes.extend_from_slice(&[MAGIC, kind.code(), 0, 0]);
        bytes.extend_from_slice(&epoch.to_be_bytes());
        bytes.extend_from_slice(&group.to_be_bytes());
        bytes.extend_from_slice(&call.to_be_bytes());
        [transfer, from, asked].into_iter().for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
        bytes.extend_from_slice(&digest.to_be_bytes());
        bytes.extend_from_slice(self.payload);
        let tag = key.tag(&bytes);
        bytes.extend_from_slice(&tag[..TAG]);
        bytes
    }

    /// Reads what came, for the group of this number and epoch.
    ///
    /// # Errors
    /// If it must not be believed.
    pub fn open<'a>(key: &Key, group: (u64, u32), bytes: &'a [u8]) -> Result<Datagram<'a>, DatagramError> {
        let (covered, tag) = bytes.split_last_chunk::<TAG>().ok_or(DatagramError::Malformed)?;
        let (head, payload) = covered.split_first_chunk::<HEAD>().ok_or(DatagramError::Malformed)?;
        let head = Head::read(head).ok_or(DatagramError::Malformed)?;
        if (head.group, head.epoch) != group {
            return Err(DatagramError::Elsewhere);
        }
        if !key.proves_cut(covered, tag) {
            return Err(DatagramError::Forged);
        }
        Ok(Datagram { head, payload })
    }
}

impl Head {
    fn read(bytes: &[u8; HEAD]) -> Option<Head> {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let kind = DatagramKind::of(bytes[1]).filter(|_| bytes[0] == MAGIC)?;
        Some(Head {
            kind,
            epoch: word(4),
            group: long(8),
            call: long(16),
            transfer: word(24),
            from: word(28),
            asked: word(32),
            digest: long(36),
        })
    }
}

impl DatagramKind {
    fn code(self) -> u8 {
        match self {
            DatagramKind::Message => 1,
            DatagramKind::Ask => 2,
            DatagramKind::Differs => 3,
        }
    }

    fn of(code: u8) -> Option<DatagramKind> {
        [DatagramKind::Message, DatagramKind::Ask, DatagramKind::Differs]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> Key {
        Key::from([7; 32])
    }

    fn head() -> impl Strategy<Value = Head> {
        let kind =
            prop_oneof![Just(DatagramKind::Message), Just(DatagramKind::Ask), Just(DatagramKind::Differs)];
        (kind, any::<(u64, u32, u64, u32, u32, u32, u64)>()).prop_map(|(kind, all)| {
            let (group, epoch, call, transfer, from, asked, digest) = all;
            Head { kind, group, epoch, call, transfer, from, asked, digest }
        })
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_read_and_a_changed_byte_is_noticed(
            head in head(),
            payload in proptest::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Datagram { head, payload: &payload }.seal(&key());
            let group = (head.group, head.epoch);
            prop_assert_eq!(Datagram::open(&key(), group, &bytes), Ok(Datagram { head, payload: &payload }));
            prop_assert_eq!(Datagram::open(&[8; 32].into(), group, &bytes), Err(DatagramError::Forged));
            let at = at.index(bytes.len());
            bytes[at] ^= 1;
            prop_assert!(Datagram::open(&key(), group, &bytes).is_err() || at == 2 || at == 3);
        }

        #[test]
        fn any_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(Datagram::open(&key(), (0, 0), &bytes).is_err());
        }
    }
}
