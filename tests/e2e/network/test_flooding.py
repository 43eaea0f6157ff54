"""Nodes examine whether ordinary bridges flood multicasts to nodes that have not joined."""
import subprocess
import urllib.request

from conftest import PATIENCE, log_of, succeed, wait_for
from test_any_network import nodes
from test_controllers import restart_controller

FLOODS = "the network floods"
MEMBERS_ONLY = "multicasts reach only the nodes that have joined their address"


def set_snooping(bed, is_on):
    """Changes all bridges, and starts another controller, because nodes examine the network when they have joined."""
    for switch in bed.network.net.switches:
        subprocess.check_call(["ip", "link", "set", switch.name, "type", "bridge", "mcast_snooping", str(int(is_on))])
    restart_controller(bed)
    bed.wait_until_joined()


def conclusion(bed, conclusion):
    """Waits until the controller has logged this result of an examination."""
    wait_for(lambda: conclusion in log_of(bed, "controller"), conclusion)


def flooding_notes(bed):
    return [line for line in succeed(bed, "cool", "doctor").splitlines() if "it floods" in line]


def flooding_metrics(bed):
    """Returns the numbers of nodes that have listened, and that were reached."""
    with urllib.request.urlopen("http://127.0.0.1:7480/metrics", timeout=PATIENCE) as page:
        values = dict(line.rsplit(" ", 1) for line in page.read().decode().splitlines() if not line.startswith("#"))
    return [int(values[name]) for name in ("cool_flooding_listeners", "cool_flooded_nodes")]


def test_bridges_without_snooping_are_noted_with_the_nodes(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    bed.network.net.get("s1").query_members()
    conclusion(bed, MEMBERS_ONLY)
    assert (flooding_notes(bed), flooding_metrics(bed)) == ([], [2, 0])
    set_snooping(bed, False)
    conclusion(bed, FLOODS)
    [note] = flooding_notes(bed)
    assert note.startswith("note: network: it floods: multicasts reach 2 of 2 nodes that listened without having joined (h"), note
    assert "enable IGMP and MLD snooping" in succeed(bed, "cool", "doctor")
    assert flooding_metrics(bed) == [2, 2]
    succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", "256K", "--reps", "1")
    set_snooping(bed, True)
    bed.network.net.get("s1").query_members()
    conclusion(bed, MEMBERS_ONLY)
    assert flooding_notes(bed) == []


def test_a_node_that_is_reached_without_joining_is_named(make_bed):
    bed = make_bed("tree:2x3", switches="bridge")
    bed.network.net.get("s1").query_members()
    # As if multicast routers were there, to which bridges forward all multicasts. Of the three nodes
    # of the rack, one sends, one is a member, and one listens.
    rack = ("h4", "h5", "h6")
    for port in [link["a_intf"] for link in bed.description["links"] if link["b"] in rack]:
        subprocess.check_call(["bridge", "link", "set", "dev", port, "mcast_router", "2"])
    wait_for(lambda: len(nodes(bed)) == 6, "all nodes have joined")
    conclusion(bed, FLOODS)
    [note] = flooding_notes(bed)
    named = ["multicasts reach 1 of 6 nodes that listened without having joined (%s)" % node for node in rack]
    assert any(text in note for text in named), note
