#!/usr/bin/python3
"""Runs the tests of collectives of MPICH and mpi4py with and without libcool_mpi.so (`make
mpi-suite`).

    sudo tests/external/mpi_suite.py --prepare
    sudo mininet/apart tests/external/mpi_suite.py --hosts mpich,openmpi --most 5 --skip mpi4py

The Debian source package of mpich is fetched with separate package lists, so that those of the user
do not change. Its test/mpi/coll is built with the compiler of each MPI library. The tests of mpi4py
are from the source of the installed version. All files are in target/mpi. With COOL_MPI_MIN=0,
every eligible call is intercepted. The program reports the entries that pass without the library
and fail with it, which is an error, and how many of the eligible calls were intercepted. Needs
root, dpkg-dev, and the same packages as the end-to-end tests. --prepare does everything except run
the tests, and needs access to the packages.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from conftest import mpich  # noqa: E402
from launchers import HOST_LIBRARIES, ROOT, begin_in_hosts, communicate  # noqa: E402

import peers  # noqa: E402
import testbed  # noqa: E402
import topologies  # noqa: E402

FOLDER = os.path.join(testbed.TARGET, "mpi", "suite")
MIRROR = "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n"
# Entries that declare a larger memory requirement than this are skipped.
MOST_GIB = 4
# The tests use names of MPI 1, which Open MPI defines only with this macro.
MPI_1 = ["CPPFLAGS=-DOMPI_OMIT_MPI1_COMPAT_DECLS=0"]
# Files of mpi4py's tests, and the lines of failed ones.
MODULES = ("test_cco_*.py", "test_comm*.py", "test_op.py")
FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+ \([\w.]+\))", re.MULTILINE)
LINE = re.compile(r"cool-mpi: (\w+) (taken|left \(([^)]*)\)): (\d+) calls, \d+ bytes")


def fetch_tests():
    """Fetches MPICH's tests if they are missing, and returns their directory."""
    os.makedirs(FOLDER, exist_ok=True)
    apt = os.path.join(FOLDER, "apt")
    for folder in ("lists/partial", "cache/archives/partial"):
        os.makedirs(os.path.join(apt, folder), exist_ok=True)
    with open(os.path.join(apt, "sources.list"), "w") as f:
        f.write(MIRROR)
    options = ["-o", "Dir::Etc::SourceList=%s/sources.list" % apt, "-o", "Dir::Etc::SourceParts=/dev/null", "-o", "Dir::State::Lists=%s/lists" % apt,
               "-o", "Dir::Cache=%s/cache" % apt]
    folders = sorted(Path(FOLDER).glob("mpich-*/test/mpi"))
    if not folders:
        run_logged("apt-update", ["apt-get", *options, "update"], FOLDER)
        run_logged("apt-source", ["apt-get", *options, "source", "--only-source", "mpich"], FOLDER)
        folders = sorted(Path(FOLDER).glob("mpich-*/test/mpi"))
    return str(folders[-1])


def run_logged(name, command, folder):
    """Runs a command whose output goes to a log in `folder`. Raises Failure if it fails."""
    with open(os.path.join(folder, name + ".log"), "w") as log:
        process = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if process.returncode:
        raise testbed.Failure("%s: status %d, see %s" % (" ".join(command[:3]), process.returncode, log.name))


def build_sleeping_poll():
    """Builds the library that is preloaded into ranks of MPICH, whose waiting ranks would otherwise
    take the CPUs from the network."""
    run_logged("sleeping_poll", ["gcc", "-O2", "-shared", "-fPIC", "-o", "sleeping_poll.so", os.path.join(ROOT, "bench", "sleeping_poll.c"), "-ldl"], FOLDER)


def build_tests(name, host, sources):
    """Builds the tests for one MPI library and returns the directory of the programs."""
    folder = os.path.join(FOLDER, "build-" + name)
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(os.path.join(folder, "Makefile")):
        run_logged("configure", [os.path.join(sources, "configure"), "MPICC=" + host.compiler, "CC=" + host.compiler, *MPI_1, "--enable-strictmpi",
                             "--disable-fortran", "--disable-cxx", "--disable-spawn"], folder)
    for part in ("util", "dtpools"):
        run_logged(part, ["make", "-C", part], folder)
    try:
        run_logged("coll", ["make", "-k", "-C", "coll"], folder)
    except testbed.Failure as e:
        print("%s: some tests could not be built: %s" % (name, e), flush=True)
    return os.path.join(folder, "coll")


