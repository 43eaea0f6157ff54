//! What two agents say over a connection whose bytes are encrypted: records, as TLS has them (RFC 8446, section 5.2).
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..4 | length of the payload, 1 to 32,768 |
//! | 4.. | the payload, encrypted |
//! | then 16 | the tag for it and its length |
//!
//! Each side has a key of its own for what it sends, and the nonce is the number of the record, so none can be changed, left out,
//! repeated or put elsewhere. Frames have no meaning here: a record may have parts of several.

use crate::tagged::Cipher;
use cool_types::Key;
use core::ops::Range;

/// Bytes of the longest payload.
const PAYLOAD_MAX: usize = 32 * 1024;

const LENGTH: usize = 4;
const TAG: usize = 16;

/// Room for what has come and is not taken yet: more than the longest record.
const BUFFER: usize = 4 * (LENGTH + PAYLOAD_MAX + TAG);

/// What came was not sent by the other side, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// No record is so long.
    #[error("a record of {0} bytes")]
    Length(u32),
    /// It was changed on the way, or is another's.
    #[error("a record with a wrong tag")]
    Forged,
}

fn nonce(record: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&record.to_be_bytes());
    nonce
}

/// Encrypts what one side sends.
#[derive(Debug)]
pub struct Sealer<C> {
    cipher: C,
    /// Records so far.
    records: u64,
}

impl<C: Cipher> Sealer<C> {
    /// With a key that nobody else sends with.
    pub fn new(key: &Key) -> Sealer<C> {
        Sealer { cipher: C::new(key), records: 0 }
    }

    /// The records with these bytes, to be sent in this order after those of before.
    pub fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::with_capacity(bytes.len() + bytes.len().div_ceil(PAYLOAD_MAX) * (LENGTH + TAG));
        for part in bytes.chunks(PAYLOAD_MAX) {
            // A part is shorter than PAYLOAD_MAX.
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

/// Decrypts what one side gets.
#[derive(Debug)]
pub struct Opener<C> {
    cipher: C,
    records: u64,
    buffer: Vec<u8>,
    /// Where in the buffer decrypted bytes are that were not taken.
    plain: Range<usize>,
    /// Where what has come and is not decrypted is.
    sealed: Range<usize>,
}

impl<C: Cipher> Opener<C> {
    /// With the key that the other side sends with.
    pub fn new(key: &Key) -> Opener<C> {
        Opener { cipher: C::new(key), records: 0, buffer: vec![0; BUFFER], plain: 0..0, sealed: 0..0 }
    }

    /// Where to read to; never empty when all decrypted bytes were taken.
    pub fn room(&mut self) -> &mut [u8] {
        if self.plain.is_empty() {
            self.buffer.copy_within(self.sealed.clone(), 0);
            (self.plain, self.sealed) = (0..0, 0..self.sealed.len());
        }
        &mut self.buffer[self.sealed.end..]
    }

    /// Bytes were read there.
    pub fn received(&mut self, bytes: usize) {
        self.sealed.end += bytes;
    }

    /// The next decrypted bytes; none if more have to come first.
    ///
    /// # Errors
    /// If what came must not be believed; then nothing that comes later may be either.
    pub fn plain(&mut self) -> Result<&[u8], RecordError> {
        if self.plain.is_empty() {
            self.open()?;
        }
        Ok(&self.buffer[self.plain.clone()])
    }

    /// Of these the first are taken.
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

    /// Adds its key and the nonce to each byte, and sums up: enough to see what is sealed with what.
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

    /// Reads as a connection does, in parts of these lengths at most, and takes in parts, too.
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
                // A longer length waits for what never comes.
                Ok(plain) => prop_assert!(plain.len() < whole.len() && whole.starts_with(&plain)),
                Err(RecordError::Length(_) | RecordError::Forged) => {}
            }
        }
    }
}
