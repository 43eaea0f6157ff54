#!/usr/bin/env python3
"""Compares K-means in COOL with scikit-learn, FAISS and SuperKMeans on the same points, first
centroids, and threads.

    bench/kmeans.py            # all tables; takes hours on a small machine
    bench/kmeans.py --quick    # fewer rounds, points and iterations; takes about 12 minutes
    bench/kmeans.py --tables seeding --seeding 20000x512:200 --anyway

A case is POINTSxDIMENSIONS:CLUSTERS. The tables:
  iteration  seconds of a full iteration: the slope between runs of one and of a few iterations
  many       seconds of 25 iterations and until no label changes, and the inertia of the centroids,
             which this program computes in the same way for all
  seeding    starting inertia and seconds of k-means|| and of scikit-learn's k-means++, as the
             medians over some seeds
  shares     share of distances that COOL computes despite its bounds, by iteration, drawn next to
             the values in the paper

The row "cool" clusters the points as bytes, "cool float" as float32 with --precision float. The
peers get the points as float32, with their shortcuts disabled: FAISS uses all points instead of 256
per cluster, and scikit-learn makes one start and has no tolerance. The programs are measured in
turn, --rounds times, and medians are reported. The points are bytes from a mixture in 32 hidden
dimensions, spread over all dimensions, with groups of unequal size (seed 1), or the contents of
--data. The peers are installed from PyPI in target/kmeans-peers.
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
sys.path.insert(0, os.path.join(ROOT, "mininet"))
from build_directory import TARGET  # noqa: E402

VENV = os.path.join(TARGET, "kmeans-peers")
PACKAGES = ["numpy", "scikit-learn==1.9.1", "faiss-cpu==1.15.1", "superkmeans==0.2.0"]
# Largest share of CPU time that other programs may use during a measurement, and the seconds over
# which that share is determined.
MOST_BUSY, SECONDS = 0.1, 2
# Seconds to wait for an idle machine.
PATIENCE = 300
# The longer of two runs has this many more iterations. The difference of their times is the time of
# that many full iterations.
SLOPE = 4
# Many more iterations than any run needs to converge.
END = 1000

TABLES = {"iteration": "200000x512:1000,200000x512:10000", "many": "200000x512:4000", "seeding": "200000x512:1000",
          "shares": "76800x2048:3200"}
QUICK = {"iteration": "200000x512:1000,100000x512:10000", "many": "50000x512:1000", "seeding": "50000x512:1000",
         "shares": "76800x2048:3200"}


def enter_venv():
    """Re-executes this program in an environment with the packages of the peers, which it installs
    if they are missing."""
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
    p.add_argument("--quick", action="store_true",
                   help="use smaller cases, one round, 3 seeds, and 20 iterations for shares")
    p.add_argument("--tables", default=",".join(TABLES),
                   help="tables to measure; default %(default)s")
    for name in TABLES:
        p.add_argument("--" + name, metavar="CASES",
                       help="cases of this table; default %s, or %s with --quick" % (TABLES[name], QUICK[name]))
    p.add_argument("--data",
                   help=".npy file of bytes to use instead of generated points; cases use its first rows")
    p.add_argument("--iterations", type=int, default=25,
                   help="iterations for the table many; default %(default)s")
    p.add_argument("--rounds", type=int, help="rounds; default 5, or 1 with --quick")
    p.add_argument("--seeds", type=int,
                   help="seeds for the table seeding; default 10, or 3 with --quick")
    p.add_argument("--near", default="400,800,all",
                   help="values of C-near for the table shares; default %(default)s")
    p.add_argument("--longest", type=int,
                   help="iterations for the table shares; default 100, or 20 with --quick")
    p.add_argument("--threads", type=int, default=2,
                   help="threads of every program; default %(default)s")
    p.add_argument("--peers", default="cool,cool float,scikit-learn,faiss,superkmeans",
                   help="programs to measure; default %(default)s")
    p.add_argument("--program", default=os.path.join(TARGET, "release", "cool-kmeans"),
                   help="path of cool-kmeans; default %(default)s")
    p.add_argument("--anyway", action="store_true",
                   help="measure even on a busy machine; the report states this")
    p.add_argument("--docs", action="store_true",
                   help="also write the tables to docs/measurements/kmeans.md")
    p.add_argument("--out", default=os.path.join(TARGET, "bench"),
                   help="output directory; default %(default)s")
    arguments = p.parse_args()
    arguments.rounds, arguments.seeds = arguments.rounds or (1 if arguments.quick else 5), arguments.seeds or (3 if arguments.quick else 10)
    arguments.longest = arguments.longest or (20 if arguments.quick else 100)
    for name in TABLES:
        cases = getattr(arguments, name) or (QUICK if arguments.quick else TABLES)[name]
        setattr(arguments, name, cases.split(",") if name in arguments.tables.split(",") else [])
    arguments.peers = arguments.peers.split(",")
    return arguments


def other_cpu_share():
    """Returns the share of CPU time that other programs use while this program waits."""
    def times():
        with open("/proc/stat") as f:
            values = [int(value) for value in f.readline().split()[1:9]]
        return sum(values), values[3] + values[4]
    all_before, idle_before = times()
    time.sleep(SECONDS)
    all_now, idle_now = times()
    return 1 - (idle_now - idle_before) / max(all_now - all_before, 1)


def await_idleness(arguments):
    """Waits until the machine is idle, because times are meaningless next to other work. Exits if
    it stays busy, except with --anyway. Returns the share of CPU time that others use."""
    end, other_share = time.monotonic() + PATIENCE, other_cpu_share()
    while not arguments.anyway and other_share > MOST_BUSY:
        if time.monotonic() > end:
            raise SystemExit("other programs use %.0f %% of the CPUs; use --anyway to measure "
                             "nevertheless" % (100 * other_share))
        other_share = other_cpu_share()
    return other_share


def generate_points(np, n, dims):
    """Returns bytes with structure: groups of unequal size around centers in 32 hidden dimensions,
    plus noise."""
    generator = np.random.default_rng(1)
    spread = generator.normal(size=(32, dims)).astype(np.float32)
    centers = generator.normal(size=(2000, 32)).astype(np.float32)
    weights = 1 / np.arange(1, 2001)
    points = np.empty((n, dims), np.uint8)
    for start in range(0, n, 10000):
        rows = min(10000, n - start)
        hidden = centers[generator.choice(2000, rows, p=weights / weights.sum())]
        hidden = hidden + 0.5 * generator.normal(size=(rows, 32)).astype(np.float32)
        values = 110 + 12 * (hidden @ spread) + 6 * generator.normal(size=(rows, dims)).astype(np.float32)
        points[start:start + rows] = values.clip(0, 255).astype(np.uint8)
    return points


class Case:
    """The points and first centroids of a case, and the files in which COOL reads them."""

    def __init__(self, np, text, arguments, folder):
        shape, k = text.split(":")
        n, dims = map(int, shape.split("x"))
        self.name, self.k, self.np, self.folder, self.arguments = text, int(k), np, folder, arguments
        self.points = np.load(arguments.data, mmap_mode="r")[:n] if arguments.data else generate_points(np, n, dims)
        self.points = np.ascontiguousarray(self.points)
        if self.points.shape != (n, dims) or self.points.dtype != np.uint8:
            raise SystemExit("%s: the array is %s of %s, but %s needs bytes"
                             % (arguments.data, self.points.shape, self.points.dtype, text))
        self.first = self.points[np.sort(np.random.default_rng(2).choice(n, self.k, replace=False))].astype(np.float32)
        self.file, self.first_file = (os.path.join(folder, name) for name in ("points.npy", "first.npy"))
        np.save(self.file, self.points)
        np.save(self.first_file, self.first.astype(np.float64))

    def floats(self):
        return self.points.astype(self.np.float32)

    def inertia(self, centroids):
        """Returns the sum of the squared distances to the nearest centroids, computed in
        float64."""
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
        """Runs cool-kmeans on the points as bytes or as float32. Returns its summary and
        centroids."""
        summary, centroids = (os.path.join(self.folder, name) for name in ("summary.json", "centroids.npy"))
        file = [self.floats_file(), "--precision", "float"] if floats else [self.file]
        command = [self.arguments.program, *file, "-k", str(self.k), "--threads", str(self.arguments.threads), "--alone",
                   "--summary", summary, "--centroids", centroids, *map(str, options)]
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode != 0:
            raise SystemExit("%s\n%s" % (" ".join(command), process.stderr))
        with open(summary) as f:
            return json.load(f), self.np.load(centroids)


@contextlib.contextmanager
def open_case(np, text, arguments):
    with tempfile.TemporaryDirectory() as folder:
        yield Case(np, text, arguments, folder)


def cool(case, iterations, assign="auto", floats=False):
    """Returns the seconds of the iterations, the centroids, and the number of iterations."""
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
    """Runs SuperKMeans, which chooses its first centroids, because it accepts none, and is not
    exact."""
    from superkmeans import SuperKMeans
    points = case.floats()
    model = SuperKMeans(case.k, points.shape[1], hierarchical=False, iters=iterations, n_threads=case.arguments.threads,
                        sampling_fraction=1.0, tol=0, early_termination=False)
    start = time.perf_counter()
    centroids = model.train(points)
    return time.perf_counter() - start, case.np.asarray(centroids), iterations


PROGRAMS = {"cool": cool, "cool float": functools.partial(cool, floats=True), "scikit-learn": scikit_learn, "faiss": faiss, "superkmeans": superkmeans}
# Programs that report convergence.
CONVERGING = ("cool", "cool float", "scikit-learn")


def measure_in_turn(arguments, measure):
    """Calls `measure(program)` for all programs in turn. Returns the list of its results, one per
    round, by program."""
    results = {name: [] for name in arguments.peers}
    for _ in range(arguments.rounds):
        for name, rounds in results.items():
            await_idleness(arguments)
            rounds.append(measure(name))
    return results


def median(rounds, name):
    return statistics.median([result[name] for result in rounds]) if all(name in result for result in rounds) else None


def markdown(head, rows):
    """Returns the lines of a table in which all columns except the first contain numbers."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --: |" * (len(head) - 1)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def iteration(np, text, arguments):
    """Measures the seconds of a full iteration of each program, as a slope. Returns the results and
    the lines of the table."""
    extra_iterations = 2 if arguments.quick else SLOPE
    with open_case(np, text, arguments) as case:
        def seconds(name):
            run = PROGRAMS[name]
            if name.startswith("cool"):
                run = functools.partial(run, assign="full")
            first_seconds = run(case, 1)[0]
            return {"seconds": (run(case, 1 + extra_iterations)[0] - first_seconds) / extra_iterations}
        results = measure_in_turn(arguments, seconds)
    cool_seconds = median(results["cool"], "seconds") if "cool" in results else None
    rows = [[name, "%.3f" % median(rounds, "seconds"), "%.2f" % (median(rounds, "seconds") / cool_seconds) if cool_seconds else "-"]
            for name, rounds in results.items()]
    return results, ["A full iteration, %s:" % text, "",
                     *markdown(["", "seconds", "time / COOL's time"], rows)]


