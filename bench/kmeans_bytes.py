#!/usr/bin/python3
"""Measures the bytes on the busiest link in one iteration of K-means on the emulated network, and
compares them with the count of the program.

    sudo bench/kmeans_bytes.py     # iterations 1 and 20 of 47,488 points, 6,400 clusters
    sudo bench/kmeans_bytes.py --bin OLD/target/release --options=   # programs without --init
    sudo bench/kmeans_bytes.py points.npy -k 100 --iteration 5

The bytes of iteration i on a link are the difference between a run of i iterations and a run of i -
1. All runs use one network with the same placement of ranks and the same first centroids, so
loading, seeding, and the final phase cancel out. Retransmissions (of packets that the software
switch dropped) and pings still differ between runs. Therefore --repeat runs are made of each kind,
and two figures are reported for each link: the median, and the minimum, which contains the fewest
retransmissions. Link bytes include packet headers and acknowledgments, whereas the program counts
payload. --kinds captures the packets of the busiest link in as many further runs and classifies
them.

The default points are the middle 8 x 8 pixels of Fashion-MNIST's first pictures (Debian's
dataset-fashion-mnist). Needs root and Debian's mininet, openvswitch-switch and ethtool.
"""
import argparse
import collections
import contextlib
import gzip
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import network  # noqa: E402
import testbed  # noqa: E402
import topologies  # noqa: E402

FASHION = "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz"
# Side of a picture and of the part that is used, in pixels.
SIDE, PART = 28, 8
# Points per cluster in the papers.
POINTS_PER_CLUSTER = 7.42


# Types of the agents' datagrams (core/transport/src/packet.rs).
DATAGRAMS = {1: "stream: data", 2: "stream: announce", 3: "stream: NAK", 4: "stream: confirm", 5: "stream: report", 6: "stream: settled",
             8: "ping", 9: "ping"}
MAGIC, ETHERNET, ALL_PROTOCOLS, OUTGOING = b"\xc0\x01", 14, 3, 4


def classify(frame):
    """Returns the kind of a packet and the number of its payload bytes: those after the TCP header,
    or after the agents' own header in their datagrams."""
    ethertype, = struct.unpack_from("!H", frame, 12)
    if ethertype != 0x0800:
        return {0x88cc: "LLDP", 0x0806: "ARP"}.get(ethertype, "other"), 0
    ip = frame[ETHERNET:]
    protocol, head, length = ip[9], 4 * (ip[0] & 15), struct.unpack_from("!H", ip, 2)[0]
    if protocol == 6:
        payload = length - head - 4 * (ip[head + 12] >> 4)
        return "TCP, with payload" if payload else "TCP, without payload", payload
    if protocol == 17 and ip[head + 8:head + 10] == MAGIC:
        name = DATAGRAMS.get(ip[head + 11], "other datagram")
        return name, length - head - 8 - 48 if name == "stream: data" else 0
    return "other datagram" if protocol == 17 else "other", 0


@contextlib.contextmanager
def capture(interface, outgoing):
    """Captures the packets that pass an interface in one direction during the context. Yields the
    number of packets, bytes, and payload bytes by kind."""
    kinds, ended = collections.defaultdict(lambda: [0, 0, 0]), threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        tap.bind((interface, 0))
        tap.settimeout(0.2)

        def listen():
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    frame, (_, _, direction, _, _) = tap.recvfrom(65536)
                    if (direction == OUTGOING) == outgoing:
                        name, payload = classify(frame)
                        kinds[name] = [total + increment for total, increment in zip(kinds[name], (1, len(frame), payload))]

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield kinds
        finally:
            ended.set()
            listener.join()


def write_points(path, count):
    """Writes an .npy array of bytes with the middle of each of the first `count` pictures."""
    with gzip.open(FASHION) as f:
        f.read(16)
        pictures = [f.read(SIDE * SIDE) for _ in range(count)]
    first = (SIDE - PART) // 2
    rows = (picture[row * SIDE + first:][:PART] for picture in pictures for row in range(first, first + PART))
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d), }\n" % (count, PART * PART)
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"".join(rows))


def run(options, bed, points, iterations):
    """Runs cool-kmeans. Returns the bytes and packets on each link direction, and the summary of
    the run."""
    summary = os.path.join(bed.directory, "summary.json")
    command = ["cool", "run", "-n", str(options.ranks), "--", os.path.join(options.bin, "cool-kmeans"), *options.command.split(), "-k", str(options.k)]
    command += ["--sample", "1", *options.options.split(), "-i", str(iterations), "--summary", summary, points]
    before = [network.link_counters(bed.description, unit) for unit in ("bytes", "packets")]
    bed.run(command, check=True, stdout=subprocess.DEVNULL, stderr=None if options.verbose else subprocess.DEVNULL)
    after = [network.link_counters(bed.description, unit) for unit in ("bytes", "packets")]
    with open(summary) as f:
        result = json.load(f)
    if result["iterations"] != iterations:
        raise testbed.Failure("the clustering converged after %d of %d iterations; use more "
                              "points" % (result["iterations"], iterations))
    return {ends: tuple(new[ends] - old[ends] for old, new in zip(before, after)) for ends in after[0]}, result


