#!/usr/bin/python3
"""Random faults under running collectives: who is told what, when, and whether the survivors go on.

    sudo bench/faults.py --faults 500 --seed 1

A job of all ranks calls every operation in turn, with lengths up to 1 MiB, and checks what it gets (cool-faults). At
a random moment a random victim is killed, stopped or cut off; the survivors shrink their group and go on, until the
next victim. Of every fault it is checked that each survivor's call returned with an error that names the victim, the
operation and the group, that nobody got a wrong byte, that those who are left agree on who is gone, and that every
operation works in their new group. Printed are the times from a fault to the last survivor's error, by kind of fault.
Needs root and Debian's mininet, openvswitch-switch and ethtool; for timings the machine must have nothing else to do.
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
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "mininet"))
import testbed  # noqa: E402
import topologies  # noqa: E402

# Seconds within which whatever is awaited is there, however busy the machine is, or it hangs.
PATIENCE = 120.0
# Seconds after every operation has been seen to work within which a fault comes.
MOMENT = 0.4
# Calls that wait for a stopped rank return by their own timeout: it cannot be told from one that computes.
STOPPED_TIMEOUT = 3.0


class Violation(Exception):
    """Something is not as it must be."""


class Events:
    """What ranks say, as it comes."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.came, self.said = threading.Condition(), []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            said = json.loads(self.socket.recv(65536))
            with self.came:
                self.said.append(said)
                self.came.notify_all()

    def mark(self):
        """Events from now on."""
        with self.came:
            return len(self.said)

    def since(self, mark, *names):
        with self.came:
            return [e for e in self.said[mark:] if e["event"] in names]

    def wait_for_each(self, ranks, mark, name, what):
        """The first such event of each of these ranks, by rank; nobody may say anything worse meanwhile."""
        def there():
            found = {}
            for e in self.said[mark:]:
                if e["event"] == "wrong":
                    raise Violation("rank %d: wrong bytes: %s" % (e["rank"], e["more"]["message"]))
                if e["event"] == name and e["rank"] in ranks:
                    found.setdefault(e["rank"], e)
            return found if len(found) == len(ranks) else None

        with self.came:
            self.came.wait_for(there, PATIENCE)
            found = there()
            if found is None:
                said = {e["rank"]: e["event"] for e in self.said[mark:] if e["rank"] in ranks}
                silent = sorted(r for r in ranks if r not in said)
                failed = {e["rank"]: e["more"]["message"] for e in self.said[mark:] if e["event"] in ("failed", "out")}
                raise Violation("not within %g s: %s; ranks %s say nothing, the latest of the others: %s %s" % (PATIENCE, what, silent, said, failed))
            return found


