"""What the communicator gets of torch's tensors: rows of elements, where they are."""

import functools

import torch
from torch._C._distributed_c10d import ReduceOp

from .errors import ArgumentError

# Elements that are carried as they are; those of all other types are carried as bytes, and not combined.
CARRIED = {
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
}  # fmt: skip

# What the operations are called.
NAMES = {
    ReduceOp.SUM: "sum", ReduceOp.AVG: "average", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max",
    ReduceOp.BAND: "bit_and", ReduceOp.BOR: "bit_or", ReduceOp.BXOR: "bit_xor", ReduceOp.PREMUL_SUM: "sum",
}  # fmt: skip

# What they are of truth values.
OF_BOOL = {
    ReduceOp.SUM: "logical_or", ReduceOp.MAX: "logical_or", ReduceOp.BOR: "logical_or", ReduceOp.BXOR: "logical_xor",
    ReduceOp.PRODUCT: "logical_and", ReduceOp.MIN: "logical_and", ReduceOp.BAND: "logical_and",
}  # fmt: skip


class Reduction:
    """An operation as the communicator has it, and what is done before and afterwards."""

    def __init__(self, op, dtype):
        kind = op.op
        self.name = (OF_BOOL if dtype == torch.bool else NAMES).get(kind)
        if self.name is None or dtype not in CARRIED:
            raise ArgumentError(f"{str(kind).rpartition('.')[2]} combines no tensors of {dtype}")
        self._factor = op.factor if kind == ReduceOp.PREMUL_SUM else None
        self._divides = kind == ReduceOp.AVG and not (dtype.is_floating_point or dtype.is_complex)
        if self._divides:
            self.name = "sum"

    def sent(self, flat):
        """What goes out of this."""
        return flat if self._factor is None else (flat * self._factor).to(flat.dtype)

    def then(self, flat, size):
        """What is left to do when the result is here, if anything."""
        return functools.partial(_divide, flat, size) if self._divides else None

    def finish(self, flat, size, tensors):
        """Does it, and copies the result's parts into these tensors."""
        if self._divides:
            _divide(flat, size)
        spread(flat, tensors)


def _divide(whole, by):
    """An average of whole numbers is rounded towards zero."""
    if whole.dtype in (torch.uint16, torch.uint32, torch.uint64):
        row = whole.numpy()  # torch does not divide these.
        row //= by
    else:
        whole.div_(by, rounding_mode="trunc")


def flat(name, tensor):
    """A tensor's elements in one row, where they are."""
    if tensor.device.type != "cpu":
        raise ArgumentError(
            f"{name} is on {tensor.device}, but cool carries tensors in the processor's memory; for others too, use the "
            'backend "cpu:cool,cuda:nccl"'
        )
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{name} is {tensor.layout}; cool carries strided tensors: pass {name}.to_dense()")
    if not tensor.is_contiguous():
        raise ArgumentError(f"{name} is not contiguous: pass {name}.contiguous()")
    row = tensor.detach().view(-1)
    return row if row.dtype in CARRIED else row.view(torch.uint8)


def only(name, tensors):
    """The only tensor of a list."""
    if len(tensors) != 1:
        raise ArgumentError(f"{name} has {len(tensors)} tensors, but must have one")
    return tensors[0]


def joined(name, tensors):
    """A row of all elements of these tensors."""
    return torch.cat([flat(f"{name}[{i}]", tensor.contiguous()) for i, tensor in enumerate(tensors)])


def unequal(tensors):
    """The lengths of these tensors, unless all are as long."""
    lengths = [tensor.numel() * (1 if tensor.dtype in CARRIED else tensor.element_size()) for tensor in tensors]
    return None if len(set(lengths)) == 1 else lengths


def room(like):
    """A row that is as long as these tensors together."""
    first = flat("output", like[0][:0] if like[0].dim() else like[0])
    size = sum(tensor.numel() * tensor.element_size() for tensor in like) // first.element_size()
    return torch.empty(size, dtype=first.dtype)


def spread(row, tensors):
    """Copies a row's parts into these tensors, one after the other."""
    row = row.view(tensors[0].dtype) if tensors else row
    with torch.no_grad():
        for part, tensor in zip(row.split([tensor.numel() for tensor in tensors]), tensors):
            tensor.copy_(part.view(tensor.shape))
