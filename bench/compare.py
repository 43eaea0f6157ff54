#!/usr/bin/python3
"""Compares an old and a new build of COOL on one emulated network and verifies every result.

    sudo bench/compare.py --baseline ~/cool-before/target/release --ops bcast,allreduce --bytes 1K,64K,4M --turns 5

Each turn runs all cases with the controller and agents of one build, then with those of the other;
the order alternates from turn to turn. For each case, the program prints the medians over the
turns, the median, minimum and maximum of the ratio new/old, and the ratio of the CPU time of agents
and ranks per MiB delivered. Writes report.json to target/compare. Needs the same as bench/bench.py,
but no peers.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "mininet")]
import bench  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import testbed  # noqa: E402

SIDES = ("old", "new")
HEADINGS = ("case", "old", "new", "new/old", "least", "most", "processor")
ROW = "%-22s %10s %10s %8s %7s %7s %10s"


def turn(bed, folder, agent_flags, cases, options):
    """Measures all cases with the programs in `folder`. Returns, by case, the median time and the
    CPU seconds of agents and ranks per MiB."""
    bed.agent_flags = agent_flags
    bed.replace_programs(folder)
    bed.wait_until_measured()
    cool = peers.Cool(folder)
    with tempfile.TemporaryDirectory(prefix="cool-compare-") as directory:
        run = peers.Run(bed, options.placement, directory, options.timeout)
        run.start_seconds = cool.start_cost(run)
        results = {}
        for op, requested_bytes, case in cases:
            figures = cool.measure(run, case)
            cpu_seconds = figures["processor_seconds_per_mib"]
            results[op, requested_bytes] = {"seconds": statistics.median(figures["seconds"]), "processor": cpu_seconds["agents"] + cpu_seconds["ranks"]}
        return results


def summarize(turns, key):
    """Returns the figures of one case, summarized over all turns."""
    pairs = [(t["old"][key], t["new"][key]) for t in turns]
    ratios = [new["seconds"] / old["seconds"] for old, new in pairs]
    cpu_ratios = [new["processor"] / old["processor"] for old, new in pairs if old["processor"]]
    medians = {side: statistics.median(pair[i]["seconds"] for pair in pairs) for i, side in enumerate(SIDES)}
    return {**medians, "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "turns": pairs,
            "processor_ratio": statistics.median(cpu_ratios) if cpu_ratios else None}


def row(op, requested_bytes, summary):
    # Ticks of 10 ms are too coarse for messages this short.
    cpu_ratio = "%.3f" % summary["processor_ratio"] if summary["processor_ratio"] and requested_bytes >= page.LEAST_FOR_PROCESSOR else "-"
    return ROW % ("%s %s" % (op, page.size(requested_bytes)), page.seconds(summary["old"]), page.seconds(summary["new"]), "%.3f" % summary["ratio"], "%.3f" % summary["least"],
                  "%.3f" % summary["most"], cpu_ratio)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--baseline", required=True, 
                   help="directory of the old programs (cool, cool-controller, cool-nodeagent)")
    p.add_argument("--ops", type=bench.list_of(bench.one_of(bench.OPS)), default=list(bench.OPS),
                   help="operations; default all six")
    p.add_argument("--bytes", type=bench.list_of(bench.size), default=[1 << 10, 1 << 16, 4 << 20], 
                   help="lengths; default 1K,64K,4M")
    p.add_argument("--turns", type=int, default=5, help="turns of each build; default %(default)s")
    p.add_argument("--reps", type=int, default=3, 
                   help="repetitions of a case per turn; at least 15 below 64K; default "
                   "%(default)s")
    bench.add_network_options(p)
    p.add_argument("--placement", type=bench.one_of(bench.PLACEMENTS), default="racked", help="default %(default)s")
    p.add_argument("--timeout", type=int, default=240, help="seconds for one case; default %(default)s")
    p.add_argument("--new-agent-flags", default="", metavar="FLAGS", 
                   help="flags for the new agents only, for example --new-agent-flags=--encrypt")
    bench.add_run_options(p, "compare")
    options = p.parse_args()
    if min(options.turns, options.reps, options.timeout) < 1 or min(options.host_mbit, options.uplink_mbit, options.wait) < 0:
        p.error("--turns, --reps and --timeout must be at least 1; rates and --wait must not be "
                "negative")
    return options


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    flags = {"old": (), "new": tuple(options.new_agent_flags.split())}
    folders = {"old": os.path.abspath(options.baseline), "new": os.path.abspath(options.bin)}
    for folder in folders.values():
        testbed.check_programs(folder)
    os.makedirs(options.out, exist_ok=True)
    bed = testbed.Testbed(options.topology, options.host_mbit, options.uplink_mbit, bin_dir=folders["new"], log_level="warn",
                          logs=os.path.join(options.out, "logs"))
    turns = []
    with bench.await_machine(bed, options.wait):
        nodes = len(bed.description["hosts"])
        cases = [(op, requested_bytes, {"op": op, "bytes": bench.message_bytes(op, requested_bytes, nodes),
                              "reps": max(options.reps, bench.SMALL_REPS) if requested_bytes < bench.SMALL else options.reps})
                 for op in options.ops for requested_bytes in options.bytes]
        for number in range(options.turns):
            order = SIDES if number % 2 == 0 else SIDES[::-1]
            turns.append({side: turn(bed, folders[side], flags[side], cases, options) for side in order})
            print("turn %d of %d: new/old %s" % (number + 1, options.turns, " ".join(
                "%.3f" % (turns[-1]["new"][key]["seconds"] / turns[-1]["old"][key]["seconds"]) for key in turns[-1]["old"])), flush=True)
    report = {(op, requested_bytes): summarize(turns, (op, requested_bytes)) for op, requested_bytes, _ in cases}
    print(ROW % HEADINGS)
    for (op, requested_bytes), summary in report.items():
        print(row(op, requested_bytes, summary))
    with open(os.path.join(options.out, "report.json"), "w") as f:
        json.dump({"folders": folders, "topology": options.topology, "host_mbit": options.host_mbit, "uplink_mbit": options.uplink_mbit,
                   "cases": [{"op": op, "bytes": requested_bytes, **summary} for (op, requested_bytes), summary in report.items()]}, f, indent=1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError, ValueError, KeyError) as e:
        sys.exit("compare: %s" % e)
