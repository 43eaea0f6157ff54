#!/usr/bin/python3
"""Ranks of one node: COOL beside Open MPI over shared memory, in turn on the same emulated host.

    sudo bench/shared_memory.py                     # 8 ranks: allreduce and bcast of 8 bytes and 64 MiB
    sudo bench/shared_memory.py --ranks 4 --ops reduce --bytes 1M

COOL's ranks share memory with their agent, Open MPI's with each other (its `sm` transport). COOL is measured twice: on
ordinary arrays, which are copied into that memory, and on those of comm.alloc, which are there. Every result is verified.
Both share this machine's processors, so ranks of Open MPI yield them while they wait. Needs what bench.py needs.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import testbed  # noqa: E402


class OpenMpi(peers.OpenMpi):
    """All ranks on the first host, by shared memory alone."""

    ranks = 8

    def flags(self, hosts):
        return ["--allow-run-as-root", "--mca", "pml", "ob1", "--mca", "btl", "sm,self", "--mca", "mpi_yield_when_idle", "1",
                "--bind-to", "none", "--host", "%s:%d" % (hosts[0]["name"], self.ranks), "-n", str(self.ranks)]


def cool(bed, ranks, case, plan, alloc):
    """Seconds of each repetition by `cool bench`, and the plan; `alloc`: of arrays in memory that is shared with the agent."""
    command = ["cool", "bench", "--json", "--ops", case["op"], "--bytes", str(case["bytes"]), "--reps", str(case["reps"]), "--warmup", "2",
               "--pause", str(peers.PAUSE_MS), "--ranks", str(ranks), "--ranks-per-node", str(ranks)]
    options = (["--plan", plan] if plan else []) + (["--alloc"] if alloc else [])
    done = bed.run(command + options, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError("cool bench: " + done.stderr.strip()[-300:])
    [result] = json.loads(done.stdout)["results"]
    return result["seconds"], result["plan"]


def milliseconds(seconds):
    return "%.3f ms (%.3f to %.3f)" % tuple(1e3 * x for x in (statistics.median(seconds), min(seconds), max(seconds)))


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=8, help="on the node; default %(default)s")
    p.add_argument("--ops", default="allreduce,bcast", help="default %(default)s")
    p.add_argument("--bytes", default="8,64M", help="default %(default)s")
    p.add_argument("--reps", type=int, default=5, help="of large messages; small ones are repeated 40 times as often; default %(default)s")
    p.add_argument("--rounds", type=int, default=3, help="in which both are measured in turn; default %(default)s")
    p.add_argument("--plan", help="force COOL's plan")
    p.add_argument("--prepare", action="store_true", help="only install Open MPI")
    p.add_argument("--alone", action="store_true", help="only COOL")
    bench.add_run_options(p, "bench", "where Open MPI is installed; ")
    return p.parse_args()


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
    cases = [{"op": op, "bytes": n, "reps": options.reps * (40 if n < 1 << 16 else 1)}
             for op in options.ops.split(",") for n in map(bench.size, options.bytes.split(","))]
    bed = testbed.Testbed("tree:1x1", slots=options.ranks, bin_dir=options.bin, log_level="warn")
    with bench.started(bed, options.wait):
        run = peers.Run(bed, "racked", bed.directory, 120)
        for case in cases:
            ours, shared, theirs, plan = [], [], [], None
            for _ in range(options.rounds):
                seconds, plan = cool(bed, options.ranks, case, options.plan, False)
                ours += seconds
                shared += cool(bed, options.ranks, case, options.plan, True)[0]
                if not options.alone:
                    theirs += mpi.measure(run, case)["seconds"]
            print("%s of %s, %d ranks on one node:" % (case["op"], page.size(case["bytes"]), options.ranks))
            print("  COOL               %s  %s" % (milliseconds(ours), plan))
            print("  COOL, comm.alloc   %s" % milliseconds(shared), flush=True)
            if theirs:
                print("  Open MPI           %s" % milliseconds(theirs))
                ratios = tuple(statistics.median(theirs) / statistics.median(x) for x in (ours, shared))
                print("  Open MPI's median over COOL's: %.2f, with comm.alloc %.2f" % ratios, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.Failed, RuntimeError, OSError, subprocess.TimeoutExpired) as e:
        sys.exit("shared_memory: %s" % e)
