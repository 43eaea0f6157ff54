"""Sums of sparse tensors, such as gradients of embeddings: all ranks gather the elements of all ranks, and each adds them."""

import torch
from torch._C._distributed_c10d import ReduceOp

from .errors import ArgumentError
from .tensors import flat


def allreduce(comm, tensor, op):
    """Replaces a tensor in coordinate format by the sum over all ranks, which is bitwise equal at each rank."""
    if op.op != ReduceOp.SUM:
        raise ArgumentError(f"sparse tensors have no {op.op.name}, only SUM; pass tensor.to_dense()")
    mine = tensor.detach().coalesce()
    # The coordinates of an element form a row, so that those of all ranks can be concatenated.
    coordinates, values = mine.indices().T.contiguous(), mine.values()
    counts = _counts(comm, mine)
    coordinates, values = (_all_rows(comm, rows, counts) for rows in (coordinates, values))
    total = torch.sparse_coo_tensor(coordinates.T, values, mine.shape, check_invariants=True).coalesce()
    with torch.no_grad():
        tensor.copy_(total)


def _counts(comm, mine):
    """Returns the number of elements of each rank. The tensors of all ranks must have the same shape."""
    shape = [mine.sparse_dim(), *mine.shape]
    all = torch.empty(comm.size, 1 + len(shape), dtype=torch.int64)
    comm.allgather(torch.tensor([mine._nnz(), *shape]), all.view(-1))
    for rank, (_, *theirs) in enumerate(all.tolist()):
        if theirs != shape:
            raise ArgumentError(
                f"rank {comm.rank} has a tensor of shape {shape[1:]}, of which {shape[0]} dimensions are sparse, rank {rank} one of {theirs[1:]} and {theirs[0]}"
            )
    return all[:, 0].tolist()


def _all_rows(comm, rows, counts):
    """Returns the rows of all ranks."""
    all = torch.empty(sum(counts), *rows.shape[1:], dtype=rows.dtype)
    into = flat("values", all)
    width = into.numel() // max(1, len(all))
    comm.allgather(flat("values", rows.contiguous()), into, counts=[count * width for count in counts])
    return all
