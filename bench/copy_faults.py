"""Disturbs copies of a file: nodes are killed, join late, or restart (copying.py --kill, --join,
--restart).

A kill ends the agent of a node together with its rank, or, for BitTorrent, the peer of that node.
Receivers are killed at moments that are drawn from a seed and are the same for all ways, at most
the least time of a copy after its start. The source is killed once its link has carried a given
number of bytes.
"""
import contextlib
import os
import random
import signal
import statistics
import threading
import time

import testbed

# Seconds between two checks of whether an event is due.
POLL_SECONDS = 0.02
# Bytes of a full TCP segment on a link, with all headers, divided by those of its payload.
FRAMES = 1514 / 1448
# Kills occur within these shares of the least time of a copy: after the ranks have started, and
# before the copy can end.
MOMENTS = (0.25, 1.0)
# A copy counts as incomplete if it takes longer than this multiple of an undisturbed copy and
# longer than these seconds.
PATIENCE_TIMES, PATIENCE_SECONDS = 4, 40


class Timeline:
    """Applies events to nodes in a thread during a copy. An event is a pair of `due(timeline)`,
    which returns whether it is due, and `do(kill, start)`."""

    def __init__(self, events):
        self.events, self.applied, self.failed = list(events), 0, None
        self.copy_ended, self.finished = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def disturbance(self, kill, start):
        """Applies the events during the context, with functions that kill and start a node by its
        name. Raises the error of an event that failed."""
        thread = threading.Thread(target=self._run, args=(kill, start), daemon=True)
        self.start_time = time.monotonic()
        thread.start()
        try:
            yield
        finally:
            self.copy_ended.set()
            self.finished.wait()
        if self.failed:
            raise self.failed

    def _run(self, kill, start):
        try:
            self._apply_events(kill, start)
        except (OSError, RuntimeError, testbed.Failure) as e:
            self.failed = e
        finally:
            self.finished.set()
        # The thread must live as long as the program, because agents end with the thread that
        # started them (PR_SET_PDEATHSIG of prctl(2)).
        threading.Event().wait()

    def _apply_events(self, kill, start):
        for due, do in self.events:
            while not due(self):
                if self.copy_ended.wait(POLL_SECONDS):
                    return
            do(kill, start)
            self.applied += 1


def after(seconds):
    return lambda timeline: time.monotonic() - timeline.start_time >= seconds


def after_source_sent(bed, distribution, files):
    """Returns a condition that holds once the source has sent as many bytes as `files` copies take
    in full segments."""
    [link] = [link for link in bed.description["links"] if link["b"] == distribution.source["name"]]

    def sent_bytes():
        # Bytes that the switch receives from the source.
        with open("/sys/class/net/%s/statistics/rx_bytes" % link["a_intf"]) as f:
            return int(f.read())

    before = sent_bytes()
    return lambda _timeline: sent_bytes() - before >= files * distribution.size * FRAMES


def kill(name):
    return lambda kill, _start: kill(name)


def start(name):
    return lambda _kill, start: start(name)


def restart(name):
    def do(kill, start):
        kill(name, True)
        start(name)
    return do


