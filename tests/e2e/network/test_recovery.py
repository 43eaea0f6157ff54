"""Failures of the network and its controller under running collectives, which must end with the
right bytes."""
import json
import os
import random
import re
import signal
import subprocess
import threading

import pytest
from conftest import PATIENCE, end_controller, succeed, wait_for
from test_forwarding import reaches
from test_kmeans import write_npy


def killed_controller(bed, _tree):
    """Kills the controller by SIGKILL, and starts another a moment later."""
    end_controller(bed, signal.SIGKILL)
    bed.start_controller()
    return lambda: None


def cut_link(bed, tree):
    """Cuts an uplink of the tree."""
    link = next(l for l in bed.network.uplinks() if crosses(tree, l))
    bed.network.cut(link)
    return lambda: bed.network.restore(link)


def silenced_link(bed, tree):
    """Makes an uplink of the tree lose all packets without a port going down."""
    link = next(l for l in bed.network.uplinks() if crosses(tree, l))
    bed.network.silence(link)
    return lambda: bed.network.restore(link)


def dead_switch(bed, tree):
    """Ends a spine of the tree: its links go down, and its controller connection ends."""
    spine = spines_of(tree)[0]
    links = [l for l in bed.network.uplinks() if any(i.name.startswith(spine + "-") for i in l)]
    bed.network.disconnect(spine)
    for link in links:
        bed.network.cut(link)

    def restore():
        for link in links:
            bed.network.restore(link)
        bed.network.connect(spine)

    return restore


def silent_switch(bed, tree):
    """Makes a spine of the tree forward nothing, although its links are up and it stays
    connected."""
    spine = spines_of(tree)[0]
    links = [l for l in bed.network.uplinks() if any(i.name.startswith(spine + "-") for i in l)]
    for link in links:
        bed.network.silence(link)
    wait_for(lambda: bed.found()[1] == bed.all_of_it()[1] - len(links), "its links count as lost, so trees and paths lead round it")

    def restore():
        for link in links:
            bed.network.restore(link)

    return restore


FAILURES = [killed_controller, cut_link, silenced_link, dead_switch, silent_switch]


def spines_of(tree):
    """Returns the spines of a tree."""
    return [spine for spine in ("s1", "s2") if any(touches(l, spine) for l in tree)]


def touches(link, switch):
    """Returns whether a switch is an end of a link, given by its name: s1:2-s3:1 is a link of s1
    and of s3."""
    return switch in {end.split(":")[0] for end in link.split("-")}


def crosses(tree, link):
    """Returns whether a tree, given by the names of its links, uses a link, given by its
    interfaces: s1:2-s3:1 is s1-eth2 and s3-eth1."""
    names = {intf.name for intf in link}
    return any({end.replace(":", "-eth") for end in l.split("-")} == names for l in tree)


def tree_of_the_job(bed):
    """Waits until the job has a tree over all its nodes that crosses a spine, and returns the links
    of that tree. A new controller needs a moment to adopt the tree, and after links are restored,
    any controller needs a moment to route the tree over a spine again."""
    def trees():
        trees = [t for g in bed.cool_json("groups")["groups"] for t in g["trees"] if t["scope"] == "all"]
        return [t["links"] for t in trees if spines_of(t["links"])]

    return wait_for(trees, "the job has a tree")[0]


def multicast(bed):
    """Returns the bytes that all switches have sent so far."""
    return sum(bed.link_bytes().values())


@pytest.mark.parametrize("failure", FAILURES)
def test_a_broadcast_of_16_mib_survives(make_bed, failure):
    bed = make_bed("leafspine:2x2x4", host_mbit=12, uplink_mbit=12, lldp_ms=400)
    wait_for(bed.whole, "the network is complete")
    before = multicast(bed)
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", "16M", "--reps", "1", "--warmup", "0", "--json"],
                           env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Some of it has arrived, and most of it has not: it takes more than ten seconds.
    wait_for(lambda: multicast(bed) - before > 8 * (2 << 20), "the broadcast is under way", process=job)
    restore = failure(bed, tree_of_the_job(bed))
    assert job.poll() is None, "the failure occurs while the broadcast runs"
    try:
        out, err = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, out + err
        assert json.loads(out)["results"][0]["bytes"] == 16 << 20
    finally:
        restore()
    wait_for(bed.whole, "the network is whole again")
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "100K", "--reps", "1")


