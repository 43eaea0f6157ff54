#!/usr/bin/env python3
"""K-means beside scikit-learn, FAISS and SuperKMeans: one run, the same points, the same first centroids, the same threads.

    bench/kmeans.py                   # all tables; hours on a small machine
    bench/kmeans.py --quick           # each table once, with fewer rounds, points and iterations: about 12 minutes
    bench/kmeans.py --tables seeding --seeding 20000x512:200 --anyway

A case is POINTSxDIMENSIONS:CLUSTERS. The tables:
  iteration  seconds of a full iteration: the slope between runs of one and of a few iterations
  many       seconds of 25 iterations and until no label changes, and the inertia of the centroids, computed here alike for all
  seeding    starting inertia and seconds of k-means|| beside scikit-learn's k-means++, median of some seeds
  shares     distances that bounds let COOL measure, by iteration, drawn beside what the paper says of its figure

The row "cool" clusters the points as bytes, "cool float" as float32 with --precision float. Peers get them as float32 too and have
their shortcuts off: FAISS takes all points, not 256 a cluster; scikit-learn one start and
no tolerance. Programs are measured in turn, --rounds times; medians count. Points are bytes: a mixture in 32 hidden
dimensions, spread over all, with groups of unequal size (seed 1), or --data FILE.npy. Peers come from PyPI, into target/kmeans-peers.
"""
import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import curves
import section

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
VENV = os.path.join(ROOT, "target", "kmeans-peers")
PACKAGES = ["numpy", "scikit-learn==1.9.1", "faiss-cpu==1.15.1", "superkmeans==0.2.0"]
# Share of the processors' time that others may use before times would be those of their work, and how long that is looked at.
MOST_BUSY, SECONDS = 0.1, 2
# Seconds to wait for an idle machine.
PATIENCE = 300
# Iterations between the two runs whose difference is that of full iterations.
SLOPE = 4
# Many more than it takes until nothing moves.
END = 1000

TABLES = {"iteration": "200000x512:1000,200000x512:10000", "many": "200000x512:4000", "seeding": "200000x512:1000",
          "shares": "76800x2048:3200"}
QUICK = {"iteration": "200000x512:1000,100000x512:10000", "many": "50000x512:1000", "seeding": "50000x512:1000",
         "shares": "76800x2048:3200"}


def enter_venv():
    """Runs this program again with the peers' packages, which it installs if they are missing."""
    python = os.path.join(VENV, "bin", "python3")
    if os.path.realpath(sys.prefix) == os.path.realpath(VENV):
        return
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    if subprocess.run([python, "-c", "import sklearn, faiss, superkmeans"], stderr=subprocess.DEVNULL).returncode != 0:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    os.execv(python, [python, *sys.argv])


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="smaller cases, one round, 3 seeds, 20 iterations of shares")
    p.add_argument("--tables", default=",".join(TABLES), help="default %(default)s")
    for name in TABLES:
        p.add_argument("--" + name, metavar="CASES", help="default %s; quick %s" % (TABLES[name], QUICK[name]))
    p.add_argument("--data", help=".npy of bytes instead of made-up points; cases take its first rows")
    p.add_argument("--iterations", type=int, default=25, help="of the table many; default %(default)s")
    p.add_argument("--rounds", type=int, help="default 5, quick 1")
    p.add_argument("--seeds", type=int, help="default 10, quick 3")
    p.add_argument("--near", default="400,800,all", help="C-near of the table shares; default %(default)s")
    p.add_argument("--longest", type=int, help="iterations of the table shares; default 100, quick 20")
    p.add_argument("--threads", type=int, default=2, help="default %(default)s")
    p.add_argument("--peers", default="cool,cool float,scikit-learn,faiss,superkmeans", help="default %(default)s")
    p.add_argument("--program", default=os.path.join(ROOT, "target", "release", "cool-kmeans"), help="default %(default)s")
    p.add_argument("--anyway", action="store_true", help="also on a machine that does something else; says so in the report")
    p.add_argument("--docs", action="store_true", help="write the tables to docs/guide/kmeans.md too")
    p.add_argument("--out", default=os.path.join(ROOT, "target", "bench"), help="folder; default %(default)s")
    a = p.parse_args()
    a.rounds, a.seeds = a.rounds or (1 if a.quick else 5), a.seeds or (3 if a.quick else 10)
    a.longest = a.longest or (20 if a.quick else 100)
    for name in TABLES:
        cases = getattr(a, name) or (QUICK if a.quick else TABLES)[name]
        setattr(a, name, cases.split(",") if name in a.tables.split(",") else [])
    a.peers = a.peers.split(",")
    return a


