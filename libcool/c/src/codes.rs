//! Numeric codes of the C interface.

use cool_rust::{Elements, Op, Operation, PairType, Type};

/// A communicator: a rank's place in a group. 0 is not a communicator.
pub type cool_comm = u64;

/// A pending call. 0 is not a request.
pub type cool_request = u64;

/// A queue of pending calls of any communicators. 0 is not a queue.
pub type cool_queue = u64;

/// The result of a function: COOL_OK, or the kind of the error.
pub type cool_status = u32;

/// Success.
pub const COOL_OK: cool_status = 0;
/// The arguments are invalid. Nothing was sent.
pub const COOL_INVALID: cool_status = 1;
/// The process is not a rank, or its environment is invalid.
pub const COOL_ENVIRONMENT: cool_status = 2;
/// The agent of the node is unreachable, or refused this rank.
pub const COOL_AGENT: cool_status = 3;
/// Ranks called different operations, sizes, types or roots.
pub const COOL_MISMATCH: cool_status = 4;
/// A rank did not join the call in time.
pub const COOL_TIMEOUT: cool_status = 5;
/// A rank, node or agent was lost.
pub const COOL_LOST: cool_status = 6;
/// An earlier call of the group failed.
pub const COOL_ABORTED: cool_status = 7;
/// The system cannot provide memory or a thread.
pub const COOL_SYSTEM: cool_status = 8;
/// Any other error.
pub const COOL_OTHER: cool_status = 9;
/// A rank revoked the group.
pub const COOL_REVOKED: cool_status = 10;
/// A message was longer than its receive. Only the receive failed.
pub const COOL_TRUNCATED: cool_status = 11;

/// A type of elements.
pub type cool_type = u32;

/// int8_t
pub const COOL_I8: cool_type = 0;
/// int16_t
pub const COOL_I16: cool_type = 1;
/// int32_t
pub const COOL_I32: cool_type = 2;
/// int64_t
pub const COOL_I64: cool_type = 3;
/// uint8_t
pub const COOL_U8: cool_type = 4;
/// uint16_t
pub const COOL_U16: cool_type = 5;
/// uint32_t
pub const COOL_U32: cool_type = 6;
/// uint64_t
pub const COOL_U64: cool_type = 7;
/// IEEE 754 half precision
pub const COOL_F16: cool_type = 8;
/// bfloat16: the upper half of a float
pub const COOL_BF16: cool_type = 9;
/// float
pub const COOL_F32: cool_type = 10;
/// double
pub const COOL_F64: cool_type = 11;
/// float complex (two 32-bit numbers; complex64 in NumPy)
pub const COOL_C32: cool_type = 12;
/// double complex (two 64-bit numbers; complex128 in NumPy)
pub const COOL_C64: cool_type = 13;
/// struct { int32_t value; uint32_t index; }
pub const COOL_I32_LOC: cool_type = 14;
/// struct { int64_t value; uint64_t index; }
pub const COOL_I64_LOC: cool_type = 15;
/// struct { float value; uint32_t index; }
pub const COOL_F32_LOC: cool_type = 16;
/// struct { double value; uint64_t index; }
pub const COOL_F64_LOC: cool_type = 17;

/// struct { int16_t value; int32_t index; }, MPI_SHORT_INT. For all COOL_..._INT types,
/// COOL_MIN_LOC and COOL_MAX_LOC select the smaller signed index among equal values. Padding is not
/// preserved.
pub const COOL_I16_INT: cool_type = 32;
/// struct { int32_t value; int32_t index; }, MPI_2INT
pub const COOL_I32_INT: cool_type = 33;
/// struct { int64_t value; int32_t index; }, MPI_LONG_INT if a long has 64 bits
pub const COOL_I64_INT: cool_type = 34;
/// struct { float value; int32_t index; }, MPI_FLOAT_INT
pub const COOL_F32_INT: cool_type = 35;
/// struct { double value; int32_t index; }, MPI_DOUBLE_INT
pub const COOL_F64_INT: cool_type = 36;

/// How a reduction combines elements.
pub type cool_op = u32;

