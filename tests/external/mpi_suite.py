#!/usr/bin/python3
"""Runs MPICH's own tests of collectives, and mpi4py's, over libcool_mpi.so, and without it (`make mpi-suite`).

    sudo tests/external/mpi_suite.py --prepare
    sudo mininet/apart tests/external/mpi_suite.py --hosts mpich,openmpi --most 5 --skip mpi4py

Debian's source of mpich is fetched by lists of packages of our own, so that the user's stay as they are, and its test/mpi/coll built with the
compiler of each host library; mpi4py's tests come with its source, of the version that is installed; all in target/mpi. With COOL_MPI_MIN=0
whatever may be taken is. Tells which entries pass without and fail with the library, which is an error, and how many of the calls that could be
taken were. Needs root, dpkg-dev and what end-to-end tests need; --prepare, which does all but run them, needs a way to the packages.
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
from launchers import HOST_LIBRARIES, ROOT, begin_in_hosts, communicated  # noqa: E402

import peers  # noqa: E402
import testbed  # noqa: E402
import topologies  # noqa: E402

FOLDER = os.path.join(ROOT, "target", "mpi", "suite")
MIRROR = "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n"
# Of the memory that an entry says it needs.
MOST_GIB = 4
# The tests know names of MPI 1, which Open MPI has only for those who ask.
MPI_1 = ["CPPFLAGS=-DOMPI_OMIT_MPI1_COMPAT_DECLS=0"]
# Of mpi4py's tests, and those of them that failed.
MODULES = ("test_cco_*.py", "test_comm*.py", "test_op.py")
FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+ \([\w.]+\))", re.MULTILINE)
LINE = re.compile(r"cool-mpi: (\w+) (taken|left \(([^)]*)\)): (\d+) calls, \d+ bytes")


def fetched():
    """The folder of MPICH's tests."""
    os.makedirs(FOLDER, exist_ok=True)
    apt = os.path.join(FOLDER, "apt")
    for folder in ("lists/partial", "cache/archives/partial"):
        os.makedirs(os.path.join(apt, folder), exist_ok=True)
    with open(os.path.join(apt, "sources.list"), "w") as f:
        f.write(MIRROR)
    options = ["-o", "Dir::Etc::SourceList=%s/sources.list" % apt, "-o", "Dir::Etc::SourceParts=/dev/null", "-o", "Dir::State::Lists=%s/lists" % apt,
               "-o", "Dir::Cache=%s/cache" % apt]
    found = sorted(Path(FOLDER).glob("mpich-*/test/mpi"))
    if not found:
        logged("apt-update", ["apt-get", *options, "update"], FOLDER)
        logged("apt-source", ["apt-get", *options, "source", "--only-source", "mpich"], FOLDER)
        found = sorted(Path(FOLDER).glob("mpich-*/test/mpi"))
    return str(found[-1])


def logged(name, command, folder):
    """Runs a command; what it prints goes to a file beside what it makes."""
    with open(os.path.join(folder, name + ".log"), "w") as log:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise testbed.Failure("%s: status %d, see %s" % (" ".join(command[:3]), done.returncode, log.name))


def build_sleeping_poll():
    """What is preloaded into ranks of MPICH: those that wait would take the processors from the network."""
    logged("sleeping_poll", ["gcc", "-O2", "-shared", "-fPIC", "-o", "sleeping_poll.so", os.path.join(ROOT, "bench", "sleeping_poll.c"), "-ldl"], FOLDER)


def built(name, host, sources):
    """The folder of the built programs."""
    folder = os.path.join(FOLDER, "build-" + name)
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(os.path.join(folder, "Makefile")):
        logged("configure", [os.path.join(sources, "configure"), "MPICC=" + host.compiler, "CC=" + host.compiler, *MPI_1, "--enable-strictmpi",
                             "--disable-fortran", "--disable-cxx", "--disable-spawn"], folder)
    for part in ("util", "dtpools"):
        logged(part, ["make", "-C", part], folder)
    try:
        logged("coll", ["make", "-k", "-C", "coll"], folder)
    except testbed.Failure as e:
        print("%s: some tests are not built: %s" % (name, e), flush=True)
    return os.path.join(folder, "coll")


class Entry:
    """A test: how it is called, where its command is started, its ranks, and the seconds that it may take."""

    def __init__(self, title, folder, command, ranks, seconds):
        self.title, self.folder, self.command, self.ranks, self.seconds = title, folder, command, ranks, seconds

    def passed(self, out):
        return "No Errors" in out


