#!/usr/bin/python3
"""Measures COOL on each kind of network next to Open MPI and MPICH (`make bench-networks`).

    sudo bench/networks.py                                # all networks, 4 MiB
    sudo bench/networks.py --networks snooping,blocked --bytes 1M --reps 5 --docs

All networks have 16 nodes in 4 racks. On `openflow`, COOL programs the switches; `snooping` are
bridges with a querier; on `blocked`, they deliver no multicast; `routed` are routers with static
multicast routes. Peers are measured for bcast and allreduce. Finally, on `snooping`, three nodes
stop receiving multicasts in the middle of a broadcast of 16 MiB, and on `blocked` a file of 16 MiB
is copied.

The limit is the time that the busiest link needs at its full rate. Links are shaped, so times do
not depend on the machine unless its CPUs are busy (idle). --docs writes the tables to
docs/measurements/networks.md. Needs root, Debian's mininet, openvswitch-switch, ethtool,
python3-venv and smcroute, and an idle machine.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import copies  # noqa: E402
import copying  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402

# Of each network, its topology and its switches.
NETWORKS = {"openflow": ("tree:4x4", "ovs"), "snooping": ("tree:4x4", "bridge"), "blocked": ("tree:4x4", "bridge"), "routed": ("leafspine:4x2x4", "routed")}
# Operations for which peers are measured.
COMPARED = ("bcast", "allreduce")
STREAM_BYTES, BLOCKED_NODES = 16 << 20, 3


def set_multicast(bed, hosts, received):
    """Makes hosts receive the multicasts of trees again, or drop them."""
    for host in hosts:
        bed.network.set_multicast(host, received)


def prepare(bed, name):
    """Configures the switches or hosts of a network that has just been started."""
    if name == "snooping":
        bed.network.net.switches[0].query_members()
    if name == "blocked":
        set_multicast(bed, bed.network.net.hosts, False)


def measure_case(options, bed, run, libraries, op):
    """Returns the case with the figures of all libraries."""
    length = bench.message_bytes(op, options.bytes, len(bed.description["hosts"]))
    limit_seconds = bench.limit(op, length, bed.description, options.mbit, options.mbit)
    case = {"op": op, "bytes": length, "reps": options.reps, "placement": run.placement}
    results = {}
    for library in libraries if op in COMPARED else libraries[:1]:
        figures = bench.attempt(library, run, case, limit_seconds)
        if "median" in figures:
            figures["busiest"] = figures["busiest_link_bytes"] / length
        results[library.name] = figures
    bench.print_now("  %s: %s" % (op, "  ".join("%s %s" % (name, figures.get("failed") or bench.result_text(figures)) for name, figures in results.items())))
    return {**case, "limit": limit_seconds, "results": results}


def interrupted_stream(options, bed):
    """Blocks multicast at some nodes in the middle of a broadcast. Returns its time over the limit,
    and the nodes that `cool doctor` names afterwards."""
    hosts = bed.network.net.hosts[-BLOCKED_NODES:]
    count = lambda: sum(bytes_ for (_, b), bytes_ in bed.link_bytes().items() if b == hosts[0].name)
    before = count()
    command = ["cool", "bench", "--json", "--ops", "bcast", "--bytes", str(STREAM_BYTES), "--reps", "1", "--warmup", "0"]
    with subprocess.Popen(command, env=bed.environment(), stdout=subprocess.PIPE, text=True) as job:
        testbed.wait_for(lambda: count() - before > STREAM_BYTES / 4, "a quarter of the message has arrived", process=job)
        set_multicast(bed, hosts, False)
        try:
            out, _ = job.communicate(timeout=options.timeout)
            if job.returncode:
                raise peers.PeerError("the broadcast failed with status %d" % job.returncode)
            # The next group finds that probes do not arrive.
            peers.run_checked("cool", "run", "--", "true", env=bed.environment())
            doctor = bed.run(["cool", "doctor"], capture_output=True, text=True)
        finally:
            set_multicast(bed, hosts, True)
    [result] = json.loads(out)["results"]
    named = [host.name for host in hosts if "node %s: it does not receive multicasts" % host.name in doctor.stdout]
    return {"over_limit": result["seconds"][0] / (STREAM_BYTES * 8 / (options.mbit * 1e6)), "named": named}


def copied_file(options, bed, folder):
    """Copies a file to all nodes. Returns its time over the limit."""
    distribution = copies.Distribution(copying.random_file(folder, STREAM_BYTES), folder, bed.description, options.timeout)
    outcome = distribution.by_cool(bed.environment(), "--via", "auto")
    distribution.clear()
    return {"over_limit": outcome["seconds"] / (STREAM_BYTES * 8 / (options.mbit * 1e6))}


def measure_network(options, libraries, name):
    """Returns all figures of one network."""
    topology, switches = NETWORKS[name]
    bench.print_now("%s: %s" % (name, topology))
    bed = testbed.Testbed(topology, options.mbit, options.mbit, bin_dir=options.bin, log_level="warn", switches=switches,
                          peer_timeout_ms=bench.PEER_TIMEOUT_MS, logs=os.path.join(options.out, "logs-" + name))
    with bench.await_machine(bed, options.wait), tempfile.TemporaryDirectory(prefix="cool-networks-", dir="/dev/shm") as folder:
        prepare(bed, name)
        bed.wait_until_measured()
        run = peers.Run(bed, "racked", folder, options.timeout)
        figures = {"topology": topology, "cases": [measure_case(options, bed, run, libraries, op) for op in bench.OPS]}
        if name == "snooping":
            figures["stream"] = interrupted_stream(options, bed)
        if name == "blocked":
            figures["copy"] = copied_file(options, bed, folder)
    return figures


def cell(figures, key="over_limit"):
    return "-" if not figures or figures.get(key) is None else "%.2f" % figures[key]


def tables(report):
    """Returns the section of the document."""
    networks, libraries = report["networks"], report["libraries"]
    compared = [name for name, library in libraries.items() if name != "cool" and "absent" not in library]
    versions = ", ".join("%(title)s %(version)s" % libraries[name] for name in ["cool", *compared])
    lines = ["Measured %s, all links %s, %d CPUs for all nodes and switches: %s. Medians of %d repetitions of %s, divided by the physical limit." % (
        report["date"], page.rate(report["mbit"]), report["processors"], versions, report["reps"], page.size(report["bytes"])), ""]
    lines += ["| operation | %s |" % " | ".join(networks), "| --- |" + " --: |" * len(networks)]
    by_op = {name: {case["op"]: case["results"] for case in network["cases"]} for name, network in networks.items()}
    for op in bench.OPS:
        for library in ["cool", *(compared if op in COMPARED else [])]:
            title = op if library == "cool" else "%s, %s" % (op, libraries[library]["title"])
            lines.append("| %s | %s |" % (title, " | ".join(cell(by_op[name][op].get(library)) for name in networks)))
    lines.append("| bcast: bytes of the busiest link / message | %s |" % " | ".join(cell(by_op[name]["bcast"]["cool"], "busiest") for name in networks))
    lines.append("| bcast: idle CPU time | %s |" % " | ".join(cell(by_op[name]["bcast"]["cool"], "idle") for name in networks))
    if stream := networks.get("snooping", {}).get("stream"):
        lines += ["", "With multicast blocked at %d of 16 nodes in the middle of a broadcast of %s: %s times the limit; `cool doctor` names %s." % (
            BLOCKED_NODES, page.size(STREAM_BYTES), cell(stream), ", ".join(stream["named"]) or "none of them")]
    if copy := networks.get("blocked", {}).get("copy"):
        lines += ["", "A copy of %s to 15 nodes on `blocked`: %s times the limit." % (page.size(STREAM_BYTES), cell(copy))]
    return "\n".join(lines)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--networks", type=bench.list_of(bench.one_of(NETWORKS)), default=list(NETWORKS), help="default all: " + ",".join(NETWORKS))
    p.add_argument("--bytes", type=bench.size, default=4 << 20, help="length of the message or vector; default 4M")
    p.add_argument("--mbit", type=float, default=20, help="rate of all links; default %(default)s")
    p.add_argument("--reps", type=int, default=3, help="repetitions; default %(default)s")
    p.add_argument("--timeout", type=int, default=240, help="seconds for one library in one case; default %(default)s")
    p.add_argument("--docs", action="store_true", help="write the tables to docs/measurements/networks.md")
    bench.add_run_options(p, "networks", "directory for report.json and logs; ")
    options = p.parse_args()
    if options.reps < 1 or options.mbit <= 0 or options.timeout < 1:
        p.error("--reps, --mbit and --timeout must be positive")
    options.out, options.peers, options.busy_poll = os.path.abspath(options.out), ["openmpi", "mpich"], False
    return options


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    report = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "processors": os.cpu_count(), "libraries": {}, "networks": {},
              "bytes": options.bytes, "mbit": options.mbit, "reps": options.reps}
    libraries = bench.prepare_libraries(options, report)
    path = os.path.join(options.out, "report.json")
    for name in options.networks:
        report["networks"][name] = measure_network(options, libraries, name)
        bench.write(path, json.dumps(report, indent=1))
    bench.print_now(tables(report))
    if options.docs:
        section.replace("networks.md", "bench/networks.py", tables(report))
    bench.print_now("wrote " + os.path.relpath(path))
    cases = [case for network in report["networks"].values() for case in network["cases"]]
    return int(any("failed" in case["results"]["cool"] for case in cases))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError) as e:
        sys.exit("networks: %s" % e)
