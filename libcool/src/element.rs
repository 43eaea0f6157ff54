//! What collectives can carry, and how reductions combine it.

use cool_proto::local::{Dtype, ReduceOp};
use half::{bf16, f16};
use num_complex::Complex;
use std::fmt;

/// A type of numbers that collectives carry: `i8` to `i64`, `u8` to `u64`, `f32`, `f64`; [`f16`](struct@f16) and [`bf16`] of
/// the crate `half`; [`Complex`] of `f32` and `f64`; and [`Located`] values.
///
/// Sealed: the agents compute on these types and know no others. Data of other plain types goes as its bytes,
/// and is combined by functions ([`Comm::allreduce_with`](crate::Comm::allreduce_with)).
pub trait Element: private::Number {}

impl<T: private::Number> Element for T {}

/// How a reduction combines elements.
///
/// Elements are combined in the same order on every run, so a sum of floating-point numbers is the same
/// bits each time. Integers wrap around on overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Of integers: 1 if none is 0, else 0.
    LogicalAnd,
    /// Of integers: 0 if all are 0, else 1.
    LogicalOr,
    /// Of integers: 1 if an odd number of them is not 0, else 0.
    LogicalXor,
    /// Of integers: the bits that all have.
    BitAnd,
    /// Of integers: the bits that any has.
    BitOr,
    /// Of integers: the bits that an odd number of them has.
    BitXor,
    /// Of [`Located`] values: the smallest, with its index.
    MinLoc,
    /// Of [`Located`] values: the largest, with its index.
    MaxLoc,
    /// Of floating-point and complex numbers: the sum over the number of ranks. Not of a scan.
    Average,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 13] = [
        Op::Sum,
        Op::Prod,
        Op::Min,
        Op::Max,
        Op::LogicalAnd,
        Op::LogicalOr,
        Op::LogicalXor,
        Op::BitAnd,
        Op::BitOr,
        Op::BitXor,
        Op::MinLoc,
        Op::MaxLoc,
        Op::Average,
    ];

    pub(crate) fn code(self) -> ReduceOp {
        match self {
            Op::Sum => ReduceOp::Sum,
            Op::Prod => ReduceOp::Prod,
            Op::Min => ReduceOp::Min,
            Op::Max => ReduceOp::Max,
            Op::LogicalAnd => ReduceOp::LogicalAnd,
            Op::LogicalOr => ReduceOp::LogicalOr,
            Op::LogicalXor => ReduceOp::LogicalXor,
            Op::BitAnd => ReduceOp::BitAnd,
            Op::BitOr => ReduceOp::BitOr,
            Op::BitXor => ReduceOp::BitXor,
            Op::MinLoc => ReduceOp::MinLoc,
            Op::MaxLoc => ReduceOp::MaxLoc,
            Op::Average => ReduceOp::Average,
        }
    }
}

/// As `min_loc`.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code().as_str_name().to_lowercase())
    }
}

/// A value and where it is, for [`Op::MinLoc`] and [`Op::MaxLoc`]. Of equal values that with the smallest index
/// counts; a NaN counts before any number. The index is as wide as the value: a `u32` or a `u64`.
///
/// ```
/// # fn main() -> Result<(), cool::Error> {
/// # cool::launch(|comm| -> Result<(), cool::Error> {
/// use cool::{Located, Op};
/// let mine = Located::new((comm.rank() as f64 - 1.5).abs(), comm.rank() as u64);
/// let mut best = [Located::default()];
/// comm.allreduce(&[mine], &mut best, Op::MinLoc)?;
/// assert_eq!((best[0].value, best[0].index), (0.5, 1));
/// # Ok(())
/// # })?.into_iter().collect()
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Located<V: private::Locatable> {
    /// What is compared.
    pub value: V,
    /// Where it is: a rank, a place in an array, whatever the program means by it.
    pub index: V::Index,
}

