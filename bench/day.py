#!/usr/bin/python3
"""Simulates a day of a cluster: three users run jobs all the time, while routine maintenance and
failures occur.

    sudo bench/day.py --minutes 60 --before DIR

The cluster has a leaf-spine network, two controllers with an etcd for leader election, and agents
that do not run as root. The ranks of every job call all operations in turn and verify every byte
(cool-faults). In the meantime, controllers are killed, restarted, halted, and lose their etcd.
Nodes lose the management network. Links between switches fail. Agents restart once their nodes have
no jobs. Certificates are renewed, and logs rotate. A user of a member node without a
certificate listens, injects, and floods, and one with a certificate attacks agents, launchers, and
the controller (tests/e2e/attacks.py). An operator runs commands. With --before, all programs start with the build in
that directory (tools/build-before) and are upgraded as docs/guide/upgrade.md describes.

No job may fail, no byte may be wrong, no call may exceed its bound, no program may exceed its memory,
and no hostile user may receive a datagram of others. At the end, no job or group may remain, and `cool doctor` must find no
problem. day.json and day.html are written to the directory of --report. Needs root and the packages
that `make test` installs.
"""
import argparse
import collections
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [os.path.join(ROOT, "mininet"), os.path.join(ROOT, "tests", "e2e")]
import attacks  # noqa: E402
import day_page  # noqa: E402
import hostile  # noqa: E402
import ovs  # noqa: E402
import pair  # noqa: E402
import testbed  # noqa: E402
import topologies  # noqa: E402
from testbed import PATIENCE, wait_for  # noqa: E402

USERS = {"ann": 4001, "bob": 4002, "carol": 4003}
# The user who attacks with a certificate.
ATTACKER, ATTACKER_UID = "mallory", 4666
ACCOUNTS = {**USERS, ATTACKER: ATTACKER_UID}
PASSWD = "".join("%s:x:%d:%d::/:/bin/sh\n" % (name, uid, uid) for name, uid in ACCOUNTS.items())
GROUP = "".join("%s:x:%d:\n" % (name, uid) for name, uid in ACCOUNTS.items())
# Memory that a program of COOL must not exceed, in MiB.
MEMORY_MAX_MB = 512
# Peer timeout of agents. It is longer than usual because all nodes share the CPUs of one machine.
PEER_TIMEOUT_MS = 10_000
# A call of a job fails after this many seconds without progress.
BOUND = 60
# Errors of jobs that did not start because the agent of a node was disconnected, or because the
# controller was lost first.
NOT_STARTED = re.compile(r"the controller refuses: --hosts: no node .* is ready|not ready on .* within|had not started when its controller was lost")
# Every command of the operator must complete within this many seconds, even while controllers fail.
ANSWER = 60
# Upper bound of the seconds for which an alarm persists after its cause has ended.
ALARMS = 400
# Seconds between two samples of the memory of programs.
SAMPLE = 30


class DayBed(pair.PairBed):
    """A testbed with two controllers, agents that do not run as root, and certificates for the
    users. It keeps the logs of programs that have ended. All programs except those of jobs are from
    the directory `before`, if given."""

    def __init__(self, topology, folder, before=None, **options):
        super().__init__(topology, host_mbit=20, uplink_mbit=20, slots=2 * len(ACCOUNTS), lldp_ms=400, peer_timeout_ms=PEER_TIMEOUT_MS,
                         users=(PASSWD, GROUP), bin_dir=before or folder, **options)
        self.folder = folder

    def start_programs(self):
        users = [word for user in ACCOUNTS for word in ("--user", user)]
        self.run(["cool", "certs", self.certificates, *users], check=True, capture_output=True)
        for program in ("cool-faults", "cool-misuse"):
            testbed.install(os.path.join(self.folder, program), self.public)
        super().start_programs()
        self.wait_until_measured()

    def daemon(self, name, command, prefix=()):
        log = os.path.join(self.logs, name + ".log")
        if os.path.exists(log):
            set_aside(log)
        return super().daemon(name, command, prefix)


