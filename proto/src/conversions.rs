//! Conversions between the enumerations of `cool-types` and those of the contracts.

use crate::local::{Dtype, Operation, ReduceOp};

/// Implements the conversions in both directions for a list of values with equal names.
macro_rules! conversions {
    ($wire:ident, $type:ty, [$($value:ident),* $(,)?]) => {
        impl From<$type> for $wire {
            fn from(value: $type) -> $wire {
                match value {
                    $(<$type>::$value => $wire::$value,)*
                }
            }
        }

        impl $wire {
            /// Returns the value, or `None` if it is unspecified.
            pub fn known(self) -> Option<$type> {
                match self {
                    $wire::Unspecified => None,
                    $($wire::$value => Some(<$type>::$value),)*
                }
            }
        }
    };
}

conversions!(
    Operation,
    cool_types::Operation,
    [Bcast, Reduce, Allreduce, Gather, Allgather, Scatter, ReduceScatter, Alltoall, Scan, Exscan, Barrier,]
);

conversions!(
    Dtype,
    cool_types::ElementType,
    [I8, I16, I32, I64, U8, U16, U32, U64, F16, Bf16, F32, F64, C32, C64, I32Loc, I64Loc, F32Loc, F64Loc,]
);

conversions!(
    ReduceOp,
    cool_types::ReduceOp,
    [Sum, Prod, Min, Max, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor, MinLoc, MaxLoc, Average,]
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contracts_and_types_have_the_same_values_and_names() {
        for value in cool_types::Operation::ALL {
            assert_eq!(Operation::from(value).as_str_name().to_lowercase(), value.name());
            assert_eq!(Operation::from(value).known(), Some(value));
        }
        for value in cool_types::ElementType::ALL {
            assert_eq!(Dtype::from(value).as_str_name().to_lowercase(), value.name());
            assert_eq!(Dtype::from(value).known(), Some(value));
        }
        for value in cool_types::ReduceOp::ALL {
            assert_eq!(ReduceOp::from(value).as_str_name().to_lowercase(), value.name());
            assert_eq!(ReduceOp::from(value).known(), Some(value));
        }
        assert_eq!(Operation::Unspecified.known(), None);
    }
}
