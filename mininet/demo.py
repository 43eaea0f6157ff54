#!/usr/bin/python3
"""The demonstration, run inside the testbed (`make demo`): K-means over photographs, a broadcast
with the bytes on each link, and a file copied to all nodes.

    sudo mininet/testbed.py --topology tree:4x4 --host-mbit 20 --uplink-mbit 20 -- mininet/demo.py

Writes summary.json and report.html to target/demo (--out names another directory). Needs the
photographs of Debian's package lomiri-wallpapers-16.04, or others named with --photographs. Also
copies by BitTorrent if Debian's python3-libtorrent is installed.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
import copies  # noqa: E402
import demo_page  # noqa: E402
import network  # noqa: E402
import testbed  # noqa: E402

PACKAGE = "lomiri-wallpapers-16.04"
MESSAGE = 8 << 20
LEAST_POINTS = 100_000
# Bytes of a BitTorrent piece.
PIECE = 256 << 10


class Failure(Exception):
    """An error that the user should see, in one line."""


def heading(text):
    print("\n== %s" % text, flush=True)


def run(*command, capture=False):
    """Runs a command that must succeed; prints its output, or returns it."""
    process = subprocess.run(command, stdout=subprocess.PIPE if capture else None, text=True)
    if process.returncode:
        raise Failure("%s ended with status %d" % (" ".join(command[:4]), process.returncode))
    return process.stdout


def photographs(paths):
    """Returns the pictures to cluster."""
    if paths:
        return paths
    process = subprocess.run(["dpkg", "-L", PACKAGE], capture_output=True, text=True)
    pictures = sorted(f for f in process.stdout.split("\n") if f.lower().endswith((".jpg", ".jpeg", ".png")) and os.path.isfile(f))
    if not pictures:
        raise Failure("no photographs: apt-get install %s, or name some with --photographs" % PACKAGE)
    return pictures


def measured(description, action):
    """Returns the result of an action, and the bytes that each link carried during it, by (from,
    to)."""
    before = network.link_bytes(description)
    result = action()
    after = network.link_bytes(description)
    return result, {link: after[link] - before[link] for link in after}


def cluster(options, ranks, out):
    """Runs K-means on the nodes; returns the figures that it wrote."""
    files = {name: os.path.join(out, name) for name in ("kmeans.json", "words.json", "centroids.npy")}
    program = shutil.which("cool-kmeans")
    if not program:
        raise Failure("cool-kmeans is missing next to the testbed's other programs: cargo build "
                      "--release --workspace")
    run("cool", "run", "-n", str(ranks), "--", program,
        "--clusters", str(options.clusters), "--iterations", str(options.iterations), "--threads", "1", "--assign", "bounds",
        "--patch", str(options.patch), "--stride", str(options.stride), "--word-count", "32",
        "--summary", files["kmeans.json"], "--words", files["words.json"], "--centroids", files["centroids.npy"],
        *photographs(options.photographs))
    with open(files["kmeans.json"]) as f:
        return json.load(f)


def broadcast():
    """Runs one broadcast over all nodes, checked on every rank; returns its figures."""
    report = json.loads(run("cool", "bench", "--ops", "bcast", "--bytes", str(MESSAGE), "--reps", "1", "--warmup", "0",
                            "--json", capture=True))
    return report["results"][0]


def message_path(description, carried):
    """Returns the root and the links (from, to) by which the message reached every node. The root
    is the host that sent the most bytes. The predecessor of every other node or switch is, among
    the neighbors nearer to the root, the one from which it received the most bytes."""
    hosts = [h["name"] for h in description["hosts"]]
    neighbors = {}
    for link in description["links"]:
        neighbors.setdefault(link["a"], []).append(link["b"])
        neighbors.setdefault(link["b"], []).append(link["a"])
    root = max(hosts, key=lambda h: sum(carried[h, n] for n in neighbors[h]))
    distance, reached = {root: 0}, [root]
    for node in reached:
        for neighbor in neighbors[node]:
            if neighbor not in distance:
                distance[neighbor] = distance[node] + 1
                reached.append(neighbor)
    predecessors = {}
    for neighbor in reached[1:]:
        nearer = [n for n in neighbors[neighbor] if distance[n] < distance[neighbor]]
        predecessors[neighbor] = max(nearer, key=lambda n: carried[n, neighbor])
    path = []
    for host in hosts:
        node = host
        while node != root and (predecessors[node], node) not in path:
            path.append((predecessors[node], node))
            node = predecessors[node]
    return root, sorted(path, key=lambda link: (distance[link[0]], reached.index(link[0]), reached.index(link[1])))


def rows(carried, path):
    """Returns a row for each direction of each link. The directions on the message's path are
    first."""
    others = [link for link in carried if link not in path]
    return [{"from": a, "to": b, "bytes": carried[a, b], "minimum": MESSAGE if (a, b) in path else 0} for a, b in [*path, *others]]


def print_links(figures):
    """Prints the table at the end of the demonstration."""
    heading("A broadcast of %.0f MiB: bytes on every link, next to the minimum" % (MESSAGE / 2**20))
    print("%-12s %12s %12s %7s %16s" % ("link", "bytes", "minimum", "times", "bytes back"))
    back = {(r["to"], r["from"]): r["bytes"] for r in figures["links"]}
    for r in demo_page.message_rows(figures["links"]):
        times = "%.3f" % (r["bytes"] / r["minimum"]) if r["minimum"] else "-"
        print("%-12s %12d %12d %7s %16d" % ("%s -> %s" % (r["from"], r["to"]), r["bytes"], r["minimum"], times,
                                             back[r["from"], r["to"]]))
    print("most on a link: %.3f times the message; %.2f s%s, %d chunks retransmitted" % (
        figures["most"], figures["seconds"],
        ", %.2f times the least possible" % figures["over_limit"] if figures["over_limit"] else "", figures["repairs"]))


def copy_methods(distribution):
    """Returns the methods of copying the file: the name of each, and its function."""
    yield "cool copy", lambda: distribution.by_cool(os.environ)
    yield "cool copy --via swarm", lambda: distribution.by_cool(os.environ, "--via", "swarm")
    if copies.has_torrent():
        yield demo_page.TORRENT, lambda: distribution.by_torrent(PIECE)


def copy_file(file, description, rack_of):
    """Copies a file from the first node to all others, by each method; returns the figures."""
    with tempfile.TemporaryDirectory(prefix="cool-demo-", dir="/dev/shm") as folder:
        distribution = copies.Distribution(file, folder, description)
        slowest = min(link["mbit"] for link in description["links"] if link["kind"] == "host")
        limit = distribution.size * 8 / (slowest * 1e6) if slowest else None
        ways = []
        for name, action in copy_methods(distribution):
            distribution.clear()
            outcome, carried = measured(description, action)
            nodes = [{"node": node, "rack": rack_of[node], **figures} for node, figures in outcome.pop("nodes").items()]
            most = max(network.between_switches(description, carried), default=0)
            ways.append({"name": name, **outcome, "over_limit": outcome["seconds"] / limit if limit else None,
                         "most": most / distribution.size, "nodes": nodes})
        return {"file": os.path.basename(distribution.path), "bytes": distribution.size, "from": distribution.source["name"], "mbit": slowest, "limit": limit, "ways": ways}


def print_copies(figures):
    """Prints the table of copies, with a column for each method."""
    heading("A file of %.1f MiB (`%s`) from %s to %d others: seconds until each had its copy" % (
        figures["bytes"] / 2**20, figures["file"], figures["from"], len(figures["ways"][0]["nodes"])))
    row = lambda title, cells: print("%-22s" % title + "".join(" %22s" % cell for cell in cells))
    row("node", [way["name"] for way in figures["ways"]])
    for node, rack, seconds in demo_page.by_node(figures["ways"]):
        row("%s (rack %d)" % (node, rack), ["%.2f" % s for s in seconds])
    row("all", ["%.2f" % way["seconds"] for way in figures["ways"]])
    if figures["limit"]:
        row("over the limit, %.2f s" % figures["limit"], ["%.2f" % way["over_limit"] for way in figures["ways"]])
    row("busiest uplink / file", ["%.2f" % way["most"] for way in figures["ways"]])
    if not copies.has_torrent():
        print("(to add BitTorrent: %s)" % demo_page.HOW_TO_ADD_TORRENT)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", default=os.path.join(testbed.TARGET, "demo"),
                   help="directory for the results (%(default)s)")
    p.add_argument("--clusters", type=int, default=256, help="default %(default)s")
    p.add_argument("--iterations", type=int, default=10, help="default %(default)s")
    p.add_argument("--patch", type=int, default=80, help="side of a patch in pixels (%(default)s)")
    p.add_argument("--stride", type=int, default=32,
                   help="distance of patches in pixels (%(default)s)")
    p.add_argument("--photographs", nargs="+", metavar="FILE",
                   help="pictures or directories instead of those of " + PACKAGE)
    p.add_argument("--file", default=shutil.which("cool"),
                   help="file to copy; default: the program cool, because it always exists")
    return p.parse_args()


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    if "COOL_TESTBED" not in os.environ:
        raise Failure("this program runs inside the testbed: make demo, or mininet/testbed.py ... "
                      "-- mininet/demo.py")
    with open(os.environ["COOL_TESTBED"]) as f:
        description = json.load(f)
    out = os.path.abspath(options.out)
    os.makedirs(out, exist_ok=True)
    ranks = len(description["hosts"])

    heading("The network as the controller discovered it")
    run("cool", "topology")
    topology = json.loads(run("cool", "topology", "--json", capture=True))
    names = {s["dpid"]: s["name"] for s in description["switches"]}
    for switch in topology["switches"]:
        switch["name"] = names[switch["datapath_id"]]  # the name that counters use

    heading("K-means by %d ranks over %d nodes: visual words of photographs" % (ranks, ranks))
    summary, carried = measured(description, lambda: cluster(options, ranks, out))
    if not options.photographs and summary["points"] < LEAST_POINTS:
        raise Failure("only %d vectors were clustered, expected %d at least" % (summary["points"], LEAST_POINTS))

    figures, carried_by_broadcast = measured(description, broadcast)
    root, path = message_path(description, carried_by_broadcast)
    links = rows(carried_by_broadcast, path)
    summary.update({
        "repairs": summary["network"]["chunks_repaired"],
        "link_bytes": [{"from": a, "to": b, "bytes": n} for (a, b), n in carried.items()],
        "broadcast": {"bytes": MESSAGE, "root": root, "seconds": figures["median"], "limit": figures["limit"],
                      "over_limit": figures["over_limit"], "repairs": figures["chunks_repaired"],
                      "most": max(r["bytes"] for r in links) / MESSAGE, "links": links},
    })
    print_links(summary["broadcast"])
    summary["copies"] = copy_file(options.file, description, {node["name"]: node["rack"] for node in topology["nodes"]})
    print_copies(summary["copies"])
    with open(os.path.join(out, "summary.json"), "w") as f:
        json.dump(summary, f, indent=1)
    with open(os.path.join(out, "words.png"), "rb") as f:
        mosaic = f.read()
    with open(os.path.join(out, "report.html"), "w", encoding="utf-8") as f:
        f.write(demo_page.page(summary, topology, description, mosaic))
    heading("Written: %s" % ", ".join(os.path.relpath(os.path.join(out, n), ROOT) for n in ("summary.json", "report.html")))


if __name__ == "__main__":
    try:
        main()
    except (Failure, RuntimeError, OSError, ValueError, KeyError) as e:
        sys.exit("demo: %s" % e)