def failovers(switch):
    """Returns the ports that each fast-failover group of a switch watches, in the order of
    preference."""
    groups = subprocess.check_output(["ovs-ofctl", "-O", "OpenFlow13", "--no-names", "dump-groups", switch], text=True)
    return [[int(port) for port in re.findall(r"watch_port:(\d+)", line)] for line in groups.splitlines() if "type=ff" in line]


def test_unicast_fails_over_to_another_uplink_without_controller(make_bed):
    """Between two racks, each direction uses another spine, so the uplink by which a rack sends
    receives nothing."""
    bed = make_bed("leafspine:2x2x4", host_mbit=12, uplink_mbit=12, lldp_ms=400)
    wait_for(bed.whole, "the network is complete")
    one, other = bed.network.net.get("h1"), bed.network.net.get("h5")
    for host, peer in ((one, other), (other, one)):
        wait_for(lambda: reaches(host, peer), "racks reach each other")
        # The controller answers requests for addresses, but it will not run.
        host.cmd("ip neighbour change %s dev %s nud permanent" % (peer.IP(), host.defaultIntf().name))
    for host, peer in ((one, other), (other, one)):
        leaf = next(l["a"] for l in bed.description["links"] if l["b"] == host.name)
        [[preferred, alternate]] = wait_for(lambda: failovers(leaf), "the leaf has a group for fast failover")
        link = next(l for l in bed.network.uplinks() if "%s-eth%d" % (leaf, preferred) in {intf.name for intf in l})
        bed.controller.signal(signal.SIGSTOP)
        try:
            bed.network.cut(link)
            wait_for(lambda: reaches(host, peer) and reaches(peer, host), "racks reach each other without the uplink")
            assert failovers(leaf) == [[preferred, alternate]], "the switch has received no update"
        finally:
            bed.controller.signal(signal.SIGCONT)
        wait_for(lambda: not failovers(leaf), "the only uplink left needs no group")
        wait_for(lambda: reaches(host, peer) and reaches(peer, host), "racks reach each other by the uplink that is left")
        bed.network.restore(link)
        wait_for(lambda: bed.whole() and failovers(leaf) == [[preferred, alternate]], "the network is as before")


def test_k_means_survives_all_of_them(make_bed, tmp_path):
    """The failures occur one after the other in one run, which must compute the result of a single
    process."""
    bed = make_bed("leafspine:2x2x4", host_mbit=3, uplink_mbit=3, lldp_ms=400)
    wait_for(bed.whole, "the network is complete")
    chance = random.Random(5)
    data = str(tmp_path / "points.npy")
    # With unstructured points and many points per cluster, nearly all centroids move for a long
    # time, so the data of an iteration takes half a second.
    write_npy(data, [[chance.random() for _ in range(64)] for _ in range(60000)])
    arguments = [os.path.join(bed.bin_dir, "cool-kmeans"), data, "--clusters", "400", "--iterations", "100", "--seed", "3", "--centroids"]
    alone, together = str(tmp_path / "alone.npy"), str(tmp_path / "together.npy")
    succeed(bed, *arguments, alone, "--alone")
    job = subprocess.Popen(["cool", "run", "-n", "8", "--", *arguments, together], env=bed.environment(), stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    said = []
    threading.Thread(target=lambda: said.extend(job.stdout), daemon=True).start()

    def iterations():
        assert job.poll() is None, "the job runs: " + "".join(said[-20:])
        return sum("iteration " in line for line in said)

    wait_for(lambda: iterations() > 0, "the first iteration")
    for failure in FAILURES:
        before = iterations()
        restore = failure(bed, tree_of_the_job(bed))
        try:
            wait_for(lambda: iterations() > before + 1, "iterations go on after %s" % failure.__name__)
        finally:
            restore()
        wait_for(bed.whole, "the network is whole again")
    assert job.wait(PATIENCE) == 0, "".join(said[-20:])
    with open(alone, "rb") as a, open(together, "rb") as b:
        assert a.read() == b.read()
