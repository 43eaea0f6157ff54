"""Collective communication for clusters with programmable networks, on NumPy arrays without copies.

A program is a function that runs as several ranks::

    import cool
    import numpy as np

    def main(world):
        x = np.full(1000, world.rank, dtype=np.float64)
        print(world.rank, world.allreduce(x, op="sum")[0])

    cool.launch(main)

``cool run -n 16 -- python3 program.py`` runs it on a cluster; so do srun, mpirun and torchrun. Started by hand, it runs
as 4 ranks (``COOL_EMBEDDED`` sets another number) in threads of one process, on loopback.

All ranks must call the same operations in the same order, with arrays of the same types and lengths. Arrays must be
C-contiguous; tensors with ``__dlpack__`` (PyTorch, JAX) can be used instead. The interpreter lock is released while a
call waits. A failed call raises a subclass of :class:`Error`, which names the ranks and the remedy. No call waits
forever.
"""

from ._cool import (
    AbortedError,
    AgentError,
    ArgumentError,
    Cluster,
    Comm,
    EnvironmentError,
    Error,
    LostError,
    MismatchError,
    Queue,
    Request,
    RevokedError,
    TimeoutError,
    TruncatedError,
    agent_socket,
    join,
    launch,
    world,
)

__all__ = [
    "AbortedError",
    "AgentError",
    "ArgumentError",
    "Cluster",
    "Comm",
    "EnvironmentError",
    "Error",
    "LostError",
    "MismatchError",
    "Queue",
    "Request",
    "RevokedError",
    "TimeoutError",
    "TruncatedError",
    "agent_socket",
    "join",
    "launch",
    "located",
    "pair",
    "wait_all",
    "world",
]


def located(value):
    """Returns the dtype of values with an index, for the operations ``min_loc`` and ``max_loc``.

    ``value`` must be int32, int64, float32 or float64. The index is unsigned and has the same width.
    """
    import numpy

    value = numpy.dtype(value)
    return numpy.dtype([("value", value), ("index", numpy.dtype(f"u{value.itemsize}"))])


def pair(value):
    """Returns the dtype of MPI's pairs of a value and a signed 32-bit index, in C layout (``MPI_DOUBLE_INT`` for float64).

    ``value`` must be int16, int32, int64, float32 or float64. Used for ``min_loc`` and ``max_loc``, as ``located``.
    """
    import numpy

    return numpy.dtype([("value", numpy.dtype(value)), ("index", numpy.dtype("i4"))], align=True)


def wait_all(requests):
    """Waits for all requests and returns a list of their results. Raises the first error, after all have completed."""
    results, first = [], None
    for request in requests:
        try:
            results.append(request.wait())
        except Error as error:
            first = first or error
    if first is not None:
        raise first
    return results


async def _awaited(request):
    """Waits for a request in a thread of the running event loop, and returns its result."""
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, request.wait)
