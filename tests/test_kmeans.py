"""K-means over the emulated network gives what one process alone gives, bit for bit."""
import os
import random
import struct

import pytest
from conftest import succeed


def write_npy(path, rows):
    """A float32 matrix in NumPy's format 1.0, without NumPy."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }" % (len(rows), len(rows[0]))
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        for row in rows:
            f.write(struct.pack("<%df" % len(row), *row))


@pytest.mark.parametrize("loss", [0, 0.02])
def test_centroids_equal_those_of_one_process(make_bed, tmp_path, loss):
    bed = make_bed("tree:2x3", host_mbit=50, uplink_mbit=50, loss=loss)
    chance = random.Random(5)
    centres = [[chance.uniform(0, 1) for _ in range(16)] for _ in range(8)]
    rows = [[x + chance.gauss(0, 0.05) for x in chance.choice(centres)] for _ in range(3000)]
    data = str(tmp_path / "points.npy")
    write_npy(data, rows)
    arguments = [os.path.join(bed.bin_dir, "cool-kmeans"), data, "--clusters", "8", "--iterations", "6", "--seed", "3", "--centroids"]
    alone, together = str(tmp_path / "alone.npy"), str(tmp_path / "together.npy")
    succeed(bed, *arguments, alone, "--alone")
    succeed(bed, "cool", "run", "-n", "6", "--", *arguments, together)
    with open(alone, "rb") as a, open(together, "rb") as b:
        assert a.read() == b.read()
