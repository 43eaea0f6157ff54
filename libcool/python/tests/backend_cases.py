"""Test cases for the backend of torch.distributed. Each function runs at all ranks and checks its results."""

import functools
import itertools

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

INTEGERS = [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
BYTES = [torch.float8_e4m3fn, torch.float8_e5m2]
ALL = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, *BYTES]


@functools.cache
def gloo():
    """Returns a group of all ranks on torch's own backend."""
    return dist.new_group(backend="gloo")


def numbers(rank, n, dtype):
    """Returns small numbers with sums and products that are exact in every type. They differ between ranks."""
    values = (torch.arange(n) * 7 + rank * 5) % 4
    if dtype in BYTES or dtype.is_complex:
        return values.to(torch.float32).to(dtype)
    return values.to(dtype)


def assert_same(actual, expected):
    """Asserts that two tensors are bitwise equal."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    as_bytes = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in (actual, expected)]
    assert torch.equal(*as_bytes), (actual, expected)


def compare_backends(call, *tensors):
    """Makes a call with gloo, and with COOL blocking and started, each on copies of the tensors, and compares the results.

    gloo receives the tensors as bytes, because it does not support all types.
    """
    gloo_tensors = [tensor.clone() for tensor in tensors]
    call(gloo(), False, *[tensor.view(torch.uint8) for tensor in gloo_tensors])
    for is_async in (False, True):
        cool_tensors = [tensor.clone() for tensor in tensors]
        work = call(None, is_async, *cool_tensors)
        assert not is_async or work.wait()
        for actual, expected in zip(cool_tensors, gloo_tensors):
            assert_same(actual, expected)


def expected_reduction(tensors, op):
    """Returns the expected result of a reduction."""
    first = tensors[0]
    if first.dtype == torch.bool:
        any_true, all_true = torch.stack(tensors).any(0), torch.stack(tensors).all(0)
        parity = torch.stack(tensors).sum(0) % 2 == 1
        return {"SUM": any_true, "MAX": any_true, "BOR": any_true, "PRODUCT": all_true, "MIN": all_true, "BAND": all_true, "BXOR": parity}[op]
    wide_type = torch.complex128 if first.dtype.is_complex else torch.float64 if first.dtype.is_floating_point else torch.int64
    if op in ("BAND", "BOR", "BXOR"):
        combine = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op]
    else:
        add = torch.add
        combine = {"SUM": add, "AVG": add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}[op]
    result = functools.reduce(combine, [tensor.to(wide_type) for tensor in tensors])
    if op == "AVG":
        result = result / len(tensors) if not wide_type == torch.int64 else result.div(len(tensors), rounding_mode="trunc")
    return result.to(first.dtype)


def reductions():
    """Checks allreduce, reduce and reduce_scatter with all operations and types."""
    rank, size = dist.get_rank(), dist.get_world_size()
    compared, n = 0, 8 * size
    for dtype, op in itertools.product(ALL, ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")):
        is_integer = not (dtype.is_floating_point or dtype.is_complex)
        # torch supports no other operations on complex numbers.
        unsupported_complex = dtype.is_complex and op not in ("SUM", "AVG")
        if unsupported_complex or dtype in BYTES or (op.startswith("B") and not is_integer) or (op == "AVG" and dtype == torch.bool):
            try:
                dist.all_reduce(numbers(rank, n, dtype), op=getattr(ReduceOp, op))
            except ValueError:
                continue
            raise AssertionError(f"{op} of {dtype} was accepted")
        inputs = [numbers(i, n, dtype) for i in range(size)]
        expected = expected_reduction(inputs, op)
        for is_async in (False, True):
            result, to_root, part = inputs[rank].clone(), inputs[rank].clone(), torch.empty(8, dtype=dtype)
            mine = inputs[rank].clone()
            works = [
                dist.all_reduce(result, op=getattr(ReduceOp, op), async_op=is_async),
                dist.reduce(to_root, 1, op=getattr(ReduceOp, op), async_op=is_async),
                dist.reduce_scatter_tensor(part, mine, op=getattr(ReduceOp, op), async_op=is_async),
            ]
            for work in works if is_async else ():
                work.wait()
            assert_same(result, expected)
            assert_same(to_root, expected if rank == 1 else inputs[rank])
            assert_same(part, expected[8 * rank : 8 * rank + 8])
            assert_same(mine, inputs[rank])
        gloo_result = inputs[rank].clone()
        try:
            dist.all_reduce(gloo_result, op=getattr(ReduceOp, op), group=gloo())
        except (ValueError, RuntimeError):
            continue  # gloo does not support all of them.
        if dtype != torch.bool:
            assert_same(expected, gloo_result)
            compared += 1
    assert compared > 40, compared


def transfers():
    """Compares all operations other than reductions, on all types, with gloo."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def broadcast(group, is_async, tensor):
        return dist.broadcast(tensor, 1, group=group, async_op=is_async)

    def gather_all(group, is_async, output, mine):
        return dist.all_gather(list(output.chunk(size)), mine, group=group, async_op=is_async)

    def gather_single(group, is_async, output, mine):
        return dist.all_gather_into_tensor(output, mine, group=group, async_op=is_async)

    def gather(group, is_async, output, mine):
        outputs = list(output.chunk(size)) if rank == 2 else None
        return dist.gather(mine, outputs, dst=2, group=group, async_op=is_async)

    def gather_whole(group, is_async, output, mine):
        if group is not None:  # gloo does not have this call.
            return gather(group, is_async, output, mine)
        return dist.gather_single(mine, output if rank == 2 else None, dst=2, group=group, async_op=is_async)

    def scatter(group, is_async, output, mine):
        inputs = list(mine.chunk(size)) if rank == 2 else None
        return dist.scatter(output, inputs, src=2, group=group, async_op=is_async)

    def to_all(group, is_async, output, mine):
        return dist.all_to_all_single(output, mine, group=group, async_op=is_async)

    def to_all_parts(group, is_async, output, mine):
        return dist.all_to_all(list(output.chunk(size)), list(mine.chunk(size)), group=group, async_op=is_async)

    for dtype in ALL:
        part, whole = numbers(rank, 12, dtype), numbers(rank, 12 * size, dtype)
        empty_part, empty_whole = torch.zeros(12, dtype=torch.uint8).to(dtype), torch.zeros(12 * size, dtype=torch.uint8).to(dtype)
        compare_backends(broadcast, part)
        compare_backends(gather_all, empty_whole, part)
        compare_backends(gather_single, empty_whole, part)
        compare_backends(gather, empty_whole, part)
        compare_backends(gather_whole, empty_whole, part)
        compare_backends(scatter, empty_part, whole)
        compare_backends(to_all, empty_whole, whole)
        compare_backends(to_all_parts, empty_whole, whole)


