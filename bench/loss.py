#!/usr/bin/python3
"""Measures the cost of packet loss for a broadcast on an emulated network: time over the limit, and
bytes on links (part of `make bench`).

    sudo bench/loss.py                        # 0, 1, 5 and 20 % loss, and the chain alone
    sudo bench/loss.py --loss 0.05 --bytes 4M --reps 3

Every receiving host drops packets at random. With `chain alone`, hosts drop all multicast although
there is a tree. Uplinks may carry (1 + 3 x loss) times the message, not counting headers. With
--docs, the program writes its table to docs/measurements/benchmarks.md.

Needs root and Debian's mininet, openvswitch-switch and ethtool. The machine must be idle otherwise.
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

# Bytes of a full packet on a link divided by its payload, at MTU 1500, with Ethernet, IPv4, UDP,
# and COOL's headers.
FRAMES = 1514 / 1424
# Goals for the ratio of the time to the limit, by loss.
TARGETS = {0: 1.08, 0.01: 1.25, 0.05: 1.6, 0.2: 4.0, None: 1.35}


def loss_title(loss):
    return "chain alone" if loss is None else "%g %%" % (100 * loss)


def measure(options, loss):
    """Measures broadcasts on a network with this loss. Returns their seconds, their ratio to the
    limit, and the bytes on uplinks per broadcast."""
    bed = testbed.Testbed(options.topology, options.mbit, options.mbit, loss or 0, bin_dir=options.bin, log_level="warn",
                          logs=os.path.join(options.out, "logs"))
    with bench.await_machine(bed, options.wait):
        if loss is None:
            for host in bed.network.net.hosts:
                bed.network.set_multicast(host, False)
        bed.wait_until_measured()
        run = peers.Run(bed, options.placement, bed.directory, options.timeout)
        before = bed.link_bytes()
        case = {"op": "bcast", "bytes": options.bytes, "reps": options.reps}
        figures = peers.Cool(options.bin).measure(run, case)
        after = bed.link_bytes()
        # The counters include one additional broadcast for warming up.
        carried = {ends: (after[ends] - before[ends]) / (options.reps + 1) for ends in after}
        uplink_bytes = bed.between_switches(carried)
        limit_seconds = bench.limit("bcast", options.bytes, bed.description, options.mbit, options.mbit)
    ratio = statistics.median(figures["seconds"]) / limit_seconds
    return {"loss": loss, "seconds": figures["seconds"], "over_limit": ratio, "target": TARGETS.get(loss), "idle": figures["idle"],
            "uplink_most": max(uplink_bytes) / options.bytes, "uplinks_all": sum(uplink_bytes) / options.bytes,
            "uplink_allowed": None if loss is None else FRAMES * (1 + 3 * loss), "chunks_repaired": figures["chunks_repaired"]}


def row(figures):
    target = "%.2f" % figures["target"] if figures["target"] else "-"
    allowed = "%.3f" % figures["uplink_allowed"] if figures["uplink_allowed"] else "-"
    seconds = [1e3 * s for s in figures["seconds"]]
    return "| %s | %.0f | %.0f to %.0f | %.2f | %s | %.3f | %s | %.0f %% |" % (
        loss_title(figures["loss"]), statistics.median(seconds), min(seconds), max(seconds), figures["over_limit"], target,
        figures["uplink_most"], allowed, 100 * figures["idle"])


def parse_loss(text):
    if text == "chain":
        return None
    share = float(text)
    if not 0 <= share <= 0.5:
        raise argparse.ArgumentTypeError("%r: expected a share from 0 to 0.5, or `chain`" % text)
    return share


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--loss", type=bench.list_of(parse_loss), default=[0, 0.01, 0.05, 0.2, None], 
                   help="shares that every receiver drops, or `chain` for no multicast; default "
                   "0,0.01,0.05,0.2,chain")
    p.add_argument("--bytes", type=bench.size, default=8 << 20,
                   help="length of the message; default 8M")
    p.add_argument("--reps", type=int, default=5, help="repetitions; default %(default)s")
    p.add_argument("--topology", type=topologies.argument, default="tree:4x4", help=topologies.FORMS + "; default %(default)s")
    p.add_argument("--mbit", type=float, default=20, help="rate of all links; default %(default)s")
    p.add_argument("--placement", type=bench.one_of(bench.PLACEMENTS), default="racked",
                   help="placement of ranks; default %(default)s")
    p.add_argument("--timeout", type=int, default=240,
                   help="timeout for one loss rate in seconds; default %(default)s")
    p.add_argument("--docs", action="store_true",
                   help="write the table to docs/measurements/benchmarks.md")
    bench.add_run_options(p, "bench", "directory for loss.json and logs; ")
    return p.parse_args()


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    lines = ["Measured %s: %d broadcasts of %s on %s, %g Mbit/s, %s, %d CPUs." % (
        time.strftime("%Y-%m-%d", time.gmtime()), options.reps, page.size(options.bytes), options.topology, options.mbit, options.placement, os.cpu_count()),
        "", "| lost | ms | range, ms | time / limit | goal | bytes on busiest uplink / message | allowed | idle |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |"]
    print("\n".join(lines), flush=True)
    measured = []
    for share in options.loss:
        try:
            measured.append(measure(options, share))
            lines.append(row(measured[-1]))
        except peers.PeerError as e:
            measured.append({"loss": share, "failed": str(e)})
            lines.append("| %s | failed: %s |" % (loss_title(share), " ".join(str(e).split())))
        print(lines[-1], flush=True)
    with open(os.path.join(options.out, "loss.json"), "w", encoding="utf-8") as f:
        json.dump(measured, f, indent=1)
    if options.docs:
        section.replace("benchmarks.md", "bench/loss.py", "\n".join(lines))
    return int(any("failed" in figures for figures in measured))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError) as e:
        sys.exit("loss: %s" % e)
