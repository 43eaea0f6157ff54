#!/usr/bin/python3
"""Injects random faults into running collectives and checks what the survivors report and whether
they continue.

    sudo bench/faults.py --faults 500 --seed 1

A job of all ranks calls every operation in turn, with lengths up to 1 MiB, and verifies every
result (cool-faults). At a random moment, a random victim is killed, stopped, or disconnected. The
survivors shrink their group and continue until the next fault. For every fault, the program checks
that the call of each survivor returns an error that names the victim, the operation, and the group,
that no rank receives a wrong byte, that all survivors report the same lost ranks, and that every
operation works in the new group. It prints the time from a fault to the error of the last survivor,
by kind of fault; --docs writes the table to docs/measurements/faults.md. Needs root and Debian's
mininet, openvswitch-switch and ethtool. For meaningful times, the machine must be idle otherwise.
"""
import argparse
import collections
import contextlib
import json
import os
import random
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "mininet")]
import section  # noqa: E402
import testbed  # noqa: E402
import topologies  # noqa: E402

# Every expected event must occur within this many seconds, even on a busy machine; otherwise the
# program hangs.
PATIENCE = 120.0
# A fault occurs at most this many seconds after every operation has worked.
MOMENT = 0.4
# Timeout of calls that wait for a stopped rank, which cannot be distinguished from a rank that
# computes.
STOPPED_TIMEOUT = 3.0
# Survivors wait for each other this many seconds longer than the timeout of the testbed's agents.
# The two sides of a failed link detect it up to that timeout apart: one side may wait for
# acknowledgements of TCP, which fail early, and the other for multicasts.
MEETING = 5.0


class Violation(Exception):
    """A requirement that does not hold."""


class Events:
    """Receives the events of ranks from a datagram socket, in the order of their arrival."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.changed, self.received = threading.Condition(), []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            event = json.loads(self.socket.recv(65536))
            with self.changed:
                self.received.append(event)
                self.changed.notify_all()

    def mark(self):
        """Returns a mark of the current position, for events that arrive later."""
        with self.changed:
            return len(self.received)

    def since(self, mark, *names):
        with self.changed:
            return [e for e in self.received[mark:] if e["event"] in names]

    def wait_for_each(self, ranks, mark, name, what):
        """Waits for the first event `name` of each of these ranks and returns the events by rank.
        Raises a Violation on timeout, or if a rank reports wrong bytes."""
        def first_events():
            events = {}
            for e in self.received[mark:]:
                if e["event"] == "wrong":
                    raise Violation("rank %d: wrong bytes: %s" % (e["rank"], e["more"]["message"]))
                if e["event"] == name and e["rank"] in ranks:
                    events.setdefault(e["rank"], e)
            return events if len(events) == len(ranks) else None

        with self.changed:
            self.changed.wait_for(first_events, PATIENCE)
            events = first_events()
            if events is None:
                latest = {e["rank"]: e["event"] for e in self.received[mark:] if e["rank"] in ranks}
                silent = sorted(r for r in ranks if r not in latest)
                failed = {e["rank"]: e["more"]["message"] for e in self.received[mark:] if e["event"] in ("failed", "out")}
                raise Violation("not within %g s: %s; no event from ranks %s; latest events of the "
                                "others: %s %s" % (PATIENCE, what, silent, latest, failed))
            return events


class Job:
    """A job whose ranks call collectives until it is ended. Ranks are identified by their numbers
    in its world."""

    def __init__(self, bed, events, ranks, per_node, seed, timeout):
        self.bed, self.events = bed, events
        mark = events.mark()
        command = ["cool", "run", "--survive", "-n", str(ranks), "--ranks-per-node", str(per_node), "--",
                   os.path.join(bed.bin_dir, "cool-faults"), "--events", events.path, "--seed", str(seed), "--timeout", str(int(1e3 * timeout)),
                   "--meeting", str(int(1e3 * MEETING) + bed.peer_timeout_ms)]
        self.process = subprocess.Popen(command, env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            joined = events.wait_for_each(range(ranks), mark, "joined", "all ranks have joined")
            self.node = {rank: e["more"]["node"] for rank, e in joined.items()}
            self.pid = {rank: e["more"]["pid"] for rank, e in joined.items()}
            self.members = list(range(ranks))
            events.wait_for_each(self.members, mark, "works", "every operation works")
        except BaseException:
            self.end()
            raise

    def await_end(self, ranks):
        """Waits until the processes of all these ranks have ended."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(self.pid[rank])) as process:
                if not select.select([process], [], [], PATIENCE)[0]:
                    raise Violation("rank %d still runs %g s after its agent has ended"
                                    % (rank, PATIENCE))

    def on(self, node):
        return [rank for rank in self.members if self.node[rank] == node]

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Violation("cool run did not end within %g s after Ctrl-C: %s"
                            % (PATIENCE, self.process.communicate()[0])) from None


