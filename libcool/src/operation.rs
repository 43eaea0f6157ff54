//! The operations by name: what plans are forced for.

use cool_proto::local;
use std::fmt;
use std::str::FromStr;

/// An operation, for which [`Comm::set_plan`](crate::Comm::set_plan) forces a plan. It prints as its name, from
/// which it parses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Comm::bcast`](crate::Comm::bcast).
    Bcast,
    /// [`Comm::reduce`](crate::Comm::reduce).
    Reduce,
    /// [`Comm::allreduce`](crate::Comm::allreduce).
    Allreduce,
    /// [`Comm::gather`](crate::Comm::gather) and [`Comm::gatherv`](crate::Comm::gatherv).
    Gather,
    /// [`Comm::allgather`](crate::Comm::allgather) and [`Comm::allgatherv`](crate::Comm::allgatherv).
    Allgather,
    /// [`Comm::scatter`](crate::Comm::scatter) and [`Comm::scatterv`](crate::Comm::scatterv).
    Scatter,
    /// [`Comm::reduce_scatter`](crate::Comm::reduce_scatter) and
    /// [`Comm::reduce_scatter_counts`](crate::Comm::reduce_scatter_counts).
    ReduceScatter,
    /// [`Comm::alltoall`](crate::Comm::alltoall) and [`Comm::alltoallv`](crate::Comm::alltoallv).
    Alltoall,
    /// [`Comm::scan`](crate::Comm::scan).
    Scan,
    /// [`Comm::exscan`](crate::Comm::exscan).
    Exscan,
    /// [`Comm::barrier`](crate::Comm::barrier).
    Barrier,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 11] = [
        Operation::Bcast,
        Operation::Reduce,
        Operation::Allreduce,
        Operation::Gather,
        Operation::Allgather,
        Operation::Scatter,
        Operation::ReduceScatter,
        Operation::Alltoall,
        Operation::Scan,
        Operation::Exscan,
        Operation::Barrier,
    ];

    pub(crate) fn code(self) -> local::Operation {
        match self {
            Operation::Bcast => local::Operation::Bcast,
            Operation::Reduce => local::Operation::Reduce,
            Operation::Allreduce => local::Operation::Allreduce,
            Operation::Gather => local::Operation::Gather,
            Operation::Allgather => local::Operation::Allgather,
            Operation::Scatter => local::Operation::Scatter,
            Operation::ReduceScatter => local::Operation::ReduceScatter,
            Operation::Alltoall => local::Operation::Alltoall,
            Operation::Scan => local::Operation::Scan,
            Operation::Exscan => local::Operation::Exscan,
            Operation::Barrier => local::Operation::Barrier,
        }
    }

    /// Whether one rank is its source or destination.
    pub(crate) fn rooted(self) -> bool {
        matches!(self, Operation::Bcast | Operation::Reduce | Operation::Gather | Operation::Scatter)
    }

    /// Whether it combines elements.
    pub(crate) fn combines(self) -> bool {
        use Operation as O;
        matches!(self, O::Reduce | O::Allreduce | O::ReduceScatter | O::Scan | O::Exscan)
    }

    /// Whether ranks have parts, of equal lengths or of those that counts give.
    pub(crate) fn has_parts(self) -> bool {
        use Operation as O;
        matches!(self, O::Gather | O::Allgather | O::Scatter | O::ReduceScatter | O::Alltoall)
    }

    fn name(self) -> String {
        self.code().as_str_name().to_lowercase()
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// There is no operation of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no operation {name:?}; there are: {}", Operation::ALL.map(Operation::name).join(", "))]
pub struct UnknownOperation {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Operation {
    type Err = UnknownOperation;

    fn from_str(text: &str) -> Result<Operation, UnknownOperation> {
        let named = Operation::ALL.into_iter().find(|operation| operation.name() == text);
        named.ok_or_else(|| UnknownOperation { name: text.to_owned() })
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
        assert!(e.contains("\"gatherv\"") && e.contains("reduce_scatter, alltoall"), "{e}");
    }
}
