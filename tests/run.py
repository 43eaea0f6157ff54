#!/usr/bin/python3
"""Runs the end-to-end tests, each module in a process and an emulated network of its own, several
at a time, the longest first.

    sudo env COOL_BIN=$PWD/target/debug tests/run.py
    sudo env COOL_BIN=$PWD/target/debug tests/run.py tests/e2e/jobs/test_jobs.py -- -k interrupt
    sudo env COOL_BIN=$PWD/target/debug tests/run.py tests/e2e/network/test_faults.py::test_x

Arguments after -- are passed to pytest. The output of a module is printed when it ends, and stays
in target/tests/. A module that takes longer than --bound is killed with all its children, and
counts as failed; so does a module that runs no test and skips none. The last lines report the
reasons for skipped tests, the causes of failures, one line with the failed tests and a command that
repeats one of them, and totals.
"""
import argparse
import contextlib
import glob
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [os.path.join(ROOT, "mininet"), HERE, os.path.join(HERE, "e2e")]
import conftest  # noqa: E402
import ovs  # noqa: E402
import results  # noqa: E402
import signal_cleanup  # noqa: E402
import testbed  # noqa: E402

OUTPUT = os.path.join(testbed.TARGET, "tests")
# pytest's statuses: all passed; some failed or could not be imported, and are in the report; no
# tests were found.
PASSED, SOME_FAILED, NO_TESTS = 0, (1, 2), 5
# Seconds after which pytest prints where the threads of a test are, in case the test hangs.
STACK_SECONDS = 400
# Seconds within which the last process of a killed module must end.
GONE_SECONDS = 60
# Durations of the longest modules in seconds, two at a time on two CPUs (2026-11-30). They only
# determine the order of the start.
SECONDS = {
    "test_collectives": 260, "test_copy": 220, "test_recovery": 180, "test_scale": 145, "test_kmeans": 135, "test_management_failures": 130,
    "test_faults": 120, "test_torch": 115, "test_etcd": 95, "test_pair": 90, "test_job_cluster": 90, "test_hosts": 90, "test_store": 85, "test_day": 85,
    "test_bindings": 80, "test_callers": 70, "test_snooping": 70, "test_ipv6": 55, "test_controllers": 45, "test_observe": 45, "test_multicast": 40,
    "test_mpi": 40, "test_torch_bare": 35, "test_striping": 35, "test_hostile": 35, "test_certificates": 35, "test_quick_calls": 30, "test_runner": 25,
    "test_forwarding": 25, "test_tour": 25,
}
# Maximum number of modules at a time, because each has some fifty processes and needs their memory.
WORKERS_MAX = 8
# Assumed duration of a module that is not in the table.
UNKNOWN_SECONDS = 20


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--workers", type=int, default=min(2 * len(os.sched_getaffinity(0)), WORKERS_MAX),
                   help="modules that run at a time; default: two for each CPU that may be used, "
                        "because they wait for emulated links half of the time; here %(default)s")
    p.add_argument("--bound", type=float, default=1500, help="seconds after which a module is killed; default %(default)g")
    p.add_argument("--in-thread", action="store_true", default=bool(os.environ.get("COOL_TESTS_IN_THREAD")),
                   help="run tests in a thread other than the main one; the same as "
                        "COOL_TESTS_IN_THREAD=1")
    p.add_argument("tests", nargs="*",
                   help="modules, or tests in pytest's notation; default: all modules in "
                        "tests/e2e/")
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[:own.index("--")], own[own.index("--") + 1:]
    a = p.parse_args(own)
    if a.workers < 1 or a.bound <= 0:
        p.error("--workers must be at least 1, and --bound positive")
    a.options = options
    return a


