"""The networks that can be emulated: by name, from a user's Mininet `Topo`, or as discovered by
`cool topology --json`.

All become a Mininet `Topo`, which is checked before anything is built; a fault in it is reported as
a ValueError of one line. Hosts may be on any switch. Rates of links are options of the testbed,
unless links of a Topo state their own (bw, in Mbit/s).
"""
import argparse
import collections
import importlib.util
import json
import os
import re

from emulator import Topo

FORMS = ("tree:RxK (R racks of K hosts under one core switch), tree:A+B+.. (racks of A, B, .. hosts), leafspine:LxSxK (L leaves, S spines, "
         "K hosts a leaf), FILE.py:CLASS (a Mininet Topo) or FILE.json (of `cool topology --json`)")
HOSTS_MAX = 250
# Linux permits 15 bytes for the name of an interface: a host's name and "-eth0", or a switch's
# name, "-eth" and a port number.
INTERFACE_BYTES_MAX = 15
# The parameters of links that are emulated; Mininet's others (delay, loss, ...) are not.
LINK_PARAMETERS = {"node1", "node2", "port1", "port2", "bw"}


class Tree(Topo):
    """One core switch, and one ToR switch for each rack. `racks` is a list: the number of hosts in
    each rack."""

    def build(self, racks):
        core = self.addSwitch("s1")
        for r, hosts in enumerate(racks):
            tor = self.addSwitch("s%d" % (r + 2))
            self.addLink(tor, core)
            add_hosts(self, tor, sum(racks[:r]), hosts)


class LeafSpine(Topo):
    """`leaves` ToR switches, each connected to each of `spines` switches, with `per_rack` hosts
    each."""

    def build(self, leaves, spines, per_rack):
        spine_switches = [self.addSwitch("s%d" % (s + 1)) for s in range(spines)]
        for r in range(leaves):
            leaf = self.addSwitch("s%d" % (spines + r + 1))
            for spine_switch in spine_switches:
                self.addLink(leaf, spine_switch)
            add_hosts(self, leaf, r * per_rack, per_rack)


def add_hosts(topo, tor, before, hosts):
    for n in range(before + 1, before + hosts + 1):
        topo.addLink(topo.addHost("h%d" % n), tor)


class DiscoveredTopo(Topo):
    """A network that a controller has discovered, with the same ports. Switches are s1, s2, ... in
    the order of their datapath ids, which they keep. Hosts have the nodes' names if an interface
    can be named after them; otherwise they are h1, h2, ... in the order of the nodes."""

    def build(self, topology):
        names = {}
        for number, dpid in enumerate(sorted(switch["datapath_id"] for switch in topology["switches"]), start=1):
            names[dpid] = self.addSwitch("s%d" % number, dpid="%016x" % dpid)
        for link in topology["links"]:
            self.addLink(names[link["a"]], names[link["b"]], link["a_port"], link["b_port"])
        nodes = [node for node in topology["nodes"] if node["located"]]
        names_fit = all(fits_a_host(node["name"]) for node in nodes)
        for number, node in enumerate(nodes, start=1):
            host = self.addHost(node["name"] if names_fit else "h%d" % number)
            self.addLink(host, names[node["datapath_id"]], port2=node["port"])


def fits_a_host(name):
    return bool(re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name)) and len(name + "-eth0") <= INTERFACE_BYTES_MAX


def argument(text):
    """Returns the name of a network unchanged if the network can be emulated. For argparse, as the
    type of an option."""
    try:
        parse(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None
    return text


def parse(text):
    """Returns the checked Topo that a text names."""
    try:
        topo = from_name(text) or from_file(text)
        check(topo)
    except ValueError as e:
        raise ValueError("topology %s: %s" % (text, e)) from None
    for number, host in enumerate(topo.hosts(), start=1):
        topo.nodeInfo(host).setdefault("ip", "10.0.%d.%d/16" % (number // 250, number % 250 + 1))
    return topo


def from_name(text):
    """Returns the Topo of a name such as tree:4x4, or None if the text is not of such a form.
    Raises ValueError if the network would be empty or too large."""
    even = re.fullmatch(r"tree:(\d+)x(\d+)", text)
    uneven = re.fullmatch(r"tree:(\d+(?:\+\d+)+)", text)
    leafspine = re.fullmatch(r"leafspine:(\d+)x(\d+)x(\d+)", text)
    if not (even or uneven or leafspine):
        return None
    racks = [int(hosts) for hosts in uneven[1].split("+")] if uneven else [int((even or leafspine).groups()[-1])] * int((even or leafspine)[1])
    spines = int(leafspine[2]) if leafspine else 1
    if not racks or min(racks) < 1 or spines < 1 or sum(racks) > HOSTS_MAX:
        raise ValueError("expected at least one rack, spine and host of each rack, and at most %d hosts" % HOSTS_MAX)
    return LeafSpine(leaves=len(racks), spines=spines, per_rack=racks[0]) if leafspine else Tree(racks=racks)


def from_file(text):
    """Returns the Topo of a file."""
    path, _, name = text.rpartition(":")
    if path.endswith(".py"):
        return instance(path, name)
    if text.endswith(".json"):
        return from_json(text)
    raise ValueError("expected " + FORMS)


def instance(path, name):
    """Returns an instance of a user's Topo; reports every failure in the user's file in one
    line."""
    if not os.path.isfile(path):
        raise ValueError("there is no file %s" % path)
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-len(".py")], path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise ValueError("%s cannot be loaded: %s" % (path, one_line(e))) from None
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Topo)):
        kinds = sorted(n for n, k in vars(module).items() if isinstance(k, type) and issubclass(k, Topo) and k.__module__ == module.__name__)
        raise ValueError("%s has no class %s derived of mininet.topo.Topo; it has %s" % (path, name or "''", ", ".join(kinds) or "none"))
    try:
        return kind()
    except Exception as e:
        raise ValueError("%s() failed: %s" % (name, one_line(e))) from None


