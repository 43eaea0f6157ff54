#!/usr/bin/python3
"""What a short collective costs the processors: wake-ups and processor time of ranks, agents and switches, and packets, counted by the kernel.

    sudo bench/wakeups.py                              # bcast and allreduce of 1 KiB, COOL and Open MPI
    sudo bench/wakeups.py --ops bcast,gather --bytes 8,1K --peers openmpi,mpich

Each case is run with few and with many repetitions; what the many have more, by repetition, is what one costs. Around the call a repetition has a
pause and barriers: what these cost, one barrier and two in a row tell, and it is taken off. Wake-ups and run times are those of sched_wakeup and
sched_stat_runtime (ftrace), packets those that the switches' ports have sent. Needs what bench.py needs, and tracefs.
"""
import argparse
import collections
import os
import re
import select
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import testbed  # noqa: E402

TRACING = "/sys/kernel/tracing"
EVENTS = ("sched/sched_wakeup", "sched/sched_stat_runtime")
# Who does what, by the beginning of a thread's name.
ROLES = (("cool-engine", "agents"), ("cool-nodeagent", "agents"), ("tokio", "agents"), ("cool", "ranks"), ("mpi_collectives", "ranks"), ("ovs-vswitchd", "switches"),
         ("revalidator", "switches"), ("handler", "switches"), ("ksoftirqd", "kernel"), ("kworker", "kernel"), ("rcu", "kernel"))
SHOWN = ("ranks", "agents", "switches")
FEW, MANY = 20, 120
BUFFER_KB = 32 << 10  # of each processor, for what comes while the reader does not run


def role(name):
    return next((role for start, role in ROLES if name.startswith(start)), "other")


class Trace:
    """Counts wake-ups and seconds run, by role, while the context lasts."""

    WAKEUP = re.compile(r" sched_wakeup: comm=(.+?) pid=")
    RUNTIME = re.compile(r" sched_stat_runtime: comm=(.+?) pid=\d+ runtime=(\d+)")

    def __enter__(self):
        self.wakeups, self.seconds, self.lost = collections.Counter(), collections.Counter(), False
        with open(os.path.join(TRACING, "buffer_size_kb"), "w") as f:
            f.write(str(BUFFER_KB))
        self.pipe = os.open(os.path.join(TRACING, "trace_pipe"), os.O_RDONLY | os.O_NONBLOCK)
        self.ended = threading.Event()
        self.reader = threading.Thread(target=self._read)
        self._enable("1")
        self.reader.start()
        return self

    def __exit__(self, *_):
        self._enable("0")
        self.ended.set()
        self.reader.join()
        os.close(self.pipe)

    @staticmethod
    def _enable(value):
        for event in EVENTS:
            with open(os.path.join(TRACING, "events", event, "enable"), "w") as f:
                f.write(value)

    def _read(self):
        rest = ""
        while True:
            last = self.ended.is_set()
            ready = select.select([self.pipe], [], [], 0.1)[0]
            try:
                text = os.read(self.pipe, 1 << 20).decode(errors="replace") if ready or last else ""
            except BlockingIOError:
                text = ""
            if last and not text:
                return
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                self._count(line)

    def _count(self, line):
        wakeup, runtime = self.WAKEUP.search(line), self.RUNTIME.search(line)
        if wakeup:
            self.wakeups[role(wakeup.group(1))] += 1
        elif runtime:
            self.seconds[role(runtime.group(1))] += int(runtime.group(2)) * 1e-9
        elif "LOST" in line:
            self.lost = True


def packets(bed):
    """Packets that the switches' ports have sent so far."""
    sent = 0
    for switch in bed.description["switches"]:
        shown = subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "dump-ports", switch["name"]], capture_output=True, text=True, check=True).stdout
        sent += sum(int(n) for n in re.findall(r"tx pkts=(\d+)", shown))
    return sent


def counted(library, run, op, size, reps, calls):
    before = packets(run.bed)
    with Trace() as trace:
        library.measure(run, {"placement": run.placement, "op": op, "bytes": size, "reps": reps, "calls": calls})
    if trace.lost:
        raise peers.Failed("the kernel's trace has lost events")
    figures = {"packets": packets(run.bed) - before}
    for who in SHOWN:
        figures["wakeups " + who], figures["seconds " + who] = trace.wakeups[who], trace.seconds[who]
    return figures


def cost(library, run, op, size, calls=1):
    """Of one repetition."""
    few, many = (counted(library, run, op, size, reps, calls) for reps in (FEW, MANY))
    return {what: (many[what] - few[what]) / (MANY - FEW) for what in few}


def less(more, other):
    return {what: n - other[what] for what, n in more.items()}


def row(title, op, size, figures):
    wakeups = ["%.1f" % figures["wakeups " + who] for who in SHOWN]
    times = ["%.2f" % (1e3 * figures["seconds " + who]) for who in SHOWN]
    return "| %s | %s | %s | %.1f |" % (" of ".join([op] + ([page.size(size)] if size else [])) + ", " + title, " | ".join(wakeups), " | ".join(times), figures["packets"])


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ops", type=bench.list_of(bench.one_of(bench.OPS)), default=["bcast", "allreduce"], help="default bcast,allreduce")
    p.add_argument("--bytes", type=bench.list_of(bench.size), default=[1024], help="default 1K")
    p.add_argument("--peers", type=bench.list_of(bench.one_of(("openmpi", "mpich"))), default=["openmpi"], help="default openmpi")
    p.add_argument("--placement", type=bench.one_of(bench.PLACEMENTS), default="racked", help="default %(default)s")
    p.add_argument("--timeout", type=int, default=240, help="seconds for one case; default %(default)s")
    bench.add_network_options(p)
    bench.add_run_options(p, "bench", "for logs; ")
    p.set_defaults(busy_poll=False, gloo=None)
    return p.parse_args()


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    libraries = bench.prepared(options, {"libraries": {}})
    bed = testbed.Testbed(options.topology, options.host_mbit, options.uplink_mbit, bin_dir=options.bin, log_level="warn", logs=os.path.join(options.out, "logs"))
    with bench.started(bed, options.wait), tempfile.TemporaryDirectory(prefix="cool-wakeups-") as folder:
        bed.wait_until_measured()
        run = peers.Run(bed, options.placement, folder, options.timeout)
        print("| of one call | wake-ups: %s | ms on processors: %s | packets sent by ports |" % ((" | ".join(SHOWN),) * 2))
        print("| --- |%s" % (" --: |" * (2 * len(SHOWN) + 1)), flush=True)
        for library in libraries:
            one, two = (cost(library, run, "barrier", 0, calls) for calls in (1, 2))
            print(row(library.title, "barrier", 0, less(two, one)), flush=True)
            around = less(one, less(two, one))
            for op in options.ops:
                for size in options.bytes:
                    whole = bench.moved(op, size, len(run.hosts))
                    print(row(library.title, op, size, less(cost(library, run, op, whole), around)), flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.Failed, RuntimeError, OSError, subprocess.CalledProcessError) as e:
        sys.exit("wakeups: %s" % e)
