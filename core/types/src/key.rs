//! Secret keys that one party creates and hands to another, and tags made with them: HMAC-SHA-256
//! (RFC 2104).

use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of a tag in bytes.
pub const TAG_BYTES: usize = 32;

/// A secret key. Every holder of the key can make valid tags, so its `Debug` output does not show
/// it.
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
    /// Returns the secret itself. It must only be sent to parties that may make tags with it.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Derives another key for one purpose. The derived key reveals neither this key nor those of
    /// other purposes.
    pub fn derive(&self, purpose: &[u8]) -> Key {
        Key(self.tag(purpose))
    }

    /// Returns the tag of these bytes.
    pub fn tag(&self, bytes: &[u8]) -> [u8; TAG_BYTES] {
        self.hmac(bytes).finalize().into_bytes().into()
    }

    /// Returns whether `tag` is the tag of these bytes. Takes the same time for every wrong tag.
    pub fn verifies(&self, bytes: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        self.hmac(bytes).verify_slice(tag).is_ok()
    }

    /// Like [`Key::verifies`], for a tag that was truncated to its first half (RFC 2104, section
    /// 5).
    pub fn verifies_truncated(&self, bytes: &[u8], tag: &[u8; TAG_BYTES / 2]) -> bool {
        self.hmac(bytes).verify_truncated_left(tag).is_ok()
    }

    fn hmac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        // RFC 2104 pads a shorter key with zeros to the block length.
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

    /// RFC 4231, test case 1, with a key of 20 bytes.
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
