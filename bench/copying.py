#!/usr/bin/python3
"""Measures how long it takes to copy a file to all nodes of an emulated network, by every way of
`cool copy` and by other programs (docs/measurements/copies.md).

    sudo bench/copying.py                          # 16 and 64 MiB, uplinks of 20 and 40 Mbit/s
    sudo bench/copying.py --bytes 16M --uplinks 40 --ways swarm,torrent --reps 5
    sudo bench/copying.py --slow 10                # halves the rate of every second host's link
    sudo bench/copying.py --kill 4 --seeds 20 --ways swarm,torrent --bytes 64M  # kills nodes
    sudo bench/copying.py --join 4 --ways swarm,torrent  # starts the agents of 4 nodes at half time
    sudo bench/copying.py --restart 4 --ways swarm,torrent  # kills and restarts them
    sudo bench/copying.py --loss 0.01,0.05,0.2     # drops packets at every receiver
    sudo bench/copying.py --delta --ways tree,swarm,rsync  # copies again after 1 % has changed
    sudo bench/copying.py --ways tree,chain,bcast  # compares with a broadcast from memory
    sudo bench/copying.py --ways tree,chain,swarm,rsync,rsync-tree,clush,sbcast
    sudo bench/copying.py --ways tree,swarm,udpcast,uftp

The ways take turns, and every copy is compared with the source. The time of COOL counts from the
start of the command to the last copy. The time of BitTorrent and other programs counts from when
all their daemons are ready; it excludes their start, the hash of the file and the torrent.
BitTorrent is measured with each piece size of --pieces, and sbcast with each fan-out of --fanouts.
The limit is the length of the file divided by the rate of a host's link.

Needs root, Debian's mininet, openvswitch-switch and ethtool, and the packages of the chosen ways:
python3-libtorrent, rsync, clustershell, openssh-server, slurmctld, slurmd, slurm-client, udpcast,
uftp (`make bench-copy` installs them). The machine must be idle otherwise.
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
import copies  # noqa: E402
import copy_faults  # noqa: E402
import copy_peers  # noqa: E402
import copy_tables  # noqa: E402
import peers  # noqa: E402
import cpu_time  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402
import topologies  # noqa: E402

BY_COOL = ("tree", "chain", "swarm", "auto")
DEFAULT_WAYS = ("tree", "chain", "swarm", "torrent")
WAYS = (*BY_COOL, "torrent", "bcast", *copy_peers.PEERS)
# Ways that send only the changed parts of a file again.
BY_DELTA = (*BY_COOL, "rsync", "rsync-tree")
CHANGED = 0.01


def random_file(folder, size):
    """Writes a file of random bytes, which cannot be compressed, and returns its path."""
    path = os.path.join(folder, "source")
    with open(path, "wb") as f:
        for _ in range(0, size, 1 << 20):
            f.write(os.urandom(min(1 << 20, size - f.tell())))
    return path


def new_distribution(options, bed, folder, size):
    """Returns the copies of a new file of random bytes in memory to all hosts."""
    return copies.Distribution(random_file(folder, size), folder, bed.description, options.patience)


def overwrite_part(distribution):
    """Overwrites one contiguous hundredth of the file with other random bytes."""
    with open(distribution.path, "r+b") as f:
        f.seek(random.Random(distribution.size).randrange(distribution.size - int(CHANGED * distribution.size)))
        f.write(os.urandom(int(CHANGED * distribution.size)))


def measure_links(bed, distribution, action):
    """Executes an action. Returns its outcome with the bytes on the busiest link between switches
    and on the source's link, both divided by the length of the file, and the idle share of the
    CPUs."""
    before, ticks_before = bed.link_bytes(), cpu_time.machine_ticks()
    outcome = action()
    after, ticks_after = bed.link_bytes(), cpu_time.machine_ticks()
    carried = {link: (after[link] - before[link]) / distribution.size for link in after}
    source = sum(share for (a, _), share in carried.items() if a == distribution.source["name"])
    return {**outcome, "uplink": max(bed.between_switches(carried)), "source": source, "idle": cpu_time.idle_share(ticks_before, ticks_after)}


def slow_down(bed, mbit):
    """Slows down the link of every second host, not of the first, in both directions. Returns the
    names of these hosts."""
    slow = [host["name"] for host in bed.description["hosts"][1::2]]
    for link in bed.network.net.links:
        if any(intf.node.name in slow for intf in (link.intf1, link.intf2)):
            bed.network.shape(link, mbit)
    for link in bed.description["links"]:
        if link["b"] in slow:
            link["mbit"] = mbit
    return slow


def limit(options, size):
    """Returns the least seconds that a copy can take."""
    return size * 8 / (options.host_mbit * 1e6)


def figures(options, distribution, runs, slow):
    """Returns the medians of the runs of one way. With slow hosts, the ratios to the limit are
    separate for fast and slow hosts."""
    limit_seconds = limit(options, distribution.size)
    median_of = lambda key: statistics.median(run[key] for run in runs)
    own_seconds = [max(node["own"] for node in run["nodes"].values()) for run in runs if run["nodes"]]
    row = {"seconds": [run["seconds"] for run in runs], "over_limit": median_of("seconds") / limit_seconds, "own": statistics.median(own_seconds) if own_seconds else None,
           "uplink": median_of("uplink"), "source": median_of("source"), "idle": median_of("idle"),
           "sent": median_of("sent") / distribution.size if all("sent" in run for run in runs) else None}
    if slow:
        last_seconds = lambda run, is_slow: max(node["seconds"] for name, node in run["nodes"].items() if (name in slow) == is_slow)
        row["fast_over_limit"] = statistics.median(last_seconds(run, False) for run in runs) / limit_seconds
        row["slow_over_limit"] = statistics.median(last_seconds(run, True) for run in runs) / (limit_seconds * options.host_mbit / options.slow)
    return row


def broadcast(bed, distribution):
    """Broadcasts as many bytes as the file has from the memory of the first node to all nodes."""
    output = peers.run_checked("cool", "bench", "--json", "--ops", "bcast", "--bytes", str(distribution.size), "--reps", "1", "--warmup", "0",
                              env=bed.environment(), timeout=distribution.patience)
    [result] = json.loads(output)["results"]
    return {"seconds": result["seconds"][0], "nodes": {}}


def ways(options, bed, distribution):
    """Yields the name of each measured way with a function that makes one copy."""
    for way in options.ways:
        if way in BY_COOL:
            yield way, lambda way=way: distribution.by_cool(bed.environment(), "--via", way)
        elif way == "torrent":
            for piece in options.pieces:
                yield copy_tables.torrent_title(piece), lambda piece=piece: distribution.by_torrent(piece)
        elif way == "sbcast":
            for fanout in options.fanouts:
                yield "sbcast, fan-out %d" % fanout, lambda fanout=fanout: copy_peers.Sbcast(bed, distribution, fanout).copy()
        elif way == "bcast":
            yield way, lambda: broadcast(bed, distribution)
        else:
            yield way, lambda way=way: copy_peers.PEERS[way](bed, distribution).copy()


def measure_in_turn(options, bed, distribution, slow, report):
    """Measures all ways in turn, `--reps` times. A way that has failed is not repeated."""
    runs, failed = {name: [] for name, _ in ways(options, bed, distribution)}, {}
    for _ in range(options.reps):
        for name, action in ways(options, bed, distribution):
            if name in failed:
                continue
            distribution.clear()
            try:
                if options.delta:
                    action()
                    overwrite_part(distribution)
                runs[name].append(measure_links(bed, distribution, action))
            except (peers.PeerError, RuntimeError) as e:
                failed[name] = str(e)
                print("%s failed: %s" % (name, e), file=sys.stderr, flush=True)
    for name, results in runs.items():
        report(name, {"failed": failed[name]} if name in failed else figures(options, distribution, results, slow))


def measure_with_faults(options, bed, distribution, report):
    """Measures all ways while nodes are disturbed."""
    measure = copy_faults.measure_killed if options.kill else copy_faults.measure_late
    for way in options.ways:
        for piece in options.pieces if way == "torrent" else [0]:
            distribution.patience = options.patience
            copy = copy_faults.copy_function(distribution, bed.environment(), way, piece)
            try:
                row = measure(copy_faults.FaultyCopies(bed, distribution, copy, limit(options, distribution.size), options.reps), options)
            except (peers.PeerError, RuntimeError) as e:
                row = {"failed": str(e)}
            report(copy_tables.torrent_title(piece) if piece else way, row)


def on_network(options, uplink, loss, report):
    """Measures all ways on a network with this rate of uplinks and this share of lost packets."""
    bed = testbed.Testbed(options.topology, options.host_mbit, uplink, loss, bin_dir=options.bin, log_level="warn", peer_timeout_ms=bench.PEER_TIMEOUT_MS,
                          logs=os.path.join(options.out, "logs"), controller_flags=("--unicast", options.unicast))
    with bench.await_machine(bed, options.wait), tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        bed.wait_until_measured()
        slow = slow_down(bed, options.slow) if options.slow else []
        for size in options.bytes:
            distribution = new_distribution(options, bed, folder, size)
            report_row = lambda way, row: report({"way": way, "bytes": distribution.size, "uplink_mbit": uplink, "loss": loss, **row})
            if copy_tables.has_faults(options):
                measure_with_faults(options, bed, distribution, report_row)
            else:
                measure_in_turn(options, bed, distribution, slow, report_row)
            distribution.clear()


def share(text):
    if not 0 <= float(text) <= 0.5:
        raise argparse.ArgumentTypeError("%r: expected a share from 0 to 0.5" % text)
    return float(text)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bytes", type=bench.list_of(bench.size), default=[16 << 20, 64 << 20],
                   help="lengths; default 16M,64M")
    p.add_argument("--ways", type=bench.list_of(bench.one_of(WAYS)),
                   help="among %s; default %s" % (", ".join(WAYS), ",".join(DEFAULT_WAYS)))
    p.add_argument("--uplinks", type=bench.list_of(float), default=[20.0, 40.0], help="rates of links between switches; default 20,40")
    case = p.add_mutually_exclusive_group()
    case.add_argument("--slow", type=float, metavar="MBIT", help="rate of every second host's link")
    case.add_argument("--kill", type=int, metavar="N",
                   help="kill N receivers at random moments; in further copies, kill the source")
    case.add_argument("--join", type=int, metavar="N",
                   help="start the agents of N nodes after half the time of an undisturbed copy")
    case.add_argument("--restart", type=int, metavar="N",
                   help="kill N nodes after half the time of an undisturbed copy and restart them "
                   "at once")
    case.add_argument("--loss", type=bench.list_of(share), metavar="SHARE,...",
                   help="shares of packets that are dropped at every receiver")
    case.add_argument("--delta", action="store_true",
                   help="measure a second copy, after 1 %% of the file has changed in one place")
    p.add_argument("--seeds", type=int, default=3,
                   help="number of copies with --kill (of each kind), --join and --restart; "
                   "default %(default)s")
    p.add_argument("--source-leaves", type=float, default=1.05, metavar="COPIES",
                   help="kill the source after it has sent this many copies of the file; default "
                   "%(default)s")
    p.add_argument("--pieces", type=bench.list_of(bench.size), default=[256 << 10],
                   help="piece sizes of BitTorrent; default 256K")
    p.add_argument("--fanouts", type=bench.list_of(int), default=[2],
                   help="fan-outs of sbcast, 1 to 8; default 2")
    p.add_argument("--unicast", choices=["routed", "normal"], default="routed",
                   help="whether COOL forwards unicast, or the switches do, which then flood "
                   "multicast; default %(default)s")
    p.add_argument("--reps", type=int, default=3, help="copies by each way; default %(default)s")
    p.add_argument("--topology", type=topologies.argument, default="tree:4x4", help=topologies.FORMS + "; default %(default)s")
    p.add_argument("--host-mbit", type=float, default=20, help="rate of host links; default %(default)s")
    p.add_argument("--patience", type=float, default=copies.PATIENCE,
                   help="timeout of one copy in seconds; default %(default)g")
    p.add_argument("--docs", action="store_true", help="write the table into docs/measurements/copies.md")
    bench.add_run_options(p, "bench", "directory for copy.json and logs; ")
    options = p.parse_args()
    options.ways = options.ways or [way for way in DEFAULT_WAYS if way in BY_DELTA or not options.delta]
    unsupported = [way for way in options.ways if copy_tables.has_faults(options) and way not in (*BY_COOL, "torrent") or options.delta and way not in BY_DELTA
             or options.slow and way == "bcast"]
    if unsupported:
        p.error("cannot measure these ways here: %s" % ", ".join(unsupported))
    if min(options.reps, options.seeds) < 1:
        p.error("--reps and --seeds must be at least 1")
    return options


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    for way in options.ways:
        copy_peers.check_installed(way)
    table, rows = copy_tables.Table(options), []
    print("\n".join(table.lines), flush=True)

    def report(row):
        rows.append(row)
        print(table.add(row), flush=True)

    for uplink in options.uplinks:
        for loss in options.loss or [0.0]:
            on_network(options, uplink, loss, report)
    with open(os.path.join(options.out, "copy.json"), "w", encoding="utf-8") as f:
        json.dump(rows, f, indent=1)
    if options.docs:
        section.replace("copies.md", copy_tables.section(options), "\n".join(table.lines))
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError) as e:
        sys.exit("copy: %s" % e)