def many(np, text, arguments):
    """Measures the seconds of several iterations and until convergence, and the inertia."""
    with open_case(np, text, arguments) as case:
        def measure(name):
            seconds, centroids, _ = PROGRAMS[name](case, arguments.iterations)
            result = {"seconds": seconds, "inertia": case.inertia(centroids)}
            if name in CONVERGING:
                result["end"], centroids, result["iterations"] = PROGRAMS[name](case, END)
                result["end inertia"] = case.inertia(centroids)
            return result
        results = measure_in_turn(arguments, measure)
    least = min(median(rounds, "inertia") for rounds in results.values())
    rows = []
    for name, rounds in results.items():
        end = median(rounds, "end")
        rows.append([name, "%.2f" % median(rounds, "seconds"), "%.5f" % (median(rounds, "inertia") / least),
                     "%.2f (%d)" % (end, median(rounds, "iterations")) if end else "-"])
    head = ["", "seconds of %d iterations" % arguments.iterations, "inertia / least inertia",
            "seconds until convergence (iterations)"]
    return results, ["Many iterations, %s:" % text, "", *markdown(head, rows)]


def seeding(np, text, arguments):
    """Measures the starting inertia and the seconds of k-means|| and of scikit-learn's
    k-means++."""
    from sklearn.cluster import kmeans_plusplus
    results = {"k-means|| (COOL)": [], "k-means++ (scikit-learn)": []}
    with open_case(np, text, arguments) as case:
        floats = case.floats()
        await_idleness(arguments)
        # Without iterations, a run consists of the final assignment. Runs with and without seeding
        # have it in common.
        final_seconds = statistics.median(case.cool("-i", 0, "--init", case.first_file)[0]["seconds"]["total"] for _ in range(3))
        iteration_seconds = cool(case, SLOPE, "full")[0] / SLOPE
        for seed in range(1, arguments.seeds + 1):
            await_idleness(arguments)
            run, centroids = case.cool("-i", 0, "--init", "k-means||", "--seed", seed)
            results["k-means|| (COOL)"].append({"seconds": run["seconds"]["total"] - final_seconds, "inertia": case.inertia(centroids)})
            start = time.perf_counter()
            centroids, _ = kmeans_plusplus(floats, case.k, random_state=seed)
            seconds = time.perf_counter() - start
            results["k-means++ (scikit-learn)"].append({"seconds": seconds, "inertia": case.inertia(centroids)})
    plus_plus_inertia = median(results["k-means++ (scikit-learn)"], "inertia")
    rows = [[name, "%.4f" % (median(rounds, "inertia") / plus_plus_inertia), "%.2f" % median(rounds, "seconds"),
             "%.2f" % (median(rounds, "seconds") / iteration_seconds)] for name, rounds in results.items()]
    head = ["", "starting inertia / that of k-means++", "seconds", "time / COOL's full iteration"]
    return results, ["First centroids, %s, medians of %d seeds:" % (text, arguments.seeds), "", *markdown(head, rows)]


