"""Nodes that are killed, come late or begin anew while a file is copied to them (copying.py --kill, --join, --restart).

A node's agent and its rank are killed together; of BitTorrent, the node's peer. Moments of kills are drawn from a seed, and are the same for all
ways: seconds from the beginning, no later than a copy could be there, or bytes that have left the source, as its link counts them.
"""
import contextlib
import os
import random
import signal
import statistics
import threading
import time

import testbed

# Seconds between looks at the counters of the source's link.
LOOK_SECONDS = 0.02
# A full segment of TCP on a link, with all headers, over what it carries.
FRAMES = 1514 / 1448
# Kills come within this share of the least time that a copy takes: not before ranks run, nor when all is over.
MOMENTS = (0.25, 1.0)
# A copy that takes longer than this many times an undisturbed one, and this many seconds, is not complete.
PATIENCE_TIMES, PATIENCE_SECONDS = 4, 40


class Timeline:
    """What is done to nodes meanwhile, in a thread: pairs of `due()`, which tells whether it is time, and `do(kill, start)`."""

    def __init__(self, events):
        self.events, self.done, self.failed = list(events), 0, None
        self.over, self.ended = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def beside(self, kill, start):
        """A context in which these things happen by functions that kill and start the node of a name."""
        thread = threading.Thread(target=self._run, args=(kill, start), daemon=True)
        self.began = time.monotonic()
        thread.start()
        try:
            yield
        finally:
            self.over.set()
            self.ended.wait()
        if self.failed:
            raise self.failed

    def _run(self, kill, start):
        try:
            self._let_happen(kill, start)
        except (OSError, RuntimeError, testbed.Failure) as e:
            self.failed = e
        finally:
            self.ended.set()
        # Agents end with the thread that has started them (PR_SET_PDEATHSIG of prctl(2)): it stays as long as the program.
        threading.Event().wait()

    def _let_happen(self, kill, start):
        for due, do in self.events:
            while not due(self):
                if self.over.wait(LOOK_SECONDS):
                    return
            do(kill, start)
            self.done += 1


def after(seconds):
    return lambda timeline: time.monotonic() - timeline.began >= seconds


