#!/usr/bin/python3
"""Measures how long an ordinary user needs from nothing to a first result, on four machines on
which nothing of COOL is installed.

    make wheel && sudo bench/start.py                # prints the table
    make wheel && sudo bench/start.py --reps 3 --docs

The machines are hosts on a Linux bridge, without daemons, configuration or root. In both
measurements, time begins before `pip install` of the wheel, which all machines run at the same
time, into a virtual environment that exists already:

- training: torchrun trains with the backend "cool" (libcool/python/examples/train_fashion.py) until
  all ranks have ended after one step. torch is installed before.
- cluster: `cool up` on one machine, `cool join` on the others, and `cool bench`, which verifies
  every byte, until it ends.

--docs writes the table to docs/measurements/networks.md. Needs root, Debian's mininet,
openvswitch-switch, ethtool and python3-venv, and torch (tools/torch installs it).
"""
import argparse
import concurrent.futures
import contextlib
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet"), os.path.join(ROOT, "tests", "e2e"), os.path.join(ROOT, "tests", "e2e", "jobs")]
import bench  # noqa: E402
import section  # noqa: E402
from test_up import UID, BareBed, environment_of, token_of  # noqa: E402

EXAMPLE = os.path.join(ROOT, "libcool", "python", "examples", "train_fashion.py")
TIMEOUT_SECONDS = 600
# The kinds of commands of each measurement.
COMMANDS = {"training": "pip install, torchrun", "cluster": "pip install, cool up, cool join, cool bench"}


class Machines:
    """Four machines, each with a virtual environment of the user."""

    def __init__(self, bed, wheel, torch):
        self.bed, self.torch = bed, torch
        self.names = [host["name"] for host in bed.description["hosts"]]
        self.wheel, self.example = (self.publish(path) for path in (wheel, EXAMPLE))
        for name in self.names:
            self.run(name, "/usr/bin/python3", "-m", "venv", self.venv(name))
            [packages] = glob.glob(self.venv(name) + "/lib/python3*/site-packages")
            with open(packages + "/torch.pth", "w") as f:
                f.write(torch + "\n")

    def publish(self, path):
        """Copies a file to where the user can read it."""
        public = os.path.join(self.bed.public, os.path.basename(path))
        subprocess.run(["install", "-m", "644", path, public], check=True)
        return public

    def venv(self, name):
        return os.path.join(self.bed.home, "venv-" + name)

    def command(self, name, *words):
        """Returns the command that runs another one on a machine, in its virtual environment."""
        path = "PATH=%s/bin:/usr/bin:/bin" % self.venv(name)
        variables = [path, "OMP_NUM_THREADS=1", "TMPDIR=" + self.temporary(name)]
        return self.bed.command(name, *words, environment=variables)

    def temporary(self, name):
        folder = os.path.join(self.bed.home, "t-" + name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            os.chown(folder, UID, UID)
        return folder

    def run(self, name, *words):
        """Runs a command on a machine. Returns its output.

        Raises RuntimeError if it fails."""
        process = subprocess.run(self.command(name, *words), capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        if process.returncode != 0:
            raise RuntimeError("%s: %s: %s" % (name, " ".join(words), (process.stderr or process.stdout).strip()[-1000:]))
        return process.stdout

    def on_all(self, names, words):
        """Runs the command `words(name)` on all of these machines at once. Returns their outputs."""
        with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
            return list(threads.map(lambda name: self.run(name, *words(name)), names))

    def install(self):
        self.on_all(self.names, lambda name: ("pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", self.wheel))


def training(machines):
    """Trains one step on all machines."""
    machines.install()
    nodes = machines.bed.description["hosts"]
    ip = {host["name"]: host["ip"] for host in nodes}
    first = machines.names[0]
    outputs = machines.on_all(machines.names, lambda name: (
        "python3", "-m", "torch.distributed.run", "--nnodes", str(len(nodes)), "--node-rank", str(machines.names.index(name)), "--nproc-per-node", "1",
        "--master-addr", ip[first], "--master-port", "29500", "--local-addr", ip[name], machines.example, "--batch", "32", "--steps", "1", "--json"))
    result = json.loads(outputs[0])
    if not result["hashes_equal"] or result["ranks"] != len(nodes) or result["steps"] != 1:
        raise RuntimeError("the ranks have not trained one step with equal weights: %s" % result)


def cluster(machines):
    """Starts a cluster, verifies a collective on all machines, and ends the cluster."""
    machines.install()
    first, others = machines.names[0], machines.names[1:]
    started = machines.run(first, "cool", "up", "--name", first, "--interface", first + "-eth0")
    try:
        machines.on_all(others, lambda name: ("cool", "join", token_of(started), "--name", name))
        machines.run(first, "env", *environment_of(started), "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "1M", "--reps", "1")
    finally:
        machines.on_all(machines.names, lambda name: ("cool", "down", "--name", name))


MEASUREMENTS = {"training": training, "cluster": cluster}


def measure(options, name):
    """Returns the seconds of one measurement on new machines."""
    with BareBed("tree:1x4", switches="bridge", bin_dir=options.bin, logs=options.logs) as bed:
        machines = Machines(bed, options.wheel, options.torch)
        begin = time.monotonic()
        MEASUREMENTS[name](machines)
        return time.monotonic() - begin


def table(seconds):
    lines = ["| from `pip install` to | commands | median | all |", "| --- | --- | --: | --- |"]
    texts = {"training": "the first training step on four machines", "cluster": "a verified `cool bench` on four machines"}
    for name, times in seconds.items():
        lines.append("| %s | %s | %.1f s | %s |" % (texts[name], COMMANDS[name], statistics.median(times), ", ".join("%.1f" % t for t in times)))
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    wheels = sorted(glob.glob(os.path.join(ROOT, "target", "packages", "*.whl")))
    p.add_argument("--wheel", default=wheels[-1] if wheels else None, help="default: the one in target/packages")
    p.add_argument("--torch", metavar="FOLDER", help="the site-packages with torch; default: those of tools/torch")
    p.add_argument("--reps", type=int, default=3, help="repetitions of each measurement, default %(default)s")
    p.add_argument("--bin", default=None, help="folder with the programs of the emulated network")
    p.add_argument("--logs", default=None, help="folder for log files")
    p.add_argument("--docs", action="store_true", help="write the table to docs/measurements/networks.md")
    options = p.parse_args()
    if not options.wheel:
        p.error("there is no wheel in target/packages: run make wheel")
    with contextlib.ExitStack() as stack:
        options.torch = published_torch(stack, options.torch)
        seconds = {name: [measure(options, name) for _ in range(options.reps)] for name in MEASUREMENTS}
    text = "Measured %s with a wheel of %.0f MB, medians of %d.\n\n%s" % (
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), os.path.getsize(options.wheel) / 1e6, options.reps, table(seconds))
    bench.print_now(text)
    if options.docs:
        section.replace("networks.md", "bench/start.py", text)


def published_torch(stack, folder):
    """Mounts the site-packages with torch where an ordinary user can read them. Returns that
    folder."""
    if folder is None:
        folder = glob.glob(subprocess.run([os.path.join(ROOT, "tools", "torch")], check=True, capture_output=True, text=True).stdout.strip() + "/lib/python3*/site-packages")[0]
    public = stack.enter_context(tempfile.TemporaryDirectory(prefix="cool-torch-"))
    os.chmod(public, 0o755)
    subprocess.run(["mount", "--bind", folder, public], check=True)
    stack.callback(subprocess.run, ["umount", public], check=True)
    return public


if __name__ == "__main__":
    main()