class PlainPaths:
    """Paths without spaces for directories whose paths contain spaces: the prefix of a command that
    mounts them there, and variables with their paths.

    LD_PRELOAD, and the programs by which MPI launchers reach a host, do not support spaces. The
    mounts belong to the module's namespace, so they end with it.
    """
    MOUNT = 'while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; cd "$0"; shift; exec "$@"'

    def __init__(self):
        spaced = {"root": ROOT, **{name: os.path.realpath(os.environ[name]) for name in ("COOL_BIN", "CARGO_TARGET_DIR") if os.environ.get(name)}}
        self.variables, self.prefix, self.folders = {}, [], []
        if not any(len(path.split()) > 1 for path in spaced.values()):
            return
        mounts = []
        for name, path in spaced.items():
            self.folders.append(tempfile.mkdtemp(prefix="cool-%s-" % name.lower()))
            mounts += [path, self.folders[-1]]
            if name != "root":
                self.variables[name] = self.folders[-1]
        self.prefix = ["sh", "-euc", self.MOUNT, self.folders[0], *mounts, "--"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # rmdir removes empty directories only, so it never removes files that are mounted on them.
        for folder in self.folders:
            os.rmdir(folder)


class Module:
    """The tests of one file, or some of them, and the process that runs them."""

    def __init__(self, file, tests, arguments, folder, plain):
        self.name = os.path.splitext(os.path.basename(file))[0]
        self.path = os.path.relpath(file, ROOT)
        self.tests, self.arguments, self.plain = tests, arguments, plain
        self.folder = os.path.join(folder, self.name)
        self.log, self.report = (os.path.join(OUTPUT, self.name + ending) for ending in (".log", ".xml"))

    def start(self):
        """Starts the process; `pidfd` becomes readable when it ends."""
        os.mkdir(self.folder)
        # Simulated users also create files there.
        os.chmod(self.folder, 0o1777)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.report)
        pytest = ["tests/in_thread.py"] if self.arguments.in_thread else ["-m", "pytest"]
        command = ["setpriv", "--pdeathsig", "KILL", os.path.join(ROOT, "mininet", "apart"), *self.plain.prefix, "/usr/bin/python3", *pytest, "-v",
                   "-p", "no:cacheprovider", "-o", "faulthandler_timeout=%d" % STACK_SECONDS, "--basetemp", os.path.join(self.folder, "t"), "--junitxml", self.report, "--rootdir", ".", *self.tests, *self.arguments.options]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **self.plain.variables, "TMPDIR": self.folder},
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.started, self.cpu_seconds = time.monotonic(), 0.0
        self.pidfd = os.pidfd_open(self.process.pid)

    @property
    def end(self):
        """Returns the time at which the module is killed."""
        return self.started + self.arguments.bound

    def wait(self):
        """Waits for the process, and records the CPU time of all processes of the module: each
        has been waited for by its parent, or by the first process of the namespace."""
        if self.process.returncode is not None:
            return
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_seconds = usage.ru_utime + usage.ru_stime

    def kill(self):
        """Kills the process and all its children, and waits until none is left."""
        first = first_child(self.process.pid)
        self.process.kill()
        self.wait()
        if first:
            await_end(first)

    def finish(self):
        """Releases the module's resources; returns its results."""
        seconds = time.monotonic() - self.started
        late = self.process.poll() is None
        if late:
            self.kill()
        self.close()
        found = results.Results()
        try:
            found.read(self.report, results.pytest_name(self.path))
        except (OSError, xml.etree.ElementTree.ParseError) as error:
            why = "took more than %g s" % self.arguments.bound if late else "has no report: %s" % error
            self.fail(found, why)
        else:
            status = self.process.returncode
            if status not in (PASSED, NO_TESTS) and not (status in SOME_FAILED and found.failed):
                self.fail(found, "pytest ended with status %d" % status)
            elif not (found.passed or found.failed or found.skipped or self.arguments.options):
                self.fail(found, "ran no test")
        self.show(found, seconds)
        return found, seconds

    def fail(self, found, why):
        """Records the module as a failed test."""
        with open(self.log, "a") as log:
            log.write("\n%s: %s\n" % (self.name, why))
        name = self.tests[0] if len(self.tests) == 1 else self.path
        found.failed.append(name)
        found.causes[name] = why

    def show(self, found, seconds):
        print("===== %s: %s, in %.0f s, %.0f s of CPU time" % (self.name, found.total(), seconds, self.cpu_seconds))
        with open(self.log, errors="replace") as log:
            shutil.copyfileobj(log, sys.stdout)
        sys.stdout.flush()

    def close(self):
        os.close(self.pidfd)
        shutil.rmtree(self.folder)


