#!/usr/bin/python3
"""Measures an allreduce alone, during a background copy (`cool copy --background`), and during a
normal copy (docs/measurements/copies.md).

    sudo bench/background.py                              # 256K, 1M and 4M on tree:4x4, in turn, 3 rounds
    sudo bench/background.py --bytes 1M --reps 20 --docs

During a long copy from h1 to all other hosts (by broadcast over trees), `cool bench` measures the
allreduce on the same nodes. The share of the copy is computed from the link counters of the last
receiver, less the bytes of the allreduce alone. Needs root and Debian's mininet, openvswitch-switch
and ethtool; the machine must be idle otherwise.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import copying  # noqa: E402
import page  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402

# At 20 Mbit/s, this takes minutes to copy, longer than all calls of a round.
SOURCE_BYTES = 512 << 20
TRAFFIC = ("nothing", "a copy in the background", "a copy")


@contextlib.contextmanager
def copy_under_way(bed, file, traffic):
    """Runs a copy during the context, which begins once the copy has delivered its first bytes."""
    if traffic == "nothing":
        yield
        return
    source, *receivers = [host["name"] for host in bed.description["hosts"]]
    options = ["--background"] if "background" in traffic else []
    command = ["cool", "copy", "--from", source, "--nodes", ",".join(receivers), "--via", "tree", *options,
               file, os.path.join(os.path.dirname(file), "copies", "{node}")]
    before = received(bed)
    with subprocess.Popen(command, env=bed.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as copy:
        try:
            testbed.wait_for(lambda: copy.poll() is not None or received(bed) > before + (4 << 20),
                             "the copy delivers bytes")
            if copy.poll() is not None:
                raise RuntimeError("cool copy ended too early: %s"
                                   % copy.stderr.read().strip()[-300:])
            yield
        finally:
            copy.send_signal(signal.SIGINT)
            copy.communicate(timeout=60)


def received(bed):
    """Returns the number of bytes that the link of the last host has carried to it."""
    name = bed.description["hosts"][-1]["name"]
    return max(carried for (_, to), carried in bed.link_bytes().items() if to == name)


def measure(bed, file, size, reps, traffic):
    """Returns the median time of an allreduce, the bytes that the last host received, and the total
    time, both during the measured calls."""
    with copy_under_way(bed, file, traffic):
        before = received(bed)
        process = bed.run(["cool", "bench", "--json", "--ops", "allreduce", "--bytes", str(size), "--reps", str(reps)], capture_output=True, text=True)
        received_bytes = received(bed) - before
    if process.returncode:
        raise RuntimeError("cool bench: %s" % process.stderr.strip()[-300:])
    result = json.loads(process.stdout)["results"][0]
    return {"seconds": statistics.median(result["seconds"]), "received_bytes": received_bytes, "duration": sum(result["seconds"])}


def rows(options, bed, file):
    for size in options.bytes:
        runs = {traffic: [] for traffic in TRAFFIC}
        for _ in range(options.rounds):
            for traffic in TRAFFIC:
                runs[traffic].append(measure(bed, file, size, options.reps, traffic))
        alone = statistics.median(run["seconds"] for run in runs["nothing"])
        for traffic, measurements in runs.items():
            seconds = statistics.median(run["seconds"] for run in measurements)
            # The rate of all bytes except those of the allreduce, divided by the rate of the link.
            allreduce_bytes = statistics.median(run["received_bytes"] for run in runs["nothing"])
            copy_share = statistics.median((run["received_bytes"] - allreduce_bytes) * 8 / run["duration"] for run in measurements) / (options.host_mbit * 1e6)
            yield {"bytes": size, "beside": traffic, "seconds": seconds, "over_alone": seconds / alone, "copy_share": copy_share}


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bytes", type=bench.list_of(bench.size),
                   default=[256 << 10, 1 << 20, 4 << 20],
                   help="lengths of the allreduce; default 256K,1M,4M")
    p.add_argument("--reps", type=int, default=5, help="allreduces per round; default %(default)s")
    p.add_argument("--rounds", type=int, default=3, help="rounds; default %(default)s")
    bench.add_network_options(p)
    p.add_argument("--docs", action="store_true", help="write the table into docs/measurements/copies.md")
    bench.add_run_options(p, "bench", "directory for background.json and logs; ")
    return p.parse_args()


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    lines = ["| allreduce | concurrent traffic | seconds | time / time alone | share of the link "
             "for the copy |", "| --- | --- | --: | --: | --: |"]
    print("\n".join(lines), flush=True)
    bed = testbed.Testbed(options.topology, options.host_mbit, options.uplink_mbit, bin_dir=options.bin, log_level="warn",
                          peer_timeout_ms=bench.PEER_TIMEOUT_MS, logs=os.path.join(options.out, "logs"))
    results = []
    with bench.await_machine(bed, options.wait), tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        bed.wait_until_measured()
        source = copying.random_file(folder, SOURCE_BYTES)
        for row in rows(options, bed, source):
            results.append(row)
            lines.append("| %s | %s | %.2f | %.2f | %.0f %% |" % (
                page.size(row["bytes"]), row["beside"], row["seconds"], row["over_alone"], 100 * max(0, row["copy_share"])))
            print(lines[-1], flush=True)
    with open(os.path.join(options.out, "background.json"), "w", encoding="utf-8") as f:
        json.dump(results, f, indent=1)
    if options.docs:
        section.replace("copies.md", "background", "\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except (testbed.Failure, RuntimeError, OSError) as e:
        sys.exit("background: %s" % e)
