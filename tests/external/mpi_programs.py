#!/usr/bin/python3
"""Runs unmodified MPI programs with and without libcool_mpi.so and compares their results (`make
mpi-programs`).

    sudo tests/external/mpi_programs.py --docs
    sudo tests/external/mpi_programs.py --only 'HPCC|K-means' --topology tree:4x4 --ranks 16

The programs are HPCC and ScaLAPACK's tests (xdlu, xdllt, xdtrd) on Debian's Open MPI and MPICH, and
apps/mpi/examples on Open MPI from Debian and MPICH from PyPI. Each runs with and without the
library on one emulated network. Both results must be equal, and correct according to the program's
own checks. Prints the intercepted calls and the seconds from the start of mpirun to its end. Writes
report.json to target/mpi/programs, and with --docs the table in docs/measurements/mpi.md. Needs
root and the same packages as the end-to-end tests.
"""
import argparse
import collections
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import mpi_suite  # adds tests/e2e to the path
from conftest import mpich
from launchers import HOST_LIBRARIES, ROOT, begin_in_hosts, communicate

import bench
import peers
import section
import testbed

OUT = os.path.join(testbed.TARGET, "mpi", "programs")
EXAMPLES = os.path.join(ROOT, "apps", "mpi", "examples")
SCALAPACK = "/usr/lib/x86_64-linux-gnu/scalapack/%s-tests"
SECONDS = 600


class Program:
    """A program, the MPI libraries on which it runs, and the least length of intercepted calls
    (COOL_MPI_MIN; empty for the library's default)."""
    # Rate of all links in Mbit/s; None for the rates that the user chooses.
    rate = None

    def __init__(self, name, hosts, least=""):
        self.name, self.hosts, self.least = name, hosts, least

    def prepare(self, folder, ranks):
        """Writes the input files of the program."""

    def result(self, folder, out):
        """Returns the results of the program without times. Raises Failure if the program itself
        reports an error."""
        raise NotImplementedError


class Example(Program):
    """One of apps/mpi/examples, run by the Python of MPICH's environment, whose mpi4py supports
    both libraries."""

    def __init__(self, name, script, *arguments):
        super().__init__(name, ("openmpi", "mpich"))
        self.script, self.arguments = os.path.join(EXAMPLES, script), arguments

    def command(self, host):
        python = os.path.join(mpich().folder, "bin", "python")
        # By default, mpi4py loads the MPI library of its own environment.
        other = ["MPI4PY_MPIABI=openmpi"] if host == "openmpi" else []
        return ["env", "OPENBLAS_NUM_THREADS=1", *other, python, self.script, *map(str, self.arguments)]

    def result(self, folder, out):
        return out


