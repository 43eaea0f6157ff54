#!/usr/bin/python3
"""A large network of played switches and agents: what the controller takes, and packet-ins beside os-ken (`make load`).

    bench/load.py --topology fattree:20x50 --groups 1000

Runs `cool-load` against cool-controller, then the same packet-ins against os-ken (of PyPI, installed in target/load) with
bench/osken_arp.py, which knows all hosts from the beginning. Prints a table; all figures go to target/load/report.json.
Needs Debian's python3-venv; the machine must have nothing else to do.
"""
import argparse
import json
import os
import subprocess
import sys
import time

import peers

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
OS_KEN = "os-ken==4.2.2"
PORT = 16653
# What this program starts does not stay behind it, however it ends.
ENDING_WITH_US = ("setpriv", "--pdeathsig", "TERM")
FABRIC_SECONDS, PEER_SECONDS, START_SECONDS = 600, 120, 30

ROWS = [
    ("agents_joined_s", "all agents have joined", "s"),
    ("discovered_and_unicast_sent_s", "all is discovered, all unicast rules sent", "s"),
    ("all_rules_sent_s", "all groups made, all rules sent", "s"),
    ("flows", "flows in all switches", ""),
    ("group_entries", "group entries in all switches", ""),
    ("cpu_until_then_s", "the controller's processor time until then", "s"),
    ("peak_memory_mib", "its memory until then, at most", "MiB"),
    ("groups_came_and_went_s", "a thousand groups come and go, and leave nothing behind", "s"),
    ("world_made_s", "a world of ranks on all hosts: from asked to ready", "s"),
    ("world_cpu_s", "the controller's processor time for it", "s"),
    ("world_bytes_per_agent", "bytes that each agent is sent for it", ""),
    ("world_peak_memory_mib", "the controller's memory until then, at most", "MiB"),
    ("idle_cpu_percent", "of one processor, when nothing happens", "%"),
    ("link_failure_median_ms", "a link fails: the last rule sent after (median)", "ms"),
    ("link_failure_worst_ms", "the same, worst", "ms"),
]
PACKET_ROWS = [
    ("packet_ins_per_second", "answered per second, 16 switches with 32 requests under way", ""),
    ("packet_in_loaded_median_ms", "median then", "ms"),
    ("packet_in_loaded_p99_ms", "99 of 100 within", "ms"),
    ("packet_in_alone_median_ms", "one at a time, median", "ms"),
    ("packet_in_alone_p99_ms", "99 of 100 within", "ms"),
]


def load(options, seconds, *arguments):
    """What cool-load finds."""
    command = [*ENDING_WITH_US, os.path.join(options.bin, "cool-load"), "--topology", options.topology, *arguments]
    found = subprocess.run(command, stdout=subprocess.PIPE, timeout=seconds, check=True)
    return json.loads(found.stdout)


def listens(process):
    """Waits until something listens at the port of the peer."""
    end = time.monotonic() + START_SECONDS
    place = "0100007F:%04X" % PORT
    while time.monotonic() < end and process.poll() is None:
        with open("/proc/net/tcp") as sockets:
            if any(line.split()[1] == place and line.split()[3] == "0A" for line in sockets):
                return
        time.sleep(0.05)
    raise peers.Failed("os-ken does not start")


def beside(options, python, hosts):
    """The same packet-ins against os-ken."""
    command = [*ENDING_WITH_US, python, os.path.join(HERE, "osken_arp.py"), str(PORT), str(hosts)]
    process = subprocess.Popen(command)
    try:
        listens(process)
        return load(options, PEER_SECONDS, "packets", "--openflow", "127.0.0.1:%d" % PORT, "--pid", str(process.pid))
    finally:
        process.kill()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="fattree:20x50", help="fattree:KxH or leafspine:LxSxH")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--failures", type=int, default=20, help="links that fail")
    parser.add_argument("--bin", default=os.path.join(ROOT, "target", "release"), help="where the programs are")
    options = parser.parse_args()
    folder = os.path.join(ROOT, "target", "load")
    os.makedirs(folder, exist_ok=True)
    python = os.path.join(peers.installed(os.path.join(folder, "python"), OS_KEN), "python")
    ours = load(options, FABRIC_SECONDS, "fabric", "--controller", os.path.join(options.bin, "cool-controller"),
                "--groups", str(options.groups), "--failures", str(options.failures))
    peer = beside(options, python, ours["hosts"])
    with open(os.path.join(folder, "report.json"), "w") as report:
        json.dump({"cool": ours, "os-ken": peer}, report, indent=1)
    print("%d switches, %d hosts, %d links, %d groups\n" % tuple(ours[k] for k in ("switches", "hosts", "links", "groups")))
    print("| what | |\n| --- | --: |")
    for key, text, unit in ROWS:
        print("| %s | %s |" % (text, ("%s %s" % (format(ours[key], ","), unit)).strip()))
    print("\n| packet-ins (ARP requests) | COOL | %s |\n| --- | --: | --: |" % OS_KEN.replace("==", " "))
    for key, text, unit in PACKET_ROWS:
        print("| %s | %s |" % (text, " | ".join(("%s %s" % (format(f[key], ","), unit)).strip() for f in (ours, peer))))


if __name__ == "__main__":
    try:
        main()
    except (peers.Failed, subprocess.SubprocessError, OSError) as e:
        sys.exit("load: %s" % e)