/// Sum.
pub const COOL_SUM: cool_op = 0;
/// Product.
pub const COOL_PROD: cool_op = 1;
/// Minimum.
pub const COOL_MIN: cool_op = 2;
/// Maximum.
pub const COOL_MAX: cool_op = 3;
/// Integers only: 1 if no element is 0, otherwise 0.
pub const COOL_LOGICAL_AND: cool_op = 4;
/// Integers only: 0 if all elements are 0, otherwise 1.
pub const COOL_LOGICAL_OR: cool_op = 5;
/// Integers only: 1 if an odd number of elements is not 0, otherwise 0.
pub const COOL_LOGICAL_XOR: cool_op = 6;
/// Integers only: bitwise AND.
pub const COOL_BIT_AND: cool_op = 7;
/// Integers only: bitwise OR.
pub const COOL_BIT_OR: cool_op = 8;
/// Integers only: bitwise exclusive OR.
pub const COOL_BIT_XOR: cool_op = 9;
/// Values with an index only: the smallest value, with its index.
pub const COOL_MIN_LOC: cool_op = 10;
/// Values with an index only: the largest value, with its index.
pub const COOL_MAX_LOC: cool_op = 11;
/// Floating-point and complex numbers only: the sum, divided by the number of ranks.
pub const COOL_AVERAGE: cool_op = 12;

/// An operation, for cool_set_plan, cool_fold and cool_ifold.
pub type cool_operation = u32;

/// cool_bcast
pub const COOL_BCAST: cool_operation = 0;
/// cool_reduce
pub const COOL_REDUCE: cool_operation = 1;
/// cool_allreduce
pub const COOL_ALLREDUCE: cool_operation = 2;
/// cool_gather and cool_gatherv
pub const COOL_GATHER: cool_operation = 3;
/// cool_allgather and cool_allgatherv
pub const COOL_ALLGATHER: cool_operation = 4;
/// cool_scatter and cool_scatterv
pub const COOL_SCATTER: cool_operation = 5;
/// cool_reduce_scatter and cool_reduce_scatter_counts
pub const COOL_REDUCE_SCATTER: cool_operation = 6;
/// cool_alltoall and cool_alltoallv
pub const COOL_ALLTOALL: cool_operation = 7;
/// cool_scan
pub const COOL_SCAN: cool_operation = 8;
/// cool_exscan
pub const COOL_EXSCAN: cool_operation = 9;
/// cool_barrier
pub const COOL_BARRIER: cool_operation = 10;

/// Returns the element type with a code, or `None` if there is no such type.
pub(crate) fn elements_of_code(code: cool_type) -> Option<Elements> {
    let pairs = || PairType::ALL.get(code.checked_sub(COOL_I16_INT)? as usize).copied();
    Type::ALL.get(code as usize).copied().map(Elements::from).or_else(|| pairs().map(Elements::from))
}

pub(crate) fn op_of(code: cool_op) -> Option<Op> {
    Op::ALL.get(code as usize).copied()
}

pub(crate) fn operation_of(code: cool_operation) -> Option<Operation> {
    Operation::ALL.get(code as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_match_their_names() {
        let types = [(COOL_I8, "i8"), (COOL_U64, "u64"), (COOL_BF16, "bf16"), (COOL_F64_LOC, "f64_loc")];
        let pairs = [(COOL_I16_INT, "i16_int"), (COOL_I64_INT, "i64_int"), (COOL_F64_INT, "f64_int")];
        let named = |(code, name): &(cool_type, &str)| elements_of_code(*code).unwrap().to_string() == *name;
        assert!(types.iter().chain(&pairs).all(named));
        let ops = [(COOL_SUM, "sum"), (COOL_BIT_AND, "bit_and"), (COOL_AVERAGE, "average")];
        assert!(ops.iter().all(|(code, name)| op_of(*code).unwrap().to_string() == *name));
        let operations =
            [(COOL_BCAST, "bcast"), (COOL_REDUCE_SCATTER, "reduce_scatter"), (COOL_BARRIER, "barrier")];
        assert!(operations.iter().all(|(code, name)| operation_of(*code).unwrap().to_string() == *name));
        assert!(elements_of_code(18).is_none() && elements_of_code(37).is_none());
        assert!(op_of(13).is_none() && operation_of(11).is_none());
    }
}
