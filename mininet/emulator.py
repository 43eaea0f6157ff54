"""What is used of Mininet, with a bound on each wait for a node. Without Mininet an import of this ends the program with one line
that says what to do."""
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

__all__ = ["SILENCE", "Host", "Link", "Mininet", "OVSSwitch", "Switch", "Topo", "setLogLevel"]

# Seconds for which the shell of a node, or a command that Mininet runs, may be silent: it answers within a moment even on a busy
# machine, or it hangs.
SILENCE = 180


class Awaited:
    """A poll(2) object of Mininet's, whose wait without a limit ends after the silence that its node allows."""

    def __init__(self, node, poller):
        self.node, self.poller = node, poller

    def register(self, file):
        """Awaits what can be read: Mininet asks for what can be written, too, which is always, and then blocks when it reads."""
        self.poller.register(file, select.POLLIN)

    def poll(self, timeout_ms=None):
        """What poll(2) found. If it waited without a limit and found nothing, the node's shell is killed, and a RuntimeError raised."""
        found = self.poller.poll(self.node.silence * 1000 if timeout_ms is None else timeout_ms)
        if not found and timeout_ms is None:
            self.node.kill()
            raise RuntimeError("the shell of %s was silent for %g s%s" % (
                self.node.name, self.node.silence, " after: " + self.node.lastCmd if self.node.lastCmd else ", and does not start"))
        return found


class Answering:
    """A node of Mininet's that answers or fails: Mininet itself waits for its shell without a limit.

    The bound is that of poll(2), so it holds in any thread.
    """
    silence = SILENCE

    # Mininet makes its poll object when it starts the shell, and waits by that in all places.
    @property
    def pollOut(self):
        return self.awaited

    @pollOut.setter
    def pollOut(self, poller):
        self.awaited = Awaited(self, poller) if poller else None

    def kill(self):
        """Kills the node's shell and what runs in the foreground of it."""
        with contextlib.suppress(ProcessLookupError):  # a shell that does not start may have no process group of its own yet
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.kill()

    def cleanup(self):
        """Mininet has told the shell to end, and waits for it without a limit: one that does not end is killed."""
        if self.shell:
            try:
                self.shell.wait(0 if self.waiting else self.silence)
            except subprocess.TimeoutExpired:
                self.kill()
        super().cleanup()

    def read(self, size=1024):
        """What the shell has written, at most `size` characters. Mininet reads a new shell before it polls."""
        if not self.readbuf:
            self.pollOut.poll()
        return super().read(size)


def run_bounded(command, shell=False, seconds=SILENCE):
    """Runs a command of Mininet's; its output, its error messages and its status, as Mininet's errRun returns them.

    Raises RuntimeError if it takes longer than `seconds`.
    """
    try:
        done = subprocess.run(command if shell else command.split(), shell=shell, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError("did not end within %g s: %s" % (seconds, command)) from None
    return done.stdout, done.stderr, done.returncode


class Host(Answering, mininet.node.Host):
    """A host that answers or fails."""


class Switch(Answering, mininet.node.Switch):
    """A switch that answers or fails."""


class OVSSwitch(Answering, mininet.node.OVSSwitch):
    """A switch of Open vSwitch that answers or fails; switches are started and stopped together."""

    @classmethod
    def batchStartup(cls, switches, run=run_bounded):
        return super().batchStartup(switches, run)

    @classmethod
    def batchShutdown(cls, switches, run=run_bounded):
        return super().batchShutdown(switches, run)
