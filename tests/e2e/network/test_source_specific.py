"""Source-specific multicast over routers with a subnet for each rack: nodes join the sources that a
group uses, and receive nothing from other hosts."""
import contextlib
import ipaddress
import subprocess

import pytest
import routed
from conftest import run, succeed, wait_for
from test_collectives import OPERATIONS, UNEQUAL, bench
from test_snooping import tree_of_all, uses_multicast

pytestmark = pytest.mark.skipif(not routed.has_multicast(), reason="smcroute is not installed (`make packages-test` installs it)")

SSM = ("--multicast", "ssm")
# Calls that may take the chain, because their root has not been proven yet.
FIRST_CALLS = ("--warmup", "5")
PORT = 7420
# Sends datagrams from an address to a group, until it is terminated.
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 8)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
while True:
    s.sendto(bytes(100), (sys.argv[2], int(sys.argv[3])))
    time.sleep(0.01)
"""
# Prints the sources of the next packets to a group that arrive on an interface.
SNIFF = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
s.bind((sys.argv[1], 0x0800))
sources, group = [], socket.inet_aton(sys.argv[2])
while len(sources) < 1000:
    packet, address = s.recvfrom(65536)
    if packet[16:20] == group and address[2] != socket.PACKET_OUTGOING:
        sources.append(socket.inet_ntoa(packet[12:16]))
print(*sorted(set(sources)))
"""


def routed_bed(make_bed):
    return make_bed("leafspine:2x2x2", switches="routed", controller_flags=SSM)


def addresses(bed):
    return {host["name"]: host["ip"] for host in bed.description["hosts"]}


def start(bed, name, script, *arguments):
    host = bed.network.net.get(name)
    command = ["mnexec", "-a", str(host.pid), "/usr/bin/python3", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def proc(bed, name, file):
    """Returns the fields of the lines of a file in /proc/net of a host or router, without its heading."""
    pid = str(bed.network.net.get(name).pid)
    text = subprocess.check_output(["mnexec", "-a", pid, "cat", "/proc/net/" + file], text=True)
    return [line.split() for line in text.splitlines()[1:]]


def joined_sources(bed, name, group):
    """Returns the sources that a host has joined in a multicast group."""
    address, file = (ipaddress.IPv6Address, "mcfilter6") if ":" in group else (ipaddress.IPv4Address, "mcfilter")
    pairs = [[str(address(int(field, 16))) for field in line[2:4]] for line in proc(bed, name, file)]
    return {source for tree, source in pairs if tree == group}


def forwarded(bed, router, group):
    """Returns the number of packets of each source to a multicast group that a router has forwarded."""
    def address(text):
        return str(ipaddress.ip_address(bytes.fromhex(text)[::-1]))

    entries = [line for line in proc(bed, router, "ip_mr_cache") if address(line[0]) == group]
    return {address(line[1]): int(line[3]) for line in entries}


@contextlib.contextmanager
def endless_broadcasts(bed, *options):
    """Broadcasts from the first node, and returns the process and the address of the tree."""
    wait_for(lambda: not bed.cool_json("groups")["groups"], "the groups of earlier jobs are gone")
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", "1M", "--reps", "100000", "--plan", "multicast", *options],
                           env=bed.environment(), stdout=subprocess.DEVNULL)
    try:
        yield job, wait_for(lambda: tree_of_all(bed), "the job has a group with a tree", process=job)
        # A wrong result would have ended it.
        assert job.poll() is None
    finally:
        job.terminate()
        job.wait()


@pytest.mark.parametrize("root", ["0", "3"])
def test_roots_multicast_after_their_first_messages(make_bed, root):
    bed = routed_bed(make_bed)
    wait_for(lambda: uses_multicast(bed, "--plan", "multicast", "--root", root, *FIRST_CALLS), "the broadcasts are multicast")
    assert succeed(bed, "cool", "doctor") == "nothing is wrong: 0 switches, 4 nodes\n"


def test_all_collectives_are_right_with_source_specific_trees(make_bed):
    bed = routed_bed(make_bed)
    bench(bed, OPERATIONS + "," + UNEQUAL, "1000,256K", 2, "--reps", "3")
    bench(bed, "allgather", "256K", 1, "--plan", "multicast-each", "--reps", "5")


def test_nodes_join_used_sources_and_hear_no_other_host(make_bed):
    bed = routed_bed(make_bed)
    ip = addresses(bed)
    with contextlib.ExitStack() as stack:
        job, group = stack.enter_context(endless_broadcasts(bed, "-n", "3"))
        assert ipaddress.ip_address(group) in ipaddress.ip_network("232.192.0.0/14")
        # Between the broadcasts there are short calls, for which a plan may use another node of the group as source.
        for member in ("h2", "h3"):
            wait_for(lambda: ip["h1"] in joined_sources(bed, member, group), "%s has joined the source" % member, process=job)
        # An earlier group may have used the same address.
        wait_for(lambda: not joined_sources(bed, "h4", group), "h4 has joined no source", process=job)
        wait_for(lambda: not any(ip["h4"] in joined_sources(bed, name, group) for name in ip), "no node has joined h4", process=job)

        def run_until_end(process):
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        # h4 is not in the group. Its router forwards what it sends, but the members have not joined it.
        leaves = [name for name, _ in routed.racks(bed.network.net.topo)]
        run_until_end(start(bed, "h4", SEND, ip["h4"], group, PORT))
        wait_for(lambda: forwarded(bed, leaves[1], group).get(ip["h4"], 0) > 10, "the router forwards packets of h4", process=job)

        def heard():
            sniffers = [run_until_end(start(bed, name, SNIFF, name + "-eth0", group)) for name in ("h2", "h3")]
            return [sniffer.communicate()[0].split() for sniffer in sniffers]

        # Bridges flood until the first answers to their queries must have arrived.
        wait_for(lambda: all(ip["h1"] in senders and ip["h4"] not in senders for senders in heard()), "members hear the source but not h4", process=job)
        assert forwarded(bed, leaves[1], group)[ip["h1"]] > 1000


def test_sources_of_ipv6_are_joined(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", ipv6=("h1", "h2", "h3", "h4"), controller_flags=SSM)
    with endless_broadcasts(bed) as (job, group):
        assert ipaddress.ip_address(group) in ipaddress.ip_network("ff38::c000:0/110")
        wait_for(lambda: joined_sources(bed, "h3", group) == {"fd00::1"}, "h3 has joined the source", process=job)
    wait_for(lambda: uses_multicast(bed, "--plan", "multicast", *FIRST_CALLS), "the broadcasts are multicast")


def test_the_nodes_that_do_not_hear_a_source_are_named(make_bed):
    bed = routed_bed(make_bed)
    rule = ("INPUT", "-d", "232.192.0.0/14", "-j", "DROP")
    h4 = bed.network.net.get("h4")
    bed.network.run_in(h4, "iptables", "-A", *rule)
    try:
        with endless_broadcasts(bed) as (job, group):
            text = "multicasts of the data interface %s to %s do not arrive at h4" % (addresses(bed)["h1"], group)
            wait_for(lambda: text in run(bed, "cool", "doctor").stdout, "cool doctor names the node", process=job)
            wait_for(lambda: not joined_sources(bed, "h3", group), "the other nodes have left the source", process=job)
        assert not uses_multicast(bed, "--plan", "multicast", *FIRST_CALLS)
    finally:
        bed.network.run_in(h4, "iptables", "-D", *rule)
