"""Multicast on ordinary bridges: groups use it where all of their nodes receive it, and chains
elsewhere."""
import json
import subprocess

import pytest
from conftest import log_of, run, succeed, wait_for
from test_controllers import restart_controller
from test_copy import MIB, received_bytes

APPOINTED = "no querier of multicast groups is heard, so the node queries"
# Sends a general query of IGMPv2 to all hosts, from the address that is the argument.
QUERY = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP) as s:
    s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
    s.sendto(bytes.fromhex("1164ee9b00000000"), ("224.0.0.1", 0))
"""


def snooping_bed(make_bed):
    """Returns a network in which the bridges forward multicasts only to ports with members: the
    core bridge asks for members, and all bridges listen to the answers."""
    bed = make_bed("tree:2x2", switches="bridge")
    bed.network.net.get("s1").query_members()
    return bed


def uses_multicast(bed, *options):
    """Measures a broadcast, and returns whether its data arrived by multicast instead of from other
    nodes. On fast links the planner might prefer TCP."""
    measured = json.loads(succeed(bed, "cool", "bench", "--ops", "bcast", "--plan", "bcast=multicast", "--bytes", "1M", "--reps", "2", "--json", *options))
    [figures] = measured["results"]
    # Each receiver needs some 730 chunks for each repetition. On a busy machine some multicasts are
    # lost, too.
    return figures["chunks_repaired"] < 730 * (measured["ranks"] - 1)


def set_multicast(bed, name, received):
    bed.network.set_multicast(bed.network.net.get(name), received)


def forget_failed_paths(bed):
    """Starts another controller, which does not know which paths have failed."""
    restart_controller(bed)
    bed.wait_until_joined()


def wait_for_multicast(bed):
    """Waits until groups use multicast. Earlier tests of this network may have made paths fail, and on a busy machine the proof
    of a tree may fail."""
    wait_for(lambda: uses_multicast(bed) or forget_failed_paths(bed), "groups use multicast")


def tree_of_all(bed):
    """Returns the address to which the only group sends multicasts for all of its nodes, or None."""
    return next((tree["address"] for group in bed.cool_json("groups")["groups"] for tree in group["trees"] if tree["scope"] == "all"), None)


def test_groups_use_multicast_where_switches_forward_it(make_bed):
    bed = snooping_bed(make_bed)
    assert uses_multicast(bed)
    assert succeed(bed, "cool", "doctor") == "nothing is wrong: 0 switches, 4 nodes\n"
    # A bridge forwards multicasts of a group only to its members.
    job = subprocess.Popen(["cool", "run", "--hosts", "h1,h3", "-n", "2", "--", "sleep", "3600"], env=bed.environment())
    try:
        address = wait_for(lambda: tree_of_all(bed), "the job has a group with a tree", process=job)
        ports = {link["b"]: link["a_intf"] for link in bed.description["links"]}

        def has_port():
            members = subprocess.check_output(["bridge", "mdb", "show", "dev", "s3"], text=True)
            return {name: "port %s grp %s " % (ports[name], address) in members for name in ("h3", "h4")}

        # The group is listed before all of its nodes have joined the address.
        wait_for(lambda: has_port()["h3"], "the bridge knows the member", process=job)
        assert has_port() == {"h3": True, "h4": False}
    finally:
        job.terminate()
        job.wait()


def test_a_node_that_receives_no_multicast_is_named(make_bed):
    bed = snooping_bed(make_bed)
    set_multicast(bed, "h4", False)
    try:
        assert not uses_multicast(bed)
        found = run(bed, "cool", "doctor")
        assert found.returncode != 0 and "node h4: it does not receive multicasts of h1, h2, h3" in found.stdout, found
        assert "node h3" not in found.stdout, found
        # The first three ranks are on h1, h2 and h3.
        assert uses_multicast(bed, "-n", "3")
    finally:
        set_multicast(bed, "h4", True)
    forget_failed_paths(bed)
    assert uses_multicast(bed)


def test_data_arrives_where_multicast_stops_during_a_stream(make_bed):
    bed = snooping_bed(make_bed)
    before = received_bytes(bed, "h3")
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", "16M", "--warmup", "0", "--reps", "1"], env=bed.environment(),
                           stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: received_bytes(bed, "h3") > before + 4 * MIB, "a part of the message has arrived", process=job)
        set_multicast(bed, "h3", False)
        out, _ = job.communicate()
        assert job.returncode == 0, out
    finally:
        set_multicast(bed, "h3", True)


def test_a_node_renews_a_membership_that_a_bridge_forgot(make_bed):
    bed = snooping_bed(make_bed)
    wait_for_multicast(bed)
    [port] = [link["a_intf"] for link in bed.description["links"] if link["b"] == "h3"]
    before = received_bytes(bed, "h3")
    # The broadcasts are more than are needed. Hosts report a membership within 10 s.
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", "16M", "--reps", "100000", "--plan", "multicast"], env=bed.environment(),
                           stdout=subprocess.DEVNULL)
    try:
        # Only a membership that disappears after the proof of the tree is missed. On a busy machine a proof may fail, and is repeated.
        wait_for(lambda: received_bytes(bed, "h3") > before + 4 * MIB, "broadcasts have begun", process=job)
        address = wait_for(lambda: tree_of_all(bed), "the job has a group with a proven tree", process=job)
        entry = ("dev", "s3", "port", port, "grp", address)

        def is_member():
            return " ".join(entry[2:]) in subprocess.check_output(["bridge", "mdb", "show", "dev", "s3"], text=True)

        wait_for(is_member, "the bridge knows the member", process=job)
        # No query reminds the member. The bridges remember the querier and the other members for minutes.
        subprocess.check_call(["ip", "link", "set", "s1", "type", "bridge", "mcast_querier", "0"])
        subprocess.check_call(["bridge", "mdb", "del", *entry])
        wait_for(lambda: "although other nodes receive them; the membership is renewed" in log_of(bed, "h3"), "the node renews its membership",
                 process=job)
        wait_for(is_member, "the bridge knows the member again", process=job)
        # A wrong result would have ended it.
        assert job.poll() is None
    finally:
        job.terminate()
        job.wait()
        bed.network.net.get("s1").query_members()


@pytest.mark.parametrize("size", ["1M", "32K"])
def test_a_tree_that_stops_is_withdrawn_until_it_works(make_bed, size):
    bed = snooping_bed(make_bed)
    wait_for_multicast(bed)
    # The broadcasts are more than are needed. A wrong result would end them.
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", size, "--reps", "1000000", "--plan", "multicast"], env=bed.environment(),
                           stdout=subprocess.DEVNULL)
    try:
        address = wait_for(lambda: tree_of_all(bed), "the job has a group with a tree", process=job)
        set_multicast(bed, "h4", False)
        wait_for(lambda: tree_of_all(bed) is None, "the tree is withdrawn", process=job)
        # The port may drop the packets of a proof that has begun, and so only those of some senders. The next proof fails for all.
        finding = "node h4: it does not receive multicasts of h1, h2, h3"
        wait_for(lambda: finding in (found := run(bed, "cool", "doctor")).stdout and found.returncode != 0, "the doctor names the senders",
                 process=job)
        # The port drops multicasts, so this is data from other nodes.
        before = received_bytes(bed, "h4")
        wait_for(lambda: received_bytes(bed, "h4") > before + 4 * MIB, "chains deliver the data", process=job)
        set_multicast(bed, "h4", True)
        wait_for(lambda: tree_of_all(bed) == address, "the tree returns", process=job)
        found = run(bed, "cool", "doctor")
        assert "does not receive multicasts of" not in found.stdout, found
        assert job.poll() is None
    finally:
        set_multicast(bed, "h4", True)
        job.terminate()
        job.wait()


def test_groups_use_chains_where_no_multicast_is_forwarded(make_bed):
    bed = snooping_bed(make_bed)
    hosts = ["h1", "h2", "h3", "h4"]
    for name in hosts:
        set_multicast(bed, name, False)
    try:
        assert not uses_multicast(bed)
        succeed(bed, "cool", "run", "-n", "4", "--", "true")
    finally:
        for name in hosts:
            set_multicast(bed, name, True)
    forget_failed_paths(bed)
    assert uses_multicast(bed)


def bed_without_querier(make_bed, patience):
    """Returns a network in which a node becomes querier after this time in seconds. Each time has a
    network of its own."""
    return make_bed("tree:2x2", switches="bridge", controller_flags=("--querier-patience", str(patience)))


def set_flooding(bed, state):
    """Makes bridges flood multicasts without known members to hosts, or not."""
    for link in bed.description["links"]:
        if link["kind"] == "host":
            subprocess.check_call(["bridge", "link", "set", "dev", link["a_intf"], "mcast_flood", state])


def test_nodes_query_where_bridges_deliver_to_known_members_only(make_bed):
    bed = bed_without_querier(make_bed, 2)
    set_flooding(bed, "off")
    try:
        # Bridges know members only while there is a querier.
        wait_for(lambda: uses_multicast(bed), "groups use multicast")
        # Not even queries reach the hosts, so each asks its own system.
        wait_for(lambda: log_of(bed, "controller").count(APPOINTED) == 4, "each node queries")
    finally:
        set_flooding(bed, "on")


def test_one_node_queries_until_a_router_does(make_bed):
    bed = bed_without_querier(make_bed, 3)
    wait_for(lambda: APPOINTED in log_of(bed, "controller"), "a node queries")
    hosts = {host["name"]: host["ip"] for host in bed.description["hosts"]}
    heard = "another querier of multicast groups is heard"
    wait_for(lambda: sum(heard in log_of(bed, host) for host in hosts) == len(hosts) - 1, "the other nodes hear it")
    router = next(host for host in hosts if heard in log_of(bed, host))
    bed.network.run_in(bed.network.net.get(router), "/usr/bin/python3", "-c", QUERY, hosts[router])
    wait_for(lambda: "the node queries no longer" in log_of(bed, "controller"), "the node is no querier any more")
    assert log_of(bed, "controller").count(APPOINTED) == 1
    assert uses_multicast(bed)
