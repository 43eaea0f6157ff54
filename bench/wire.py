#!/usr/bin/python3
"""Measures COOL, Open MPI, MPICH and Gloo where the CPU is the limit: on a bridge of the kernel
without shaping (`make bench-wire`).

    sudo bench/wire.py                                        # all cases: some hours
    sudo bench/wire.py --hosts 4 --mtu 1500 --ops bcast --bytes 8,64K,16M --turns 1
    sudo bench/wire.py --parts costs,streams --docs

Hosts are network namespaces on one bridge with IGMP snooping. There are three parts:

- times: each operation and size, paused (every call begins at one instant) and back to back. All
  libraries are measured in turn, as often as --turns; a figure is the median of the turns.
- costs: what a call costs the whole machine: CPU time, context switches and system calls, from the
  difference between two jobs with few and with many calls, so that the start of jobs is not
  included. Needs perf.
- streams: CPU time of the whole machine per byte delivered: one TCP stream of iperf3, a multicast
  to all other hosts by plain UDP sockets (udp_stream.c), and a bcast of COOL of the same length.

--docs writes the tables to docs/measurements/wire.md. Needs the same as bench.py, and iperf3 and
perf. The machine must be idle otherwise.
"""
import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import cpu_time  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402

SIZES = "8,1K,4K,16K,64K,256K,1M,4M,16M,64M,256M"
PARTS = ("times", "costs", "streams")
MODES = ("paused", "back to back")
# Bands of sizes with a geometric mean of their own: name, smallest and largest size.
BANDS = (("to 4K", 1, 4 << 10), ("16K to 4M", 16 << 10, 4 << 20), ("from 16M", 16 << 20, 4 << 30))
# Of the part `costs`: operations, and of each size the numbers of calls of the two jobs.
COST_OPS, COST_CALLS = ("bcast", "allreduce"), {8: (500, 10_500), 64 << 10: (50, 1050), 1 << 20: (10, 210)}
STREAM_BYTES = 1 << 30
GROUP, PORT = "239.255.42.1", 5298
# Events that perf counts on the whole machine.
EVENTS = {"context switches": "context-switches", "system calls": "raw_syscalls:sys_enter"}


def repetitions(length):
    """Returns the number of repetitions of a case, which take about half a second."""
    return 31 if length < 1 << 18 else 15 if length < 1 << 22 else 5 if length < 1 << 26 else 3


def successive_calls(length):
    """Returns the number of calls per repetition of the mode `back to back`."""
    return 50 if length < 1 << 16 else 10 if length < 1 << 22 else 2


