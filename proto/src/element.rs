//! The types of elements that agents compute on: how long they are, and which reductions combine them.

use crate::local::{Dtype, ReduceOp};

impl Dtype {
    /// Bytes of an element; none of an unspecified type.
    pub fn bytes(self) -> Option<u32> {
        Some(match self {
            Dtype::Unspecified => return None,
            Dtype::I8 | Dtype::U8 => 1,
            Dtype::I16 | Dtype::U16 | Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::U64 | Dtype::F64 | Dtype::C32 | Dtype::I32Loc | Dtype::F32Loc => 8,
            Dtype::C64 | Dtype::I64Loc | Dtype::F64Loc => 16,
        })
    }

    /// Whether a reduction combines such elements.
    pub fn combines_by(self, op: ReduceOp) -> bool {
        use ReduceOp as R;
        match self {
            Dtype::Unspecified => false,
            Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => integral(op),
            Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => integral(op),
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 => {
                matches!(op, R::Sum | R::Prod | R::Min | R::Max | R::Average)
            }
            // Complex numbers have no order.
            Dtype::C32 | Dtype::C64 => matches!(op, R::Sum | R::Prod | R::Average),
            Dtype::I32Loc | Dtype::I64Loc | Dtype::F32Loc | Dtype::F64Loc => {
                matches!(op, R::MinLoc | R::MaxLoc)
            }
        }
    }
}

fn integral(op: ReduceOp) -> bool {
    use ReduceOp as R;
    !matches!(op, R::Unspecified | R::MinLoc | R::MaxLoc | R::Average)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_is_combined_by_what_makes_sense_for_it() {
        let all = |dtype: Dtype| {
            let ops = (0..).map_while(|code| ReduceOp::try_from(code).ok());
            ops.filter(|op| dtype.combines_by(*op)).count()
        };
        assert_eq!([Dtype::U8, Dtype::I64].map(all), [10, 10]);
        assert_eq!([Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64].map(all), [5; 4]);
        assert_eq!([Dtype::C32, Dtype::C64, Dtype::F64Loc, Dtype::I32Loc].map(all), [3, 3, 2, 2]);
        assert_eq!(all(Dtype::Unspecified), 0);
    }
}
