#!/usr/bin/env python3
"""K-means at the papers' scale, simulated in full: 7,420,000 points of 512 bytes into 1,000,000 clusters on 125 nodes.

    bench/papers_scale.py [--docs]      # a minute or two, on one core

Their cluster ("Clustering Social Images", 6.1 and 6.2): 125 nodes under 5 switches, with links of 1 Gbit/s, and one of
10 Gbit/s from each switch to the core. What an iteration sends is counted as cool-kmeans would send it, row by row in its narrowest form
(apps/mapcollective/src/table/rows.rs), from labels that are drawn evenly: real points crowd, which leaves fewer rows. How long
that takes is what `cool simulate` says of the plan that agents would pick, for each of the iteration's collectives.
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
POINTS, DIMENSIONS, CLUSTERS = 7_420_000, 512, 1_000_000
RACKS, RACK_NODES = 5, 25
NODES = RACKS * RACK_NODES
NETWORK = ["--topology", "tree:%dx%d" % (RACKS, RACK_NODES), "--host-mbit", "1000", "--uplink-mbit", "10000", "--burst", "0"]
# What the papers measured: seconds of communication in an iteration.
PAPERS_SECONDS = 169


def varint(number):
    """Bytes of postcard's form of a number."""
    return max(1, -(-number.bit_length() // 7))


def row_bytes(skipped, numbers, bits):
    """Of a row: how many rows were left out before it, how wide its numbers are, the numbers packed."""
    return varint(skipped) + 1 + -(-numbers * bits // 8)


def sums_bytes(counts, clusters, dimensions, owners):
    """Bytes that a rank has for each owner, of the sums of its points in clusters: `counts` are its points in each that has some.

    A row's numbers are as wide as its largest may be: that of a sum of `counts` bytes."""
    bounds = [clusters * owner // owners for owner in range(owners + 1)]
    sizes, owner, next_row = [0] * owners, 0, 0
    for row in sorted(counts):
        while row >= bounds[owner + 1]:
            owner, next_row = owner + 1, 0
        sizes[owner] += row_bytes(row - next_row, dimensions + 1, (255 * counts[row]).bit_length())
        next_row = row + 1
    return sizes


def moves_bytes(rows, dimensions):
    """Bytes of centroids' moves, on a grid of 1/128 of a byte: 16 bits a number hold any."""
    return sum(row_bytes(0, dimensions, 16) for _ in range(rows))


def simulate(program, operation, size):
    """Seconds of a collective by the plan that agents would pick, message by message, and the plan."""
    def run(*more):
        command = [program, "simulate", "--op", operation, "--bytes", str(size), "--json", *NETWORK, *more]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    picked = run()["picked"]
    return run("--plan", picked)["plans"][0]["seconds"], picked


def exchanged(each):
    """Bytes on a node's link and on a rack's, one way, when every node has this much for each."""
    return each * (NODES - 1), each * RACK_NODES * (NODES - RACK_NODES)


def to_all(each):
    """The same when every node's own part goes to all, once over each link."""
    return each * (NODES - 1), each * (NODES - RACK_NODES)


def stages():
    """Of each collective of an iteration: its name, operation, bytes as `cool simulate` wants them, bytes of links."""
    chance = random.Random(1)
    counts = collections.Counter(chance.randrange(CLUSTERS) for _ in range(POINTS // NODES))
    sums = max(sums_bytes(counts, CLUSTERS, DIMENSIONS, NODES))
    moves = moves_bytes(CLUSTERS // NODES, DIMENSIONS)
    here = [("regroup: sums of %s rows a node, in narrow form" % format(len(counts), ","), "alltoall", sums, exchanged(sums)),
            ("combine: moves of all centroids", "allgather", moves, to_all(moves))]
    # Their intermediate data is 2 GB a node after the node's own reduction, 4 bytes a number; centroids are bytes.
    dense, part = 4 * CLUSTERS * DIMENSIONS // NODES, CLUSTERS * DIMENSIONS // NODES
    whole = part * NODES
    theirs = [("regroup of all sums, 250 GB", "alltoall", dense, exchanged(dense)),
              ("gather of centroids", "gather", part, (whole - part, whole - part * RACK_NODES)),
              ("broadcast of centroids, 512 MB", "bcast", whole, (whole, whole))]
    return {"K-means here": here, "the papers' three stages": theirs}


def least_memory(program, points, clusters):
    """Bytes that cool-kmeans says that a rank takes at least, with this number of points and clusters."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "points.npy")
        header = "{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d), }\n" % (points, DIMENSIONS)
        with open(path, "wb") as f:
            f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(points * DIMENSIONS))
        done = subprocess.run([program, path, "-k", str(clusters), "--memory", "1", "--alone"], capture_output=True, text=True)
    found = re.search(r"take (\d+) bytes", done.stderr)
    if not found:
        raise SystemExit("%s does not say how much memory it takes: %s" % (program, done.stderr))
    return int(found[1])


def memory(program):
    """The same at the papers' scale: it grows in proportion to points and to clusters."""
    one = least_memory(program, 100, 10)
    point, cluster = least_memory(program, 200, 10) - one, least_memory(program, 100, 20) - one
    return point / 100 * POINTS / NODES + cluster / 10 * CLUSTERS


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=os.path.join(ROOT, "target", "release", "cool"), help="default %(default)s")
    p.add_argument("--kmeans", default=os.path.join(ROOT, "target", "release", "cool-kmeans"), help="default %(default)s")
    p.add_argument("--docs", action="store_true", help="write the table to docs/guide/kmeans.md too")
    arguments = p.parse_args()
    gb = lambda size: "%.2f" % (size / 1e9)
    lines = ["`bench/papers_scale.py`: %s x %d into %s on %d nodes in %d racks, links of 1 and 10 Gbit/s:" % (
        format(POINTS, ","), DIMENSIONS, format(CLUSTERS, ","), NODES, RACKS), "",
        "| stage of an iteration | plan | GB on a node's link | GB on a rack's | seconds simulated |",
        "| --- | --- | --: | --: | --: |"]
    for whose, rows in stages().items():
        total = [0, 0, 0.0]
        for name, operation, size, (node, part) in rows:
            seconds, plan = simulate(arguments.program, operation, size)
            total = [total[0] + node, total[1] + part, total[2] + seconds]
            lines.append("| %s: %s | %s | %s | %s | %.2f |" % (whose, name, plan, gb(node), gb(part), seconds))
        lines.append("| **%s** | | %s | %s | **%.1f** |" % (whose, gb(total[0]), gb(total[1]), total[2]))
    lines.append("| the papers' measurement | | | | %d |" % PAPERS_SECONDS)
    lines += ["", "A node's points, centroids and sums take %s GB of memory, as cool-kmeans counts them (the papers' nodes have 16)." % gb(
        memory(arguments.kmeans))]
    print("\n".join(lines))
    if arguments.docs:
        section.replace(os.path.join(ROOT, "docs", "measurements", "kmeans.md"), "bench/papers_scale.py", "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
