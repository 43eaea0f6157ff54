"""Tests of tensors of other libraries through DLPack, simulated by NumPy arrays, with types that NumPy does not have."""

import ctypes

import cool
import numpy as np
import pytest
from embedded import on

POINTER = ctypes.pythonapi.PyCapsule_GetPointer
POINTER.restype, POINTER.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Tensor:
    """An array that is not a NumPy array, such as those of PyTorch."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def new_empty(self, shape):
        return Tensor(np.empty(shape, self.array.dtype))


class LegacyTensor(Tensor):
    """A tensor of the protocol before DLPack 1.0, on a device, with any element code."""

    code, device = None, 1

    def __dlpack__(self):
        capsule = self.array.__dlpack__()
        if self.code is not None:
            # The offset of the element code in the structure, which follows the pointer, the device
            # and the number of dimensions.
            ctypes.cast(POINTER(capsule, b"dltensor") + 20, ctypes.POINTER(ctypes.c_uint8))[0] = self.code
        return capsule

    def __dlpack_device__(self):
        return self.device, 0


class BFloat16(LegacyTensor):
    code = 4


class Float8(LegacyTensor):
    code = 10


class OnGpu(LegacyTensor):
    device = 2


def test_tensors_are_used_without_a_copy():
    def main(world):
        mine = Tensor(np.full((2, 3), world.rank + 1, dtype="f4"))
        assert world.allreduce(mine, recv=mine) is mine and (mine.array == 3).all()
        assert world.allgather(mine).array.shape == (2, 2, 3)
        assert world.iallreduce(mine).wait().array.dtype == np.float32
        part = Tensor(mine.array[world.rank])
        assert (world.bcast(part, root=1).array == 3).all()
        for dtype in ("i1", "u8", "f2", "f8", "c8", "c16"):
            assert (world.allreduce(LegacyTensor(np.ones(5, dtype))).array == 2).all(), dtype
        flags = Tensor(np.array([False, world.rank == 1]))
        assert world.allreduce(flags, op="logical_or").array.tolist() == [False, True]
        buffer = Tensor(np.zeros(4, dtype="i8"))
        sent = world.isend(Tensor(np.arange(4)), 1 - world.rank)
        assert world.recv(buffer) == (1 - world.rank, 0, 4) and buffer.array[3] == 3
        sent.wait()

    on(2, main)


def test_types_that_numpy_does_not_have_are_supported():
    def main(world):
        # 1 and 2 in bfloat16: the upper halves of floats.
        halves = (np.full(7, world.rank + 1, dtype="f4").view("u4") >> 16).astype("u2")
        result = np.zeros(7, dtype="u2")
        world.allreduce(BFloat16(halves), recv=BFloat16(result))
        assert ((result.astype("u4") << 16).view("f4") == 3).all()
        bytes8 = np.full(3, world.rank + 40, dtype="u1")
        gathered = np.zeros((2, 3), dtype="u1")
        world.allgather(Float8(bytes8), recv=Float8(gathered))
        assert gathered.tolist() == [[40] * 3, [41] * 3]
        with pytest.raises(cool.ArgumentError, match="floats of 8 bits, which can be sent but not combined"):
            world.allreduce(Float8(bytes8))

    on(2, main)


def test_tensors_that_make_no_sense_are_refused_with_a_remedy():
    def main(world):
        x = np.arange(12.0).reshape(3, 4)
        read_only = np.zeros(3)
        read_only.flags.writeable = False
        unknown = type("Unknown", (LegacyTensor,), {"code": 3})
        for text, call in [
            (r"send is not C-contiguous; use .contiguous\(\)", lambda: world.allreduce(Tensor(x.T))),
            ("send is not in main memory; .*cpu", lambda: world.allreduce(OnGpu(x))),
            ("send holds elements that are not carried .*code 3, 64 bits", lambda: world.allreduce(unknown(x))),
            ("recv is read-only", lambda: world.allreduce(x[0, :3], recv=Tensor(read_only))),
            ("recv is missing, and Tensor cannot create one", lambda: world.exscan(Tensor(x))),
            ("send holds f64, but recv f32", lambda: world.allreduce(Tensor(x), recv=Tensor(x.astype("f4")))),
            ("send and recv overlap", lambda: world.allreduce(Tensor(x[:2]), recv=Tensor(x[1:]))),
            ("send holds bool, which has no sum", lambda: world.allreduce(Tensor(x > 1))),
            ("np.from_dlpack", lambda: world.allreduce(Tensor(x), recv=Tensor(x + 1), op=lambda a, b: a)),
        ]:
            with pytest.raises(cool.ArgumentError, match=text):
                call()
        world.barrier()

    on(2, main)
