"""Multicast of other programs on nodes and hosts: OpenFlow switches carry it to the machines that have joined, over each link
once."""
import contextlib
import os
import select
import subprocess
import sys

import pytest
from conftest import PATIENCE, succeed, wait_for
from link_byte_checks import assert_carried
from test_controllers import restart_controller

# Joins a multicast address at an interface and prints each packet, or sends packets to it.
PROGRAM = """
import socket, struct, sys
action, address, interface, *rest = sys.argv[1:]
family, index = socket.AF_INET6 if ":" in address else socket.AF_INET, socket.if_nametoindex(interface)
s = socket.socket(family, socket.SOCK_DGRAM)
if action == "join":
    s.bind((address, 7000))
    if family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(family, address) + struct.pack("@i", index))
    else:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4si", socket.inet_aton(address), bytes(4), index))
    print("joined", flush=True)
    while True:
        print(s.recv(2048)[:8].rstrip(b"-").decode(), flush=True)
if family == socket.AF_INET6:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
else:
    s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("4s4si", bytes(4), bytes(4), index))
text, count = rest
for _ in range(int(count)):
    s.sendto(text.encode().ljust(1000, b"-"), (address, 7000))
"""
WITHOUT_AGENT = ("h2", "h5")
PACKET_BYTES, FILE_BYTES = 1000, 4 << 20
# Few enough for the buffers of switches on any machine.
BURST_PACKETS = 60
RECEIVE_SECONDS = 0.2
RENDEZVOUS = "230.1.1.1"


def enter(bed, name, *command):
    return ["mnexec", "-a", str(bed.network.net.get(name).pid), *command]


class Member:
    """A program that has joined an address on a machine."""

    def __init__(self, name, process):
        self.name, self.process = name, process

    def has_received(self, text):
        """Returns whether a packet with this text has arrived since the last call."""
        output = self.process.stdout.fileno()
        is_readable = select.select([output], [], [], RECEIVE_SECONDS)[0]
        return bool(is_readable) and text.encode() in os.read(output, 1 << 20)


@contextlib.contextmanager
def joined(bed, name, address):
    """Runs a member during the context."""
    command = enter(bed, name, sys.executable, "-c", PROGRAM, "join", address, name + "-eth0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            assert process.stdout.readline() == b"joined\n"
            yield Member(name, process)
        finally:
            process.kill()


def send(bed, name, address, text, count=1):
    subprocess.run(enter(bed, name, sys.executable, "-c", PROGRAM, "send", address, name + "-eth0", text, str(count)), check=True, timeout=PATIENCE)


def wait_until_received(bed, sender, address, members):
    """Sends packets until each member has received one. The switches may have no flows yet."""
    for number, member in enumerate(members):
        text = "%s.%d" % (sender, number)
        wait_for(lambda: send(bed, sender, address, text) or member.has_received(text), member.name + " receives packets of " + sender)


def receivers(bed, address):
    """Returns the number of ports to which the switches lead packets to this address."""
    carried = {entry["address"]: entry["receivers"] for entry in bed.cool_json("topology")["multicast"]}
    return len(carried.get(address, []))


@pytest.mark.parametrize(("address", "ipv6"), [("239.1.2.3", ()), ("ff1e::5", ("h1", "h2", "h3", "h4", "h5", "h6"))])
def test_packets_reach_members_only_and_each_link_once(make_bed, address, ipv6):
    bed = make_bed("tree:2x3", without_agent=WITHOUT_AGENT, ipv6=ipv6)
    with joined(bed, "h1", address) as node, joined(bed, "h5", address) as host:
        wait_for(lambda: receivers(bed, address) == 2, "both machines are members")
        assert address + ": h1, s3 port" in succeed(bed, "cool", "topology")
        for sender, racks in (("h4", "s3-s1-s2"), ("h2", "s2-s1-s3")):
            wait_until_received(bed, sender, address, [node, host])
            size, way = BURST_PACKETS * PACKET_BYTES, racks.split("-")

            def fault(carried):
                needed = {*zip(way, way[1:]), (sender, way[0]), ("s2", "h1"), ("s3", "h5")}
                wrong = [link for link, octets in carried.items() if (link in needed) != (octets > size // 2) or octets > 1.3 * size]
                return wrong and "%s: %s" % (wrong, carried)

            assert_carried(bed, lambda: send(bed, sender, address, "burst", BURST_PACKETS), fault)
    wait_for(lambda: receivers(bed, address) == 0, "the switches notice that all members have left")


def test_members_receive_packets_after_the_controller_restarts(make_bed):
    bed = make_bed("tree:2x3", without_agent=WITHOUT_AGENT)
    with joined(bed, "h1", "239.4.5.6") as member:
        wait_for(lambda: receivers(bed, "239.4.5.6") == 1, "the machine is a member")
        restart_controller(bed)
        bed.wait_until_joined()
        wait_for(lambda: receivers(bed, "239.4.5.6") == 1, "the new controller has found the member")
        wait_until_received(bed, "h6", "239.4.5.6", [member])


def test_udpcast_sends_a_file_over_each_uplink_once(make_bed, tmp_path):
    bed = make_bed("tree:2x3", without_agent=WITHOUT_AGENT)
    source, names = tmp_path / "source", ["h1", "h2", "h5", "h6"]
    source.write_bytes(os.urandom(FILE_BYTES))
    options = lambda name: ["--nokbd", "--interface", name + "-eth0", "--mcast-rdv-address", RENDEZVOUS]
    before = bed.link_bytes()
    programs = [subprocess.Popen(enter(bed, name, "udp-receiver", *options(name), "--file", str(tmp_path / name)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for name in names]
    try:
        wait_for(lambda: receivers(bed, RENDEZVOUS) == len(names), "all receivers have joined")
        subprocess.run(enter(bed, "h4", "udp-sender", *options("h4"), "--no-progress", "--full-duplex", "--max-bitrate", "10m", "--min-receivers", str(len(names)), "--file", str(source)), check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for program in programs:
            assert program.wait(timeout=PATIENCE) == 0
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert all((tmp_path / name).read_bytes() == source.read_bytes() for name in names)
    carried = {link: octets - before[link] for link, octets in bed.link_bytes().items()}
    assert all(octets <= 1.2 * FILE_BYTES for octets in bed.between_switches(carried)), carried
