"""Tests of the Python module, with ranks in threads of one process. `make test` runs them in an environment with the
installed wheel."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import cool
import numpy as np
import pytest
from embedded import on

HERE = Path(__file__).parent


def test_the_suite_prints_the_same_as_the_rust_program():
    rust = Path(os.environ["COOL_RUST_SUITE"])
    for ranks in (1, 5):
        environment = {**os.environ, "COOL_EMBEDDED": str(ranks)}
        run = lambda *command: subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
        assert run(sys.executable, HERE.parent / "examples" / "suite.py") == run(rust)


@pytest.mark.parametrize(
    "dtype",
    ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"],
)
def test_numpys_types_are_carried_without_a_copy(dtype):
    def main(world):
        send = np.arange(24, dtype=dtype).reshape(2, 3, 4)
        recv = np.empty_like(send)
        result = world.allreduce(send, recv=recv)
        assert result is recv
        assert (recv == send * world.size).all()
        assert world.allgather(send).shape == (world.size, 2, 3, 4)

    on(3, main)


def test_arrays_of_bool_have_logical_reductions_and_no_sum():
    def main(world):
        mine = np.array([False, True, world.rank == 1])
        for op, expected in (
            ("logical_or", [False, True, True]),
            ("logical_and", [False, True, False]),
            ("logical_xor", [False, True, True]),
            ("min", [False, True, False]),
            ("max", [False, True, True]),
            ("prod", [False, True, False]),
            (np.logical_or, [False, True, True]),
        ):
            result = world.allreduce(mine, op=op)
            assert result.dtype == np.bool_ and result.tolist() == expected, op
            assert set(result.view(np.uint8)) <= {0, 1}, op
        for call in (world.allreduce, world.scan, world.iallreduce, world.reduce):
            with pytest.raises(cool.ArgumentError, match="no sum; use op=.logical_or"):
                call(mine)
        assert world.allreduce(mine.astype(int)).tolist() == [0, 3, 1]
        assert world.bcast(mine, root=1)[2] and world.allgather(mine).dtype == np.bool_

    on(3, main)


def test_shared_arrays_are_zeros_and_outlive_their_communicator():
    def main(world):
        send, recv = world.alloc((2, 3), dtype="f4"), world.alloc((2, 3), dtype=np.float32)
        assert (send == 0).all() and send.dtype == recv.dtype == np.float32 and recv.flags.writeable
        assert world.alloc(5).dtype == np.float64 and world.alloc(()).shape == () and world.alloc((0, 3)).size == 0
        send += world.rank
        assert world.allreduce(send, recv=recv) is recv
        assert (world.bcast(send[1], root=1) == 1).all()
        with pytest.raises(cool.ArgumentError, match="overlap"):
            world.allreduce(send[0], recv=send.reshape(-1)[1:4])
        with pytest.raises(cool.Error, match="alloc"):
            world.alloc(2**60, dtype="u1")
        with pytest.raises(TypeError):
            world.alloc(3, dtype=object)
        return recv

    for recv in on(3, main):
        recv += 1
        assert recv.shape == (2, 3) and (recv == 4).all()


def test_results_have_the_shapes_of_parts():
    def main(world):
        send = np.arange(world.size * 6, dtype=np.float32).reshape(world.size, 3, 2)
        assert world.reduce_scatter(send).shape == (3, 2)
        assert world.alltoall(send).shape == send.shape
        assert (world.reduce(send, op="max", root=1) is None) == (world.rank != 1)
        part = np.empty((3, 2), dtype=np.float32)
        world.scatter(send if world.rank == 0 else None, recv=part)
        assert (part == send[world.rank]).all()

    on(4, main)


def test_functions_combine_rows_in_rank_order():
    def main(world):
        for rows in (2, 5000):
            mine = np.full((rows, 2), [2, world.rank + 1], dtype=np.int64)
            then = lambda f, g: np.stack([f[:, 0] * g[:, 0], f[:, 1] * g[:, 0] + g[:, 1]], axis=1)
            result = world.allreduce(mine, op=then)
            assert (result == [8, 1 * 4 + 2 * 2 + 3]).all()

        def fails(left, right):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            world.allreduce(np.zeros(3), op=fails)
        world.barrier()

    on(3, main)


def test_requests_are_awaited_and_many_are_under_way():
    def main(world):
        async def sums():
            requests = [world.iallreduce(np.full(1000, i + world.rank)) for i in range(20)]
            return [int((await request)[0]) for request in requests]

        assert asyncio.run(sums()) == [3 * i + 3 for i in range(20)]
        request = world.ibarrier()
        while not request.done():
            pass
        assert request.wait() is None
        # Calls of dropped requests are still executed.
        for _ in range(50):
            world.iallreduce(np.zeros(1000))
        world.barrier()

    on(3, main)


def test_other_threads_run_while_a_call_waits():
    def main(world):
        if world.rank == 0:
            world.barrier()
            return
        thread_ran = threading.Event()
        threading.Thread(target=thread_ran.set).start()
        assert thread_ran.wait(30)
        world.barrier()

    on(2, main)


def test_one_array_may_lie_within_the_other():
    def main(world):
        rank, size = world.rank, world.size
        whole = np.zeros((size, 3))
        whole[rank] = rank + 1
        assert world.allgather(whole[rank], recv=whole) is whole
        assert (whole == np.arange(1, size + 1)[:, None]).all()
        input = np.full((size, 2), rank + 1.0)
        world.reduce_scatter(input, recv=input[rank])
        assert (input[rank] == size * (size + 1) / 2).all() and (np.delete(input, rank, 0) == rank + 1).all()
        if rank == 0:
            world.scatter(whole, recv=whole[0])
        else:
            assert (world.scatter(None, recv=np.zeros(3)) == rank + 1).all()
        with pytest.raises(cool.ArgumentError, match="neither lies within"):
            world.allgather(whole.reshape(-1)[3:5], recv=whole.reshape(-1)[4:])
        pairs = np.zeros(1, dtype=cool.pair("f8"))
        pairs["value"], pairs["index"] = 1.5, -rank
        best = world.allreduce(pairs, op="min_loc")
        assert (best["value"][0], best["index"][0]) == (1.5, 1 - size) and best.dtype.itemsize == 16

    on(3, main)


def test_functions_reduce_started_calls_and_unequal_parts():
    def main(world):
        rank, counts = world.rank, [1, 0, 4]
        x = np.arange(5.0) + rank
        add = lambda a, b: a + b
        started = world.iscan(x, op=add), world.ireduce_scatter(x, op=add, counts=counts)
        part = world.reduce_scatter(x, op=add, counts=counts)
        assert (started[1].wait() == part).all() and len(part) == counts[rank]
        assert (started[0].wait() == sum(np.arange(5.0) + r for r in range(rank + 1))).all()
        failing = world.iallreduce(x, op=lambda a, b: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            failing.wait()

    on(3, main)


def test_messages_are_probed_sent_synchronously_and_cancelled():
    def main(world):
        other = 1 - world.rank
        assert world.iprobe(other, tag=8) is None
        sent = world.issend(np.zeros(5, dtype="i2"), other, tag=7)
        assert world.probe() == (other, 7, 10) == world.iprobe(other)
        with pytest.raises(cool.TruncatedError, match="sent 10 bytes"):
            world.recv(np.zeros(2, dtype="i2"))
        sent.wait()
        assert world.irecv(np.zeros(2), other, tag=9).cancel()
        with pytest.raises(cool.ArgumentError, match="only a receive"):
            world.ibarrier().cancel()
        world.barrier()

    on(2, main)


def test_invalid_arguments_are_rejected_with_a_remedy():
    def main(world):
        x = np.arange(12.0).reshape(3, 4)
        for text, call in [
            ("recv is a list, but must be a NumPy array", lambda: world.allreduce(x, recv=[0.0])),
            ("send is not C-contiguous; use np.ascontiguousarray", lambda: world.allreduce(x.T)),
            ("send holds .*, which is not supported", lambda: world.allreduce(np.array(["a"]))),
            ("send holds >f8, which is not supported", lambda: world.allreduce(x.astype(">f8"))),
            ("no op \"mean\"; valid ops are sum, prod", lambda: world.allreduce(x, op="mean")),
            ("elements of type f64 have no bit_and", lambda: world.allreduce(x, op="bit_and")),
            ("send holds f64, but recv f32", lambda: world.allreduce(x, recv=x.astype("f4"))),
            ("send and recv overlap", lambda: world.allreduce(x[:2], recv=x[1:])),
            ("there is no rank 9 to be the root", lambda: world.bcast(x, root=9)),
            ("-1: negative, or too large", lambda: world.bcast(x, root=-1)),
            (r"\[6, -6\]: negative", lambda: world.allgather(x, counts=[6, -6])),
            ("4294967296: negative, or too large", lambda: world.send(x, 1 - world.rank, tag=2**32)),
            ("recv is missing", lambda: world.scatter(None, root=1 - world.rank)),
            (r"one part for each rank, a shape \(2, ...\)", lambda: world.reduce_scatter(x)),
            ("there is no plan", lambda: world.set_plan("bcast", "x")),
        ]:
            with pytest.raises(cool.ArgumentError, match=text) as error:
                call()
            assert error.value.ranks == []
        read_only = np.zeros(3)
        read_only.flags.writeable = False
        with pytest.raises(cool.ArgumentError, match="recv is read-only"):
            world.allreduce(np.zeros(3), recv=read_only)
        copy = world.dup()
        copy.free()
        with pytest.raises(cool.ArgumentError, match="was freed"):
            copy.barrier()
        world.barrier()

    on(2, main)


def test_failures_have_names():
    def main(world):
        world.set_timeout(20)
        with pytest.raises((cool.MismatchError, cool.AbortedError)) as error:
            world.allreduce(np.zeros(2 + world.rank))
            for _ in range(10_000):
                world.barrier()
        assert isinstance(error.value, cool.Error)
        assert "called allreduce of 2 f64 by sum" in str(error.value)
        assert sorted(error.value.ranks) == [0, 1]

    on(2, main)


def test_the_exception_of_a_rank_is_raised():
    def main(world):
        if world.rank == 1:
            raise ValueError("mine")
        with pytest.raises(cool.LostError) as error:
            world.barrier()
        assert error.value.ranks == [1]

    with pytest.raises(ValueError, match="mine"):
        on(3, main)


def test_a_process_that_is_no_rank_gets_a_remedy():
    with pytest.raises(cool.EnvironmentError, match="cool run -n N -- PROGRAM"):
        cool.world()


def test_a_forked_process_is_not_a_rank():
    def child(world, part):
        try:
            world.barrier()
        except cool.ArgumentError as e:
            part.free()
            return 0 if "was forked from process" in str(e) else 1
        return 2

    def main(world):
        part = world.dup()
        pid = os.fork()
        if pid == 0:
            status = 3
            try:
                status = child(world, part)
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        part.barrier()

    on(1, main)
