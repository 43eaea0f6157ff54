#!/usr/bin/env python3
"""Bytes of the busiest link in one iteration of K-means, on the emulated network, beside what the program counts.

    sudo bench/kmeans_bytes.py POINTS.npy -k 6400 --iteration 1 --iteration 20 [--bin FOLDER]

The bytes of iteration i are those of a run of i iterations less those of a run of i - 1 from the same first centroids
(points drawn by the seed), link by link: loading, seeding and the end cancel out, provided that ranks are placed alike. They may
not be, which only adds: so of several pairs of runs the least counts.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TESTBED = os.path.join(HERE, "..", "mininet", "testbed.py")


def run(a, iterations, folder):
    """The bytes of each link direction, and the summary of the run."""
    links, summary = (os.path.join(folder, "%s-%d.json" % (name, iterations)) for name in ("links", "summary"))
    command = [sys.executable, TESTBED, "--topology", a.topology, "--host-mbit", "200", "--uplink-mbit", "200", "--link-bytes", links]
    command += ["--bin", a.bin]
    command += ["--", "cool", "run", "-n", str(a.ranks), "--", os.path.join(a.bin, "cool-kmeans"), *a.command.split(), "-k", str(a.k), "--sample", "1"]
    command += [*a.options.split(), "-i", str(iterations), "--summary", summary, os.path.abspath(a.points)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(links) as f, open(summary) as g:
        return {(row["from"], row["to"]): row["bytes"] for row in json.load(f)}, json.load(g)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("points", help="an .npy table that all hosts can read")
    p.add_argument("-k", type=int, default=6400, help="clusters")
    p.add_argument("--iteration", type=int, action="append", help="which iterations (1 and 20)")
    p.add_argument("--repeat", type=int, default=4, help="pairs of runs, of which the least counts")
    p.add_argument("--topology", default="tree:4x4")
    p.add_argument("--ranks", type=int, default=16)
    p.add_argument("--bin", default=os.path.join(HERE, "..", "target", "release"), help="where the programs are")
    p.add_argument("--command", default="", help="of cool-kmeans: fit; by default none")
    p.add_argument("--options", default="--init random", help="further ones of cool-kmeans")
    a = p.parse_args()
    print("%9s %14s %14s %7s" % ("iteration", "busiest, bytes", "counted", "times"))
    with tempfile.TemporaryDirectory() as folder:
        for iteration in a.iteration or [1, 20]:
            found = []
            for _ in range(a.repeat):
                before, _ = run(a, iteration - 1, folder)
                after, summary = run(a, iteration, folder)
                found.append(max(after[ends] - before[ends] for ends in after))
            busiest = min(found)
            counted = summary.get("busiest_link_bytes", [])[iteration - 1:]
            shown = ("%14d %7.3f" % (counted[0], busiest / counted[0])) if counted else ""
            print("%9d %14d %s" % (iteration, busiest, shown), flush=True)


if __name__ == "__main__":
    main()
