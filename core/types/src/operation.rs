//! The collective operations (MPI 4.1, chapter 6).

use crate::names::named;

/// A collective operation. It prints as its name, for example `reduce_scatter`, and parses from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Sends the root's message to all ranks.
    Bcast,
    /// Combines all vectors element by element at the root.
    Reduce,
    /// Combines all vectors element by element at every rank.
    Allreduce,
    /// Collects the parts of all ranks at the root, in rank order.
    Gather,
    /// Collects the parts of all ranks at every rank, in rank order.
    Allgather,
    /// Distributes the root's array, one part to each rank.
    Scatter,
    /// Combines all vectors element by element and leaves one part of the result at each rank.
    ReduceScatter,
    /// Sends one part of each rank's array to each rank, which stores the parts in rank order.
    Alltoall,
    /// Combines, at each rank, its vector and those of all lower ranks.
    Scan,
    /// Combines, at each rank, the vectors of all lower ranks. Rank 0 receives nothing.
    Exscan,
    /// No rank leaves before all ranks have entered.
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
    /// Returns whether one rank is the source or destination.
    pub fn rooted(self) -> bool {
        matches!(self, Operation::Bcast | Operation::Reduce | Operation::Gather | Operation::Scatter)
    }

    /// Returns whether the operation combines elements.
    pub fn combines(self) -> bool {
        use Operation as O;
        matches!(self, O::Reduce | O::Allreduce | O::ReduceScatter | O::Scan | O::Exscan)
    }

    /// Returns whether each rank combines the vectors of the ranks before it.
    pub fn is_scan(self) -> bool {
        matches!(self, Operation::Scan | Operation::Exscan)
    }

    /// Returns whether the operation has one part per rank, so that parts may have different
    /// lengths (the v-forms of MPI).
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
