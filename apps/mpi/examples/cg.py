#!/usr/bin/env python3
"""Conjugate gradients with mpi4py. Every rank holds rows of the matrix; all ranks gather the vector
by which it is multiplied.

    mpirun -n 4 cg.py [WIDTH [TOLERANCE]]

The matrix is that of Poisson's equation on a square of WIDTH x WIDTH points, with five numbers per
row.
"""
import sys

import numpy as np
from mpi4py import MPI


def times(vector, width, rows):
    """Returns the product of the matrix with the whole vector, in these rows of the square."""
    square = np.zeros((width + 2, width + 2))
    square[1:-1, 1:-1] = vector.reshape(width, width)
    own = square[rows.start:rows.stop + 2]
    return (4 * own[1:-1, 1:-1] - own[:-2, 1:-1] - own[2:, 1:-1] - own[1:-1, :-2] - own[1:-1, 2:]).ravel()


def main():
    width, tolerance = int((sys.argv[1:] or ["128"])[0]), float((sys.argv[2:] or ["1e-8"])[0])
    world = MPI.COMM_WORLD
    ends = [width * rank // world.size for rank in range(world.size + 1)]
    rows = range(ends[world.rank], ends[world.rank + 1])
    counts = [width * (end - begin) for begin, end in zip(ends, ends[1:])]

    def dot(a, b):
        return world.allreduce(float(a @ b))

    solution = np.zeros(counts[world.rank])
    residual = np.ones(counts[world.rank])
    direction, whole = residual.copy(), np.empty(width * width)
    square = first = dot(residual, residual)
    steps = 0
    while square > tolerance ** 2 * first:
        world.Allgatherv(direction, (whole, counts))
        product = times(whole, width, rows)
        step = square / dot(direction, product)
        solution += step * direction
        residual -= step * product
        square, before = dot(residual, residual), square
        direction = residual + square / before * direction
        steps += 1
    total = world.allreduce(float(solution.sum()))
    if world.rank == 0:
        print("%d steps, residual %.3e, sum of the solution %.9g" % (steps, (square / first) ** 0.5, total))


main()
