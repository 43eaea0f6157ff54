"""Hosts without an agent reach each other, nodes and gateways as through any switch, and cannot
take over the address of another host."""
import contextlib
import json
import os
import re
import signal
import subprocess

from conftest import PATIENCE, end_agent, end_controller, succeed, wait_for
from test_forwarding import HOST, check_claims_do_not_circulate, legacy_switch, vsctl

import network


def host(bed, name):
    return bed.network.net.get(name)


def reaches(bed, name, ip):
    return succeeds(start(bed, name, "reach", ip))


def succeeds(program):
    program.communicate(timeout=PATIENCE)
    return program.returncode == 0


def reach(bed, *pairs):
    for name, other in pairs:
        wait_for(lambda: reaches(bed, name, host(bed, other).IP()), "%s reaches %s" % (name, other))


def start(bed, name, *arguments, vlan=None):
    """Starts the program of a host in the background."""
    command = ["mnexec", "-a", str(host(bed, name).pid), "/usr/bin/python3", HOST, device(name, vlan), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def device(name, vlan=None):
    return name + "-eth0" + (".%d" % vlan if vlan else "")


def run_program(bed, name, *arguments, vlan=None):
    out, err = start(bed, name, *arguments, vlan=vlan).communicate(timeout=PATIENCE)
    assert not err, err
    return out


def hosts(bed):
    """Returns the hosts that the controller shows: port and addresses by Ethernet address."""
    return {h["mac"]: ((h["datapath_id"], h["port"]), h["addresses"]) for h in (bed.cool_json("topology") or {"hosts": []})["hosts"]}


def neighbor(bed, name, ip):
    """Returns the Ethernet address of another host in the neighbor table of a host."""
    match = re.search(r"lladdr (\S+)", host(bed, name).cmd("ip neigh show " + ip))
    return match and match[1]


def flows(switch):
    return subprocess.check_output(["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", switch], text=True).splitlines()


def test_hosts_reach_hosts_nodes_and_all_addresses_of_a_gateway(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    reach(bed, ("h2", "h5"), ("h2", "h3"), ("h5", "h1"), ("h4", "h5"), ("h1", "h4"))
    # A host is reached by its own Ethernet address, as through any switch; a node by an address
    # that contains its rack.
    assert neighbor(bed, "h2", host(bed, "h5").IP()) == host(bed, "h5").MAC()
    assert neighbor(bed, "h5", host(bed, "h1").IP()).startswith("02:c0:")
    for address in ("10.0.9.1", "10.0.9.2"):
        host(bed, "h5").cmd("ip address add %s/16 dev h5-eth0" % address)
        wait_for(lambda: reaches(bed, "h2", address) and reaches(bed, "h1", address), "the gateway is reached by " + address)
    host(bed, "h4").cmd("ip address add 10.0.9.3/16 dev h4-eth0")
    wait_for(lambda: reaches(bed, "h2", "10.0.9.3"),
             "a node is reached by an address that its agent did not report")
    place, addresses = hosts(bed)[host(bed, "h5").MAC()]
    assert {"10.0.9.1", "10.0.9.2", host(bed, "h5").IP()} == set(addresses) and place[0] == 3, (place, addresses)
    assert "%s at s3 port" % host(bed, "h5").MAC() in succeed(bed, "cool", "topology")
    assert succeed(bed, "cool", "doctor") == "nothing is wrong: 3 switches, 3 nodes\n"
    succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", "1M", "--reps", "1")


def test_broadcasts_and_link_multicast_reach_all_hosts(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    # The last client is a node that uses multicast DNS.
    for server, client, *group in (("h5", "h2"), ("h4", "h3"), ("h5", "h1"), ("h5", "h1", "224.0.0.251")):
        program = start(bed, server, "serve")
        assert program.stdout.readline() == "serves\n"
        assert run_program(bed, client, "discover", *group) == "OFFER\n"
        program.communicate(timeout=PATIENCE)


def test_no_host_takes_the_address_of_a_node(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    node = host(bed, "h1").IP()
    reach(bed, ("h5", "h1"), ("h2", "h5"))
    before = neighbor(bed, "h5", node)
    run_program(bed, "h2", "claim", node)
    warning = "claims an address of node h1"
    wait_for(lambda: any(warning in w for w in bed.cool_json("topology")["warnings"]),
             "the controller reports it")
    assert neighbor(bed, "h5", node) == before and before.startswith("02:c0:")
    own_mac = host(bed, "h2").MAC()
    try:
        host(bed, "h2").cmd("ip link set h2-eth0 address " + host(bed, "h1").MAC())
        run_program(bed, "h2", "claim", "10.0.0.77")
        wait_for(lambda: any(host(bed, "h1").MAC() in w for w in bed.cool_json("topology")["warnings"]),
                 "the controller reports that too")
        assert host(bed, "h1").MAC() not in hosts(bed)
    finally:
        host(bed, "h2").cmd("ip link set h2-eth0 address " + own_mac)
    reach(bed, ("h5", "h1"))


def test_a_host_that_moves_is_found_at_its_new_port(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    reach(bed, ("h2", "h5"), ("h1", "h2"))
    ip, mac = host(bed, "h2").IP(), host(bed, "h2").MAC()
    own_ip, own_mac = host(bed, "h5").IP(), host(bed, "h5").MAC()
    host(bed, "h2").cmd("ip address flush dev h2-eth0; ip link set h2-eth0 address 02:00:00:00:02:02")
    host(bed, "h5").cmd("ip address flush dev h5-eth0; ip link set h5-eth0 address %s; ip address add %s/16 dev h5-eth0" % (mac, ip))
    run_program(bed, "h5", "claim", ip)
    wait_for(lambda: hosts(bed).get(mac, ((0, 0),))[0][0] == 3, "the host is at its new port")
    wait_for(lambda: reaches(bed, "h1", ip) and reaches(bed, "h3", ip), "others reach the host at its new port")
    host(bed, "h5").cmd("ip address flush dev h5-eth0; ip link set h5-eth0 address %s; ip address add %s/16 dev h5-eth0" % (own_mac, own_ip))
    host(bed, "h2").cmd("ip address flush dev h2-eth0; ip link set h2-eth0 address %s; ip address add %s/16 dev h2-eth0" % (mac, ip))
    run_program(bed, "h2", "claim", ip)
    run_program(bed, "h5", "claim", own_ip)
    reach(bed, ("h2", "h5"), ("h1", "h2"))


@contextlib.contextmanager
def without_loss(bed, name, other):
    """Asserts that no datagram between two hosts is lost during the context. Their address
    resolution is not tested."""
    for a, b in ((name, other), (other, name)):
        host(bed, a).cmd("ip neigh replace %s lladdr %s dev %s-eth0 nud permanent"
                         % (host(bed, b).IP(), neighbor(bed, a, host(bed, b).IP()), a))
    echo, send = start(bed, other, "echo"), None
    try:
        assert echo.stdout.readline() == "echoes\n"
        send = start(bed, name, "send", host(bed, other).IP())
        yield
        out, _ = send.communicate("\n", timeout=PATIENCE)
    finally:
        for program in filter(None, (send, echo)):
            program.kill()
            program.wait()
        for a, b in ((name, other), (other, name)):
            host(bed, a).cmd("ip neigh del %s dev %s-eth0" % (host(bed, b).IP(), a))
    sent, returned = map(int, out.split())
    assert sent > 10 and sent == returned, out


def test_broadcasts_do_not_loop_through_a_switch_that_drops_lldp(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    reach(bed, ("h2", "h5"))
    with legacy_switch("s2", "s3"):
        # Floods until the controller has seen a frame return.
        def loop_is_reported():
            run_program(bed, "h2", "claim", host(bed, "h2").IP())
            return any("is closed to hosts" in w for w in bed.cool_json("topology")["warnings"])

        wait_for(loop_is_reported, "the controller closes one of the two ports")
        check_claims_do_not_circulate(lambda: run_program(bed, "h2", "claim", host(bed, "h2").IP()))
        reach(bed, ("h2", "h5"), ("h2", "h1"), ("h3", "h4"))
    reach(bed, ("h2", "h5"))


def count_received(bed, name, other, address, vlan=None):
    """Returns how many frames for an Ethernet address a host receives from another in a VLAN."""
    program = start(bed, name, "hear", vlan=vlan)
    assert program.stdout.readline() == "hears\n"
    run_program(bed, other, "tell", address, vlan=vlan)
    # Frames stay in order, so after these frames, no earlier ones are still in flight.
    reach(bed, (other, name), (name, other))
    return int(program.communicate("\n", timeout=PATIENCE)[0])


@contextlib.contextmanager
def vlans(bed, *members):
    """Puts hosts into VLANs, in addition to the untagged segment, by name, number, and address."""
    interfaces = []
    try:
        for name, vlan, address in members:
            interfaces.append(start(bed, name, "vlan", str(vlan)))
            assert interfaces[-1].stdout.readline() == "carries\n"
            interface_name = device(name, vlan)
            # By default, Linux answers on every interface for the addresses of all interfaces.
            host(bed, name).cmd("sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv6.conf.%s.disable_ipv6=1; ip link set %s address %s up; ip address add %s/24 dev %s"
                                % (interface_name.replace(".", "/"), interface_name, host(bed, name).MAC(), address, interface_name))
        yield
    finally:
        for interface in interfaces:
            interface.communicate("\n", timeout=PATIENCE)
        for name, _, _ in members:
            host(bed, name).cmd("sysctl -qw net.ipv4.conf.all.arp_ignore=0")


def test_vlans_stay_apart_though_their_addresses_are_the_same(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    reach(bed, ("h2", "h1"), ("h2", "h5"))
    with vlans(bed, ("h2", 10, "10.10.0.2"), ("h5", 10, "10.10.0.5"), ("h1", 10, "10.10.0.1"),
               ("h3", 20, "10.10.0.3"), ("h4", 20, "10.10.0.5"), ("h5", 20, "10.10.0.55")):
        # The same address belongs to a different host in each VLAN; a node is a host in the VLANs
        # other than its agent's.
        for name, other in (("h2", "h5"), ("h3", "h4"), ("h1", "h5")):
            wait_for(lambda: reaches(bed, name, "10.10.0.5"),
                     "%s reaches the owner of that address in its VLAN" % name)
            assert neighbor(bed, name, "10.10.0.5") == host(bed, other).MAC()
        run_program(bed, "h5", "claim", "10.10.0.55", vlan=20)
        tagged = "dl_vlan=20,dl_dst=" + host(bed, "h5").MAC()
        wait_for(lambda: all(tagged in "".join(flows(switch)) for switch in ("s1", "s2", "s3")),
                 "h5 is discovered in its other VLAN")
        shown = {(h["mac"], h["vlan"]): h["addresses"] for h in bed.cool_json("topology")["hosts"]}
        assert shown[host(bed, "h5").MAC(), 10] == ["10.10.0.5"] and shown[host(bed, "h4").MAC(), 20] == ["10.10.0.5"], shown
        # No host or switch answers for a node across VLANs, and no host is reached by an address of
        # another VLAN.
        host(bed, "h2").cmd("ip route add %s dev %s" % (host(bed, "h4").IP(), device("h2", 10)))
        assert not reaches(bed, "h2", host(bed, "h4").IP())
        host(bed, "h2").cmd("ip route del %s" % host(bed, "h4").IP())
        pmac = neighbor(bed, "h2", host(bed, "h1").IP())
        assert pmac.startswith("02:c0:")
        assert count_received(bed, "h1", "h2", pmac) > 0
        assert count_received(bed, "h1", "h2", pmac, vlan=10) == 0
        assert count_received(bed, "h5", "h2", host(bed, "h5").MAC(), vlan=10) > 0
        for switch in ("s1", "s2", "s3"):
            destination = "dl_dst=" + host(bed, "h5").MAC()
            tags = {re.search(r"(dl_vlan=\d+|vlan_tci=\S+)", flow)[0] for flow in flows(switch) if destination in flow}
            assert {"dl_vlan=10", "dl_vlan=20"} < tags and len(tags) == 3, tags
    reach(bed, ("h2", "h5"))


@contextlib.contextmanager
def ipv6(bed, *names, accept_ra=0):
    """Enables IPv6 on these hosts and nodes, each with an address in addition to the link-local
    one. Returns the addresses by name."""
    addresses = {name: "fd00::" + name[1:] for name in names}
    try:
        for name, address in addresses.items():
            settings = " ".join("net.ipv6.conf.%s.%s" % (device(name), setting) for setting in ("disable_ipv6=0", "accept_ra=%d" % accept_ra))
            host(bed, name).cmd("sysctl -qw %s; ip address add %s/64 dev %s" % (settings, address, device(name)))
        yield addresses
    finally:
        for name in names:
            host(bed, name).cmd("sysctl -qw net.ipv6.conf.%s.disable_ipv6=1" % device(name))


def reach_by_ipv6(bed, addresses, *pairs):
    for name, other in pairs:
        wait_for(lambda: reaches(bed, name, addresses[other]), "%s reaches %s" % (name, addresses[other]))


def await_neighbor(bed, name, ip, mac):
    wait_for(lambda: (neighbor(bed, name, ip) or "").startswith(mac), "%s resolves %s to %s"
             % (name, ip, mac))


def link_local_address(bed, name):
    """Returns a host's link-local address."""
    matches = []
    wait_for(lambda: matches.append(re.search(r"inet6 (fe80:\S+)/64 scope link(?!.*tentative)", host(bed, name).cmd("ip -6 address show dev " + device(name)))) or matches[-1],
             "%s has an address of the link" % name)
    return matches[-1][1]


def test_nodes_and_hosts_speak_ipv6_with_each_other(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    with ipv6(bed, "h1", "h2", "h3", "h4", "h5", "h6") as addresses:
        reach_by_ipv6(bed, addresses, ("h2", "h5"), ("h5", "h3"), ("h3", "h2"), ("h1", "h4"), ("h4", "h6"), ("h1", "h5"), ("h5", "h4"), ("h2", "h1"))
        for name, other, mac in (("h2", "h5", host(bed, "h5").MAC()), ("h1", "h5", host(bed, "h5").MAC()), ("h1", "h4", "02:c0:"),
                                 ("h4", "h1", "02:c0:"), ("h4", "h6", "02:c0:"), ("h5", "h4", "02:c0:"), ("h2", "h1", "02:c0:")):
            await_neighbor(bed, name, addresses[other], mac)
        for name, other in (("h1", "h4"), ("h1", "h5"), ("h2", "h6")):
            address = link_local_address(bed, other)
            wait_for(lambda: reaches(bed, name, "%s%%%s" % (address, device(name))), "%s reaches %s" % (name, address))
        # Duplicate address detection finds addresses of nodes and hosts, but not a node's own
        # address.
        for name, address, is_taken in (("h2", addresses["h4"], True), ("h6", addresses["h5"], True), ("h1", addresses["h4"], True), ("h1", "fd00::77", False)):
            host(bed, name).cmd("ip address add %s/64 dev %s" % (address, device(name)))
            shown = []
            wait_for(lambda: shown.append(host(bed, name).cmd("ip -6 address show dev " + device(name))) or any(
                address + "/" in line and ("dadfailed" in line or "tentative" not in line) for line in shown[-1].splitlines()), "%s has decided whether it may use %s" % (name, address))
            failed = any(address + "/" in line and "dadfailed" in line for line in shown[-1].splitlines())
            assert failed == is_taken, shown[-1]
            host(bed, name).cmd("ip address del %s/64 dev %s" % (address, device(name)))
        shown = {address for h in bed.cool_json("topology")["hosts"] for address in h["addresses"]}
        assert {name for name, address in addresses.items() if address in shown} == {"h2", "h3", "h5"}, "nodes are no hosts"


def test_no_host_takes_a_nodes_ipv6_address(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    with ipv6(bed, "h1", "h2", "h5") as addresses:
        reach_by_ipv6(bed, addresses, ("h5", "h1"), ("h2", "h5"))
        for _ in range(5):
            run_program(bed, "h2", "claim", addresses["h1"])
            wait_for(lambda: any("claims an address of node h1" in w
                                 for w in bed.cool_json("topology")["warnings"]), "the controller reports it")
            # Without traffic, h5 may have removed its entry.
            wait_for(lambda: reaches(bed, "h5", addresses["h1"]), "h5 reaches h1")
            await_neighbor(bed, "h5", addresses["h1"], "02:c0:")
        reach_by_ipv6(bed, addresses, ("h5", "h1"))
        # After a node gives up an address, another host may use it.
        host(bed, "h1").cmd("ip address del %s/64 dev h1-eth0" % addresses["h1"])

        def owner_has_changed():
            run_program(bed, "h2", "claim", addresses["h1"])
            return neighbor(bed, "h5", addresses["h1"]) == host(bed, "h2").MAC()

        wait_for(owner_has_changed, "h5 resolves the address to its new owner")


def test_nodes_find_a_gateway_by_its_router_advertisements(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    router = start(bed, "h5", "route", "fd00:5::")
    try:
        assert router.stdout.readline() == "routes\n"
        with ipv6(bed, "h1", "h6", "h5", accept_ra=2) as addresses:
            for name in ("h1", "h6"):
                wait_for(lambda: "inet6 fd00:5::" in host(bed, name).cmd("ip -6 address show dev " + device(name)), "%s has an address by the router" % name)
                wait_for(lambda: "default via fe80:" in host(bed, name).cmd("ip -6 route show"), "%s has a way by the router" % name)
            reach_by_ipv6(bed, addresses, ("h1", "h6"), ("h6", "h5"))
    finally:
        router.communicate("\n", timeout=PATIENCE)


def test_vlans_stay_apart_for_ipv6(make_bed):
    bed = make_bed("tree:2x3", without_agent=("h2", "h3", "h5"))
    members = ("h2", 10, "10.10.0.2"), ("h5", 10, "10.10.0.5"), ("h3", 20, "10.10.0.3"), ("h4", 20, "10.10.0.4")
    with ipv6(bed, "h1", "h2", "h6") as addresses, vlans(bed, *members):
        for (name, vlan, _), address in zip(members, ("fd10::2", "fd10::5", "fd10::3", "fd10::5")):
            interface_name = device(name, vlan)
            host(bed, name).cmd("sysctl -qw net.ipv6.conf.%s.disable_ipv6=0; ip address add %s/64 dev %s" % (interface_name.replace(".", "/"), address, interface_name))
        # The same address belongs to a different host in each VLAN.
        for name, other in (("h2", "h5"), ("h3", "h4")):
            wait_for(lambda: reaches(bed, name, "fd10::5"),
                     "%s reaches the owner of that address in its VLAN" % name)
            await_neighbor(bed, name, "fd10::5", host(bed, other).MAC())
        reach_by_ipv6(bed, addresses, ("h2", "h6"), ("h1", "h6"))
        host(bed, "h2").cmd("ip route add %s dev %s" % (addresses["h6"], device("h2", 10)))
        assert not reaches(bed, "h2", addresses["h6"])
        host(bed, "h2").cmd("ip route del %s dev %s" % (addresses["h6"], device("h2", 10)))
        reach_by_ipv6(bed, addresses, ("h2", "h6"))


def test_a_node_is_reached_whether_its_agent_runs_or_not(make_bed):
    bed = make_bed("tree:2x2")
    assert hosts(bed) == {}
    # Nodes need no flows for hosts and no flows of edge ports.
    assert not any("cookie=0x434f4f4c09" in flow or "cookie=0x434f4f4c0b" in flow for name in ("s1", "s2", "s3") for flow in flows(name))
    reach(bed, ("h1", "h4"))
    end_agent(bed, "h4")
    reach(bed, ("h1", "h4"), ("h4", "h2"))
    end_agent(bed, "h2")
    reach(bed, ("h2", "h4"))
    for name in ("h4", "h2"):
        bed.start_agent(name)
    bed.wait_until_joined()
    reach(bed, ("h2", "h4"), ("h1", "h4"))
    wait_for(lambda: hosts(bed) == {}, "the hosts are nodes again")


def test_neighbor_entries_follow_a_node_whose_agent_restarts(make_bed):
    bed = make_bed("tree:2x2")
    reach(bed, ("h1", "h2"), ("h3", "h2"))
    end_agent(bed, "h2")
    for name in ("h1", "h3"):
        await_neighbor(bed, name, host(bed, "h2").IP(), host(bed, "h2").MAC())
        # A host keeps newly learned entries for a minute without confirming them, instead of a
        # second.
        for setting, value in (("locktime", 6000), ("delay_first_probe_time", 60)):
            host(bed, name).cmd("sysctl -qw net.ipv4.neigh.%s.%s=%d" % (device(name), setting, value))
    bed.start_agent("h2")
    bed.wait_until_joined()
    for name in ("h1", "h3"):
        await_neighbor(bed, name, host(bed, "h2").IP(), "02:c0:")
    reach(bed, ("h1", "h2"), ("h3", "h2"))


def test_ipv6_routes_survive_a_lost_link_and_restarts(make_bed):
    bed = make_bed("leafspine:2x2x2", lldp_ms=400, without_agent=("h2", "h4"))
    with ipv6(bed, "h1", "h2", "h3", "h4") as addresses:
        pairs = ("h1", "h3"), ("h3", "h2"), ("h2", "h3"), ("h4", "h1")
        reach_by_ipv6(bed, addresses, *pairs)
        for link in bed.network.uplinks():
            bed.network.cut(link)
            reach_by_ipv6(bed, addresses, *pairs)
            bed.network.restore(link)
            wait_for(lambda: len(bed.cool_json("topology")["links"]) == 4,
                     "the link is discovered again")
        end_controller(bed, signal.SIGKILL)
        bed.start_controller()
        bed.wait_until_joined()
        # Hosts whose entries are valid continue, and the others resolve them again.
        reach_by_ipv6(bed, addresses, *pairs)
        for name in addresses:
            host(bed, name).cmd("ip -6 neigh flush dev " + device(name))
        reach_by_ipv6(bed, addresses, ("h1", "h3"), *pairs)
        end_agent(bed, "h3")
        await_neighbor(bed, "h1", addresses["h3"], host(bed, "h3").MAC())
        reach_by_ipv6(bed, addresses, *pairs)
        bed.start_agent("h3")
        bed.wait_until_joined()
        await_neighbor(bed, "h1", addresses["h3"], "02:c0:")
        reach_by_ipv6(bed, addresses, *pairs)


def test_routes_of_hosts_survive_a_lost_link_and_a_restart(make_bed):
    bed = make_bed("leafspine:2x2x2", lldp_ms=400, without_agent=("h2", "h4"))
    reach(bed, ("h2", "h4"), ("h4", "h1"))
    for link in bed.network.uplinks():
        bed.network.cut(link)
        reach(bed, ("h2", "h4"), ("h4", "h1"))
        bed.network.restore(link)
        wait_for(lambda: len(bed.cool_json("topology")["links"]) == 4,
                 "the link is discovered again")
    reach(bed, ("h2", "h4"))
    macs = {host(bed, name).MAC() for name in ("h2", "h4")}
    with without_loss(bed, "h2", "h4"):
        end_controller(bed, signal.SIGKILL)
        bed.start_controller()
        bed.wait_until_joined()
        wait_for(lambda: set(hosts(bed)) == macs, "the hosts are discovered again")
        # Waits until no entry of the previous controller remains.
        wait_for(lambda: all("cookie=0x434f4f4c09" in "".join(flows(leaf)) for leaf in ("s3", "s4")), "switches have the flows to hosts")
    reach(bed, ("h2", "h4"), ("h1", "h2"))


def test_a_node_with_silent_agent_is_reached_and_becomes_a_host(make_bed):
    bed = make_bed("tree:2x2", peer_timeout_ms=60_000)
    reach(bed, ("h1", "h2"), ("h3", "h2"))
    agent = bed.agents["h2"]

    def located():
        return {node["name"]: node["located"] for node in bed.cool_json("topology")["nodes"]}.get("h2")

    agent.signal(signal.SIGSTOP)
    wait_for(lambda: located() is False, "its LLDP is missing")
    reach(bed, ("h1", "h2"), ("h3", "h2"), ("h2", "h4"))
    assert located() is False, "it was still considered lost"
    agent.signal(signal.SIGCONT)
    wait_for(located, "its LLDP is received again")
    reach(bed, ("h1", "h2"), ("h3", "h2"))
    mac = host(bed, "h2").MAC()
    agent.signal(signal.SIGKILL)
    agent.process.wait(PATIENCE)
    bed.daemons.remove(agent)
    wait_for(lambda: mac in hosts(bed), "the node is a host")
    for name in ("h1", "h3"):
        await_neighbor(bed, name, host(bed, "h2").IP(), mac)
    reach(bed, ("h1", "h2"), ("h3", "h2"))
    bed.start_agent("h2")
    bed.wait_until_joined()


def test_traffic_of_hosts_is_not_forwarded_if_it_is_disabled(make_bed):
    bed = make_bed("tree:2x2", without_agent=("h2", "h3"), controller_flags=("--agents-only",))
    assert not reaches(bed, "h2", host(bed, "h3").IP())
    assert hosts(bed) == {}
    reach(bed, ("h1", "h4"))


def test_a_switchs_own_host_is_reached_and_may_be_a_node(make_bed):
    """As on a hypervisor, where the address of the machine is on the bridge itself."""
    bed = make_bed("tree:2x2")
    address = "10.0.9.9"
    # The interfaces of other ports would also answer for the address.
    for command in ("sysctl -qw net.ipv4.conf.all.arp_ignore=1", "ip address add %s/16 dev s2" % address, "ip link set s2 up", "ethtool -K s2 tx off"):
        subprocess.run(command.split(), capture_output=True, check=True)
    try:
        wait_for(lambda: reaches(bed, "h3", address), "a host reaches it")
        wait_for(lambda: "at s2 port local, " + address in succeed(bed, "cool", "topology"), "it is shown")
        command = [os.path.join(bed.bin_dir, "cool-nodeagent"), "--name", "s2", "--interface", "s2", "--controller",
                   bed.controller_address(network.MANAGEMENT_ADDRESS), *bed.security(), "--socket", bed.directory + "/s2.sock"]
        bed.agents["s2"] = bed.daemon("s2", command)
        wait_for(lambda: re.search(r"port local, .*: s2 \(10\.0\.9\.9", succeed(bed, "cool", "topology")), "it is located", process=bed.agents["s2"].process)
        report = json.loads(succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "1M", "--reps", "2", "--json"))
        assert report["ranks"] == 5
        assert succeed(bed, "cool", "doctor") == "nothing is wrong: 3 switches, 5 nodes\n"
        end_agent(bed, "s2")
    finally:
        bed.agents.pop("s2", None)
        for command in ("ip link set s2 down", "ip address flush dev s2", "sysctl -qw net.ipv4.conf.all.arp_ignore=0"):
            subprocess.run(command.split(), capture_output=True, check=True)
