"""Fixtures of the end-to-end tests: one testbed at a time, shared by the tests of a module where they can."""
import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "mininet"))
import testbed  # noqa: E402


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


def run(bed, *command, timeout=120):
    """Runs a command in the testbed; returns the finished process with its output as text."""
    return bed.run(command, capture_output=True, text=True, timeout=timeout)


def succeed(bed, *command, timeout=120):
    """Runs a command in the testbed that must succeed; returns what it printed."""
    done = run(bed, *command, timeout=timeout)
    assert done.returncode == 0, "%s: status %d\n%s%s" % (" ".join(command), done.returncode, done.stdout, done.stderr)
    return done.stdout
