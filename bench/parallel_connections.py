#!/usr/bin/python3
"""Measures broadcasts where the network limits each flow (5-tuple) to a part of the link.

    sudo bench/parallel_connections.py --connections 1,8

Nodes are at bridges without multicast. The limit is the time that the whole link needs. Needs root,
Debian's mininet, ethtool and iptables, and an idle machine.
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "mininet")]
import bench  # noqa: E402
import testbed  # noqa: E402


def measure(options, connections):
    """Returns the times of broadcasts over the limit."""
    flags = ("--network", "plain", "--connections-per-hop", str(connections))
    bed = testbed.Testbed(options.topology, options.mbit, options.mbit, bin_dir=options.bin, log_level="warn", switches="bridge",
                          peer_timeout_ms=bench.PEER_TIMEOUT_MS, controller_flags=flags, flow_mbit=options.mbit / options.parts)
    with bed:
        bed.wait_until_measured()
        command = ["cool", "bench", "--json", "--ops", "bcast", "--bytes", str(options.bytes), "--reps", str(options.reps), "--warmup", "1"]
        [result] = json.loads(bed.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["results"]
    return [seconds / (options.bytes * 8 / (options.mbit * 1e6)) for seconds in result["seconds"]]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--topology", default="tree:2x4", help="default %(default)s")
    p.add_argument("--connections", type=bench.list_of(int), default=[1, 8], help="default 1,8")
    p.add_argument("--bytes", type=bench.size, default=16 << 20, help="length of the message; default 16M")
    p.add_argument("--mbit", type=float, default=20, help="rate of all links; default %(default)s")
    p.add_argument("--parts", type=float, default=4, help="a flow may use the link's rate divided by this; default %(default)s")
    p.add_argument("--reps", type=int, default=3, help="repetitions; default %(default)s")
    p.add_argument("--bin", help="directory of the programs; default COOL_BIN or target/release")
    options = p.parse_args()
    testbed.unwind_on_signals()
    for connections in options.connections:
        times = measure(options, connections)
        print("%d connections per hop: %s times the limit of the link" % (connections, ", ".join("%.2f" % time for time in times)), flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, subprocess.CalledProcessError, RuntimeError, OSError) as e:
        sys.exit("parallel_connections: %s" % e)
