//! Reasons why a call is invalid.

use crate::{ElementType, Rank, ReduceOp};

/// The reason why a call is invalid. The message continues "rank 1 cannot call gather: ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The root is not a rank of the group.
    #[error("its root is {root}, but the group has ranks 0 to {}", size - 1)]
    Root {
        /// The root.
        root: Rank,
        /// Ranks of the group.
        size: usize,
    },
    /// A length is not a whole number of elements.
    #[error("its {bytes} bytes are not a whole number of elements of {element} bytes")]
    Element {
        /// The length in bytes.
        bytes: u64,
        /// Bytes of an element.
        element: u32,
    },
    /// Counts were passed to an operation that does not accept them.
    #[error("it has counts, but its operation does not take them; leave them out")]
    NoParts,
    /// The number of counts is wrong for the group.
    #[error("it has {given} counts, but {size} ranks need {wanted}")]
    Counts {
        /// Counts given.
        given: usize,
        /// Counts needed.
        wanted: usize,
        /// Ranks of the group.
        size: usize,
    },
    /// The arrays do not fit into an address space.
    #[error("its arrays are larger than an address space; split it")]
    TooLarge,
    /// The call is a reduction without a reduce operation.
    #[error("it does not specify how to combine elements")]
    NoReduction,
    /// The element type does not support the reduce operation.
    #[error("elements of type {element} have no {reduce}; they have {}", fitting(*element))]
    Reduction {
        /// The element type.
        element: ElementType,
        /// The reduce operation.
        reduce: ReduceOp,
    },
    /// A scan has no average, because each rank would have to divide by a different number.
    #[error("a scan has no average; scan by sum and divide")]
    AverageOfScan,
    /// A rank's buffer is too short.
    #[error("its {name} has {given} bytes and needs {needed}")]
    Buffer {
        /// The buffer, "input" or "output".
        name: &'static str,
        /// Length of the buffer in bytes.
        given: u64,
        /// Bytes that the call reads or writes.
        needed: u64,
    },
}

fn fitting(element: ElementType) -> String {
    let fit = ReduceOp::ALL.into_iter().filter(|op| element.combines_by(*op));
    fit.map(ReduceOp::name).collect::<Vec<_>>().join(", ")
}