def one_line(error):
    return "%s: %s" % (type(error).__name__, " ".join(str(error).split()))


def from_json(path):
    """Returns the Topo of the output of `cool topology --json`."""
    try:
        with open(path) as f:
            return DiscoveredTopo(json.load(f))
    except OSError as e:
        raise ValueError(e.strerror) from None
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError("not what `cool topology --json` prints: %s" % one_line(e)) from None


def check(topo):
    """Raises ValueError if this network cannot be emulated."""
    switches, hosts = topo.switches(), topo.hosts()
    if not 1 <= len(hosts) <= HOSTS_MAX:
        raise ValueError("%d hosts; expected 1 to %d" % (len(hosts), HOSTS_MAX))
    check_switches(topo)
    links = collections.Counter()
    for a, b, parameters in topo.links(withInfo=True):
        check_link(topo, a, b, parameters)
        links.update({a: 1, b: 1})
    for host in hosts:
        if not fits_a_host(host):
            raise ValueError("host %s: expected a name of letters, digits and '-', at most %d bytes" % (host, INTERFACE_BYTES_MAX - len("-eth0")))
        if links[host] != 1:
            raise ValueError("host %s has %d links; expected one" % (host, links[host]))
    unreachable = set(switches + hosts) - reachable(topo, hosts[0])
    if unreachable:
        raise ValueError("no links lead from %s to %s" % (hosts[0], min(unreachable)))


def check_switches(topo):
    """Raises ValueError unless every switch has a unique datapath id: its `dpid` parameter, or
    otherwise the first number in its name, as in Mininet."""
    switch_by_dpid = {}
    for switch in topo.switches():
        digits = re.search(r"\d+", switch)
        configured = topo.nodeInfo(switch).get("dpid")
        if configured is None and not digits:
            raise ValueError("switch %s: expected a number in its name, or dpid=.. for addSwitch" % switch)
        dpid = int(configured.replace(":", ""), 16) if configured is not None else int(digits[0])
        if not dpid:
            raise ValueError("switch %s: its datapath id must not be 0" % switch)
        if dpid in switch_by_dpid:
            raise ValueError("switches %s and %s have the same datapath id, %x" % (switch_by_dpid[dpid], switch, dpid))
        switch_by_dpid[dpid] = switch


def check_link(topo, a, b, parameters):
    name = "link %s-%s" % (a, b)
    if not (topo.isSwitch(a) or topo.isSwitch(b)):
        raise ValueError("%s: expected a switch at one end at least" % name)
    for end, port in ((parameters["node1"], parameters["port1"]), (parameters["node2"], parameters["port2"])):
        interface = "%s-eth%d" % (end, port)
        if len(interface) > INTERFACE_BYTES_MAX:
            raise ValueError("%s: Linux has no name as long as %s (at most %d bytes)" % (name, interface, INTERFACE_BYTES_MAX))
    unknown = sorted(set(parameters) - LINK_PARAMETERS)
    if unknown:
        raise ValueError("%s: %s is not emulated, only bw (Mbit/s)" % (name, ", ".join(unknown)))
    bw = parameters.get("bw", 1)
    if not isinstance(bw, (int, float)) or not 0 < bw <= 1e5:
        raise ValueError("%s: bw=%r: expected Mbit/s from above 0 to 100000" % (name, bw))


def reachable(topo, start):
    """Returns the set of nodes that can be reached from `start` over links, including `start`."""
    neighbors = collections.defaultdict(set)
    for a, b in topo.links():
        neighbors[a].add(b)
        neighbors[b].add(a)
    nodes, pending = {start}, [start]
    while pending:
        new = neighbors[pending.pop()] - nodes
        nodes |= new
        pending += new
    return nodes
