"""PageRank (Page, Brin, Motwani and Winograd, 1999): `pagerank.py LINKS` reads lines "FROM TO" of page numbers and prints the
rank of each page. Pages without links count as linking to all pages."""
import sys

import cool
import cool.map
import numpy as np

DAMPING = 0.85
# Number of partitions of the links, independent of the number of ranks.
PARTITIONS = 64
# Iterations end when the sum of all changes is less than this.
TOLERANCE = 1e-12


def rank_pages(world, links, pages):
    """Returns the ranks of the pages, whose sum is 1. `links` contains rows (from, to)."""
    degrees = np.bincount(links[:, 0], minlength=pages)
    parts, progress = cool.map.Partitions(PARTITIONS), cool.map.Progress()

    def program(job):
        job.deal(parts, lambda number: np.array_split(links, PARTITIONS)[number])

        def step(state, _):
            ranks, _ = state

            def contributions(part):
                source, target = part.T
                receiving_pages, positions = np.unique(target, return_inverse=True)
                return receiving_pages, np.bincount(positions, ranks[source] / degrees[source], len(receiving_pages))

            received = job.combine(job.regroup(job.map(parts, cool.map.Rows(pages), contributions))).dense()[:, 0]
            new = (1 - DAMPING + DAMPING * ranks[degrees == 0].sum()) / pages + DAMPING * received
            return new, np.abs(new - ranks).sum()

        first = lambda: (np.full(pages, 1 / pages), np.inf)
        return job.iterate(progress, first, step, until=lambda state, _: state[1] < TOLERANCE)[0]

    return cool.map.run(world, program)


def main(world):
    links = np.loadtxt(sys.argv[1], dtype=np.int64, ndmin=2)
    driver = world.rank == 0
    ranks = rank_pages(world, links, links.max() + 1)
    for page, rank in enumerate(ranks) if driver else ():
        print(page, repr(float(rank)))


if __name__ == "__main__":
    cool.launch(main)
