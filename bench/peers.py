"""The libraries that are compared with COOL: how each is installed, launched in the emulated hosts,
and measured.

Every peer has a `name`, a method `prepare()`, which installs it and sets `version`, and a method
`measure(run, case)`, which returns the seconds of each repetition with the bytes on the links, the
idle share of the CPUs, and the CPU seconds per MiB delivered. Both raise `PeerError` with the
reason of a failure, and `NotSupported` for a case that the peer does not support.
"""
import contextlib
import json
import os
import re
import resource
import select
import signal
import statistics
import subprocess
import tempfile
import time

import cpu_time

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "COOL_BENCH_CASE"
# Milliseconds from a barrier to the instant at which all ranks begin. Ranks leave a barrier one
# after the other, in some libraries much later than in others. The pause is also long enough to
# refill the bursts of ports that the barrier used. Gloo's own program has no pause.
PAUSE_MS = 20


class PeerError(Exception):
    """The reason why a measurement or an installation failed."""


class NotSupported(Exception):
    """The reason why a peer or a case is not available, which is reported but is not a failure."""


def calls(case):
    """Returns the number of successive calls per repetition. The time of a repetition is that of
    one call."""
    return case.get("calls", 1)


class Counters:
    """Counts the bytes on every link direction and the CPU time between `start` and `stop`. `ranks`
    returns the CPU seconds that ranks have used so far (cpu_time.sample)."""

    def __init__(self, bed, ranks=None):
        self.bed, self.ranks = bed, ranks

    def start(self):
        self.bytes, self.ticks, self.cpu_used = self.bed.link_bytes(), cpu_time.machine_ticks(), cpu_time.sample(self.bed, self.ranks)

    def stop(self, case, repetitions, start_seconds=None):
        """Returns the figures per repetition. If the counted time includes the start of ranks,
        `start_seconds` is its CPU time by consumer, which is subtracted."""
        used = cpu_time.cpu_used(self.cpu_used, cpu_time.sample(self.bed, self.ranks))
        used = {consumer: seconds - (start_seconds or {}).get(consumer, 0) for consumer, seconds in used.items()}
        bytes_now, ticks = self.bed.link_bytes(), cpu_time.machine_ticks()
        carried = {link: (bytes_now[link] - self.bytes[link]) / repetitions for link in bytes_now}
        return {"link_bytes": round(sum(carried.values())), "uplink_bytes": round(sum(self.bed.between_switches(carried))),
                "busiest_link_bytes": round(max(carried.values())), "idle": cpu_time.idle_share(self.ticks, ticks),
                "processor_seconds_per_mib": cpu_time.per_mib(used, case["op"], case["bytes"], len(self.bed.description["hosts"]), repetitions)}


def wait_until_done(process, end, timeout, log):
    """Waits until `end` for a process to succeed; raises PeerError otherwise. `timeout` is only for
    the message."""
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise PeerError("not finished within %d s: %s" % (timeout, log_tail(log))) from None
    if process.returncode:
        raise PeerError("status %d: %s" % (process.returncode, log_tail(log)))


class Processes:
    """Commands in emulated hosts, all of which end with the context. Launchers leave daemons in
    separate sessions, so remaining processes are found by a mark in their environment and ended by
    process id."""

    def __init__(self):
        self.mark = "%s=%d.%d" % (MARK, os.getpid(), time.monotonic_ns())
        self.started = []

    def __enter__(self):
        return self

    def start(self, command, environment, log):
        name, value = self.mark.split("=")
        process = subprocess.Popen(command, env={**environment, name: value}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
        self.started.append(process)
        return process

    def processor_seconds(self):
        """Returns the CPU seconds of all processes with the mark, including launchers and their
        daemons."""
        return cpu_time.processes_seconds(self._signal(0))

    def __exit__(self, *_):
        for number, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, 3)):
            end = time.monotonic() + seconds
            remaining = self._signal(number)
            while remaining and time.monotonic() < end:
                wait_for_end(remaining, end)
                remaining = self._signal(0)
        for process in self.started:
            process.wait()

    def _signal(self, number):
        """Sends a signal to all processes with the mark, and returns their ids."""
        found = []
        for process in self.started:
            process.poll()
        for entry in os.listdir("/proc"):
            try:
                with open("/proc/%s/environ" % entry, "rb") as f:
                    if entry.isdigit() and self.mark.encode() in f.read().split(b"\0"):
                        os.kill(int(entry), number)
                        found.append(int(entry))
            except (OSError, ValueError):
                continue  # the process has ended, or this is not a process
        return found


