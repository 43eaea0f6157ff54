"""Where an uplink is slower than a node's link, broadcasts are striped over trees without a common
uplink."""
import json
import subprocess

import pytest
from link_byte_checks import assert_carried
from conftest import PATIENCE, succeed, wait_for

MIB = 1 << 20


def fabric(make_bed):
    bed = make_bed("leafspine:2x2x2", host_mbit=20, uplink_mbit=10, lldp_ms=400)
    wait_for(bed.whole, "the network is whole")
    return bed


def bench(bed, operations, sizes, *options):
    report = json.loads(succeed(bed, "cool", "bench", "--ops", operations, "--bytes", sizes, "--reps", "1", "--json", *options))
    return report["results"]


def spine_bytes(bed, carried):
    """Returns the bytes that each spine received and sent, from the bytes of links."""
    links = bed.network.describe()["links"]
    leaves = {link["a"] for link in links if link["kind"] == "host"}
    spines = sorted({end for link in links if link["kind"] == "uplink" for end in (link["a"], link["b"])} - leaves)
    return [tuple(sum(count for ends, count in carried.items() if ends[at] == spine) for at in (1, 0)) for spine in spines]


def assert_half_over_each_spine(bed, directions, *options):
    """Broadcasts 4 MiB, and asserts that each spine carries its part once: up, or up and down."""
    def judge(carried):
        bytes_of_spines = spine_bytes(bed, carried)
        assert all(2 * MIB < count for spine in bytes_of_spines for count in spine[:directions]), bytes_of_spines
        overloaded = [spine for spine in bytes_of_spines if max(spine[:directions]) >= 2.5 * MIB]
        return "spines carried more than 1.25 times their part, as (up, down): %s" % overloaded if overloaded else ""

    assert_carried(bed, lambda: bench(bed, "bcast", "4M", "--warmup", "0", *options), judge)


@pytest.mark.parametrize("root", ["0", "3"])
def test_each_spine_carries_its_part_of_a_broadcast_once(make_bed, root):
    assert_half_over_each_spine(fabric(make_bed), 2, "--root", root)


def test_messages_of_all_sizes_are_right_in_stripes(make_bed):
    bench(fabric(make_bed), "bcast,reduce,allreduce,gather,allgather,scatter,barrier", "12,100K,130000,600K", "--root", "2")


def test_a_striped_broadcast_survives_the_loss_of_a_spines_link(make_bed):
    bed = fabric(make_bed)
    uplink = bed.network.uplinks()[0]
    before = sum(bed.link_bytes().values())
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", "16M", "--reps", "1", "--warmup", "0", "--json"],
                           env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: sum(bed.link_bytes().values()) - before > 8 * MIB, "the broadcast is under way", process=job)
    bed.network.cut(uplink)
    try:
        assert job.poll() is None, "the link goes down while the broadcast runs"
        out, err = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, out + err
        # A group that is created now has one tree, and its results are also right.
        bench(bed, "bcast,allgather", "300K")
    finally:
        bed.network.restore(uplink)
    wait_for(bed.whole, "the network is whole again")
    assert_half_over_each_spine(bed, 1)
