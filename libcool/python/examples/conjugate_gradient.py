"""Conjugate gradients (Hestenes and Stiefel, 1952) for Poisson's equation on a square of N x N
points. Each rank holds some rows of points. In an iteration it exchanges one row with each
neighbor, and all ranks add two numbers.

    COOL_EMBEDDED=4 python3 conjugate_gradient.py --grid 100
    cool run -n 16 -- /usr/bin/python3 conjugate_gradient.py --grid 100 --json

The same program exists in Rust (libcool/examples/conjugate_gradient.rs) and C
(libcool/c/examples/conjugate_gradient.c)."""
import argparse
import json
import math
import sys
import time

import cool
import numpy as np


class Poisson:
    """A rank's part of the matrix: 4 on the diagonal, -1 for each neighbor of a point within the
    square. Vectors are rows of points; vectors to multiply have a row of each neighbor before and
    after them."""

    def __init__(self, world, side):
        self.world, self.side = world, side
        self.rows = range(world.rank * side // world.size, (world.rank + 1) * side // world.size)

    def times(self, vector):
        """Multiplies the matrix by a vector, after updating the rows of the neighbors."""
        self.exchange(vector)
        own = vector[1:-1]
        product = 4 * own - vector[:-2] - vector[2:]
        product[:, 1:] -= own[:, :-1]
        product[:, :-1] -= own[:, 1:]
        return product

    def exchange(self, vector):
        """Sends the first and the last row to the neighbors and receives theirs. The sends are only
        started, because both neighbors send before they receive."""
        above, below = self.world.rank - 1, self.world.rank + 1
        neighbors = [(above, 1, 0)] if above >= 0 else []
        neighbors += [(below, -2, -1)] if below < self.world.size else []
        sent = [self.world.isend(vector[last], rank) for rank, last, _ in neighbors]
        for rank, _, beyond in neighbors:
            self.world.recv(vector[beyond], rank)
        cool.wait_all(sent)

    def dot(self, a, b):
        """Returns the inner product over all ranks."""
        return self.world.allreduce(np.array([np.vdot(a, b)]))[0]

    def solve(self, tolerance, max_iterations):
        """Solves the equations with the product of the matrix and a given vector as right-hand
        side, starting from 0. Returns the number of iterations, the relative residual, the relative
        error, and the seconds."""
        exact, direction = np.zeros((2, len(self.rows) + 2, self.side))
        exact[1:-1] = (np.array(self.rows)[:, None] * 31 + np.arange(self.side) * 7 + 3) % 101
        residual = self.times(exact)
        direction[1:-1] = residual
        solution = np.zeros_like(residual)
        first = square = self.dot(residual, residual)

        begin, iterations = time.monotonic(), 0
        while math.sqrt(square / first) > tolerance and iterations < max_iterations:
            product = self.times(direction)
            step = square / self.dot(direction[1:-1], product)
            solution += step * direction[1:-1]
            residual -= step * product
            previous_square, square = square, self.dot(residual, residual)
            direction[1:-1] = residual + square / previous_square * direction[1:-1]
            iterations += 1
        seconds = time.monotonic() - begin

        difference, exact = solution - exact[1:-1], exact[1:-1]
        error = math.sqrt(self.dot(difference, difference) / self.dot(exact, exact))
        return iterations, math.sqrt(square / first), error, seconds


def report(options, ranks, iterations, residual, error, seconds):
    """Prints the result, or returns an error message if it is wrong."""
    # The error is at most the residual times the condition number of the matrix.
    condition = math.tan(math.pi / 2 / (options.grid + 1)) ** -2
    if not residual <= options.tolerance:
        return f"the residual is still {residual:.3e} after {iterations} iterations"
    if not error <= condition * options.tolerance:
        return f"wrong: the error is {error:.3e}, with a residual of {residual:.3e}"
    each = seconds / iterations
    if options.json:
        print(json.dumps({"ranks": ranks, "grid": options.grid, "iterations": iterations, "residual": residual, "error": error,
                          "seconds": seconds, "seconds_per_iteration": each}))
    else:
        print(f"{ranks} ranks, {options.grid} x {options.grid} points: {iterations} iterations, residual {residual:.3e}, "
              f"error {error:.3e}, {seconds:.3f} s, {each * 1e3:.3f} ms per iteration")
    return None


def main(world, options):
    # An error that occurs at all ranks is printed by one.
    is_root = world.rank == 0
    if options.grid < world.size:
        return f"{options.grid} rows are too few for {world.size} ranks" if is_root else None
    outcome = Poisson(world, options.grid).solve(options.tolerance, options.max_iterations)
    return report(options, world.size, *outcome) if is_root else None


def fail(message):
    sys.exit(f"conjugate_gradient: {message}")


def between(kind, least, most):
    """Returns a parser of numbers within bounds."""
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: expected a number from {least} to {most}")
        return value
    return parse


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.error = fail
    p.add_argument("--grid", type=between(int, 1, 32768), default=64, help="points on each side of the square; default %(default)s")
    p.add_argument("--tolerance", type=between(float, 1e-12, 0.1), default=1e-8, help="residual at which to stop, divided by the first residual; from "
                   "1e-12, because rounding errors prevent less, to 0.1; default %(default)s")
    p.add_argument("--max-iterations", type=between(int, 1, 2**32 - 1), default=10_000, help="maximum number of iterations; default %(default)s")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    return p.parse_args()


if __name__ == "__main__":
    options = parse_arguments()
    try:
        messages = [message for message in cool.launch(lambda world: main(world, options)) if message]
    except cool.Error as e:
        fail(e)
    if messages:
        fail(messages[0])
