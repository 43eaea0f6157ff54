//! The key of a group's quick calls.

use crate::datagram::{HEADER_BYTES, TAG_BYTES};
use cool_types::Key;
use std::fmt;
use std::sync::Arc;

/// A universal hash of payloads under a secret key: for any two different payloads, few keys map
/// both to the same value. It takes a fraction of the time of HMAC-SHA-256. The driver supplies it,
/// because the fastest implementations use instructions of the CPU.
pub trait PayloadHash: Send + Sync {
    /// Returns the hash under this key.
    fn new(key: &Key) -> Self
    where
        Self: Sized;

    /// Returns the hash of a payload. It must not be revealed.
    fn hash(&self, payload: &[u8]) -> [u8; TAG_BYTES];
}

/// The key of a group's quick calls, with which all of their datagrams are tagged.
#[derive(Clone)]
pub struct CallKey {
    key: Key,
    /// The key of the tags of long messages.
    long: Key,
    hash: Arc<dyn PayloadHash>,
}

impl fmt::Debug for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

impl CallKey {
    /// Returns the key with a hash for long payloads. All agents and ranks of a group must use the
    /// same hash.
    pub fn new<H: PayloadHash + 'static>(key: Key) -> CallKey {
        let hash = Arc::new(H::new(&key.derive(b"hash of long payloads")));
        CallKey { long: key.derive(b"long messages"), hash, key }
    }

    /// Returns the secret itself.
    pub fn bytes(&self) -> [u8; 32] {
        self.key.bytes()
    }

    /// Returns the tag of a datagram with a short payload: HMAC-SHA-256 (RFC 2104), truncated.
    pub(crate) fn tag(&self, covered: &[u8]) -> [u8; TAG_BYTES] {
        truncated(self.key.tag(covered))
    }

    /// Returns whether the tag of a datagram with a short payload is right.
    pub(crate) fn verifies(&self, covered: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        self.key.verifies_truncated(covered, tag)
    }

    /// Returns the tag of a long message: that of its header and of the hash of its payload. A
    /// pseudorandom function of a universal hash is a secure authentication code (Wegman and Carter
    /// 1981). Unlike GMAC it remains so if a rank uses the number of a call twice.
    pub(crate) fn long_tag(&self, header: &[u8; HEADER_BYTES], payload: &[u8]) -> [u8; TAG_BYTES] {
        truncated(self.long.tag(&self.hashed(header, payload)))
    }

    /// Returns whether the tag of a long message is right.
    pub(crate) fn verifies_long(
        &self,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        self.long.verifies_truncated(&self.hashed(header, payload), tag)
    }

    fn hashed(&self, header: &[u8; HEADER_BYTES], payload: &[u8]) -> [u8; HEADER_BYTES + TAG_BYTES] {
        let mut bytes = [0; HEADER_BYTES + TAG_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(header);
        bytes[HEADER_BYTES..].copy_from_slice(&self.hash.hash(payload));
        bytes
    }
}

fn truncated(tag: [u8; 2 * TAG_BYTES]) -> [u8; TAG_BYTES] {
    *tag.first_chunk().expect("a tag is longer than its half")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A hash for tests, in which no adversary chooses payloads.
    pub(crate) struct TestHash(u64);

    impl PayloadHash for TestHash {
        fn new(key: &Key) -> TestHash {
            TestHash(u64::from(key.bytes()[0]))
        }

        fn hash(&self, payload: &[u8]) -> [u8; TAG_BYTES] {
            let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            u128::from(payload.iter().fold(self.0, step)).to_be_bytes()
        }
    }

    /// Returns a key for tests.
    pub(crate) fn call_key(byte: u8) -> CallKey {
        CallKey::new::<TestHash>(Key::from([byte; 32]))
    }
}
