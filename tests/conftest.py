"""Fixtures of the end-to-end tests: one testbed at a time, shared by the tests of a module where they can.

With pytest-xdist, modules run side by side, each worker in an emulation of its own (mininet/apart, as `make test` does).
"""
import contextlib
import functools
import os
import signal
import sys
import threading

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "mininet"), os.path.join(ROOT, "bench")]
import ovs  # noqa: E402
import peers  # noqa: E402
import testbed  # noqa: E402
from testbed import PATIENCE, wait_for  # noqa: E402, F401

# Whoever ends the tests early ends them as Ctrl-C does, which removes the emulated network. (execnet may run a worker's tests in a thread,
# where that cannot be said; with the worker's first process all that it has started ends, mininet/apart.)
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_configure(config):
    """Does for workers, before they start, what they cannot do in namespaces of their own."""
    config.addinivalue_line("filterwarnings", "ignore:distutils Version classes:DeprecationWarning:mininet")
    if not config.getoption("tx", None) or hasattr(config, "workerinput"):
        return
    mpich()
    settings = contextlib.ExitStack()
    settings.enter_context(ovs.roomy_sockets())
    config.add_cleanup(settings.close)


def pytest_collection_modifyitems(items):
    """The longest modules begin first: at the end one worker would wait for them alone."""
    longest = ("test_faults", "test_recovery", "test_torch")
    items.sort(key=lambda item: item.module.__name__ not in longest)


def mpich():
    """MPICH, of its wheel, with mpi4py beside it."""
    folder = os.path.join(ROOT, "target", "bench")
    os.makedirs(folder, exist_ok=True)
    library = peers.Mpich(folder, True)
    library.prepare()
    peers.installed(library.folder, "mpi4py")
    return library


@pytest.fixture(scope="module")
def make_bed():
    """Starts testbeds, each replacing the one before; the last ends with the module."""
    current = {}

    def make(topology, **options):
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


@pytest.fixture(scope="module")
def patient_bed(make_bed):
    """As `make_bed`, for tests that are about bytes: while beds share few processors nobody is taken for gone."""
    return functools.partial(make_bed, peer_timeout_ms=10_000)


def end_controller(bed, number=signal.SIGTERM):
    """Ends the controller, in order or as the signal does; it may be started again."""
    bed.controller.signal(number)
    bed.controller.process.wait(PATIENCE)
    bed.daemons.remove(bed.controller)


def end_agent(bed, name):
    """Ends an agent in order; it may be started again."""
    agent = bed.agents[name]
    agent.signal(signal.SIGTERM)
    agent.process.wait(PATIENCE)
    bed.daemons.remove(agent)


def run(bed, *command, timeout=PATIENCE):
    """Runs a command in the testbed; returns the finished process with its output as text."""
    return bed.run(command, capture_output=True, text=True, timeout=timeout)


def succeed(bed, *command, timeout=PATIENCE):
    """Runs a command in the testbed that must succeed; returns what it printed."""
    done = run(bed, *command, timeout=timeout)
    assert done.returncode == 0, "%s: status %d\n%s%s" % (" ".join(command), done.returncode, done.stdout, done.stderr)
    return done.stdout


def log_of(bed, name):
    with open(os.path.join(bed.logs, name + ".log"), errors="replace") as f:
        return f.read()
