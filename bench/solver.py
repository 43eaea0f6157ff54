#!/usr/bin/python3
"""Compares a conjugate gradient solver on COOL and on MPI libraries on one emulated network (`make
solver`).

    sudo bench/solver.py
    sudo bench/solver.py --grid 256 --placements racked --peers openmpi --reps 3

The program is the example libcool/c/examples/conjugate_gradient.c. An iteration exchanges rows of 8
bytes per point with both neighbors and makes two allreduces of 8 bytes. For the peers, the same
source is compiled with bench/on_mpi/cool.h. Each run verifies its solution, and all runs must need
the same number of iterations. Prints a table of the medians and writes report.json to
target/solver; --docs writes the table to docs/measurements/benchmarks.md. Needs the same as
bench/bench.py, and libcool_c.so (`cargo build --release -p cool-c`).
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
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import peers  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402

SOURCE = os.path.join(ROOT, "libcool", "c", "examples", "conjugate_gradient.c")


class Cool(peers.Cool):
    """The program on COOL, whose ranks are started by the agents."""

    def compile(self, program, *arguments):
        folder = program + ".libcool"
        if not os.path.exists(os.path.join(self.folder, "libcool_c.so")):
            raise peers.PeerError("no libcool_c.so in %s: build it with cargo build --release -p "
                               "cool-c" % self.folder)
        peers.run_checked(os.path.join(ROOT, "tools", "install-c"), folder, self.folder)
        library = os.path.join(folder, "lib")
        peers.run_checked("cc", "-O2", "-Wall", "-o", program, *arguments, "-I" + os.path.join(folder, "include"), "-L" + library,
                          "-Wl,-rpath," + library, "-lcool")

    def launcher(self, run, program):
        return ["cool", "run", "-n", str(len(run.hosts)), "--placement", run.placement, "--", *program], run.bed.environment()


def solve(library, run, program, options):
    """Runs the program once and returns the JSON that it prints."""
    arguments = ["--grid", str(options.grid), "--tolerance", str(options.tolerance), "--json"]
    command, environment = library.launcher(run, [program, *arguments])
    with tempfile.TemporaryFile() as log, peers.Processes() as processes:
        process = processes.start(command, environment, log)
        try:
            process.wait(run.timeout)
        except subprocess.TimeoutExpired:
            raise peers.PeerError("not finished within %d s: %s" % (run.timeout,
                                                                 peers.log_tail(log))) from None
        if process.returncode:
            raise peers.PeerError("status %d: %s" % (process.returncode, peers.log_tail(log)))
        log.seek(0)
        # `cool run` prefixes each line with the rank.
        lines = [line[line.index("{"):] for line in log.read().decode(errors="replace").splitlines() if "{" in line]
    if len(lines) != 1:
        raise peers.PeerError("expected one line of JSON, not %d" % len(lines))
    return json.loads(lines[0])


def prepare_libraries(options):
    """Returns the libraries that can be measured, COOL first, each with its compiled program."""
    peer_classes = {"openmpi": peers.OpenMpi, "mpich": peers.Mpich}
    ready = {}
    for library in [Cool(options.bin), *(peer_classes[name](options.peers_folder, False) for name in options.peers)]:
        program = os.path.join(options.out, "conjugate_gradient." + library.name)
        try:
            library.prepare()
            header = [] if library.name == "cool" else ["-I" + os.path.join(HERE, "on_mpi")]
            library.compile(program, SOURCE, *header, "-lm")
            ready[library] = program
            print("%s %s" % (library.title, library.version), flush=True)
        except peers.PeerError as e:
            if library.name == "cool":
                raise
            print("%s is skipped: %s" % (library.title, e), flush=True)
    return ready


def measure(options, libraries, report):
    """Adds the runs of each placement to the report. All libraries take turns, and the first round
    is for warming up."""
    bed = testbed.Testbed(options.topology, options.host_mbit, options.uplink_mbit, bin_dir=options.bin, log_level="warn",
                          logs=os.path.join(options.out, "logs"))
    with bench.await_machine(bed, options.wait), tempfile.TemporaryDirectory(prefix="cool-solver-") as folder:
        bed.wait_until_measured()
        for placement in options.placements:
            run = peers.Run(bed, placement, tempfile.mkdtemp(dir=folder), options.timeout)
            runs = report["placements"][placement] = {library.name: [] for library in libraries}
            for round_number in range(options.reps + 1):
                for library, program in libraries.items():
                    result = solve(library, run, program, options)
                    if round_number:
                        runs[library.name].append(result)
                        print("%s %d of %d: %s %.3f ms per iteration" % (placement, round_number, options.reps, library.title,
                              1e3 * result["seconds_per_iteration"]), flush=True)
            iterations = {result["iterations"] for results in runs.values() for result in results}
            if len(iterations) != 1:
                raise peers.PeerError("the numbers of iterations differ between runs: %s"
                                   % sorted(iterations))


def table(report):
    """Returns a Markdown table with the milliseconds per iteration."""
    libraries = report["libraries"]
    peer_names = [name for name in libraries if name != "cool"]
    heads = ["placement", *(entry["title"] for entry in libraries.values()), *(libraries[name]["title"] + " / COOL" for name in peer_names)]
    lines = ["| %s |" % " | ".join(heads), "| --- |" + " --: |" * (len(heads) - 1)]
    for placement, runs in report["placements"].items():
        milliseconds = {name: [1e3 * result["seconds_per_iteration"] for result in results] for name, results in runs.items()}
        medians = {name: statistics.median(values) for name, values in milliseconds.items()}
        cells = ["%.2f (%.2f to %.2f)" % (medians[name], min(milliseconds[name]), max(milliseconds[name])) for name in libraries]
        lines.append("| %s |" % " | ".join([placement, *cells, *("%.2f" % (medians[name] / medians["cool"]) for name in peer_names)]))
    return "\n".join(lines)


def text(report):
    """Returns the section of the document: a description of the measurement, and the table."""
    first = next(iter(report["placements"].values()))["cool"][0]
    network = report["network"]
    rate = lambda mbit: "%g Mbit/s" % mbit if mbit else "unshaped"
    versions = ", ".join("%s %s" % (entry["title"], entry["version"]) for entry in report["libraries"].values())
    return ("`bench/solver.py` (%s, %d CPUs, shared by all nodes and switches): %d ranks on %s, "
            "host links %s, links between switches %s, "
            "%d x %d points, %d iterations; %s. Milliseconds per iteration, medians of %d runs "
            "(minimum to maximum).\n\n%s"
            % (report["date"], report["processors"], first["ranks"], network["topology"], rate(network["host_mbit"]), rate(network["uplink_mbit"]),
               first["grid"], first["grid"], first["iterations"], versions, report["reps"], table(report)))


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--grid", type=int, default=64, help="points on each side of the square; default %(default)s")
    p.add_argument("--tolerance", type=float, default=1e-8,
                   help="tolerance of the residual; default %(default)s")
    p.add_argument("--reps", type=int, default=5,
                   help="runs of each library, whose median is reported; default %(default)s")
    bench.add_network_options(p)
    p.add_argument("--placements", type=bench.list_of(bench.one_of(bench.PLACEMENTS)), default=list(bench.PLACEMENTS), help="default both")
    p.add_argument("--peers", type=bench.list_of(bench.one_of(("openmpi", "mpich"))), default=["openmpi", "mpich"], help="default openmpi,mpich")
    p.add_argument("--peers-folder", default=os.path.join(testbed.TARGET, "bench"),
                   help="directory in which the peers are installed; default target/bench")
    p.add_argument("--timeout", type=int, default=240,
                   help="timeout of one run in seconds; default %(default)s")
    p.add_argument("--docs", action="store_true",
                   help="write the table to docs/measurements/benchmarks.md")
    bench.add_run_options(p, "solver")
    options = p.parse_args()
    if min(options.reps, options.timeout) < 1 or min(options.host_mbit, options.uplink_mbit, options.wait) < 0:
        p.error("--reps and --timeout must be at least 1; rates and --wait must not be negative")
    options.out, options.bin, options.peers_folder = (os.path.abspath(path) for path in (options.out, options.bin, options.peers_folder))
    return options


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    for folder in (options.out, options.peers_folder):
        os.makedirs(folder, exist_ok=True)
    libraries = prepare_libraries(options)
    report = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "processors": os.cpu_count(), "reps": options.reps, "placements": {},
              "network": {"topology": options.topology, "host_mbit": options.host_mbit, "uplink_mbit": options.uplink_mbit},
              "libraries": {library.name: {"title": library.title, "version": library.version} for library in libraries}}
    measure(options, libraries, report)
    with open(os.path.join(options.out, "report.json"), "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)
    print(table(report))
    if options.docs:
        section.replace("benchmarks.md", "bench/solver.py", text(report))


if __name__ == "__main__":
    try:
        main()
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError, ValueError, KeyError) as e:
        sys.exit("solver: %s" % e)
