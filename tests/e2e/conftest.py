"""Fixtures of the end-to-end tests: one testbed at a time, which the tests of a module share if
they can.

Tests may run in any thread, so no code here may change signal handlers, working directory,
environment or limits of the process (tests/rules/threads.rs checks this). `tests/run.py` runs each
module in a process and an emulation of its own.
"""
import fcntl
import os
import signal
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Modules in these directories may import each other.
E2E = [HERE, *(os.path.join(HERE, name) for name in ("network", "jobs", "copy", "security", "apps"))]
sys.path[:0] = [os.path.join(ROOT, "mininet"), os.path.join(ROOT, "bench"), *E2E, os.path.join(ROOT, "tests"), os.path.join(ROOT, "tests", "external")]
import peers  # noqa: E402
import testbed  # noqa: E402
from testbed import PATIENCE, wait_for  # noqa: E402, F401

# Agents' failure detectors wait this long for an answer, because a busy machine does not schedule
# every agent within the default of 2 s, and on a single CPU not even within 10 s. Tests in which a
# failed node is detected take longer by it.
PEER_TIMEOUT_MS = 20_000
# Where no switch receives LLDP, a node whose agent was killed counts as lost only after the grace
# time, 60 s by default. This is the shortest; agents that a busy machine delays return within it.
SHORT_GRACE = ("--agent-grace", "20")
# A controller's lease in etcd expires 10 s after its last renewal, not 3, for the same reason.
LONG_LEASE = ("--lead-ttl", "10")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore:distutils Version classes:DeprecationWarning:mininet")


def mpich():
    """Returns MPICH from its wheel, with mpi4py. Installs both if they are missing, which needs
    access to PyPI.

    They are outside of the checkout, as PyTorch is (tools/torch), because MPICH's scripts do not
    support spaces in paths.
    """
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "cool", "mpich")
    os.makedirs(folder, exist_ok=True)
    library = peers.Mpich(folder, True)
    # Its presence shows that both are complete.
    whole = os.path.join(library.folder, "whole")
    # Modules that run at the same time prepare the same directory.
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(whole):
            library.prepare()
            peers.install(library.folder, "mpi4py")
            with open(whole, "w"):
                pass
    return library


@pytest.fixture(scope="module")
def make_bed():
    """Starts testbeds, whose agents wait long for each other (PEER_TIMEOUT_MS). Each replaces the
    previous one, and the last ends with the module."""
    current = {}

    def make(topology, **options):
        options = {"peer_timeout_ms": PEER_TIMEOUT_MS, **options}
        key = (topology, tuple(sorted(options.items())))
        if current.get("key") != key:
            stop()
            current["bed"] = testbed.Testbed(topology, **options).__enter__()
            current["key"] = key
        return current["bed"]

    def stop():
        if "bed" in current:
            current.pop("bed").__exit__(None, None, None)
            current.clear()

    yield make
    stop()


def end_controller(bed, number=signal.SIGTERM):
    """Ends the controller by a signal; the test may start it again."""
    bed.controller.signal(number)
    bed.controller.process.wait(PATIENCE)
    bed.daemons.remove(bed.controller)


def end_agent(bed, name):
    """Ends an agent in an orderly way; the test may start it again."""
    agent = bed.agents[name]
    agent.signal(signal.SIGTERM)
    agent.process.wait(PATIENCE)
    bed.daemons.remove(agent)


def run(bed, *command, timeout=PATIENCE):
    """Runs a command in the testbed; returns the finished process with its output as text."""
    return bed.run(command, capture_output=True, text=True, timeout=timeout)


def succeed(bed, *command, timeout=PATIENCE):
    """Runs a command in the testbed that must succeed; returns its output."""
    process = run(bed, *command, timeout=timeout)
    assert process.returncode == 0, "%s: status %d\n%s%s" % (" ".join(command), process.returncode, process.stdout, process.stderr)
    return process.stdout


def log_of(bed, name):
    with open(os.path.join(bed.logs, name + ".log"), errors="replace") as f:
        return f.read()
