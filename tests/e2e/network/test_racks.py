"""Racks on networks without OpenFlow: from the LLDP of switches, from a file, and from agents."""
import os
import signal
import socket
import struct
import subprocess

from conftest import log_of, run, succeed, wait_for
from test_any_network import nodes
from test_controllers import restart_controller

RACKS = {"h1": "s2", "h2": "s2", "h3": "s2", "h4": "s3", "h5": "s3", "h6": "s3"}
# Agents do not name their racks.
OPTIONS = {"topology": "tree:2x3", "switches": "bridge", "agent_flags": ("--rack", "")}


def tlv(kind, value):
    return struct.pack("!H", kind << 9 | len(value)) + value


def send_lldp(bed, ttl, forwards=True):
    """Sends an LLDP frame out of each port of a bridge that leads to a host, as a switch does."""
    for link in bed.description["links"]:
        if link["kind"] == "host":
            with open("/sys/class/net/%s/address" % link["a"]) as f:
                address = bytes.fromhex(f.read().strip().replace(":", ""))
            frame = bytes.fromhex("0180c200000e") + address + b"\x88\xcc"
            frame += tlv(1, b"\x04" + address) + tlv(2, b"\x05" + link["a_intf"].encode()) + tlv(3, struct.pack("!H", ttl))
            # The capabilities of a bridge, or those of a host.
            frame += tlv(5, link["a"].encode()) + tlv(7, struct.pack("!HH", 4 | 128, 4 if forwards else 128)) + tlv(0, b"")
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
                sender.bind((link["a_intf"], 0))
                sender.send(frame)


def sources(bed):
    return {node["located_by"] for node in nodes(bed).values()}


def rack_names(bed):
    return {name: node["rack_name"] for name, node in nodes(bed).items()}


def is_grouped(bed):
    """Returns whether two nodes are in the same rack if and only if their hosts are at the same
    bridge."""
    racks = {(RACKS[name], node["rack"]) for name, node in nodes(bed).items()}
    return len(racks) == 2 == len({rack for _, rack in racks})


def test_lldp_of_switches_groups_nodes_into_racks(make_bed):
    bed = make_bed(**OPTIONS)
    assert sources(bed) == {"none"} and len({node["rack"] for node in nodes(bed).values()}) == 1
    assert "no source names the racks of the 6 nodes" in succeed(bed, "cool", "doctor")
    # A host may send LLDP, too.
    send_lldp(bed, ttl=600, forwards=False)
    send_lldp(bed, ttl=600)
    wait_for(lambda: sources(bed) == {"lldp-neighbor"}, "running agents report their switches")
    assert is_grouped(bed) and rack_names(bed) == RACKS
    port = next(link["a_intf"] for link in bed.description["links"] if link["b"] == "h5")
    neighbor = nodes(bed)["h5"]["neighbor"]
    assert (neighbor["port"], neighbor["system_name"]) == (port, "s3")
    line = "h5 (10.0.0.6, 4 slots): LLDP of chassis %s, port %s\n" % (neighbor["chassis"], port)
    assert line in succeed(bed, "cool", "topology")
    # Bridges without a querier flood, which is noted a while after the nodes have joined.
    assert succeed(bed, "cool", "doctor").startswith("nothing is wrong: 0 switches, 6 nodes\n")
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "64K", "--reps", "1")
    # The next controller receives the neighbors with the registrations.
    restart_controller(bed)
    wait_for(lambda: len(nodes(bed)) == 6 and sources(bed) == {"lldp-neighbor"}, "the next controller has the neighbors")
    assert is_grouped(bed)
    # A switch that shuts down announces it.
    send_lldp(bed, ttl=0)
    wait_for(lambda: sources(bed) == {"none"}, "the neighbors are forgotten")


def test_a_file_names_racks_and_agents_correct_it(make_bed, tmp_path):
    bed = make_bed(**OPTIONS)
    file = tmp_path / "racks"
    file.write_text("# two racks\nwest h[1-3]\neast h4,h[5-6]\n")
    restart_controller(bed, "--racks", str(file))
    wait_for(lambda: len(nodes(bed)) == 6 and sources(bed) == {"racks-file"}, "the file names all racks")
    assert is_grouped(bed) and set(rack_names(bed).values()) == {"west", "east"}
    # The operator's file takes precedence over LLDP, and is read again on SIGHUP.
    send_lldp(bed, ttl=600)
    file.write_text("SwitchName=leaf1 Nodes=h[1-3]\nSwitchName=core Switches=leaf[1-2]\nswitchname=leaf2 nodes=h[4-5]  # but not h6\n")
    bed.controller.signal(signal.SIGHUP)
    wait_for(lambda: rack_names(bed)["h1"] == "leaf1", "the topology.conf names the racks")
    wait_for(lambda: nodes(bed)["h6"]["located_by"] == "lldp-neighbor", "its switch names the rack of h6")
    assert rack_names(bed) == {"h1": "leaf1", "h2": "leaf1", "h3": "leaf1", "h4": "leaf2", "h5": "leaf2", "h6": "s3"}
    bed.agent_flags = ("--rack", "leaf2")
    bed.restart_agent("h6")
    bed.agent_flags = OPTIONS["agent_flags"]
    wait_for(lambda: nodes(bed).get("h6", {}).get("located_by") == "agent-option", "the agent names the rack of h6")
    assert is_grouped(bed)
    wait_for(lambda: not run(bed, "cool", "bench", "--ops", "allreduce", "--bytes", "64K", "--reps", "1").returncode, "the agents run a job")
    file.write_text("west h[1-3]\neast\n")
    checked = subprocess.run([os.path.join(bed.bin_dir, "cool-controller"), "--racks", str(file), "--insecure-plaintext", "--check-config"],
                             capture_output=True, text=True)
    assert checked.returncode == 2 and "%s, line 2: rack east has no nodes; write" % file in checked.stderr, checked
    # A file with an error changes nothing.
    bed.controller.signal(signal.SIGHUP)
    wait_for(lambda: "line 2: rack east has no nodes" in log_of(bed, "controller"), "the error is logged")
    assert is_grouped(bed)
    bed.controller_flags = ()
