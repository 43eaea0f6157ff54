//! Combines vectors element by element, for every element type and reduce operation.
//!
//! Elements are in the byte order of the machine, so all nodes of a group must have the same byte
//! order. Integer sums and products wrap. Floats follow IEEE 754; if any operand is NaN the result
//! is NaN, for min and max too.

use crate::{ElementType, ReduceOp};
use half::{bf16, f16};

/// Computes `dst[i] = f(dst[i], src[i])` for elements of `N` bytes.
///
/// The loop has chunks of fixed size and no branches, because the compiler can then vectorize it.
fn each<const N: usize>(dst: &mut [u8], src: &[u8], f: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (d, s) in dst.as_chunks_mut::<N>().0.iter_mut().zip(src.as_chunks::<N>().0) {
        *d = f(*d, *s);
    }
}

macro_rules! elements {
    ($type:ty, $dst:expr, $src:expr, $f:expr) => {
        each($dst, $src, |a, b| {
            let f: fn($type, $type) -> $type = $f;
            f(<$type>::from_ne_bytes(a), <$type>::from_ne_bytes(b)).to_ne_bytes()
        })
    };
}

macro_rules! integers {
    ($type:ty, $op:expr, $dst:expr, $src:expr) => {
        match $op {
            ReduceOp::Sum => elements!($type, $dst, $src, <$type>::wrapping_add),
            ReduceOp::Prod => elements!($type, $dst, $src, <$type>::wrapping_mul),
            ReduceOp::Min => elements!($type, $dst, $src, Ord::min),
            ReduceOp::Max => elements!($type, $dst, $src, Ord::max),
            ReduceOp::LogicalAnd => elements!($type, $dst, $src, |a, b| <$type>::from((a != 0) & (b != 0))),
            ReduceOp::LogicalOr => elements!($type, $dst, $src, |a, b| <$type>::from((a != 0) | (b != 0))),
            ReduceOp::LogicalXor => elements!($type, $dst, $src, |a, b| <$type>::from((a != 0) ^ (b != 0))),
            ReduceOp::BitAnd => elements!($type, $dst, $src, |a, b| a & b),
            ReduceOp::BitOr => elements!($type, $dst, $src, |a, b| a | b),
            ReduceOp::BitXor => elements!($type, $dst, $src, |a, b| a ^ b),
            _ => {}
        }
    };
}

macro_rules! floats {
    ($type:ty, $op:expr, $dst:expr, $src:expr) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Average => elements!($type, $dst, $src, |a, b| a + b),
            ReduceOp::Prod => elements!($type, $dst, $src, |a, b| a * b),
            // If b is NaN, the comparison is false and b is the result.
            ReduceOp::Min => elements!($type, $dst, $src, |a, b| if a.is_nan() | (a < b) { a } else { b }),
            ReduceOp::Max => elements!($type, $dst, $src, |a, b| if a.is_nan() | (a > b) { a } else { b }),
            _ => {}
        }
    };
}

macro_rules! complex {
    ($part:ty, $op:expr, $dst:expr, $src:expr) => {{
        const HALF: usize = size_of::<$part>();
        let mut combined = |f: fn([$part; 2], [$part; 2]) -> [$part; 2]| {
            each::<{ 2 * HALF }>($dst, $src, |a, b| {
                let of = |bytes| halves::<HALF, { 2 * HALF }>(bytes).map(<$part>::from_ne_bytes);
                whole(f(of(a), of(b)).map(<$part>::to_ne_bytes))
            });
        };
        match $op {
            ReduceOp::Sum | ReduceOp::Average => combined(|[a, b], [c, d]| [a + c, b + d]),
            ReduceOp::Prod => combined(|[a, b], [c, d]| [a * c - b * d, a * d + b * c]),
            _ => {}
        }
    }};
}

