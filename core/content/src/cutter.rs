//! Blocks: content-defined chunking.

use crate::{BLOCK_BYTES, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Digest};
use fastcdc::v2020;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read};

/// A part of a file's data, 1 to [`BLOCK_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Hash of its bytes.
    pub digest: Digest,
    /// Length in bytes.
    pub bytes: u32,
}

/// Divides the data of a reader into blocks at positions that the content determines (FastCDC, Xia
/// et al., IEEE TPDS 2020). If bytes are changed, inserted or removed, the blocks before that place
/// and most blocks after it stay the same, because cuts depend only on nearby bytes.
pub struct Cutter<R: Read>(v2020::StreamCDC<R>);

impl<R: Read> Cutter<R> {
    /// Returns an iterator over the blocks of all data of the reader.
    pub fn new(reader: R) -> Cutter<R> {
        Cutter(v2020::StreamCDC::new(reader, BLOCK_BYTES_MIN, BLOCK_BYTES, BLOCK_BYTES_MAX))
    }
}

impl<R: Read> fmt::Debug for Cutter<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cutter").finish_non_exhaustive()
    }
}

impl<R: Read> Iterator for Cutter<R> {
    /// A block with its bytes, or the error of the reader.
    type Item = io::Result<(Block, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let data = match self.0.next()? {
            Ok(data) => data.data,
            Err(v2020::Error::IoError(error)) => return Some(Err(error)),
            Err(other) => return Some(Err(io::Error::other(other))),
        };
        // The length is at most `BLOCK_BYTES_MAX`.
        Some(Ok((Block { digest: Digest::of(&data), bytes: data.len() as u32 }, data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Returns bytes without structure, the same on every run.
    fn noise(seed: u64, bytes: usize) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        let mut noise = vec![0; bytes];
        hasher.finalize_xof().fill(&mut noise);
        noise
    }

    fn blocks(bytes: &[u8]) -> Vec<Block> {
        Cutter::new(bytes).map(|block| block.unwrap().0).collect()
    }

    #[test]
    fn a_change_of_1_percent_makes_at_most_3_percent_new() {
        let before = noise(1, 8 << 20);
        let known: BTreeSet<Digest> = blocks(&before).iter().map(|block| block.digest).collect();
        let mut after = before.clone();
        after.splice(3_000_000..3_000_000 + (8 << 20) / 100, noise(2, 90_000));
        let new = blocks(&after).into_iter().filter(|block| !known.contains(&block.digest));
        let new: u64 = new.map(|block| u64::from(block.bytes)).sum();
        assert!(new > 0 && new < (8 << 20) * 3 / 100, "{new}");
    }

    #[test]
    fn an_error_of_the_reader_is_reported() {
        struct Fails;
        impl Read for Fails {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("no more"))
            }
        }
        let error = Cutter::new(Fails).next().unwrap().unwrap_err();
        assert!(error.to_string().contains("no more"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn blocks_are_all_of_the_bytes_in_order(seed: u64, bytes in 0usize..2_000_000) {
            let data = noise(seed, bytes);
            let mut again = Vec::new();
            for block in Cutter::new(&data[..]) {
                let (block, bytes) = block.unwrap();
                prop_assert_eq!(Digest::of(&bytes), block.digest);
                prop_assert_eq!(bytes.len(), block.bytes as usize);
                prop_assert!(!bytes.is_empty() && bytes.len() <= BLOCK_BYTES_MAX);
                again.extend(bytes);
            }
            prop_assert!(again == data);
        }
    }
}
