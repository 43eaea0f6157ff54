"""Collective communication for clusters with programmable networks, on NumPy arrays without copies.

A program is a function that runs as many ranks::

    import cool
    import numpy as np

    def main(world):
        x = np.full(1000, world.rank, dtype=np.float64)
        print(world.rank, world.allreduce(x, op="sum")[0])

    cool.launch(main)

``cool run -n 16 -- python3 program.py`` runs it on a cluster, as do srun, mpirun and torchrun; started by hand, it
runs as 4 ranks (``COOL_EMBEDDED`` sets another number) in threads of one process, on loopback.

All ranks call the same operations in the same order with arrays of the same types and lengths. Arrays are C-contiguous;
tensors that have ``__dlpack__`` (PyTorch, JAX) can be used in their place. The interpreter lock is released while a call
waits. A call that fails raises a subclass of :class:`Error`, which names the ranks and the remedy; no call waits for ever.
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
    """The dtype of values with an index, for the operations ``min_loc`` and ``max_loc``.

    ``value`` is int32, int64, float32 or float64; the index is unsigned and as wide.
    """
    import numpy

    value = numpy.dtype(value)
    return numpy.dtype([("value", value), ("index", numpy.dtype(f"u{value.itemsize}"))])


def pair(value):
    """The dtype of MPI's pairs of a value and a signed index of 32 bits, laid out as C does (``MPI_DOUBLE_INT`` for float64).

    ``value`` is int16, int32, int64, float32 or float64. For ``min_loc`` and ``max_loc``, as ``located``.
    """
    import numpy

    return numpy.dtype([("value", numpy.dtype(value)), ("index", numpy.dtype("i4"))], align=True)


def wait_all(requests):
    """Waits for all of some requests; returns what each received. Raises the first error, after all have ended."""
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
    """Waits for a request in a thread of the running event loop."""
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, request.wait)
