#!/usr/bin/env python3
"""K-means at the papers' scale, simulated in full: 7,420,000 points of 512 bytes into 1,000,000
clusters on 125 nodes.

    bench/papers_scale.py [--docs]      # takes one or two minutes on one core

The cluster is that of "Clustering Social Images", 6.1 and 6.2: 125 nodes under 5 switches, with
links of 1 Gbit/s, and one link of 10 Gbit/s from each switch to the core. The bytes of an iteration
are counted as cool-kmeans would send them, row by row in the narrowest form
(apps/mapcollective/src/table/rows.rs). Labels are drawn uniformly; real points are concentrated in
fewer clusters, which results in fewer rows. The time is the prediction of `cool simulate` for the
plan that agents would pick, for each collective of the iteration.
"""
import argparse
import collections
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

import section

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(ROOT, "mininet"))
from build_directory import TARGET  # noqa: E402

POINTS, DIMENSIONS, CLUSTERS = 7_420_000, 512, 1_000_000
RACKS, RACK_NODES = 5, 25
NODES = RACKS * RACK_NODES
NETWORK = ["--topology", "tree:%dx%d" % (RACKS, RACK_NODES), "--host-mbit", "1000", "--uplink-mbit", "10000", "--burst", "0"]
# Seconds of communication per iteration that the papers measured.
PAPERS_SECONDS = 169


def varint(number):
    """Returns the number of bytes of a number in postcard's encoding."""
    return max(1, -(-number.bit_length() // 7))


def row_bytes(skipped, numbers, bits):
    """Returns the bytes of an encoded row: the number of rows skipped before it, the width of its
    numbers, and the packed numbers."""
    return varint(skipped) + 1 + -(-numbers * bits // 8)


def sums_bytes(counts, clusters, dimensions, owners):
    """Returns the bytes of sums that a rank sends to each owner. `counts` maps its non-empty
    clusters to their number of points.

    The numbers of a row are as wide as its largest number can be, which is the sum of `counts`
    bytes."""
    bounds = [clusters * owner // owners for owner in range(owners + 1)]
    sizes, owner, next_row = [0] * owners, 0, 0
    for row in sorted(counts):
        while row >= bounds[owner + 1]:
            owner, next_row = owner + 1, 0
        sizes[owner] += row_bytes(row - next_row, dimensions + 1, (255 * counts[row]).bit_length())
        next_row = row + 1
    return sizes


def moves_bytes(rows, dimensions):
    """Returns the bytes of the moves of centroids on a grid of 1/128 of a byte, for which 16 bits
    per number suffice."""
    return sum(row_bytes(0, dimensions, 16) for _ in range(rows))


def simulate(program, operation, size):
    """Simulates a collective message by message. Returns its seconds and the plan that agents would
    pick."""
    def run(*more):
        command = [program, "simulate", "--op", operation, "--bytes", str(size), "--json", *NETWORK, *more]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    plan = run()["picked"]
    return run("--plan", plan)["plans"][0]["seconds"], plan


def alltoall_bytes(size):
    """Returns the bytes on the link of a node and of a rack, in one direction, if every node sends
    `size` bytes to every other."""
    return size * (NODES - 1), size * RACK_NODES * (NODES - RACK_NODES)


def allgather_bytes(size):
    """Returns the bytes on the link of a node and of a rack, in one direction, if every node sends
    its part of `size` bytes to all others, once over each link."""
    return size * (NODES - 1), size * (NODES - RACK_NODES)


def stages():
    """Returns the collectives of an iteration: name, operation, bytes as `cool simulate` expects
    them, and bytes on links."""
    generator = random.Random(1)
    counts = collections.Counter(generator.randrange(CLUSTERS) for _ in range(POINTS // NODES))
    sums = max(sums_bytes(counts, CLUSTERS, DIMENSIONS, NODES))
    moves = moves_bytes(CLUSTERS // NODES, DIMENSIONS)
    cool_stages = [("regroup: sums of %s rows per node, in narrow form" % format(len(counts), ","),
             "alltoall", sums, alltoall_bytes(sums)),
            ("combine: moves of all centroids", "allgather", moves, allgather_bytes(moves))]
    # The papers' intermediate data is 2 GB per node after the local reduction, with 4 bytes per
    # number; centroids are bytes.
    dense, part = 4 * CLUSTERS * DIMENSIONS // NODES, CLUSTERS * DIMENSIONS // NODES
    all_bytes = part * NODES
    paper_stages = [("regroup of all sums, 250 GB", "alltoall", dense, alltoall_bytes(dense)),
              ("gather of centroids", "gather", part, (all_bytes - part, all_bytes - part * RACK_NODES)),
              ("broadcast of centroids, 512 MB", "bcast", all_bytes, (all_bytes, all_bytes))]
    return {"COOL": cool_stages, "the papers' three stages": paper_stages}


def least_memory(program, points, clusters):
    """Returns the bytes of memory that cool-kmeans reports as the minimum of a rank with this
    number of points and clusters."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "points.npy")
        header = "{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d), }\n" % (points, DIMENSIONS)
        with open(path, "wb") as f:
            f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(points * DIMENSIONS))
        process = subprocess.run([program, path, "-k", str(clusters), "--memory", "1", "--alone"], capture_output=True, text=True)
    match = re.search(r"take (\d+) bytes", process.stderr)
    if not match:
        raise SystemExit("%s did not report its memory requirement: %s" % (program, process.stderr))
    return int(match[1])


def memory(program):
    """Returns the minimum memory of a rank at the papers' scale, in bytes. It is extrapolated,
    because it is linear in points and in clusters."""
    base = least_memory(program, 100, 10)
    point, cluster = least_memory(program, 200, 10) - base, least_memory(program, 100, 20) - base
    return point / 100 * POINTS / NODES + cluster / 10 * CLUSTERS


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=os.path.join(TARGET, "release", "cool"),
                   help="path of cool; default %(default)s")
    p.add_argument("--kmeans", default=os.path.join(TARGET, "release", "cool-kmeans"),
                   help="path of cool-kmeans; default %(default)s")
    p.add_argument("--docs", action="store_true",
                   help="also write the table to docs/measurements/kmeans.md")
    arguments = p.parse_args()
    gb = lambda size: "%.2f" % (size / 1e9)
    lines = ["`bench/papers_scale.py`: %s x %d into %s on %d nodes in %d racks, links of 1 and 10 Gbit/s:" % (
        format(POINTS, ","), DIMENSIONS, format(CLUSTERS, ","), NODES, RACKS), "",
        "| stage of an iteration | plan | GB on a node's link | GB on a rack's link | simulated seconds |",
        "| --- | --- | --: | --: | --: |"]
    for source, rows in stages().items():
        total = [0, 0, 0.0]
        for name, operation, size, (node, rack) in rows:
            seconds, plan = simulate(arguments.program, operation, size)
            total = [total[0] + node, total[1] + rack, total[2] + seconds]
            lines.append("| %s: %s | %s | %s | %s | %.2f |" % (source, name, plan, gb(node), gb(rack), seconds))
        lines.append("| **%s** | | %s | %s | **%.1f** |" % (source, gb(total[0]), gb(total[1]), total[2]))
    lines.append("| the papers' measurement | | | | %d |" % PAPERS_SECONDS)
    lines += ["", "A node's points, centroids and sums need %s GB of memory according to "
                  "cool-kmeans (the papers' nodes have 16 GB)." % gb(
        memory(arguments.kmeans))]
    print("\n".join(lines))
    if arguments.docs:
        section.replace("kmeans.md", "bench/papers_scale.py", "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