def unequal_parts():
    """Checks parts of unequal lengths, by splits and by lists."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def rows(source, dest):
        return (source + 2 * dest) % 3

    send = [torch.full((rows(rank, dest), 3), 10.0 * rank + dest) for dest in range(size)]
    expected = torch.cat([torch.full((rows(source, rank), 3), 10.0 * source + rank) for source in range(size)])
    splits = [rows(source, rank) for source in range(size)], [rows(rank, dest) for dest in range(size)]
    for is_async in (False, True):
        for group in (None, gloo()):
            received = torch.empty_like(expected)
            work = dist.all_to_all_single(received, torch.cat(send), *splits, group=group, async_op=is_async)
            assert not is_async or work.wait()
            assert_same(received, expected)
        parts = [torch.empty(rows(source, rank), 3) for source in range(size)]
        work = dist.all_to_all(parts, send, async_op=is_async)
        assert not is_async or work.wait()
        assert_same(torch.cat(parts), expected)
        outputs = [torch.empty(i + 1) for i in range(size)]
        work = dist.all_gather(outputs, torch.full((rank + 1,), float(rank)), async_op=is_async)
        assert not is_async or work.wait()
        assert_same(torch.cat(outputs), torch.cat([torch.full((i + 1,), float(i)) for i in range(size)]))
        part = torch.empty(rank)
        work = dist.reduce_scatter(part, [torch.arange(float(i)) for i in range(size)], async_op=is_async)
        assert not is_async or work.wait()
        assert_same(part, size * torch.arange(float(rank)))
        # Empty tensors work, too.
        dist.all_reduce(torch.empty(0))
        dist.all_gather_into_tensor(torch.empty(0, 2), torch.empty(0, 2))


def started_exchanges():
    """Checks that an exchange of unequal parts starts without waiting for other ranks, in every form, and at the same time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    token = torch.zeros(1)
    send = torch.arange(float(size * (size + 1) // 2)) + 100 * rank
    splits, own = list(range(1, size + 1)), [rank + 1] * size
    starts = [sum(splits[:rank])] * size
    expected = torch.cat([torch.arange(float(start), start + rank + 1) + 100 * source for source, start in enumerate(starts)])
    # Ranks other than 0 call it only after rank 0 has started it.
    for _ in range(1 if rank else 0):
        dist.recv(token, 0)
    results = [torch.empty(size * (rank + 1)) for _ in range(3)]
    works = [dist.all_to_all_single(result, send, own, splits, async_op=rank % 2 == 0) for result in results[:2]]
    works.append(dist.all_to_all(list(results[2].split(own)), list(send.split(splits)), async_op=rank % 2 == 0))
    for other in range(1, size if rank == 0 else 0):
        dist.send(token, other)
    if rank % 2 == 0:
        assert torch.equal(works[1].get_future().wait()[0], expected)
        works[0].wait(), works[2].wait()
        assert all(work.is_completed() and work.is_success() for work in works)
    assert all(torch.equal(result, expected) for result in results)
    # Columns have gaps, and parts of other types are sent as bytes.
    table = torch.zeros(3, size).to(torch.float8_e4m3fn)
    dist.all_to_all([table[:, i] for i in range(size)], [torch.full((3,), float(rank)).to(table.dtype) for _ in range(size)])
    assert table.float()[1].tolist() == list(range(size))
    # In place.
    row = torch.full((size,), float(rank))
    dist.all_to_all_single(row, row, [1] * size, [1] * size)
    assert row.tolist() == list(range(size))


def averages():
    """Checks that an average of half-precision numbers does not exceed the largest number while it is computed."""
    size = dist.get_world_size()
    for call in (
        lambda row: dist.all_reduce(row, op=ReduceOp.AVG),
        lambda row: dist.all_reduce(row, op=ReduceOp.AVG, async_op=True).wait(),
        lambda row: dist.reduce_scatter_tensor(row[:1], row.clone(), op=ReduceOp.AVG),
    ):
        row = torch.full((size,), 60000, dtype=torch.float16)
        call(row)
        assert row.tolist() == [60000] * size


def in_place_within():
    """Checks an allgather in place: a rank's part is already in the output, as in FSDP2."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for is_async in (False, True):
        whole = torch.zeros(size * 5)
        mine = whole.narrow(0, 5 * rank, 5)
        mine.fill_(rank + 1)
        work = dist.all_gather_into_tensor(whole, mine, async_op=is_async)
        assert not is_async or work.wait()
        assert whole.tolist() == [i + 1.0 for i in range(size) for _ in range(5)]


def coalesced():
    """Checks coalesced calls on tensors of several types."""
    rank, size = dist.get_rank(), dist.get_world_size()
    shapes = [((3,), torch.float32), ((2, 2), torch.int64), ((), torch.float32)]
    for is_async in (False, True):
        tensors = [torch.full(shape, rank + 1, dtype=dtype) for shape, dtype in shapes]
        with dist._coalescing_manager(async_ops=is_async) as works:
            for tensor in tensors:
                dist.all_reduce(tensor)
        works.wait()
        assert [tensor.flatten()[0].item() for tensor in tensors] == [size * (size + 1) / 2] * 3
        with dist._coalescing_manager(async_ops=is_async) as works:
            inputs = [torch.full((2,), 10.0 * i + rank) for i in range(3)] + [torch.full((1,), rank)]
            outputs = [torch.empty(2 * size) for _ in range(3)] + [torch.empty(size, dtype=torch.int64)]
            for output, mine in zip(outputs, inputs):
                dist.all_gather_into_tensor(output, mine)
        works.wait()
        for i, output in enumerate(outputs[:3]):
            assert output.tolist() == [10.0 * i + j for j in range(size) for _ in range(2)]
        assert outputs[3].tolist() == list(range(size))
        with dist._coalescing_manager(async_ops=is_async) as works:
            parts = [torch.empty(2), torch.empty(1, dtype=torch.int32)]
            wholes = [torch.arange(2.0 * size), torch.arange(size, dtype=torch.int32)]
            for part, whole in zip(parts, wholes):
                dist.reduce_scatter_tensor(part, whole)
        works.wait()
        assert parts[0].tolist() == [size * 2 * rank, size * (2 * rank + 1)] and parts[1].item() == size * rank


def factors():
    """Checks PREMUL_SUM, with a number or a tensor as each rank's factor."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for factor in (0.5, torch.tensor(0.5)):
        for is_async in (False, True):
            tensor, mine, part = torch.full((4,), rank + 1.0), torch.full((size,), rank + 1.0), torch.empty(1)
            works = [
                dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor), async_op=is_async),
                dist.reduce_scatter_tensor(part, mine, op=dist._make_nccl_premul_sum(factor), async_op=is_async),
            ]
            for work in works if is_async else ():
                work.wait()
            assert tensor.tolist() == [size * (size + 1) / 4] * 4 and part.item() == size * (size + 1) / 4
            assert mine.tolist() == [rank + 1.0] * size


