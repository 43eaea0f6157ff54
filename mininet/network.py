"""The emulated network: hosts, switches (Open vSwitch, BOFUSS, bridges of the kernel or routers),
shaped and lossy links, and a management network.

Each port is shaped by a token bucket, whose queue is as short as the buffer of a shallow-buffered
switch. Packet loss is random and occurs where a host receives. Agents reach the controller over
separate management links (10.255.0.0/24), as in a data center, so that data links carry data only.
"""
import collections
import os
import subprocess
from functools import partial

import flow_limit
import routed
import topologies
from bofuss import Bofuss
from bridge import Bridge
from emulator import Host, Link, Mininet, OVSSwitch, setLogLevel, sh

# The multicast addresses of COOL's trees.
TREES = "239.192.0.0/14"
MANAGEMENT_ADDRESS = "10.255.0.1"  # the controller's address on every management link
QUEUE_KB = 256
BURST_KB = 16
SWITCHES = {"ovs": partial(OVSSwitch, datapath="user", failMode="secure", protocols="OpenFlow13"), "bofuss": Bofuss, "bridge": Bridge,
            "routed": routed.Router}


class Network:
    """A running emulated network. `start` builds it, and `stop` removes everything that it
    created."""

    def __init__(self, topology, host_mbit=0.0, uplink_mbit=0.0, loss=0.0, mtu=1500, switches="ovs", ipv6=(), flow_mbit=0.0):
        setLogLevel("critical")
        self.host_mbit, self.uplink_mbit, self.loss, self.mtu = host_mbit, uplink_mbit, loss, mtu
        # The rate of each flow that a host sends; 0 if flows are not limited.
        self.flow_mbit = flow_mbit
        # The hosts whose data interfaces have an IPv6 address instead of an IPv4 address.
        self.ipv6 = ipv6
        # The hosts to which no multicasts are delivered (`set_multicast`).
        self.deaf_hosts = set()
        # The address of each host's management interface, by the name of the host.
        self.management_addresses = {}
        topo = topologies.parse(topology)
        remove_stale_interfaces(topo)
        # Only switches with OpenFlow connect to the controller.
        self.has_openflow = switches in ("ovs", "bofuss")
        self.is_routed = switches == "routed"
        if self.is_routed:
            routed.assign_addresses(topo)
        if switches == "bridge" and len(topo.links()) >= len(topo.nodes()):
            raise RuntimeError("%s has loops, which bridges would carry frames around; use a tree" % topology)
        self.net = Mininet(topo=topo, host=Host, link=Link, controller=None, autoSetMacs=True, autoStaticArp=False, switch=SWITCHES[switches])

    def start(self, controller):
        """Builds the network. `controller` is the address to which switches connect, as
        ssl:IP:PORT; for a pair of controllers, two addresses separated by a space."""
        self.controller = controller
        self.net.start()
        for switch in self.net.switches if self.has_openflow else ():
            self.connect(switch.name)
        if self.is_routed:
            routed.route(self.net, self.run_in)
        for link in self.net.links:
            self.shape(link, self.mbit(link))
        for number, host in enumerate(self.net.hosts, start=2):
            self._connect_management(host, "10.255.0.%d" % number)
            if host.name in self.ipv6:
                self._enable_ipv6(host)
            if self.flow_mbit:
                flow_limit.assign_classes(host, host.name in self.ipv6)
            if self.loss:
                self.run_in(host, "ip6tables" if host.name in self.ipv6 else "iptables", "-A", "INPUT", "-i", host.defaultIntf().name, "-m", "statistic",
                            "--mode", "random", "--probability", "%g" % self.loss, "-j", "DROP")

    def stop(self):
        # Rules for the ports of bridges are not removed with the ports.
        for host in list(self.deaf_hosts):
            self.set_multicast(host, True)
        self.net.stop()
        for host in self.management_addresses:
            # Usually, the link was already removed with its host.
            subprocess.run(["ip", "link", "delete", management_link(host)], capture_output=True)

    def mbit(self, link):
        """Returns the rate of a link in Mbit/s: its own, or that of its kind; 0 if it is not
        shaped."""
        return link.intf1.params.get("bw") or (self.uplink_mbit if is_uplink(link) else self.host_mbit)

    def common_mbit(self, kind):
        """Returns the rate of all links of a kind ("host" or "uplink"), or 0 if their rates
        differ."""
        rates = {self.mbit(link) for link in self.net.links if is_uplink(link) == (kind == "uplink")}
        return rates.pop() if len(rates) == 1 else 0

    def run_in(self, node, *command):
        """Runs a command in the node's network namespace; that of a switch, unless it is a router,
        is the root namespace."""
        return sh("mnexec", "-a", str(node.pid), *command)

    def set_multicast(self, host, received):
        """Delivers the multicasts of trees to a host again, or drops them: at the port of its bridge, or at the host itself if
        its switch is no bridge. Its link then carries them in vain."""
        if received == (host not in self.deaf_hosts):
            return
        port = self.port_of(host)
        if isinstance(port.node, (Bridge, routed.Router)):
            node, rule = port.node, ("ebtables", "FORWARD", "-o", port.name, "-p", "IPv4", "--ip-dst", TREES)
        else:
            node, rule = host, ("iptables", "INPUT", "-d", TREES)
        self.run_in(node, rule[0], "-D" if received else "-A", *rule[1:], "-j", "DROP")
        (self.deaf_hosts.discard if received else self.deaf_hosts.add)(host)

    def connect(self, switch):
        """Makes the switch connect to its controller."""
        node = self.net.get(switch)
        if isinstance(node, Bofuss):
            node.connect_to(self.controller)
        else:
            sh("ovs-vsctl", "set-controller", switch, *self.controller.split())

    def disconnect(self, switch):
        """Removes the switch's controller; the switch keeps its flows."""
        sh("ovs-vsctl", "del-controller", switch)

    def uplinks(self):
        """Returns the links between switches, each as its two interfaces."""
        return [(link.intf1, link.intf2) for link in self.net.links if is_uplink(link)]

    def port_of(self, host):
        """Returns the interface of the switch to which a host is connected."""
        link = host.defaultIntf().link
        return next(intf for intf in (link.intf1, link.intf2) if is_switch(intf.node))

    def switch_of(self, host):
        """Returns the name of the switch to which a host is connected."""
        return self.port_of(host).node.name

    def shape(self, link, mbit):
        """Limits both directions of a link to a rate; 0 removes the limit."""
        for intf in (link.intf1, link.intf2):
            self._configure(intf, mbit)

    def cut(self, link):
        """Cuts a link, as if the cable were pulled; both ends detect it."""
        self.run_in(link[0].node, "ip", "link", "set", link[0].name, "down")

    def silence(self, link):
        """Makes a link lose all packets, because its bucket is smaller than a packet; neither end
        detects it."""
        for intf in link:
            self.run_in(intf.node, "tc", "qdisc", "replace", "dev", intf.name, "root", "tbf", "rate", "8bit", "burst", "20b", "limit", "20b")

    def restore(self, link):
        """Restores a link that was cut or silenced."""
        for intf in link:
            self.run_in(intf.node, "ip", "link", "set", intf.name, "up")
            # This fails if the interface has no such queue, which is not an error.
            subprocess.run(["mnexec", "-a", str(intf.node.pid), "tc", "qdisc", "delete", "dev", intf.name, "root"], capture_output=True)
            self._configure(intf, self.mbit(intf.link))

    def _configure(self, intf, mbit):
        """Configures an interface: sets its MTU and limits its rate to `mbit`, unless that is 0.
        Makes senders compute checksums and cut packets, because the userspace datapath does not,
        because a packet of the emulated rate or loss must be one of the link, and because Linux
        drops multicasts longer than the MTU that it should forward. Disables IPv6,
        because the kernel would send packets of its own, such as router solicitations."""
        run = partial(self.run_in, intf.node)
        must_cut = self.has_openflow or self.is_routed or mbit or self.loss
        run("ethtool", "-K", intf.name, "tx", "off" if must_cut else "on")
        run("sysctl", "-qw", "net.ipv6.conf.%s.disable_ipv6=1" % intf.name)
        run("ip", "link", "set", intf.name, "mtu", str(self.mtu))
        if mbit and self.flow_mbit and not is_switch(intf.node):
            flow_limit.make_queues(intf, mbit, self.flow_mbit, self.burst_kb())
        elif mbit:
            run("tc", "qdisc", "replace", "dev", intf.name, "root", "tbf", "rate", "%gmbit" % mbit,
                "burst", "%dkb" % self.burst_kb(), "limit", "%dkb" % QUEUE_KB)

    def burst_kb(self):
        """Returns how many kilobytes an idle link sends at once."""
        return max(BURST_KB, 2 * self.mtu // 1000)

    def _enable_ipv6(self, host):
        """Enables IPv6 without duplicate address detection, because a program that starts at once
        could otherwise not use the address yet."""
        device = host.defaultIntf().name
        self.run_in(host, "sysctl", "-qw", "net.ipv6.conf.%s.accept_dad=0" % device, "net.ipv6.conf.%s.disable_ipv6=0" % device)
        self.run_in(host, "ip", "-4", "address", "flush", "dev", device)
        self.run_in(host, "ip", "address", "add", self.data_address(host) + "/64", "dev", device, "nodad")

    def data_address(self, host):
        """Returns the address of the host's data interface."""
        return "fd00::" + host.name[1:] if host.name in self.ipv6 else host.IP()

    def _connect_management(self, host, address):
        """Creates a link between the host's namespace and the root namespace, where the controller
        runs."""
        outside = management_link(host.name)
        self.management_addresses[host.name] = address
        # A testbed that was killed may have left this link.
        subprocess.run(["ip", "link", "delete", outside], capture_output=True)
        sh("ip", "link", "add", outside, "type", "veth", "peer", "name", "mgmt0", "netns", str(host.pid))
        sh("ip", "address", "add", MANAGEMENT_ADDRESS + "/32", "dev", outside)
        self.run_in(host, "ip", "address", "add", address + "/32", "dev", "mgmt0")
        self.run_in(host, "ip", "link", "set", "mgmt0", "up")
        self.restore_management(host.name)
        self.run_in(host, "ip", "route", "add", MANAGEMENT_ADDRESS + "/32", "dev", "mgmt0")

    def cut_management(self, host):
        """Separates the host's agent from the controller; data links do not change."""
        sh("ip", "link", "set", management_link(host), "down")

    def restore_management(self, host):
        outside = management_link(host)
        sh("ip", "link", "set", outside, "up")
        # The address was removed with the link.
        sh("ip", "route", "replace", self.management_addresses[host] + "/32", "dev", outside, "src", MANAGEMENT_ADDRESS)

    def describe(self):
        """Returns the network as plain data, for programs that run inside the testbed
        (COOL_TESTBED)."""
        hosts = [{"name": h.name, "ip": self.data_address(h), "pid": h.pid, "interface": h.defaultIntf().name} for h in self.net.hosts]
        switches = [{"name": s.name, "dpid": int(s.dpid, 16)} for s in self.net.switches]
        return {"hosts": hosts, "switches": switches, "links": [self._describe_link(link) for link in self.net.links]}

    def _describe_link(self, link):
        """Describes a link; `a` is always a switch, whose process `a_pid` is in the namespace of its
        interface: the root namespace, unless it is a router."""
        a, b = (link.intf1, link.intf2) if is_switch(link.intf1.node) else (link.intf2, link.intf1)
        return {"a": a.node.name, "a_port": a.node.ports[a], "a_intf": a.name, "a_pid": a.node.pid, "b": b.node.name, "b_port": b.node.ports[b],
                "b_intf": b.name, "kind": "uplink" if is_uplink(link) else "host", "mbit": self.mbit(link)}


def management_link(host):
    """Returns the controller's end of the host's management link."""
    return "m-" + host


def remove_stale_interfaces(topo):
    """Removes the interfaces of the same names that a killed testbed has left; Mininet itself
    removes such bridges."""
    for _, _, ends in topo.links(withInfo=True):
        for name in ("%s-eth%d" % (ends["node%d" % n], ends["port%d" % n]) for n in (1, 2)):
            if os.path.exists("/sys/class/net/" + name):
                subprocess.run(["ip", "link", "delete", name], capture_output=True)


def is_switch(node):
    return isinstance(node, (OVSSwitch, Bofuss, Bridge, routed.Router))


def is_uplink(link):
    return is_switch(link.intf1.node) and is_switch(link.intf2.node)


def link_bytes(description):
    """Returns the bytes carried so far between neighbors, by direction: {("s1", "s2"): bytes}.
    Parallel links are added up."""
    return link_counters(description, "bytes")


def link_counters(description, unit):
    """Returns the "bytes" or "packets" (`unit`) carried so far between neighbors, by direction, as
    `link_bytes` does. They are counted at port `a` of each link, which is always a switch's."""
    carried = collections.Counter()
    interfaces = {pid: interface_counters(pid) for pid in {link["a_pid"] for link in description["links"]}}
    for link in description["links"]:
        for counter, ends in (("tx", ("a", "b")), ("rx", ("b", "a"))):
            carried[link[ends[0]], link[ends[1]]] += interfaces[link["a_pid"]][link["a_intf"]][counter, unit]
    return carried


def interface_counters(pid):
    """Returns the bytes and packets of each interface in the namespace of a process."""
    with open("/proc/%d/net/dev" % pid) as f:
        rows = (line.split(":") for line in f.readlines()[2:])
        fields = {name.strip(): list(map(int, values.split())) for name, values in rows}
    return {name: {("rx", "bytes"): values[0], ("rx", "packets"): values[1], ("tx", "bytes"): values[8], ("tx", "packets"): values[9]}
            for name, values in fields.items()}


def between_switches(description, carried):
    """Returns the byte counts of the links between switches. `carried` maps (from, to) to bytes."""
    switches = {s["name"] for s in description["switches"]}
    return [n for (a, b), n in carried.items() if a in switches and b in switches]
