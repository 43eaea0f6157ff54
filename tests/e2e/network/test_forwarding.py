"""Unusual forwarding: frames with a VLAN tag, frames of 9000 bytes, and switches that forward
unicast themselves."""
import contextlib
import json
import os
import re
import subprocess
import time

from conftest import PATIENCE, ROOT, succeed, wait_for

VLAN = 42
HOST = os.path.join(ROOT, "tests", "e2e", "host.py")
# Number of broadcasts in a test of loops, and a number that broadcasts in a loop exceed at once.
CLAIMS, CIRCULATING_CLAIMS = 10, 200


def vsctl(*arguments):
    return subprocess.check_output(["ovs-vsctl", "--timeout=%d" % PATIENCE, *arguments], text=True).strip()


def reaches(host, other):
    """Returns whether one host can connect to the agent of another by TCP."""
    return "reached" in host.cmd("timeout 5 bash -c 'echo > /dev/tcp/%s/7420' 2>&1 && echo reached" % other.IP())


def host_ports(bed):
    """Returns the switch and its interface of every host's link."""
    hosts = {h.name for h in bed.network.net.hosts}
    for link in bed.network.net.links:
        ends = (link.intf1, link.intf2)
        for host, switch in (ends, ends[::-1]):
            if host.node.name in hosts and switch.node in bed.network.net.switches:
                yield switch.node.name, switch.name


@contextlib.contextmanager
def legacy_switch(*switches):
    """Connects switches during the context by one that forwards everything but LLDP, as unmanaged
    switches do."""
    try:
        vsctl("add-br", "legacy", "--", "set", "bridge", "legacy", "datapath_type=netdev", "fail-mode=secure", "protocols=OpenFlow13")
        # The flow for ARP counts the claims.
        for flow in ("priority=10,dl_type=0x88cc,actions=drop", "priority=10,arp,arp_op=2,dl_dst=ff:ff:ff:ff:ff:ff,actions=NORMAL",
                     "priority=1,actions=NORMAL"):
            subprocess.check_call(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", "legacy", flow])
        for switch in switches:
            vsctl("add-port", switch, switch + "-legacy", "--", "set", "interface", switch + "-legacy", "type=patch", "ofport_request=40",
                  "options:peer=legacy-" + switch, "--",
                  "add-port", "legacy", "legacy-" + switch, "--", "set", "interface", "legacy-" + switch, "type=patch",
                  "options:peer=%s-legacy" % switch)
        yield
    finally:
        for switch in switches:
            vsctl("--if-exists", "del-port", switch, switch + "-legacy")
        vsctl("--if-exists", "del-br", "legacy")


def claims_across_legacy_switch():
    """Returns how many claims of addresses (host.py) the legacy switch has forwarded."""
    # The switch process counts packets in intervals; this waits until it has.
    subprocess.check_call(["ovs-appctl", "revalidator/wait"])
    counted = subprocess.check_output(["ovs-ofctl", "-O", "OpenFlow13", "dump-aggregate", "legacy", "arp"], text=True)
    return int(re.search(r"packet_count=(\d+)", counted).group(1))


def check_claims_do_not_circulate(claim):
    """Checks that claims, each of which is broadcast by `claim`, cross the legacy switch, but do not
    return to it again and again."""
    before = claims_across_legacy_switch()
    for _ in range(CLAIMS):
        claim()
    wait_for(lambda: claims_across_legacy_switch() > before, "claims cross the legacy switch")
    assert claims_across_legacy_switch() - before < CIRCULATING_CLAIMS


def insert_tagging_bridge(switch, port):
    """Inserts a bridge between a host and its switch, which tags all frames from the host, like a
    VLAN interface of the host, and removes the tags of frames to it. Returns the bridge."""
    bridge, number = "v-" + port, vsctl("get", "interface", port, "ofport")
    vsctl("del-port", switch, port, "--",
          "add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "fail-mode=secure", "protocols=OpenFlow13", "--",
          "add-port", bridge, port, "--", "set", "interface", port, "ofport_request=1", "--",
          "add-port", bridge, bridge + "-up", "--", "set", "interface", bridge + "-up", "type=patch", "ofport_request=2",
          "options:peer=%s-down" % bridge, "--",
          "add-port", switch, bridge + "-down", "--", "set", "interface", bridge + "-down", "type=patch", "ofport_request=" + number,
          "options:peer=%s-up" % bridge)
    for flow in ("in_port=1,actions=push_vlan:0x8100,set_field:%d->vlan_vid,output:2" % (VLAN | 0x1000),
                 "in_port=2,dl_vlan=%d,actions=pop_vlan,output:1" % VLAN):
        subprocess.check_call(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", bridge, flow])
    return bridge


@contextlib.contextmanager
def tagged_hosts(bed):
    """Puts all hosts into a VLAN during the context."""
    ports = list(host_ports(bed))
    numbers = {port: vsctl("get", "interface", port, "ofport") for _, port in ports}
    try:
        yield [insert_tagging_bridge(switch, port) for switch, port in ports]
    finally:
        for switch, port in ports:
            bridge = "v-" + port
            vsctl("--if-exists", "del-port", switch, bridge + "-down", "--", "--if-exists", "del-br", bridge, "--",
                  "--may-exist", "add-port", switch, port, "--", "set", "interface", port, "ofport_request=" + numbers[port])


def test_hosts_in_a_vlan_run_collectives_by_multicast(make_bed):
    bed = make_bed("tree:2x2")
    with tagged_hosts(bed) as bridges:
        def all_nodes_located():
            topology = bed.cool_json("topology")
            return topology and len(topology["nodes"]) == 4 and all(n["located"] for n in topology["nodes"])

        wait_for(all_nodes_located, "all nodes are found in their VLAN")
        h1, h4 = bed.network.net.get("h1"), bed.network.net.get("h4")
        wait_for(lambda: reaches(h1, h4), "ARP and unicast pass")
        succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "1M", "--reps", "1")
        for bridge in bridges:
            flows = subprocess.check_output(["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", bridge], text=True)
            assert flows.count("n_packets=0,") == 0 and flows.count("n_packets=") == 2, flows
    wait_for(all_nodes_located, "all nodes are found without it")


def test_frames_of_9000_bytes_carry_collectives(make_bed):
    bed = make_bed("tree:2x2", mtu=9000)

    def sent_counters():
        """Returns packets and bytes sent to hosts."""
        statistics = [json.loads(vsctl("--format=json", "--columns=statistics", "list", "interface", port))["data"][0][0][1]
                for _, port in host_ports(bed)]
        return [sum(dict(s)[name] for s in statistics) for name in ("tx_packets", "tx_bytes")]

    before = sent_counters()
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "4M", "--reps", "2")
    wait_for(lambda: sent_counters()[1] - before[1] > 4 * (4 << 20), "the switches have counted")
    packets, carried = (now - then for now, then in zip(sent_counters(), before))
    assert carried / packets > 4500, "%d bytes in %d packets" % (carried, packets)


