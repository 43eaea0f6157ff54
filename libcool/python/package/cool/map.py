"""Map-Collective: iterative MapReduce on collectives, with Python objects and NumPy arrays.

The input of a job is divided into partitions, which stay in the memory of the ranks. An iteration maps the partitions
on all threads to tables of keys and values, regroups the values by key at the ranks that own the keys, and combines the
owners' tables at all ranks or at one::

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

Results are identical for any number of threads and ranks, because values are merged along a binary tree over the
partitions. If ranks are lost, ``run`` runs the program again on the surviving ranks; partitions that they hold are not
loaded again, and iterations continue from the last complete one. An exception at one rank ends the job at all ranks.

Objects are pickled for other ranks and for checkpoints. Several threads call map tasks; the parts of tasks that run in
NumPy run in parallel.
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
    """A table of keys and values: a dict in which the values of equal keys are merged.

    ``merge`` is "sum", "min", "max" (element-wise for arrays) or a function of two values, of which the first is that of
    earlier partitions. The function must be associative, must return the merged value and must not change its
    arguments. Keys must be int, str, bytes, None or tuples of them, and values must be picklable.
    """

    def __init__(self, merge="sum", values=()):
        super().__init__(values)
        self.merge = merge
        if not callable(merge) and merge not in _MERGES:
            raise ValueError(f"merge={merge!r}: must be {', '.join(_MERGES)} or a function of two values")

    @property
    def _function(self):
        return self.merge if callable(self.merge) else _MERGES[self.merge]


class Rows:
    """A table of rows of numbers, which are merged by addition.

    Rows are numbered from 0 to ``count - 1`` and have ``width`` elements of type int32, int64, float32 or float64. Rows
    of zeros are not stored and not sent. ``keys`` contains the numbers of the stored rows in ascending order, and
    ``values`` the rows.
    """

    def __init__(self, count, width=1, dtype=np.float64, keys=(), values=()):
        self.count, self.width, self.dtype = operator.index(count), operator.index(width), np.dtype(dtype)
        if not 0 <= self.count < 2**32 - 1 or self.width < 1:
            raise ValueError(f"{count} rows of {width} numbers: must be at most 2**32 - 2 rows of at least one number")
        self.keys, self.values = _checked((keys, values), self.count, self.width, self.dtype)

    def __len__(self):
        return len(self.keys)

    def dense(self):
        """Returns all rows, including those of zeros, as an array of shape (count, width)."""
        rows = np.zeros((self.count, self.width), self.dtype)
        rows[self.keys] = self.values
        return rows


def _checked(result, count, width, dtype):
    """Returns the result of a map task as row numbers and rows, after validating them."""
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
        raise ValueError(f"row numbers must be integers from 0 to {count - 1}, but are from {keys.min()} to {keys.max()}")
    if not np.can_cast(values.dtype, dtype):
        raise TypeError(f"rows of {values.dtype} cannot be converted to {dtype} without loss; use .astype({str(dtype)!r})")
    if values.size != keys.size * width:
        raise ValueError(f"{keys.size} rows of {width} numbers must have shape ({keys.size}, {width}), not {values.shape}")
    return np.ascontiguousarray(keys.ravel(), np.int64), np.ascontiguousarray(values, dtype).reshape(keys.size, width)