class Module(Entry):
    """One of mpi4py's modules of tests, by the Python of MPICH's environment, whose mpi4py knows both libraries."""

    def passed(self, out):
        return not FAILED.search(out) and re.search(r"^Ran [1-9]\d* tests", out, re.MULTILINE)


def entries(folder, most):
    """As the list of MPICH's tests has them."""
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
    """mpi4py's; its wheel knows no standard binary interface."""
    python = os.path.join(mpich().folder, "bin", "python")
    # It finds the library of its own environment first.
    other = ["env", "MPI4PY_MPIABI=openmpi"] if name == "openmpi" else []
    found = sorted({path.stem for pattern in MODULES for path in Path(folder).glob(pattern)}) if name != "abi" else []
    for module in found:
        # By a part of the name, which may be one of other modules, too.
        yield Module("mpi4py %s %d" % (module, ranks), folder, [*other, python, "main.py", "-v", "-i", module, "-e", module + "_"], ranks, 600)


def of_mpi4py():
    """The folder of mpi4py's tests."""
    pip = os.path.join(mpich().folder, "bin", "pip")
    version = re.search(r"^Version: (\S+)", peers.run_checked(pip, "--disable-pip-version-check", "show", "mpi4py"), re.MULTILINE).group(1)
    folder = os.path.join(FOLDER, "mpi4py-" + version)
    if not os.path.exists(os.path.join(folder, "test", "main.py")):
        logged("mpi4py", [pip, "download", "--no-deps", "--no-binary", "mpi4py", "mpi4py==" + version], FOLDER)
        logged("mpi4py-tar", ["tar", "-xzf", folder + ".tar.gz"], FOLDER)
    return os.path.join(folder, "test")


class Attempt:
    """A test's run."""

    def __init__(self, process, entry):
        out, err, ended = communicated(process, entry.seconds)
        good = ended and process.returncode == 0 and entry.passed(out + err)
        how = "status %s" % process.returncode if ended else "no end within %d s" % entry.seconds
        self.why = "" if good else "%s: %s" % (how, (out + err).strip()[-400:])
        # Which of several tests failed; if none says so, all may have.
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
    """Every entry without and with the library; notes what came of it."""
    for entry in tests:
        title = entry.title
        if (options.only and not re.search(options.only, title)) or (options.skip and re.search(options.skip, title)):
            continue
        begun = time.monotonic()
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
        print("%s: %s: %s (%.1f s)" % (name, title, verdict, time.monotonic() - begun), flush=True)


def summary(name, result):
    calls = result["calls"]
    eligible = calls["taken"] + calls["no group"]
    left = ", ".join("%s %d" % item for item in sorted(calls.items()) if item[0] != "taken")
    return "%s: %d pass without, %d with; worse: %s; fail without: %s; of %d calls that could be taken %d were (%.1f %%); left: %s" % (
        name, result["passed"], result["passed_with"], ", ".join(result["worse"]) or "none", ", ".join(result["failed_without"]) or "none", eligible,
        calls["taken"], 100 * calls["taken"] / max(1, eligible), left)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hosts", default=",".join(HOST_LIBRARIES), help="host libraries, of %(default)s")
    p.add_argument("--most", type=int, default=16, help="ranks of the largest entries; default %(default)s")
    p.add_argument("--mpi4py-ranks", type=int, default=4, help="ranks of mpi4py's tests, 3 to 5; default %(default)s")
    p.add_argument("--prepare", action="store_true", help="fetch and build what is missing, and run nothing")
    p.add_argument("--only", help="entries that this regular expression finds")
    p.add_argument("--skip", help="entries that are left out, likewise")
    p.add_argument("--topology", type=topologies.argument, default="tree:4x4", help=topologies.FORMS + "; default %(default)s")
    options = p.parse_args()
    testbed.unwind_on_signals()
    hosts = {name: HOST_LIBRARIES[name]() for name in options.hosts.split(",")}
    sources = fetched()
    tests_of_mpi4py = of_mpi4py()
    build_sleeping_poll()
    programs = {name: built(name, host, sources) for name, host in hosts.items()}
    if options.prepare:
        return 0
    results = {name: {"passed": 0, "passed_with": 0, "worse": {}, "failed_without": [], "calls": collections.Counter()} for name in hosts}
    try:
        with testbed.Testbed(options.topology, peer_timeout_ms=20_000) as bed, tempfile.TemporaryDirectory() as folder:
            for name, host in hosts.items():
                tests = [*entries(programs[name], options.most), *modules(name, tests_of_mpi4py, options.mpi4py_ranks)]
                run_all(bed, Path(folder), name, host, tests, options, results[name])
    finally:
        # Also of a run that is broken off.
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
