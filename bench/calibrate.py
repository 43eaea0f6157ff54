#!/usr/bin/python3
"""Compares the simulator's predictions with measurements (`make calibrate`); writes
docs/measurements/calibration.md.

    sudo bench/calibrate.py                         # about seven minutes
    sudo bench/calibrate.py --placements racked     # one half; keeps the rest in target/calibration

Runs every operation at 64 KiB, 512 KiB and 4 MiB with the planner's picks, on 16 nodes in 4 racks
with links of 20 Mbit/s. `cool bench` predicts each case by the costs that the controller knows, and
measures it. The machine must be idle otherwise. Needs root and Debian's mininet, openvswitch-switch
and ethtool.
"""
import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import page  # noqa: E402
import testbed  # noqa: E402

TOPOLOGY, MBIT = "tree:4x4", 20
OPS = "bcast,reduce,allreduce,gather,allgather,scatter,reduce_scatter,alltoall,scan,exscan"
# Sizes with repetitions: long ones need fewer.
SIZES = (("64K,512K", 5), ("4M", 3))
TOLERANCE = 0.25


def measure(bed, placement, ops, sizes):
    """Returns the figures of `cool bench`, with the costs behind its predictions."""
    figures = []
    for size, reps in sizes:
        process = bed.run(["cool", "bench", "--ops", ops, "--bytes", size, "--reps", str(reps), "--placement", placement, "--json"],
                       stdout=subprocess.PIPE, text=True)
        if process.returncode:
            raise RuntimeError("cool bench exited with status %d" % process.returncode)
        for result in json.loads(process.stdout)["results"]:
            print("%-12s %-15s %5s  %s" % (placement, result["op"], page.size(result["bytes"]), verdict(result)), flush=True)
            figures.append({**result, "placement": placement})
    return figures


def ratio(result):
    """Returns the predicted time divided by the measured time."""
    return result["predicted"] / result["median"]


def verdict(result):
    return "%7.1f ms predicted, %7.1f ms measured: %.2f  %s" % (1e3 * result["predicted"], 1e3 * result["median"], ratio(result), result["plan"])


def close(result):
    return abs(ratio(result) - 1) <= TOLERANCE


def count_close(results):
    return "%d of %d" % (sum(map(close, results)), len(results))


def document(parts):
    """Returns the page with all results."""
    results = [r for placement in bench.PLACEMENTS for r in parts.get(placement, {}).get("results", [])]
    lines = ["# Predictions next to measurements", "",
             "Written by `make calibrate` (`bench/calibrate.py`). The tables compare the time that the simulator predicts",
             "with the median that `cool bench` measured, next to the minimum and the maximum. Each operation runs with",
             "the planner's pick on %s in the emulated network, where all links have %d Mbit/s. Predictions use the" % (TOPOLOGY, MBIT),
             "costs that the controller knows (`cool topology`). Ranks are placed rack by rack (racked) or in turn over",
             "the racks (interleaved). Idle is the idle share of the CPUs, which all 16 nodes and 5 switches share. A low",
             "idle share means that the CPUs limited the measured time.", "",
             "**%s predictions are within %d %% of the measurement.**" % (count_close(results), 100 * TOLERANCE), ""]
    lines += ["| bytes | " + " | ".join(bench.PLACEMENTS) + " |", "| --- |" + " --- |" * len(bench.PLACEMENTS)]
    for size in sorted({r["bytes"] for r in results}):
        cells = [count_close([r for r in results if (r["bytes"], r["placement"]) == (size, p)]) for p in bench.PLACEMENTS]
        lines.append("| %s | %s |" % (page.size(size), " | ".join(cells)))
    for placement in (p for p in bench.PLACEMENTS if p in parts):
        part = parts[placement]
        lines += ["", "## %s" % placement.capitalize(), "", "%s, %d CPUs. Costs: `%s`" % (part["date"], part["processors"], json.dumps(part["model"])), "",
                  "| operation | bytes | plan | predicted, ms | measured, ms | minimum, ms | maximum, ms | predicted / measured | idle |",
                  "| --- | --: | --- | --: | --: | --: | --: | --: | --: |"]
        for r in sorted(part["results"], key=lambda r: (r["bytes"], OPS.split(",").index(r["op"]))):
            idle = "-" if r["idle"] is None else "%d %%" % round(100 * r["idle"])
            times = tuple(1e3 * r[key] for key in ("predicted", "median", "min", "max"))
            outside = "" if close(r) else " (!)"
            lines.append("| %s | %s | `%s` | %.1f | %.1f | %.1f | %.1f | %.2f%s | %s |"
                         % (r["op"], page.size(r["bytes"]), r["plan"], *times, ratio(r), outside, idle))
    return "\n".join(lines) + "\n"


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--placements", type=bench.list_of(bench.one_of(bench.PLACEMENTS)), default=list(bench.PLACEMENTS), help="default both")
    p.add_argument("--ops", default=OPS, 
                   help="measure these operations only, without writing the page")
    p.add_argument("--bytes", 
                   help="measure these sizes instead, without writing the page")
    bench.add_run_options(p, "calibration")
    p.add_argument("--page", default=os.path.join(ROOT, "docs", "measurements", "calibration.md"), help="default docs/measurements/calibration.md")
    return p.parse_args()


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    sizes = ((options.bytes, 3),) if options.bytes else SIZES
    bed = testbed.Testbed(TOPOLOGY, MBIT, MBIT, bin_dir=options.bin, log_level="warn", logs=os.path.join(options.out, "logs"))
    file = lambda placement: os.path.join(options.out, placement + ".json")
    with bench.await_machine(bed, options.wait):
        bed.wait_until_measured()
        model = bed.cool_json("topology")["measurements"]["cost_model"]
        print("costs: " + json.dumps(model), flush=True)
        for placement in options.placements:
            results = measure(bed, placement, options.ops, sizes)
            print("%s: %s within %d %%" % (placement, count_close(results), 100 * TOLERANCE), flush=True)
            if options.ops == OPS and not options.bytes:
                part = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "processors": os.cpu_count(), "model": model, "results": results}
                bench.write(file(placement), json.dumps(part, indent=1))
    if options.ops == OPS and not options.bytes:
        parts = {}
        for placement in bench.PLACEMENTS:
            if os.path.exists(file(placement)):
                with open(file(placement)) as f:
                    parts[placement] = json.load(f)
        bench.write(options.page, document(parts))
        print("wrote " + os.path.relpath(options.page))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, RuntimeError, OSError) as e:
        sys.exit("calibrate: %s" % e)
