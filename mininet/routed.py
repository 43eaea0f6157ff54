"""A routed network: each switch is a router in a namespace of its own. Each rack is an IP subnet
behind its router, and routers reach each rack by all shortest paths, so networks may have loops.

A router has a bridge for the hosts of its rack. Routes are static.
"""
import collections

from emulator import Switch

# Number of the last host of a rack; the router's address follows.
HOSTS_MAX = 250
GATEWAY = 254


class Router(Switch):
    """A router in a namespace of its own. `route` configures its addresses and routes once all
    links exist."""

    def __init__(self, name, **params):
        super().__init__(name, **{**params, "inNamespace": True})

    def start(self, _controllers):
        pass


def assign_addresses(topo):
    """Assigns each host of the Topo an address in the subnet of its rack."""
    for rack, (_, hosts) in enumerate(racks(topo), start=1):
        for number, host in enumerate(hosts, start=1):
            topo.nodeInfo(host).update(ip="%s/24" % address(rack, number), defaultRoute="via " + address(rack, GATEWAY))


def racks(topo):
    """Returns each switch with hosts, and these hosts."""
    hosts = collections.defaultdict(list)
    for a, b in topo.links():
        if topo.isSwitch(a) != topo.isSwitch(b):
            switch, host = (a, b) if topo.isSwitch(a) else (b, a)
            hosts[switch].append(host)
    for switch in hosts:
        if len(hosts[switch]) > HOSTS_MAX:
            raise RuntimeError("%s has %d hosts; a routed network supports %d in a rack" % (switch, len(hosts[switch]), HOSTS_MAX))
    return [(switch, hosts[switch]) for switch in topo.switches() if switch in hosts]


def address(rack, number):
    return "10.%d.0.%d" % (rack, number)


def route(net, run_in):
    """Configures the routers of a built network. `run_in(node, *command)` runs a command."""
    ports, neighbors = collections.defaultdict(list), collections.defaultdict(list)
    links = [link for link in net.links if isinstance(link.intf1.node, Router) and isinstance(link.intf2.node, Router)]
    for number, link in enumerate(links):
        ends = [(intf, "172.16.%d.%d" % (number // 128, 2 * (number % 128) + end)) for end, intf in enumerate((link.intf1, link.intf2))]
        for (intf, own), (other, gateway) in (ends, ends[::-1]):
            run_in(intf.node, "ip", "address", "add", own + "/31", "dev", intf.name)
            neighbors[intf.node.name].append((other.node.name, gateway))
    for link in net.links:
        for intf, other in ((link.intf1, link.intf2), (link.intf2, link.intf1)):
            if isinstance(intf.node, Router) and not isinstance(other.node, Router):
                ports[intf.node.name].append(intf.name)
    for router in net.switches:
        # Flows, not packets, are distributed among equal paths, so packets of a flow stay in order.
        run_in(router, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.fib_multipath_hash_policy=1")
    for rack, (name, _) in enumerate(racks(net.topo), start=1):
        router = net.get(name)
        run_in(router, "ip", "link", "add", "rack", "type", "bridge", "stp_state", "0", "mcast_snooping", "1")
        run_in(router, "sysctl", "-qw", "net.ipv6.conf.rack.disable_ipv6=1")
        for port in ports[name]:
            run_in(router, "ip", "link", "set", port, "master", "rack", "up")
        run_in(router, "ip", "address", "add", address(rack, GATEWAY) + "/24", "dev", "rack")
        run_in(router, "ip", "link", "set", "rack", "up")
        steps = distances(neighbors, name)
        for other in net.switches:
            gateways = [gateway for neighbor, gateway in neighbors[other.name] if steps.get(neighbor) == steps[other.name] - 1]
            if gateways:
                run_in(other, "ip", "route", "add", address(rack, 0) + "/24", *(word for gateway in gateways for word in ("nexthop", "via", gateway)))


def distances(neighbors, origin):
    """Returns the number of links from each router to one of them."""
    steps, reached = {origin: 0}, collections.deque([origin])
    while reached:
        name = reached.popleft()
        for neighbor, _ in neighbors[name]:
            if neighbor not in steps:
                steps[neighbor] = steps[name] + 1
                reached.append(neighbor)
    return steps