def sparse():
    """Checks sums of sparse tensors with different, repeated and no elements."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, sparse_dims, dense in itertools.product((torch.float32, torch.int64, torch.bfloat16), (1, 2), ((), (3,))):
        shape = [5] * sparse_dims + list(dense)
        of_rank = [torch.Generator().manual_seed(r) for r in range(size)]
        tensors = [
            torch.sparse_coo_tensor(
                torch.randint(5, (sparse_dims, 3 * r), generator=generator), torch.randint(4, (3 * r, *dense), generator=generator).to(dtype), shape
            )
            for r, generator in enumerate(of_rank)
        ]
        expected = sum(tensor.to_dense() for tensor in tensors)
        for is_async in (False, True):
            mine = tensors[rank].clone()
            work = dist.all_reduce(mine, async_op=is_async)
            if is_async:
                work.wait()
                assert work.get_future().wait()[0] is mine
            assert mine.is_sparse
            assert_same(mine.to_dense(), expected)
    empty = torch.zeros(4).to_sparse()
    dist.all_reduce(empty)
    assert empty._nnz() == 0


def messages():
    """Checks messages by tag, from one rank and from any, and many at the same time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    first, second, buffer = torch.full((3,), rank), torch.full((2, 2), 10 * rank), [torch.empty(3), torch.empty(2, 2)]
    sent = [dist.isend(second, right, tag=7), dist.isend(first, right, tag=5)]
    received = [torch.empty_like(first), torch.empty_like(second)]
    dist.recv(received[0], left, tag=5)
    assert dist.recv(received[1], left, tag=7) == left
    assert received[0].tolist() == [left] * 3 and received[1][0, 0] == 10 * left
    for work in sent:
        work.wait()
    operations = [dist.P2POp(dist.isend, torch.full((3,), float(rank)), other, tag=rank) for other in range(size) if other != rank]
    buffers = {other: torch.empty(3) for other in range(size) if other != rank}
    operations += [dist.P2POp(dist.irecv, buffer, other, tag=other) for other, buffer in buffers.items()]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert all(buffer.tolist() == [other] * 3 for other, buffer in buffers.items())
    objects = [None]
    if rank == 0:
        dist.send_object_list([{"rank": rank}], 1)
    elif rank == 1:
        dist.recv_object_list(objects, 0)
        assert objects == [{"rank": 0}]


