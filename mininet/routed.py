"""A routed network: each switch is a router in a namespace of its own. Each rack is an IP subnet
behind its router, and routers reach each rack by all shortest paths, so networks may have loops.

A router has a bridge for the hosts of its rack, which forwards multicast to members only. Routes are
static. If Debian's smcroute is installed, routers forward multicast of 239.0.0.0/8 and 232.0.0.0/8
(source-specific) on a spanning tree, to all racks.
"""
import collections
import os
import shutil
import subprocess
import tempfile

from emulator import Switch

MULTICAST = ("239.0.0.0/8", "232.0.0.0/8")
# Numbers of the last host of a rack, and of its router.
HOSTS_MAX, GATEWAY = 250, 254
# The bridge of a router.
RACK = "rack"

# A router's interface to another router: the name of that router, of its interface, and its address.
Port = collections.namedtuple("Port", "interface neighbor peer address")


class Router(Switch):
    """A router in a namespace of its own. `route` configures it once all links exist."""

    def __init__(self, name, **params):
        super().__init__(name, **{**params, "inNamespace": True})
        self.smcroute = None

    def start(self, _controllers):
        pass

    def forward_multicast(self, interfaces):
        """Starts to forward multicast between these interfaces."""
        self.folder = tempfile.TemporaryDirectory(prefix="cool-router-")
        configuration, pid, control = (os.path.join(self.folder.name, name) for name in ("conf", "pid", "socket"))
        with open(configuration, "w") as f:
            f.writelines("phyint %s enable\n" % interface for interface in interfaces)
            for interface in interfaces:
                others = [other for other in interfaces if other != interface]
                for group in MULTICAST:
                    f.write("mroute from %s group %s to %s\n" % (interface, group, " ".join(others)))
        command = ["smcrouted", "-n", "-N", "-f", configuration, "-P", pid, "-u", control]
        self.smcroute = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", "mnexec", "-a", str(self.pid), *command],
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self, deleteIntfs=True):
        if self.smcroute:
            self.smcroute.terminate()
            self.smcroute.wait()
            self.folder.cleanup()
        super().stop(deleteIntfs)


def has_multicast():
    """Returns whether routers can forward multicast."""
    return bool(shutil.which("smcrouted"))


def address(rack, number):
    return "10.%d.0.%d" % (rack, number)


def racks(topo):
    """Returns each switch with hosts, and these hosts."""
    hosts = collections.defaultdict(list)
    for a, b in topo.links():
        if topo.isSwitch(a) != topo.isSwitch(b):
            switch, host = (a, b) if topo.isSwitch(a) else (b, a)
            hosts[switch].append(host)
    for switch in hosts:
        if len(hosts[switch]) > HOSTS_MAX:
            raise RuntimeError("%s has %d hosts; a rack of a routed network has at most %d" % (switch, len(hosts[switch]), HOSTS_MAX))
    return [(switch, hosts[switch]) for switch in topo.switches() if switch in hosts]


def assign_addresses(topo):
    """Assigns each host of the Topo an address in the subnet of its rack, and its router."""
    for rack, (_, hosts) in enumerate(racks(topo), start=1):
        for number, host in enumerate(hosts, start=1):
            topo.nodeInfo(host).update(ip="%s/24" % address(rack, number), defaultRoute="via " + address(rack, GATEWAY))


def route(net, run_in):
    """Configures the routers of a built network. `run_in(node, *command)` runs a command."""
    ports = connect_routers(net, run_in)
    for router in net.switches:
        # Paths are picked by flow, so packets of a flow stay in order.
        run_in(router, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.fib_multipath_hash_policy=1", "net.ipv4.conf.all.rp_filter=0")
    for rack, (name, _) in enumerate(racks(net.topo), start=1):
        connect_rack(net.get(name), address(rack, GATEWAY), run_in)
        steps, _ = search(ports, name)
        for router in net.switches:
            gateways = [port.address for port in ports[router.name] if steps.get(port.neighbor, len(steps)) < steps[router.name]]
            if gateways:
                run_in(router, "ip", "route", "add", address(rack, 0) + "/24", *(word for gateway in gateways for word in ("nexthop", "via", gateway)))
    if has_multicast():
        _, tree = search(ports, net.switches[0].name)
        has_hosts = {name for name, _ in racks(net.topo)}
        for router in net.switches:
            router.forward_multicast([port.interface for port in ports[router.name] if port.interface in tree] + [RACK] * (router.name in has_hosts))


def connect_routers(net, run_in):
    """Assigns addresses to the links between routers; returns the ports of each router."""
    ports = collections.defaultdict(list)
    links = [link for link in net.links if isinstance(link.intf1.node, Router) and isinstance(link.intf2.node, Router)]
    for number, link in enumerate(links):
        ends = [(interface, "172.16.%d.%d" % (number // 128, 2 * (number % 128) + end)) for end, interface in enumerate((link.intf1, link.intf2))]
        for (interface, own), (peer, gateway) in (ends, ends[::-1]):
            run_in(interface.node, "ip", "address", "add", own + "/31", "dev", interface.name)
            ports[interface.node.name].append(Port(interface.name, peer.node.name, peer.name, gateway))
    return ports


def connect_rack(router, gateway, run_in):
    """Connects the hosts of a router by a bridge, at which the router has an address. It queries
    for members of multicast groups, and receives all multicast. The queries are of IGMPv3: by earlier
    versions, a host that hears another's report sends none, and until the first query is over the
    bridge forwards reports to hosts, so it would miss members."""
    run_in(router, "ip", "link", "add", RACK, "type", "bridge", "stp_state", "0", "mcast_snooping", "1", "mcast_querier", "1", "mcast_router", "2",
           "mcast_igmp_version", "3")
    run_in(router, "sysctl", "-qw", "net.ipv6.conf.%s.disable_ipv6=1" % RACK)
    for interface in router.intfList():
        peer = interface.link and (interface.link.intf1 if interface.link.intf2 is interface else interface.link.intf2)
        if peer and not isinstance(peer.node, Router):
            run_in(router, "ip", "link", "set", interface.name, "master", RACK, "up")
    run_in(router, "ip", "address", "add", gateway + "/24", "dev", RACK)
    run_in(router, "ip", "link", "set", RACK, "up")


def search(ports, origin):
    """Returns the number of links from a router to each, and the interfaces of a spanning tree."""
    steps, tree, reached = {origin: 0}, set(), collections.deque([origin])
    while reached:
        name = reached.popleft()
        for port in ports[name]:
            if port.neighbor not in steps:
                steps[port.neighbor] = steps[name] + 1
                tree |= {port.interface, port.peer}
                reached.append(port.neighbor)
    return steps, tree