class NodeUsage:
    """Tracks the number of jobs on each node, and the nodes that accept no jobs because of
    maintenance."""

    def __init__(self, nodes):
        self.jobs, self.closed, self.changed = dict.fromkeys(nodes, 0), set(), threading.Condition()

    @contextlib.contextmanager
    def reserve(self, generator):
        """Reserves a random set of at least two nodes for a job, for the duration of the
        context."""
        with self.changed:
            free = sorted(set(self.jobs) - self.closed)
            nodes = sorted(generator.sample(free, generator.randint(2, len(free))))
            for node in nodes:
                self.jobs[node] += 1
        try:
            yield nodes
        finally:
            with self.changed:
                for node in nodes:
                    self.jobs[node] -= 1
                self.changed.notify_all()

    @contextlib.contextmanager
    def close_node(self, node):
        """Closes a node for new jobs during the context, which begins once the jobs of the node
        have ended."""
        with self.changed:
            self.closed.add(node)
            if not self.changed.wait_for(lambda: self.jobs[node] == 0, PATIENCE):
                raise testbed.Failure("the jobs of %s have not ended within %d s" % (node, PATIENCE))
        try:
            yield
        finally:
            with self.changed:
                self.closed.discard(node)


class Record:
    """Records the events, jobs, violations, and samples of a day."""

    def __init__(self, out):
        self.start_time, self.out = time.monotonic(), out
        self.events, self.jobs, self.violations, self.samples = [], [], [], []
        self.answers = collections.defaultdict(list)

    def now(self):
        return time.monotonic() - self.start_time

    def log(self, text):
        print("%7.1f  %s" % (self.now(), text), file=self.out, flush=True)

    def violation(self, text):
        self.violations.append({"at": self.now(), "text": text})
        self.log("VIOLATION: %s" % text)

    @contextlib.contextmanager
    def event(self, kind, description, subject=""):
        """Records an event, for example of a node or link named by `subject`. The body must restore
        the previous state; it may add figures to the event. A failure in the body is recorded as a
        violation."""
        event = {"kind": kind, "what": description, "about": subject, "at": self.now()}
        self.events.append(event)
        try:
            yield event
        except (testbed.Failure, OSError, RuntimeError, subprocess.SubprocessError) as e:
            event["failed"] = str(e)
            self.violation("%s: %s %s: %s" % (kind, description, subject, e))
        event["until"] = self.now()
        figures = ", ".join("%s %.2f s" % pair for pair in event.get("seconds", {}).items())
        self.log("%-12s %s %s (%.1f s%s)" % (kind, description, subject, event["until"] - event["at"], figures and "; " + figures))


