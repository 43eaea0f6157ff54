#!/usr/bin/python3
"""Measures an MPI program with and without libcool_mpi.so on one emulated network and verifies
every result.

    sudo bench/mpi_preload.py --docs
    sudo bench/mpi_preload.py --hosts mpich --ops bcast --bytes 64K,1M --seconds 1 --topology tree:2x2

The same program (mpi_collectives.c) runs on Open MPI and MPICH from PyPI, alone and with
libcool_mpi.so preloaded, with all lengths of an operation in one run. With --min 0, all calls are
intercepted, which helps to choose COOL_MPI_MIN. A full run takes about 20 minutes per library on an
idle machine. Writes report.json to target/mpi-preload, and with --docs the table in
docs/measurements/mpi.md. Needs the same as bench/bench.py.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402

OPS = ("bcast", "reduce", "allreduce", "allgather", "gather", "scatter", "alltoall", "reduce_scatter", "scan", "exscan")
SIZES = "8,1K,8K,16K,64K,256K,1M,4M"
# Operations whose bytes are divided among all ranks.
IN_PARTS = (*bench.IN_PARTS, "alltoall", "reduce_scatter")
LEAST_REPS, MOST_REPS = 2, 25


def with_preload(base):
    """Returns a subclass of a peer whose ranks preload libcool_mpi.so."""
    class PreloadedLibrary(base):
        min = None

        def rank(self, run, program):
            libraries = [os.path.join(run.bed.bin_dir, "libcool_mpi.so"), *([self.preload] if self.preload else [])]
            variables = ["LD_PRELOAD=" + ":".join(libraries), "COOL_SOCKET=%s/$(hostname).sock" % run.bed.directory, "COOL_MPI=require"]
            if self.min is not None:
                variables.append("COOL_MPI_MIN=%d" % self.min)
            return ["sh", "-c", "'%s exec %s'" % (" ".join(variables), " ".join(program))]

    return PreloadedLibrary


# bench.py installs the peers in the same directory.
INSTALLED = os.path.join(testbed.TARGET, "bench")
HOSTS = {"openmpi": peers.OpenMpi, "mpich": peers.Mpich}


def prepare_pairs(options):
    """Returns a pair of peers for each host library, alone and preloaded, both installed."""
    pairs = {}
    for name in options.hosts:
        pair = HOSTS[name](INSTALLED, options.busy_poll), with_preload(HOSTS[name])(INSTALLED, options.busy_poll)
        pair[1].min = options.min
        for library in pair:
            library.prepare()
        pairs[name] = pair
    return pairs


def message_bytes(op, requested_bytes, ranks):
    return max(1, requested_bytes // 4 // ranks) * 4 * ranks if op in IN_PARTS else max(1, requested_bytes // 4) * 4


def attempt(library, run, op, lengths, seconds):
    """Measures an operation. Returns its figures by length; after a failure, all remaining lengths
    have the reason instead."""
    figures = {}
    try:
        for length, times in library.measure_lengths(run, op, lengths, LEAST_REPS, MOST_REPS, seconds):
            figures[length] = {"seconds": times, "median": statistics.median(times)}
    except (peers.PeerError, OSError, ValueError, KeyError) as e:
        failure = {"failed": str(e) or type(e).__name__}
        figures.update((length, failure) for length in lengths if length not in figures)
    return figures


def measure_all(options, pairs, save):
    """Measures every operation with each library, alone and preloaded in alternating order. Returns
    the cases."""
    bed = testbed.Testbed(options.topology, options.host_mbit, options.uplink_mbit, bin_dir=options.bin, log_level="warn",
                          peer_timeout_ms=bench.PEER_TIMEOUT_MS, logs=os.path.join(options.out, "logs"))
    cases, turn = [], 0
    with bench.await_machine(bed, options.wait), tempfile.TemporaryDirectory(prefix="cool-mpi-preload-") as folder:
        bed.wait_until_measured()
        ranks = len(bed.description["hosts"])
        runs = {p: peers.Run(bed, p, tempfile.mkdtemp(dir=folder), options.timeout) for p in options.placements}
        for placement, op in ((p, op) for p in options.placements for op in options.ops):
            lengths = [message_bytes(op, requested_bytes, ranks) for requested_bytes in options.bytes]
            cases_of_op = [{"placement": placement, "op": op, "asked": requested_bytes, "bytes": length, "hosts": {}} for requested_bytes, length in zip(options.bytes, lengths)]
            for name, pair in pairs.items():
                order, turn = (0, 1) if turn % 2 == 0 else (1, 0), turn + 1
                figures = {i: attempt(pair[i], runs[placement], op, lengths, options.seconds) for i in order}
                for case in cases_of_op:
                    alone, preloaded = figures[0][case["bytes"]], figures[1][case["bytes"]]
                    case["hosts"][name] = {"alone": alone, "preloaded": preloaded, "ratio": ratio(alone, preloaded)}
                    print_case(name, case)
            cases += cases_of_op
            save(cases)
    return cases


def ratio(alone, preloaded):
    return alone["median"] / preloaded["median"] if "median" in alone and "median" in preloaded else None


def print_case(name, case):
    results = case["hosts"][name]
    alone, preloaded, speedup = results["alone"], results["preloaded"], results["ratio"]
    bench.print_now("%s %s %s %s: alone %s, preloaded %s ms%s" % (case["placement"], case["op"], page.size(case["asked"]), name, cell(alone), cell(preloaded),
                                                         " (%.2f)" % speedup if speedup else ""))
    for reason in (f["failed"] for f in (alone, preloaded) if "failed" in f):
        bench.print_now("    failed: " + reason)


def cell(figures):
    return "%.2f" % (1e3 * figures["median"]) if "median" in figures else "failed"


def table(cases, options, pairs):
    """Returns the table of docs/measurements/mpi.md, with one row per operation and size. For each
    placement and library, it contains the times alone and preloaded and their ratio."""
    columns = [(p, name) for p in options.placements for name in pairs]
    headings = ["%s: %s alone | preloaded | ratio" % (p, pairs[name][0].title) for p, name in columns]
    lines = ["| operation | " + " | ".join(headings) + " |", "| --- |" + " --: |" * (3 * len(columns))]
    cases_by_key = {(c["op"], c["asked"], c["placement"]): c for c in cases}
    for op in options.ops:
        for requested_bytes in options.bytes:
            row = []
            for placement, name in columns:
                results = cases_by_key[op, requested_bytes, placement]["hosts"][name]
                row.append("%s | %s | %s" % (cell(results["alone"]), cell(results["preloaded"]), "%.2f" % results["ratio"] if results["ratio"] else "-"))
            length = page.size(requested_bytes) if requested_bytes >= 1 << 10 else "%d bytes" % requested_bytes
            lines.append("| %s of %s | %s |" % (op, length, " | ".join(row)))
    return "\n".join(lines)


def geometric_means(cases, pairs):
    """Yields sentences with the geometric means of the ratios, for cases below 64 KiB and for the
    others."""
    for name, pair in pairs.items():
        for range_text, is_in_range in (("below 64 KiB", lambda c: c["asked"] < bench.SMALL), ("from 64 KiB on", lambda c: c["asked"] >= bench.SMALL)):
            ratios = [c["hosts"][name]["ratio"] for c in cases if is_in_range(c) and c["hosts"][name]["ratio"]]
            if ratios:
                yield "%s alone takes %.2f times as long as preloaded %s (geometric mean of %d cases; %.2f to %.2f)" % (
                    pair[0].title, statistics.geometric_mean(ratios), range_text, len(ratios), min(ratios), max(ratios))


def document(cases, options, pairs):
    versions = ", ".join("%s %s" % (pair[0].title, pair[0].version) for pair in pairs.values())
    sentence = "Measured %s on %s with links of %g and %g Mbit/s by `bench/mpi_preload.py`, %s, %d CPUs for all hosts; medians in ms.%s" % (
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), options.topology, options.host_mbit, options.uplink_mbit, versions, os.cpu_count(),
        "" if options.min is None else " COOL_MPI_MIN=%d." % options.min)
    section.replace("mpi.md", "MPI preload", "\n".join([sentence, *("- %s." % line for line in geometric_means(cases, pairs)), "", table(cases, options, pairs)]))


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hosts", type=bench.list_of(bench.one_of(tuple(HOSTS))), default=list(HOSTS),
                   help="MPI libraries; default openmpi,mpich")
    p.add_argument("--ops", type=bench.list_of(bench.one_of(OPS)), default=list(OPS),
                   help="operations; default all ten")
    p.add_argument("--bytes", type=bench.list_of(bench.size),
                   default=bench.list_of(bench.size)(SIZES),
                   help="lengths; default " + SIZES)
    p.add_argument("--seconds", type=float, default=2.0,
                   help="time for the repetitions of a length, of which there are %d to %d; "
                   "default %%(default)s" % (
        LEAST_REPS, MOST_REPS))
    p.add_argument("--min", type=lambda text: 0 if text == "0" else bench.size(text),
                   help="COOL_MPI_MIN of preloaded runs; default: the library's default")
    p.add_argument("--placements", type=bench.list_of(bench.one_of(bench.PLACEMENTS)), default=list(bench.PLACEMENTS), help="default both")
    bench.add_network_options(p)
    p.add_argument("--busy-poll", action="store_true",
                   help="let waiting ranks of MPICH poll their sockets instead of sleeping")
    p.add_argument("--timeout", type=int, default=240,
                   help="timeout for one operation in seconds; default %(default)s")
    p.add_argument("--docs", action="store_true", help="write the table to docs/measurements/mpi.md")
    bench.add_run_options(p, "mpi-preload")
    options = p.parse_args()
    options.out, options.bin = os.path.abspath(options.out), os.path.abspath(options.bin)
    if options.timeout < 1 or min(options.host_mbit, options.uplink_mbit, options.wait, options.seconds) < 0:
        p.error("--timeout must be at least 1; rates, --seconds and --wait must not be negative")
    return options


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    for folder in (options.out, INSTALLED):
        os.makedirs(folder, exist_ok=True)
    pairs = prepare_pairs(options)

    def save(cases):
        with open(os.path.join(options.out, "report.json"), "w") as f:
            json.dump({"topology": options.topology, "min": options.min, "cases": cases}, f, indent=1)

    cases = measure_all(options, pairs, save)
    print(table(cases, options, pairs))
    for line in geometric_means(cases, pairs):
        print(line)
    if options.docs:
        document(cases, options, pairs)
    return int(any("failed" in results["preloaded"] for c in cases for results in c["hosts"].values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError, ValueError, KeyError) as e:
        sys.exit("mpi_preload: %s" % e)
