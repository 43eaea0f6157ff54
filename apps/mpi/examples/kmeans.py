#!/usr/bin/env python3
"""K-means with mpi4py. Every rank holds some points; all ranks sum the points of each center.

    mpirun -n 4 kmeans.py [POINTS PER RANK [CENTERS [DIMENSIONS [ROUNDS]]]]

Coordinates are integers, so that sums do not depend on their order: the result is the same to the
last bit with any MPI library.
"""
import sys

import numpy as np
from mpi4py import MPI


def nearest(points, centers):
    """Returns the number of the nearest center of each point, and the squared distance."""
    squares = (points ** 2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers ** 2).sum(axis=1)
    return squares.argmin(axis=1), squares.min(axis=1)


def main():
    count, k, dimensions, rounds = [int(a) for a in sys.argv[1:]] + [2000, 64, 64, 20][len(sys.argv) - 1:]
    world = MPI.COMM_WORLD
    random = np.random.default_rng(world.rank)
    points = random.integers(-1000, 1000, (count, dimensions)).astype(np.float64)
    centers = points[:k].copy()
    world.Bcast(centers)
    sums, totals = np.empty((k, dimensions + 1)), np.empty((k, dimensions + 1))
    for _ in range(rounds):
        labels, _ = nearest(points, centers)
        sums[:] = 0
        np.add.at(sums[:, :-1], labels, points)
        sums[:, -1] = np.bincount(labels, minlength=k)
        world.Allreduce(sums, totals)
        filled = totals[:, -1] > 0
        centers[filled] = totals[filled, :-1] / totals[filled, -1:]
    labels, squares = nearest(points, centers)
    sizes = world.reduce(np.bincount(labels, minlength=k))
    inertia = world.reduce(squares.sum())
    if world.rank == 0:
        print("%d points, sizes %d to %d, sum of centers %.9g, inertia %.9g" % (sizes.sum(), sizes.min(), sizes.max(), centers.sum(), inertia))


main()