def wait_for_end(pids, end):
    """Waits until the first of the processes ends, at most until `end`."""
    try:
        descriptor = os.pidfd_open(pids[0])
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
    finally:
        os.close(descriptor)


def ended_children_seconds():
    """Returns the CPU seconds of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def log_tail(log):
    """Returns the end of a log as one line."""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    text = " | ".join([line for line in lines if re.search(r"\w", line)][-4:])
    return text[-300:] or "it printed nothing"


def run_checked(*command, timeout=900, **options):
    """Runs a command and returns its output. Raises PeerError if it fails."""
    try:
        process = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=timeout, **options)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise PeerError("%s: %s" % (" ".join(command[:3]), e)) from None
    if process.returncode:
        raise PeerError("%s: status %d: %s" % (" ".join(command[:3]), process.returncode, process.stdout.strip()[-300:]))
    return process.stdout


def install(folder, package):
    """Installs a package of PyPI in a Python environment, which is created if it does not exist.
    Returns the directory of its programs."""
    programs = os.path.join(folder, "bin")
    if not os.access(os.path.join(programs, "pip"), os.X_OK):
        run_checked("/usr/bin/python3", "-m", "venv", folder)
    run_checked(os.path.join(programs, "pip"), "install", "--quiet", "--disable-pip-version-check", package)
    return programs


def in_host(host, *command):
    """Returns the command that runs another one in a host."""
    return ["mnexec", "-a", str(host["pid"]), *command]


class Run:
    """A testbed for measurements, with the hosts in rank order and a directory for the files of
    launchers."""

    def __init__(self, bed, placement, folder, timeout):
        self.bed, self.placement, self.timeout = bed, placement, timeout
        self.start_seconds = {}  # CPU time to start COOL's ranks, once known (Cool.start_cost)
        self.hosts = rank_order(bed.description, placement)
        self.folder = folder
        with open(os.path.join(folder, "pids"), "w") as f:
            f.writelines("%s %d %s\n" % (h["name"], h["pid"], h["interface"]) for h in self.hosts)
        with open(os.path.join(folder, "hosts"), "w") as f:
            f.writelines("%s %s\n" % (h["ip"], h["name"]) for h in [{"ip": "127.0.0.1", "name": "localhost"}, *self.hosts])


def racks(description):
    """Returns a list of the hosts of each rack."""
    found = {}
    by_name = {h["name"]: h for h in description["hosts"]}
    for link in description["links"]:
        if link["kind"] == "host":
            found.setdefault(link["a"], []).append(by_name[link["b"]])
    return list(found.values())


def rank_order(description, placement):
    """Returns the hosts in rank order: rack by rack, or one of each rack in turn."""
    if placement == "racked":
        return [host for rack in racks(description) for host in rack]
    return [host for row in zip(*racks(description)) for host in row]


class Cool:
    """COOL: `cool bench`, whose ranks are started by the agents."""

    name, title = "cool", "COOL"

    def __init__(self, folder):
        self.folder = folder

    def prepare(self):
        self.version = run_checked(os.path.join(self.folder, "cool"), "--version").split()[-1]
        checkout = subprocess.run(["git", "-C", self.folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        if checkout.returncode == 0:
            self.version += " (%s)" % checkout.stdout.strip()

    def measure(self, run, case):
        counters = Counters(run.bed)
        counters.start()
        with self.started(run.bed, case, "--warmup", "1", "--placement", run.placement, "--pause", str(PAUSE_MS)) as process:
            result = self.result(process, run.timeout)
        figures = counters.stop(case, (case["reps"] + 1) * calls(case), run.start_seconds)
        # This idle share is that of the repetitions only, as the busiest rank saw it, without the
        # start of the job.
        return {**figures, "idle": result["idle"], "seconds": result["seconds"], "chunks_repaired": result["chunks_repaired"]}

    def start_cost(self, run, times=3):
        """Returns the CPU seconds, by consumer, of a job with one barrier. `measure` counts this
        time in addition to the calls, because ranks start and end with `cool bench`."""
        case = {"op": "barrier", "bytes": 0, "reps": 1}
        used = []
        for _ in range(times):
            before = cpu_time.sample(run.bed)
            with self.started(run.bed, case, "--warmup", "0") as process:
                self.result(process, run.timeout)
            used.append(cpu_time.cpu_used(before, cpu_time.sample(run.bed)))
        return {consumer: statistics.median(u[consumer] for u in used) for consumer in used[0]}

    @contextlib.contextmanager
    def started(self, bed, case, *flags):
        """Starts `cool bench`, and kills it at the end of the context."""
        command = ["cool", "bench", "--json", "--ops", case["op"], "--bytes", str(case["bytes"]), "--reps", str(case["reps"]), *flags]
        if calls(case) > 1:
            command += ["--calls", str(calls(case))]
        with subprocess.Popen(command, env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            try:
                yield process
            finally:
                process.kill()

    def result(self, process, timeout):
        """Waits for `cool bench` and returns the result that it printed."""
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise PeerError("not finished within %d s" % timeout) from None
        if process.returncode:
            raise PeerError("status %d: %s" % (process.returncode, err.strip()[-300:]))
        return json.loads(out)["results"][0]


class Mpi:
    """An MPI library, installed from its wheel in a separate environment and measured by
    mpi_collectives.c."""

    def __init__(self, folder, busy_poll):
        self.folder = os.path.join(folder, self.name)
        self.preload = None if busy_poll or not self.spins else os.path.join(folder, "sleeping_poll.so")
        self.program = os.path.join(folder, "mpi_collectives." + self.name)

    def prepare(self):
        programs = install(self.folder, self.name)
        self.compile(self.program, os.path.join(HERE, "mpi_collectives.c"))
        if self.preload:
            run_checked("gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", self.preload, os.path.join(HERE, "sleeping_poll.c"), "-ldl")
        output = run_checked(os.path.join(programs, "pip"), "--disable-pip-version-check", "show", self.name)
        self.version = re.search(r"^Version: (\S+)", output, re.MULTILINE).group(1)

    def compile(self, program, *arguments):
        run_checked(os.path.join(self.folder, "bin", "mpicc"), "-O2", "-Wall", "-o", program, *arguments)

    def launcher(self, run, program):
        """Returns the command that runs a program as one rank on each host, and its environment."""
        environment = {**os.environ, **self.environment, "BENCH_HOSTS": run.folder, "TMPDIR": run.folder,
                       "PATH": os.path.join(self.folder, "bin") + ":" + os.environ["PATH"]}
        launcher = [os.path.join(self.folder, "bin", "mpirun"), *self.flags(run.hosts), *self.rank(run, program)]
        return [os.path.join(HERE, "enter-host"), run.hosts[0]["name"], "exec " + " ".join(launcher)], environment

    def rank(self, _run, program):
        """Returns the command of a rank."""
        return ["env", "LD_PRELOAD=" + self.preload, *program] if self.preload else program

    @contextlib.contextmanager
    def started(self, run, op, *arguments):
        """Runs mpi_collectives.c. Yields its processes, the lines that it writes, and the pipe for
        the replies."""
        with tempfile.TemporaryDirectory(dir=run.folder) as pipes, tempfile.TemporaryFile() as log:
            request, reply = (os.path.join(pipes, p) for p in ("request", "reply"))
            os.mkfifo(request)
            os.mkfifo(reply)
            command, environment = self.launcher(run, [self.program, op, *map(str, arguments), str(PAUSE_MS), request, reply])
            with Processes() as processes:
                # Both pipes are opened for reading and writing, so neither side waits for the other
                # to open them.
                with open(request, "rb+", buffering=0) as requests, open(reply, "rb+", buffering=0) as replies:
                    yield processes, Lines(requests, processes.start(command, environment, log), run.timeout, log), replies

    def measure(self, run, case):
        with self.started(run, case["op"], case["bytes"], case["reps"], calls(case)) as (processes, lines, replies):
            counters = Counters(run.bed, processes.processor_seconds)
            first = self.first(lines)
            counters.start()
            replies.write(b"\n")
            seconds = self.seconds(lines)
            figures = counters.stop(case, case["reps"] * calls(case))
            replies.write(b"\n")
            if len(seconds) != case["reps"]:
                raise PeerError("the program did not end as expected")
            lines.end()
            return {**figures, "first": first, "seconds": seconds}

    def measure_lengths(self, run, op, lengths, least, most, seconds):
        """Measures an operation with several lengths in one run. Yields each length with the
        seconds of its repetitions. There are as many as take `seconds`, but at least `least` and at
        most `most`."""
        with self.started(run, op, ",".join(map(str, lengths)), "%d-%d:%g" % (least, most, seconds), 1) as (_, lines, replies):
            for length in lengths:
                self.first(lines)
                replies.write(b"\n")
                yield length, self.seconds(lines)
                replies.write(b"\n")
            lines.end()

    @staticmethod
    def first(lines):
        keyword, *first = lines.next()
        if keyword != "start" or len(first) != 1:
            raise PeerError("the program did not start as expected")
        return float(first[0])

    @staticmethod
    def seconds(lines):
        keyword, *seconds = lines.next()
        if keyword != "done":
            raise PeerError("the program did not end as expected")
        return [float(s) for s in seconds]


class Lines:
    """Reads lines from a pipe until the process ends or the timeout expires."""

    def __init__(self, pipe, process, timeout, log):
        self.pipe, self.process, self.log, self.timeout = pipe, process, log, timeout
        self.deadline, self.pending = time.monotonic() + timeout, b""

    def next(self):
        """Returns the words of the next line. Raises PeerError if the process ends first or time is
        up."""
        while b"\n" not in self.pending:
            if self.pipe not in self._wait([self.pipe]):
                raise PeerError("status %s: %s" % (self.process.wait(), log_tail(self.log)))
            self.pending += os.read(self.pipe.fileno(), 65536)
        line, self.pending = self.pending.split(b"\n", 1)
        return line.decode(errors="replace").split()

    def end(self):
        """Waits for the process, and raises PeerError if it fails at the very end."""
        self._wait([])
        if self.process.wait():
            raise PeerError("status %d: %s" % (self.process.returncode, log_tail(self.log)))

    def _wait(self, pipes):
        pidfd = os.pidfd_open(self.process.pid)
        try:
            ready, _, _ = select.select([*pipes, pidfd], [], [], max(0.0, self.deadline - time.monotonic()))
        finally:
            os.close(pidfd)
        if not ready:
            raise PeerError("not finished within %d s: %s" % (self.timeout, log_tail(self.log)))
        return ready


class OpenMpi(Mpi):
    name, title = "openmpi", "Open MPI"
    spins, environment = False, {}  # mpi_yield_when_idle below serves the same purpose and is faster at 1 KiB

    def flags(self, hosts):
        """Returns options for TCP over the data network. Waiting ranks yield the CPU, because all
        hosts share this machine's."""
        # Racks of routed networks are subnets of their own. The management network must not be used.
        network = ",".join(sorted({h["ip"].rsplit(".", 1)[0] + ".0/24" for h in hosts}))
        return ["--allow-run-as-root", "--prtemca", "plm_ssh_agent", os.path.join(HERE, "enter-host"), "--prtemca", "prte_if_include", network,
                "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network, "--mca", "mpi_yield_when_idle", "1",
                "--host", ",".join(h["name"] + ":1" for h in hosts), "-n", str(len(hosts))]


