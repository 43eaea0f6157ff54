"""Map-Collective: iterative MapReduce whose stages are collectives, on objects and NumPy arrays.

A job's input is cut into partitions, which stay in the memory of the ranks. An iteration maps them on all threads, each
into a table of keys and values, regroups values by key to the ranks that own the keys, and combines what the owners
have, at all ranks or at one::

    import collections
    import cool
    import cool.map

    pages = ["a rose is a rose", "is a rose"]

    def main(world):
        texts = cool.map.Partitions(len(pages))

        def program(job):
            job.deal(texts, lambda page: pages[page])
            words = job.map(texts, cool.map.Keyed("sum"), lambda text: collections.Counter(text.split()))
            return job.combine(job.regroup(words))

        return cool.map.run(world, program)

    print(cool.launch(main)[0])    # {'a': 3, 'is': 2, 'rose': 3}

Results are the same bits on any number of threads and ranks: values merge along a binary tree over the partitions. When
ranks are lost, ``run`` runs the program again on those that are left; partitions that they hold are not loaded again, and
iterations go on from the last whole one. An exception at one rank ends the job at all.

Objects travel and are kept as pickle's bytes. Map tasks are called by several threads: what they spend in NumPy runs in
parallel.
"""

import operator

import numpy as np

from ._cool import Job, Mapped, Partitions, Progress
from ._cool import run_job as run

__all__ = ["Job", "Keyed", "Mapped", "Partitions", "Progress", "Rows", "run"]


def _least(left, right):
    return np.minimum(left, right) if isinstance(left, np.ndarray) else min(left, right)


def _greatest(left, right):
    return np.maximum(left, right) if isinstance(left, np.ndarray) else max(left, right)


_MERGES = {"sum": operator.add, "min": _least, "max": _greatest}


class Keyed(dict):
    """Keys with values: a dict whose values of one key are merged.

    ``merge`` is "sum", "min", "max" (of arrays, number by number) or a function of two values, that of earlier partitions
    first, which is associative, returns the merged one and changes neither. Keys are int, str, bytes, None and tuples of
    them; values are what pickle takes.
    """

    def __init__(self, merge="sum", values=()):
        super().__init__(values)
        self.merge = merge
        if not callable(merge) and merge not in _MERGES:
            raise ValueError(f"merge={merge!r}: there are {', '.join(_MERGES)} and functions of two values")

    @property
    def _function(self):
        return self.merge if callable(self.merge) else _MERGES[self.merge]


class Rows:
    """Rows of numbers that are added up, numbered from 0 to ``count - 1``, each ``width`` wide: int32, int64, float32 or
    float64. Rows of zeros are as good as none: they take no memory and are not sent.

    ``keys`` are the numbers of the rows that there are, rising, and ``values`` these rows.
    """

    def __init__(self, count, width=1, dtype=np.float64, keys=(), values=()):
        self.count, self.width, self.dtype = operator.index(count), operator.index(width), np.dtype(dtype)
        if not 0 <= self.count < 2**32 - 1 or self.width < 1:
            raise ValueError(f"{count} rows of {width} numbers; there are up to 2**32 - 2, of one number and more")
        self.keys, self.values = _checked((keys, values), self.count, self.width, self.dtype)

    def __len__(self):
        return len(self.keys)

    def dense(self):
        """All rows, those of zeros too: an array of shape (count, width)."""
        rows = np.zeros((self.count, self.width), self.dtype)
        rows[self.keys] = self.values
        return rows


def _checked(result, count, width, dtype):
    """What a map task has returned, as row numbers and rows that can be taken as they are."""
    if isinstance(result, Rows):
        keys, values = result.keys, result.values
    elif isinstance(result, tuple):
        keys, values = result
    else:
        keys, values = np.arange(count), result
    keys, values = np.asarray(keys), np.asarray(values)
    if keys.size == 0:
        return np.empty(0, np.int64), np.empty((0, width), dtype)
    if keys.dtype.kind not in "iu" or keys.min() < 0 or keys.max() >= count:
        raise ValueError(f"row numbers are integers from 0 to {count - 1}; there are {keys.min()} to {keys.max()}")
    if not np.can_cast(values.dtype, dtype):
        raise TypeError(f"rows of {values.dtype} do not become {dtype} without loss; .astype({str(dtype)!r}) makes them so")
    if values.size != keys.size * width:
        raise ValueError(f"{keys.size} rows of {width} numbers have a shape of ({keys.size}, {width}), not {values.shape}")
    return np.ascontiguousarray(keys.ravel(), np.int64), np.ascontiguousarray(values, dtype).reshape(keys.size, width)
