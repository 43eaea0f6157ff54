#!/usr/bin/python3
"""Measures how soon an agent replies to pings while the ranks of its node exchange much data.

    sudo bench/pings.py                             # allreduce of 1 GiB by 8 ranks; needs 17 GiB of memory
    sudo bench/pings.py --bytes 256M --ops allreduce,bcast,alltoall

The failure detector declares an agent lost if it does not reply to pings within the peer timeout.
The controller, one agent, and its ranks are processes as on a cluster. Pings are sent to the agent
over loopback in the format of other agents, one per --interval, whether or not the previous one was
answered. The latency ends at the kernel's receive timestamp of the reply, so the time that this
program waits for a CPU does not count. Needs the same as loopback.py. Writes report.json to
target/pings.
"""
import argparse
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import loopback  # noqa: E402
import page  # noqa: E402
import testbed  # noqa: E402

AGENT_PORT = 7420
SO_TIMESTAMPNS = 35  # socket(7); Python has no name for it

# Header as in core/transport/src/packet/codec.rs: magic, version, type, stream (group, epoch, call,
# transfer, source), from, digest.
PING = struct.Struct(">HBBQIQIHHQ")
MAGIC, VERSION, TYPE = 0xC001, 3, 8
DIGEST = 9
# A reply contains the incarnation of the agent after the header.
INCARNATION = 8

# Replies count as lost if they arrive later than this many seconds after the last ping.
LAST_REPLY_SECONDS = 2.0


class Pinger:
    """Pings an agent and records when each ping was sent and answered."""

    def __init__(self, ip, interval):
        self.address, self.interval = (ip, AGENT_PORT), interval
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.socket.setblocking(False)
        self.send_times, self.reply_times = [], {}

    def send(self):
        # A reply repeats the digest of the ping, which identifies it.
        ping = PING.pack(MAGIC, VERSION, TYPE, 0, 0, 0, 0, 0, 0, len(self.send_times))
        self.send_times.append(time.time_ns())
        self.socket.sendto(ping, self.address)

    def receive(self):
        """Records all replies that have arrived."""
        while True:
            try:
                reply, ancillary, _, _ = self.socket.recvmsg(PING.size + INCARNATION, socket.CMSG_SPACE(16))
            except BlockingIOError:
                return
            seconds, nanoseconds = next(struct.unpack("ll", data) for _, kind, data in ancillary if kind == SO_TIMESTAMPNS)
            self.reply_times[PING.unpack_from(reply)[DIGEST]] = seconds * 10**9 + nanoseconds

    def ping_during(self, process):
        """Pings until a process has ended, then waits for the last replies."""
        # This program must not wait for a CPU between the timestamp and the ping. The priority of
        # processes that it has started does not change.
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        try:
            self._ping_during(process)
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, before)

    def _ping_during(self, process):
        next_ping = time.monotonic()
        while process.poll() is None:
            if time.monotonic() >= next_ping:
                self.send()
                next_ping += self.interval
            select.select([self.socket], [], [], max(0.0, next_ping - time.monotonic()))
            self.receive()
        end = time.monotonic() + LAST_REPLY_SECONDS
        while len(self.reply_times) < len(self.send_times) and time.monotonic() < end:
            select.select([self.socket], [], [], end - time.monotonic())
            self.receive()

    def latencies(self):
        """Returns the sorted latencies of all pings in seconds, infinite for unanswered ones."""
        infinite = float("inf")
        return sorted((self.reply_times[n] - sent_at) / 1e9 if n in self.reply_times else infinite for n, sent_at in enumerate(self.send_times))


def measure(bed, options, op):
    """Returns the latencies of pings to the agent during the repetitions of one operation, and the
    seconds of these repetitions."""
    command = ["cool", "bench", "--json", "--ops", op, "--bytes", str(options.bytes), "--reps", str(options.reps), "--warmup", "1",
               "--ranks", str(options.ranks), "--ranks-per-node", str(options.ranks)] + (["--alloc"] if options.alloc else [])
    pinger = Pinger(loopback.ADDRESS % 1, options.interval / 1e3)
    process = subprocess.Popen(command, env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pinger.ping_during(process)
    output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError("cool bench: " + errors.strip()[-300:])
    if not pinger.reply_times:
        raise RuntimeError("the agent replied to no ping; check that it uses packet version %d"
                           % VERSION)
    [result] = json.loads(output)["results"]
    return pinger.latencies(), result["seconds"]


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=8, help="ranks on the node; default %(default)s")
    p.add_argument("--ops", default="allreduce", help="operations; default %(default)s")
    p.add_argument("--bytes", type=bench.size, default="1G",
                   help="length of each rank's array; default %(default)s")
    p.add_argument("--reps", type=int, default=3,
                   help="repetitions after one for warming up; default %(default)s")
    p.add_argument("--alloc", action="store_true", help="use arrays of comm.alloc")
    p.add_argument("--interval", type=float, default=1.0, help="milliseconds between pings; default %(default)s")
    p.add_argument("--within", type=float, default=20.0,
                   help="report the share of replies within this many milliseconds; default %(default)s")
    bench.add_run_options(p, "pings")
    return p.parse_args()


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    bed = loopback.Loopback(1, slots=options.ranks, bin_dir=options.bin, mtu=65535, log_level="warn")
    report = {}
    with bench.await_machine(bed, options.wait):
        for op in options.ops.split(","):
            latencies, seconds = measure(bed, options, op)
            share = sum(latency <= options.within / 1e3 for latency in latencies) / len(latencies)
            tail = {q: 1e3 * latencies[min(len(latencies) - 1, int(q * len(latencies)))] for q in (0.5, 0.99, 0.999, 1.0)}
            report[op] = {"seconds": seconds, "pings": len(latencies), "within": share, "milliseconds": tail}
            print("%s of %s by %d ranks of one node: %d pings, %.3f %% answered within %g ms; median %.2f ms, 99 %% %.2f, 99.9 %% %.2f, "
                  "longest %.2f" % (op, page.size(options.bytes), options.ranks, len(latencies), 100 * share, options.within, *tail.values()), flush=True)
    with open(os.path.join(options.out, "report.json"), "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as e:
        sys.exit("pings: %s" % e)
