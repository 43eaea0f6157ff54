#!/usr/bin/python3
"""Compares COOL with Open MPI over shared memory for the ranks of one emulated host.

    sudo bench/shared_memory.py             # 8 ranks: all operations, of 8 bytes and 64 MiB
    sudo bench/shared_memory.py --ranks 4 --ops reduce --bytes 1M

The ranks of both libraries share memory; those of Open MPI use its `sm` transport. COOL is measured
with ordinary arrays and with arrays of comm.alloc. Every result is verified. At the end, the
program prints a table, in which `first` is the first call after a barrier and a broadcast of 8
bytes. That call allocates the memory that later calls reuse. Waiting ranks yield the CPU, because
both libraries share the CPUs of this machine. Needs the same as bench.py.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402


OPS = "bcast,allreduce,reduce,allgather,gather,scatter,alltoall,reduce_scatter,scan,exscan,barrier"
HEADINGS = ("operation", "COOL", "COOL, `comm.alloc`", "Open MPI", "Open MPI / COOL", "with `comm.alloc`", "first: COOL", "first: Open MPI")


class OpenMpi(peers.OpenMpi):
    """Open MPI with all ranks on the first host, which use shared memory only."""

    ranks = 8

    def flags(self, hosts):
        return ["--allow-run-as-root", "--mca", "pml", "ob1", "--mca", "btl", "sm,self", "--mca", "mpi_yield_when_idle", "1",
                "--bind-to", "none", "--host", "%s:%d" % (hosts[0]["name"], self.ranks), "-n", str(self.ranks)]


def cool(bed, ranks, case, plan, alloc):
    """Runs `cool bench`, with arrays of comm.alloc if `alloc` is true. Returns the seconds of the
    first and of the measured calls, and the plan. The second call is for warming up."""
    command = ["cool", "bench", "--json", "--ops", case["op"], "--bytes", str(case["bytes"]), "--reps", str(case["reps"] + 2), "--warmup", "0",
               "--pause", str(peers.PAUSE_MS), "--ranks", str(ranks), "--ranks-per-node", str(ranks)]
    options = (["--plan", plan] if plan else []) + (["--alloc"] if alloc else [])
    process = bed.run(command + options, capture_output=True, text=True, timeout=300)
    if process.returncode:
        raise RuntimeError("cool bench: " + process.stderr.strip()[-300:])
    [result] = json.loads(process.stdout)["results"]
    first, _, *seconds = result["seconds"]
    return {"first": first, "seconds": seconds, "plan": result["plan"]}


class Figures:
    """The times of one library in one case, over all rounds; shown in milliseconds."""

    def __init__(self):
        self.seconds, self.firsts, self.plan = [], [], ""

    def add(self, measured):
        self.seconds += measured["seconds"]
        self.firsts.append(measured["first"])
        self.plan = measured.get("plan", "")

    def median(self):
        return statistics.median(self.seconds)

    def __str__(self):
        return "%.3g (%.3g to %.3g)" % tuple(1e3 * x for x in (self.median(), min(self.seconds), max(self.seconds)))

    def first(self):
        return "%.3g" % (1e3 * statistics.median(self.firsts))


def title(case):
    return case["op"] if case["op"] == "barrier" else "%s of %s" % (case["op"], page.size(case["bytes"]))


def row(case, ordinary, allocated, peer):
    ratios = ["%.2f" % (peer.median() / x.median()) for x in (ordinary, allocated)]
    return [title(case), str(ordinary), str(allocated), str(peer), *ratios, ordinary.first(), peer.first()]


def table(rows):
    """Returns the table in Markdown."""
    return "\n".join("| %s |" % " | ".join(cells) for cells in [HEADINGS, ["---"] + ["--:"] * (len(HEADINGS) - 1), *rows])


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=8, help="ranks on the node; default %(default)s")
    p.add_argument("--ops", default=OPS, help="operations; default %(default)s")
    p.add_argument("--bytes", default="8,64M", help="lengths; default %(default)s")
    p.add_argument("--reps", type=int, default=5,
                   help="repetitions of large messages, 8 times as many up to 1 MiB, 40 times as "
                   "many below 64 KiB; default %(default)s")
    p.add_argument("--rounds", type=int, default=3,
                   help="rounds, in each of which both are measured; default %(default)s")
    p.add_argument("--plan", help="plan that COOL must use")
    p.add_argument("--prepare", action="store_true", help="only install Open MPI")
    p.add_argument("--alone", action="store_true", help="measure COOL only")
    p.add_argument("--docs", action="store_true",
                   help="write the table to docs/measurements/shared-memory.md")
    bench.add_run_options(p, "bench", "directory in which Open MPI is installed; ")
    options = p.parse_args()
    if options.docs and options.alone:
        p.error("--docs needs Open MPI; omit --alone")
    return options


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    OpenMpi.ranks = options.ranks
    mpi = OpenMpi(options.out, False)
    if not options.alone:
        mpi.prepare()
    if options.prepare:
        return
    cases = [{"op": op, "bytes": n, "reps": options.reps * (40 if n < 1 << 16 else 8 if n <= 1 << 20 else 1)}
             for op in options.ops.split(",") for n in map(bench.size, options.bytes.split(","))]
    # A barrier has no length, so it is measured once.
    cases = [case for i, case in enumerate(cases) if case["op"] != "barrier" or case["op"] != cases[i - 1]["op"]]
    bed = testbed.Testbed("tree:1x1", slots=options.ranks, bin_dir=options.bin, log_level="warn")
    rows = []
    with bench.await_machine(bed, options.wait):
        run = peers.Run(bed, "racked", bed.directory, 300)
        for case in cases:
            ordinary, allocated, peer = Figures(), Figures(), Figures()
            for _ in range(options.rounds):
                ordinary.add(cool(bed, options.ranks, case, options.plan, False))
                allocated.add(cool(bed, options.ranks, case, options.plan, True))
                if not options.alone:
                    peer.add(mpi.measure(run, case))
            print("%s, %d ranks on one node, in ms:" % (title(case), options.ranks))
            print("  COOL               %s, first %s  %s" % (ordinary, ordinary.first(), ordinary.plan))
            print("  COOL, comm.alloc   %s, first %s" % (allocated, allocated.first()), flush=True)
            if peer.seconds:
                rows.append(row(case, ordinary, allocated, peer))
                print("  Open MPI           %s, first %s" % (peer, peer.first()))
                print("  Open MPI's median over COOL's: %s, with comm.alloc %s" % tuple(rows[-1][4:6]), flush=True)
    if rows:
        print(table(rows))
    if options.docs:
        measured = "Measured %s: %d ranks, %d CPUs; medians in ms, with minimum and maximum in parentheses." % (
            time.strftime("%Y-%m-%d", time.gmtime()), options.ranks, os.cpu_count())
        section.replace("shared-memory.md", "bench/shared_memory.py", measured + "\n\n" + table(rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError, subprocess.TimeoutExpired) as e:
        sys.exit("shared_memory: %s" % e)
