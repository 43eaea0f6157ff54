//! MPI's pairs of a value and an `int`, for `min_loc` and `max_loc`.
//!
//! Agents transfer and combine them as values with an index of the same width. That index is
//! unsigned while MPI's is signed, so its sign bit is flipped in both directions, which preserves
//! the order.

use crate::Type;
use std::fmt;

/// A type of pairs, in the layout of the C structure `{ VALUE value; int32_t index; }`.
///
/// Among equal values, the one with the smaller signed index is selected. Padding bytes are neither
/// read nor preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PairType {
    /// An `i16` at 0 and the index at 4, in 8 bytes: `MPI_SHORT_INT`.
    I16,
    /// An `i32` at 0 and the index at 4, in 8 bytes: `MPI_2INT`.
    I32,
    /// An `i64` at 0 and the index at 8, in 16 bytes: `MPI_LONG_INT` if a long has 64 bits.
    I64,
    /// An `f32` at 0 and the index at 4, in 8 bytes: `MPI_FLOAT_INT`.
    F32,
    /// An `f64` at 0 and the index at 8, in 16 bytes: `MPI_DOUBLE_INT`.
    F64,
}

impl fmt::Display for PairType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PairType::I16 => "i16_int",
            PairType::I32 => "i32_int",
            PairType::I64 => "i64_int",
            PairType::F32 => "f32_int",
            PairType::F64 => "f64_int",
        })
    }
}

/// Sign bit of a 32-bit index.
const SIGN: u32 = 1 << 31;
/// Sign bit of a 64-bit index.
const WIDE_SIGN: u64 = 1 << 63;

impl PairType {
    /// All types of pairs.
    pub const ALL: [PairType; 5] =
        [PairType::I16, PairType::I32, PairType::I64, PairType::F32, PairType::F64];

    /// Returns the size of a pair, in bytes.
    pub const fn bytes(self) -> usize {
        self.carried_as().bytes()
    }

    /// Returns the type by which agents combine the pairs, which has the same size.
    pub const fn carried_as(self) -> Type {
        match self {
            PairType::I16 | PairType::I32 => Type::I32Loc,
            PairType::I64 => Type::I64Loc,
            PairType::F32 => Type::F32Loc,
            PairType::F64 => Type::F64Loc,
        }
    }

    /// Converts pairs in place to the encoding of the agents.
    pub(crate) fn encode(self, pairs: &mut [u8]) {
        match self {
            PairType::I16 => narrow(pairs, |[a, b, _, _], index| {
                (i32::from(i16::from_ne_bytes([a, b])).to_ne_bytes(), index ^ SIGN)
            }),
            PairType::I32 | PairType::F32 => narrow(pairs, |value, index| (value, index ^ SIGN)),
            PairType::I64 | PairType::F64 => {
                wide(pairs, |index| i64::from(i32::from_ne_bytes(index)).cast_unsigned() ^ WIDE_SIGN);
            }
        }
    }

    /// Converts the encoding of the agents back to pairs in place. Padding bytes become 0.
    pub(crate) fn decode(self, pairs: &mut [u8]) {
        match self {
            PairType::I16 => narrow(pairs, |value, index| {
                // The value was converted from an i16, so it fits.
                let [a, b] = (i32::from_ne_bytes(value) as i16).to_ne_bytes();
                ([a, b, 0, 0], index ^ SIGN)
            }),
            PairType::I32 | PairType::F32 => narrow(pairs, |value, index| (value, index ^ SIGN)),
            PairType::I64 | PairType::F64 => {
                for pair in pairs.as_chunks_mut::<16>().0 {
                    let [_, index] = pair.as_chunks_mut::<8>().0 else { continue };
                    // The index was converted from an i32, so it fits.
                    let narrow = (u64::from_ne_bytes(*index) ^ WIDE_SIGN) as u32;
                    *index = [0; 8];
                    index[..4].copy_from_slice(&narrow.to_ne_bytes());
                }
            }
        }
    }
}

/// Changes pairs with the index at offset 4.
fn narrow(pairs: &mut [u8], change: impl Fn([u8; 4], u32) -> ([u8; 4], u32)) {
    for pair in pairs.as_chunks_mut::<8>().0 {
        let [value, index] = pair.as_chunks_mut::<4>().0 else { continue };
        let changed = change(*value, u32::from_ne_bytes(*index));
        (*value, *index) = (changed.0, changed.1.to_ne_bytes());
    }
}

/// Changes the 4-byte index at offset 8 of pairs to one of 8 bytes.
fn wide(pairs: &mut [u8], change: impl Fn([u8; 4]) -> u64) {
    for pair in pairs.as_chunks_mut::<16>().0 {
        let [_, index] = pair.as_chunks_mut::<8>().0 else { continue };
        let [a, b, c, d, ..] = *index;
        *index = change([a, b, c, d]).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;
    use proptest::prelude::*;

    /// Returns a pair in the layout of its type, with arbitrary padding.
    fn laid_out(kind: PairType, value: i16, index: i32, padding: u8) -> Vec<u8> {
        let mut pair = vec![padding; kind.bytes()];
        let at = kind.bytes() / 2;
        pair[at..at + 4].copy_from_slice(&index.to_ne_bytes());
        match kind {
            PairType::I16 => pair[..2].copy_from_slice(&value.to_ne_bytes()),
            PairType::I32 => pair[..4].copy_from_slice(&i32::from(value).to_ne_bytes()),
            PairType::I64 => pair[..8].copy_from_slice(&i64::from(value).to_ne_bytes()),
            PairType::F32 => pair[..4].copy_from_slice(&f32::from(value).to_ne_bytes()),
            PairType::F64 => pair[..8].copy_from_slice(&f64::from(value).to_ne_bytes()),
        }
        pair
    }

    /// Indices near the limits and around 0.
    fn index() -> impl Strategy<Value = i32> {
        prop_oneof![any::<i32>(), -2..2, Just(i32::MIN), Just(i32::MAX)]
    }

    proptest! {
        #[test]
        fn pairs_combine_as_in_mpi_with_signed_indices(
            kind in proptest::sample::select(&PairType::ALL[..]),
            pairs in proptest::collection::vec((-3i16..3, index(), any::<u8>()), 1..6),
            largest in any::<bool>(),
        ) {
            let encoded = |(value, index, padding): &(i16, i32, u8)| {
                let mut pair = laid_out(kind, *value, *index, *padding);
                kind.encode(&mut pair);
                pair
            };
            let op = if largest { Op::MaxLoc } else { Op::MinLoc };
            let combined = pairs.iter().map(encoded).reduce(|mut left, right| {
                cool_types::combine(kind.carried_as(), op, &mut left, &right);
                left
            });
            let mut combined = combined.unwrap();
            kind.decode(&mut combined);
            let sign = if largest { -1 } else { 1 };
            let best = pairs.iter().map(|(value, index, _)| (sign * value, *index)).min().unwrap();
            prop_assert_eq!(combined, laid_out(kind, sign * best.0, best.1, 0));
        }
    }
}
