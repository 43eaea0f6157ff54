"""The controller discovers the emulated network."""
import pytest


@pytest.mark.parametrize("topology", ["tree:4x4", "tree:2x3", "leafspine:2x2x3"])
def test_the_discovered_topology_is_the_emulated_one(make_bed, topology):
    bed = make_bed(topology)
    discovered, emulated = bed.cool_json("topology"), bed.description
    dpid = {s["name"]: s["dpid"] for s in emulated["switches"]}

    assert {s["datapath_id"] for s in discovered["switches"]} == set(dpid.values())
    discovered_links = {frozenset([(l["a"], l["a_port"]), (l["b"], l["b_port"])]) for l in discovered["links"]}
    uplinks = [l for l in emulated["links"] if l["kind"] == "uplink"]
    assert discovered_links == {frozenset([(dpid[l["a"]], l["a_port"]), (dpid[l["b"]], l["b_port"])]) for l in uplinks}

    ports = {l["b"]: (dpid[l["a"]], l["a_port"]) for l in emulated["links"] if l["kind"] == "host"}
    assert {n["name"]: (n["datapath_id"], n["port"]) for n in discovered["nodes"]} == ports
    assert {n["name"]: n["ip"] for n in discovered["nodes"]} == {h["name"]: h["ip"] for h in emulated["hosts"]}


def test_racks_are_the_nodes_under_one_switch(make_bed):
    """Racks are numbered in the order in which they appear, and keep their numbers; any rack may be
    first."""
    bed = make_bed("tree:2x3")
    racks = {}
    for node in bed.cool_json("topology")["nodes"]:
        racks.setdefault(node["rack"], set()).add(node["name"])
    assert sorted(racks) == [0, 1]
    assert sorted(map(sorted, racks.values())) == [["h1", "h2", "h3"], ["h4", "h5", "h6"]]
