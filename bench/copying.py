#!/usr/bin/python3
"""How long a file takes to all nodes of an emulated network, by every way of `cool copy` and by BitTorrent (docs/copy.md).

    sudo bench/copying.py                                        # 16 and 64 MiB, uplinks as fast as a host's link and twice as fast
    sudo bench/copying.py --bytes 16M --uplinks 40 --ways swarm,torrent --reps 5
    sudo bench/copying.py --slow 10                              # every second host's link with half the rate

Ways take turns, every copy is compared with the source, and times count from the command to the last copy; BitTorrent's from when all
connect, so its start, the hash of the file and the torrent are left out. It is tried with each piece size of --pieces. The limit is the file over the rate of a
host's link. Needs root, Debian's mininet, openvswitch-switch and ethtool, and for BitTorrent python3-libtorrent; the machine
must have nothing else to do.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import copies  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import processor  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402
import topologies  # noqa: E402

WAYS = ("tree", "chain", "swarm", "torrent")
DOCUMENT = os.path.join(ROOT, "docs", "copy.md")


def spread(bed, folder, size):
    """A file of random bytes in memory, on its way to all hosts."""
    path = os.path.join(folder, "source")
    with open(path, "wb") as f:
        for _ in range(0, size, 1 << 20):
            f.write(os.urandom(min(1 << 20, size - f.tell())))
    return copies.Spread(path, folder, bed.description)


def measured(bed, of, action):
    """What an action says, with the bytes on the busiest link between switches, over the file, and the idle share."""
    before, ticks = bed.link_bytes(), processor.machine_ticks()
    outcome = action()
    after, now = bed.link_bytes(), processor.machine_ticks()
    busiest = max(bed.between_switches({link: after[link] - before[link] for link in after}))
    return {**outcome, "uplink": busiest / of.size, "idle": processor.idle_share(ticks, now)}


def slow_down(bed, mbit):
    """Every second host but the first gets a slower link, both ways."""
    slow = [host["name"] for host in bed.description["hosts"][1::2]]
    for link in bed.network.net.links:
        if any(intf.node.name in slow for intf in (link.intf1, link.intf2)):
            bed.network.shape(link, mbit)
    return slow


def figures(options, size, uplink, runs, slow):
    """Of a way's runs: medians over the limit of a host's link, of fast and slow hosts apart."""
    limit = size * 8 / (options.host_mbit * 1e6)
    middle = lambda key: statistics.median(run[key] for run in runs)
    row = {"bytes": size, "uplink_mbit": uplink, "seconds": [run["seconds"] for run in runs], "over_limit": middle("seconds") / limit,
           "uplink": middle("uplink"), "idle": middle("idle")}
    if slow:
        last = lambda run, of: max(node["seconds"] for name, node in run["nodes"].items() if (name in slow) == of)
        row["fast_over_limit"] = statistics.median(last(run, False) for run in runs) / limit
        row["slow_over_limit"] = statistics.median(last(run, True) for run in runs) / (limit * options.host_mbit / options.slow)
    return row


def ways(options, bed, of):
    """What is tried, by name."""
    for way in options.ways:
        if way != "torrent":
            yield way, lambda way=way: of.by_cool(bed.environment(), "--via", way)
        else:
            for piece in options.pieces:
                yield "torrent, pieces of %s" % page.size(piece), lambda piece=piece: of.by_torrent(piece)


def on_network(options, uplink, say):
    """All ways on a network with uplinks of this rate."""
    bed = testbed.Testbed(options.topology, options.host_mbit, uplink, bin_dir=options.bin, log_level="warn", peer_timeout_ms=bench.PEER_TIMEOUT_MS,
                          logs=os.path.join(options.out, "logs"))
    with bench.started(bed, options.wait), tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        bed.wait_until_measured()
        slow = slow_down(bed, options.slow) if options.slow else []
        for size in options.bytes:
            of = spread(bed, folder, size)
            runs = {name: [] for name, _ in ways(options, bed, of)}
            for _ in range(options.reps):
                for name, action in ways(options, bed, of):
                    of.clear()
                    runs[name].append(measured(bed, of, action))
            for name, of_way in runs.items():
                say(name, figures(options, of.size, uplink, of_way, slow))
            of.clear()


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bytes", type=bench.list_of(bench.size), default=[16 << 20, 64 << 20], help="default 16M,64M")
    p.add_argument("--ways", type=bench.list_of(bench.one_of(WAYS)), default=list(WAYS), help="default %s" % ",".join(WAYS))
    p.add_argument("--uplinks", type=bench.list_of(float), default=[20.0, 40.0], help="rates of links between switches; default 20,40")
    p.add_argument("--slow", type=float, help="rate of every second host's link")
    p.add_argument("--pieces", type=bench.list_of(bench.size), default=[256 << 10], help="of BitTorrent; default 256K")
    p.add_argument("--reps", type=int, default=3, help="default %(default)s")
    p.add_argument("--topology", type=topologies.argument, default="tree:4x4", help=topologies.FORMS + "; default %(default)s")
    p.add_argument("--host-mbit", type=float, default=20, help="rate of host links; default %(default)s")
    p.add_argument("--docs", action="store_true", help="write the table into docs/copy.md")
    bench.add_run_options(p, "bench", "for copy.json and logs; ")
    return p.parse_args()


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    if "torrent" in options.ways and not copies.has_torrent():
        raise RuntimeError("no BitTorrent to measure: apt-get install python3-libtorrent, or leave it out of --ways")
    rows, lines = [], ["| file | uplinks | way | seconds | over limit | busiest uplink / file | idle |", "| --- | --: | --- | --: | --: | --: | --: |"]
    if options.slow:
        lines = ["| file | uplinks | way | seconds | fast hosts over their limit | slow hosts over theirs | busiest uplink / file | idle |",
                 "| --- | --: | --- | --: | --: | --: | --: | --: |"]
    print("\n".join(lines), flush=True)

    def say(way, row):
        over = "%.2f | %.2f" % (row["fast_over_limit"], row["slow_over_limit"]) if options.slow else "%.2f" % row["over_limit"]
        rows.append({"way": way, **row})
        lines.append("| %s | %g | %s | %.1f | %s | %.2f | %.0f %% |" % (
            page.size(row["bytes"]), row["uplink_mbit"], way, statistics.median(row["seconds"]), over, row["uplink"], 100 * row["idle"]))
        print(lines[-1], flush=True)

    for uplink in options.uplinks:
        on_network(options, uplink, say)
    with open(os.path.join(options.out, "copy.json"), "w", encoding="utf-8") as f:
        json.dump(rows, f, indent=1)
    if options.docs:
        section.replace(DOCUMENT, "slow copies" if options.slow else "copies", "\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except (testbed.Failure, peers.Failed, RuntimeError, OSError) as e:
        sys.exit("copy: %s" % e)