def objects():
    """Checks collectives on Python objects."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered, mine = [None] * size, {"rank": rank, "text": "x" * rank}
    dist.all_gather_object(gathered, mine)
    assert [item["text"] for item in gathered] == ["x" * i for i in range(size)]
    received = [mine] if rank == 1 else [None]
    dist.broadcast_object_list(received, 1)
    assert received[0]["rank"] == 1
    at_root = [None] * size if rank == 0 else None
    dist.gather_object(mine, at_root)
    assert rank or [item["rank"] for item in at_root] == list(range(size))
    scattered = [None]
    dist.scatter_object_list(scattered, [i * 10 for i in range(size)] if rank == 0 else None)
    assert scattered == [rank * 10]


def futures():
    """Checks that futures and their callbacks get the tensors once the call is complete."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((1000,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    chained = work.get_future().then(lambda done: done.value()[0] / size)
    assert chained.wait()[0] == (size + 1) / 2 and work.get_future().value()[0] is not None
    outputs = [torch.empty(2) for _ in range(size)]
    outputs_of_future = dist.all_gather(outputs, torch.full((2,), float(rank)), async_op=True).get_future().wait()
    assert [output[0].item() for output in outputs_of_future] == list(range(size))
    # The future completes even if the work is dropped.
    tensor = torch.ones(100)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert future.wait()[0][0] == size and tensor[0] == size
    assert dist.barrier(async_op=True).get_future().wait() == []


