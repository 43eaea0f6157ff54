#!/usr/bin/python3
"""Makes system calls of ranks and agents fail, by seed, and checks what follows.

    sudo bench/inject.py --seeds 0:300
    sudo bench/inject.py --seeds 17:1 --logs /tmp/logs

From each seed, the program draws a job, the processes in which system calls fail (one rank, all
ranks, or the agent of one node), one to three system calls with an error that Linux permits for
each, and when they fail. strace injects the errors, so that every program and every way of making a
system call is covered. The job runs beside a job of another user's group on the same nodes.

For every seed, these must hold:
- each call returns the right data or an error, and all processes of the job end in time;
- no process panics, aborts or accesses memory that it does not have;
- the other job goes on;
- the agent runs on, unless the error occurred while it was starting;
- afterwards, a new job on all nodes works, and agents have no more descriptors or mappings than
  before.

It prints a line of JSON for each seed. A seed draws the same injections on every machine, but the
system counts calls of each thread separately, so a repetition may fail elsewhere. It returns 1 if a
requirement was violated. Needs root and Debian's mininet, openvswitch-switch, ethtool and strace.
"""
import argparse
import contextlib
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "mininet")]
import testbed  # noqa: E402
from testbed import wait_for  # noqa: E402

# Every job must end within this many seconds, and calls that make no progress fail after CALL_MS.
JOB_SECONDS = 120
CALL_MS = 10_000
# Agents release everything that belongs to a job within this many seconds after its end.
RELEASE_SECONDS = 30
# Number of jobs by which an agent must have recovered from errors that do not recur.
RECOVERY_JOBS = 4
# The job of the other user runs on these nodes, and the agent of the victim is another one.
BYSTANDERS, VICTIM = ("h1", "h3"), "h2"
TOPOLOGY = "tree:1x3"
# System calls, the errors with which they may fail, and how often a thread of a rank and of an agent
# makes them in a job, or 0 if never. Errors that Linux does not return are absent: EAGAIN of
# sockets, because it promises an event that an injected error does not cause; futex(2), because a
# call that wakes no thread is not an error; and write(2) to event descriptors.
ERRORS = {
    "mmap": (["ENOMEM"], 32, 128),
    "memfd_create": (["EMFILE", "ENFILE", "ENOMEM"], 3, 3),
    "ftruncate": (["EIO", "ENOSPC"], 3, 3),
    "fallocate": (["ENOSPC", "EINTR", "EOPNOTSUPP"], 3, 3),
    "madvise": (["ENOMEM", "EINVAL", "EAGAIN"], 10, 10),
    "openat": (["EMFILE", "ENFILE", "EACCES", "EIO", "EINTR"], 8, 64),
    "socket": (["EMFILE", "ENFILE", "ENOBUFS", "EACCES"], 1, 16),
    "socketpair": (["EMFILE", "ENFILE"], 0, 4),
    "bind": (["EADDRINUSE", "EACCES"], 0, 8),
    "connect": (["ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH", "EADDRNOTAVAIL"], 1, 8),
    "accept4": (["EMFILE", "ECONNABORTED", "ENOBUFS", "EINTR"], 0, 8),
    "sendto": (["ENOBUFS", "EPERM", "ECONNRESET", "EPIPE", "EINTR", "ENETUNREACH"], 40, 256),
    "sendmsg": (["ENOBUFS", "EPERM", "ECONNRESET", "EPIPE", "EINTR", "ENOMEM"], 48, 256),
    "sendmmsg": (["ENOBUFS", "EPERM", "EINTR", "ENETUNREACH"], 0, 64),
    "writev": (["ENOBUFS", "ECONNRESET", "EPIPE", "EINTR"], 0, 64),
    "recvfrom": (["EINTR", "ECONNRESET", "ENOMEM", "ECONNREFUSED"], 40, 256),
    "recvmsg": (["EINTR", "ECONNRESET", "ENOMEM", "ECONNREFUSED"], 64, 256),
    "recvmmsg": (["EINTR", "ENOMEM", "ECONNREFUSED"], 0, 256),
    "read": (["EIO", "EINTR"], 10, 64),
    "epoll_create1": (["EMFILE", "ENOMEM"], 0, 4),
    "epoll_ctl": (["ENOMEM", "ENOSPC"], 0, 32),
    "epoll_wait": (["EINTR"], 0, 256),
    "poll": (["EINTR", "ENOMEM"], 1, 8),
    "ppoll": (["EINTR", "ENOMEM"], 32, 8),
    "eventfd2": (["EMFILE", "ENOMEM"], 0, 4),
    "pipe2": (["EMFILE", "ENFILE"], 0, 4),
    "fcntl": (["EMFILE", "EINVAL"], 10, 32),
    "clone3": (["EAGAIN", "ENOMEM"], 1, 8),
    "pidfd_open": (["EMFILE", "ENOMEM", "ENOSYS"], 0, 6),
    "process_vm_readv": (["ENOMEM", "EPERM", "ENOSYS"], 8, 0),
    "getsockopt": (["ENOBUFS", "ENOPROTOOPT"], 1, 32),
    "setsockopt": (["ENOMEM", "ENOPROTOOPT", "EPERM"], 8, 32),
    "getsockname": (["ENOBUFS"], 0, 16),
    "statx": (["EIO", "ENOMEM"], 4, 16),
    "getrandom": (["EINTR"], 1, 8),
}
# Texts in output and logs that show a defect of a program.
DEFECTS = re.compile(r"panicked|wrong bytes|fatal runtime error|core dumped|signal (?:4|6|7|8|11)\b|SIG(?:SEGV|BUS|ABRT|ILL)|unreachable code|assertion")
# Texts with which Rust's library and Tokio end a process that lacks memory, threads or descriptors,
# because they cannot return an error. Agents may end in this way only while they start.
RESOURCES = re.compile(r"memory allocation of|OS can't spawn worker thread|failed to spawn thread|failed to allocate an alternative stack|"
                       r"failed to create UnixStream|failed to set up alternative stack guard")


