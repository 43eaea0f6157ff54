#!/usr/bin/python3
"""Measures how collectives scale with the cluster, and how two jobs on the same links affect each
other (part of `make bench`).

    sudo bench/scaling.py                   # 2x2 to 8x8 nodes, and two jobs on 4x4
    sudo bench/scaling.py --topologies tree:2x2,tree:3x3 --ops bcast,allgather --reps 5

The data per node is constant: a message or vector of --bytes, or a part of --part. Both of the two
jobs run on all nodes; sharing is fair if their calls take twice as long as alone. With --docs, the
program writes its tables to docs/measurements/benchmarks.md. Needs root and Debian's mininet,
openvswitch-switch and ethtool. The machine must be idle otherwise.
"""
import argparse
import json
import os
import statistics
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
import topologies  # noqa: E402


def start_testbed(topology, options):
    bed = testbed.Testbed(topology, options.mbit, options.mbit, bin_dir=options.bin, log_level="warn", logs=os.path.join(options.out, "logs"))
    return bench.await_machine(bed, options.wait)


def total_bytes(op, bed, options):
    """Returns the bytes of the message, the vector, or the whole array."""
    return options.part * len(bed.description["hosts"]) if op in bench.IN_PARTS else options.bytes


def measure_growth(topology, options):
    """Measures every operation on one cluster and returns the figures."""
    with start_testbed(topology, options) as bed:
        bed.wait_until_measured()
        run = peers.Run(bed, "racked", bed.directory, options.timeout)
        nodes, measured = len(run.hosts), []
        for op in options.ops:
            requested_bytes = total_bytes(op, bed, options)
            limit_seconds = bench.limit(op, bench.message_bytes(op, requested_bytes, nodes), bed.description, options.mbit, options.mbit)
            figures = peers.Cool(options.bin).measure(run, {"op": op, "bytes": requested_bytes, "reps": options.reps})
            median = statistics.median(figures["seconds"])
            measured.append({"topology": topology, "nodes": nodes, "op": op, "bytes": requested_bytes, "seconds": figures["seconds"],
                             "over_limit": median / limit_seconds, "idle": figures["idle"]})
            print("| %s | %d | %s | %s | %.0f | %.2f | %.0f %% |" % (
                topology, nodes, op, page.size(requested_bytes), 1e3 * median, median / limit_seconds, 100 * figures["idle"]), flush=True)
        return measured


def measure_sharing(options):
    """Measures each operation with one job alone, then with two at once on the same nodes. Returns
    the figures."""
    cool = peers.Cool(options.bin)
    seconds = lambda process: cool.result(process, options.timeout)["seconds"]
    with start_testbed(options.shared, options) as bed:
        bed.wait_until_measured()
        measured = []
        for op in options.ops:
            case = {"op": op, "bytes": total_bytes(op, bed, options), "reps": options.calls}
            with cool.started(bed, case) as process:
                alone = statistics.median(seconds(process))
            with cool.started(bed, case) as one, cool.started(bed, case) as other:
                # The first call of one job may precede the start of the other, and its last calls
                # may follow the other's end.
                concurrent = [statistics.median(seconds(process)[1:-2]) for process in (one, other)]
            measured.append({"topology": options.shared, "op": op, "alone": alone, "together": concurrent})
            print("| %s | %.0f | %.2f | %.2f |" % (op, 1e3 * alone, *sorted(t / alone for t in concurrent)), flush=True)
        return measured


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--topologies", type=bench.list_of(topologies.argument), default=["tree:2x2", "tree:4x4", "tree:6x6", "tree:8x8"],
                   help="clusters; default tree:2x2,tree:4x4,tree:6x6,tree:8x8")
    p.add_argument("--shared", type=topologies.argument, default="tree:4x4", help="cluster of the two jobs; default %(default)s")
    p.add_argument("--ops", type=bench.list_of(bench.one_of(bench.OPS)), default=list(bench.OPS),
                   help="operations; default all six")
    p.add_argument("--bytes", type=bench.size, default=1 << 20,
                   help="length of a message or vector; default 1M")
    p.add_argument("--part", type=bench.size, default=32 << 10,
                   help="length of a node's part of a gather, allgather or scatter; default 32K")
    p.add_argument("--mbit", type=float, default=5,
                   help="rate of all links, low enough for 64 nodes on one machine; default %(default)s")
    p.add_argument("--reps", type=int, default=3, help="repetitions; default %(default)s")
    p.add_argument("--calls", type=int, default=8, help="calls of each of the two jobs; default %(default)s")
    p.add_argument("--timeout", type=int, default=240,
                   help="timeout of one operation in seconds; default %(default)s")
    p.add_argument("--docs", action="store_true",
                   help="write the tables to docs/measurements/benchmarks.md")
    bench.add_run_options(p, "bench", "directory for scaling.json and logs; ")
    options = p.parse_args()
    if options.reps < 1 or options.calls < 4 or options.mbit <= 0:
        p.error("--reps must be at least 1, --calls at least 4 and --mbit more than 0")
    return options


def tables(report, options):
    """Returns the section of the document."""
    ops = list(dict.fromkeys(figures["op"] for figures in report["growth"]))
    heads = lambda *columns: ["| %s |" % " | ".join([*columns, *ops]), "| --- |" + " --: |" * (len(columns) - 1 + len(ops))]
    lines = ["Measured %s: links of %g Mbit/s, a message or vector of %s, parts of %s per node, %d CPUs. Times over the limit, medians of %d; the idle share of the "
             "CPUs is in parentheses." % (time.strftime("%Y-%m-%d", time.gmtime()), options.mbit, page.size(options.bytes), page.size(options.part),
                                          os.cpu_count(), options.reps), "", *heads("cluster", "nodes")]
    for topology in options.topologies:
        row = {figures["op"]: figures for figures in report["growth"] if figures["topology"] == topology}
        cells = ["%.2f (%.0f %%)" % (row[op]["over_limit"], 100 * row[op]["idle"]) for op in ops]
        lines.append("| %s | %d | %s |" % (topology, row[ops[0]]["nodes"], " | ".join(cells)))
    lines += ["", "Two jobs on all nodes of %s: the time of each over that of one job alone, medians." % options.shared, "", *heads("job")]
    for number, job in enumerate(("one", "the other")):
        lines.append("| %s | %s |" % (job, " | ".join("%.2f" % (sorted(f["together"])[number] / f["alone"]) for f in report["sharing"])))
    return "\n".join(lines)


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    print("links of %g Mbit/s\n\n| cluster | nodes | operation | bytes | ms | time / limit | idle "
          "|" % options.mbit)
    print("| --- | --: | --- | --: | --: | --: | --: |", flush=True)
    report = {"mbit": options.mbit, "growth": [figures for topology in options.topologies for figures in measure_growth(topology, options)]}
    print("\ntwo jobs on %s\n\n| operation | alone, ms | one job: time / time alone | other job: "
          "time / time alone |" % options.shared)
    print("| --- | --: | --: | --: |", flush=True)
    report["sharing"] = measure_sharing(options)
    with open(os.path.join(options.out, "scaling.json"), "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)
    if options.docs:
        section.replace("benchmarks.md", "bench/scaling.py", tables(report, options))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError) as e:
        sys.exit("scaling: %s" % e)
