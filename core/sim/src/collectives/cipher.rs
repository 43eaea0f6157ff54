//! A cipher for simulated agents. It is as fast as possible, and protects only against the
//! simulated adversary.

use cool_quick::PayloadHash;
use cool_transport::tagged::Cipher;
use cool_types::Key;

#[derive(Debug)]
pub(super) struct Checksum([u8; 32]);

impl PayloadHash for Checksum {
    fn new(key: &Key) -> Checksum {
        Cipher::new(key)
    }

    fn hash(&self, payload: &[u8]) -> [u8; 16] {
        self.tag([0; 12], payload)
    }
}

impl Cipher for Checksum {
    fn new(key: &Key) -> Checksum {
        Checksum(key.bytes())
    }

    fn tag(&self, nonce: [u8; 12], clear: &[u8]) -> [u8; 16] {
        let words = [&self.0[..], &nonce, clear].into_iter().flat_map(|part| part.chunks(8));
        let sum = words.fold(1u64, |sum, word| {
            let number = word.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            (sum.rotate_left(29) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&sum.to_be_bytes());
        tag
    }

    fn encrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> [u8; 16] {
        let sum = self.tag(nonce, clear);
        payload.iter_mut().for_each(|byte| *byte ^= self.0[0]);
        let payload = self.tag(nonce, payload);
        std::array::from_fn(|at| sum[at] ^ payload[at])
    }

    fn decrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> bool {
        let (payload, tag) = payload.split_at_mut(payload.len() - 16);
        let (sum, of_payload) = (self.tag(nonce, clear), self.tag(nonce, payload));
        payload.iter_mut().for_each(|byte| *byte ^= self.0[0]);
        tag.iter().enumerate().all(|(at, byte)| *byte == sum[at] ^ of_payload[at])
    }
}