def first_child(pid):
    """Returns a pidfd of a process' child, here the first process of a namespace, or None if there
    is none."""
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
            children = f.read().split()
        return os.pidfd_open(int(children[0])) if children else None
    except (FileNotFoundError, ProcessLookupError):
        return None


def await_end(pidfd):
    """Waits until a process has ended. The first process of a namespace ends after all others."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    ended = poller.poll(GONE_SECONDS * 1000)
    os.close(pidfd)
    if not ended:
        print("warning: a module's processes have not ended after %d "
              "s" % GONE_SECONDS, file=sys.stderr)


def modules(arguments, folder, plain):
    """Returns the modules to run, the longest first."""
    wanted = arguments.tests or sorted(glob.glob(os.path.join(HERE, "e2e", "**", "test_*.py"), recursive=True))
    tests = {}
    for test in wanted:
        file, _, name = test.partition("::")
        file = os.path.abspath(file)
        if not os.path.isfile(file):
            sys.exit("run.py: there is no %s" % file)
        # Relative to pytest's working directory, so that names in reports do not depend on ours.
        tests.setdefault(file, []).append(os.path.relpath(file, ROOT) + ("::" + name if name else ""))
    found = [Module(file, tests[file], arguments, folder, plain) for file in tests]
    return sorted(found, key=lambda module: -SECONDS.get(module.name, UNKNOWN_SECONDS))


def run(waiting, workers):
    """Runs the modules, several at a time; yields each that has ended or exceeded its bound."""
    poller, running = select.poll(), {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                module = waiting.pop(0)
                module.start()
                running[module.pidfd] = module
                poller.register(module.pidfd, select.POLLIN)
            least = min(module.end for module in running.values()) - time.monotonic()
            ended = [pidfd for pidfd, _ in poller.poll(max(0, least) * 1000)]
            for pidfd in ended:
                running[pidfd].wait()
            late = [pidfd for pidfd, module in running.items() if pidfd not in ended and module.end <= time.monotonic()]
            for pidfd in ended + late:
                poller.unregister(pidfd)
                yield running.pop(pidfd)
    finally:
        for module in running.values():
            module.kill()
            module.close()


def repeat(test):
    """Returns the command that repeats one test."""
    programs = ["COOL_BIN=" + os.environ["COOL_BIN"]] if "COOL_BIN" in os.environ else []
    return shlex.join(["sudo", "env", *programs, os.path.relpath(__file__), test])


def main():
    arguments = parse_arguments()
    if os.geteuid():
        sys.exit("run.py: tests create network namespaces and switches: run it as root")
    signal_cleanup.unwind_on_signals()
    os.makedirs(OUTPUT, exist_ok=True)
    all_of_them, seconds = results.Results(), {}
    # Steps that modules cannot perform in their namespaces: access to PyPI, and sizes of sockets.
    conftest.mpich()
    # Paths below are short, because names of sockets have at most 107 bytes.
    with ovs.roomy_sockets(), PlainPaths() as plain, tempfile.TemporaryDirectory(prefix="cool-") as folder:
        os.chmod(folder, 0o755)
        for module in run(modules(arguments, folder, plain), arguments.workers):
            found, seconds[module.name] = module.finish()
            all_of_them.add(found)
    print("===== seconds: " + ", ".join("%s %.0f" % (name, took) for name, took in sorted(seconds.items(), key=lambda item: -item[1])))
    for line in all_of_them.reasons() + all_of_them.explanations():
        print(line)
    with open(os.path.join(OUTPUT, "end-to-end.json"), "w") as f:
        json.dump({**vars(all_of_them), "repeat": [repeat(test) for test in all_of_them.failed[:1]]}, f, indent=1)
    if all_of_them.failed:
        print(results.failures(all_of_them.failed, repeat(all_of_them.failed[0])))
    print(all_of_them.total())
    return 1 if all_of_them.failed else 0


if __name__ == "__main__":
    sys.exit(main())
