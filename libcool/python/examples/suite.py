"""Executes every operation once and prints, for each rank, a hash of the data that it received. The output is exactly that
of libcool/examples/suite.rs; tests/e2e/suite.py contains the expected output."""

import cool
import numpy as np


def vector(rank, count):
    """Returns the elements of rank `rank`."""
    return (rank * 31 + np.arange(count) * 7 + 3) % 101


def line(comm, name, values):
    """Prints, at rank 0, a hash (FNV-1a) of the values of each rank."""
    number = 0xCBF29CE484222325
    for byte in np.asarray(values, dtype="<i8").tobytes():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    hashes = comm.gather(np.array([number], dtype=np.uint64))
    if hashes is not None:
        print(name, *(f"{int(value):016x}" for value in hashes.ravel()))


def then(first, second):
    """Composes affine maps, which is not commutative."""
    (a, b), (c, d) = first.T, second.T
    return np.stack([a * c % 1009, (b * c + d) % 1009], axis=1)


def equal_parts(comm):
    rank, n = comm.rank, comm.size
    root = n - 1
    mine, many = vector(rank, 1000), vector(rank, 10 * n).reshape(n, 10)

    data = mine.copy() if rank == root else np.zeros(1000, dtype=int)
    line(comm, "bcast", comm.bcast(data, root=root))
    result = comm.reduce(mine, op="sum", root=root)
    line(comm, "reduce", np.zeros(1000) if result is None else result)
    line(comm, "allreduce", comm.allreduce(mine))
    # The same in memory that is shared with the agent.
    send, recv = comm.alloc(1000, dtype=int), comm.alloc(1000, dtype=int)
    send[:] = mine
    line(comm, "allreduce of buffers", comm.allreduce(send, recv=recv))
    data = mine.copy()
    line(comm, "allreduce_in_place", comm.allreduce(data, recv=data, op="max"))
    line(comm, "reduce_scatter", comm.reduce_scatter(many))
    line(comm, "scan", comm.scan(mine))
    line(comm, "exscan", comm.exscan(mine))
    result = comm.gather(mine[:10], root=root)
    line(comm, "gather", np.zeros(10 * n) if result is None else result)
    line(comm, "allgather", comm.allgather(mine[:10]))
    line(comm, "scatter", comm.scatter(many, recv=np.zeros(10, dtype=int), root=root))
    line(comm, "alltoall", comm.alltoall(many))


def unequal_parts(comm):
    rank, n = comm.rank, comm.size
    counts = [i % 3 * 50 for i in range(n)]
    pairs = [i % 5 for i in range(n * n)]
    mine, whole = vector(rank, counts[rank]), vector(rank, sum(counts))

    result = comm.gather(mine, counts=counts)
    line(comm, "gatherv", np.zeros(sum(counts)) if result is None else result)
    line(comm, "allgatherv", comm.allgather(mine, counts=counts))
    part = np.zeros(counts[rank], dtype=int)
    line(comm, "scatterv", comm.scatter(whole, recv=part, counts=counts))
    line(comm, "reduce_scatter_counts", comm.reduce_scatter(whole, counts=counts))
    sent = vector(rank, sum(pairs[rank * n : (rank + 1) * n]))
    line(comm, "alltoallv", comm.alltoall(sent, counts=pairs))


def types_and_functions(comm):
    rank = comm.rank
    average = comm.allreduce(vector(rank, 2)[1:].astype(np.float64), op="average")
    line(comm, "average of f64", average * 1024)
    line(comm, "bit_xor of u8", comm.allreduce(vector(rank, 3).astype(np.uint8), op="bit_xor"))
    here = np.array([(vector(rank, 6)[5], rank)], dtype=cool.located(np.float64))
    best = comm.allreduce(here, op="min_loc")[0]
    line(comm, "min_loc of f64", [int(best["value"]), int(best["index"])])
    maps = np.stack([vector(rank, 5), vector(rank, 10)[5:]], axis=1)
    line(comm, "allreduce by a function", comm.allreduce(maps, op=then))


def started_and_split(comm):
    rank = comm.rank
    data = np.zeros(1010, dtype=int)
    mine = vector(rank, 1000)
    first = comm.iallreduce(mine, recv=data[:1000])
    second = comm.iallreduce(mine[:10], recv=data[1000:], op="min")
    cool.wait_all([comm.ibarrier(), second, first])
    line(comm, "started", data)

    # The even ranks, in reverse order, and the odd ones.
    with comm.split(rank % 2, key=-rank if rank % 2 == 0 else rank) as part:
        ranks = part.allgather(np.array([rank]))
    line(comm, "split", ranks)


def messages(comm):
    """Sends messages around a ring: to the next rank, received from any rank."""
    rank, n = comm.rank, comm.size
    data = np.zeros(20_000, dtype=int)
    sent = [comm.isend(vector(rank, 10), (rank + 1) % n, tag=1), comm.isend(vector(rank, 15_000), (rank + 1) % n, tag=2)]
    second = comm.irecv(data[10:], source=(rank - 1) % n, tag=2)
    second.wait()
    first = comm.recv(data[:10])
    cool.wait_all(sent)
    line(comm, "messages", [*data, *first, second.message[0], second.message[2]])


def recovered(comm):
    """Lets odd ranks leave a group, which rank 0 revokes; the even ranks recover."""
    results, survivors = [], []
    with comm.dup() as copy:
        if comm.rank % 2 == 0:
            if comm.rank == 0:
                copy.revoke()
            try:
                copy.barrier()
            except cool.Error:
                results.append(1)
            flags, gone = copy.agree(0xFF ^ 1 << comm.rank % 8)
            with copy.shrink() as rest:
                results += [flags, *gone, *rest.gone]
                survivors = rest.allgather(np.array([comm.rank]))
    line(comm, "agreed", results)
    line(comm, "shrunk", survivors)


def error_codes(call):
    """Returns the C code of an error and the ranks that the error names."""
    codes = {cool.ArgumentError: 1, cool.MismatchError: 4, cool.TimeoutError: 5, cool.LostError: 6, cool.AbortedError: 7}
    try:
        call()
    except cool.Error as error:
        return [codes.get(type(error), -1), *error.ranks]
    return [0]


def errors(comm):
    """Prints the errors of each rank for an invalid argument, for mismatching calls, and for a rank that does not join a
    call in time or has left."""
    rank, n = comm.rank, comm.size
    line(comm, "wrong root", error_codes(lambda: comm.bcast(np.zeros(1, dtype=int), root=n)))

    with comm.dup() as copy:
        mine = vector(rank, 11 if rank == n - 1 else 10)
        line(comm, "other length", error_codes(lambda: copy.allreduce(mine))[:1])
        line(comm, "failed before", error_codes(copy.barrier)[:1])

    # The last rank is alive, but calls only after the others have failed.
    with comm.dup() as copy:
        copy.set_timeout(6)
        codes = [] if rank == n - 1 else error_codes(copy.barrier)
        comm.barrier()
    line(comm, "not in time", codes)

    with comm.dup() as copy:
        codes = [] if rank == n - 1 else error_codes(copy.barrier)
    line(comm, "left", codes)


def main(world):
    equal_parts(world)
    unequal_parts(world)
    types_and_functions(world)
    started_and_split(world)
    messages(world)
    recovered(world)
    errors(world)


if __name__ == "__main__":
    cool.launch(main)
