#!/usr/bin/env python3
"""K-means beside scikit-learn, FAISS and SuperKMeans: one run, the same points, the same first centroids, the same threads.

    bench/kmeans.py                                            # all of docs/kmeans-benchmarks.md
    bench/kmeans.py --cases 20000x512:1000 --rounds 1 --iterations 5 --ends ""     # a small one

Each case is POINTSxDIMENSIONS:CLUSTERS. For every case: seconds of a full iteration (the slope between runs of one and of a
few iterations), seconds of --iterations iterations, and, for --ends, until no label changes, with the inertia that the final
centroids give, computed here alike for all. Peers get the points as float32 and their shortcuts off: FAISS takes all points,
not 256 a cluster; scikit-learn one start and no tolerance. Programs are measured in turn, --rounds times; medians count.

Points are bytes: a mixture in 32 hidden dimensions, spread over all, with groups of unequal size (seed 1), or --data FILE.npy.
Needs the venv that `make bench-kmeans` makes, and target/release/cool-kmeans.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
VENV = os.path.join(ROOT, "target", "kmeans-peers")
PACKAGES = ["numpy", "scikit-learn==1.9.1", "faiss-cpu==1.15.1", "superkmeans==0.2.0"]


def enter_venv():
    """Runs this program again with the peers' packages, which it installs if they are missing."""
    python = os.path.join(VENV, "bin", "python3")
    if os.path.realpath(sys.prefix) == os.path.realpath(VENV):
        return
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    os.execv(python, [python, *sys.argv])


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", default="200000x512:1000,200000x512:4000,200000x512:10000", help="default %(default)s")
    p.add_argument("--ends", default="200000x512:4000", help="cases that run until nothing moves; default %(default)s")
    p.add_argument("--data", help=".npy of bytes instead of made-up points; cases take their first rows")
    p.add_argument("--iterations", type=int, default=25, help="default %(default)s")
    p.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    p.add_argument("--threads", type=int, default=2, help="default %(default)s")
    p.add_argument("--peers", default="cool,scikit-learn,faiss,superkmeans", help="default %(default)s")
    p.add_argument("--docs", action="store_true", help="write the tables to docs/kmeans-benchmarks.md too")
    p.add_argument("--out", default=os.path.join(ROOT, "target", "bench"), help="folder; default %(default)s")
    return p.parse_args()


def made_up(np, n, dims):
    """Bytes with structure: unequal groups around centres in 32 hidden dimensions, and noise."""
    chance = np.random.default_rng(1)
    spread = chance.normal(size=(32, dims)).astype(np.float32)
    centres = chance.normal(size=(2000, 32)).astype(np.float32)
    weights = 1 / np.arange(1, 2001)
    points = np.empty((n, dims), np.uint8)
    for start in range(0, n, 10000):
        rows = min(10000, n - start)
        hidden = centres[chance.choice(2000, rows, p=weights / weights.sum())] + 0.5 * chance.normal(size=(rows, 32)).astype(np.float32)
        values = 110 + 12 * (hidden @ spread) + 6 * chance.normal(size=(rows, dims)).astype(np.float32)
        points[start:start + rows] = values.clip(0, 255).astype(np.uint8)
    return points


class Case:
    """Points, first centroids, and where COOL finds them."""

    def __init__(self, np, text, data, folder):
        shape, k = text.split(":")
        n, dims = map(int, shape.split("x"))
        self.name, self.k, self.np = text, int(k), np
        self.points = np.load(data, mmap_mode="r")[:n] if data else made_up(np, n, dims)
        self.points = np.ascontiguousarray(self.points)
        self.floats = self.points.astype(np.float32)
        self.first = self.floats[np.sort(np.random.default_rng(2).choice(n, self.k, replace=False))]
        self.file, self.first_file = (os.path.join(folder, name) for name in ("points.npy", "first.npy"))
        np.save(self.file, self.points)
        np.save(self.first_file, self.first.astype(np.float64))

    def inertia(self, centroids):
        """The sum of squared distances from the nearest centroids, in float64 but for the products."""
        np, total = self.np, 0.0
        norms = (centroids.astype(np.float64) ** 2).sum(1)
        for start in range(0, len(self.floats), 4096):
            x = self.floats[start:start + 4096].astype(np.float64)
            nearest = (norms - 2 * (x @ centroids.astype(np.float64).T)).min(1)
            total += float((nearest + (x ** 2).sum(1)).sum())
        return total


def cool(case, iterations, threads):
    """Seconds in iterations, centroids, how many iterations."""
    with tempfile.TemporaryDirectory() as folder:
        summary, centroids = os.path.join(folder, "s.json"), os.path.join(folder, "c.npy")
        command = [os.path.join(ROOT, "target", "release", "cool-kmeans"), case.file, "-k", str(case.k), "-i", str(iterations),
                   "--threads", str(threads), "--alone", "--init", case.first_file, "--summary", summary, "--centroids", centroids]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        with open(summary) as f:
            run = json.load(f)
        return sum(run["seconds_computing"]), case.np.load(centroids), run["iterations"]