class Entry:
    """A test with its title, working directory, command, number of ranks, and timeout in
    seconds."""

    def __init__(self, title, folder, command, ranks, seconds):
        self.title, self.folder, self.command, self.ranks, self.seconds = title, folder, command, ranks, seconds

    def passed(self, out):
        return "No Errors" in out


class Module(Entry):
    """A test module of mpi4py, run by the Python of MPICH's environment, whose mpi4py supports both
    libraries."""

    def passed(self, out):
        return not FAILED.search(out) and re.search(r"^Ran [1-9]\d* tests", out, re.MULTILINE)


def entries(folder, most):
    """Yields the entries of MPICH's list of tests that are built and need at most `most` ranks."""
    with open(os.path.join(folder, "testlist")) as f:
        lines = [line.split() for line in f if line.strip() and not line.startswith("#")]
    for program, ranks, *options in lines:
        if int(ranks) > most or not os.access(os.path.join(folder, program), os.X_OK):
            continue
        values = dict(option.split("=", 1) for option in options)
        arguments = [option.split("=", 1)[1] for option in options if option.startswith("arg=")]
        if float(values.get("mem", 0)) <= MOST_GIB:
            yield Entry(" ".join([program, ranks, *arguments]), folder, ["./" + program, *arguments], int(ranks), int(values.get("timeLimit", 180)))


def modules(name, folder, ranks):
    """Yields the test modules of mpi4py, whose wheel does not support the standard binary
    interface."""
    python = os.path.join(mpich().folder, "bin", "python")
    # By default, mpi4py loads the MPI library of its own environment.
    other = ["env", "MPI4PY_MPIABI=openmpi"] if name == "openmpi" else []
    names = sorted({path.stem for pattern in MODULES for path in Path(folder).glob(pattern)}) if name != "abi" else []
    for module in names:
        # The option -i matches parts of names, so -e excludes modules with longer names.
        yield Module("mpi4py %s %d" % (module, ranks), folder, [*other, python, "main.py", "-v", "-i", module, "-e", module + "_"], ranks, 600)


def fetch_mpi4py_tests():
    """Fetches mpi4py's tests if they are missing, and returns their directory."""
    pip = os.path.join(mpich().folder, "bin", "pip")
    version = re.search(r"^Version: (\S+)", peers.run_checked(pip, "--disable-pip-version-check", "show", "mpi4py"), re.MULTILINE).group(1)
    folder = os.path.join(FOLDER, "mpi4py-" + version)
    if not os.path.exists(os.path.join(folder, "test", "main.py")):
        run_logged("mpi4py", [pip, "download", "--no-deps", "--no-binary", "mpi4py", "mpi4py==" + version], FOLDER)
        run_logged("mpi4py-tar", ["tar", "-xzf", folder + ".tar.gz"], FOLDER)
    return os.path.join(folder, "test")


class Attempt:
    """The result of one run of a test."""

    def __init__(self, process, entry):
        out, err, ended = communicate(process, entry.seconds)
        succeeded = ended and process.returncode == 0 and entry.passed(out + err)
        status = "status %s" % process.returncode if ended else "not finished within %d s" % entry.seconds
        self.why = "" if succeeded else "%s: %s" % (status, (out + err).strip()[-400:])
        # The names of failed tests, or `all` if the run failed without naming any.
        self.failed = set(FAILED.findall(out + err)) or ({"all"} if self.why else set())
        self.calls = collections.Counter()
        for operation, what, reason, calls in LINE.findall(err):
            self.calls[reason if what != "taken" else "taken"] += int(calls)


