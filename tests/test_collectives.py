"""Every collective delivers the right bytes, whatever is lost. `cool bench` checks each result on every rank."""
import json
import subprocess

import pytest
from conftest import succeed

OPERATIONS = "bcast,reduce,allreduce,gather,allgather,scatter,barrier"


def bench(bed, operations, sizes, root, *options, timeout=300):
    return json.loads(succeed(bed, "cool", "bench", "--ops", operations, "--bytes", sizes, "--root", str(root),
                              "--json", *options, timeout=timeout))


@pytest.mark.parametrize("root", [0, 3, 11])
def test_all_collectives_are_right_on_the_4x4_tree(make_bed, root):
    bench(make_bed("tree:4x4"), OPERATIONS, "0,4,1000,65536,1M", root, "--reps", "2")


def test_all_collectives_are_right_with_several_ranks_on_uneven_racks(make_bed):
    """Seven ranks on six nodes in two racks: one node has two."""
    bench(make_bed("tree:2x3"), OPERATIONS, "0,20,100K", 6, "--ranks", "7", "--reps", "2")


def test_all_collectives_are_right_interleaved_over_a_leafspine(make_bed):
    bench(make_bed("leafspine:2x2x3"), OPERATIONS, "12,300K", 4, "--placement", "interleaved", "--reps", "2")


@pytest.mark.parametrize("loss,sizes", [(0.01, "0,1000,1M"), (0.05, "0,1000,256K"), (0.2, "0,1000,64K")])
@pytest.mark.parametrize("root", [0, 5])
def test_all_collectives_are_right_with_loss(make_bed, loss, sizes, root):
    bench(make_bed("tree:2x3", host_mbit=50, uplink_mbit=50, loss=loss), OPERATIONS, sizes, root, "--reps", "2", timeout=600)


def test_a_lossy_broadcast_is_repaired_by_the_chain(make_bed):
    report = bench(make_bed("tree:2x3", host_mbit=50, uplink_mbit=50, loss=0.05), "bcast", "4M", 0, "--reps", "1")
    assert report["results"][0]["chunks_repaired"] > 0


def test_two_jobs_at_once_do_not_mix(make_bed):
    """Both check every byte; their groups share nodes, switches and links."""
    bed = make_bed("tree:4x4", host_mbit=50, uplink_mbit=50)
    command = ["cool", "bench", "--ops", OPERATIONS, "--bytes", "1000,500K", "--reps", "3", "--json"]
    jobs = [subprocess.Popen(command, env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for job in jobs:
        out, err = job.communicate(timeout=300)
        assert job.returncode == 0, out + err


def test_a_broadcast_crosses_every_link_once(make_bed):
    """At a rate at which the emulated switches lose nothing, even on a machine that is busy."""
    bed = make_bed("tree:4x4", host_mbit=20, uplink_mbit=20)
    size = 8 << 20
    before = bed.link_bytes()
    succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", str(size), "--reps", "1", "--warmup", "0", "--json")
    after = bed.link_bytes()
    load = {link: (after[link] - before[link]) / size for link in after}
    over = {link: share for link, share in load.items() if share > 1.10}
    assert not over, "links that carried more than 1.10 times the message: %s" % over
    received = [load[tor, host] for tor, host in load if host.startswith("h")]
    assert sum(share > 1.0 for share in received) == 15, "every receiver's link carries the message: %s" % load