impl<V: private::Locatable> Located<V> {
    /// A value and where it is.
    pub fn new(value: V, index: V::Index) -> Located<V> {
        Located { value, index }
    }
}

/// A type of elements, where it is known only when the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Type {
    /// `i8`.
    I8,
    /// `i16`.
    I16,
    /// `i32`.
    I32,
    /// `i64`.
    I64,
    /// `u8`.
    U8,
    /// `u16`.
    U16,
    /// `u32`.
    U32,
    /// `u64`.
    U64,
    /// [`f16`](struct@f16), IEEE 754 half precision.
    F16,
    /// [`bf16`], the upper half of an `f32`.
    Bf16,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// [`Complex<f32>`].
    C32,
    /// [`Complex<f64>`].
    C64,
    /// [`Located<i32>`].
    I32Loc,
    /// [`Located<i64>`].
    I64Loc,
    /// [`Located<f32>`].
    F32Loc,
    /// [`Located<f64>`].
    F64Loc,
}

impl Type {
    /// All of them.
    pub const ALL: [Type; 18] = [
        Type::I8,
        Type::I16,
        Type::I32,
        Type::I64,
        Type::U8,
        Type::U16,
        Type::U32,
        Type::U64,
        Type::F16,
        Type::Bf16,
        Type::F32,
        Type::F64,
        Type::C32,
        Type::C64,
        Type::I32Loc,
        Type::I64Loc,
        Type::F32Loc,
        Type::F64Loc,
    ];

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Type::I8 | Type::U8 => 1,
            Type::I16 | Type::U16 | Type::F16 | Type::Bf16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
            Type::I64 | Type::U64 | Type::F64 | Type::C32 | Type::I32Loc | Type::F32Loc => 8,
            Type::C64 | Type::I64Loc | Type::F64Loc => 16,
        }
    }

    pub(crate) fn code(self) -> Dtype {
        match self {
            Type::I8 => Dtype::I8,
            Type::I16 => Dtype::I16,
            Type::I32 => Dtype::I32,
            Type::I64 => Dtype::I64,
            Type::U8 => Dtype::U8,
            Type::U16 => Dtype::U16,
            Type::U32 => Dtype::U32,
            Type::U64 => Dtype::U64,
            Type::F16 => Dtype::F16,
            Type::Bf16 => Dtype::Bf16,
            Type::F32 => Dtype::F32,
            Type::F64 => Dtype::F64,
            Type::C32 => Dtype::C32,
            Type::C64 => Dtype::C64,
            Type::I32Loc => Dtype::I32Loc,
            Type::I64Loc => Dtype::I64Loc,
            Type::F32Loc => Dtype::F32Loc,
            Type::F64Loc => Dtype::F64Loc,
        }
    }

    /// Divides elements, for [`Op::Average`]; leaves types alone that have no average.
    pub(crate) fn divide(self, elements: &mut [u8], by: usize) {
        match self {
            Type::F16 => each(elements, |bytes| {
                f16::from_f32(f16::from_ne_bytes(bytes).to_f32() / by as f32).to_ne_bytes()
            }),
            Type::Bf16 => each(elements, |bytes| {
                bf16::from_f32(bf16::from_ne_bytes(bytes).to_f32() / by as f32).to_ne_bytes()
            }),
            Type::F32 | Type::C32 => each(elements, |b| (f32::from_ne_bytes(b) / by as f32).to_ne_bytes()),
            Type::F64 | Type::C64 => each(elements, |b| (f64::from_ne_bytes(b) / by as f64).to_ne_bytes()),
            _ => {}
        }
    }
}

/// As `f32_loc`.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code().as_str_name().to_lowercase())
    }
}

fn each<const N: usize>(elements: &mut [u8], f: impl Fn([u8; N]) -> [u8; N]) {
    elements.as_chunks_mut().0.iter_mut().for_each(|element| *element = f(*element));
}

