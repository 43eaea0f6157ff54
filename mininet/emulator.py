"""The parts of Mininet that the testbed uses, with a bound on each wait for a node. If Mininet is
not installed, importing this module ends the program with one line that names the package."""
import contextlib
import os
import select
import signal
import subprocess
import sys

try:
    import mininet.node
    from mininet.link import Link
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.topo import Topo
except ModuleNotFoundError as e:
    sys.exit("%s: %s has no Mininet (%s): install Debian's package mininet, and run this with /usr/bin/python3" % (sys.argv[0], sys.executable, e))

__all__ = ["SILENCE", "Host", "Link", "Mininet", "OVSSwitch", "Switch", "Topo", "setLogLevel", "sh"]

# Seconds for which the shell of a node, or a command that Mininet runs, may be silent. A shell that
# is silent for longer hangs, because it answers within a moment even on a busy machine.
SILENCE = 180


class BoundedPoll:
    """A poll(2) object for Mininet, whose unlimited waits end after the silence that its node
    permits."""

    def __init__(self, node, poller):
        self.node, self.poller = node, poller

    def register(self, file):
        """Registers a descriptor for reading only. Mininet also asks for writing, which is always
        possible, and would then block in its read."""
        self.poller.register(file, select.POLLIN)

    def poll(self, timeout_ms=None):
        """Returns the events of poll(2). If an unlimited wait found none, kills the node's shell
        and raises a RuntimeError."""
        events = self.poller.poll(self.node.silence * 1000 if timeout_ms is None else timeout_ms)
        if not events and timeout_ms is None:
            self.node.kill()
            raise RuntimeError("the shell of %s was silent for %g s%s" % (
                self.node.name, self.node.silence, " after: " + self.node.lastCmd if self.node.lastCmd else ", and does not start"))
        return events


class BoundedNode:
    """A Mininet node that answers or fails, because Mininet itself waits for a node's shell without
    a limit.

    The bound is that of poll(2), so it holds in any thread.
    """
    silence = SILENCE

    # Mininet assigns its poll object here when it starts the shell, and uses it for every wait. So
    # a bounded one in its place bounds all waits.
    @property
    def pollOut(self):
        return self.bounded_poll

    @pollOut.setter
    def pollOut(self, poller):
        self.bounded_poll = BoundedPoll(self, poller) if poller else None

    def kill(self):
        """Kills the node's shell and its foreground processes."""
        # A shell that does not start may not have a process group yet.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.kill()

    def cleanup(self):
        """Kills a shell that does not end. Mininet has asked it to end, and would wait without a
        limit."""
        if self.shell:
            try:
                self.shell.wait(0 if self.waiting else self.silence)
            except subprocess.TimeoutExpired:
                self.kill()
        super().cleanup()

    def read(self, size=1024):
        """Returns at most `size` characters of the shell's output. Polls first, because Mininet
        reads from a new shell without polling."""
        if not self.readbuf:
            self.pollOut.poll()
        return super().read(size)


def run_bounded(command, shell=False, seconds=SILENCE):
    """Runs a command for Mininet; returns its output, its error messages and its status, as
    Mininet's errRun does.

    Raises RuntimeError if the command takes longer than `seconds`.
    """
    try:
        process = subprocess.run(command if shell else command.split(), shell=shell, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError("did not end within %g s: %s" % (seconds, command)) from None
    return process.stdout, process.stderr, process.returncode


def sh(*command):
    """Returns the output of a command. Raises a RuntimeError with its error message, or if it does
    not end."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SILENCE)
    except subprocess.TimeoutExpired:
        raise RuntimeError("%s: did not end within %d s" % (" ".join(command), SILENCE)) from None
    if process.returncode:
        raise RuntimeError("%s: %s" % (" ".join(command), (process.stderr or process.stdout).strip()))
    return process.stdout


class Host(BoundedNode, mininet.node.Host):
    """A host that answers or fails."""


class Switch(BoundedNode, mininet.node.Switch):
    """A switch that answers or fails."""


class OVSSwitch(BoundedNode, mininet.node.OVSSwitch):
    """An Open vSwitch switch that answers or fails; switches are started and stopped together."""

    @classmethod
    def batchStartup(cls, switches, run=run_bounded):
        return super().batchStartup(switches, run)

    @classmethod
    def batchShutdown(cls, switches, run=run_bounded):
        return super().batchShutdown(switches, run)
