//! Numbers of rows, and the narrowest encoding of a row.

use crate::error::Malformed;
use cool::Element;

/// Encoding of a row's numbers. Integers are packed, lowest bit first. Each has as many bits as the
/// widest number of the row needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberWidth {
    /// Integers of at least 0, with up to 63 bits.
    Unsigned(u8),
    /// Integers in two's complement, with 1 to 64 bits.
    Signed(u8),
    /// `f32`.
    F32,
    /// `f64`.
    F64,
}

impl NumberWidth {
    const SIGNED: u8 = 0x80;
    const F32_BYTE: u8 = 0x7e;
    const F64_BYTE: u8 = 0x7f;

    /// Returns the byte that precedes a row's numbers.
    pub(super) fn to_byte(self) -> u8 {
        match self {
            NumberWidth::Unsigned(bits) => bits,
            NumberWidth::Signed(bits) => NumberWidth::SIGNED | bits,
            NumberWidth::F32 => NumberWidth::F32_BYTE,
            NumberWidth::F64 => NumberWidth::F64_BYTE,
        }
    }

    pub(super) fn read(byte: u8) -> Result<NumberWidth, Malformed> {
        match byte {
            0..64 => Ok(NumberWidth::Unsigned(byte)),
            0x81..=0xc0 => Ok(NumberWidth::Signed(byte & !NumberWidth::SIGNED)),
            NumberWidth::F32_BYTE => Ok(NumberWidth::F32),
            NumberWidth::F64_BYTE => Ok(NumberWidth::F64),
            _ => Err(Malformed::Form),
        }
    }

    fn bits(self) -> u32 {
        match self {
            NumberWidth::Unsigned(bits) | NumberWidth::Signed(bits) => bits.into(),
            NumberWidth::F32 => 32,
            NumberWidth::F64 => 64,
        }
    }

    /// Returns the size in bytes of an encoded row of `numbers` numbers.
    pub(super) fn bytes(self, numbers: usize) -> usize {
        (numbers * self.bits() as usize).div_ceil(8)
    }

    /// Returns the narrowest encoding for all integers from `least` to `most`. `least` must not be
    /// above 0, and `most` must not be below 0.
    fn holding(least: i64, most: i64) -> NumberWidth {
        let bits = |n: i64| (64 - n.leading_zeros()) as u8;
        if least < 0 {
            NumberWidth::Signed(bits(most).max(bits(!least)) + 1)
        } else {
            NumberWidth::Unsigned(bits(most))
        }
    }
}

/// Appends the lowest `bits` bits of each number.
fn pack(numbers: impl Iterator<Item = i64>, bits: u32, to: &mut Vec<u8>) {
    let mask = (1u128 << bits) - 1;
    let (mut word, mut held) = (0u128, 0);
    for number in numbers {
        word |= (u128::from(number.cast_unsigned()) & mask) << held;
        held += bits;
        if held >= 64 {
            to.extend((word as u64).to_le_bytes());
            word >>= 64;
            held -= 64;
        }
    }
    to.extend(&word.to_le_bytes()[..held.div_ceil(8) as usize]);
}

/// Returns an endless iterator over the packed numbers, followed by zeros.
fn unpack(bytes: &[u8], width: NumberWidth) -> impl Iterator<Item = i64> {
    let bits = width.bits();
    // Number of unused bits above the sign bit of signed numbers; 0 for unsigned ones.
    let above = if matches!(width, NumberWidth::Signed(_)) { 64 - bits } else { 0 };
    let mask = (1u128 << bits) - 1;
    let mut words = bytes.chunks(8);
    let (mut word, mut held) = (0u128, 0);
    std::iter::repeat_with(move || {
        if held < bits {
            let mut next = [0; 8];
            let chunk = words.next().unwrap_or_default();
            next[..chunk.len()].copy_from_slice(chunk);
            word |= u128::from(u64::from_le_bytes(next)) << held;
            held += 64;
        }
        let number = (word & mask) as u64;
        word >>= bits;
        held -= bits;
        (number << above).cast_signed() >> above
    })
}

/// Numbers of [`Rows`](crate::Rows): `i32` and `i64`, which wrap on overflow, `f32` and `f64`.
pub trait Number: Element + PartialEq {
    /// Whether sums have the same bits in any order and grouping.
    const ANY_ORDER: bool;

    /// Returns the sum.
    #[must_use]
    fn plus(self, other: Self) -> Self;

    /// Returns the narrowest lossless encoding of a row.
    fn width(row: &[Self]) -> NumberWidth;

    /// Appends an encoded row.
    fn write(row: &[Self], width: NumberWidth, to: &mut Vec<u8>);

    /// Adds an encoded row, which must have as many numbers, to `row`.
    ///
    /// # Errors
    /// If the encoding does not match the type of the numbers.
    fn add_written(row: &mut [Self], width: NumberWidth, bytes: &[u8]) -> Result<(), Malformed>;

    /// Returns the value of an integer, and 0 for other numbers.
    fn to_integer(self) -> i64;

    /// Returns the number with an integer's value. Excess high bits are dropped; types other than
    /// integers return 0.
    fn from_integer(integer: i64) -> Self;
}

macro_rules! integers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            const ANY_ORDER: bool = true;

            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn width(row: &[Self]) -> NumberWidth {
                let (least, most) = row.iter().fold((0, 0), |(least, most), n| (*n.min(&least), *n.max(&most)));
                NumberWidth::holding(i64::from(least), i64::from(most))
            }

            fn write(row: &[Self], width: NumberWidth, to: &mut Vec<u8>) {
                pack(row.iter().map(|n| i64::from(*n)), width.bits(), to);
            }

            fn add_written(row: &mut [Self], width: NumberWidth, bytes: &[u8]) -> Result<(), Malformed> {
                let fits = match width {
                    NumberWidth::Unsigned(bits) => u32::from(bits) < Self::BITS,
                    NumberWidth::Signed(bits) => u32::from(bits) <= Self::BITS,
                    NumberWidth::F32 | NumberWidth::F64 => false,
                };
                if !fits {
                    return Err(Malformed::Form);
                }
                row.iter_mut().zip(unpack(bytes, width)).for_each(|(n, more)| *n = n.wrapping_add(more as $number));
                Ok(())
            }

            fn to_integer(self) -> i64 {
                self.into()
            }

            fn from_integer(integer: i64) -> Self {
                integer as $number
            }
        }
    )*};
}

macro_rules! floats {
    ($($number:ty, $width:path);*) => {$(
        impl Number for $number {
            const ANY_ORDER: bool = false;

            fn plus(self, other: Self) -> Self {
                self + other
            }

            fn width(_row: &[Self]) -> NumberWidth {
                $width
            }

            fn write(row: &[Self], _width: NumberWidth, to: &mut Vec<u8>) {
                to.extend(row.iter().flat_map(|n| n.to_le_bytes()));
            }

            fn add_written(row: &mut [Self], width: NumberWidth, bytes: &[u8]) -> Result<(), Malformed> {
                if width != $width {
                    return Err(Malformed::Form);
                }
                for (n, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
                    *n += <$number>::from_le_bytes(*bytes);
                }
                Ok(())
            }

            fn to_integer(self) -> i64 {
                0
            }

            fn from_integer(_integer: i64) -> Self {
                0.0
            }
        }
    )*};
}

integers!(i32, i64);
floats!(f32, NumberWidth::F32; f64, NumberWidth::F64);
