//! The wire format of quick calls.
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | magic `C4` |
//! | 1 | kind |
//! | 2..4 | length of the datagram, or zero in earlier releases |
//! | 4..8 | epoch |
//! | 8..16 | group |
//! | 16..24 | call |
//! | 24..28 | transfer |
//! | 28..32 | the sending rank |
//! | 32..36 | for a NAK, the rank that sent the missing message; otherwise 0 |
//! | 36..44 | digest of the call |
//! | 44.. | payload |
//! | last 16 | tag under the group's key for quick calls, truncated |
//!
//! The tag is HMAC-SHA-256 (RFC 2104) of all bytes before it. If the payload is longer than 4 KiB,
//! its [hash](crate::PayloadHash) takes its place, which is computed in a fraction of the time.
//!
//! Group, epoch, call and transfer identify a message. A message that arrives twice is recognized
//! by them and needs no sequence number.

use crate::call_key::CallKey;
use crate::call_limits::{LONG_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX};

pub(crate) const MAGIC: u8 = 0xC4;
pub(crate) const HEADER_BYTES: usize = 44;
/// Bytes of a tag, and of the hash of a long payload.
pub(crate) const TAG_BYTES: usize = 16;

/// Bytes of a datagram in addition to its payload.
pub(crate) const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// Length in bytes of the longest datagram that is not a part of a message.
pub const DATAGRAM_BYTES_MAX: usize = OVERHEAD_BYTES + MESSAGE_BYTES_MAX as usize;

/// Length in bytes of the longest message with its header and tag, which is sent in
/// [parts](crate::in_parts).
pub const LONG_DATAGRAM_BYTES_MAX: usize = OVERHEAD_BYTES + LONG_MESSAGE_BYTES_MAX as usize;

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramKind {
    /// A message of a schedule.
    Message,
    /// A request from a rank to the agent of another rank to retransmit a message of that rank.
    Nak,
    /// The answer of an agent to a NAK: its rank made another call, which the payload describes.
    Mismatch,
    /// A datagram of the maximum length that shows that datagrams arrive. Calls ignore it.
    Probe,
}

/// The header before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// The kind.
    pub kind: DatagramKind,
    /// The group.
    pub group: u64,
    /// The epoch of the group's membership.
    pub epoch: u32,
    /// The number of the call.
    pub call: u64,
    /// The transfer in the schedule of the call.
    pub transfer: u32,
    /// The sending rank; for a mismatch, the rank of the agent.
    pub from: u32,
    /// For a [`DatagramKind::Nak`], the rank that sent the missing message; otherwise 0.
    pub requested: u32,
    /// The digest of the call, as the sending rank made it.
    pub digest: u64,
}

/// The reason why a datagram is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// It is too short, or not a datagram of a quick call.
    #[error("it is not a datagram of a quick call")]
    Malformed,
    /// It belongs to another group.
    #[error("it is of another group")]
    OtherGroup,
    /// Its tag is wrong: it was not made with the group's key, or was changed on the way.
    #[error("its tag is wrong")]
    Forged,
}

/// A datagram with a valid tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The header.
    pub header: DatagramHeader,
    /// The payload.
    pub payload: &'a [u8],
}

impl Datagram<'_> {
    /// Returns the datagram as bytes, with its tag.
    pub fn encode(&self, key: &CallKey) -> Vec<u8> {
        let DatagramHeader { kind, group, epoch, call, transfer, from, requested, digest } = self.header;
        let len = OVERHEAD_BYTES + self.payload.len();
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&[MAGIC, kind.code()]);
        // No datagram is longer, and 0 means that the length is unknown.
        bytes.extend_from_slice(&u16::try_from(len).unwrap_or(0).to_be_bytes());
        bytes.extend_from_slice(&epoch.to_be_bytes());
        bytes.extend_from_slice(&group.to_be_bytes());
        bytes.extend_from_slice(&call.to_be_bytes());
        [transfer, from, requested].into_iter().for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
        bytes.extend_from_slice(&digest.to_be_bytes());
        bytes.extend_from_slice(self.payload);
        let tag = match bytes.split_first_chunk() {
            Some((header, payload)) if is_long(payload.len()) => key.long_tag(header, payload),
            _ => key.tag(&bytes),
        };
        bytes.extend_from_slice(&tag);
        bytes
    }

    /// Verifies the tag and decodes a datagram for the group of this number and epoch.
    ///
    /// # Errors
    /// Returns an error if the datagram must not be trusted.
    pub fn verify<'a>(
        key: &CallKey,
        group: (u64, u32),
        bytes: &'a [u8],
    ) -> Result<Datagram<'a>, DatagramError> {
        let (covered, tag) = bytes.split_last_chunk::<TAG_BYTES>().ok_or(DatagramError::Malformed)?;
        let (header, payload) =
            covered.split_first_chunk::<HEADER_BYTES>().ok_or(DatagramError::Malformed)?;
        let read = DatagramHeader::read_for(group, header)?;
        let is_authentic = match is_long(payload.len()) {
            true => key.verifies_long(header, payload, tag),
            false => key.verifies(covered, tag),
        };
        is_authentic.then_some(Datagram { header: read, payload }).ok_or(DatagramError::Forged)
    }
}