class Mpich(Mpi):
    name, title = "mpich", "MPICH"
    spins, environment = True, {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}

    def flags(self, hosts):
        """Returns options for one rank per host. Without -genvnone, all ranks would get the
        environment of the first host, including its interface."""
        return ["-genvnone", "-launcher", "ssh", "-launcher-exec", os.path.join(HERE, "enter-host"), "-hosts", ",".join(h["name"] for h in hosts),
                "-n", str(len(hosts)), "-ppn", "1"]


class Sockets:
    """A minimal program on UDP sockets (plain_sockets.c), as a lower bound. `cool run` starts it,
    so that it can use the tree of that job."""

    name, title = "sockets", "plain sockets"
    MOST_BYTES = 16 << 10

    def __init__(self, folder):
        self.program = os.path.join(folder, "plain_sockets")

    def prepare(self):
        run_checked("gcc", "-O2", "-Wall", "-o", self.program, os.path.join(HERE, "plain_sockets.c"))
        self.version = "of Linux %s" % os.uname().release

    def measure(self, run, case):
        if calls(case) > 1:
            raise NotSupported("successive calls are not supported because the program never retransmits")
        if case["bytes"] > self.MOST_BYTES:
            raise NotSupported("supports at most 16 KiB because the program never retransmits")
        rack_of = {host["name"]: number for number, rack in enumerate(racks(run.bed.description)) for host in rack}
        counters = Counters(run.bed)
        with tempfile.TemporaryDirectory(dir=run.folder) as folder, tempfile.TemporaryFile() as log, Processes() as processes:
            os.chmod(folder, 0o777)
            command = ["cool", "run", "--placement", run.placement, "--", self.program, case["op"], str(case["bytes"]), str(case["reps"]),
                       str(PAUSE_MS), ",".join(str(rack_of[host["name"]]) for host in run.hosts), folder]
            counters.start()
            process = processes.start(command, run.bed.environment(), log)
            end = time.monotonic() + run.timeout
            self.pass_tree(run, folder, end)
            wait_until_done(process, end, run.timeout, log)
            figures = counters.stop(case, case["reps"])
            return {**figures, **self.figures(folder, len(run.hosts))}

    @staticmethod
    def pass_tree(run, folder, end):
        """Waits for the tree of the job and passes its address to the ranks."""
        while time.monotonic() < end:
            groups = json.loads(run_checked("cool", "groups", "--json", env=run.bed.environment()))["groups"]
            trees = [tree["address"] for group in groups for tree in group["trees"] if tree["scope"] == "all"]
            if trees:
                with open(os.path.join(folder, "tree.new"), "w") as f:
                    f.write(trees[0])
                os.rename(f.name, os.path.join(folder, "tree"))
                return
            time.sleep(0.05)
        raise PeerError("the job has no tree")

    @staticmethod
    def figures(folder, ranks):
        """Returns the seconds until the last rank of each repetition ended. Repetitions with lost
        messages are omitted."""
        times = []
        for rank in range(ranks):
            with open(os.path.join(folder, "%d.ms" % rank)) as f:
                times.append([float(line) for line in f])
        seconds = [max(rank_times) * 1e-3 for rank_times in zip(*times) if min(rank_times) >= 0]
        if 2 * len(seconds) <= len(times[0]):
            raise PeerError("messages were lost in %d of %d repetitions"
                         % (len(times[0]) - len(seconds), len(times[0])))
        return {"seconds": seconds, "lost": len(times[0]) - len(seconds)}