class Fault:
    """A kind of fault. `strike` injects it, and `undo` reverts it after the job. `victim_event` is
    the event that the victim itself must report, or None. `must_end` states whether its processes
    must end, and `timeout` is how long calls may make no progress."""

    def __init__(self, name, whole_node, strike, undo, victim_event=None, must_end=False, timeout=60.0):
        self.name, self.whole_node, self.strike, self.undo = name, whole_node, strike, undo
        self.victim_event, self.must_end, self.timeout = victim_event, must_end, timeout


def signal_rank(number):
    def strike(_bed, job, rank):
        os.kill(job.pid[rank], number)
    return strike


def signal_agent(number):
    def strike(bed, job, rank):
        bed.agents[job.node[rank]].signal(number)
    return strike


def resume_rank(_bed, job, rank):
    with contextlib.suppress(ProcessLookupError):
        os.kill(job.pid[rank], signal.SIGCONT)


def restart_agent(bed, job, rank):
    bed.restart_agent(job.node[rank])


def resume_agent(bed, job, rank):
    bed.agents[job.node[rank]].signal(signal.SIGCONT)


def on_interface(*command):
    """Returns a function that runs a command in the victim's node, with IF replaced by its data
    interface."""
    def run_command(bed, job, rank):
        host = bed.network.net.get(job.node[rank])
        bed.network.run_in(host, *[host.defaultIntf().name if word == "IF" else word for word in command])
    return run_command


def nothing(_bed, _job, _rank):
    pass


LINK = on_interface("ip", "link", "set", "IF", "down"), on_interface("ip", "link", "set", "IF", "up")
PACKETS = (on_interface("tc", "qdisc", "replace", "dev", "IF", "root", "tbf", "rate", "8bit", "burst", "20b", "limit", "20b"),
           on_interface("tc", "qdisc", "delete", "dev", "IF", "root"))
STOPPED = "rank stopped"


def kinds(stopped_timeout=STOPPED_TIMEOUT):
    """Returns all kinds of faults. A call counts as waiting for a stopped rank after
    `stopped_timeout` seconds, which must be longer than a busy machine delays a rank."""
    return [
        Fault("rank killed", False, signal_rank(signal.SIGKILL), nothing),
        Fault(STOPPED, False, signal_rank(signal.SIGSTOP), resume_rank, timeout=stopped_timeout),
        # cool-launcher ends the processes of a job whose agent is lost, possibly before they
        # report that their calls failed.
        Fault("agent killed", True, signal_agent(signal.SIGKILL), restart_agent, must_end=True),
        Fault("agent stopped", True, signal_agent(signal.SIGSTOP), restart_agent, victim_event="failed"),
        Fault("agent stopped for a while", True, signal_agent(signal.SIGSTOP), resume_agent),
        Fault("node's link down", True, *LINK, victim_event="out"),
        Fault("node's packets lost", True, *PACKETS, victim_event="out"),
    ]


FAULTS = kinds()