class Day:
    def __init__(self, bed, minutes, seed, record):
        self.bed, self.record, self.seconds, self.seed = bed, record, 60 * minutes, seed
        self.day_ended, self.closed, self.controllers = threading.Event(), threading.Event(), threading.RLock()
        self.nodes = [host.name for host in bed.network.net.hosts]
        self.places = NodeUsage(self.nodes)
        # Nodes whose agents have yet to be upgraded.
        self.old = []

    def run(self, alarms=None):
        """Runs the day and then its final checks. `alarms` is the time in seconds within which
        alarms must end; None skips that check."""
        # The actors and the number of their actions per day, which determines the pauses in
        # between.
        actors = {"controllers": (self.disturb_controllers, 14), "agents": (self.maintenance, 2 * len(self.nodes)), "management": (self.cut_management_links, 16),
                  "links": (self.fail_link, 16), "certificates": (self.renew_certificates, 5), "logs": (self.rotate_logs, 6), "hostile": (self.attack, 8), "attacks": (self.attack_with_certificate, 4 * len(attacks.ATTACKS)),
                  "operator": (self.ask_random, 240)}
        # All threads must live until the end, because processes end with the thread that started
        # them (prctl(2), PR_SET_PDEATHSIG).
        with futures.ThreadPoolExecutor(len(actors) + len(USERS) + 2) as pool:
            try:
                watchers = [pool.submit(repeat, self.closed, pause, watch) for pause, watch in ((0.5, self.supervise), (SAMPLE, self.sample))]
                actions = [pool.submit(self.act, name, action, self.seconds / times) for name, (action, times) in actors.items()]
                actions += [pool.submit(self.user, user) for user in USERS]
                futures.wait(actions, self.seconds, futures.FIRST_EXCEPTION)
                self.day_ended.set()
                for future in actions:
                    future.result()
                self.close(alarms)
            finally:
                self.day_ended.set()
                self.closed.set()
            for future in watchers:
                future.result()

    def act(self, name, action, pause):
        generator = random.Random("%s %d" % (name, self.seed))
        while not self.day_ended.wait(pause * generator.uniform(0.5, 1.5)):
            action(generator)

    # Users

    def user(self, user):
        """Runs one job after the other, each on a random set of nodes."""
        generator = random.Random("%s %d" % (user, self.seed))
        while not self.day_ended.is_set():
            with self.places.reserve(generator) as nodes:
                self.job(user, nodes, generator)

    def job(self, user, nodes, generator):
        """Runs a job and records it. It is retried while a node is disconnected from its
        controller."""
        job = {"user": user, "nodes": nodes, "at": self.record.now(), "seconds": generator.randint(15, 45), "bytes": 1 << generator.randint(12, 19)}
        command = ["cool", "run", "--hosts", ",".join(nodes), "--ranks-per-node", "1", "-n", str(len(nodes)), "--", os.path.join(self.bed.public, "cool-faults"),
                   "--seconds", str(job["seconds"]), "--pause", "50", "--bytes", str(job["bytes"]), "--timeout", str(1000 * BOUND),
                   "--seed", str(generator.getrandbits(32))]
        try:
            job["refused"] = 0
            while (process := self.run_as(user, command)).returncode == 1 and NOT_STARTED.search(process.stderr):
                job["refused"] += 1
                if self.day_ended.wait(1):
                    return
            reports = [json.loads(line.split("] ", 1)[1]) for line in process.stdout.splitlines() if '"steps"' in line]
            if process.returncode or sorted(report["rank"] for report in reports) != list(range(len(nodes))):
                raise testbed.Failure("status %d: %s" % (process.returncode, (process.stderr + process.stdout).strip()))
            job.update(steps=reports[0]["steps"], longest=max(report["longest_s"] for report in reports))
            if job["longest"] > BOUND:
                raise testbed.Failure("a step took %.1f s" % job["longest"])
        except (testbed.Failure, subprocess.TimeoutExpired) as e:
            job["failed"] = str(e)
            self.record.violation("job of %s on %s: %s" % (user, ",".join(nodes), e))
        job["until"] = self.record.now()
        self.record.jobs.append(job)

    def run_as(self, user, command):
        # The working directory of a job must be accessible to its user, as a checkout may not be.
        return subprocess.run(command, env=self.environment(user), cwd="/", capture_output=True, text=True, timeout=PATIENCE)

    def environment(self, user):
        return {**self.bed.environment(), "COOL_CERTS": os.path.join(self.bed.certificates, "users", user)}

    # Controllers

    def leads(self):
        return [self.bed.leads(index) for index in range(2)]

    def wait_for_leader(self):
        """Waits until both controllers run and one of them leads. Returns the index of the
        leader."""
        wait_for(lambda: sorted(self.leads(), key=str) == [0, 1],
                 "one controller leads and the other is on standby")
        return self.leads().index(1)

    def supervise(self):
        """Restarts a controller that has exited, as its systemd unit does."""
        if not self.controllers.acquire(blocking=False):
            return
        try:
            for index, controller in enumerate(self.bed.pair):
                if controller.process.poll() is not None:
                    with self.record.event("controllers",
                                           "%s exited unexpectedly (status %d) and is restarted"
                                           % (controller.name, controller.process.returncode)):
                        self.relaunch(index)
        finally:
            self.controllers.release()

    def relaunch(self, index):
        self.bed.await_end(index)
        self.bed.launch(index)

    def disturb_controllers(self, generator):
        with self.controllers:
            leader = self.wait_for_leader()
            disturbances = {"the leader is killed": self.kill_leader, "the leader is restarted": self.restart_controller, "the standby is restarted": lambda event, index: self.restart_controller(event, 1 - index),
                        "the leader is halted for 6 s": self.halt_leader,
                        "etcd is down for 6 s": self.stop_etcd}
            what = generator.choice(sorted(disturbances))
            with self.record.event("controllers", what) as event:
                disturbances[what](event, leader)
                self.wait_for_leader()
                wait_for(self.bed.whole, "the network is complete")

    def await_successor(self, event, leader):
        """Waits until the other controller leads, and records the time that this takes."""
        start = time.monotonic()
        wait_for(lambda: self.bed.leads(1 - leader) == 1, "the other controller leads")
        event["seconds"] = {"the other one leads after": time.monotonic() - start}

    def kill_leader(self, event, leader):
        self.bed.pair[leader].signal(signal.SIGKILL)
        self.await_successor(event, leader)
        self.relaunch(leader)

    def restart_controller(self, event, index):
        was_leader = self.bed.leads(index) == 1
        self.bed.pair[index].signal(signal.SIGTERM)
        if was_leader:
            self.await_successor(event, index)
        if self.bed.await_end(index) != 0:
            raise testbed.Failure("%s did not exit cleanly" % pair.NAMES[index])
        self.bed.launch(index)

    def halt_leader(self, event, leader):
        self.bed.pair[leader].signal(signal.SIGSTOP)
        start = time.monotonic()
        self.await_successor(event, leader)
        self.day_ended.wait(max(0, start + 6 - time.monotonic()))
        self.bed.pair[leader].signal(signal.SIGCONT)
        self.relaunch(leader)

    def stop_etcd(self, _event, leader):
        self.bed.etcd.end(signal.SIGKILL)
        start = time.monotonic()
        self.relaunch(leader)
        self.day_ended.wait(max(0, start + 6 - time.monotonic()))
        self.bed.etcd.start()

    # Nodes

    def maintenance(self, generator):
        """Upgrades the controllers, then the agent of one node per call. Once all are upgraded, or
        without an upgrade, restarts the agent of a random node."""
        if self.bed.bin_dir != self.bed.folder:
            with self.controllers, self.record.event("upgrade",
                                                     "the controllers, first the standby") as event:
                self.bed.bin_dir = self.bed.folder
                self.bed.install_agent()
                leader = self.wait_for_leader()
                for index in (1 - leader, leader):
                    self.restart_controller(event, index)
                    self.wait_for_leader()
                wait_for(self.bed.whole, "the network is complete")
                self.old = generator.sample(self.nodes, len(self.nodes))
            return
        upgrade = bool(self.old)
        node = self.old.pop() if upgrade else generator.choice(self.nodes)
        with self.places.close_node(node), self.record.event("agents", "upgrade" if upgrade else "restart", node):
            for programs in (self.bed.agents, self.bed.launchers):
                programs[node].signal(signal.SIGTERM)
                programs[node].process.wait(PATIENCE)
                self.bed.daemons.remove(programs[node])
            self.bed.start_launcher(node)
            self.bed.start_agent(node)
            wait_for(lambda: self.has_joined(node), "the agent of %s has joined" % node)

    def has_joined(self, node):
        """Returns whether the agent of a node has joined. Restarts an agent that could not start
        because a hostile user holds its port, as its systemd unit does."""
        agent = self.bed.agents[node]
        if agent.process.poll() is not None:
            self.bed.daemons.remove(agent)
            self.day_ended.wait(1)
            self.bed.start_agent(node)
        return "joined the controller" in log_of(agent) and self.located(node)

    def located(self, node):
        topology = self.bed.cool_json("topology") or {"nodes": []}
        return any(n["name"] == node and n["located"] and n["away_ms"] is None for n in topology["nodes"])

    # The networks

    def cut_management_links(self, generator):
        hosts = self.nodes if generator.random() < 0.2 else generator.sample(self.nodes, generator.randint(1, 3))
        with self.record.event("management", "nodes lose the management network", ", ".join(hosts)):
            for host in hosts:
                self.bed.network.cut_management(host)
            self.day_ended.wait(generator.uniform(3, 20))
            for host in hosts:
                self.bed.network.restore_management(host)
            for host in hosts:
                wait_for(lambda: self.located(host), "the agent of %s is connected again" % host)

    def fail_link(self, generator):
        link, break_link = generator.choice(self.bed.network.uplinks()), generator.choice([self.bed.network.cut, self.bed.network.silence])
        with self.record.event("links",
                               "a link goes down" if break_link == self.bed.network.cut
                               else "a link drops all packets", "%s-%s" % link):
            break_link(link)
            self.day_ended.wait(generator.uniform(3, 15))
            self.bed.network.restore(link)
            wait_for(self.bed.whole, "the link is discovered again")

    # Operators

    def renew_certificates(self, _generator):
        with self.controllers, self.record.event("certificates", "all certificates are renewed"):
            programs = [*self.bed.pair, *self.bed.agents.values()]
            sizes = [os.path.getsize(program.log) for program in programs]
            self.ask("certs", self.bed.certificates, "--renew")
            self.bed.install_agent_certificates()
            for program, size in zip(programs, sizes):
                wait_for(lambda: program not in self.bed.daemons or has_reloaded(program, size),
                         "%s reloads its certificates" % program.name)

    def rotate_logs(self, _generator):
        with self.controllers, self.record.event("logs", "event logs rotate"):
            for index, controller in enumerate(self.bed.pair):
                log = self.bed.event_log(pair.NAMES[index])
                set_aside(log)
                controller.signal(signal.SIGHUP)
                wait_for(lambda: os.path.exists(log), "%s writes a new event log" % controller.name)

    def attack(self, generator):
        node = generator.choice(self.nodes)
        with self.record.event("hostile", "a user of a node listens, injects, and floods",
                               node) as event:
            program = hostile.start(self.bed, node, "user", ",".join(hostile.trees(self.bed) or ["239.255.0.1"]), *hostile.nodes(self.bed))
            self.day_ended.wait(generator.uniform(10, 25))
            results = json.loads(program.communicate("\n", timeout=PATIENCE)[0])
            event["did"] = results
            # The user may bind the port while the agent restarts; the agent must not start then.
            if results["heard"] or not results["sent"]:
                raise testbed.Failure("the hostile user received datagrams, or sent none: %s" % results)

    def attack_with_certificate(self, generator):
        """Runs an attack of a user with a certificate. It is repeated while no controller leads or
        the node is disconnected."""
        with self.places.reserve(generator) as nodes:
            name = generator.choice(sorted(attacks.ATTACKS))
            attacker = attacks.Attacker(self.bed, ATTACKER, ATTACKER_UID, generator.choice(nodes))
            with self.record.event("attacks", name, attacker.node) as event:
                event["did"] = self.complete_attack(attacker, name, generator.randint(5, 20))

    def complete_attack(self, attacker, name, seconds):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return attacker.attack(name, seconds)
            except attacks.IncompleteAttack as e:
                if time.monotonic() > deadline:
                    raise
                self.record.log("the attack is repeated: %s" % e)
                if self.day_ended.wait(1):
                    return None

    def ask_random(self, generator):
        """Runs a command of the operator, which must succeed even while controllers fail."""
        self.ask(*generator.choice([("topology",), ("jobs",), ("groups",), ("doctor",)]), "--json")

    def ask(self, *command):
        start = time.monotonic()
        try:
            process = subprocess.run(["cool", *command], env=self.bed.environment(), capture_output=True, text=True, timeout=ANSWER)
            # While there is a problem, `cool doctor` must report it, with status 1.
            if process.returncode and not (command[0] == "doctor" and process.returncode == 1 and process.stdout):
                raise testbed.Failure("status %d: %s" % (process.returncode, process.stderr.strip()))
        except (testbed.Failure, subprocess.TimeoutExpired) as e:
            self.record.violation("cool %s: %s" % (" ".join(command), e))
        finally:
            self.record.answers[command[0]].append(time.monotonic() - start)

    def sample(self):
        """Records the memory, open files, and threads of COOL's programs, as the maximum over each
        kind of program."""
        maxima = {}
        for daemon in list(self.bed.daemons):
            if not daemon.name.startswith("etcd") and (usage := resources(daemon.process.pid)):
                kind = "controller" if daemon.name in pair.NAMES else "launcher" if daemon.name.startswith("launcher") else "agent"
                maxima[kind] = [max(pair) for pair in zip(maxima.get(kind, usage), usage)]
                if usage[0] > MEMORY_MAX_MB:
                    self.record.violation("%s uses %d MiB of memory" % (daemon.name, usage[0]))
        self.record.samples.append({"at": self.record.now(), "most": maxima})

    # Final checks

    def close(self, alarms):
        """Checks that no job or group remains, that `cool doctor` finds no problem, and that the
        logs contain no panic."""
        bed = self.bed
        with self.record.event("evening", "no job and no group remains"):
            self.wait_for_leader()
            wait_for(bed.whole, "the network is complete")
            wait_for(lambda: self.remaining("jobs") == self.remaining("groups") == [],
                     "no job and no group remains")
        if alarms:
            with self.record.event("evening", "cool doctor finds no problem"):
                self.await_no_findings(alarms)
        with self.record.event("evening", "logs contain no panic"):
            self.check_logs()

    def await_no_findings(self, seconds):
        output = []

        def is_healthy():
            process = self.bed.run(["cool", "doctor"], capture_output=True, text=True, timeout=ANSWER)
            output[:] = [process.stdout.strip()]
            return process.returncode == 0

        try:
            wait_for(is_healthy, "cool doctor finds no problem", seconds)
        except testbed.Failure as e:
            raise testbed.Failure("%s: %s" % (e, output)) from None

    def remaining(self, what):
        """Returns the jobs or groups that still exist, or None if the controller does not reply."""
        response = self.bed.cool_json(what)
        return response and response[what]

    def check_logs(self):
        for file in filter(lambda name: ".log" in name, os.listdir(self.bed.logs)):
            with open(os.path.join(self.bed.logs, file), errors="replace") as f:
                panics = [line.strip() for line in f if "panicked" in line]
            if panics:
                raise testbed.Failure("%s: %s" % (file, panics[0]))
        events = [file for file in os.listdir(self.bed.directory) if "-events.jsonl" in file]
        for file in events:
            with open(os.path.join(self.bed.directory, file)) as f:
                for line in f:
                    try:
                        json.loads(line)
                    except ValueError:
                        # SIGKILL may truncate the last line of a controller.
                        self.record.log("%s contains a line that is not JSON: %s"
                                        % (file, line[:200].strip()))