def waiting_callbacks():
    """Checks that a callback may wait for a call that it starts, while other calls complete."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for wait in (lambda work: work.wait(), lambda work: work.get_future().wait(), lambda work: work.get_future().then(lambda _: None).wait()):
        first, second, token = torch.ones(4), torch.ones(4), torch.zeros(1)

        def start_and_wait(_, second=second, wait=wait):
            wait(dist.all_reduce(second, async_op=True))
            return second

        # The last rank makes the call after the others have set their callbacks, so that these are
        # executed by the thread that completes calls.
        for _ in range(size - 1 if rank == size - 1 else 0):
            dist.recv(token)
        future = dist.all_reduce(first, async_op=True).get_future().then(start_and_wait)
        if rank < size - 1:
            dist.send(token, size - 1)
        assert future.wait()[0] == size and first[0] == size
    assert dist.all_reduce(first, async_op=True).wait() and first[0] == size * size


def inference():
    """Checks that the thread that completes calls may write to tensors of the inference mode."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.inference_mode():
        outputs, average = [torch.empty(1000) for _ in range(size)], torch.full((3,), 2 * rank)
        dist.all_gather(outputs, torch.full((1000,), float(rank)), async_op=True).get_future().wait()
        dist.all_reduce(average, op=ReduceOp.AVG, async_op=True).get_future().wait()
    assert [output[-1].item() for output in outputs] == list(range(size)) and average[0] == size - 1


def other_orders():
    """Checks dense tensors that are not in row-major order: they receive the same elements as others."""
    rank, size = dist.get_rank(), dist.get_world_size()
    shape = (size, 3, 2, 5)
    whole = torch.arange(30.0 * size).view(shape)
    parts = [whole + 1000 * i for i in range(size)]
    last = lambda tensor: tensor.clone(memory_format=torch.channels_last)
    for is_async in (False, True):

        def result_of(call, tensor):
            work = call(tensor)
            assert not is_async or work.wait()
            return tensor

        mine, empty = last(parts[rank]), last(torch.zeros(shape))
        # Slices of channels_last are dense only with all their channels.
        first = lambda: torch.zeros(3, 2, 5).permute(1, 2, 0).contiguous().permute(2, 0, 1)
        for actual, expected in (
            (result_of(lambda x: dist.all_reduce(x, async_op=is_async), last(mine)), sum(parts)),
            (result_of(lambda x: dist.broadcast(x, 1, async_op=is_async), last(mine)), parts[1]),
            (result_of(lambda x: dist.reduce(x, 1, async_op=is_async), last(mine)), sum(parts) if rank == 1 else parts[rank]),
            (result_of(lambda x: dist.all_to_all_single(x, mine, async_op=is_async), last(empty)), torch.stack([part[rank] for part in parts])),
            (result_of(lambda x: dist.all_gather_into_tensor(x, mine[rank].contiguous(), async_op=is_async), last(empty)), torch.stack([parts[i][i] for i in range(size)])),
            (result_of(lambda x: dist.reduce_scatter_tensor(x, mine, async_op=is_async), first()), sum(parts)[rank]),
            (result_of(lambda x: dist.scatter(x, [*mine] if rank == 1 else None, 1, async_op=is_async), first()), parts[1][rank]),
        ):
            assert torch.equal(actual, expected) and not actual.is_contiguous()
    received = last(torch.zeros(shape))
    works = [dist.isend(mine, (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]
    assert all([work.wait() for work in works]) and torch.equal(received, parts[rank - 1])
