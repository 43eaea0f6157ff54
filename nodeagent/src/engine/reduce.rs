//! Combining vectors element by element, for every number type and operator.
//!
//! Elements are in the byte order of the machine, so all nodes of a group have the same. Integer sums and
//! products wrap. Floats follow IEEE 754: a NaN in any operand makes the element NaN, for min and max too.

use super::memory::SharedSlice;
use cool_proto::local::{Dtype, ReduceOp};

/// Bytes copied out of shared memory at a time: two of them fit the first-level cache.
const BLOCK: usize = 8 * 1024;

/// Bytes of an element; none of an unspecified type.
pub(super) fn element_bytes(dtype: Dtype) -> Option<u32> {
    Some(match dtype {
        Dtype::Unspecified => return None,
        Dtype::I8 | Dtype::U8 => 1,
        Dtype::I16 | Dtype::U16 => 2,
        Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
        Dtype::I64 | Dtype::U64 | Dtype::F64 => 8,
    })
}

/// `dst[i] = dst[i] op src[i]`, as `dst.bytes()` bytes; both have as many.
pub(super) fn combine(dtype: Dtype, op: ReduceOp, dst: &SharedSlice, src: &SharedSlice) {
    let (mut left, mut right) = ([0; BLOCK], [0; BLOCK]);
    let mut at = 0;
    while at < dst.bytes() {
        let len = (dst.bytes() - at).min(BLOCK as u64) as usize;
        let (left, right) = (&mut left[..len], &mut right[..len]);
        dst.read(at, left);
        src.read(at, right);
        combine_block(dtype, op, left, right);
        dst.write(at, left);
        at += len as u64;
    }
}

macro_rules! elements {
    ($type:ty, $dst:expr, $src:expr, $f:expr) => {
        // Fixed-size chunks and no branches: the compiler makes vector instructions of it.
        for (d, s) in $dst
            .as_chunks_mut::<{ size_of::<$type>() }>()
            .0
            .iter_mut()
            .zip($src.as_chunks::<{ size_of::<$type>() }>().0)
        {
            *d = <$type>::to_ne_bytes($f(<$type>::from_ne_bytes(*d), <$type>::from_ne_bytes(*s)));
        }
    };
}

macro_rules! integers {
    ($type:ty, $op:expr, $dst:expr, $src:expr) => {
        match $op {
            ReduceOp::Sum => elements!($type, $dst, $src, <$type>::wrapping_add),
            ReduceOp::Prod => elements!($type, $dst, $src, <$type>::wrapping_mul),
            ReduceOp::Min => elements!($type, $dst, $src, Ord::min),
            ReduceOp::Max => elements!($type, $dst, $src, Ord::max),
            ReduceOp::Unspecified => {}
        }
    };
}

macro_rules! floats {
    ($type:ty, $op:expr, $dst:expr, $src:expr) => {
        match $op {
            ReduceOp::Sum => elements!($type, $dst, $src, |a: $type, b: $type| a + b),
            ReduceOp::Prod => elements!($type, $dst, $src, |a: $type, b: $type| a * b),
            // If b is NaN the comparison is false and b is taken.
            ReduceOp::Min => {
                elements!($type, $dst, $src, |a: $type, b: $type| if a.is_nan() | (a < b) { a } else { b })
            }
            ReduceOp::Max => {
                elements!($type, $dst, $src, |a: $type, b: $type| if a.is_nan() | (a > b) { a } else { b })
            }
            ReduceOp::Unspecified => {}
        }
    };
}

fn combine_block(dtype: Dtype, op: ReduceOp, dst: &mut [u8], src: &[u8]) {
    match dtype {
        Dtype::I8 => integers!(i8, op, dst, src),
        Dtype::I16 => integers!(i16, op, dst, src),
        Dtype::I32 => integers!(i32, op, dst, src),
        Dtype::I64 => integers!(i64, op, dst, src),
        Dtype::U8 => integers!(u8, op, dst, src),
        Dtype::U16 => integers!(u16, op, dst, src),
        Dtype::U32 => integers!(u32, op, dst, src),
        Dtype::U64 => integers!(u64, op, dst, src),
        Dtype::F32 => floats!(f32, op, dst, src),
        Dtype::F64 => floats!(f64, op, dst, src),
        // No call with one is accepted.
        Dtype::Unspecified => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::HeapMemory;

    macro_rules! check {
        ($type:ty, $dtype:expr, $op:expr, $left:expr, $right:expr, $want:expr) => {{
            let bytes = |v: &[$type]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
            let left = HeapMemory::slice(bytes(&$left));
            combine($dtype, $op, &left, &HeapMemory::slice(bytes(&$right)));
            let mut got = vec![0; left.bytes() as usize];
            left.read(0, &mut got);
            assert_eq!(got, bytes(&$want), "{:?} {:?}", $dtype, $op);
        }};
    }

    macro_rules! check_integer {
        ($type:ty, $dtype:expr) => {{
            let (low, high) = (<$type>::MIN, <$type>::MAX);
            check!($type, $dtype, ReduceOp::Sum, [1, high], [2, 1], [3, low]);
            check!($type, $dtype, ReduceOp::Prod, [3, high], [5, 2], [15, high.wrapping_mul(2)]);
            check!($type, $dtype, ReduceOp::Min, [low, 7], [high, 5], [low, 5]);
            check!($type, $dtype, ReduceOp::Max, [low, 7], [high, 5], [high, 7]);
        }};
    }

    #[test]
    fn integers_of_every_width_combine_and_wrap() {
        check_integer!(i8, Dtype::I8);
        check_integer!(i16, Dtype::I16);
        check_integer!(i32, Dtype::I32);
        check_integer!(i64, Dtype::I64);
        check_integer!(u8, Dtype::U8);
        check_integer!(u16, Dtype::U16);
        check_integer!(u32, Dtype::U32);
        check_integer!(u64, Dtype::U64);
    }

    #[test]
    fn floats_combine() {
        check!(f32, Dtype::F32, ReduceOp::Sum, [1.5, -1.0], [2.0, 1.0], [3.5, 0.0]);
        check!(f32, Dtype::F32, ReduceOp::Prod, [1.5, -1.0], [2.0, 1.0], [3.0, -1.0]);
        check!(f64, Dtype::F64, ReduceOp::Min, [1.5, -1.0], [2.0, -3.0], [1.5, -3.0]);
        check!(f64, Dtype::F64, ReduceOp::Max, [1.5, f64::INFINITY], [2.0, 0.0], [2.0, f64::INFINITY]);
    }

    #[test]
    fn a_nan_on_either_side_stays_whatever_the_operator() {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN)] {
                let dst = HeapMemory::slice(a.to_ne_bytes().to_vec());
                combine(Dtype::F64, op, &dst, &HeapMemory::slice(b.to_ne_bytes().to_vec()));
                let mut got = [0; 8];
                dst.read(0, &mut got);
                assert!(f64::from_ne_bytes(got).is_nan(), "{op:?} {a} {b}");
            }
        }
    }

    #[test]
    fn vectors_longer_than_a_block_combine_to_the_last_element() {
        let count = 3 * BLOCK / 8 + 5;
        let left: Vec<u64> = (0..count as u64).collect();
        let sums: Vec<u64> = left.iter().map(|x| 2 * x).collect();
        check!(u64, Dtype::U64, ReduceOp::Sum, left, left, sums);
    }
}
