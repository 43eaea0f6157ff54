//! Element types and the reduce operations that combine them.

use crate::names::named;

/// An element type (MPI's datatype). It prints as its name, for example `f32_loc`, and parses from
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementType {
    /// A signed integer of 8 bits.
    I8,
    /// A signed integer of 16 bits.
    I16,
    /// A signed integer of 32 bits.
    I32,
    /// A signed integer of 64 bits.
    I64,
    /// An unsigned integer of 8 bits.
    U8,
    /// An unsigned integer of 16 bits.
    U16,
    /// An unsigned integer of 32 bits.
    U32,
    /// An unsigned integer of 64 bits.
    U64,
    /// A floating-point number of 16 bits, IEEE 754 half precision.
    F16,
    /// A floating-point number of 16 bits, the upper half of an `f32` (bfloat16).
    Bf16,
    /// A floating-point number of 32 bits.
    F32,
    /// A floating-point number of 64 bits.
    F64,
    /// A complex number: two `f32`, the real part first.
    C32,
    /// A complex number: two `f64`, the real part first.
    C64,
    /// A value with an index: an `i32` and a `u32`.
    I32Loc,
    /// A value with an index: an `i64` and a `u64`.
    I64Loc,
    /// A value with an index: an `f32` and a `u32`.
    F32Loc,
    /// A value with an index: an `f64` and a `u64`.
    F64Loc,
}

named!(ElementType, "type of elements", [
    I8 => "i8",
    I16 => "i16",
    I32 => "i32",
    I64 => "i64",
    U8 => "u8",
    U16 => "u16",
    U32 => "u32",
    U64 => "u64",
    F16 => "f16",
    Bf16 => "bf16",
    F32 => "f32",
    F64 => "f64",
    C32 => "c32",
    C64 => "c64",
    I32Loc => "i32_loc",
    I64Loc => "i64_loc",
    F32Loc => "f32_loc",
    F64Loc => "f64_loc",
]);

/// A reduce operation (MPI's `MPI_Op`). It prints as its name, for example `min_loc`, and parses
/// from it.
///
/// Elements are combined in the same order on every run, so a sum of floating-point numbers always
/// has the same bits. Integers wrap on overflow. If there is nothing to combine, because the group
/// has one rank or an exclusive scan reaches rank 1, the element is returned unchanged, also by a
/// logical operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// For integers: 1 if no element is 0, otherwise 0.
    LogicalAnd,
    /// For integers: 0 if all elements are 0, otherwise 1.
    LogicalOr,
    /// For integers: 1 if an odd number of elements is not 0, otherwise 0.
    LogicalXor,
    /// For integers: the bits that are set in all elements.
    BitAnd,
    /// For integers: the bits that are set in any element.
    BitOr,
    /// For integers: the bits that are set in an odd number of elements.
    BitXor,
    /// For values with an index: the smallest value; among equal values the one with the smallest
    /// index. A NaN sorts before any number.
    MinLoc,
    /// For values with an index: the largest value; among equal values the one with the smallest
    /// index. A NaN sorts before any number.
    MaxLoc,
    /// For floating-point and complex numbers: the sum divided by the number of ranks. Agents only
    /// add; the receiving ranks divide. A scan has no average.
    Average,
}

named!(ReduceOp, "reduction", [
    Sum => "sum",
    Prod => "prod",
    Min => "min",
    Max => "max",
    LogicalAnd => "logical_and",
    LogicalOr => "logical_or",
    LogicalXor => "logical_xor",
    BitAnd => "bit_and",
    BitOr => "bit_or",
    BitXor => "bit_xor",
    MinLoc => "min_loc",
    MaxLoc => "max_loc",
    Average => "average",
]);

impl ElementType {
    /// Returns the bytes of an element.
    pub const fn bytes(self) -> usize {
        use ElementType as T;
        match self {
            T::I8 | T::U8 => 1,
            T::I16 | T::U16 | T::F16 | T::Bf16 => 2,
            T::I32 | T::U32 | T::F32 => 4,
            T::I64 | T::U64 | T::F64 | T::C32 | T::I32Loc | T::F32Loc => 8,
            T::C64 | T::I64Loc | T::F64Loc => 16,
        }
    }

    /// Returns whether the reduce operation combines elements of this type.
    pub fn combines_by(self, op: ReduceOp) -> bool {
        use ElementType as T;
        use ReduceOp as R;
        match self {
            T::I8 | T::I16 | T::I32 | T::I64 | T::U8 | T::U16 | T::U32 | T::U64 => {
                !matches!(op, R::MinLoc | R::MaxLoc | R::Average)
            }
            T::F16 | T::Bf16 | T::F32 | T::F64 => {
                matches!(op, R::Sum | R::Prod | R::Min | R::Max | R::Average)
            }
            // Complex numbers are not ordered.
            T::C32 | T::C64 => matches!(op, R::Sum | R::Prod | R::Average),
            T::I32Loc | T::I64Loc | T::F32Loc | T::F64Loc => matches!(op, R::MinLoc | R::MaxLoc),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_the_reductions_that_make_sense_for_it() {
        use ElementType as T;
        let all = |element: T| ReduceOp::ALL.into_iter().filter(|op| element.combines_by(*op)).count();
        assert_eq!([T::U8, T::I64].map(all), [10, 10]);
        assert_eq!([T::F16, T::Bf16, T::F32, T::F64].map(all), [5; 4]);
        assert_eq!([T::C32, T::C64, T::F64Loc, T::I32Loc].map(all), [3, 3, 2, 2]);
    }

    #[test]
    fn names_of_types_and_reductions_are_unique() {
        for element in ElementType::ALL {
            assert_eq!(element.to_string().parse(), Ok(element));
        }
        for reduce in ReduceOp::ALL {
            assert_eq!(reduce.to_string().parse(), Ok(reduce));
        }
    }
}