def set_aside(log):
    """Renames a log by appending an unused number, as logrotate does."""
    number = next(n for n in range(10_000) if not os.path.exists("%s.%d" % (log, n)))
    os.rename(log, "%s.%d" % (log, number))


def repeat(ended, pause, action):
    while not ended.wait(pause):
        action()


def log_of(program, since=0):
    """Returns the log of a program from the offset `since` on."""
    with open(program.log, errors="replace") as f:
        f.seek(since)
        return f.read()


def has_reloaded(program, size):
    return "have been reloaded" in log_of(program, size)


def resources(pid):
    """Returns the resident memory in MiB, the number of open files, and the number of threads of a
    process, or None if it has ended."""
    try:
        with open("/proc/%d/status" % pid) as f:
            status = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", f.read(), re.M))
        return [int(status["VmRSS"]) / 1024, len(os.listdir("/proc/%d/fd" % pid)), int(status["Threads"])]
    except (OSError, KeyError):
        return None


def summary(record, day, options):
    """Returns the whole record as plain data for day.json."""
    kinds = collections.Counter(event["kind"] for event in record.events)
    return {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "topology": options.topology, "seed": options.seed, "minutes": options.minutes,
            "upgraded": bool(options.before), "bound_s": BOUND, "counts": kinds, "events": record.events, "jobs": record.jobs,
            "answers": {name: {"count": len(durations), "worst_s": max(durations)} for name, durations in record.answers.items()},
            "samples": record.samples, "violations": record.violations, "nodes": day.nodes}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=60,
                   help="duration; the number of events does not depend on it; default %(default)g")
    p.add_argument("--seed", type=int, default=1,
                   help="seed of the events and their times; default %(default)s")
    p.add_argument("--topology", type=topologies.argument, default="leafspine:3x2x3",
                   help=topologies.FORMS + "; needs two paths between racks; default %(default)s")
    p.add_argument("--bin", default=testbed.BIN,
                   help="directory of the programs; default %(default)s")
    p.add_argument("--before", metavar="DIR",
                   help="directory of an older build to upgrade from, made by `tools/build-before "
                   "DIR 4fa9266` (the oldest version with certificates for users)")
    p.add_argument("--logs", metavar="DIR", help="directory for the logs of all programs")
    p.add_argument("--report", metavar="DIR", default=os.path.join(testbed.TARGET, "day"),
                   help="directory for day.json and day.html; default %(default)s")
    options = p.parse_args()
    testbed.unwind_on_signals()
    os.makedirs(options.report, exist_ok=True)
    folder = os.path.abspath(options.bin)
    with ovs.roomy_sockets(), DayBed(options.topology, folder, options.before, logs=options.logs) as bed:
        record = Record(sys.stdout)
        day = Day(bed, options.minutes, options.seed, record)
        try:
            day.run(ALARMS)
        finally:
            # An interrupted day is reported too.
            report = summary(record, day, options)
            with open(os.path.join(options.report, "day.json"), "w") as f:
                json.dump(report, f, indent=1)
            with open(os.path.join(options.report, "day.html"), "w") as f:
                f.write(day_page.page(report))
    print(day_page.sentence(report))
    print("wrote the report: %s" % os.path.join(options.report, "day.html"))
    return 1 if record.violations else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, RuntimeError, OSError) as e:
        sys.exit("day: %s" % e)
