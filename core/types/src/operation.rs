//! The collective operations (MPI 4.1, chapter 6).

use crate::names::named;

/// What the ranks of a group do together. It prints as its name, as `reduce_scatter`, from which it parses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The root's message to all.
    Bcast,
    /// The elementwise combination of all vectors, at the root.
    Reduce,
    /// The elementwise combination of all vectors, at every rank.
    Allreduce,
    /// Every rank's part, in rank order, at the root.
    Gather,
    /// Every rank's part, in rank order, at every rank.
    Allgather,
    /// The root's array, one part to each rank.
    Scatter,
    /// The elementwise combination of all vectors, one part to each rank.
    ReduceScatter,
    /// Every rank's array, one part to each rank, which puts the parts in rank order.
    Alltoall,
    /// At each rank the elementwise combination of its vector and those of all ranks before it.
    Scan,
    /// At each rank the elementwise combination of the vectors of all ranks before it; nothing at rank 0.
    Exscan,
    /// Nobody leaves before all have come.
    Barrier,
}

named!(Operation, "operation", [
    Bcast => "bcast",
    Reduce => "reduce",
    Allreduce => "allreduce",
    Gather => "gather",
    Allgather => "allgather",
    Scatter => "scatter",
    ReduceScatter => "reduce_scatter",
    Alltoall => "alltoall",
    Scan => "scan",
    Exscan => "exscan",
    Barrier => "barrier",
]);

impl Operation {
    /// Whether one rank is its source or destination.
    pub fn rooted(self) -> bool {
        matches!(self, Operation::Bcast | Operation::Reduce | Operation::Gather | Operation::Scatter)
    }

    /// Whether it combines elements.
    pub fn combines(self) -> bool {
        use Operation as O;
        matches!(self, O::Reduce | O::Allreduce | O::ReduceScatter | O::Scan | O::Exscan)
    }

    /// Whether each rank combines the vectors of those before it.
    pub fn is_scan(self) -> bool {
        matches!(self, Operation::Scan | Operation::Exscan)
    }

    /// Whether it is about one part per rank, so that each may have its own length (MPI's v-forms).
    pub fn takes_counts(self) -> bool {
        use Operation as O;
        matches!(self, O::Gather | O::Allgather | O::Scatter | O::ReduceScatter | O::Alltoall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_parses_from_its_name_and_from_nothing_else() {
        for operation in Operation::ALL {
            assert_eq!(operation.to_string().parse(), Ok(operation));
        }
        let e = "gatherv".parse::<Operation>().unwrap_err().to_string();
        assert!(e.contains("no operation \"gatherv\"") && e.contains("reduce_scatter, alltoall"), "{e}");
    }
}
