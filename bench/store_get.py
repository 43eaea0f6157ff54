#!/usr/bin/python3
"""Measures how long `cool get` takes from the stores of three other nodes, with equal links and
with a slow link of the nearest node (docs/measurements/copies.md).

    sudo bench/store_get.py        # 16 MiB on tree:2x2, links of 20 Mbit/s, then one of 5
    sudo bench/store_get.py --bytes 64M --reps 5 --docs

`auto` fetches the object from all three nodes together, `chain` from the one in the same rack. The
link of that node becomes slow only after the controller has measured it. The ways take turns. The
limit is the length of the object divided by the link rate of the receiving node.

Needs root and Debian's mininet, openvswitch-switch and ethtool. The machine must be idle otherwise.
"""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402

WAYS = ("chain", "auto")
NEXT, GETS = "h3", "h4"
HEAD = ["| bytes | holders | way | seconds | time / limit |", "| --- | --- | --- | --: | --: |"]


def run_store_command(bed, verb, folder, *arguments):
    """Runs a command on the stores and returns the JSON that it prints."""
    store = os.path.join(folder, "stores", "{node}")
    process = bed.run(["cool", verb, "--store", store, "--json", *arguments], capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError("cool %s: %s" % (verb, process.stderr.strip()[-300:]))
    return json.loads(process.stdout)


def rows(options, bed, folder, size, holders):
    seconds = {way: [] for way in WAYS}
    for rep in range(options.reps):
        for way in WAYS:
            dest = os.path.join(folder, "got")
            seconds[way].append(run_store_command(bed, "get", folder, "--nodes", GETS, "--via", way, str(size), dest)["seconds"])
            os.unlink(dest)
    for way in WAYS:
        median = statistics.median(seconds[way])
        yield "| %dM | %s | %s | %.1f | %.2f |" % (size >> 20, holders, way, median, median / (size / (options.host_mbit * 125_000)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bytes", type=bench.list_of(bench.size), default=[16 << 20],
                   help="lengths of the objects; default 16M")
    p.add_argument("--slow", type=float, default=5, metavar="MBIT", help="rate of the slow link; default %(default)g")
    p.add_argument("--host-mbit", type=float, default=20, help="rate of links; default %(default)g")
    p.add_argument("--reps", type=int, default=3, help="repetitions; default %(default)s")
    p.add_argument("--docs", action="store_true",
                   help="write the table to docs/measurements/copies.md")
    bench.add_run_options(p, "bench", "directory for logs; ")
    options = p.parse_args()
    testbed.unwind_on_signals()
    bed = testbed.Testbed("tree:2x2", options.host_mbit, options.host_mbit, 0.0, bin_dir=options.bin, log_level="warn",
                          peer_timeout_ms=bench.PEER_TIMEOUT_MS, logs=os.path.join(options.out, "logs"))
    lines = list(HEAD)
    print("\n".join(lines), flush=True)
    with bench.await_machine(bed, options.wait), tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        bed.wait_until_measured()
        for size in options.bytes:
            source = os.path.join(folder, "source")
            with open(source, "wb") as f:
                f.write(random.Random(size).randbytes(size))
            run_store_command(bed, "put", folder, "--from", "h1", "--nodes", "h1,h2," + NEXT, str(size), source)
        for holders in ("alike", "one at %g Mbit/s" % options.slow):
            for size in options.bytes:
                for row in rows(options, bed, folder, size, holders):
                    lines.append(row)
                    print(row, flush=True)
            slow = next(link for link in bed.network.net.links if NEXT in (link.intf1.node.name, link.intf2.node.name))
            bed.network.shape(slow, options.slow)
    if options.docs:
        section.replace("copies.md", "gets", "\n".join(lines))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, RuntimeError, OSError) as e:
        sys.exit("get: %s" % e)