/// Keeps the better of two values with an unsigned index of the same width, or the smaller index if
/// the values are equal. A NaN is better than any number, as for floats without an index.
macro_rules! located {
    ($value:ty, $index:ty, $op:expr, $dst:expr, $src:expr) => {{
        const HALF: usize = size_of::<$value>();
        let mut combined = |better: fn($value, $value) -> bool| {
            each::<{ 2 * HALF }>($dst, $src, |a, b| {
                let of = |bytes| {
                    let [value, index] = halves::<HALF, { 2 * HALF }>(bytes);
                    (<$value>::from_ne_bytes(value), <$index>::from_ne_bytes(index))
                };
                let ((left, i), (right, j)) = (of(a), of(b));
                let first = better(left, right) || (!better(right, left) && i <= j);
                if first { a } else { b }
            });
        };
        // Only NaN differs from itself.
        #[allow(clippy::eq_op, reason = "the macro serves integers too, which have no NaN")]
        match $op {
            ReduceOp::MinLoc => combined(|a, b| a < b || (a != a && b == b)),
            ReduceOp::MaxLoc => combined(|a, b| a > b || (a != a && b == b)),
            _ => {}
        }
    }};
}

fn halves<const H: usize, const N: usize>(bytes: [u8; N]) -> [[u8; H]; 2] {
    std::array::from_fn(|half| std::array::from_fn(|i| bytes[half * H + i]))
}

fn whole<const H: usize, const N: usize>(halves: [[u8; H]; 2]) -> [u8; N] {
    std::array::from_fn(|i| halves[i / H][i % H])
}

