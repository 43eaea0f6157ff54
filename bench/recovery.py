#!/usr/bin/python3
"""Measures the time from a link failure until the controller has installed the last rule.

    sudo bench/recovery.py --docs
    sudo bench/recovery.py --failure port     # only ports that go down
    sudo bench/recovery.py --failure silent   # only lost packets while no port goes down (LLDP)

The network has 4 racks of 4 nodes below 2 spines and runs a job. Another uplink fails each time,
while the OpenFlow messages of all switches are observed. A rule counts as installed once the switch
confirms it with a barrier reply. Prints the median and the worst time; --docs writes them to
docs/measurements/recovery.md. Needs root and Debian's mininet, openvswitch-switch and ethtool. The
machine must be idle otherwise.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "mininet")]
import section  # noqa: E402
import testbed  # noqa: E402

TOPOLOGY, RACKS = "leafspine:4x2x4", 4
LLDP_MS = 400
# Recovery is complete after this many seconds without a change. They exceed the time to detect a
# loss and the delay before trees are improved.
QUIET = 1.5
FAILURES = {"port": "a port goes down", "silent": "packets are lost silently, announcements every %d ms" % LLDP_MS}
DETECTION_SECONDS = {"port": 1.0, "silent": 3.0}
PATIENCE = 20.0


class Watch:
    """Observes the changes that switches receive and confirm."""

    def __init__(self, switches):
        self.lock = threading.Lock()
        self.changed, self.confirmed = {}, {}
        self.processes = []
        for switch in switches:
            process = subprocess.Popen(["stdbuf", "-oL", "-eL", "ovs-ofctl", "-O", "OpenFlow13", "snoop", switch],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.processes.append(process)
            threading.Thread(target=self._read, args=(switch, process.stdout), daemon=True).start()

    def _read(self, switch, lines):
        for line in lines:
            now = time.monotonic()
            with self.lock:
                if re.match(r"OFPT_(FLOW|GROUP)_MOD", line):
                    self.changed[switch] = now
                elif line.startswith("OFPT_BARRIER_REPLY") and self.confirmed.get(switch, 0) < self.changed.get(switch, 0):
                    # A later change of this switch invalidates this confirmation.
                    self.confirmed[switch] = now

    def clear(self):
        with self.lock:
            self.changed.clear()
            self.confirmed.clear()

    def last_change(self):
        with self.lock:
            return max(self.changed.values(), default=None)

    def confirmed_at(self):
        """Returns the time at which the last change was confirmed, or None while one is not
        confirmed."""
        with self.lock:
            if not self.changed or any(self.confirmed.get(switch, 0) < at for switch, at in self.changed.items()):
                return None
            return max(self.confirmed[switch] for switch in self.changed)

    def stop(self):
        for process in self.processes:
            process.terminate()
            process.wait(10)


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise testbed.Failure("not within %g s: %s" % (PATIENCE, what))
        time.sleep(0.05)


def quiet(watch, since, minimum):
    """Returns whether at least `minimum` seconds have passed since `since`, and no change occurred
    recently."""
    now = time.monotonic()
    return now - since > minimum and now - (watch.last_change() or since) > QUIET


def fail_once(bed, watch, link, failure):
    """Fails a link and restores it. Returns the seconds from the failure until the last rule was
    installed."""
    watch.clear()
    start = time.monotonic()
    (bed.network.cut if failure == "port" else bed.network.silence)(link)
    wait_until(lambda: quiet(watch, start, DETECTION_SECONDS[failure]) and watch.confirmed_at(),
               "the switches confirm the changes after a failure")
    seconds = watch.confirmed_at() - start
    watch.clear()
    restored = time.monotonic()
    bed.network.restore(link)
    links = len(bed.network.uplinks())
    wait_until(lambda: len((bed.cool_json("topology") or {"links": []})["links"]) == links,
               "the link is discovered again")
    wait_until(lambda: quiet(watch, restored, QUIET), "trees have been improved")
    return seconds


def measure(failure, times):
    """Fails uplinks under a running job. Returns the seconds of each recovery."""
    with testbed.Testbed(TOPOLOGY, lldp_ms=LLDP_MS) as bed:
        bed.wait_until_measured()
        job = subprocess.Popen(["cool", "run", "-n", "16", "--", os.path.join(bed.bin_dir, "cool-misuse"), "barriers"], env=bed.environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        watch = Watch([switch.name for switch in bed.network.net.switches])
        try:
            job.stdout.readline()
            start = time.monotonic()
            wait_until(lambda: quiet(watch, start, QUIET), "the network is quiet")
            uplinks, durations = bed.network.uplinks(), []
            for number in range(times):
                link = uplinks[number % len(uplinks)]
                durations.append(fail_once(bed, watch, link, failure))
                print("%2d  %-9s %-9s %7.1f ms" % (number + 1, link[0].name, link[1].name, 1e3 * durations[-1]), flush=True)
            if job.poll() is not None:
                raise testbed.Failure("the job did not survive: status %d" % job.returncode)
        finally:
            watch.stop()
            job.terminate()
            job.wait(30)
    return durations


def table(results):
    """Returns the section of the document."""
    lines = ["Measured %s with %s, Open vSwitch and %d CPUs:" % (time.strftime("%Y-%m-%d", time.gmtime()), TOPOLOGY, os.cpu_count()), "",
             "| failure | failures | median | worst |", "| --- | --: | --: | --: |"]
    for failure, seconds in results.items():
        lines.append("| %s | %d | %.0f ms | %.0f ms |" % (
            FAILURES[failure], len(seconds), 1e3 * statistics.median(seconds), 1e3 * max(seconds)))
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--failure", choices=FAILURES, help="measure only this kind of failure")
    p.add_argument("--times", type=int, default=20, help="failures of each kind; default %(default)s")
    p.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    p.add_argument("--docs", action="store_true",
                   help="write the table to docs/measurements/recovery.md")
    options = p.parse_args()
    if options.times < 1:
        p.error("--times must be at least 1")
    if options.docs and options.failure:
        p.error("--docs needs both kinds of failures; omit --failure")
    testbed.unwind_on_signals()
    results = {failure: measure(failure, options.times) for failure in ([options.failure] if options.failure else FAILURES)}
    text = table(results)
    print(text)
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"topology": TOPOLOGY, "lldp_ms": LLDP_MS, "seconds": results}, f, indent=1)
    if options.docs:
        section.replace("recovery.md", "recovery", text)


if __name__ == "__main__":
    try:
        main()
    except (testbed.Failure, RuntimeError, OSError) as e:
        sys.exit("recovery: %s" % e)