/// Verifies the tag of a message of more than 4 KiB and returns its decoded header. The payload
/// need not follow the header in memory.
///
/// # Errors
/// Returns an error if the message must not be trusted.
pub(crate) fn verify_long(
    key: &CallKey,
    group: (u64, u32),
    (header, payload, tag): (&[u8; HEADER_BYTES], &[u8], &[u8; TAG_BYTES]),
) -> Result<DatagramHeader, DatagramError> {
    let read = DatagramHeader::read_for(group, header)?;
    key.verifies_long(header, payload, tag).then_some(read).ok_or(DatagramError::Forged)
}

/// Returns the payload of a datagram, or nothing if it is too short to have one.
pub(crate) fn payload(bytes: &[u8]) -> &[u8] {
    let end = bytes.len().saturating_sub(TAG_BYTES);
    bytes.get(HEADER_BYTES..end).unwrap_or_default()
}

/// Returns the length of the first datagram in `bytes`, which contain one or several. That is the
/// length in its header, if there is a possible one, and otherwise that of all bytes.
pub(crate) fn first_datagram_bytes(bytes: &[u8]) -> usize {
    let len = bytes.get(2..4).map_or(0, |len| usize::from(u16::from_be_bytes([len[0], len[1]])));
    if (OVERHEAD_BYTES..=bytes.len()).contains(&len) { len } else { bytes.len() }
}

/// Returns whether a payload of this length is longer than those of short calls.
pub(crate) fn is_long(payload_bytes: usize) -> bool {
    payload_bytes as u64 > MESSAGE_BYTES_MAX
}

impl DatagramHeader {
    /// Returns the header of a datagram for this group and epoch.
    fn read_for(group: (u64, u32), bytes: &[u8; HEADER_BYTES]) -> Result<DatagramHeader, DatagramError> {
        let header = DatagramHeader::read(bytes).ok_or(DatagramError::Malformed)?;
        if (header.group, header.epoch) == group { Ok(header) } else { Err(DatagramError::OtherGroup) }
    }

    fn read(bytes: &[u8; HEADER_BYTES]) -> Option<DatagramHeader> {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let kind = DatagramKind::from_code(bytes[1]).filter(|_| bytes[0] == MAGIC)?;
        Some(DatagramHeader {
            kind,
            epoch: word(4),
            group: long(8),
            call: long(16),
            transfer: word(24),
            from: word(28),
            requested: word(32),
            digest: long(36),
        })
    }
}

impl DatagramKind {
    fn code(self) -> u8 {
        match self {
            DatagramKind::Message => 1,
            DatagramKind::Nak => 2,
            DatagramKind::Mismatch => 3,
            DatagramKind::Probe => 4,
        }
    }

    fn from_code(code: u8) -> Option<DatagramKind> {
        [DatagramKind::Message, DatagramKind::Nak, DatagramKind::Mismatch, DatagramKind::Probe]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_key::tests::call_key;
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = DatagramHeader> {
        let kind = prop_oneof![
            Just(DatagramKind::Message),
            Just(DatagramKind::Nak),
            Just(DatagramKind::Mismatch),
            Just(DatagramKind::Probe)
        ];
        (kind, any::<(u64, u32, u64, u32, u32, u32, u64)>()).prop_map(|(kind, all)| {
            let (group, epoch, call, transfer, from, requested, digest) = all;
            DatagramHeader { kind, group, epoch, call, transfer, from, requested, digest }
        })
    }

    proptest! {
        #[test]
        fn datagrams_round_trip_and_a_changed_byte_is_noticed(
            header in header(),
            payload in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..100),
                (4090usize..10_000).prop_map(|len| vec![5; len]),
            ],
            at in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Datagram { header, payload: &payload }.encode(&call_key(7));
            let group = (header.group, header.epoch);
            prop_assert_eq!(Datagram::verify(&call_key(7), group, &bytes), Ok(Datagram { header, payload: &payload }));
            prop_assert_eq!(Datagram::verify(&call_key(8), group, &bytes), Err(DatagramError::Forged));
            let at = at.index(bytes.len());
            bytes[at] ^= 1;
            prop_assert!(Datagram::verify(&call_key(7), group, &bytes).is_err() || at == 2 || at == 3);
        }

        #[test]
        fn any_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(Datagram::verify(&call_key(7), (0, 0), &bytes).is_err());
        }
    }
}