def scikit_learn(case, iterations, threads):
    from sklearn.cluster import KMeans
    model = KMeans(case.k, init=case.first, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd", copy_x=True)
    start = time.perf_counter()
    model.fit(case.floats)
    return time.perf_counter() - start, model.cluster_centers_, model.n_iter_


def faiss(case, iterations, threads):
    import faiss as library
    library.omp_set_num_threads(threads)
    model = library.Kmeans(case.floats.shape[1], case.k, niter=iterations, nredo=1, max_points_per_centroid=len(case.floats),
                           min_points_per_centroid=1)
    start = time.perf_counter()
    model.train(case.floats, init_centroids=case.first)
    return time.perf_counter() - start, model.centroids, iterations


def superkmeans(case, iterations, threads):
    """Begins at points of its own choice, as it takes no first centroids; it is not exact."""
    from superkmeans import SuperKMeans
    model = SuperKMeans(case.k, case.floats.shape[1], hierarchical=False, iters=iterations, n_threads=threads, sampling_fraction=1.0,
                        tol=0, early_termination=False)
    start = time.perf_counter()
    centroids = model.train(case.floats)
    return time.perf_counter() - start, case.np.asarray(centroids), iterations


HEADING = """# K-means beside others

Made by `make bench-kmeans` (`bench/kmeans.py --docs`, which says how). Medians of one run on one machine; COOL's seconds are
those of its iterations, without loading and seeding, and the others' those of their whole call without making first centroids."""

PROGRAMS = {"cool": cool, "scikit-learn": scikit_learn, "faiss": faiss, "superkmeans": superkmeans}
# Peers that say when nothing moves any more.
STOPS = ("cool", "scikit-learn")
SLOPE = 4


def measure(case, program, arguments, ends):
    """One round: seconds of a full iteration, of all, and until nothing moves; inertia."""
    run = PROGRAMS[program]
    few = run(case, 1, arguments.threads)[0]
    more = run(case, 1 + SLOPE, arguments.threads)[0]
    seconds, centroids, _ = run(case, arguments.iterations, arguments.threads)
    result = {"iteration": (more - few) / SLOPE, "all": seconds, "inertia": case.inertia(centroids)}
    if ends and program in STOPS:
        seconds, centroids, iterations = run(case, 1000, arguments.threads)
        result["end"] = {"seconds": seconds, "iterations": int(iterations), "inertia": case.inertia(centroids)}
    return result


def median(rounds, *path):
    values = []
    for value in rounds:
        for key in path:
            value = value.get(key) if value else None
        values.append(value)
    return None if None in values else statistics.median(values)


def table(case, results, arguments):
    """The case as lines of Markdown."""
    lines = ["", "%s, %d rounds, %d threads:" % (case, arguments.rounds, arguments.threads), "",
             "| | seconds of a full iteration | seconds of %d | inertia over the least | seconds until nothing moves (iterations) |" % arguments.iterations,
             "| --- | --: | --: | --: | --: |"]
    least = min(median(r, "inertia") for r in results.values())
    for name, rounds in results.items():
        end = median(rounds, "end", "seconds")
        lines.append("| %s | %.3f | %.2f | %.5f | %s |" % (
            name, median(rounds, "iteration"), median(rounds, "all"), median(rounds, "inertia") / least,
            "%.2f (%d)" % (end, median(rounds, "end", "iterations")) if end else "-"))
    return lines


def main():
    enter_venv()
    arguments = parse_arguments()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
    import numpy as np
    os.makedirs(arguments.out, exist_ok=True)
    report, lines = {"arguments": vars(arguments), "cases": {}}, []
    for text in arguments.cases.split(","):
        with tempfile.TemporaryDirectory() as folder:
            case = Case(np, text, arguments.data, folder)
            results = {program: [] for program in arguments.peers.split(",")}
            for _ in range(arguments.rounds):
                for program, rounds in results.items():
                    rounds.append(measure(case, program, arguments, text in arguments.ends.split(",")))
        report["cases"][text] = results
        lines += table(text, results, arguments)
        print("\n".join(lines[-len(results) - 3:]), flush=True)
    with open(os.path.join(arguments.out, "kmeans.json"), "w") as f:
        json.dump(report, f, indent=1)
    text = "\n".join([HEADING, *lines]) + "\n"
    for path in [os.path.join(arguments.out, "kmeans.md")] + [os.path.join(ROOT, "docs", "kmeans-benchmarks.md")] * arguments.docs:
        with open(path, "w") as f:
            f.write(text)


if __name__ == "__main__":
    main()
