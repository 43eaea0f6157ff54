"""Users' networks: a Mininet Topo or a discovered network, with hosts on any switch. Faults are
reported in one line."""
import json
import os
import re
import subprocess

import pytest
from conftest import ROOT, succeed

import topologies

# A ring of three switches with a host each, and another switch with two hosts, which is connected
# to the ring by a slow link.
RING = """
from mininet.topo import Topo

class Ring(Topo):
    def build(self):
        ring = [self.addSwitch("core%d" % n) for n in (1, 2, 3)]
        for n, switch in enumerate(ring, start=1):
            self.addLink(switch, ring[n % 3])
            self.addLink(self.addHost("c%d" % n), switch)
        edge = self.addSwitch("edge", dpid="00000000000000ff")
        self.addLink(edge, ring[0], bw=10)
        for n in (1, 2):
            self.addLink(self.addHost("e%d" % n), edge)
"""


def error_of_file(folder, text, name="Own"):
    """Returns the error message for a user's file with this text."""
    path = folder / "own.py"
    path.write_text("from mininet.topo import Topo\n" + text)
    with pytest.raises(ValueError) as error:
        topologies.parse("%s:%s" % (path, name))
    return str(error.value)


def build(*lines):
    return "class Own(Topo):\n    def build(self):\n" + "".join("        %s\n" % line for line in lines)


@pytest.mark.parametrize("lines,message", [
    (["self.addSwitch('s1')"], "0 hosts; expected 1 to 250"),
    (["self.addHost('h1')"], "host h1 has 0 links; expected one"),
    (["self.addLink(self.addHost('h1'), self.addHost('h2'))"], "link h1-h2: expected a switch at one end at least"),
    (["s = self.addSwitch('s1')", "h = self.addHost('h1')", "self.addLink(h, s)", "self.addLink(h, s)"], "host h1 has 2 links; expected one"),
    (["self.addLink(self.addHost('h1'), self.addSwitch('core'))"], "switch core: expected a number in its name, or dpid=.. for addSwitch"),
    (["self.addSwitch('a1')", "self.addLink(self.addHost('h1'), self.addSwitch('b1'))"], "switches a1 and b1 have the same datapath id, 1"),
    (["self.addSwitch('s2')", "self.addLink(self.addHost('h1'), self.addSwitch('s1'))"], "no links lead from h1 to s2"),
    (["self.addLink(self.addHost('h1'), self.addSwitch('s1'), delay='5ms')"], "link h1-s1: delay is not emulated, only bw (Mbit/s)"),
    (["self.addLink(self.addHost('h1'), self.addSwitch('s1'), bw=-1)"], "link h1-s1: bw=-1: expected Mbit/s from above 0 to 100000"),
    (["self.addLink(self.addHost('a-long-name'), self.addSwitch('s1'))"], "Linux has no name as long as a-long-name-eth0"),
    (["raise RuntimeError('no\\nway')"], "Own() failed: RuntimeError: no way"),
])
def test_a_topo_that_cannot_be_emulated_is_refused_in_one_line(tmp_path, lines, message):
    text = error_of_file(tmp_path, build(*lines))
    assert message in text and len(text.splitlines()) == 1 and text.startswith("topology %s/own.py:Own: " % tmp_path), text


def test_a_file_without_the_class_is_refused_with_those_it_has(tmp_path):
    assert "has no class Other derived of mininet.topo.Topo; it has Own" in error_of_file(tmp_path, "class Own(Topo): pass\nOther = 3\n", "Other")
    assert "cannot be loaded: SyntaxError" in error_of_file(tmp_path, "class Own(Topo:\n")
    assert "cannot be loaded: ModuleNotFoundError" in error_of_file(tmp_path, "import no_such_module\n")


@pytest.mark.parametrize("text,message", [
    ("tree:0x3", "expected at least one rack"), ("leafspine:2x0x2", "expected at least one rack"), ("tree:9x90", "at most 250 hosts"),
    ("tree", "expected tree:RxK"), ("/no/such.json", "No such file"), ("/no/such.py:Own", "there is no file /no/such.py"),
])
def test_an_unknown_name_is_refused_with_the_expected_forms(text, message):
    process = subprocess.run([os.path.join(ROOT, "mininet", "testbed.py"), "--topology", text, "--", "true"], capture_output=True, text=True)
    assert process.returncode == 2 and message in process.stderr.splitlines()[-1] and text in process.stderr, process.stderr


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"switches": [], "links": [], "nodes": []}', '{"switches": 3, "links": [], "nodes": []}',
                                     '{"switches": [], "links": [{"a": 1, "b": 2, "a_port": 1, "b_port": 1}], "nodes": []}'])
def test_json_that_is_no_topology_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "seen.json"
    path.write_text(content)
    with pytest.raises(ValueError) as error:
        topologies.parse(str(path))
    assert re.match(r"topology %s: (not what `cool topology --json` prints: .*|0 hosts; .*)$" % path, str(error.value)), error.value


def test_nodes_whose_names_no_interface_can_have_are_numbered():
    topology = {"switches": [{"datapath_id": 7}], "links": [],
            "nodes": [{"name": "node-1.example.org", "located": True, "datapath_id": 7, "port": 3}, {"name": "h9", "located": False}]}
    topo = topologies.DiscoveredTopo(topology)
    topologies.check(topo)
    assert topo.hosts() == ["h1"] and topo.port("s1", "h1") == (3, 0)


def structure(topology):
    """Returns a discovered topology without the parts that depend on names of switches."""
    links = {frozenset([(l["a"], l["a_port"]), (l["b"], l["b_port"])]) for l in topology["links"]}
    return links, {(n["name"], n["datapath_id"], n["port"]) for n in topology["nodes"]}


def test_a_discovered_topo_is_rebuilt_and_carries_collectives(make_bed, tmp_path):
    ring_file = tmp_path / "ring.py"
    ring_file.write_text(RING)
    bed = make_bed("%s:Ring" % ring_file, host_mbit=20, uplink_mbit=20)
    assert {l["mbit"] for l in bed.description["links"] if l["kind"] == "uplink"} == {10, 20}
    topology = bed.cool_json("topology")
    assert {n["name"]: n["datapath_id"] for n in topology["nodes"]} == {"c1": 1, "c2": 2, "c3": 3, "e1": 255, "e2": 255}
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce,gather,barrier", "--bytes", "1000,300K", "--root", "1", "--reps", "1")
    topology_file = tmp_path / "seen.json"
    topology_file.write_text(json.dumps(topology))
    bed = make_bed(str(topology_file))
    assert structure(bed.cool_json("topology")) == structure(topology)
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce,gather,barrier", "--bytes", "1000,300K", "--root", "4", "--reps", "1")
