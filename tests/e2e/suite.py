"""The expected output of the suite programs (libcool/examples/suite.rs, libcool/c/examples/suite.c,
libcool/python/examples/suite.py): for each step, the data that every rank receives, derived from
the definitions of the operations."""
from functools import reduce


def x(rank, i):
    return (rank * 31 + i * 7 + 3) % 101


def vector(rank, count):
    return [x(rank, i) for i in range(count)]


def add(vectors):
    """Adds element by element."""
    return [sum(elements) for elements in zip(*vectors)]


def parts(values, counts):
    """Cuts data into pieces of these lengths."""
    begins = [sum(counts[:i]) for i in range(len(counts))]
    return [values[begin:begin + count] for begin, count in zip(begins, counts)]


def joined(vectors):
    return [value for vector in vectors for value in vector]


def fnv(values):
    number = 0xCBF29CE484222325
    for byte in b"".join(value.to_bytes(8, "little", signed=True) for value in values):
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return number


def equal_parts(n):
    """Returns the steps with equal parts; rank n - 1 is the root."""
    ranks, root = range(n), n - 1
    mine, many = [vector(r, 1000) for r in ranks], [parts(vector(r, 10 * n), [10] * n) for r in ranks]
    at_root = lambda values: [values if r == root else [0] * len(values) for r in ranks]
    everywhere = lambda values: [values] * n
    heads = joined(m[:10] for m in mine)
    return {
        "bcast": everywhere(mine[root]),
        "reduce": at_root(add(mine)),
        "allreduce": everywhere(add(mine)),
        "allreduce of buffers": everywhere(add(mine)),
        "allreduce_in_place": everywhere([max(elements) for elements in zip(*mine)]),
        "reduce_scatter": [add(many[s][r] for s in ranks) for r in ranks],
        "scan": [add(mine[:r + 1]) for r in ranks],
        "exscan": [add(mine[:r]) or [0] * 1000 for r in ranks],
        "gather": at_root(heads),
        "allgather": everywhere(heads),
        "scatter": [many[root][r] for r in ranks],
        "alltoall": [joined(many[s][r] for s in ranks) for r in ranks],
    }


def unequal_parts(n):
    """Returns the steps with unequal parts; rank 0 is the root."""
    ranks = range(n)
    counts = [r % 3 * 50 for r in ranks]
    pairs = [[(r * n + s) % 5 for s in ranks] for r in ranks]
    every = joined(vector(r, counts[r]) for r in ranks)
    whole = [parts(vector(r, sum(counts)), counts) for r in ranks]
    sent = [parts(vector(r, sum(pairs[r])), pairs[r]) for r in ranks]
    return {
        "gatherv": [every if r == 0 else [0] * len(every) for r in ranks],
        "allgatherv": [every] * n,
        "scatterv": whole[0],
        "reduce_scatter_counts": [add(whole[s][r] for s in ranks) for r in ranks],
        "alltoallv": [joined(sent[s][r] for s in ranks) for r in ranks],
    }


def types_and_functions(n):
    ranks = range(n)
    xors = [reduce(lambda a, b: a ^ b, (x(r, i) for r in ranks)) for i in range(3)]
    then = lambda f, g: (f[0] * g[0] % 1009, (f[1] * g[0] + g[1]) % 1009)
    maps = [reduce(then, ((x(r, i), x(r, i + 5)) for r in ranks)) for i in range(5)]
    return {
        "average of f64": [[int(sum(x(r, 1) for r in ranks) / n * 1024)]] * n,
        "bit_xor of u8": [xors] * n,
        "min_loc of f64": [list(min((x(r, 5), r) for r in ranks))] * n,
        "allreduce by a function": [joined(maps)] * n,
    }


def groups_and_messages(n):
    ranks = range(n)
    even, odd = list(ranks)[::2], list(ranks)[1::2]
    started = add(vector(r, 1000) for r in ranks) + [min(x(r, i) for r in ranks) for i in range(10)]
    before = [(r - 1) % n for r in ranks]
    received = lambda s: vector(s, 10) + vector(s, 15_000) + [0] * 4_990 + [s, 1, 10, s, 15_000]
    flags = reduce(lambda a, b: a & b, (0xFF ^ 1 << r % 8 for r in even))
    return {
        "started": [started] * n,
        "split": [even[::-1] if r % 2 == 0 else odd for r in ranks],
        "messages": [received(s) for s in before],
        "agreed": [[1, flags, *odd, *odd] if r % 2 == 0 else [] for r in ranks],
        "shrunk": [even if r % 2 == 0 else [] for r in ranks],
    }


def errors(n):
    """Returns the error codes of cool.h and the named ranks. With a single rank, only the argument
    is wrong."""
    argument, mismatch, timeout, lost, aborted = 1, 4, 5, 6, 7
    others = lambda code: [[code, n - 1]] * (n - 1) + [[]]
    return {
        "wrong root": [[argument]] * n,
        "other length": [[mismatch if n > 1 else 0]] * n,
        "failed before": [[aborted if n > 1 else 0]] * n,
        "not in time": others(timeout),
        "left": others(lost),
    }


def expected(n):
    """Returns all lines of n ranks."""
    steps = [equal_parts(n), unequal_parts(n), types_and_functions(n), groups_and_messages(n), errors(n)]
    return "".join("%s %s\n" % (name, " ".join("%016x" % fnv(values) for values in received))
                   for step in steps for name, received in step.items())
