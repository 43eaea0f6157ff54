//! The header of a tagged datagram.

use crate::packet::{self, DATA_HEADER};
use cool_types::wire;
use std::net::IpAddr;

/// Bytes at the start that differ between packets and tagged datagrams.
const HEADER_BYTES: usize = 16;

const TAGGED: u8 = 0xC2;
const ENCRYPTED: u8 = 0xC3;

/// Bytes with the number of the sending node.
const FROM: core::ops::Range<usize> = 30..32;

/// Largest sequence number. At ten million datagrams per second it is reached after 325 days.
pub const SEQUENCE_MAX: u64 = (1 << 48) - 1;

/// How the datagrams of a group are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A tag covers all bytes.
    Tagged,
    /// The payload of chunks is encrypted as well.
    Encrypted,
}

impl Protection {
    /// Returns the bytes of the tag.
    pub const fn tag_bytes(self) -> usize {
        match self {
            Protection::Tagged => wire::STREAM_TAG as usize,
            Protection::Encrypted => wire::STREAM_CIPHER_TAG as usize,
        }
    }
}

/// The header of a tagged datagram. It must not be trusted before the tag has been verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedHeader {
    /// The protection.
    pub protection: Protection,
    /// The group.
    pub group: u64,
    /// The sequence number.
    pub sequence: u64,
    /// The place in the group of the node that sent it.
    pub from: u16,
    /// Bytes before the encrypted payload, or all bytes before the tag if the payload is not
    /// encrypted.
    pub clear: usize,
}

impl TaggedHeader {
    /// Turns a datagram of packets into a tagged one, except for the tag, which the caller must
    /// append. Returns its header.
    ///
    /// # Panics
    /// Panics if the datagram does not begin with a packet, or the number exceeds [`SEQUENCE_MAX`].
    pub fn write(datagram: &mut [u8], protection: Protection, sequence: u64) -> TaggedHeader {
        assert!(
            datagram.len() >= packet::COMMON && sequence <= SEQUENCE_MAX,
            "a datagram must begin with a packet and have a sequence number of 48 bits"
        );
        let code = datagram[3];
        datagram.copy_within(4..12, 8);
        datagram[2..8].copy_from_slice(&sequence.to_be_bytes()[2..]);
        datagram[0] = if protection == Protection::Tagged { TAGGED } else { ENCRYPTED };
        datagram[1] = code;
        TaggedHeader::parse(datagram, datagram.len(), protection)
    }

    /// Reads the header of a tagged datagram. Returns `None` if the datagram is not tagged.
    pub fn read(datagram: &[u8]) -> Option<TaggedHeader> {
        let protection = match *datagram.first()? {
            TAGGED => Protection::Tagged,
            ENCRYPTED => Protection::Encrypted,
            _ => return None,
        };
        let covered = datagram.len().checked_sub(protection.tag_bytes())?;
        (covered >= packet::COMMON).then(|| TaggedHeader::parse(datagram, covered, protection))
    }

    /// Returns the header of a datagram that has `covered` bytes before its tag, which must hold at
    /// least a packet.
    fn parse(datagram: &[u8], covered: usize, protection: Protection) -> TaggedHeader {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let encrypts = protection == Protection::Encrypted && packet::is_data(datagram[1]);
        TaggedHeader {
            protection,
            group: number(&datagram[8..HEADER_BYTES]),
            sequence: number(&datagram[2..8]),
            from: u16::from_be_bytes([datagram[FROM.start], datagram[FROM.start + 1]]),
            clear: if encrypts { covered.min(DATA_HEADER) } else { covered },
        }
    }

    /// Returns the nonce of the tag: the IPv4 destination and the sequence number. An IPv6 address
    /// does not fit, so each IPv6 destination has a key of its own.
    pub fn nonce(&self, to: IpAddr) -> [u8; 12] {
        let mut nonce = [0; 12];
        if let IpAddr::V4(to) = to {
            nonce[..4].copy_from_slice(&to.octets());
        }
        nonce[4..].copy_from_slice(&self.sequence.to_be_bytes());
        nonce
    }

    /// Restores the packets of a datagram after its tag was verified and removed.
    pub fn restore(&self, datagram: &mut [u8], epoch: u32) {
        let code = datagram[1];
        datagram.copy_within(8..HEADER_BYTES, 4);
        datagram[..4].copy_from_slice(&packet::prefix(code));
        datagram[12..HEADER_BYTES].copy_from_slice(&epoch.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Packet, PacketBody, Via};
    use crate::spec::StreamId;
    use proptest::prelude::*;

    fn chunk() -> Packet {
        let id = StreamId { group: 0x0102_0304_0506_0708, epoch: 9, call: 3, transfer: 4, source: 5 };
        Packet {
            id,
            from: 6,
            digest: 7,
            body: PacketBody::Data { chunk: 8, echo: 0, via: Via::Tree, part: 0 },
        }
    }

    fn datagram() -> Vec<u8> {
        let mut bytes = Vec::new();
        chunk().encode(&mut bytes);
        bytes.extend_from_slice(b"payload");
        bytes
    }

    #[test]
    fn a_tagged_datagram_restores_its_packets() {
        for protection in [Protection::Tagged, Protection::Encrypted] {
            let plain = datagram();
            let mut bytes = plain.clone();
            assert_eq!(TaggedHeader::read(&bytes), None);
            let header = TaggedHeader::write(&mut bytes, protection, SEQUENCE_MAX);
            assert_eq!(bytes.len(), plain.len());
            bytes.resize(plain.len() + protection.tag_bytes(), 0xAA);
            assert_eq!(TaggedHeader::read(&bytes), Some(header));
            assert_eq!((header.group, header.sequence, header.from), (chunk().id.group, SEQUENCE_MAX, 6));
            assert_eq!(
                header.clear,
                if protection == Protection::Tagged { plain.len() } else { DATA_HEADER }
            );
            assert!(Packet::decode(&bytes).is_err(), "an agent without tags must not accept it");
            bytes.truncate(plain.len());
            header.restore(&mut bytes, 9);
            assert_eq!(bytes, plain);
        }
    }

    #[test]
    fn destination_and_sequence_number_change_the_nonce() {
        let mut bytes = datagram();
        let header = TaggedHeader::write(&mut bytes, Protection::Tagged, 1);
        let (here, there) = ([10, 0, 0, 1].into(), [239, 192, 0, 1].into());
        assert_ne!(header.nonce(here), header.nonce(there));
        assert_ne!(header.nonce(here), TaggedHeader { sequence: 2, ..header }.nonce(here));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), first in 0xC0u8..0xC5) {
            bytes.iter_mut().take(1).for_each(|byte| *byte = first);
            if let Some(header) = TaggedHeader::read(&bytes) {
                let len = bytes.len();
                prop_assert!(header.clear <= len - header.protection.tag_bytes());
                header.restore(&mut bytes, 1);
                prop_assert_eq!(bytes.len(), len);
            }
        }
    }
}
