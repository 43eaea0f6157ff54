"""K-means over the emulated network computes the same bits as a single process."""
import contextlib
import os
import random
import re
import signal
import struct
import subprocess
import threading
import time

import faults
import pytest
import testbed
from conftest import PATIENCE, SHORT_GRACE, run, succeed
from test_bindings import PYTHON


def write_npy(path, rows):
    """Writes a float32 matrix in NumPy's format 1.0, without NumPy."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }" % (len(rows), len(rows[0]))
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        for row in rows:
            f.write(struct.pack("<%df" % len(row), *row))


@pytest.mark.parametrize("loss", [0, 0.02])
def test_centroids_equal_those_of_one_process(make_bed, tmp_path, loss):
    bed = make_bed("tree:2x3", switches="bridge", host_mbit=50, uplink_mbit=50, loss=loss)
    chance = random.Random(5)
    centres = [[chance.uniform(0, 1) for _ in range(16)] for _ in range(8)]
    rows = [[x + chance.gauss(0, 0.05) for x in chance.choice(centres)] for _ in range(3000)]
    data = str(tmp_path / "points.npy")
    write_npy(data, rows)
    arguments = [os.path.join(bed.bin_dir, "cool-kmeans"), data, "--clusters", "8", "--iterations", "6", "--seed", "3", "--centroids"]
    alone, together = str(tmp_path / "alone.npy"), str(tmp_path / "together.npy")
    succeed(bed, *arguments, alone, "--alone")
    succeed(bed, "cool", "run", "-n", "6", "--", *arguments, together)
    assert same(alone, together)


class Job:
    """A running job, and its output so far."""

    def __init__(self, bed, *command):
        self.process = subprocess.Popen(command, env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.text, self.more = "", threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self.more:
                self.text += line
                self.more.notify_all()

    def wait_for(self, pattern, seconds=PATIENCE):
        with self.more:
            assert self.more.wait_for(lambda: re.search(pattern, self.text), seconds), "no %s in\n%s" % (pattern, self.text)

    def status(self):
        return self.process.wait(PATIENCE)


def places(job):
    """Returns the processes of a job's ranks, by rank, each with its node, from their
    environment."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % pid, "rb") as f:
                variables = dict(entry.partition(b"=")[::2] for entry in f.read().split(b"\0"))
        except OSError:
            continue  # It has just ended, or belongs to the kernel.
        if variables.get(b"COOL_KMEANS_TEST") == job.encode():
            node = os.path.basename(variables[b"COOL_SOCKET"].decode()).removesuffix(".sock")
            found[int(variables[b"COOL_RANK"])] = (int(pid), node)
    return found


class SlowRun:
    """K-means of points without clusters, which takes many iterations, long enough for faults to
    occur between them."""

    def __init__(self, folder):
        self.data, self.alone = str(folder / "points.npy"), str(folder / "alone-%d.npy")
        chance = random.Random(8)
        write_npy(self.data, [[chance.uniform(0, 1) for _ in range(16)] for _ in range(30_000)])

    def prepare(self, bed, iterations):
        """Returns the command without the name of the output file, and the centroids of a single
        process."""
        command = [os.path.join(bed.bin_dir, "cool-kmeans"), self.data, "--clusters", "150", "--iterations", str(iterations), "--threads", "1", "--centroids"]
        alone = self.alone % iterations
        if not os.path.exists(alone):
            succeed(bed, *command, alone, "--alone")
        return command, alone


@pytest.fixture(scope="module")
def slow_run(tmp_path_factory):
    return SlowRun(tmp_path_factory.mktemp("slow"))


def same(one, other):
    """Returns whether two files have the same content."""
    with open(one, "rb") as a, open(other, "rb") as b:
        return a.read() == b.read()


def bed_with_losses(make_bed):
    """Returns the bed of the tests in which nodes are lost. Its agents wait as long for each other
    as those of test_faults."""
    return make_bed("tree:3x2", switches="bridge", host_mbit=50, uplink_mbit=50, controller_flags=SHORT_GRACE, peer_timeout_ms=10_000)


def test_survivors_of_kills_compute_the_undisturbed_centroids(make_bed, slow_run, tmp_path):
    bed = bed_with_losses(make_bed)
    (arguments, alone), together = slow_run.prepare(bed, 60), str(tmp_path / "together.npy")
    job = Job(bed, "cool", "run", "-n", "6", "--survive", "--env", "COOL_KMEANS_TEST=losses", "--", *arguments, together)
    job.wait_for(r"iteration +2 ")
    there = places("losses")
    os.kill(there[3][0], signal.SIGKILL)
    job.wait_for(r"rank 3 .*; 5 ranks continue")
    # The order of racks depends on which were discovered first.
    lost = there[4][1]
    bed.agents[lost].signal(signal.SIGKILL)
    try:
        job.wait_for(lost + r".*; 4 ranks continue")
        os.kill(there[0][0], signal.SIGKILL)
        job.wait_for(r"rank 0 .*; 3 ranks continue")
        assert job.status() == 0, job.text
        assert same(alone, together), job.text
    finally:
        bed.restart_agent(lost)
    bed.wait_until_joined()


