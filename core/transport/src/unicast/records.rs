//! The records of an encrypted connection between two agents, similar to those of TLS (RFC 8446,
//! section 5.2).
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..4 | length of the payload, 1 to 32,768 |
//! | 4.. | the payload, encrypted |
//! | then 16 | the tag of payload and length |
//!
//! Each side has a key of its own for the records that it sends, and the nonce is the number of the
//! record. The receiver therefore detects records that were changed, omitted, repeated or moved.
//! Records and frames are independent: a record may hold parts of several frames.

use crate::tagged::Cipher;
use cool_types::Key;
use core::ops::Range;

/// Bytes of the longest payload.
const PAYLOAD_MAX: usize = 32 * 1024;

const LENGTH: usize = 4;
const TAG: usize = 16;

/// Bytes of the receive buffer, which must hold the longest record.
const BUFFER: usize = 4 * (LENGTH + PAYLOAD_MAX + TAG);

/// The received bytes are not what the other side sent, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The length is out of range.
    #[error("a record has {0} bytes; valid are 1 to {PAYLOAD_MAX}")]
    Length(u32),
    /// The record was changed on the way, or was not made by the other side.
    #[error("a record has a wrong tag")]
    Forged,
}

fn nonce(record: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&record.to_be_bytes());
    nonce
}

/// Encrypts the bytes that one side sends.
#[derive(Debug)]
pub struct Sealer<C> {
    cipher: C,
    /// Number of records so far.
    records: u64,
}

impl<C: Cipher> Sealer<C> {
    /// Returns a sealer with this key. No other sender must use the key.
    pub fn new(key: &Key) -> Sealer<C> {
        Sealer { cipher: C::new(key), records: 0 }
    }

    /// Returns the records that hold these bytes. They must be sent in this order, after all
    /// earlier records.
    pub fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::with_capacity(bytes.len() + bytes.len().div_ceil(PAYLOAD_MAX) * (LENGTH + TAG));
        for part in bytes.chunks(PAYLOAD_MAX) {
            // A part has at most PAYLOAD_MAX bytes.
            let length = (part.len() as u32).to_be_bytes();
            sealed.extend(length);
            let start = sealed.len();
            sealed.extend_from_slice(part);
            let tag = self.cipher.encrypt(nonce(self.records), &length, &mut sealed[start..]);
            sealed.extend(tag);
            self.records += 1;
        }
        sealed
    }
}

/// Decrypts the bytes that one side receives.
#[derive(Debug)]
pub struct Opener<C> {
    cipher: C,
    records: u64,
    buffer: Vec<u8>,
    /// Range of the decrypted bytes in the buffer that have not been consumed.
    plain: Range<usize>,
    /// Range of the received bytes that have not been decrypted.
    sealed: Range<usize>,
}

impl<C: Cipher> Opener<C> {
    /// Returns an opener with the key of the other side's sealer.
    pub fn new(key: &Key) -> Opener<C> {
        Opener { cipher: C::new(key), records: 0, buffer: vec![0; BUFFER], plain: 0..0, sealed: 0..0 }
    }

    /// Returns the buffer to read into. It is not empty after [`Opener::plain`] has returned an
    /// empty slice.
    pub fn room(&mut self) -> &mut [u8] {
        if self.plain.is_empty() {
            self.buffer.copy_within(self.sealed.clone(), 0);
            (self.plain, self.sealed) = (0..0, 0..self.sealed.len());
        }
        &mut self.buffer[self.sealed.end..]
    }

    /// Records that this many bytes were read into [`Opener::room`].
    pub fn received(&mut self, bytes: usize) {
        self.sealed.end += bytes;
    }

    /// Returns the next decrypted bytes, or an empty slice if more must be received first.
    ///
    /// # Errors
    /// Returns an error if the received bytes must not be trusted. Later bytes must not be trusted
    /// either.
    pub fn plain(&mut self) -> Result<&[u8], RecordError> {
        if self.plain.is_empty() {
            self.open()?;
        }
        Ok(&self.buffer[self.plain.clone()])
    }

    /// Consumes the first of the decrypted bytes.
    pub fn consume(&mut self, bytes: usize) {
        self.plain.start += bytes;
    }