def busy():
    """Share of the processors' time that others use now, while this program waits."""
    def times():
        with open("/proc/stat") as f:
            values = [int(value) for value in f.readline().split()[1:9]]
        return sum(values), values[3] + values[4]
    all_before, idle_before = times()
    time.sleep(SECONDS)
    all_now, idle_now = times()
    return 1 - (idle_now - idle_before) / max(all_now - all_before, 1)


def await_idleness(arguments):
    """Times are worth nothing beside other work: waits for it to end, and gives up if it does not. Returns how busy it is."""
    end, used = time.monotonic() + PATIENCE, busy()
    while not arguments.anyway and used > MOST_BUSY:
        if time.monotonic() > end:
            raise SystemExit("others use %.0f %% of the processors; --anyway measures all the same" % (100 * used))
        used = busy()
    return used


def made_up(np, n, dims):
    """Bytes with structure: unequal groups around centres in 32 hidden dimensions, and noise."""
    chance = np.random.default_rng(1)
    spread = chance.normal(size=(32, dims)).astype(np.float32)
    centres = chance.normal(size=(2000, 32)).astype(np.float32)
    weights = 1 / np.arange(1, 2001)
    points = np.empty((n, dims), np.uint8)
    for start in range(0, n, 10000):
        rows = min(10000, n - start)
        hidden = centres[chance.choice(2000, rows, p=weights / weights.sum())]
        hidden = hidden + 0.5 * chance.normal(size=(rows, 32)).astype(np.float32)
        values = 110 + 12 * (hidden @ spread) + 6 * chance.normal(size=(rows, dims)).astype(np.float32)
        points[start:start + rows] = values.clip(0, 255).astype(np.uint8)
    return points


