//! Element types that collectives transfer and combine.

use crate::{PairType, Type};
use half::{bf16, f16};
use num_complex::Complex;
use std::fmt;

/// A number type that collectives transfer: `i8` to `i64`, `u8` to `u64`, `f32`, `f64`;
/// [`f16`](struct@f16) and [`bf16`] of the crate `half`; [`Complex`] of `f32` and `f64`; and
/// [`Located`] values.
///
/// The trait is sealed because the agents compute on these types and support no others. A program
/// can send data of other plain types as bytes, and combine it by functions
/// ([`Comm::allreduce_with`](crate::Comm::allreduce_with)).
pub trait Element: private::SealedElement {}

impl<T: private::SealedElement> Element for T {}

/// A value and its location, for [`Op::MinLoc`](crate::Op::MinLoc) and
/// [`Op::MaxLoc`](crate::Op::MaxLoc).
///
/// Among equal values, the one with the smallest index is selected; a NaN is selected before any
/// number. The index has the same width as the value: a `u32` or a `u64`.
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
    /// Value that is compared.
    pub value: V,
    /// Location of the value, for example a rank or an array index.
    pub index: V::Index,
}

impl<V: private::Locatable> Located<V> {
    /// Returns a value with its location.
    pub fn new(value: V, index: V::Index) -> Located<V> {
        Located { value, index }
    }
}

/// Divides elements in place, for [`Op::Average`](crate::Op::Average). Types without an average are
/// left unchanged.
pub(crate) fn divide(dtype: Type, elements: &mut [u8], by: usize) {
    match dtype {
        Type::F16 => {
            each(elements, |b| f16::from_f32(f16::from_ne_bytes(b).to_f32() / by as f32).to_ne_bytes());
        }
        Type::Bf16 => {
            each(elements, |b| bf16::from_f32(bf16::from_ne_bytes(b).to_f32() / by as f32).to_ne_bytes());
        }
        Type::F32 | Type::C32 => each(elements, |b| (f32::from_ne_bytes(b) / by as f32).to_ne_bytes()),
        Type::F64 | Type::C64 => each(elements, |b| (f64::from_ne_bytes(b) / by as f64).to_ne_bytes()),
        _ => {}
    }
}

fn each<const N: usize>(elements: &mut [u8], f: impl Fn([u8; N]) -> [u8; N]) {
    elements.as_chunks_mut().0.iter_mut().for_each(|element| *element = f(*element));
}

/// The elements of an array of a type that is known only at run time: numbers, located values, or
/// MPI's pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Elements of a type that agents support.
    Type(Type),
    /// Pairs, which [`Op::MinLoc`](crate::Op::MinLoc) and [`Op::MaxLoc`](crate::Op::MaxLoc)
    /// combine.
    Pairs(PairType),
}

impl Elements {
    /// Returns the size of an element, in bytes.
    pub const fn bytes(self) -> usize {
        self.carried_as().bytes()
    }

    /// Returns the type as which agents transfer and combine the elements.
    pub const fn carried_as(self) -> Type {
        match self {
            Elements::Type(dtype) => dtype,
            Elements::Pairs(pairs) => pairs.carried_as(),
        }
    }
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elements::Type(dtype) => dtype.fmt(f),
            Elements::Pairs(pairs) => pairs.fmt(f),
        }
    }
}

impl From<Type> for Elements {
    fn from(dtype: Type) -> Elements {
        Elements::Type(dtype)
    }
}

impl From<PairType> for Elements {
    fn from(pairs: PairType) -> Elements {
        Elements::Pairs(pairs)
    }
}

/// An array of elements of a type that is known only at run time.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(crate) elements: Elements,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Returns the array in `bytes`, or `None` if the last element is incomplete.
    pub fn new(elements: impl Into<Elements>, bytes: &'a [u8]) -> Option<Array<'a>> {
        let elements = elements.into();
        bytes.len().is_multiple_of(elements.bytes()).then_some(Array { elements, bytes })
    }
}

impl<'a, T: Element> From<&'a [T]> for Array<'a> {
    fn from(elements: &'a [T]) -> Array<'a> {
        Array { elements: T::TYPE.into(), bytes: bytemuck::cast_slice(elements) }
    }
}

/// A mutable array of elements of a type that is known only at run time.
#[derive(Debug)]
pub struct ArrayMut<'a> {
    pub(crate) elements: Elements,
    pub(crate) bytes: &'a mut [u8],
}

impl<'a> ArrayMut<'a> {
    /// Returns the array in `bytes`, or `None` if the last element is incomplete.
    pub fn new(elements: impl Into<Elements>, bytes: &'a mut [u8]) -> Option<ArrayMut<'a>> {
        let elements = elements.into();
        bytes.len().is_multiple_of(elements.bytes()).then_some(ArrayMut { elements, bytes })
    }
}

impl<'a, T: Element> From<&'a mut [T]> for ArrayMut<'a> {
    fn from(elements: &'a mut [T]) -> ArrayMut<'a> {
        ArrayMut { elements: T::TYPE.into(), bytes: bytemuck::cast_slice_mut(elements) }
    }
}

pub(crate) mod private {
    #![allow(
        unsafe_code,
        reason = "bytemuck cannot verify that a generic pair has no padding; each block explains why it is sound"
    )]

    use super::{Complex, Located, Type, bf16, f16};

    /// The types that implement [`super::Element`].
    pub trait SealedElement: bytemuck::Pod + Send + Sync {
        #[doc(hidden)]
        const TYPE: Type;
    }

    /// The value types of [`Located`].
    pub trait Locatable: bytemuck::Pod + Send + Sync {
        /// An unsigned integer of the same width.
        type Index: bytemuck::Pod + Send + Sync + Default + PartialEq + std::fmt::Debug;
    }

    macro_rules! numbers {
        ($($number:ty => $dtype:ident),*) => {
            $(impl SealedElement for $number { const TYPE: Type = Type::$dtype; })*
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
            // SAFETY: both fields are Pod and have the same size and alignment, in C layout, so
            // there is no padding.
            unsafe impl bytemuck::Pod for Located<$value> {}
            // SAFETY: zero is valid for both fields.
            unsafe impl bytemuck::Zeroable for Located<$value> {}
        )*};
    }

    located!(i32 => u32, i64 => u64, f32 => u32, f64 => u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_bytes_hold_whole_elements() {
        assert!(Array::new(Type::C64, &[0; 32]).is_some());
        assert!(Array::new(Type::C64, &[0; 31]).is_none());
        assert!(ArrayMut::new(Type::I16, &mut [0; 3]).is_none());
    }
}
