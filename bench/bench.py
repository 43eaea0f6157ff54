#!/usr/bin/python3
"""Measures COOL and other libraries on one emulated network and verifies every result (`make
bench`).

    sudo bench/bench.py --quick
    sudo bench/bench.py --topology tree:4x4 --ops bcast,allreduce --bytes 1K,4M --peers openmpi,gloo --gloo ~/gloo

Writes report.json and report.html to target/bench, where the peers (the other libraries) are also
installed; --docs writes tables to a document, too. For each operation, size and placement, all
libraries are measured one after the other. If a peer fails, the report contains the reason. Needs
root and Debian's mininet, openvswitch-switch, ethtool, gcc and python3-venv; Gloo also needs g++
and cmake.
"""
import argparse
import fcntl
import json
import os
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import collective_tables  # noqa: E402
import network  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import testbed  # noqa: E402
import topologies  # noqa: E402

OPS = ("bcast", "reduce", "allreduce", "gather", "allgather", "scatter")
PLACEMENTS = ("racked", "interleaved")
# Operations on an array of which each rank has a part.
IN_PARTS = ("gather", "allgather", "scatter")
PEERS = ("openmpi", "mpich", "gloo")
# Repetitions of fewer bytes are short, so more of them are made for a stable median.
SMALL, SMALL_REPS = 1 << 16, 15
# With 64 nodes on two CPUs, agents do not always reply within the default of 2 s.
PEER_TIMEOUT_MS = 20_000


