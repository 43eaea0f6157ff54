//! What collectives carry, and how reductions combine it.

use crate::names::named;

/// A type of elements (MPI's datatype). It prints as its name, as `f32_loc`, from which it parses.
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
    /// A value and where it is: an `i32` and a `u32`.
    I32Loc,
    /// A value and where it is: an `i64` and a `u64`.
    I64Loc,
    /// A value and where it is: an `f32` and a `u32`.
    F32Loc,
    /// A value and where it is: an `f64` and a `u64`.
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

/// How a reduction combines elements (MPI's operation of a reduction).
///
/// Elements are combined in the same order on every run, so a sum of floating-point numbers is the same
/// bits each time. Integers wrap around on overflow. It prints as its name, as `min_loc`, from which it parses.
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
    /// Of values with an index: the smallest; of equal ones that with the smallest index. A NaN counts before any number.
    MinLoc,
    /// Of values with an index: the largest; of equal ones that with the smallest index. A NaN counts before any number.
    MaxLoc,
    /// Of floating-point and complex numbers: the sum over the number of ranks. Agents add, the ranks that receive
    /// divide. Not of a scan.
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
    /// Bytes of an element.
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

    /// Whether a reduction combines such elements.
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
            // Complex numbers have no order.
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