class Case:
    """Points, first centroids, and where COOL finds them."""

    def __init__(self, np, text, arguments, folder):
        shape, k = text.split(":")
        n, dims = map(int, shape.split("x"))
        self.name, self.k, self.np, self.folder, self.arguments = text, int(k), np, folder, arguments
        self.points = np.load(arguments.data, mmap_mode="r")[:n] if arguments.data else made_up(np, n, dims)
        self.points = np.ascontiguousarray(self.points)
        if self.points.shape != (n, dims) or self.points.dtype != np.uint8:
            raise SystemExit("%s: %s of %s, but %s asks for bytes" % (arguments.data, self.points.shape, self.points.dtype, text))
        self.first = self.points[np.sort(np.random.default_rng(2).choice(n, self.k, replace=False))].astype(np.float32)
        self.file, self.first_file = (os.path.join(folder, name) for name in ("points.npy", "first.npy"))
        np.save(self.file, self.points)
        np.save(self.first_file, self.first.astype(np.float64))

    def floats(self):
        return self.points.astype(self.np.float32)

    def inertia(self, centroids):
        """The sum of squared distances from the nearest centroids, in float64."""
        np, total = self.np, 0.0
        centroids = centroids.astype(np.float64)
        norms = (centroids ** 2).sum(1)
        for start in range(0, len(self.points), 4096):
            x = self.points[start:start + 4096].astype(np.float64)
            total += float(((norms - 2 * (x @ centroids.T)).min(1) + (x ** 2).sum(1)).sum())
        return total

    def floats_file(self):
        path = os.path.join(self.folder, "floats.npy")
        if not os.path.exists(path):
            self.np.save(path, self.floats())
        return path

    def cool(self, *options, floats=False):
        """A run of cool-kmeans over the points as bytes or as float32: its summary and centroids."""
        summary, centroids = (os.path.join(self.folder, name) for name in ("summary.json", "centroids.npy"))
        file = [self.floats_file(), "--precision", "float"] if floats else [self.file]
        command = [self.arguments.program, *file, "-k", str(self.k), "--threads", str(self.arguments.threads), "--alone",
                   "--summary", summary, "--centroids", centroids, *map(str, options)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit("%s\n%s" % (" ".join(command), done.stderr))
        with open(summary) as f:
            return json.load(f), self.np.load(centroids)


@contextlib.contextmanager
def made(np, text, arguments):
    with tempfile.TemporaryDirectory() as folder:
        yield Case(np, text, arguments, folder)


def cool(case, iterations, assign="auto", floats=False):
    """Seconds in iterations, centroids, how many iterations."""
    run, centroids = case.cool("-i", iterations, "--init", case.first_file, "--assign", assign, floats=floats)
    return sum(run["seconds_computing"]), centroids, run["iterations"]


def scikit_learn(case, iterations):
    from sklearn.cluster import KMeans
    points = case.floats()
    model = KMeans(case.k, init=case.first, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd", copy_x=False)
    start = time.perf_counter()
    model.fit(points)
    return time.perf_counter() - start, model.cluster_centers_, model.n_iter_


def faiss(case, iterations):
    import faiss as library
    library.omp_set_num_threads(case.arguments.threads)
    points = case.floats()
    model = library.Kmeans(points.shape[1], case.k, niter=iterations, nredo=1, max_points_per_centroid=len(points),
                           min_points_per_centroid=1)
    start = time.perf_counter()
    model.train(points, init_centroids=case.first)
    return time.perf_counter() - start, model.centroids, iterations


def superkmeans(case, iterations):
    """Begins at points of its own choice, as it takes no first centroids; it is not exact."""
    from superkmeans import SuperKMeans
    points = case.floats()
    model = SuperKMeans(case.k, points.shape[1], hierarchical=False, iters=iterations, n_threads=case.arguments.threads,
                        sampling_fraction=1.0, tol=0, early_termination=False)
    start = time.perf_counter()
    centroids = model.train(points)
    return time.perf_counter() - start, case.np.asarray(centroids), iterations


PROGRAMS = {"cool": cool, "cool float": functools.partial(cool, floats=True), "scikit-learn": scikit_learn, "faiss": faiss, "superkmeans": superkmeans}
# Programs that say when nothing moves any more.
STOPS = ("cool", "cool float", "scikit-learn")


def in_turn(arguments, measure):
    """What `measure(program)` gives, for each program a list of rounds."""
    results = {name: [] for name in arguments.peers}
    for _ in range(arguments.rounds):
        for name, rounds in results.items():
            await_idleness(arguments)
            rounds.append(measure(name))
    return results


def median(rounds, name):
    return statistics.median([one[name] for one in rounds]) if all(name in one for one in rounds) else None


def markdown(head, rows):
    """A table; all but the first column are numbers."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --: |" * (len(head) - 1)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def iteration(np, text, arguments):
    """Seconds of a full iteration, each program's slope."""
    more = 2 if arguments.quick else SLOPE
    with made(np, text, arguments) as case:
        def seconds(name):
            run = PROGRAMS[name]
            if name.startswith("cool"):
                run = functools.partial(run, assign="full")
            few = run(case, 1)[0]
            return {"seconds": (run(case, 1 + more)[0] - few) / more}
        results = in_turn(arguments, seconds)
    own = median(results["cool"], "seconds") if "cool" in results else None
    rows = [[name, "%.3f" % median(rounds, "seconds"), "%.2f" % (median(rounds, "seconds") / own) if own else "-"]
            for name, rounds in results.items()]
    return results, ["A full iteration, %s:" % text, "", *markdown(["", "seconds", "over COOL's"], rows)]


def many(np, text, arguments):
    """Seconds of several iterations and until nothing moves, and inertia."""
    with made(np, text, arguments) as case:
        def measure(name):
            seconds, centroids, _ = PROGRAMS[name](case, arguments.iterations)
            result = {"seconds": seconds, "inertia": case.inertia(centroids)}
            if name in STOPS:
                result["end"], centroids, result["iterations"] = PROGRAMS[name](case, END)
                result["end inertia"] = case.inertia(centroids)
            return result
        results = in_turn(arguments, measure)
    least = min(median(rounds, "inertia") for rounds in results.values())
    rows = []
    for name, rounds in results.items():
        end = median(rounds, "end")
        rows.append([name, "%.2f" % median(rounds, "seconds"), "%.5f" % (median(rounds, "inertia") / least),
                     "%.2f (%d)" % (end, median(rounds, "iterations")) if end else "-"])
    head = ["", "seconds of %d iterations" % arguments.iterations, "inertia over the least", "seconds until nothing moves (iterations)"]
    return results, ["Many iterations, %s:" % text, "", *markdown(head, rows)]


def seeding(np, text, arguments):
    """Starting inertia and seconds, of k-means|| and of scikit-learn's k-means++."""
    from sklearn.cluster import kmeans_plusplus
    results = {"k-means|| (COOL)": [], "k-means++ (scikit-learn)": []}
    with made(np, text, arguments) as case:
        floats = case.floats()
        await_idleness(arguments)
        # No iteration, but the assignment at the end: both runs have it, only one seeds.
        rest = statistics.median(case.cool("-i", 0, "--init", case.first_file)[0]["seconds"]["total"] for _ in range(3))
        full = cool(case, SLOPE, "full")[0] / SLOPE
        for seed in range(1, arguments.seeds + 1):
            await_idleness(arguments)
            run, centroids = case.cool("-i", 0, "--init", "k-means||", "--seed", seed)
            results["k-means|| (COOL)"].append({"seconds": run["seconds"]["total"] - rest, "inertia": case.inertia(centroids)})
            start = time.perf_counter()
            centroids, _ = kmeans_plusplus(floats, case.k, random_state=seed)
            seconds = time.perf_counter() - start
            results["k-means++ (scikit-learn)"].append({"seconds": seconds, "inertia": case.inertia(centroids)})
    base = median(results["k-means++ (scikit-learn)"], "inertia")
    rows = [[name, "%.4f" % (median(rounds, "inertia") / base), "%.2f" % median(rounds, "seconds"),
             "%.2f" % (median(rounds, "seconds") / full)] for name, rounds in results.items()]
    head = ["", "starting inertia over k-means++'s", "seconds", "in full iterations of COOL's"]
    return results, ["First centroids, %s, medians of %d seeds:" % (text, arguments.seeds), "", *markdown(head, rows)]


def shares(np, text, arguments):
    """Shares of distances that were measured, by iteration."""
    results = {}
    with made(np, text, arguments) as case:
        for near in arguments.near.split(","):
            count = case.k if near == "all" else int(near)
            run, _ = case.cool("-i", arguments.longest, "--init", case.first_file, "--assign", "bounds", "--near", count)
            results["near " + near] = run["distances"]
    name = "kmeans-distances.svg"
    goals = [(10, 0.1, "paper: below 10 %"), (None, 0.001, "paper: below 0.1 % in the end")]
    for folder in [arguments.out] + [os.path.join(ROOT, "docs", "measurements")] * arguments.docs:
        curves.draw(os.path.join(folder, name), "Distances that were measured, " + text, results, goals)
    percent = lambda shares, i: "%.2f" % (100 * shares[i]) if -len(shares) <= i < len(shares) else "-"
    rows = [[near, *(percent(values, i) for i in (0, 4, 9, 10, 19, -1)), str(len(values))] for near, values in results.items()]
    head = ["%", "iteration 1", "5", "10", "11", "20", "last", "iterations"]
    lines = ["Share of distances that was measured, %s (papers: 10 %% at iteration 10, 0.1 %% in the end):" % text, ""]
    return results, [*lines, *markdown(head, rows), "", "![Shares of distances by iteration](%s)" % name]


def machine(arguments, used):
    """In which circumstances it was measured."""
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "unknown processor")
    beside = " **Others used %.0f %% of the processors: these times are no measurement.**" % (100 * used) if used > MOST_BUSY else ""
    return "%s, %d threads, %d round%s.%s" % (model, arguments.threads, arguments.rounds, "s" * (arguments.rounds > 1), beside)


def main():
    arguments = parse_arguments()
    enter_venv()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
    import numpy as np
    if not os.access(arguments.program, os.X_OK):
        raise SystemExit("%s: not there; cargo build --release -p cool-kmeans makes it" % arguments.program)
    os.makedirs(arguments.out, exist_ok=True)
    used = await_idleness(arguments)
    command = "`bench/kmeans.py %s`" % " ".join(sys.argv[1:])
    lines = ["%s: %s" % (command, machine(arguments, used))]
    report = {"arguments": vars(arguments), "used by others": used}
    for table in (iteration, many, seeding, shares):
        for text in getattr(arguments, table.__name__):
            results, more = table(np, text, arguments)
            report.setdefault(table.__name__, {})[text] = results
            lines += ["", *more]
            print("\n".join(["", *more]), flush=True)
            with open(os.path.join(arguments.out, "kmeans.json"), "w") as f:
                json.dump(report, f, indent=1)
    text = "\n".join(lines)
    with open(os.path.join(arguments.out, "kmeans.md"), "w") as f:
        f.write(text + "\n")
    if arguments.docs:
        section.replace(os.path.join(ROOT, "docs", "measurements", "kmeans.md"), "bench/kmeans.py", text)


if __name__ == "__main__":
    main()