def shares(np, text, arguments):
    """Measures the share of distances that COOL computes, by iteration, and draws the curves."""
    results = {}
    with open_case(np, text, arguments) as case:
        for near in arguments.near.split(","):
            count = case.k if near == "all" else int(near)
            run, _ = case.cool("-i", arguments.longest, "--init", case.first_file, "--assign", "bounds", "--near", count)
            results["near " + near] = run["distances"]
    name = "kmeans-distances.svg"
    goals = [(10, 0.1, "paper: below 10 %"), (None, 0.001, "paper: below 0.1 % at the end")]
    for folder in [arguments.out] + [section.MEASUREMENTS] * arguments.docs:
        curves.draw(os.path.join(folder, name), "Distances that COOL computes, " + text, results,
                    goals)
    percent = lambda shares, i: "%.2f" % (100 * shares[i]) if -len(shares) <= i < len(shares) else "-"
    rows = [[near, *(percent(values, i) for i in (0, 4, 9, 10, 19, -1)), str(len(values))] for near, values in results.items()]
    head = ["%", "iteration 1", "5", "10", "11", "20", "last", "iterations"]
    lines = ["Share of distances that COOL computes, %s (papers: 10 %% at iteration 10, 0.1 %% at "
             "the end):" % text, ""]
    return results, [*lines, *markdown(head, rows), "", "![Shares of distances by iteration](%s)" % name]