class Violation(Exception):
    """A requirement that does not hold."""


class Injection:
    """Errors of one system call: with which error, from which invocation on, and how many."""

    def __init__(self, draw, call, count):
        self.call = call
        self.error = draw.choice(ERRORS[call][0])
        # Exponents are drawn, because the first calls have the most different purposes.
        self.first = int((count + 1) ** draw.random())
        self.last = self.first + draw.choice([0, 0, 0, 1, 3])

    def option(self):
        return "inject=%s:error=%s:when=%d..%d" % (self.call, self.error, self.first, self.last)


def strace(injections, log, detach):
    """Returns a command prefix that runs a program with these errors. With `detach`, programs that
    it starts are not affected, which takes more time."""
    names = ",".join(sorted({injection.call for injection in injections}))
    options = [word for injection in injections for word in ("-e", injection.option())]
    # The program keeps its process number, because the tracer is its child (-D).
    return ["strace", "-D", "-f", *(["-b", "execve"] if detach else ["--seccomp-bpf"]), "-qq", "-o", log, "-e", "trace=" + names, *options]


class Case:
    """The job, the injections and their victims that follow from a seed."""

    def __init__(self, seed, calls=None):
        draw = random.Random(seed)
        self.seed = seed
        self.target = draw.choice(["rank", "rank", "ranks", "agent"])
        self.per_node = draw.choice([1, 2])
        self.ranks = 3 * self.per_node
        self.victim = draw.randrange(self.ranks)
        bytes_max = draw.choice([64, 8192, 1 << 20])
        self.program = draw.choice([
            ["cool-faults", "--steps", str(draw.choice([13, 26, 39])), "--seed", str(seed), "--bytes", str(bytes_max), "--timeout", str(CALL_MS)],
            ["cool-faults", "--steps", "13", "--seed", str(seed), "--bytes", str(bytes_max), "--timeout", str(CALL_MS)],
            ["cool-misuse", "sum"],
        ])
        # The injections are for different calls, because strace takes one for each call.
        counts = {call: counts[self.target == "agent"] for call, (_, *counts) in ERRORS.items() if call in (calls or ERRORS)}
        names = sorted(call for call, count in counts.items() if count)
        drawn = draw.sample(names, min(len(names), draw.choice([1, 1, 2, 3])))
        self.injections = [Injection(draw, call, counts[call]) for call in drawn]

    def command(self, bed, log):
        """Returns the command of the job."""
        program = [os.path.join(bed.bin_dir, self.program[0]), *self.program[1:]]
        if self.target != "agent":
            traced = strace(self.injections, log, False)
            ranks = "*" if self.target == "ranks" else str(self.victim)
            # The log's name ends with the rank.
            traced[traced.index("-o") + 1] += ".$COOL_RANK"
            words = " ".join('"%s"' % word if "$" in word else word for word in traced)
            program = ["sh", "-c", 'case $COOL_RANK in %s) exec %s "$@";; *) exec "$@";; esac' % (ranks, words), "sh", *program]
        return ["cool", "run", "-n", str(self.ranks), "--ranks-per-node", str(self.per_node), "--", *program]


