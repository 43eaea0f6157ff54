//! Reasons why a call is invalid.

use crate::{ElementType, Rank, ReduceOp};

/// Why a call makes no sense. The words go on after "rank 1 cannot call gather: ".
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
        /// The length.
        bytes: u64,
        /// Bytes of an element.
        element: u32,
    },
    /// Counts are given to an operation that takes none.
    #[error("it has counts, but its ranks have no parts; leave them out")]
    NoParts,
    /// There are not as many counts as the group needs.
    #[error("it has {given} counts, but {size} ranks need {wanted}")]
    Counts {
        /// Counts given.
        given: usize,
        /// Counts needed.
        wanted: usize,
        /// Ranks of the group.
        size: usize,
    },
    /// The arrays do not fit an address space.
    #[error("its arrays are larger than an address space; split it")]
    TooLarge,
    /// A reduction without a way to combine.
    #[error("it does not say how to combine elements")]
    NoReduction,
    /// Elements that cannot be combined so.
    #[error("elements of type {element} have no {reduce}; they have {}", fitting(*element))]
    Reduction {
        /// The elements.
        element: ElementType,
        /// How they were to be combined.
        reduce: ReduceOp,
    },
    /// What each rank would have to divide by differs.
    #[error("there is no average of a scan; scan by sum and divide")]
    AverageOfScan,
    /// A rank's buffer is too short.
    #[error("its {name} has {given} bytes and needs {needed}")]
    Buffer {
        /// Which: "input" or "output".
        name: &'static str,
        /// Bytes that it has.
        given: u64,
        /// Bytes that the call takes.
        needed: u64,
    },
}

fn fitting(element: ElementType) -> String {
    let fit = ReduceOp::ALL.into_iter().filter(|op| element.combines_by(*op));
    fit.map(ReduceOp::name).collect::<Vec<_>>().join(", ")
}