def size(text):
    """Returns the number of bytes that `64K`, `1M` or a plain number denotes."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdigit() or not 0 < int(digits) * factor <= 4 << 30:
        raise argparse.ArgumentTypeError("%r: expected bytes from 1 to 4G, such as 1024, 64K or 1M" % text)
    return int(digits) * factor


def list_of(parse):
    return lambda text: [parse(part) for part in text.split(",")]


def one_of(names):
    def parse(text):
        if text not in names:
            raise argparse.ArgumentTypeError("%r: expected a comma-separated list of %s"
                                             % (text, ",".join(names)))
        return text
    return parse


def limit(op, length, description, host_mbit, uplink_mbit):
    """Returns the physical limit in seconds, which is the time that the busiest link needs at its
    full rate. Returns None if that link is not shaped, or if the bytes fit into the burst that a
    port forwards unshaped."""
    across = lambda parts: {"bcast": float(parts > 1), "reduce": float(parts > 1), "allreduce": 2 * (parts - 1) / parts}.get(op, (parts - 1) / parts)
    racks = peers.racks(description)
    uplinks = min(sum(1 for link in description["links"] if link["kind"] == "uplink" and rack in (link["a"], link["b"]))
                  for rack in {link["a"] for link in description["links"] if link["kind"] == "host"})
    shares = [(across(len(description["hosts"])), host_mbit), (across(len(racks)), uplink_mbit * uplinks)]
    if any(share and not mbit for share, mbit in shares) or length <= network.BURST_KB << 10:
        return None
    return max((share * length * 8 / (mbit * 1e6) for share, mbit in shares if share), default=None) or None


def message_bytes(op, requested_bytes, ranks):
    """Returns the bytes of the message, the vector or the whole array, rounded down to whole
    elements and equal parts."""
    if op in IN_PARTS:
        return max(1, requested_bytes // 4 // ranks) * 4 * ranks
    return max(1, requested_bytes // 4) * 4


def summary(raw, limit_seconds):
    """Returns the raw figures of one library with their minimum, median, maximum and ratio to
    `limit_seconds`."""
    if "seconds" in raw:
        raw = {**raw, "min": min(raw["seconds"]), "median": statistics.median(raw["seconds"]), "max": max(raw["seconds"])}
    return {**raw, "over_limit": raw["median"] / limit_seconds if limit_seconds else None}


def attempt(library, run, case, limit_seconds):
    """Measures one case. Returns its summary, or the reason under `absent` or `failed`."""
    try:
        return summary(library.measure(run, case), limit_seconds)
    except peers.NotSupported as e:
        return {"absent": str(e)}
    except (peers.PeerError, OSError, ValueError, KeyError) as e:
        return {"failed": str(e) or type(e).__name__}


def result_text(figures):
    """Returns the result of one library as text for the progress line."""
    if "median" not in figures:
        return "failed" if "failed" in figures else "-"
    return "%.2f ms" % (1e3 * figures["median"]) + (" = %.2f x" % figures["over_limit"] if figures["over_limit"] else "")


def measure_all(options, libraries, report, save):
    """Measures every case with all libraries in turn on one network, and adds them to the
    report."""
    cases = [(p, op, b) for p in options.placements for op in options.ops for b in options.bytes]
    bed = testbed.Testbed(options.topology, options.host_mbit, options.uplink_mbit, bin_dir=options.bin, log_level="warn",
                          peer_timeout_ms=PEER_TIMEOUT_MS, logs=os.path.join(options.out, "logs"))
    with await_machine(bed, options.wait), tempfile.TemporaryDirectory(prefix="cool-bench-") as folder:
        bed.wait_until_measured()
        report["network"].update(nodes=len(bed.description["hosts"]), racks=len(peers.racks(bed.description)))
        runs = {p: peers.Run(bed, p, tempfile.mkdtemp(dir=folder), options.timeout) for p in options.placements}
        for run in runs.values():
            run.start_seconds = libraries[0].start_cost(run)
        for number, (placement, op, requested_bytes) in enumerate(cases, start=1):
            length = message_bytes(op, requested_bytes, report["network"]["nodes"])
            limit_seconds = limit(op, length, bed.description, options.host_mbit, options.uplink_mbit)
            case = {"placement": placement, "op": op, "bytes": length, "calls": options.calls,
                    "reps": max(options.reps, SMALL_REPS) if requested_bytes < SMALL else options.reps}
            print_now("[%d/%d] %s %s %s: " % (number, len(cases), op, page.size(requested_bytes), placement), end="")
            results = {}
            for library in libraries:
                results[library.name] = attempt(library, runs[placement], case, limit_seconds)
                print_now("%s %s  " % (library.title, result_text(results[library.name])), end="")
            print_now("")
            for name, figures in results.items():
                if "failed" in figures:
                    print_now("    %s failed: %s" % (name, figures["failed"]))
            report["cases"].append({**case, "asked": requested_bytes, "limit": limit_seconds, "results": results, "times_faster": ratios(results)})
            save()


def ratios(results):
    """Returns the time of each peer divided by the time of COOL."""
    cool_median = results["cool"].get("median")
    return {name: r["median"] / cool_median for name, r in results.items() if cool_median and name != "cool" and "median" in r}


def await_machine(bed, wait):
    """Waits up to `wait` seconds until no other testbed runs on this machine, and returns `bed`,
    which the caller must enter."""
    end = time.monotonic() + wait
    with open(testbed.LOCK, "a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return bed
            except BlockingIOError:
                if time.monotonic() > end:
                    raise testbed.Failure("another testbed is still running on this machine after "
                                          "%g s" % wait) from None
                time.sleep(1)


def geometric_means(cases, names):
    """Returns the geometric mean of the ratios to each peer over the cases of 64 KiB and more."""
    means = {}
    for name in names:
        ratios = [c["times_faster"][name] for c in cases if name in c["times_faster"] and c["asked"] >= SMALL]
        if ratios:
            means[name] = statistics.geometric_mean(ratios)
    return means


def prepare_libraries(options, report):
    """Returns the libraries that can be measured, COOL first. The report records the others as
    absent."""
    all_peers = {"openmpi": lambda: peers.OpenMpi(options.out, options.busy_poll), "mpich": lambda: peers.Mpich(options.out, options.busy_poll),
                 "gloo": lambda: peers.Gloo(options.out, options.gloo), "sockets": lambda: peers.Sockets(options.out)}
    ready = []
    for library in [peers.Cool(options.bin), *(all_peers[name]() for name in options.peers)]:
        entry = report["libraries"][library.name] = {"title": library.title}
        try:
            library.prepare()
            entry["version"] = library.version
            ready.append(library)
            print_now("%s %s" % (library.title, library.version))
        except (peers.PeerError, peers.NotSupported) as e:
            entry["absent"] = str(e)
            print_now("%s is skipped: %s" % (library.title, e))
    if not ready or ready[0].name != "cool":
        raise peers.PeerError("cannot determine the version of COOL: "
                           + report["libraries"]["cool"]["absent"])
    return ready


def print_now(text, end="\n"):
    print(text, end=end, flush=True)


def add_network_options(p, topology="tree:4x4", mbit=20):
    """Adds the options that select the emulated network. `mbit` is the default rate of all
    links."""
    p.add_argument("--topology", type=topologies.argument, default=topology, help=topologies.FORMS + "; default %(default)s")
    p.add_argument("--host-mbit", type=float, default=mbit, 
                   help="rate of host links, 0 for unshaped links; default %(default)s")
    p.add_argument("--uplink-mbit", type=float, default=mbit, 
                   help="rate of links between switches, 0 for unshaped links; default %(default)s")


def add_run_options(p, out, what=""):
    """Adds the options of all programs that measure on the emulated network. `out` is a directory
    in target/, and `what` describes the files that the program writes there."""
    p.add_argument("--wait", type=int, default=600, 
                   help="seconds to wait until another testbed has ended; default %(default)s")
    p.add_argument("--bin", default=os.path.join(testbed.TARGET, "release"), 
                   help="directory of COOL's programs; default target/release")
    p.add_argument("--out", default=os.path.join(testbed.TARGET, out), 
                   help="%sdefault target/%s" % (what, out))


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ops", type=list_of(one_of(OPS)), default=list(OPS),
                   help="operations; default all six")
    p.add_argument("--bytes", type=list_of(size), default=None, 
                   help="lengths; default 1K,64K,1M,4M,8M, or 1K,1M with --quick")
    p.add_argument("--reps", type=int, default=None, 
                   help="measured repetitions; default 5, or 3 with --quick; at least 15 below 64K")
    p.add_argument("--calls", type=int, default=1, 
                   help="successive calls per repetition; the time of a repetition is divided by "
                   "this number; "
                   "default %(default)s (not supported by Gloo)")
    add_network_options(p)
    p.add_argument("--placements", type=list_of(one_of(PLACEMENTS)), default=list(PLACEMENTS), 
                   help="racked (ranks rack by rack) or interleaved (ranks in turn over the "
                   "racks); default both")
    p.add_argument("--peers", type=list_of(one_of((*PEERS, "sockets"))), default=list(PEERS), 
                   help="default openmpi,mpich,gloo; `sockets` is a minimal program on UDP "
                   "sockets, up to 16 KiB")
    p.add_argument("--gloo", metavar="DIR",
                   help="source directory of Gloo; Gloo is skipped without it")
    p.add_argument("--busy-poll", action="store_true", 
                   help="let waiting ranks of MPICH poll their sockets, which is MPICH's default; "
                   "without this flag they "
                   "sleep, because all hosts share the CPUs of this machine")
    p.add_argument("--quick", action="store_true", 
                   help="measure few sizes and repetitions, in less than ten minutes")
    p.add_argument("--docs", choices=collective_tables.DOCUMENTS,
                   help="write the tables to this document in docs/measurements")
    p.add_argument("--timeout", type=int, default=240, help="seconds for one library in one case; default %(default)s")
    add_run_options(p, "bench")
    options = p.parse_args()
    options.bytes = options.bytes or [size(s) for s in (("1K", "1M") if options.quick else ("1K", "64K", "1M", "4M", "8M"))]
    options.reps = options.reps if options.reps is not None else 3 if options.quick else 5
    options.out = os.path.abspath(options.out)
    if options.reps < 1 or options.calls < 1 or options.timeout < 1 or min(options.host_mbit, options.uplink_mbit, options.wait) < 0:
        p.error("--reps, --calls and --timeout must be at least 1; rates and --wait must not be "
                "negative")
    return options


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    report = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "processors": os.cpu_count(), "busy_poll": options.busy_poll, "libraries": {}, "cases": [],
              "network": {"topology": options.topology, "host_mbit": options.host_mbit, "uplink_mbit": options.uplink_mbit}}
    files = [os.path.join(options.out, name) for name in ("report.json", "report.html")]

    def save():
        """Saves the report after every case, so that an interrupted run keeps its results."""
        report["geometric_means"] = geometric_means(report["cases"], options.peers)
        write(files[0], json.dumps(report, indent=1))
        write(files[1], page.page(report))

    measure_all(options, prepare_libraries(options, report), report, save)
    for name, mean in report["geometric_means"].items():
        print_now("COOL is %.2f times as fast as %s from 64K on (geometric mean)"
            % (mean, report["libraries"][name]["title"]))
    if options.docs:
        collective_tables.write(report, options.docs)
    print_now("wrote " + ", ".join(os.path.relpath(f) for f in files))
    # A failure of COOL is a failure of the run; a failure of a peer is only reported.
    return int(any("failed" in c["results"]["cool"] for c in report["cases"]))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError) as e:
        sys.exit("bench: %s" % e)