class Series:
    """A series of jobs with faults, all drawn from one seed."""

    def __init__(self, bed, events, seed, faults=FAULTS, out=None):
        self.bed, self.events, self.random, self.faults, self.out = bed, events, random.Random(seed), faults, out
        self.seconds = collections.defaultdict(list)
        self.operations = collections.Counter()
        self.violations = []

    def run(self, count):
        """Runs jobs until this many faults have been injected."""
        injected_count = 0
        while injected_count < count:
            injected_count += self.job(count - injected_count)

    def job(self, at_most):
        """Runs one job with at most this many faults. Returns the number of faults, at least 1."""
        timeout = self.random.choice(sorted({fault.timeout for fault in self.faults}))
        faults = [fault for fault in self.faults if fault.timeout == timeout]
        per_node = self.random.choice([1, 2])
        nodes = len(self.bed.description["hosts"])
        injected, job = [], None
        try:
            job = Job(self.bed, self.events, nodes * per_node, per_node, self.random.getrandbits(32), timeout)
            for _ in range(min(at_most, self.random.randint(1, nodes - 2))):
                fault, victim = self.random.choice(faults), self.random.choice(job.members)
                injected.append((fault, victim))
                self.fault(job, fault, victim)
        except Violation as e:
            self.violations.append("%s: %s" % ([(fault.name, victim) for fault, victim in injected], e))
            self.log("VIOLATION after %s" % self.violations[-1])
        finally:
            self.clean_up(job, injected)
        return max(1, len(injected))

    def fault(self, job, fault, victim):
        """Injects one fault and checks its consequences. Raises a Violation if one is not as
        required."""
        victims = job.on(job.node[victim]) if fault.whole_node else [victim]
        survivors = [rank for rank in job.members if rank not in victims]
        mark = self.events.mark()
        time.sleep(self.random.uniform(0, MOMENT))
        start = time.monotonic()
        fault.strike(self.bed, job, victim)
        failed = self.events.wait_for_each(survivors, mark, "failed",
                                           "the calls of all survivors return")
        for e in failed.values():
            self.check_error(job, fault, victim, victims, e)
        seconds = max(e["at"] for e in failed.values()) - start
        shrunk = self.events.wait_for_each(survivors, mark, "shrunk",
                                           "the survivors have a new group")
        for e in shrunk.values():
            lost = [job.members[rank] for rank in e["more"]["gone"]]
            if lost != victims:
                raise Violation("rank %d reports lost ranks %s instead of %s"
                                % (e["rank"], lost, victims))
        if fault.victim_event:
            self.events.wait_for_each(victims, mark, fault.victim_event, "the calls of the victims return")
        if fault.must_end:
            job.await_end(victims)
        job.members = survivors
        self.events.wait_for_each(survivors, mark, "works", "every operation works in the new group")
        repeated = [e for e in self.events.since(mark, "failed") if e["rank"] in survivors]
        if len(repeated) > len(survivors):
            raise Violation("the new group has also failed: %s" % repeated[-1]["more"]["message"])
        self.seconds[fault.name].append(seconds)
        self.operations.update(e["more"]["operation"] for e in failed.values())
        number, rank_count = sum(map(len, self.seconds.values())), len(survivors) + len(victims)
        self.log("%4d  %-26s %-4s of %2d ranks  %8.1f ms" % (number, fault.name, job.node[victim], rank_count, 1e3 * seconds))

    def check_error(self, job, fault, victim, victims, event):
        """Checks that an error names the lost ranks, the operation, the node of the victim, and the
        group."""
        error = event["more"]
        kind = "Timeout" if fault.name == STOPPED else "Lost"
        named_ranks = [job.members[rank] for rank in error["ranks"]]
        problems = []
        if error["kind"] != kind:
            problems.append("%s instead of %s" % (error["kind"], kind))
        if named_ranks != victims:
            problems.append("ranks %s instead of %s" % (named_ranks, victims))
        if error["operation"] not in error["called"] or error["operation"] not in error["message"]:
            problems.append("%s instead of %s" % (error["operation"], error["called"]))
        for text in (job.node[victim], "group %d" % error["group"]):
            if text not in error["message"]:
                problems.append("no %s" % text)
        if problems:
            raise Violation("rank %d, after %s on %s: %s: %s" % (event["rank"], fault.name, job.node[victim], "; ".join(problems), error["message"]))

    def clean_up(self, job, injected):
        """Reverts all faults, ends the job, and waits until all agents have joined again."""
        try:
            for fault, victim in injected:
                fault.undo(self.bed, job, victim)
            if job:
                job.end()
        except Violation as e:
            self.violations.append(str(e))
            self.log("VIOLATION at the end: %s" % e)
        self.bed.wait_until_joined()

    def log(self, text):
        if self.out:
            print(text, file=self.out, flush=True)

    def figures(self):
        """Returns the count, median, and worst time by kind of fault."""
        return {name: {"count": len(seconds), "median": statistics.median(seconds), "worst": max(seconds)} for name, seconds in self.seconds.items()}


@contextlib.contextmanager
def events():
    with tempfile.TemporaryDirectory(prefix="cool-faults-") as directory:
        yield Events(os.path.join(directory, "events"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--faults", type=int, default=500, help="number of faults; default %(default)s")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--topology", type=topologies.argument, default="tree:4x4", help=topologies.FORMS + "; default %(default)s")
    p.add_argument("--bin", help="directory of the programs; default target/release")
    p.add_argument("--logs", help="directory for the logs of controller and agents")
    p.add_argument("--kind", action="append", choices=[fault.name for fault in FAULTS],
                   help="inject only this kind of fault; may be repeated")
    p.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    p.add_argument("--docs", action="store_true", help="write the table to docs/measurements/faults.md")
    options = p.parse_args()
    testbed.unwind_on_signals()
    kinds = [fault for fault in FAULTS if not options.kind or fault.name in options.kind]
    with testbed.Testbed(options.topology, bin_dir=options.bin, logs=options.logs) as bed, events() as receiver:
        bed.wait_until_measured()
        series = Series(bed, receiver, options.seed, kinds, sys.stdout)
        try:
            series.run(options.faults)
        finally:
            # An interrupted series is reported too.
            report(series, options)
    if options.docs:
        section.replace("faults.md", "faults", table(series, options))
    return 1 if series.violations else 0


def report(series, options):
    """Prints the figures, and writes them to the file of --json."""
    print(table(series, options))
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"topology": options.topology, "seed": options.seed, "kinds": series.figures(), "operations": series.operations,
                       "violations": series.violations}, f, indent=1)


def table(series, options):
    """Returns the section of the document."""
    lines = ["Measured %s on %s, %d CPUs, `--faults %d --seed %d`:" % (
        time.strftime("%Y-%m-%d", time.gmtime()), options.topology, os.cpu_count(), options.faults, options.seed),
        "", "| fault | times | median | worst |", "| --- | --: | --: | --: |"]
    for name, figures in series.figures().items():
        lines.append("| %s | %d | %.0f ms | %.0f ms |" % (name, figures["count"], 1e3 * figures["median"], 1e3 * figures["worst"]))
    failed = ", ".join("%s %d" % pair for pair in sorted(series.operations.items()))
    lines += ["", "Failed calls by operation: %s. Wrong errors, bytes or groups: %d." % (failed, len(series.violations))]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, RuntimeError, OSError) as e:
        sys.exit("faults: %s" % e)
