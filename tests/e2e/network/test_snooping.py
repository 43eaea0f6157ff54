"""Multicast on ordinary bridges: groups use it where all of their nodes receive it, and chains
elsewhere."""
import json
import subprocess

from conftest import run, succeed, wait_for
from test_controllers import restart_controller
from test_copy import MIB, received_bytes

TREES = "239.192.0.0/14"


def snooping_bed(make_bed):
    """Returns a network in which the bridges forward multicasts only to ports with members: the
    core bridge asks for members, and all bridges listen to the answers."""
    bed = make_bed("tree:2x2", switches="bridge")
    query = ("mcast_query_interval", "500", "mcast_query_response_interval", "50", "mcast_startup_query_interval", "50")
    subprocess.check_call(["ip", "link", "set", "s1", "type", "bridge", "mcast_querier", "1", *query])
    return bed


def uses_multicast(bed, *options):
    """Measures a broadcast, and returns whether its data arrived by multicast instead of from other
    nodes."""
    measured = json.loads(succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", "1M", "--reps", "2", "--json", *options))
    [figures] = measured["results"]
    # Each receiver needs some 730 chunks for each repetition. On a busy machine some multicasts are
    # lost, too.
    return figures["chunks_repaired"] < 730 * (measured["ranks"] - 1)


def drop_multicasts(bed, name, what="-A"):
    bed.network.run_in(bed.network.net.get(name), "iptables", what, "INPUT", "-d", TREES, "-j", "DROP")


def forget_failed_paths(bed):
    """Starts another controller, which does not know which paths have failed."""
    restart_controller(bed)
    bed.wait_until_joined()


def test_groups_use_multicast_where_switches_forward_it(make_bed):
    bed = snooping_bed(make_bed)
    assert uses_multicast(bed)
    assert succeed(bed, "cool", "doctor") == "nothing is wrong: 0 switches, 4 nodes\n"
    # A bridge forwards multicasts of a group only to its members.
    job = subprocess.Popen(["cool", "run", "--hosts", "h1,h3", "-n", "2", "--", "sleep", "3600"], env=bed.environment())
    try:
        wait_for(lambda: bed.cool_json("groups")["groups"], "the job has a group", process=job)
        [group] = bed.cool_json("groups")["groups"]
        [address] = {tree["address"] for tree in group["trees"] if tree["scope"] == "all"}
        members = subprocess.check_output(["bridge", "mdb", "show", "dev", "s3"], text=True)
        ports = {link["b"]: link["a_intf"] for link in bed.description["links"]}
        has_port = {name: "port %s grp %s " % (ports[name], address) in members for name in ("h3", "h4")}
        assert has_port == {"h3": True, "h4": False}, members
    finally:
        job.terminate()
        job.wait()


def test_a_node_that_receives_no_multicast_is_named(make_bed):
    bed = snooping_bed(make_bed)
    drop_multicasts(bed, "h4")
    try:
        assert not uses_multicast(bed)
        found = run(bed, "cool", "doctor")
        assert found.returncode != 0 and "node h4: it does not receive multicasts of h1, h2, h3" in found.stdout, found
        assert "node h3" not in found.stdout, found
        # The first three ranks are on h1, h2 and h3.
        assert uses_multicast(bed, "-n", "3")
    finally:
        drop_multicasts(bed, "h4", "-D")
    forget_failed_paths(bed)
    assert uses_multicast(bed)


def test_data_arrives_where_multicast_stops_during_a_stream(make_bed):
    bed = snooping_bed(make_bed)
    before = received_bytes(bed, "h3")
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", "16M", "--warmup", "0", "--reps", "1"], env=bed.environment(),
                           stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: received_bytes(bed, "h3") > before + 4 * MIB, "a part of the message has arrived", process=job)
        drop_multicasts(bed, "h3")
        out, _ = job.communicate()
        assert job.returncode == 0, out
    finally:
        drop_multicasts(bed, "h3", "-D")


def test_groups_use_chains_where_no_multicast_is_forwarded(make_bed):
    bed = snooping_bed(make_bed)
    hosts = ["h1", "h2", "h3", "h4"]
    for name in hosts:
        drop_multicasts(bed, name)
    try:
        assert not uses_multicast(bed)
        succeed(bed, "cool", "run", "-n", "4", "--", "true")
    finally:
        for name in hosts:
            drop_multicasts(bed, name, "-D")
    forget_failed_paths(bed)
    assert uses_multicast(bed)