class Gloo:
    """Gloo's own benchmark program, built from a source directory. It verifies the data that it
    receives."""

    name, title = "gloo", "Gloo"

    def __init__(self, folder, source):
        self.folder, self.source = os.path.join(folder, self.name), source

    def prepare(self):
        if not self.source:
            raise NotSupported("no source directory given (--gloo DIR)")
        self.program = os.path.join(self.folder, "gloo", "benchmark", "benchmark")
        run_checked("cmake", "-S", self.source, "-B", self.folder, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_BENCHMARK=ON", "-DUSE_REDIS=OFF")
        run_checked("cmake", "--build", self.folder, "--parallel", "2", "--target", "benchmark")
        revision = subprocess.run(["git", "-C", self.source, "describe", "--always"], capture_output=True, text=True)
        self.version = revision.stdout.strip() or "of " + os.path.basename(os.path.abspath(self.source))

    def algorithm(self, case):
        """Returns the name of Gloo's algorithm for a case. For allreduce, it depends on the
        length."""
        allreduce = "allreduce_halving_doubling" if case["bytes"] < 1 << 16 else "allreduce_ring_chunked"
        names = {"bcast": "broadcast", "reduce": "reduce", "allreduce": allreduce, "allgather": "allgather", "scatter": "scatter"}
        if case["op"] not in names:
            raise NotSupported("its benchmark has no %s" % case["op"])
        return names[case["op"]]

    def measure(self, run, case):
        if calls(case) > 1:
            raise NotSupported("its benchmark makes one call at a time")
        algorithm, hosts = self.algorithm(case), run.hosts
        parts = len(hosts) if case["op"] in ("allgather", "scatter") else 1
        elements = str(max(1, case["bytes"] // 4 // parts))
        counters = Counters(run.bed, ended_children_seconds)
        with tempfile.TemporaryDirectory(dir=run.folder) as rendezvous, tempfile.TemporaryFile() as log, Processes() as processes:
            counters.start()
            end = time.monotonic() + run.timeout
            for rank, host in enumerate(hosts):
                command = in_host(host, self.program, "--size", str(len(hosts)), "--rank", str(rank), "--transport", "tcp",
                                  "--tcp-device", host["interface"], "--shared-path", rendezvous, "--prefix", "bench", "--inputs", "1", "--elements",
                                  elements, "--warmup-iters", "1", "--iteration-count", str(case["reps"]), algorithm)
                processes.start(command, os.environ, log)
            for process in processes.started:
                wait_until_done(process, end, run.timeout, log)
            figures = counters.stop(case, case["reps"] + 1)
            return {**figures, **self.figures(log)}

    @staticmethod
    def figures(log):
        """Returns the figures of the row `size elements min p50 p99 max GB/s samples`, which is in
        microseconds. Gloo does not report each repetition."""
        log.seek(0)
        rows = [line.split() for line in log.read().decode(errors="replace").splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]
        if not rows or len(rows[-1]) < 6:
            raise PeerError("no figures in its output: " + log_tail(log))
        least, median, _, most = (float(x) / 1e6 for x in rows[-1][2:6])
        return {"min": least, "median": median, "max": most}