def measure(options, bed, points, iteration):
    """Returns the bytes and packets of the busiest link in this iteration, by medians and by minima
    of the runs, and the count of the program, or None if it has none."""
    runs = {iteration - 1: [], iteration: []}
    for _ in range(options.repeat):
        for iterations, counters in runs.items():
            carried, summary = run(options, bed, points, iterations)
            counters.append(carried)

    def busiest(of_runs):
        """Returns the figures of the busiest link and its ends. `of_runs` summarizes the runs of
        each kind."""
        def difference(ends, unit):
            after, before = (of_runs(counters[ends][unit] for counters in runs[i]) for i in (iteration, iteration - 1))
            return after - before

        links = {ends: (carried(ends, 0), carried(ends, 1)) for ends in runs[iteration][0]}
        if options.verbose:
            for ends, figures in sorted(links.items()):
                print("%16s %10d bytes %8d packets" % ("%s to %s" % ends, *figures))
        return max((figures, ends) for ends, figures in links.items())

    reported = summary.get("busiest_link_bytes", [])[iteration - 1:]
    (median, ends), (least, _) = busiest(statistics.median), busiest(min)
    if options.kinds:
        show_kinds(options, bed, points, iteration, ends)
    return median, least, reported[0] if reported else None


def show_kinds(options, bed, points, iteration, ends):
    """Prints the kinds of packets that a link carries in this iteration, as medians over runs."""
    link = next(link for link in bed.description["links"] if {link["a"], link["b"]} == set(ends))
    runs = {iteration - 1: [], iteration: []}
    for _ in range(options.repeat):
        for iterations, kinds_of_run in runs.items():
            with capture(link["a_intf"], ends[0] == link["a"]) as kinds:
                run(options, bed, points, iterations)
            kinds_of_run.append(kinds)
    print("%s to %s, iteration %d:" % (*ends, iteration))
    for name in sorted({name for kinds_of_run in runs.values() for kinds in kinds_of_run for name in kinds}):
        after, before = ([statistics.median(kinds[name][i] for kinds in runs[number]) for i in range(3)] for number in (iteration, iteration - 1))
        print("%20s %7d packets %10d bytes %10d payload bytes"
              % (name, *(b - c for b, c in zip(after, before))))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("points", nargs="?", help="an .npy array that all hosts can read")
    p.add_argument("-k", type=int, default=6400, help="clusters (%(default)s)")
    p.add_argument("--iteration", type=int, action="append",
                   help="iterations to measure (1 and 20)")
    p.add_argument("--repeat", type=int, default=5, help="runs of each kind (%(default)s)")
    p.add_argument("--topology", type=topologies.argument, default="tree:4x4", help=topologies.FORMS + "; default %(default)s")
    p.add_argument("--mbit", type=float, default=50, help="rate of every link (%(default)s)")
    p.add_argument("--ranks", type=int, default=16)
    p.add_argument("--bin", default=testbed.BIN, help="directory of the programs (%(default)s)")
    p.add_argument("--command", default="",
                   help="subcommand of cool-kmeans, for example fit; default none")
    p.add_argument("--options", default="--init random",
                   help="further options of cool-kmeans (%(default)s)")
    p.add_argument("--wait", type=float, default=600, help="seconds to wait for another testbed on this machine (%(default)s)")
    p.add_argument("--kinds", action="store_true",
                   help="also classify the packets of the busiest link")
    p.add_argument("--verbose", action="store_true",
                   help="print the figures of all links and the output of the program")
    options = p.parse_args()
    options.bin = os.path.abspath(options.bin)
    testbed.unwind_on_signals()
    with tempfile.TemporaryDirectory() as folder:
        points = os.path.abspath(options.points) if options.points else os.path.join(folder, "points.npy")
        if not options.points:
            write_points(points, int(options.k * POINTS_PER_CLUSTER))
        with bench.await_machine(testbed.Testbed(options.topology, options.mbit, options.mbit, bin_dir=options.bin, log_level="warn"), options.wait) as bed:
            bed.wait_until_measured()
            run(options, bed, points, 1)
            print("%9s %20s %8s %20s %8s %9s" % ("iteration", "bytes: medians, least", "", "packets", "", "counted"))
            for iteration in options.iteration or [1, 20]:
                (median, packets), (least, least_packets), reported = measure(options, bed, points, iteration)
                comparison = "%9d: %.3f, %.3f times" % (reported, median / reported, least / reported) if reported else ""
                print("%9d %20d %8d %20d %8d %s" % (iteration, median, least, packets, least_packets, comparison), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (testbed.Failure, subprocess.CalledProcessError, OSError) as e:
        sys.exit("kmeans_bytes: %s" % e)