class Hpcc(Program):
    """All benchmarks of HPCC with small problems. The comparison includes its correctness checks,
    but not its speeds."""
    # HPCC ends with several hundred rounds of messages of 2 MB, so it needs fast links.
    rate = 1000

    def __init__(self, order, block):
        super().__init__("HPCC, on links of 1 Gbit/s", ("openmpi",), "1K")
        self.order, self.block = order, block

    def prepare(self, folder, ranks):
        with open("/usr/share/doc/hpcc/examples/_hpccinf.txt") as f:
            lines = f.read().splitlines()
        rows = max(p for p in range(1, ranks + 1) if ranks % p == 0 and p * p <= ranks)
        for number, value in ((5, self.order), (7, self.block), (10, rows), (11, ranks // rows)):
            lines[number] = "%d %s" % (value, lines[number])
        (folder / "hpccinf.txt").write_text("\n".join(lines) + "\n")
        (folder / "hpccoutf.txt").unlink(missing_ok=True)

    def command(self, _host):
        return ["env", "OPENBLAS_NUM_THREADS=1", "hpcc"]

    def result(self, folder, out):
        report = (folder / "hpccoutf.txt").read_text()
        values = dict(line.split("=", 1) for line in report.splitlines() if re.match(r"\w+=", line))
        residuals = re.findall(r"^\|\|Ax-b\|\|.*PASSED", report, re.MULTILINE)
        failures = re.findall(r".*FAILED.*", report)
        if not residuals or failures or values.get("Success") != "1":
            raise testbed.Failure("HPCC: %s" % ("; ".join(failures) or report[-400:]))
        # RandomAccess permits some errors, because updates may be lost; with these lengths there
        # are none.
        names = ("HPL_N", "HPL_NB", "PTRANS_residual", "MPIRandomAccess_Errors", "MPIRandomAccess_LCG_Errors", "MPIFFT_N", "MPIFFT_maxErr")
        return "\n".join(["%d residuals of HPL pass" % len(residuals), *("%s=%s" % (name, values[name]) for name in names)])


class Scalapack(Program):
    """A test of ScaLAPACK, with some of its own problems or another one. `chosen` returns values of
    its input file for a number of ranks."""

    def __init__(self, name, program, data, chosen, least=""):
        super().__init__("ScaLAPACK: " + name, ("openmpi", "mpich"), least)
        self.program, self.data, self.chosen = program, data, chosen

    def prepare(self, folder, ranks):
        with open(os.path.join("/usr/share/scalapack", self.data)) as f:
            (folder / self.data).write_text(with_values(f.read(), self.chosen(ranks)))

    def command(self, host):
        return ["%s/%s" % (SCALAPACK % host, self.program)]

    def result(self, folder, out):
        finished, passed = (re.search(words, out) for words in (r"Finished +(\d+) tests", r"(\d+) tests completed and passed"))
        if not finished or not passed or finished.group(1) != passed.group(1):
            raise testbed.Failure("%s: %s" % (self.name, out[-400:]))
        return "%s tests pass" % passed.group(1)


def with_values(text, values):
    """Returns the input file of a test of ScaLAPACK with some values replaced. Each line has one or
    several values, and their description."""
    lines = []
    for line in text.splitlines():
        description = next((description for description in values if line.lower().rstrip().endswith(description.lower())), None)
        lines.append("%s   %s" % (values[description], description) if description else line)
    return "\n".join(lines) + "\n"


# Refinement continues until the result is accurate enough, about which ranks may disagree: Open
# MPI's allreduce does not return the same last bits to all of them, so they may hang, with or
# without COOL.
NO_REFINEMENT = {"Test Cond. Est. and Iter. Ref. Routines": "F"}


def all_sizes(_ranks):
    """Returns values for all sizes, block lengths, and grids, but only one right-hand side, because
    there would be hundreds of problems otherwise."""
    return {**NO_REFINEMENT, "number of NRHS's": 1, "number of NBRHS's": 1}


def two_sizes(_ranks):
    """Returns values for two sizes and one block length. More block lengths would lead to about ten
    thousand calls."""
    return {"number of problems sizes": 2, "number of NB's": 1}


def large_lu(ranks):
    """Returns values for a single problem, almost as large as the memory of the program permits,
    with one block length and one grid."""
    rows = max(p for p in range(1, ranks + 1) if ranks % p == 0 and p * p <= ranks)
    return {**NO_REFINEMENT, "values of M": 500, "values of N": 500, "values of NB": 64, "values of NRHS": 64, "values of NBRHS": 64, "values of P": rows,
            "values of Q": ranks // rows, "number of problems sizes": 1, "number of NB's": 1, "number of NRHS's": 1, "number of NBRHS's": 1,
            "number of process grids (ordered pairs of P & Q)": 1}


PROGRAMS = [
    Example("K-means (apps/mpi/examples/kmeans.py)", "kmeans.py"),
    Example("K-means, 1000 centers", "kmeans.py", 1000, 1000),
    Example("conjugate gradients (apps/mpi/examples/cg.py)", "cg.py", 96),
    Hpcc(200, 32),
    Scalapack("xdllt, some problems", "xdllt", "LLT.dat", all_sizes, "0"),
    Scalapack("xdtrd, some problems", "xdtrd", "TRD.dat", two_sizes, "0"),
    Scalapack("xdlu, 500 equations", "xdlu", "LU.dat", large_lu),
]


def run(bed, folder, name, program, preload, ranks):
    """Runs a program. Returns its result, its seconds, and its calls by operation and outcome."""
    host = HOST_LIBRARIES[name]()
    variables = {"COOL_SOCKET": bed.directory + "/$(hostname).sock"}
    libraries = [] if host.fortran else [os.path.join(mpi_suite.FOLDER, "sleeping_poll.so")]
    if preload:
        libraries.insert(0, os.path.join(bed.bin_dir, "libcool_mpi.so"))
        variables.update(COOL_MPI="require", COOL_MPI_STATS="1", COOL_MPI_MIN=program.least)
    if libraries:
        variables["LD_PRELOAD"] = ":".join(libraries)
    settings = " ".join("%s=%s" % item for item in variables.items() if item[1])
    program_folder = folder / re.sub(r"\W+", "-", program.name)
    program_folder.mkdir(exist_ok=True)
    program.prepare(program_folder, ranks)
    rank = "cd %s && %s exec %s" % (program_folder, settings, " ".join(program.command(name)))
    title = "%s on %s%s" % (program.name, name, ", preloaded" if preload else "")
    start = time.monotonic()
    process = begin_in_hosts(bed, folder, [*host.mpirun(bed, ranks), "sh", "-c", "'%s'" % rank], host.variables)
    out, errors, ended = communicate(process, SECONDS)
    seconds = time.monotonic() - start
    if not ended or process.returncode:
        cause = "status %d" % process.returncode if ended else "not finished within %d s" % SECONDS
        raise testbed.Failure("%s: %s: %s" % (title, cause, (out + errors)[-600:]))
    calls = collections.defaultdict(collections.Counter)
    for operation, what, reason, number in mpi_suite.LINE.findall(errors):
        calls[operation][reason if what != "taken" else "taken"] += int(number)
    return {"result": program.result(program_folder, out), "seconds": seconds, "calls": calls}


def compare(bed, folder, name, program, options):
    """Runs a program with and without the library, in turn. Returns the comparison."""
    runs = {False: [], True: []}
    for turn in range(options.runs):
        for preload in (False, True) if turn % 2 == 0 else (True, False):
            runs[preload].append(run(bed, folder, name, program, preload, options.ranks))
    results = {outcome["result"] for outcome in runs[False] + runs[True]}
    alone, preloaded = (statistics.median(outcome["seconds"] for outcome in runs[preload]) for preload in (False, True))
    comparison = {"program": program.name, "host": name, "equal": len(results) == 1, "results": sorted(results), "alone": alone, "preloaded": preloaded,
             "least": program.least, "calls": runs[True][0]["calls"]}
    print("%s on %s: %s; alone %.2f s, preloaded %.2f s; %s" % (program.name, name, "equal" if comparison["equal"] else "DIFFERENT", alone, preloaded,
                                                               calls_text(comparison["calls"])), flush=True)
    print("    " + "\n    ".join(result.strip().replace("\n", "\n    ") for result in sorted(results)), flush=True)
    return comparison


def run_on_each(bed, folder, program, options, comparisons, failed):
    for name in (name for name in program.hosts if name in options.hosts.split(",")):
        try:
            comparisons.append(compare(bed, folder, name, program, options))
        except testbed.Failure as e:
            failed.append(str(e))
            print("FAILS: %s" % e, flush=True)


def calls_text(calls):
    """Returns the number of intercepted calls and of all calls, by operation, as text."""
    parts = ["%s %d of %d" % (operation, counts["taken"], sum(counts.values())) for operation, counts in calls.items() if counts["taken"]]
    return ", ".join(parts) or "no calls intercepted"


def document(comparisons, options):
    titles = {"openmpi": "Open MPI", "mpich": "MPICH"}
    sentence = "Measured %s on %s with links of %g and %g Mbit/s and %d ranks by `tests/external/mpi_programs.py`, %d CPUs for all hosts; %s, in seconds." % (
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), options.topology, options.host_mbit, options.uplink_mbit, options.ranks, os.cpu_count(),
        "the median of %d runs" % options.runs if options.runs > 1 else "one run")
    lines = ["| program | library | alone | preloaded | calls intercepted |", "| --- | --- | --: | --: | --- |"]
    for row in comparisons:
        least = " (COOL_MPI_MIN=%s)" % row["least"] if row["least"] else ""
        lines.append("| %s | %s | %.1f | %.1f | %s%s |" % (row["program"], titles[row["host"]], row["alone"], row["preloaded"], calls_text(row["calls"]), least))
    section.replace("mpi.md", "MPI programs", "\n".join([sentence, "", *lines]))


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", help="run only the programs that match this regular expression")
    p.add_argument("--hosts", default="openmpi,mpich", help="MPI libraries; default %(default)s")
    p.add_argument("--ranks", type=int, default=4, help="ranks; default %(default)s")
    p.add_argument("--runs", type=int, default=1,
                   help="runs of each program with and without the library; default %(default)s")
    bench.add_network_options(p, topology="tree:2x2", mbit=100)
    p.add_argument("--prepare", action="store_true",
                   help="install and build missing parts without running anything")
    p.add_argument("--docs", action="store_true", help="write the table to docs/measurements/mpi.md")
    return p.parse_args()


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    for folder in (OUT, mpi_suite.FOLDER):
        os.makedirs(folder, exist_ok=True)
    peers.install(mpich().folder, "numpy")
    mpi_suite.build_sleeping_poll()
    if options.prepare:
        return 0
    comparisons, failed = [], []
    chosen = [program for program in PROGRAMS if not options.only or re.search(options.only, program.name)]
    try:
        for rate in sorted({program.rate for program in chosen}, key=lambda rate: rate or 0):
            rates = (rate, rate) if rate else (options.host_mbit, options.uplink_mbit)
            with testbed.Testbed(options.topology, *rates, peer_timeout_ms=20_000) as bed, tempfile.TemporaryDirectory() as folder:
                bed.wait_until_measured()
                for program in (program for program in chosen if program.rate == rate):
                    run_on_each(bed, Path(folder), program, options, comparisons, failed)
    finally:
        with open(os.path.join(OUT, "report.json"), "w") as f:
            json.dump({"found": comparisons, "failed": failed}, f, indent=1)
    if options.docs:
        document(comparisons, options)
    return int(bool(failed) or not all(row["equal"] for row in comparisons))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except testbed.Failure as e:
        sys.exit("mpi_programs: %s" % e)
