//! AES-256-GCM, which without a payload is GMAC: processors of servers have instructions for it.

use cool_transport::tagged::Cipher;
use cool_types::Key;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

pub(super) struct AesGcm(LessSafeKey);

impl Cipher for AesGcm {
    fn new(key: &Key) -> AesGcm {
        AesGcm(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key.bytes()).expect("a key of 32 bytes")))
    }

    fn tag(&self, nonce: [u8; 12], clear: &[u8]) -> [u8; 16] {
        self.encrypt(nonce, clear, &mut [])
    }

    fn encrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> [u8; 16] {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(clear), payload);
        let tag = tag.expect("a datagram is shorter than the cipher's limit");
        tag.as_ref().try_into().expect("a tag of 16 bytes")
    }

    fn decrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> bool {
        self.0.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(clear), payload).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 15 of the GCM specification of McGrew and Viega has no bytes outside the payload; its first block is enough to
    /// know the cipher, and what is sealed opens again with the same key only.
    #[test]
    fn the_cipher_is_the_standards_and_what_is_changed_does_not_open() {
        let mut key = [0; 32];
        key.iter_mut()
            .zip(
                [
                    0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83,
                    0x08,
                ]
                .repeat(2),
            )
            .for_each(|(to, from)| *to = from);
        let nonce = [0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce, 0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88];
        let plain =
            [0xd9, 0x31, 0x32, 0x25, 0xf8, 0x84, 0x06, 0xe5, 0xa5, 0x59, 0x09, 0xc5, 0xaf, 0xf5, 0x26, 0x9a];
        let cipher = AesGcm::new(&key.into());
        let mut bytes = plain.to_vec();
        let tag = cipher.encrypt(nonce, b"head", &mut bytes);
        assert_eq!(bytes[..8], [0x52, 0x2d, 0xc1, 0xf0, 0x99, 0x56, 0x7d, 0x07]);
        bytes.extend(tag);
        let mut changed = bytes.clone();
        changed[3] ^= 1;
        assert!(!cipher.decrypt(nonce, b"head", &mut changed));
        assert!(!cipher.decrypt(nonce, b"tail", &mut bytes.clone()));
        assert!(cipher.decrypt(nonce, b"head", &mut bytes));
        assert_eq!(bytes[..16], plain);
    }
}