@pytest.mark.parametrize("seed", range(3))
def test_centroids_are_the_same_after_random_faults(make_bed, slow_run, tmp_path, seed):
    bed = bed_with_losses(make_bed)
    chance = random.Random(seed)
    (arguments, alone), together = slow_run.prepare(bed, 60), str(tmp_path / "together.npy")
    job = Job(bed, "cool", "run", "-n", "6", "--survive", "--env", "COOL_KMEANS_TEST=faults", "--", *arguments, together)
    struck = []
    try:
        job.wait_for(r"iteration +1 ")
        there = places("faults")
        job.pid, job.node = ({rank: place[i] for rank, place in there.items()} for i in (0, 1))
        for left in (5, 4):
            time.sleep(chance.uniform(0, 0.3))
            # A stopped rank cannot be distinguished from a slow one, and K-means waits for an hour.
            fault = chance.choice([fault for fault in faults.FAULTS if fault.name != "rank stopped"])
            victim = chance.choice(sorted(set(there) - {victim for _, victim in struck}))
            struck.append((fault, victim))
            fault.strike(bed, job, victim)
            job.wait_for(r"; %d ranks continue" % left)
        assert job.status() == 0, job.text
    finally:
        for fault, victim in struck:
            fault.undo(bed, job, victim)
    assert same(alone, together), job.text
    bed.wait_until_joined()


# A program that fits points, and fits again with the remaining ranks after a loss. Without
# COOL_RANK it runs alone.
IN_PYTHON = """
import os, sys
import cool, numpy
from cool.kmeans import KMeans

points, centres = sys.argv[1:]

def fit(world):
    return KMeans(150, random_state=1, max_iter=60, tol=0, verbose=1, threads=1).fit(points, comm=world)

def main(world):
    while True:
        try:
            found = fit(world)
            break
        except cool.LostError:
            world = world.shrink()
            print(world.size, "ranks go on", flush=True)
    if world.rank == 0:
        numpy.save(centres, found.cluster_centers_)

if "COOL_RANK" in os.environ:
    cool.launch(main)
else:
    numpy.save(centres, fit(None).cluster_centers_)
"""


def test_survivors_in_python_fit_again_to_the_same_centres(make_bed, slow_run, tmp_path):
    bed = bed_with_losses(make_bed)
    program, alone, together = (str(tmp_path / name) for name in ("survivors.py", "alone.npy", "together.npy"))
    with open(program, "w") as f:
        f.write(IN_PYTHON)
    command = [PYTHON, program, slow_run.data]
    succeed(bed, *command, alone)
    job = Job(bed, "cool", "run", "-n", "6", "--survive", "--env", "COOL_KMEANS_TEST=python", "--", *command, together)
    job.wait_for(r"iteration 2:")
    os.kill(places("python")[3][0], signal.SIGKILL)
    job.wait_for(r"5 ranks go on")
    assert job.status() == 0, job.text
    assert same(alone, together), job.text


def test_a_run_that_was_killed_entirely_resumes_its_checkpoint(make_bed, slow_run, tmp_path):
    bed = bed_with_losses(make_bed)
    (arguments, alone), together = slow_run.prepare(bed, 60), str(tmp_path / "together.npy")
    resumable = [*arguments, together, "--checkpoint", str(tmp_path / "checkpoint"), "--resume"]
    job = Job(bed, "cool", "run", "-n", "6", "--env", "COOL_KMEANS_TEST=checkpoint", "--", *resumable)
    job.wait_for(r"iteration +3 ")
    for process, _ in places("checkpoint").values():
        # When the first rank is killed, the launcher ends the others.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert job.status() != 0
    again = succeed(bed, "cool", "run", "-n", "4", "--", *resumable)
    assert "iteration   3 " not in again, again
    assert same(alone, together)


def test_a_rank_without_input_ends_all_with_one_line(make_bed, tmp_path):
    bed = make_bed("tree:2x3", switches="bridge", host_mbit=50, uplink_mbit=50)
    folder = tmp_path / "data"
    folder.mkdir()
    write_npy(str(folder / "points.npy"), [[float(i), 1.0] for i in range(60)])
    # Rank 2 has another, empty directory under that name.
    program = os.path.join(bed.bin_dir, "cool-kmeans")
    script = 'if [ "$COOL_RANK" = 2 ]; then exec unshare -m sh -c "mount -t tmpfs none %s && exec \\"\\$@\\"" sh "$@"; fi; exec "$@"' % folder
    done = run(bed, "cool", "run", "-n", "4", "--", "sh", "-c", script, "sh", program, str(folder / "points.npy"), "-k", "2")
    assert done.returncode != 0
    said = [line for line in (done.stdout + done.stderr).splitlines() if "points.npy: " in line]
    assert said and all("No such file or directory" in line and "the same at every rank" in line for line in said), done.stdout + done.stderr


@pytest.mark.parametrize("option", ["--model", "--labels", "--centroids", "--summary", "--checkpoint"])
def test_a_full_disk_is_reported_in_one_line_and_leaves_nothing(tmp_path, option):
    data, full = str(tmp_path / "points.npy"), str(tmp_path / "full")
    chance = random.Random(3)
    write_npy(data, [[chance.uniform(0, 1) for _ in range(4)] for _ in range(3000)])
    os.mkdir(full)
    command = [os.path.join(testbed.BIN, "cool-kmeans"), data, "-k", "400", "-i", "2", "--alone", option, os.path.join(full, "file")]
    # A disk of one page, which is full.
    script = 'mount -t tmpfs -o size=4k none "$0" && head -c 4096 /dev/zero > "$0/taken" && { "$@" > /dev/null; status=$?; ls -A "$0"; exit $status; }'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, full, *command], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("cool-kmeans: ")]
    assert len(said) == 1 and "No space left on device" in said[0] and full in said[0], done.stderr
    assert done.stdout.split() == ["taken"]
