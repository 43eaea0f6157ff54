"""Views of torch's tensors as rows of elements, for the communicator."""

import functools

import torch
from torch._C._distributed_c10d import ReduceOp

from .errors import ArgumentError

# Types that the communicator supports. All other types are sent as bytes and cannot be combined.
CARRIED = {
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
}  # fmt: skip

# Names of the operations.
NAMES = {
    ReduceOp.SUM: "sum", ReduceOp.AVG: "average", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max",
    ReduceOp.BAND: "bit_and", ReduceOp.BOR: "bit_or", ReduceOp.BXOR: "bit_xor", ReduceOp.PREMUL_SUM: "sum",
}  # fmt: skip

# Names of the operations on booleans.
OF_BOOL = {
    ReduceOp.SUM: "logical_or", ReduceOp.MAX: "logical_or", ReduceOp.BOR: "logical_or", ReduceOp.BXOR: "logical_xor",
    ReduceOp.PRODUCT: "logical_and", ReduceOp.MIN: "logical_and", ReduceOp.BAND: "logical_and",
}  # fmt: skip


class Reduction:
    """An operation of the communicator among `size` ranks, with its preparation and its final step."""

    def __init__(self, op, dtype, size):
        kind = op.op
        self.name = (OF_BOOL if dtype == torch.bool else NAMES).get(kind)
        if self.name is None or dtype not in CARRIED:
            raise ArgumentError(f"{str(kind).rpartition('.')[2]} cannot combine tensors of {dtype}")
        self._size, self._factor = size, op.factor if kind == ReduceOp.PREMUL_SUM else None
        self._divides = kind == ReduceOp.AVG and not (dtype.is_floating_point or dtype.is_complex)
        if kind == ReduceOp.AVG and dtype == torch.float16:
            # The sum may exceed the largest number, but no average does.
            self._factor = 1 / size
        if self._divides or self._factor is not None:
            self.name = "sum"

    def sent(self, flat):
        """Returns the elements to send, which are multiplied by the factor of PREMUL_SUM if there is one."""
        return flat if self._factor is None else (flat * self._factor).to(flat.dtype)

    def then(self, flat):
        """Returns the final step on the result, or None."""
        return functools.partial(_divide, flat, self._size) if self._divides else None

    def finish(self, flat, tensors):
        """Executes the final step and copies the parts of the result to these tensors."""
        if self._divides:
            _divide(flat, self._size)
        spread(flat, tensors)


def _divide(whole, by):
    """Divides the elements in place; integers are rounded towards zero."""
    if whole.dtype in (torch.uint16, torch.uint32, torch.uint64):
        row = whole.numpy()  # torch cannot divide these types.
        row //= by
    else:
        whole.div_(by, rounding_mode="trunc")


def flat(name, tensor):
    """Returns the elements of a tensor as one row, without a copy. Elements of unsupported types become bytes."""
    if tensor.device.type != "cpu":
        raise ArgumentError(
            f"{name} is on {tensor.device}, but cool supports only tensors in main memory; to use others too, select the "
            'backend "cpu:cool,cuda:nccl"'
        )
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{name} is {tensor.layout}, but must be strided: pass {name}.to_dense()")
    if not tensor.is_contiguous():
        raise ArgumentError(f"{name} has gaps or overlaps: call this with a {name}.contiguous(), and copy what it receives back")
    row = tensor.detach().view(-1)
    return row if row.dtype in CARRIED else row.view(torch.uint8)


def sent(name, tensor):
    """Returns the elements of a tensor to send, in row-major order. Dense tensors of another order are copied."""
    return flat(name, tensor.detach().contiguous() if _is_permuted(tensor) else tensor)


def received(name, tensor, has_gaps=False):
    """Returns a row for a tensor to receive into, and the step that then copies it to the tensor, or None.

    The row contains the tensor's elements in row-major order. It is a copy if the tensor is dense, but in another order,
    such as that of channels_last; with `has_gaps`, for any tensor that is not contiguous.
    """
    if tensor.is_contiguous() or not (has_gaps or _is_permuted(tensor)):
        return flat(name, tensor), None
    copy = tensor.detach().contiguous()
    return flat(name, copy), functools.partial(_copy, tensor, copy)


def _is_permuted(tensor):
    """Returns whether a tensor in main memory is dense, without overlaps, but not in row-major order."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_contiguous():
        return False
    return torch.ops.aten.is_non_overlapping_and_dense.default(tensor)


def _copy(tensor, copy):
    with torch.no_grad():
        tensor.copy_(copy)


def in_turn(*steps):
    """Returns a step that executes all of these that are not None, or None if there is none."""
    steps = [step for step in steps if step is not None]
    return functools.partial(_execute, steps) if steps else None


def _execute(steps):
    for step in steps:
        step()


def only(name, tensors):
    """Returns the only tensor of a list."""
    if len(tensors) != 1:
        raise ArgumentError(f"{name} has {len(tensors)} tensors, but must have one")
    return tensors[0]


def joined(name, tensors):
    """Returns a row of all elements of these tensors, as a copy."""
    return torch.cat([flat(f"{name}[{i}]", tensor.contiguous()) for i, tensor in enumerate(tensors)])


def unequal(tensors):
    """Returns the lengths of these tensors, or None if all are equal."""
    lengths = [tensor.numel() * (1 if tensor.dtype in CARRIED else tensor.element_size()) for tensor in tensors]
    return None if len(set(lengths)) == 1 else lengths


def room(like):
    """Returns an uninitialized row as long as these tensors together."""
    first = flat("output", like[0][:0] if like[0].dim() else like[0])
    size = sum(tensor.numel() * tensor.element_size() for tensor in like) // first.element_size()
    return torch.empty(size, dtype=first.dtype)


def spread(row, tensors):
    """Copies consecutive parts of a row to these tensors."""
    row = row.view(tensors[0].dtype) if tensors else row
    with torch.no_grad():
        for part, tensor in zip(row.split([tensor.numel() for tensor in tensors]), tensors):
            tensor.copy_(part.view(tensor.shape))