class Nodes:
    """Kills the agents of a testbed together with their ranks, and restarts them."""

    def __init__(self, bed):
        self.bed = bed

    def kill(self, name, _starts_again=False):
        for pid in reversed(process_tree(self.bed.agents[name].process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.bed.agents[name].process.wait(testbed.PATIENCE)

    def start(self, name):
        self.bed.restart_agent(name)

    def remove(self, names):
        """Kills the agents of these nodes and waits until the controller has removed them."""
        for name in names:
            self.kill(name)
        testbed.wait_for(lambda: self.bed.found()[0] == len(self.bed.description["hosts"]) - len(names), "the controller has removed the stopped nodes")

    def restart_stopped(self):
        """Restarts all agents that do not run, and waits until they have measured the network."""
        for name, agent in list(self.bed.agents.items()):
            if agent.process.poll() is not None:
                self.start(name)
        self.bed.wait_until_joined()
        self.bed.wait_until_measured()


def process_tree(pid):
    """Returns the process ids of a process and all its descendants, parents first."""
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open("/proc/%s/stat" % entry) as f:
                children.setdefault(int(f.read().rpartition(")")[2].split()[1]), []).append(int(entry))
    pids = [pid]
    for parent in pids:
        pids += children.get(parent, [])
    return pids


class FaultyCopies:
    """Makes copies of one file by one way while nodes are disturbed. `copy(nodes, beside, late)`
    makes one copy, in which nodes may fail."""

    def __init__(self, bed, distribution, copy, limit, reps):
        self.bed, self.distribution, self.copy, self.limit, self.nodes = bed, distribution, copy, limit, Nodes(bed)
        self.undisturbed = statistics.median(self.copy_once([])["seconds"] for _ in range(reps))
        distribution.patience = max(PATIENCE_SECONDS, PATIENCE_TIMES * self.undisturbed)

    def copy_once(self, events, late=()):
        """Makes one copy while the events are applied, then restarts all agents. Returns its
        outcome, in which `done` is the number of events that were applied before the copy ended."""
        self.distribution.clear()
        self.nodes.remove(late)
        timeline = Timeline(events)
        try:
            return {**self.copy(self.nodes, timeline.disturbance, late), "done": timeline.applied}
        finally:
            self.nodes.restart_stopped()

    def survivors(self, outcome, victims=()):
        """Returns the seconds at which the last survivor had its copy and the number of applied
        events. If a survivor has no copy, `seconds` is None and `why` contains the reasons."""
        names = [host["name"] for host in self.distribution.receivers if host["name"] not in victims]
        incomplete = [name for name in names if name not in outcome["nodes"]]
        return {"seconds": None if incomplete else max(outcome["nodes"][name]["seconds"] for name in names), "done": outcome["done"],
                "why": reasons(outcome, incomplete)}

    def copy_with_killed(self, count, seed):
        """Returns the result of the survivors of a copy in which `count` receivers are killed."""
        generator = random.Random(seed)
        victims = generator.sample([host["name"] for host in self.distribution.receivers], count)
        moments = sorted(generator.uniform(*MOMENTS) * self.limit for _ in victims)
        outcome = self.copy_once([(after(moment), kill(name)) for moment, name in zip(moments, victims)])
        return self.survivors(outcome, victims)

    def copy_without_source(self, files):
        """Returns the result of the receivers of a copy whose source is killed once it has sent
        `files` times the file, if that happens."""
        return self.survivors(self.copy_once([(after_source_sent(self.bed, self.distribution, files), kill(self.distribution.source["name"]))]))

    def copy_with_late(self, count, seed, restarted):
        """Makes a copy in which `count` nodes start, or with `restarted` restart, at half time.
        Returns the seconds from their start, the result of the other nodes, and the bytes into a
        late node divided by the file."""
        names = random.Random(seed).sample([host["name"] for host in self.distribution.receivers], count)
        bytes_before = self.bed.link_bytes()
        events = [(after(self.undisturbed / 2), (restart if restarted else start)(name)) for name in names]
        outcome = self.copy_once(events, () if restarted else names)
        bytes_after = self.bed.link_bytes()
        own_seconds = [outcome["nodes"][name]["own"] for name in names if name in outcome["nodes"]]
        late_bytes = max(bytes_after[link] - bytes_before[link] for link in bytes_after if link[1] in names)
        late = {"seconds": max(own_seconds) if len(own_seconds) == count else None, "done": outcome["done"],
                "why": reasons(outcome, [name for name in names if name not in outcome["nodes"]])}
        return {"late": late, "others": self.survivors(outcome, names), "into": late_bytes / self.distribution.size}


def reasons(outcome, names):
    """Returns the reasons why these nodes have no copy."""
    return ["%s: %s" % (name, outcome["missing"].get(name, "no report")) for name in names]


def copy_function(distribution, environment, way, piece):
    """Returns the function with which `FaultyCopies` makes a copy by this way."""
    def by_cool(nodes, disturbance, _late):
        with disturbance(nodes.kill, nodes.start):
            return distribution.by_cool(environment, "--via", way, may_fail=True)

    def by_torrent(_nodes, disturbance, late):
        return distribution.by_torrent(piece, may_fail=True, late=late, disturbance=disturbance)

    return by_torrent if way == "torrent" else by_cool


def summarize(runs, least):
    """Returns the median time of the complete runs divided by `least`, the number of complete runs
    and of all runs, the number in which an event occurred, and the reasons of incomplete ones."""
    seconds = [run["seconds"] for run in runs if run["seconds"] is not None]
    return {"over": statistics.median(seconds) / least if seconds else None, "complete": len(seconds), "of": len(runs),
            "struck": sum(bool(run["done"]) for run in runs), "why": [run["why"] for run in runs]}


def measure_killed(copies, options):
    """Measures a way with killed receivers, then with a killed source."""
    killed_receivers = [copies.copy_with_killed(options.kill, seed) for seed in range(options.seeds)]
    killed_source = [copies.copy_without_source(options.source_leaves) for _ in range(options.seeds)]
    return {"undisturbed": copies.undisturbed, "receivers": summarize(killed_receivers, copies.undisturbed), "source": summarize(killed_source, copies.undisturbed)}


def measure_late(copies, options):
    """Measures a way with nodes that join late or restart."""
    runs = [copies.copy_with_late(options.join or options.restart, seed, bool(options.restart)) for seed in range(options.seeds)]
    return {"undisturbed": copies.undisturbed, "late": summarize([run["late"] for run in runs], copies.limit),
            "others": summarize([run["others"] for run in runs], copies.undisturbed), "into": statistics.median(run["into"] for run in runs)}