def when_left(bed, of, files):
    """Whether as many copies of the file have left the source, in full segments."""
    [link] = [link for link in bed.description["links"] if link["b"] == of.source["name"]]

    def carried():
        # What the switch receives at its end.
        with open("/sys/class/net/%s/statistics/rx_bytes" % link["a_intf"]) as f:
            return int(f.read())

    before = carried()
    return lambda _timeline: carried() - before >= files * of.size * FRAMES


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
    """The agents of a testbed, which are killed with their ranks and started anew."""

    def __init__(self, bed):
        self.bed = bed

    def kill(self, name, _starts_again=False):
        for pid in reversed(with_children(self.bed.agents[name].process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.bed.agents[name].process.wait(testbed.PATIENCE)

    def start(self, name):
        self.bed.restart_agent(name)

    def leave(self, names):
        """These have no agent, and the controller has heard it."""
        for name in names:
            self.kill(name)
        testbed.wait_for(lambda: self.bed.found()[0] == len(self.bed.description["hosts"]) - len(names), "the controller misses those who have left")

    def mend(self):
        """All agents run, and have measured the network."""
        for name, agent in list(self.bed.agents.items()):
            if agent.process.poll() is not None:
                self.start(name)
        self.bed.wait_until_joined()
        self.bed.wait_until_measured()


def with_children(pid):
    """Process ids of a process and all below it, parents first."""
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open("/proc/%s/stat" % entry) as f:
                children.setdefault(int(f.read().rpartition(")")[2].split()[1]), []).append(int(entry))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


class Disturbed:
    """Copies of one file by one way, beside what happens to nodes. `copy(nodes, beside, late)` makes one, in which nodes may fail."""

    def __init__(self, bed, of, copy, limit, reps):
        self.bed, self.of, self.copy, self.limit, self.nodes = bed, of, copy, limit, Nodes(bed)
        self.undisturbed = statistics.median(self.once([])["seconds"] for _ in range(reps))
        of.patience = max(PATIENCE_SECONDS, PATIENCE_TIMES * self.undisturbed)

    def once(self, events, late=()):
        """One copy; `done` is how many of the events came before it ended."""
        self.of.clear()
        self.nodes.leave(late)
        timeline = Timeline(events)
        try:
            return {**self.copy(self.nodes, timeline.beside, late), "done": timeline.done}
        finally:
            self.nodes.mend()

    def survivors(self, outcome, victims=()):
        """When the last survivor had its copy, and whether all was done to nodes that was to be; without seconds but with reasons if one has none."""
        names = [host["name"] for host in self.of.receivers if host["name"] not in victims]
        without = [name for name in names if name not in outcome["nodes"]]
        return {"seconds": None if without else max(outcome["nodes"][name]["seconds"] for name in names), "done": outcome["done"],
                "why": reasons(outcome, without)}

    def with_killed(self, count, seed):
        """The survivors when this many receivers are killed."""
        drawn = random.Random(seed)
        victims = drawn.sample([host["name"] for host in self.of.receivers], count)
        moments = sorted(drawn.uniform(*MOMENTS) * self.limit for _ in victims)
        outcome = self.once([(after(moment), kill(name)) for moment, name in zip(moments, victims)])
        return self.survivors(outcome, victims)

    def without_source(self, files):
        """All receivers when the source's node is killed as soon as so much has left it, if it does."""
        return self.survivors(self.once([(when_left(self.bed, self.of, files), kill(self.of.source["name"]))]))

    def with_late(self, count, seed, again):
        """Of nodes that come at half time, or that begin anew then: seconds from their start, those of the others, and bytes that came into one."""
        names = random.Random(seed).sample([host["name"] for host in self.of.receivers], count)
        before = self.bed.link_bytes()
        events = [(after(self.undisturbed / 2), (restart if again else start)(name)) for name in names]
        outcome = self.once(events, () if again else names)
        carried = self.bed.link_bytes()
        own = [outcome["nodes"][name]["own"] for name in names if name in outcome["nodes"]]
        into = max(carried[link] - before[link] for link in carried if link[1] in names)
        late = {"seconds": max(own) if len(own) == count else None, "done": outcome["done"],
                "why": reasons(outcome, [name for name in names if name not in outcome["nodes"]])}
        return {"late": late, "others": self.survivors(outcome, names), "into": into / self.of.size}


def reasons(outcome, names):
    """Why these have no copy."""
    return ["%s: %s" % (name, outcome["missing"].get(name, "says nothing")) for name in names]


def copier(of, environment, way, piece):
    """How `Disturbed` copies by this way."""
    def by_cool(nodes, beside, _late):
        with beside(nodes.kill, nodes.start):
            return of.by_cool(environment, "--via", way, may_fail=True)

    def by_torrent(_nodes, beside, late):
        return of.by_torrent(piece, may_fail=True, late=late, beside=beside)

    return by_torrent if way == "torrent" else by_cool


def over(runs, least):
    """Median of those that are complete over the least seconds, how many are, in how many something was done to nodes, and why others are not complete."""
    known = [run["seconds"] for run in runs if run["seconds"] is not None]
    return {"over": statistics.median(known) / least if known else None, "complete": len(known), "of": len(runs),
            "struck": sum(bool(run["done"]) for run in runs), "why": [run["why"] for run in runs]}


def killed(disturbed, options):
    """Figures of a way when receivers, then sources are killed."""
    with_killed = [disturbed.with_killed(options.kill, seed) for seed in range(options.seeds)]
    without_source = [disturbed.without_source(options.source_leaves) for _ in range(options.seeds)]
    return {"undisturbed": disturbed.undisturbed, "receivers": over(with_killed, disturbed.undisturbed), "source": over(without_source, disturbed.undisturbed)}


def late(disturbed, options):
    """Figures of a way when nodes come late or begin anew."""
    runs = [disturbed.with_late(options.join or options.restart, seed, bool(options.restart)) for seed in range(options.seeds)]
    return {"undisturbed": disturbed.undisturbed, "late": over([run["late"] for run in runs], disturbed.limit),
            "others": over([run["others"] for run in runs], disturbed.undisturbed), "into": statistics.median(run["into"] for run in runs)}
