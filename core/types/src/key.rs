//! Secrets that one side makes and hands to another, and proofs by them: HMAC (RFC 2104, over SHA-256).

use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a proof.
pub const TAG_BYTES: usize = 32;

/// A secret. Who has it can make proofs in its name. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl From<[u8; 32]> for Key {
    fn from(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }
}

impl Key {
    /// The secret itself, to hand it to who shall have it.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Another secret, for one purpose: who has it cannot tell this one, nor those of other purposes.
    pub fn derive(&self, purpose: &[u8]) -> Key {
        Key(self.tag(purpose))
    }

    /// The proof for these bytes.
    pub fn tag(&self, bytes: &[u8]) -> [u8; TAG_BYTES] {
        self.hmac(bytes).finalize().into_bytes().into()
    }

    /// Whether this is the proof for these bytes; takes the same time for every wrong one.
    pub fn verifies(&self, bytes: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        self.hmac(bytes).verify_slice(tag).is_ok()
    }

    /// As [`Key::verifies`], for a proof of which only the first bytes are there (RFC 2104, section 5).
    pub fn verifies_truncated(&self, bytes: &[u8], tag: &[u8; TAG_BYTES / 2]) -> bool {
        self.hmac(bytes).verify_truncated_left(tag).is_ok()
    }

    fn hmac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        // As RFC 2104 has it, a shorter secret is filled up with zeros to a block.
        let mut block = [0; 64];
        block[..self.0.len()].copy_from_slice(&self.0);
        let mut hmac: Hmac<Sha256> = KeyInit::new(&block.into());
        hmac.update(bytes);
        hmac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 1, whose secret is 20 bytes long.
    #[test]
    fn tags_match_the_vectors_of_rfc_4231() {
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let tag = Key(key).tag(b"Hi There");
        assert_eq!(tag[..8], [0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53]);
        assert!(Key(key).verifies(b"Hi There", &tag));
        assert!(!Key(key).verifies(b"Hi there", &tag));
        let mut cut = *tag.first_chunk().unwrap();
        assert!(Key(key).verifies_truncated(b"Hi There", &cut));
        cut[15] ^= 1;
        assert!(!Key(key).verifies_truncated(b"Hi There", &cut));
    }

    #[test]
    fn derived_secrets_differ_and_are_not_shown() {
        let key = Key([7; 32]);
        assert_ne!(key.derive(b"a"), key.derive(b"b"));
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