class Machine:
    """Counts CPU time and events of the whole machine while a context lasts."""

    def __init__(self, folder):
        self.output = os.path.join(folder, "perf")

    def __enter__(self):
        command = ["perf", "stat", "-a", "-x", ",", "-o", self.output, "-e", ",".join(EVENTS.values())]
        self.perf = subprocess.Popen([*command, "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # perf counts once its command runs, which answers.
        self.perf.stdin.write(b"\n")
        self.perf.stdin.flush()
        if self.perf.stdout.read(1) != b"\n":
            raise peers.PeerError("perf does not count: is it permitted?")
        self.ticks = cpu_time.machine_ticks()
        return self

    def __exit__(self, *_):
        ticks = cpu_time.machine_ticks()
        self.perf.communicate()
        self.figures = {"cpu seconds": cpu_time.busy_seconds(ticks) - cpu_time.busy_seconds(self.ticks)}
        with open(self.output) as f:
            counted = {fields[2]: fields[0] for fields in (line.split(",") for line in f) if len(fields) > 2}
        for name, event in EVENTS.items():
            self.figures[name] = float(counted[event])


def case_of(library, case, mode):
    """Returns what a library measures for a case of a mode, or None. Gloo's own program makes its
    calls back to back and measures each, and its ranks cannot begin at one instant."""
    if library.name != "gloo":
        return case
    return {**case, "calls": 1, "reps": case["reps"] * case["calls"]} if mode == "back to back" else None


def measure_times(options, libraries, run, save, report):
    """Adds the medians of all libraries to `report["cases"]`."""
    ranks = len(run.hosts)
    todo = [(mode, op, length) for mode in options.modes for op in options.ops for length in options.bytes]
    for number, (mode, op, requested) in enumerate(todo, start=1):
        length = bench.message_bytes(op, requested, ranks)
        calls = successive_calls(requested) if mode == "back to back" else 1
        case = {"placement": run.placement, "op": op, "bytes": length, "calls": calls, "reps": max(3, repetitions(requested) // calls)}
        medians, failures = collections.defaultdict(list), {}
        for _ in range(options.turns):
            for library in libraries:
                measured = case_of(library, case, mode)
                figures = bench.attempt(library, run, measured, None) if measured else {}
                if "median" in figures:
                    medians[library.name].append(figures["median"])
                elif "failed" in figures:
                    failures[library.name] = figures["failed"]
        seconds = {name: statistics.median(turns) for name, turns in medians.items()}
        case.update(mode=mode, asked=requested, seconds=seconds, failures=failures)
        report["cases"].append(case)
        save()
        bench.print_now("[%d/%d] %s %s %s: %s" % (number, len(todo), mode, op, page.size(requested), "  ".join(
            [*("%s %.3f ms" % (name, 1e3 * s) for name, s in seconds.items()), *("%s failed: %s" % failed for failed in failures.items())])))


def measure_costs(options, libraries, run, save, report):
    """Adds the cost of one call for all libraries to `report["costs"]`."""
    for op in COST_OPS:
        for requested, job_calls in COST_CALLS.items():
            length = bench.message_bytes(op, requested, len(run.hosts))
            for library in libraries:
                counted = []
                for calls in job_calls:
                    with Machine(run.folder) as machine:
                        figures = bench.attempt(library, run, {"placement": run.placement, "op": op, "bytes": length, "calls": calls, "reps": 1}, None)
                    if "median" not in figures:
                        break
                    counted.append(machine.figures)
                if len(counted) < len(job_calls):
                    continue
                # COOL and MPI make a repetition that is not measured, too.
                more = 2 * (job_calls[1] - job_calls[0])
                cost = {name: (counted[1][name] - counted[0][name]) / more for name in counted[0]}
                report["costs"].append({"op": op, "bytes": length, "library": library.name, **cost})
                save()
                bench.print_now("%s %s %s: %s" % (library.title, op, page.size(requested), "  ".join("%s %.6g" % item for item in cost.items())))


def iperf_stream(run):
    """Sends one TCP stream from the first host to the second. Returns its rate and CPU time."""
    receiver, sender = run.hosts[1], run.hosts[0]
    with subprocess.Popen(peers.in_host(receiver, "iperf3", "-s", "-1", "--forceflush"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            if not any("listening" in line for line in server.stdout):
                raise peers.PeerError("the server of iperf3 does not listen")
            with Machine(run.folder) as machine:
                output = peers.run_checked(*peers.in_host(sender, "iperf3", "-J", "-c", receiver["ip"], "-t", "3"), timeout=60)
        finally:
            server.kill()
    received = json.loads(output)["end"]["sum_received"]
    return {"bytes_per_second": received["bits_per_second"] / 8, "cpu_seconds_per_gb": machine.figures["cpu seconds"] * 1e9 / received["bytes"]}


def udp_stream(options, run):
    """Multicasts by plain UDP sockets to all other hosts. Returns the rate and CPU time."""
    program = os.path.join(options.out, "udp_stream")
    peers.run_checked("gcc", "-O2", "-Wall", "-o", program, os.path.join(HERE, "udp_stream.c"))
    sender, *others = run.hosts
    receivers = [subprocess.Popen(peers.in_host(h, program, "receive", GROUP, str(PORT), h["ip"], str(STREAM_BYTES)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                 for h in others]
    try:
        for receiver in receivers:
            if receiver.stdout.readline() != "ready\n":
                raise peers.PeerError("a receiver of udp_stream has not started")
        with Machine(run.folder) as machine:
            output = peers.run_checked(*peers.in_host(sender, program, "send", GROUP, str(PORT), sender["ip"], str(STREAM_BYTES), str(len(others)), str(options.current_mtu)))
    finally:
        for receiver in receivers:
            receiver.kill()
            receiver.communicate()
    return {"bytes_per_second": STREAM_BYTES / float(output), "cpu_seconds_per_gb": machine.figures["cpu seconds"] * 1e9 / STREAM_BYTES / len(others)}


def cool_stream(library, run):
    """Broadcasts with COOL. Returns the rate and CPU time. The latter includes the check of every
    byte of the calls that are not measured, and not the start of the job."""
    counted, rates = [], []
    for calls in (1, 4):
        case = {"placement": run.placement, "op": "bcast", "bytes": STREAM_BYTES // 4, "calls": calls, "reps": 1}
        with Machine(run.folder) as machine:
            figures = library.measure(run, case)
        counted.append(machine.figures["cpu seconds"])
        rates.append(case["bytes"] / statistics.median(figures["seconds"]))
    delivered = 2 * 3 * (STREAM_BYTES // 4) * (len(run.hosts) - 1)
    return {"bytes_per_second": rates[1], "cpu_seconds_per_gb": (counted[1] - counted[0]) * 1e9 / delivered, "chunks_repaired": figures["chunks_repaired"]}


def measure_streams(options, libraries, run, save, report):
    """Adds the medians of the turns of all streams to `report["streams"]`."""
    kinds = {"iperf3": lambda: iperf_stream(run), "udp_stream": lambda: udp_stream(options, run), "cool": lambda: cool_stream(libraries[0], run)}
    turns = collections.defaultdict(list)
    for _ in range(options.turns):
        for kind, measure in kinds.items():
            try:
                figures = measure()
            except (peers.PeerError, OSError, ValueError) as e:
                bench.print_now("%s failed: %s" % (kind, e))
            else:
                turns[kind].append(figures)
    report["streams"] = {kind: {key: statistics.median(f[key] for f in figures) for key in figures[0]} for kind, figures in turns.items()}
    save()
    bench.print_now(json.dumps(report["streams"]))


def measure_network(options, libraries, hosts, mtu, network, save):
    options.current_mtu = mtu
    logs = os.path.join(options.out, "logs-%d-%d" % (hosts, mtu))
    bed = testbed.Testbed("tree:1x%d" % hosts, bin_dir=options.bin, mtu=mtu, log_level="warn", switches="bridge", peer_timeout_ms=bench.PEER_TIMEOUT_MS, logs=logs)
    measures = {"times": measure_times, "costs": measure_costs, "streams": measure_streams}
    with bench.await_machine(bed, options.wait), tempfile.TemporaryDirectory(prefix="cool-wire-", dir="/dev/shm") as folder:
        bed.network.net.switches[0].query_members()
        bed.wait_until_measured()
        run = peers.Run(bed, "racked", folder, options.timeout)
        for part in options.parts:
            measures[part](options, libraries, run, save, network)


def ratio(case):
    """Returns the best peer's time over COOL's, or None."""
    others = [seconds for name, seconds in case["seconds"].items() if name != "cool"]
    return min(others) / case["seconds"]["cool"] if others and "cool" in case["seconds"] else None


def times_table(cases):
    """Returns a table of ratios by operation and size, and one of geometric means."""
    sizes = sorted({case["asked"] for case in cases})
    lines = []
    for mode in MODES:
        rows = {op: {c["asked"]: ratio(c) for c in cases if c["op"] == op and c["mode"] == mode} for op in bench.OPS}
        rows = {op: row for op, row in rows.items() if row}
        if not rows:
            continue
        lines += ["", "| %s | %s |" % (mode, " | ".join(map(page.size, sizes))), "| --- |" + " --: |" * len(sizes)]
        lines += ["| %s | %s |" % (op, " | ".join("%.2f" % row[s] if row.get(s) else "-" for s in sizes)) for op, row in rows.items()]
        means = []
        for name, least, most in BANDS:
            found = [r for row in rows.values() for s, r in row.items() if least <= s <= most and r]
            if found:
                means.append("%s: %.2f" % (name, statistics.geometric_mean(found)))
        lines += ["", "Geometric means: %s." % ", ".join(means)]
    return lines


def costs_table(costs, titles):
    lines = ["", "| operation | library | CPU us per call | context switches | system calls |", "| --- | --- | --: | --: | --: |"]
    lines += ["| %s %s | %s | %.0f | %.0f | %.0f |" % (c["op"], page.size(c["bytes"]), titles[c["library"]], 1e6 * c["cpu seconds"], c["context switches"], c["system calls"])
              for c in costs]
    return lines


def streams_table(streams):
    titles = {"iperf3": "iperf3, one TCP stream", "udp_stream": "UDP multicast by plain sockets", "cool": "COOL, bcast"}
    lines = ["", "| stream | GB/s | CPU s per GB delivered | over iperf3 |", "| --- | --: | --: | --: |"]
    for kind, figures in streams.items():
        over = "%.2f" % (figures["cpu_seconds_per_gb"] / streams["iperf3"]["cpu_seconds_per_gb"]) if "iperf3" in streams else "-"
        lines.append("| %s | %.2f | %.3f | %s |" % (titles[kind], figures["bytes_per_second"] / 1e9, figures["cpu_seconds_per_gb"], over))
    return lines


def tables(report):
    """Returns the section of the document."""
    libraries = report["libraries"]
    titles = {name: library["title"] for name, library in libraries.items()}
    versions = ", ".join("%(title)s %(version)s" % library for library in libraries.values() if "version" in library)
    lines = ["Measured %s, %d CPUs for all hosts: %s. Medians of %d turns." % (report["date"], report["processors"], versions, report["turns"])]
    for network in report["networks"]:
        lines += ["", "### %d hosts, MTU %d" % (network["hosts"], network["mtu"])]
        if network["cases"]:
            lines += ["", "Time of the fastest peer over COOL's; below 1, COOL is slower."]
            lines += times_table(network["cases"])
        if network["costs"]:
            lines += costs_table(network["costs"], titles)
        if network["streams"]:
            lines += streams_table(network["streams"])
    return "\n".join(lines)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hosts", type=bench.list_of(int), default=[2, 4], help="numbers of hosts; default 2,4")
    p.add_argument("--mtu", type=bench.list_of(int), default=[1500, 9000], help="default 1500,9000")
    p.add_argument("--ops", type=bench.list_of(bench.one_of(bench.OPS)), default=list(bench.OPS), help="operations; default all six")
    p.add_argument("--bytes", type=bench.list_of(bench.size), default=bench.list_of(bench.size)(SIZES), help="lengths; default " + SIZES)
    p.add_argument("--modes", type=bench.list_of(bench.one_of(MODES)), default=list(MODES), help="default %s" % ",".join(MODES))
    p.add_argument("--parts", type=bench.list_of(bench.one_of(PARTS)), default=list(PARTS), help="default %s" % ",".join(PARTS))
    p.add_argument("--turns", type=int, default=5, help="turns of all libraries; default %(default)s")
    p.add_argument("--peers", type=bench.list_of(bench.one_of(bench.PEERS)), default=list(bench.PEERS), help="default %s" % ",".join(bench.PEERS))
    p.add_argument("--gloo", metavar="DIR", help="source directory of Gloo; Gloo is skipped without it")
    p.add_argument("--timeout", type=int, default=240, help="seconds for one library in one case; default %(default)s")
    p.add_argument("--docs", action="store_true", help="write the tables to docs/measurements/wire.md")
    bench.add_run_options(p, "wire", "directory for report.json and logs; ")
    options = p.parse_args()
    if options.turns < 1 or options.timeout < 1 or min(options.hosts) < 2:
        p.error("--turns and --timeout must be at least 1, and --hosts at least 2")
    options.out, options.busy_poll = os.path.abspath(options.out), False
    return options


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    report = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "processors": os.cpu_count(), "turns": options.turns, "libraries": {}, "networks": []}
    libraries = bench.prepare_libraries(options, report)
    path = os.path.join(options.out, "report.json")
    for hosts in options.hosts:
        for mtu in options.mtu:
            bench.print_now("%d hosts, MTU %d" % (hosts, mtu))
            network = {"hosts": hosts, "mtu": mtu, "cases": [], "costs": [], "streams": {}}
            report["networks"].append(network)
            measure_network(options, libraries, hosts, mtu, network, lambda: bench.write(path, json.dumps(report, indent=1)))
    bench.print_now(tables(report))
    if options.docs:
        section.replace("wire.md", "bench/wire.py", tables(report))
    bench.print_now("wrote " + os.path.relpath(path))
    return int(any("cool" in case["failures"] for network in report["networks"] for case in network["cases"]))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError) as e:
        sys.exit("wire: %s" % e)