def shared_memory(pid):
    """Returns the inodes of the files of shared memory that a process has mapped."""
    with open("/proc/%d/maps" % pid) as f:
        return {line.split()[4] for line in f if "memfd:" in line}


class Holdings:
    """What an agent holds: the kinds of its descriptors, and the number of files of shared memory
    that it has mapped and no rank has. Ranks of the other job may map memory at any time, because
    a call that gets no quick answer on a busy machine needs some."""

    def __init__(self, pid, agents):
        self.descriptors = []
        for path in glob.glob("/proc/%d/fd/*" % pid):
            # Descriptors may be closed in the meantime.
            with contextlib.suppress(FileNotFoundError):
                self.descriptors.append(re.sub(r"\d+", "", os.readlink(path)))
        self.descriptors.sort()
        mapped = shared_memory(pid)
        for other in {int(name) for name in os.listdir("/proc") if name.isdecimal()} - agents:
            # Processes may end in the meantime.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                mapped -= shared_memory(other)
        self.mappings = len(mapped)

    def exceed(self, before):
        """Returns whether there are more than before."""
        return len(self.descriptors) > len(before.descriptors) or self.mappings > before.mappings

    def __str__(self):
        kinds = {kind: self.descriptors.count(kind) for kind in sorted(set(self.descriptors))}
        return "%d mappings, descriptors %s" % (self.mappings, kinds)