    fn open(&mut self) -> Result<(), RecordError> {
        let Some((length, rest)) = self.buffer[self.sealed.clone()].split_first_chunk_mut::<LENGTH>() else {
            return Ok(());
        };
        let length_field = u32::from_be_bytes(*length);
        let payload = length_field as usize;
        if !(1..=PAYLOAD_MAX).contains(&payload) {
            return Err(RecordError::Length(length_field));
        }
        let Some(record) = rest.get_mut(..payload + TAG) else { return Ok(()) };
        if !self.cipher.decrypt(nonce(self.records), &*length, record) {
            return Err(RecordError::Forged);
        }
        self.records += 1;
        let start = self.sealed.start + LENGTH;
        self.plain = start..start + payload;
        self.sealed.start = self.plain.end + TAG;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Adds its key and the nonce to each byte, and computes a sum as the tag, which shows which
    /// key and nonce were used.
    struct Sum(u8);

    impl Sum {
        fn of(&self, nonce: [u8; 12], clear: &[u8], payload: &[u8]) -> [u8; 16] {
            let all = nonce.iter().chain(clear).chain(payload);
            let sum = all.fold(u64::from(self.0), |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
            let mut tag = [self.0; 16];
            tag[..8].copy_from_slice(&sum.to_be_bytes());
            tag
        }

        fn add(&self, nonce: [u8; 12], payload: &mut [u8]) {
            payload.iter_mut().for_each(|byte| *byte = byte.wrapping_add(self.0).wrapping_add(nonce[11]));
        }
    }

    impl Cipher for Sum {
        fn new(key: &Key) -> Sum {
            Sum(key.bytes()[0])
        }

        fn tag(&self, nonce: [u8; 12], clear: &[u8]) -> [u8; 16] {
            self.of(nonce, clear, &[])
        }

        fn encrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> [u8; 16] {
            self.add(nonce, payload);
            self.of(nonce, clear, payload)
        }

        fn decrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> bool {
            let Some((bytes, tag)) = payload.split_last_chunk_mut::<16>() else { return false };
            let right = self.of(nonce, clear, bytes) == *tag;
            let Sum(key) = self;
            let less = 0u8.wrapping_sub(*key).wrapping_sub(nonce[11]);
            bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(less));
            right
        }
    }

    fn sides() -> (Sealer<Sum>, Opener<Sum>) {
        let key = [7; 32].into();
        (Sealer::new(&key), Opener::new(&key))
    }

    /// Reads and consumes the stream in parts of at most these lengths, as a connection would.
    fn opened(opener: &mut Opener<Sum>, mut sealed: &[u8], parts: &[usize]) -> Result<Vec<u8>, RecordError> {
        let (mut plain, mut parts) = (Vec::new(), parts.iter().cycle());
        loop {
            let ready = opener.plain()?;
            let taken = ready.len().min(*parts.next().unwrap());
            plain.extend(&ready[..taken]);
            opener.consume(taken);
            if taken > 0 {
                continue;
            }
            if sealed.is_empty() {
                return Ok(plain);
            }
            let room = opener.room();
            let bytes = room.len().min(*parts.next().unwrap()).min(sealed.len());
            room[..bytes].copy_from_slice(&sealed[..bytes]);
            opener.received(bytes);
            sealed = &sealed[bytes..];
        }
    }

    proptest! {
        #[test]
        fn sealed_records_open_however_the_stream_is_cut(
            frames in proptest::collection::vec(0usize..100_000, 0..6),
            parts in proptest::collection::vec(1usize..90_000, 1..8),
        ) {
            let (mut sealer, mut opener) = sides();
            let frames: Vec<Vec<u8>> = frames.iter().map(|len| (0..*len).map(|i| (i % 251) as u8).collect()).collect();
            let sealed: Vec<u8> = frames.iter().flat_map(|frame| sealer.seal(frame)).collect();
            prop_assert_eq!(opened(&mut opener, &sealed, &parts), Ok(frames.concat()));
        }

        #[test]
        fn changed_omitted_or_repeated_records_do_not_open(
            at in any::<prop::sample::Index>(),
            change in 0u8..4,
            noise in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let (mut sealer, mut opener) = sides();
            let records: Vec<Vec<u8>> = (1..4).map(|i| sealer.seal(&[i; 40])).collect();
            let mut sealed = records.concat();
            match change {
                0 => {
                    let at = at.index(sealed.len());
                    sealed[at] ^= 1;
                }
                1 => drop(sealed.drain(..records[0].len())),
                2 => sealed = [&records[0], &records[0]].map(|record| record.as_slice()).concat(),
                _ => sealed = noise,
            }
            let whole = [[1; 40], [2; 40], [3; 40]].concat();
            match opened(&mut opener, &sealed, &[1000]) {
                // A longer length field waits for bytes that never arrive.
                Ok(plain) => prop_assert!(plain.len() < whole.len() && whole.starts_with(&plain)),
                Err(RecordError::Length(_) | RecordError::Forged) => {}
            }
        }
    }
}