def attempt(bed, folder, host, entry, preload):
    variables = {"COOL_SOCKET": bed.directory + "/$(hostname).sock"}
    libraries = [] if host.fortran else [os.path.join(FOLDER, "sleeping_poll.so")]
    if preload:
        libraries.insert(0, os.path.join(bed.bin_dir, "libcool_mpi.so"))
        variables.update(COOL_MPI_MIN="0", COOL_MPI_STATS="1")
    if libraries:
        variables["LD_PRELOAD"] = ":".join(libraries)
    settings = " ".join("%s=%s" % item for item in variables.items())
    rank = "cd %s && %s exec %s" % (entry.folder, settings, " ".join(entry.command))
    return Attempt(begin_in_hosts(bed, folder, [*host.mpirun(bed, entry.ranks), "sh", "-c", "'%s'" % rank], host.variables), entry)


def run_all(bed, folder, name, host, tests, options, result):
    """Runs every entry with and without the library, and adds the outcomes to `result`."""
    for entry in tests:
        title = entry.title
        if (options.only and not re.search(options.only, title)) or (options.skip and re.search(options.skip, title)):
            continue
        start = time.monotonic()
        without, preloaded = (attempt(bed, folder, host, entry, preload) for preload in (False, True))
        result["passed"] += not without.why
        result["passed_with"] += not preloaded.why
        result["calls"] += preloaded.calls
        verdict, new = "passes", preloaded.failed - without.failed
        if without.why:
            result["failed_without"].append(title)
            verdict = "fails without" + ("" if preloaded.why else ", passes with")
        if new and without.failed != {"all"}:
            result["worse"][title] = preloaded.why
            verdict = "FAILS WITH: %s: %s" % (", ".join(sorted(new)), preloaded.why)
        print("%s: %s: %s (%.1f s)" % (name, title, verdict, time.monotonic() - start), flush=True)


def summary(name, result):
    calls = result["calls"]
    eligible = calls["taken"] + calls["no group"]
    other_calls = ", ".join("%s %d" % item for item in sorted(calls.items()) if item[0] != "taken")
    return "%s: %d pass without, %d with; worse: %s; fail without: %s; of %d eligible calls, %d were intercepted (%.1f %%); passed through: %s" % (
        name, result["passed"], result["passed_with"], ", ".join(result["worse"]) or "none", ", ".join(result["failed_without"]) or "none", eligible,
        calls["taken"], 100 * calls["taken"] / max(1, eligible), other_calls)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hosts", default=",".join(HOST_LIBRARIES),
                   help="MPI libraries; default %(default)s")
    p.add_argument("--most", type=int, default=16,
                   help="maximum number of ranks of an entry; default %(default)s")
    p.add_argument("--mpi4py-ranks", type=int, default=4, help="ranks of mpi4py's tests, 3 to 5; default %(default)s")
    p.add_argument("--prepare", action="store_true",
                   help="fetch and build missing parts without running tests")
    p.add_argument("--only", help="run only the entries that match this regular expression")
    p.add_argument("--skip", help="skip the entries that match this regular expression")
    p.add_argument("--topology", type=topologies.argument, default="tree:4x4", help=topologies.FORMS + "; default %(default)s")
    options = p.parse_args()
    testbed.unwind_on_signals()
    hosts = {name: HOST_LIBRARIES[name]() for name in options.hosts.split(",")}
    sources = fetch_tests()
    tests_of_mpi4py = fetch_mpi4py_tests()
    build_sleeping_poll()
    programs = {name: build_tests(name, host, sources) for name, host in hosts.items()}
    if options.prepare:
        return 0
    results = {name: {"passed": 0, "passed_with": 0, "worse": {}, "failed_without": [], "calls": collections.Counter()} for name in hosts}
    try:
        with testbed.Testbed(options.topology, peer_timeout_ms=20_000) as bed, tempfile.TemporaryDirectory() as folder:
            for name, host in hosts.items():
                tests = [*entries(programs[name], options.most), *modules(name, tests_of_mpi4py, options.mpi4py_ranks)]
                run_all(bed, Path(folder), name, host, tests, options, results[name])
    finally:
        # An interrupted run is reported too.
        with open(os.path.join(FOLDER, "report.json"), "w") as f:
            json.dump(results, f, indent=1)
        for name, result in results.items():
            print(summary(name, result))
    return int(any(result["worse"] for result in results.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except testbed.Failure as e:
        sys.exit("mpi_suite: %s" % e)
