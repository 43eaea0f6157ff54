"""Where the network limits each flow, agents use several TCP connections to each other."""
import os

from conftest import succeed
from test_collectives import bench

CONNECTIONS = 4


def limited(make_bed):
    return make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, flow_mbit=5,
                    controller_flags=("--network", "plain", "--connections-per-hop", str(CONNECTIONS)))


def connections(bed, name):
    """Returns the number of established connections between the agent of a host and each other
    agent, by address."""
    counts = {}
    for line in bed.network.run_in(bed.network.net.get(name), "ss", "-tnH", "state", "established").splitlines():
        peer = line.split()[3].rsplit(":", 1)[0]
        if peer.startswith("10.0.0."):
            counts[peer] = counts.get(peer, 0) + 1
    return counts


def test_results_are_right_over_several_connections(make_bed):
    bed = limited(make_bed)
    bench(bed, "bcast,allreduce,alltoall", "1K,100000,1M", 1, "--reps", "1")
    counts = connections(bed, "h1")
    assert len(counts) == 3 and min(counts.values()) >= CONNECTIONS, counts


def test_a_file_is_copied_over_several_connections(make_bed, tmp_path):
    bed = limited(make_bed)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(2 << 20))
    succeed(bed, "cool", "copy", "--from", "h1", str(source), str(target / "{node}") + "/")
    for node in bed.cool_json("topology")["nodes"]:
        assert (target / node["name"] / "source").read_bytes() == source.read_bytes(), node["name"]