/// Computes `dst[i] = dst[i] op src[i]` for as many elements as both slices have. The element type
/// must support the operation ([`ElementType::combines_by`]); otherwise `dst` is left unchanged.
pub fn combine(element: ElementType, op: ReduceOp, dst: &mut [u8], src: &[u8]) {
    match element {
        ElementType::I8 => integers!(i8, op, dst, src),
        ElementType::I16 => integers!(i16, op, dst, src),
        ElementType::I32 => integers!(i32, op, dst, src),
        ElementType::I64 => integers!(i64, op, dst, src),
        ElementType::U8 => integers!(u8, op, dst, src),
        ElementType::U16 => integers!(u16, op, dst, src),
        ElementType::U32 => integers!(u32, op, dst, src),
        ElementType::U64 => integers!(u64, op, dst, src),
        ElementType::F16 => floats!(f16, op, dst, src),
        ElementType::Bf16 => floats!(bf16, op, dst, src),
        ElementType::F32 => floats!(f32, op, dst, src),
        ElementType::F64 => floats!(f64, op, dst, src),
        ElementType::C32 => complex!(f32, op, dst, src),
        ElementType::C64 => complex!(f64, op, dst, src),
        ElementType::I32Loc => located!(i32, u32, op, dst, src),
        ElementType::I64Loc => located!(i64, u64, op, dst, src),
        ElementType::F32Loc => located!(f32, u32, op, dst, src),
        ElementType::F64Loc => located!(f64, u64, op, dst, src),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! check {
        ($type:ty, $element:expr, $op:expr, $left:expr, $right:expr, $want:expr) => {{
            let bytes = |v: &[$type]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
            let mut got = bytes(&$left);
            combine($element, $op, &mut got, &bytes(&$right));
            assert_eq!(got, bytes(&$want), "{:?} {:?}", $element, $op);
        }};
    }

    macro_rules! check_integer {
        ($type:ty, $element:expr) => {{
            let (low, high) = (<$type>::MIN, <$type>::MAX);
            check!($type, $element, ReduceOp::Sum, [1, high], [2, 1], [3, low]);
            check!($type, $element, ReduceOp::Prod, [3, high], [5, 2], [15, high.wrapping_mul(2)]);
            check!($type, $element, ReduceOp::Min, [low, 7], [high, 5], [low, 5]);
            check!($type, $element, ReduceOp::Max, [low, 7], [high, 5], [high, 7]);
            check!($type, $element, ReduceOp::LogicalAnd, [2, 2, 0], [4, 0, 0], [1, 0, 0]);
            check!($type, $element, ReduceOp::LogicalOr, [2, 2, 0], [4, 0, 0], [1, 1, 0]);
            check!($type, $element, ReduceOp::LogicalXor, [2, 2, 0], [4, 0, 0], [0, 1, 0]);
            check!($type, $element, ReduceOp::BitAnd, [6, high], [3, 5], [2, 5]);
            check!($type, $element, ReduceOp::BitOr, [6, low], [3, high], [7, low | high]);
            check!($type, $element, ReduceOp::BitXor, [6, high], [3, high], [5, 0]);
        }};
    }

    #[test]
    fn integers_of_every_width_combine_and_wrap() {
        check_integer!(i8, ElementType::I8);
        check_integer!(i16, ElementType::I16);
        check_integer!(i32, ElementType::I32);
        check_integer!(i64, ElementType::I64);
        check_integer!(u8, ElementType::U8);
        check_integer!(u16, ElementType::U16);
        check_integer!(u32, ElementType::U32);
        check_integer!(u64, ElementType::U64);
    }

    #[test]
    fn floats_combine() {
        check!(f32, ElementType::F32, ReduceOp::Sum, [1.5, -1.0], [2.0, 1.0], [3.5, 0.0]);
        check!(f32, ElementType::F32, ReduceOp::Prod, [1.5, -1.0], [2.0, 1.0], [3.0, -1.0]);
        check!(f64, ElementType::F64, ReduceOp::Min, [1.5, -1.0], [2.0, -3.0], [1.5, -3.0]);
        check!(f64, ElementType::F64, ReduceOp::Max, [1.5, f64::INFINITY], [2.0, 0.0], [2.0, f64::INFINITY]);
    }

    #[test]
    fn halves_of_floats_combine_and_round_to_nearest() {
        let f = f16::from_f32;
        // 2049 is not an f16: it rounds to even.
        check!(
            f16,
            ElementType::F16,
            ReduceOp::Sum,
            [f(1.5), f(2048.0)],
            [f(2.0), f(1.0)],
            [f(3.5), f(2048.0)]
        );
        check!(f16, ElementType::F16, ReduceOp::Max, [f(1.5), f(-2.0)], [f(2.0), f(1.0)], [f(2.0), f(1.0)]);
        let b = bf16::from_f32;
        check!(
            bf16,
            ElementType::Bf16,
            ReduceOp::Prod,
            [b(1.5), b(256.0)],
            [b(2.0), b(3.0)],
            [b(3.0), b(768.0)]
        );
        check!(bf16, ElementType::Bf16, ReduceOp::Sum, [b(256.0)], [b(1.0)], [b(256.0)]);
    }

    #[test]
    fn complex_numbers_combine() {
        check!(f32, ElementType::C32, ReduceOp::Sum, [1.0, 2.0], [3.0, -5.0], [4.0, -3.0]);
        check!(
            f64,
            ElementType::C64,
            ReduceOp::Prod,
            [1.0, 2.0, 0.0, 1.0],
            [3.0, -5.0, 0.0, 1.0],
            [13.0, 1.0, -1.0, 0.0]
        );
    }

    #[test]
    fn located_values_keep_their_index_and_ties_the_smaller_one() {
        check!(i32, ElementType::I32Loc, ReduceOp::MinLoc, [5, 7, 2, 9], [-3, 8, 2, 4], [-3, 8, 2, 4]);
        check!(i64, ElementType::I64Loc, ReduceOp::MaxLoc, [5, 7, 2, 4], [-3, 8, 2, 9], [5, 7, 2, 4]);
        let (index, nan) = (f32::from_bits, f32::NAN);
        check!(f32, ElementType::F32Loc, ReduceOp::MinLoc, [1.0, index(3)], [nan, index(9)], [nan, index(9)]);
        check!(f32, ElementType::F32Loc, ReduceOp::MaxLoc, [nan, index(3)], [nan, index(9)], [nan, index(3)]);
    }

    #[test]
    fn a_nan_on_either_side_stays_with_every_operator() {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN)] {
                let mut got = a.to_ne_bytes();
                combine(ElementType::F64, op, &mut got, &b.to_ne_bytes());
                assert!(f64::from_ne_bytes(got).is_nan(), "{op:?} {a} {b}");
            }
        }
    }
}