class Job:
    """A job whose ranks call collectives until it is ended; ranks are known by their numbers in its world."""

    def __init__(self, bed, events, ranks, per_node, seed, timeout):
        self.bed, self.events = bed, events
        mark = events.mark()
        command = ["cool", "run", "--survive", "-n", str(ranks), "--ranks-per-node", str(per_node), "--",
                   os.path.join(bed.bin_dir, "cool-faults"), "--events", events.path, "--seed", str(seed), "--timeout", str(int(1e3 * timeout))]
        self.process = subprocess.Popen(command, env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            joined = events.wait_for_each(range(ranks), mark, "joined", "all ranks are there")
            self.node = {rank: e["more"]["node"] for rank, e in joined.items()}
            self.pid = {rank: e["more"]["pid"] for rank, e in joined.items()}
            self.members = list(range(ranks))
            events.wait_for_each(self.members, mark, "works", "every operation works")
        except BaseException:
            self.end()
            raise

    def await_end(self, ranks):
        """Until none of these ranks' processes is left."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(self.pid[rank])) as process:
                if not select.select([process], [], [], PATIENCE)[0]:
                    raise Violation("rank %d runs %g s after its agent has ended" % (rank, PATIENCE))

    def on(self, node):
        return [rank for rank in self.members if self.node[rank] == node]

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Violation("cool run does not end within %g s of Ctrl-C: %s" % (PATIENCE, self.process.communicate()[0])) from None


class Fault:
    """A kind of fault: what is done to a victim, how it is undone when the job is over, what the victim itself says at last
    (nothing, if it cannot), whether its processes end, and how long calls may make no progress."""

    def __init__(self, name, whole_node, strike, undo, says=None, ends=False, timeout=60.0):
        self.name, self.whole_node, self.strike, self.undo = name, whole_node, strike, undo
        self.says, self.ends, self.timeout = says, ends, timeout


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
    """Does something to the data interface of the victim's node."""
    def change(bed, job, rank):
        host = bed.network.net.get(job.node[rank])
        bed.network.run_in(host, *[host.defaultIntf().name if word == "IF" else word for word in command])
    return change


def nothing(_bed, _job, _rank):
    pass


LINK = on_interface("ip", "link", "set", "IF", "down"), on_interface("ip", "link", "set", "IF", "up")
PACKETS = (on_interface("tc", "qdisc", "replace", "dev", "IF", "root", "tbf", "rate", "8bit", "burst", "20b", "limit", "20b"),
           on_interface("tc", "qdisc", "delete", "dev", "IF", "root"))
FAULTS = [
    Fault("rank killed", False, signal_rank(signal.SIGKILL), nothing),
    Fault("rank stopped", False, signal_rank(signal.SIGSTOP), resume_rank, timeout=STOPPED_TIMEOUT),
    # cool-launcher ends the processes of a job whose agent is gone, perhaps before they have said that their calls failed.
    Fault("agent killed", True, signal_agent(signal.SIGKILL), restart_agent, ends=True),
    Fault("agent stopped", True, signal_agent(signal.SIGSTOP), restart_agent, says="failed"),
    Fault("agent stopped for a while", True, signal_agent(signal.SIGSTOP), resume_agent),
    Fault("node's link down", True, *LINK, says="out"),
    Fault("node's packets lost", True, *PACKETS, says="out"),
]


class Series:
    """Faults one after the other in jobs one after the other, drawn from a seed."""

    def __init__(self, bed, events, seed, faults=FAULTS, out=None):
        self.bed, self.events, self.random, self.faults, self.out = bed, events, random.Random(seed), faults, out
        self.seconds = collections.defaultdict(list)
        self.operations = collections.Counter()
        self.violations = []

    def run(self, count):
        """This many faults."""
        done = 0
        while done < count:
            done += self.job(count - done)

    def job(self, at_most):
        """One job and the faults in it; how many there were."""
        timeout = self.random.choice(sorted({fault.timeout for fault in self.faults}))
        faults = [fault for fault in self.faults if fault.timeout == timeout]
        per_node = self.random.choice([1, 2])
        nodes = len(self.bed.description["hosts"])
        struck, job = [], None
        try:
            job = Job(self.bed, self.events, nodes * per_node, per_node, self.random.getrandbits(32), timeout)
            for _ in range(min(at_most, self.random.randint(1, nodes - 2))):
                fault, victim = self.random.choice(faults), self.random.choice(job.members)
                struck.append((fault, victim))
                self.fault(job, fault, victim)
        except Violation as e:
            self.violations.append("%s: %s" % ([(fault.name, victim) for fault, victim in struck], e))
            self.say("VIOLATION after %s" % self.violations[-1])
        finally:
            self.clean_up(job, struck)
        return max(1, len(struck))

    def fault(self, job, fault, victim):
        """One fault, and what must follow."""
        victims = job.on(job.node[victim]) if fault.whole_node else [victim]
        survivors = [rank for rank in job.members if rank not in victims]
        mark = self.events.mark()
        time.sleep(self.random.uniform(0, MOMENT))
        began = time.monotonic()
        fault.strike(self.bed, job, victim)
        failed = self.events.wait_for_each(survivors, mark, "failed", "all survivors' calls return")
        for e in failed.values():
            self.check_error(job, fault, victim, victims, e)
        took = max(e["at"] for e in failed.values()) - began
        shrunk = self.events.wait_for_each(survivors, mark, "shrunk", "survivors have a group")
        for e in shrunk.values():
            gone = [job.members[rank] for rank in e["more"]["gone"]]
            if gone != victims:
                raise Violation("rank %d heard that %s are gone, and not %s" % (e["rank"], gone, victims))
        if fault.says:
            self.events.wait_for_each(victims, mark, fault.says, "the victims' own calls return")
        if fault.ends:
            job.await_end(victims)
        job.members = survivors
        self.events.wait_for_each(survivors, mark, "works", "every operation works in the new group")
        again = [e for e in self.events.since(mark, "failed") if e["rank"] in survivors]
        if len(again) > len(survivors):
            raise Violation("the new group failed too: %s" % again[-1]["more"]["message"])
        self.seconds[fault.name].append(took)
        self.operations.update(e["more"]["operation"] for e in failed.values())
        number, before = sum(map(len, self.seconds.values())), len(survivors) + len(victims)
        self.say("%4d  %-26s %-4s of %2d ranks  %8.1f ms" % (number, fault.name, job.node[victim], before, 1e3 * took))

    def check_error(self, job, fault, victim, victims, event):
        """An error names who is gone, what was called, and the group."""
        error = event["more"]
        kind = "Timeout" if fault.timeout == STOPPED_TIMEOUT else "Lost"
        named = [job.members[rank] for rank in error["ranks"]]
        wrong = []
        if error["kind"] != kind:
            wrong.append("%s instead of %s" % (error["kind"], kind))
        if named != victims:
            wrong.append("ranks %s instead of %s" % (named, victims))
        if error["operation"] not in error["called"] or error["operation"] not in error["message"]:
            wrong.append("%s instead of %s" % (error["operation"], error["called"]))
        for words in (job.node[victim], "group %d" % error["group"]):
            if words not in error["message"]:
                wrong.append("no %s" % words)
        if wrong:
            raise Violation("rank %d, after %s on %s: %s: %s" % (event["rank"], fault.name, job.node[victim], "; ".join(wrong), error["message"]))

    def clean_up(self, job, struck):
        """Ends the job; then all is as before it."""
        try:
            for fault, victim in struck:
                fault.undo(self.bed, job, victim)
            if job:
                job.end()
        except Violation as e:
            self.violations.append(str(e))
            self.say("VIOLATION at the end: %s" % e)
        self.bed.wait_until_joined()

    def say(self, text):
        if self.out:
            print(text, file=self.out, flush=True)

    def figures(self):
        """Count, median and worst, by kind of fault."""
        return {name: {"count": len(took), "median": statistics.median(took), "worst": max(took)} for name, took in self.seconds.items()}


@contextlib.contextmanager
def events():
    with tempfile.TemporaryDirectory(prefix="cool-faults-") as directory:
        yield Events(os.path.join(directory, "events"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--faults", type=int, default=500, help="how many; default %(default)s")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--topology", type=topologies.argument, default="tree:4x4", help=topologies.FORMS + "; default %(default)s")
    p.add_argument("--bin", help="folder of the programs; default target/release")
    p.add_argument("--logs", help="folder for the logs of controller and agents")
    p.add_argument("--kind", action="append", choices=[fault.name for fault in FAULTS], help="only this kind of fault; may be repeated")
    p.add_argument("--json", metavar="FILE", help="write the figures there")
    a = p.parse_args()
    testbed.unwind_on_signals()
    kinds = [fault for fault in FAULTS if not a.kind or fault.name in a.kind]
    with testbed.Testbed(a.topology, bin_dir=a.bin, logs=a.logs) as bed, events() as told:
        bed.wait_until_measured()
        series = Series(bed, told, a.seed, kinds, sys.stdout)
        try:
            series.run(a.faults)
        finally:
            # Also of a series that is ended early.
            report(series, a)
    return 1 if series.violations else 0


def report(series, a):
    for name, figures in series.figures().items():
        print("%-26s %4d times  median %7.1f ms  worst %7.1f ms" % (name, figures["count"], 1e3 * figures["median"], 1e3 * figures["worst"]))
    print("calls that failed: " + ", ".join("%s %d" % pair for pair in sorted(series.operations.items())))
    print("violations: %d" % len(series.violations))
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"topology": a.topology, "seed": a.seed, "kinds": series.figures(), "operations": series.operations,
                       "violations": series.violations}, f, indent=1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, RuntimeError, OSError) as e:
        sys.exit("faults: %s" % e)
