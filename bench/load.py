#!/usr/bin/python3
"""Loads the controller with a large network of simulated switches and agents, and compares its
packet-ins with os-ken (`make load`).

    bench/load.py --topology fattree:20x50 --groups 1000

Runs `cool-load` against cool-controller, then replays the same packet-ins against os-ken (from
PyPI, installed in target/load) with bench/osken_arp.py, which knows all hosts in advance. Prints
tables, with --docs also to docs/measurements/scale.md, and writes all figures to
target/load/report.json. Needs Debian's python3-venv. The machine must be idle otherwise.
"""
import argparse
import json
import os
import subprocess
import sys
import time

import peers
import section

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(ROOT, "mininet"))
from build_directory import TARGET  # noqa: E402

OS_KEN = "os-ken==4.2.2"
PORT = 16653
# Processes that this program starts end with it, even if it is killed.
ENDING_WITH_US = ("setpriv", "--pdeathsig", "TERM")
FABRIC_SECONDS, PEER_SECONDS, START_SECONDS = 600, 120, 30

ROWS = [
    ("agents_joined_s", "all agents have joined", "s"),
    ("discovered_and_unicast_sent_s", "network discovered, all unicast rules sent", "s"),
    ("all_rules_sent_s", "all groups created, all rules sent", "s"),
    ("flows", "flows in all switches", ""),
    ("group_entries", "group entries in all switches", ""),
    ("cpu_until_then_s", "CPU time of the controller until then", "s"),
    ("peak_memory_mib", "peak memory of the controller until then", "MiB"),
    ("groups_came_and_went_s", "a thousand groups created and removed without leftovers", "s"),
    ("world_made_s", "a world of ranks on all hosts: from request to ready", "s"),
    ("world_cpu_s", "CPU time of the controller for the world", "s"),
    ("world_bytes_per_agent", "bytes sent to each agent for the world", ""),
    ("world_peak_memory_mib", "peak memory of the controller until then", "MiB"),
    ("idle_cpu_percent", "share of one CPU when idle", "%"),
    ("link_failure_median_ms", "link failure until the last rule is sent, median", "ms"),
    ("link_failure_worst_ms", "link failure until the last rule is sent, worst", "ms"),
]
PACKET_ROWS = [
    ("packet_ins_per_second", "replies per second, 16 switches with 32 pending requests each", ""),
    ("packet_in_loaded_median_ms", "median latency under this load", "ms"),
    ("packet_in_loaded_p99_ms", "99th percentile under this load", "ms"),
    ("packet_in_alone_median_ms", "median latency of one request at a time", "ms"),
    ("packet_in_alone_p99_ms", "99th percentile of one request at a time", "ms"),
]


def load(options, seconds, *arguments):
    """Runs cool-load and returns its figures."""
    command = [*ENDING_WITH_US, os.path.join(options.bin, "cool-load"), "--topology", options.topology, *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, timeout=seconds, check=True)
    return json.loads(process.stdout)


def await_listening(process):
    """Waits until the peer listens on its port."""
    end = time.monotonic() + START_SECONDS
    address = "0100007F:%04X" % PORT
    while time.monotonic() < end and process.poll() is None:
        with open("/proc/net/tcp") as sockets:
            if any(line.split()[1] == address and line.split()[3] == "0A" for line in sockets):
                return
        time.sleep(0.05)
    raise peers.PeerError("os-ken did not start")


def measure_os_ken(options, python, hosts):
    """Replays the same packet-ins against os-ken and returns the figures."""
    command = [*ENDING_WITH_US, python, os.path.join(HERE, "osken_arp.py"), str(PORT), str(hosts)]
    process = subprocess.Popen(command)
    try:
        await_listening(process)
        return load(options, PEER_SECONDS, "packets", "--openflow", "127.0.0.1:%d" % PORT, "--pid", str(process.pid))
    finally:
        process.kill()
        process.wait()


def cell(figures, key, unit):
    return ("%s %s" % (format(figures[key], ","), unit)).strip()


def tables(cool_figures, os_ken_figures):
    """Returns the section of the document."""
    sizes = tuple(cool_figures[key] for key in ("switches", "hosts", "links", "groups"))
    lines = ["Measured %s with %d CPUs: %d switches, %d hosts, %d links, %d groups." % (
        time.strftime("%Y-%m-%d", time.gmtime()), os.cpu_count(), *sizes), "", "| quantity | COOL |", "| --- | --: |"]
    lines += ["| %s | %s |" % (text, cell(cool_figures, key, unit)) for key, text, unit in ROWS]
    lines += ["", "| packet-ins (ARP requests) | COOL | %s |" % OS_KEN.replace("==", " "), "| --- | --: | --: |"]
    lines += ["| %s | %s | %s |" % (text, cell(cool_figures, key, unit), cell(os_ken_figures, key, unit)) for key, text, unit in PACKET_ROWS]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="fattree:20x50", help="fattree:KxH or leafspine:LxSxH")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--failures", type=int, default=20, help="number of link failures")
    parser.add_argument("--docs", action="store_true",
                        help="write the tables to docs/measurements/scale.md")
    parser.add_argument("--bin", default=os.path.join(TARGET, "release"),
                   help="directory of the programs")
    options = parser.parse_args()
    folder = os.path.join(TARGET, "load")
    os.makedirs(folder, exist_ok=True)
    python = os.path.join(peers.install(os.path.join(folder, "python"), OS_KEN), "python")
    cool_figures = load(options, FABRIC_SECONDS, "fabric", "--controller", os.path.join(options.bin, "cool-controller"),
                "--groups", str(options.groups), "--failures", str(options.failures))
    os_ken_figures = measure_os_ken(options, python, cool_figures["hosts"])
    with open(os.path.join(folder, "report.json"), "w") as report:
        json.dump({"cool": cool_figures, "os-ken": os_ken_figures}, report, indent=1)
    text = tables(cool_figures, os_ken_figures)
    print(text)
    if options.docs:
        section.replace("scale.md", "bench/load.py", text)


if __name__ == "__main__":
    try:
        main()
    except (peers.PeerError, subprocess.SubprocessError, OSError) as e:
        sys.exit("load: %s" % e)