class Series:
    """Runs the cases of seeds on one testbed, beside a job of other nodes."""

    def __init__(self, bed, directory, calls=None):
        self.bed, self.directory, self.calls = bed, directory, calls
        self.logs_read = {}
        self.start_bystander()
        self.check_new_job()
        self.before = {name: self.holdings(name) for name in bed.agents}

    def start_bystander(self):
        """Starts the other job. Its messages are short, so that it needs no memory in its agents that
        comes and goes."""
        command = ["cool", "run", "-n", "2", "--hosts", ",".join(BYSTANDERS), "--ranks-per-node", "1", "--", os.path.join(self.bed.bin_dir, "cool-faults"),
                   "--seconds", "1000000", "--pause", "20", "--bytes", "64", "--seed", "1"]
        self.bystander_log = os.path.join(self.directory, "bystander.log")
        with open(self.bystander_log, "w") as log:
            self.bystander = subprocess.Popen(command, env=self.bed.environment(), stdout=log, stderr=log)
        wait_for(lambda: (self.bed.cool_json("groups") or {"groups": []})["groups"], "the other job runs")

    def holdings(self, name):
        return Holdings(self.bed.agents[name].process.pid, {agent.process.pid for agent in self.bed.agents.values()})

    def run(self, seed):
        """Runs the case of a seed. Returns its record, with a key `violation` if a requirement is
        violated."""
        case, begun = Case(seed, self.calls), time.monotonic()
        record = {"seed": seed, "target": case.target, "program": case.program[0], "ranks": case.ranks,
                  "injections": [injection.option()[len("inject="):] for injection in case.injections]}
        log = os.path.join(self.directory, "strace-%d" % seed)
        try:
            if case.target == "agent":
                self.with_failing_agent(case, log, record)
            else:
                record.update(self.job(case.command(self.bed, log)))
            record["injected"] = self.injected(log)
            if not record["injected"] and record["status"]:
                raise Violation("the job failed without any injected error: %s" % record["output"])
            self.check_afterwards()
        except (Violation, testbed.Failure) as e:
            record["violation"], record["injected"] = str(e), self.injected(log)
            self.recover()
        record["seconds"] = round(time.monotonic() - begun, 1)
        return record

    def job(self, command):
        """Runs a job to its end. Returns its status and output."""
        process = subprocess.Popen(command, env=self.bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        try:
            output, _ = process.communicate(timeout=JOB_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=JOB_SECONDS)
            process.kill()
            raise Violation("the job has not ended after %d s; its output: %s" % (JOB_SECONDS, process.communicate()[0][-500:])) from None
        self.check_text("the job's output", output)
        if process.returncode and not output.strip():
            raise Violation("the job failed with status %d without any message" % process.returncode)
        return {"status": process.returncode, "output": output.strip()[-300:] if process.returncode else ""}

    def with_failing_agent(self, case, log, record):
        """Runs the job while system calls of an agent fail. The agent must survive these errors
        unless it is still starting, and then work again."""
        self.bed.agent_wrappers[VICTIM] = strace(case.injections, log, True)
        try:
            self.bed.restart_agent(VICTIM)
        finally:
            del self.bed.agent_wrappers[VICTIM]
        agent = self.bed.agents[VICTIM]
        try:
            wait_for(lambda: agent.process.poll() is not None or self.bed.whole(), "the agent has joined or ended", JOB_SECONDS)
        except testbed.Failure as e:
            raise Violation("%s: %s" % (e, self.tail(agent.log))) from None
        if agent.process.poll() is None:
            for number in range(RECOVERY_JOBS):
                record.update(self.job(case.command(self.bed, log)))
                if agent.process.poll() is not None:
                    raise Violation("the agent ended with status %d: %s" % (agent.process.returncode, self.tail(agent.log)))
                if record["status"] == 0:
                    break
            else:
                raise Violation("%d jobs failed after errors that do not recur: %s" % (RECOVERY_JOBS, record["output"]))
            record["jobs"] = number + 1
        else:
            record.update({"status": agent.process.returncode, "output": self.tail(agent.log)})
            if not 0 < agent.process.returncode < 128 and not RESOURCES.search(record["output"]):
                raise Violation("the agent ended with status %d while it started: %s" % (agent.process.returncode, record["output"]))
        self.check_logs()
        self.bed.restart_agent(VICTIM)
        self.bed.wait_until_joined()
        self.check_new_job()
        self.before[VICTIM] = self.holdings(VICTIM)

    def check_afterwards(self):
        """Checks everything that must hold after each case."""
        self.check_logs()
        if self.bystander.poll() is not None:
            with open(self.bystander_log) as f:
                raise Violation("the other job ended with status %d: %s" % (self.bystander.returncode, f.read()[-500:]))
        for daemon in self.bed.daemons:
            daemon.check()
        self.check_new_job()
        for name, before in self.before.items():
            end = time.monotonic() + RELEASE_SECONDS
            while (now := self.holdings(name)).exceed(before):
                if time.monotonic() > end:
                    self.before[name] = now
                    raise Violation("the agent of %s has not released everything: %s, before: %s" % (name, now, before))
                time.sleep(0.05)

    def check_new_job(self):
        """Checks that a job on all nodes works."""
        record = self.job(["cool", "run", "-n", "6", "--ranks-per-node", "2", "--", os.path.join(self.bed.bin_dir, "cool-misuse"), "sum"])
        if record["status"]:
            raise Violation("a job without errors failed: %s" % record["output"])

    def check_logs(self):
        """Checks the lines that the logs of all programs have got since the last check."""
        for name in {daemon.log for daemon in self.bed.daemons} | {self.bystander_log}:
            with open(name, errors="replace") as f:
                if os.fstat(f.fileno()).st_size < self.logs_read.get(name, 0):
                    self.logs_read[name] = 0
                f.seek(self.logs_read.get(name, 0))
                text = f.read()
                self.logs_read[name] = f.tell()
            self.check_text(name, text)

    def check_text(self, where, text):
        if RESOURCES.search(text):
            return
        found = DEFECTS.search(text)
        if found:
            begin = text.rfind("\n", 0, found.start()) + 1
            raise Violation("%s: %s" % (where, text[begin:begin + 400]))

    def tail(self, log):
        with open(log, errors="replace") as f:
            return f.read().strip()[-300:]

    def injected(self, log):
        """Returns the injected errors, in the notation of strace."""
        found = []
        for name in sorted(glob.glob(log + "*")):
            with open(name, errors="replace") as f:
                found += [line.split(maxsplit=1)[1].strip() for line in f if "(INJECTED)" in line]
        return found[:8]

    def recover(self):
        """Makes everything work again after a violation, so that the next seed can run."""
        self.end()
        for name in list(self.bed.agents):
            self.bed.restart_agent(name)
        self.bed.wait_until_joined()
        self.logs_read = {}
        self.start_bystander()
        self.check_new_job()
        self.before = {name: self.holdings(name) for name in self.bed.agents}

    def end(self):
        """Ends the other job."""
        if self.bystander.poll() is None:
            self.bystander.send_signal(signal.SIGINT)
            try:
                self.bystander.wait(JOB_SECONDS)
            except subprocess.TimeoutExpired:
                self.bystander.kill()


@contextlib.contextmanager
def series(bed, calls=None):
    """A series on a testbed with the topology TOPOLOGY."""
    with tempfile.TemporaryDirectory(prefix="cool-inject-") as directory:
        running = Series(bed, directory, calls)
        try:
            yield running
        finally:
            running.end()


def seeds(text):
    first, _, count = text.partition(":")
    return range(int(first), int(first) + int(count or 1))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", type=seeds, default="0:300", metavar="FIRST:COUNT", help="default %(default)s")
    p.add_argument("--calls", type=lambda text: text.split(","), metavar="NAME,..", help="let only these system calls fail")
    p.add_argument("--bin", help="directory of the programs; default target/release")
    p.add_argument("--logs", help="directory for the logs of controller and agents")
    options = p.parse_args()
    for name in options.calls or ():
        if name not in ERRORS:
            p.error("--calls %s: expected some of %s" % (name, ", ".join(sorted(ERRORS))))
    testbed.unwind_on_signals()
    violations, hit = [], 0
    with testbed.Testbed(TOPOLOGY, bin_dir=options.bin, logs=options.logs, peer_timeout_ms=10_000) as bed, series(bed, options.calls) as running:
        for seed in options.seeds:
            record = running.run(seed)
            print(json.dumps(record), flush=True)
            hit += bool(record.get("injected"))
            violations += [seed] if "violation" in record else []
    print("%d seeds, %d with injected errors, %d violations%s" % (len(options.seeds), hit, len(violations), ": seeds %s" % violations if violations else ""))
    return 1 if violations else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, RuntimeError, OSError) as e:
        sys.exit("inject: %s" % e)
