//! What collectives can carry, and how reductions combine it.

use cool_proto::local::{Dtype, ReduceOp};

/// A number type that collectives carry: `i8` to `i64`, `u8` to `u64`, `f32`, `f64`.
///
/// Sealed: the agents compute on these types and know no others.
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
}

impl Op {
    pub(crate) fn code(self) -> ReduceOp {
        match self {
            Op::Sum => ReduceOp::Sum,
            Op::Prod => ReduceOp::Prod,
            Op::Min => ReduceOp::Min,
            Op::Max => ReduceOp::Max,
        }
    }
}

pub(crate) mod private {
    use super::Dtype;

    /// The types behind [`super::Element`].
    pub trait Number: bytemuck::Pod + Send + Sync {
        #[doc(hidden)]
        const DTYPE: Dtype;
    }

    macro_rules! numbers {
        ($($number:ty => $dtype:ident),*) => {
            $(impl Number for $number { const DTYPE: Dtype = Dtype::$dtype; })*
        };
    }

    numbers!(
        i8 => I8, i16 => I16, i32 => I32, i64 => I64,
        u8 => U8, u16 => U16, u32 => U32, u64 => U64,
        f32 => F32, f64 => F64
    );
}
