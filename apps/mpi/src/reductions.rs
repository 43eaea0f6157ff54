//! MPI's predefined reductions, and the corresponding reductions of COOL.

use crate::abi::Abi;
use cool_types::ReduceOp;
use std::collections::BTreeMap;

/// A reduction, its handle in MPICH, its handle in the standard interface, and the symbol whose
/// address is its handle in Open MPI.
const OPS: [(ReduceOp, usize, usize, &str); 12] = [
    (ReduceOp::Sum, 0x5800_0003, 0x21, "ompi_mpi_op_sum"),
    (ReduceOp::Min, 0x5800_0002, 0x22, "ompi_mpi_op_min"),
    (ReduceOp::Max, 0x5800_0001, 0x23, "ompi_mpi_op_max"),
    (ReduceOp::Prod, 0x5800_0004, 0x24, "ompi_mpi_op_prod"),
    (ReduceOp::BitAnd, 0x5800_0006, 0x28, "ompi_mpi_op_band"),
    (ReduceOp::BitOr, 0x5800_0008, 0x29, "ompi_mpi_op_bor"),
    (ReduceOp::BitXor, 0x5800_000a, 0x2a, "ompi_mpi_op_bxor"),
    (ReduceOp::LogicalAnd, 0x5800_0005, 0x30, "ompi_mpi_op_land"),
    (ReduceOp::LogicalOr, 0x5800_0007, 0x31, "ompi_mpi_op_lor"),
    (ReduceOp::LogicalXor, 0x5800_0009, 0x32, "ompi_mpi_op_lxor"),
    (ReduceOp::MinLoc, 0x5800_000b, 0x38, "ompi_mpi_op_minloc"),
    (ReduceOp::MaxLoc, 0x5800_000c, 0x39, "ompi_mpi_op_maxloc"),
];

/// Returns the reductions by their handles. `symbol` must return the address of a symbol of Open
/// MPI, or `None` if the symbol does not exist.
pub fn reduce_ops(abi: Abi, symbol: impl Fn(&str) -> Option<usize>) -> BTreeMap<usize, ReduceOp> {
    let handles = OPS.iter().filter_map(|(op, mpich, standard, open_mpi)| {
        let handle = match abi {
            Abi::Mpich => *mpich,
            Abi::Standard => *standard,
            Abi::OpenMpi => symbol(open_mpi)?,
        };
        Some((handle, *op))
    });
    handles.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_means_something_in_its_own_interface_only() {
        let symbol = |name: &str| (name == "ompi_mpi_op_max").then_some(0x7f00);
        let [mpich, open_mpi, standard] = Abi::ALL.map(|abi| reduce_ops(abi, symbol));
        assert_eq!(mpich.get(&0x5800_0003), Some(&ReduceOp::Sum));
        assert_eq!(standard.get(&0x21), Some(&ReduceOp::Sum));
        assert_eq!(open_mpi, BTreeMap::from([(0x7f00, ReduceOp::Max)]));
        // MPI_REPLACE, and a reduction of a program.
        assert!([0x5800_000d, 0x9800_0000].iter().all(|handle| !mpich.contains_key(handle)));
    }
}
