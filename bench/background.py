#!/usr/bin/python3
"""An allreduce beside a copy that gives way (`cool copy --background`), beside one that does not, and alone (docs/measurements/copies.md).

    sudo bench/background.py                              # 256K, 1M and 4M on tree:4x4, in turn, 3 rounds
    sudo bench/background.py --bytes 1M --reps 20 --docs

A copy by broadcast over trees is under way from h1 to all others, long enough to last; `cool bench` measures the allreduce on the same nodes
meanwhile. What the copy has got is counted on the links of its receivers, beyond what the allreduce alone brings there. Needs root and Debian's mininet, openvswitch-switch and
ethtool; the machine must have nothing else to do.
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

# At 20 Mbit/s it lasts for minutes.
SOURCE_BYTES = 512 << 20
BESIDE = ("nothing", "a copy in the background", "a copy")


@contextlib.contextmanager
def copy_under_way(bed, file, beside):
    """Lets a copy run meanwhile, from its first bytes on."""
    if beside == "nothing":
        yield
        return
    source, *receivers = [host["name"] for host in bed.description["hosts"]]
    options = ["--background"] if "background" in beside else []
    command = ["cool", "copy", "--from", source, "--nodes", ",".join(receivers), "--via", "tree", *options,
               file, os.path.join(os.path.dirname(file), "copies", "{node}")]
    before = received(bed)
    with subprocess.Popen(command, env=bed.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as copy:
        try:
            testbed.wait_for(lambda: copy.poll() is not None or received(bed) > before + (4 << 20), "bytes of the copy")
            if copy.poll() is not None:
                raise RuntimeError("cool copy has ended: %s" % copy.stderr.read().strip()[-300:])
            yield
        finally:
            copy.send_signal(signal.SIGINT)
            copy.communicate(timeout=60)


def received(bed):
    """Bytes that the last host's link has brought it."""
    name = bed.description["hosts"][-1]["name"]
    return max(carried for (_, to), carried in bed.link_bytes().items() if to == name)


def measured(bed, file, size, reps, beside):
    """Seconds of an allreduce, the median; and bytes per second that came to the last host meanwhile."""
    with copy_under_way(bed, file, beside):
        before = received(bed)
        done = bed.run(["cool", "bench", "--json", "--ops", "allreduce", "--bytes", str(size), "--reps", str(reps)], capture_output=True, text=True)
        came = received(bed) - before
    if done.returncode:
        raise RuntimeError("cool bench: %s" % done.stderr.strip()[-300:])
    result = json.loads(done.stdout)["results"][0]
    return {"seconds": statistics.median(result["seconds"]), "came": came, "lasted": sum(result["seconds"])}


def rows(options, bed, file):
    for size in options.bytes:
        runs = {beside: [] for beside in BESIDE}
        for _ in range(options.rounds):
            for beside in BESIDE:
                runs[beside].append(measured(bed, file, size, options.reps, beside))
        alone = statistics.median(run["seconds"] for run in runs["nothing"])
        for beside, of in runs.items():
            seconds = statistics.median(run["seconds"] for run in of)
            # What came beyond the allreduces themselves, over the link's rate.
            own = statistics.median(run["came"] for run in runs["nothing"])
            got = statistics.median((run["came"] - own) * 8 / run["lasted"] for run in of) / (options.host_mbit * 1e6)
            yield {"bytes": size, "beside": beside, "seconds": seconds, "over_alone": seconds / alone, "copy_share": got}


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bytes", type=bench.list_of(bench.size), default=[256 << 10, 1 << 20, 4 << 20], help="of the allreduce; default 256K,1M,4M")
    p.add_argument("--reps", type=int, default=5, help="allreduces of a round; default %(default)s")
    p.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    bench.add_network_options(p)
    p.add_argument("--docs", action="store_true", help="write the table into docs/measurements/copies.md")
    bench.add_run_options(p, "bench", "for background.json and logs; ")
    return p.parse_args()


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    lines = ["| allreduce of | beside | seconds | over alone | the copy's part of a link |", "| --- | --- | --: | --: | --: |"]
    print("\n".join(lines), flush=True)
    bed = testbed.Testbed(options.topology, options.host_mbit, options.uplink_mbit, bin_dir=options.bin, log_level="warn",
                          peer_timeout_ms=bench.PEER_TIMEOUT_MS, logs=os.path.join(options.out, "logs"))
    found = []
    with bench.started(bed, options.wait), tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        bed.wait_until_measured()
        source = copying.random_file(folder, SOURCE_BYTES)
        for row in rows(options, bed, source):
            found.append(row)
            lines.append("| %s | %s | %.2f | %.2f | %.0f %% |" % (
                page.size(row["bytes"]), row["beside"], row["seconds"], row["over_alone"], 100 * max(0, row["copy_share"])))
            print(lines[-1], flush=True)
    with open(os.path.join(options.out, "background.json"), "w", encoding="utf-8") as f:
        json.dump(found, f, indent=1)
    if options.docs:
        section.replace(os.path.join(ROOT, "docs", "measurements", "copies.md"), "background", "\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except (testbed.Failure, RuntimeError, OSError) as e:
        sys.exit("background: %s" % e)
