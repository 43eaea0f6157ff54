//! Numbers of rows, and the narrowest form in which a row of them is sent.

use crate::error::Malformed;
use cool::Element;

/// How the numbers of a row are sent. The discriminant is what stands in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// `u8`.
    U8 = 0,
    /// `i8`.
    I8 = 1,
    /// `u16`.
    U16 = 2,
    /// `i16`.
    I16 = 3,
    /// `i32`.
    I32 = 4,
    /// `i64`.
    I64 = 5,
    /// `f32`.
    F32 = 6,
    /// `f64`.
    F64 = 7,
}

impl Width {
    const ALL: [Width; 8] = {
        use Width::{F32, F64, I8, I16, I32, I64, U8, U16};
        [U8, I8, U16, I16, I32, I64, F32, F64]
    };

    pub(super) fn read(byte: u8) -> Result<Width, Malformed> {
        Width::ALL.get(usize::from(byte)).copied().ok_or(Malformed::Form)
    }

    /// Bytes of a number.
    pub(super) fn bytes(self) -> usize {
        match self {
            Width::U8 | Width::I8 => 1,
            Width::U16 | Width::I16 => 2,
            Width::I32 | Width::F32 => 4,
            Width::I64 | Width::F64 => 8,
        }
    }

    /// The narrowest that holds all integers from `least` to `most`.
    fn holding(least: i64, most: i64) -> Width {
        let within = |low: i64, high: i64| low <= least && most <= high;
        if within(0, i64::from(u8::MAX)) {
            Width::U8
        } else if within(i64::from(i8::MIN), i64::from(i8::MAX)) {
            Width::I8
        } else if within(0, i64::from(u16::MAX)) {
            Width::U16
        } else if within(i64::from(i16::MIN), i64::from(i16::MAX)) {
            Width::I16
        } else if within(i64::from(i32::MIN), i64::from(i32::MAX)) {
            Width::I32
        } else {
            Width::I64
        }
    }
}

/// Numbers of [`Rows`](crate::Rows): `i32`, `i64`, which wrap around on overflow, `f32` and `f64`.
pub trait Number: Element + PartialEq {
    /// Whether sums are the same bits in any order and grouping.
    const ANY_ORDER: bool;

    /// The sum.
    #[must_use]
    fn plus(self, other: Self) -> Self;

    /// The narrowest form that loses nothing of a row.
    fn width(row: &[Self]) -> Width;

    /// Writes a row, little end first.
    fn write(row: &[Self], width: Width, to: &mut Vec<u8>);

    /// Adds a written row, of as many numbers, to one.
    ///
    /// # Errors
    /// If these numbers are not written in that width.
    fn add_written(row: &mut [Self], width: Width, bytes: &[u8]) -> Result<(), Malformed>;

    /// Of integers, the value; of others, 0.
    fn to_integer(self) -> i64;

    /// Of integers, the value, of which the highest bits are lost that do not fit; of others, 0.
    fn from_integer(integer: i64) -> Self;
}

macro_rules! integers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            const ANY_ORDER: bool = true;

            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn width(row: &[Self]) -> Width {
                let (least, most) = row.iter().fold((0, 0), |(least, most), n| (*n.min(&least), *n.max(&most)));
                Width::holding(i64::from(least), i64::from(most))
            }

            fn write(row: &[Self], width: Width, to: &mut Vec<u8>) {
                match width {
                    Width::U8 | Width::I8 => to.extend(row.iter().map(|n| *n as u8)),
                    Width::U16 | Width::I16 => to.extend(row.iter().flat_map(|n| (*n as i16).to_le_bytes())),
                    Width::I32 => to.extend(row.iter().flat_map(|n| (*n as i32).to_le_bytes())),
                    _ => to.extend(row.iter().flat_map(|n| i64::from(*n).to_le_bytes())),
                }
            }

            fn add_written(row: &mut [Self], width: Width, bytes: &[u8]) -> Result<(), Malformed> {
                fn add<const B: usize>(row: &mut [$number], bytes: &[u8], read: fn([u8; B]) -> $number) {
                    for (n, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
                        *n = n.wrapping_add(read(*bytes));
                    }
                }
                if width.bytes() > size_of::<Self>() {
                    return Err(Malformed::Form);
                }
                match width {
                    Width::U8 => add(row, bytes, |[byte]| byte.into()),
                    Width::I8 => add(row, bytes, |b| i8::from_le_bytes(b).into()),
                    Width::U16 => add(row, bytes, |b| u16::from_le_bytes(b).into()),
                    Width::I16 => add(row, bytes, |b| i16::from_le_bytes(b).into()),
                    Width::I32 => add(row, bytes, |b| i32::from_le_bytes(b).into()),
                    // Never narrowed: of i32, no such width comes here.
                    Width::I64 => add(row, bytes, |b| i64::from_le_bytes(b) as $number),
                    Width::F32 | Width::F64 => return Err(Malformed::Form),
                }
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

            fn width(_row: &[Self]) -> Width {
                $width
            }

            fn write(row: &[Self], _width: Width, to: &mut Vec<u8>) {
                to.extend(row.iter().flat_map(|n| n.to_le_bytes()));
            }

            fn add_written(row: &mut [Self], width: Width, bytes: &[u8]) -> Result<(), Malformed> {
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
floats!(f32, Width::F32; f64, Width::F64);
