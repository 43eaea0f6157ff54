"""Multidimensional scaling by SMACOF (de Leeuw, 1977; Borg and Groenen, "Modern Multidimensional Scaling", chapter 8): places
points in the plane so that their distances match the given ones. `smacof.py DISTANCES` reads a matrix, one row on each line, and
prints the stress, then the points."""
import sys

import cool
import cool.map
import numpy as np

# Number of matrix rows in a partition.
BLOCK = 16
# Iterations end when the stress decreases by a smaller fraction.
TOLERANCE = 1e-9


def scale(world, distances):
    """Returns points with distances close to the given ones, row by row, and their stress, the sum of squared differences."""
    n = len(distances)
    parts, progress = cool.map.Partitions(-(-n // BLOCK)), cool.map.Progress()

    def spiral():
        # Any points that are not all equal are suitable.
        radius, angle = 1.0 + np.arange(n), 2.4 * np.arange(n)
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1), np.inf, np.inf

    def step(job, state):
        points, previous_stress, _ = state

        def transform(block):
            """Returns the Guttman transform, row by row; row n contains the stress."""
            differences = points[block, None] - points
            current, target = np.hypot(*differences.T).T, distances[block]
            ratio = np.divide(target, current, out=np.zeros_like(current), where=current > 0)
            rows = (ratio[:, :, None] * differences).sum(axis=1) / n
            stress = [((current - target) ** 2).sum() / 2, 0]
            return np.append(block, n), np.vstack([rows, stress])

        rows = job.combine(job.regroup(job.map(parts, cool.map.Rows(n + 1, 2), transform))).dense()
        return rows[:n], rows[n, 0], previous_stress

    def program(job):
        job.deal(parts, lambda number: np.arange(number * BLOCK, min(n, (number + 1) * BLOCK)))
        has_converged = lambda state, done: done > 2 and state[2] - state[1] <= TOLERANCE * state[2]
        return job.iterate(progress, spiral, lambda state, _: step(job, state), until=has_converged)[:2]

    return cool.map.run(world, program)


def main(world):
    distances = np.loadtxt(sys.argv[1], ndmin=2)
    driver = world.rank == 0
    points, stress = scale(world, distances)
    if driver:
        print(repr(float(stress)))
        for x, y in points.tolist():
            print(x, y)


if __name__ == "__main__":
    cool.launch(main)