def describe_machine(arguments, other_share):
    """Returns a sentence about the machine and the conditions of the measurement."""
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")),
                     "unknown CPU")
    warning = " **Other programs used %.0f %% of the CPUs, so these times are not valid.**" % (100 * other_share) if other_share > MOST_BUSY else ""
    return "%s, %d threads, %d round%s.%s" % (model, arguments.threads, arguments.rounds, "s" * (arguments.rounds > 1), warning)


def main():
    arguments = parse_arguments()
    enter_venv()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
    import numpy as np
    if not os.access(arguments.program, os.X_OK):
        raise SystemExit("%s: not found; build it with cargo build --release -p cool-kmeans"
                         % arguments.program)
    os.makedirs(arguments.out, exist_ok=True)
    other_share = await_idleness(arguments)
    command = "`bench/kmeans.py %s`" % " ".join(sys.argv[1:])
    lines = ["%s: %s" % (command, describe_machine(arguments, other_share))]
    report = {"arguments": vars(arguments), "used by others": other_share}
    for table in (iteration, many, seeding, shares):
        for text in getattr(arguments, table.__name__):
            results, table_lines = table(np, text, arguments)
            report.setdefault(table.__name__, {})[text] = results
            lines += ["", *table_lines]
            print("\n".join(["", *table_lines]), flush=True)
            with open(os.path.join(arguments.out, "kmeans.json"), "w") as f:
                json.dump(report, f, indent=1)
    text = "\n".join(lines)
    with open(os.path.join(arguments.out, "kmeans.md"), "w") as f:
        f.write(text + "\n")
    if arguments.docs:
        section.replace("kmeans.md", "bench/kmeans.py", text)


if __name__ == "__main__":
    main()
