#!/usr/bin/env python3
"""K-means by mpi4py, as programs of it are: every rank has its points, and all sum what they have found of each centre.

    mpirun -n 4 kmeans.py [POINTS OF A RANK [CENTRES [DIMENSIONS [ROUNDS]]]]

Coordinates are whole numbers, so that sums do not depend on their order: whatever adds them up, the result is the same to the last bit.
"""
import sys

import numpy as np
from mpi4py import MPI


def nearest(points, centres):
    """The number of the nearest centre of each point, and the square of its distance."""
    squares = (points ** 2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres ** 2).sum(axis=1)
    return squares.argmin(axis=1), squares.min(axis=1)


def main():
    count, k, dimensions, rounds = [int(a) for a in sys.argv[1:]] + [2000, 64, 64, 20][len(sys.argv) - 1:]
    world = MPI.COMM_WORLD
    random = np.random.default_rng(world.rank)
    points = random.integers(-1000, 1000, (count, dimensions)).astype(np.float64)
    centres = points[:k].copy()
    world.Bcast(centres)
    sums, totals = np.empty((k, dimensions + 1)), np.empty((k, dimensions + 1))
    for _ in range(rounds):
        labels, _ = nearest(points, centres)
        sums[:] = 0
        np.add.at(sums[:, :-1], labels, points)
        sums[:, -1] = np.bincount(labels, minlength=k)
        world.Allreduce(sums, totals)
        filled = totals[:, -1] > 0
        centres[filled] = totals[filled, :-1] / totals[filled, -1:]
    labels, squares = nearest(points, centres)
    sizes = world.reduce(np.bincount(labels, minlength=k))
    inertia = world.reduce(squares.sum())
    if world.rank == 0:
        print("%d points, sizes %d to %d, sum of centres %.9g, inertia %.9g" % (sizes.sum(), sizes.min(), sizes.max(), centres.sum(), inertia))


main()