def test_switches_forward_unicast_and_cool_adds_multicast(make_bed):
    bed = make_bed("leafspine:2x2x2", lldp_ms=400, controller_flags=("--unicast", "normal"))
    hosts = bed.network.net.hosts

    def all_reachable():
        return all(reaches(hosts[0], other) for other in hosts[1:])

    wait_for(all_reachable, "all hosts reach each other")
    assert hosts[3].MAC() in hosts[0].cmd("ip neigh show " + hosts[3].IP()), "the switches carry ARP"
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "1M", "--reps", "1")
    # Four uplinks form a loop, in which flooded frames must not circulate. The agents have finished
    # probing each other.
    bed.wait_until_measured(timeout=PATIENCE)
    before = sum(bed.link_bytes().values())
    time.sleep(2)
    assert sum(bed.link_bytes().values()) - before < 200_000
    for link in bed.network.uplinks():
        bed.network.cut(link)
        wait_for(all_reachable, "all hosts reach each other without one link")
        bed.network.restore(link)
        wait_for(lambda: len(bed.cool_json("topology")["links"]) == 4, "the link is found again")
        wait_for(all_reachable, "all hosts reach each other with the link")


def test_ports_that_a_legacy_switch_connects_form_no_loop(make_bed):
    bed = make_bed("leafspine:2x2x2", lldp_ms=400, controller_flags=("--unicast", "normal"))
    hosts = bed.network.net.hosts
    leaves = sorted({switch for switch, _ in host_ports(bed)})

    def all_reachable():
        return all(reaches(hosts[0], other) for other in hosts[1:])

    def blocked():
        """Returns the leaves whose port to the legacy switch is blocked."""
        warnings = bed.cool_json("topology")["warnings"]
        return [leaf for leaf in leaves if any("port %s:40 is blocked" % leaf in warning for warning in warnings)]

    with legacy_switch(*leaves):
        wait_for(lambda: len(blocked()) == 1, "the controller blocks one of the two ports")
        check_claims_do_not_circulate(lambda: hosts[0].cmd("/usr/bin/python3 %s h1-eth0 claim %s" % (HOST, hosts[0].IP())))
        assert all_reachable()
        open_leaf, = set(leaves) - set(blocked())
        vsctl("del-port", "legacy", "legacy-" + open_leaf)
        wait_for(lambda: not blocked(), "the other port is opened without the cable at the first")
        assert all_reachable()
    wait_for(all_reachable, "all hosts reach each other without the legacy switch")
