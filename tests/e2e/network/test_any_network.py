"""COOL on networks without OpenFlow: bridges of the kernel, and routers with a subnet for each
rack."""
import os
import subprocess

import pytest
import routed
from conftest import PATIENCE, end_controller, log_of, run, succeed, wait_for
from test_collectives import OPERATIONS, UNEQUAL, bench


def nodes(bed):
    return {node["name"]: node for node in (bed.cool_json("topology") or {"nodes": []})["nodes"]}


ADDRESSES = {"bridge": ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"], "routed": ["10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2"]}


@pytest.mark.parametrize("switches", ["bridge", "routed"])
def test_a_network_without_openflow_needs_no_option(make_bed, tmp_path, switches):
    bed = make_bed("tree:2x2", switches=switches)
    assert [nodes(bed)[name]["ip"] for name in ("h1", "h2", "h3", "h4")] == ADDRESSES[switches]
    assert {(node["located_by"], node["port"]) for node in nodes(bed).values()} == {("agent-option", None)}
    # The testbed names a rack for each switch.
    assert [nodes(bed)[name]["rack_name"] for name in ("h1", "h2", "h3", "h4")] == ["s2", "s2", "s3", "s3"]
    assert ' "s2", not located by OpenFlow switches:\n  h1 (%s, 4 slots): --rack of its agent\n' % ADDRESSES[switches][0] in succeed(bed, "cool", "topology")
    # Bridges without a querier flood, which is noted a while after the nodes have joined.
    assert succeed(bed, "cool", "doctor").startswith("nothing is wrong: 0 switches, 4 nodes\n")
    succeed(bed, "cool", "run", "-n", "8", "--", os.path.join(bed.bin_dir, "cool-misuse"), "sum")
    bench(bed, OPERATIONS + "," + UNEQUAL, "1K,256K", 1, "--reps", "1")
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "file").write_bytes(os.urandom(3 << 20))
    succeed(bed, "cool", "copy", "--from", "h1", str(source / "file"), str(target / "{node}") + "/")
    for name in nodes(bed):
        assert (target / name / "file").read_bytes() == (source / "file").read_bytes(), name


def test_collectives_go_on_when_a_spine_of_routers_fails(make_bed):
    bed = make_bed("leafspine:2x2x2", switches="routed")
    spine_links = [link for link in bed.network.uplinks() if any(intf.node.name == "s1" for intf in link)]
    for link in spine_links:
        bed.network.cut(link)
    bench(bed, OPERATIONS, "1000,64K", 3, "--reps", "1")
    for link in spine_links:
        bed.network.restore(link)


# Receives a datagram that is sent to a group, in an interface with this address, and prints it.
RECEIVE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 9000))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + socket.inet_aton(sys.argv[1]))
print("ready", flush=True)
print(s.recv(100).decode())
"""
# Sends datagrams to the group until it is terminated.
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 8)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
while True:
    s.sendto(b"a datagram", ("239.1.2.3", 9000))
    time.sleep(0.1)
"""


@pytest.mark.skipif(not routed.has_multicast(), reason="smcroute is not installed (`make packages-test` installs it)")
def test_routers_forward_multicast_to_members_in_other_racks(make_bed):
    bed = make_bed("leafspine:2x2x2", switches="routed")

    def start(name, script):
        host = bed.network.net.get(name)
        return subprocess.Popen(["mnexec", "-a", str(host.pid), "/usr/bin/python3", "-c", script, host.IP()], stdout=subprocess.PIPE, text=True)

    receivers = [start(name, RECEIVE) for name in ("h2", "h3", "h4")]
    sender = None
    try:
        assert [receiver.stdout.readline() for receiver in receivers] == ["ready\n"] * 3
        sender = start("h1", SEND)
        assert [receiver.communicate(timeout=PATIENCE)[0] for receiver in receivers] == ["a datagram\n"] * 3
    finally:
        for process in [*receivers, *filter(None, [sender])]:
            process.kill()
            process.wait()


def test_agents_name_their_racks(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    for name, rack in (("h1", "west"), ("h2", "west"), ("h3", "east"), ("h4", "east")):
        bed.agent_flags = ("--rack", rack)
        bed.restart_agent(name)
    bed.agent_flags = ()
    wait_for(lambda: [node["rack_name"] for _, node in sorted(nodes(bed).items())] == ["west", "west", "east", "east"], "all racks are known")
    racks = [node["rack"] for _, node in sorted(nodes(bed).items())]
    assert racks[0] == racks[1] != racks[2] == racks[3], racks
    wait_for(lambda: not run(bed, "cool", "bench", "--ops", "allreduce", "--bytes", "1M", "--reps", "1").returncode, "the restarted agents run a job")


def test_agents_need_no_capability(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    for name in ("h1", "h4"):
        bed.agent_wrappers[name] = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
        bed.restart_agent(name)
        wait_for(lambda: "no permission to send Ethernet frames" in log_of(bed, name), "the agent of %s has no capability" % name)
        assert "receives no LLDP of a switch" in log_of(bed, name)
    bed.agent_wrappers.clear()
    wait_for(lambda: not run(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "64K", "--reps", "1").returncode, "the restarted agents run a job")


def test_nodes_wait_for_switches_if_openflow_is_required(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    bed.controller_flags = ("--network", "openflow")
    end_controller(bed)
    bed.start_controller()
    wait_for(lambda: len(nodes(bed)) == 4, "all agents have joined again")
    assert {node["located_by"] for node in nodes(bed).values()} == {None}
    refused = run(bed, "cool", "run", "-n", "4", "--", "true")
    assert refused.returncode != 0 and "not located by LLDP" in refused.stderr, refused
    bed.controller_flags = ("--network", "plain")
    end_controller(bed)
    bed.start_controller()
    wait_for(lambda: [node["located_by"] for node in nodes(bed).values()] == ["agent-option"] * 4, "all nodes are located at once")
    bed.controller_flags = ()