/// Elements whose type is known only when the program runs.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(crate) dtype: Type,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The elements of that type that `bytes` hold; `None` if the last is not whole.
    pub fn new(dtype: Type, bytes: &'a [u8]) -> Option<Array<'a>> {
        bytes.len().is_multiple_of(dtype.bytes()).then_some(Array { dtype, bytes })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }
}

impl<'a, T: Element> From<&'a [T]> for Array<'a> {
    fn from(elements: &'a [T]) -> Array<'a> {
        Array { dtype: T::TYPE, bytes: bytemuck::cast_slice(elements) }
    }
}

/// Elements to be written whose type is known only when the program runs.
#[derive(Debug)]
pub struct ArrayMut<'a> {
    pub(crate) dtype: Type,
    pub(crate) bytes: &'a mut [u8],
}

impl<'a> ArrayMut<'a> {
    /// The elements of that type that `bytes` hold; `None` if the last is not whole.
    pub fn new(dtype: Type, bytes: &'a mut [u8]) -> Option<ArrayMut<'a>> {
        bytes.len().is_multiple_of(dtype.bytes()).then_some(ArrayMut { dtype, bytes })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }
}

impl<'a, T: Element> From<&'a mut [T]> for ArrayMut<'a> {
    fn from(elements: &'a mut [T]) -> ArrayMut<'a> {
        ArrayMut { dtype: T::TYPE, bytes: bytemuck::cast_slice_mut(elements) }
    }
}

pub(crate) mod private {
    #![allow(
        unsafe_code,
        reason = "bytemuck cannot see that a generic pair has no padding; said at each block"
    )]

    use super::{Complex, Located, Type, bf16, f16};

    /// The types behind [`super::Element`].
    pub trait Number: bytemuck::Pod + Send + Sync {
        #[doc(hidden)]
        const TYPE: Type;
    }

    /// The types of values that [`Located`] takes.
    pub trait Locatable: bytemuck::Pod + Send + Sync {
        /// An unsigned integer as wide.
        type Index: bytemuck::Pod + Send + Sync + Default + PartialEq + std::fmt::Debug;
    }

    macro_rules! numbers {
        ($($number:ty => $dtype:ident),*) => {
            $(impl Number for $number { const TYPE: Type = Type::$dtype; })*
        };
    }

    numbers!(
        i8 => I8, i16 => I16, i32 => I32, i64 => I64,
        u8 => U8, u16 => U16, u32 => U32, u64 => U64,
        f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64,
        Complex<f32> => C32, Complex<f64> => C64,
        Located<i32> => I32Loc, Located<i64> => I64Loc, Located<f32> => F32Loc, Located<f64> => F64Loc
    );

    macro_rules! located {
        ($($value:ty => $index:ty),*) => {$(
            impl Locatable for $value { type Index = $index; }
            // SAFETY: two parts that are Pod themselves and equally wide and aligned, in C's order: no padding.
            unsafe impl bytemuck::Pod for Located<$value> {}
            // SAFETY: zeros are valid for both parts.
            unsafe impl bytemuck::Zeroable for Located<$value> {}
        )*};
    }

    located!(i32 => u32, i64 => u64, f32 => u32, f64 => u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_as_long_as_agents_take_them_to_be() {
        for dtype in Type::ALL {
            assert_eq!(dtype.code().bytes(), Some(dtype.bytes() as u32), "{dtype}");
        }
        assert_eq!((Type::Bf16.to_string(), Type::F32Loc.to_string()), ("bf16".into(), "f32_loc".into()));
    }

    #[test]
    fn arrays_of_bytes_hold_whole_elements() {
        assert_eq!(Array::new(Type::C64, &[0; 32]).map(|a| a.len()), Some(2));
        assert!(Array::new(Type::C64, &[0; 31]).is_none());
        assert!(ArrayMut::new(Type::I16, &mut [0; 3]).is_none());
    }
}
