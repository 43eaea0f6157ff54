#!/usr/bin/env python3
"""A hostile program on a node. `user`: receives, injects, connects and floods as an ordinary user.
`wire`: replays and changes the node's packets with root's rights. `read`: searches the traffic for
a text with root's rights. Ends when its input ends, and prints its results as JSON."""
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys

PORT = 7420
NOBODY_UID = 65534
# Constants of socket(7) that Python does not define.
SO_RCVBUFFORCE = 33
TRANSPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "core", "transport", "src")


def version(*file):
    """Returns the protocol version in a source file of core/transport, because agents reject other
    versions before they check anything else."""
    with open(os.path.join(TRANSPORT, *file)) as source:
        return int(re.search(r"const VERSION: u\d+ = (\d+);", source.read()).group(1))


# A packet of agents, of an unknown group, that requests a reply (a ping). Its tag is invalid.
PING = bytes([0xC0, 1, version("packet.rs"), 8]) + bytes(36)
# This file is read before the program becomes another user, who may have no access to it.
UNICAST_VERSION = version("unicast", "api.rs")
HEADERS = 14 + 20 + 8
CHUNK = HEADERS + 40


def start(bed, name, *arguments):
    """Starts this program on a host of a testbed, and waits until it is ready to attack."""
    process = subprocess.Popen(["mnexec", "-a", str(bed.network.net.get(name).pid), "/usr/bin/python3", os.path.abspath(__file__), *arguments],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def trees(bed):
    """Returns the addresses of the trees of all groups, or none while no controller answers."""
    response = bed.cool_json("groups") or {"groups": []}
    return sorted({tree["address"] for group in response["groups"] for tree in group["trees"]})


def nodes(bed):
    """Returns all hosts in the format of `user`."""
    return ["%s=%s" % (host.name, host.IP()) for host in bed.network.net.hosts]


def input_has_ended():
    return bool(select.select([sys.stdin], [], [], 0)[0])


def bind_to_tree(tree):
    """Returns a socket bound to a tree's address, if that is possible."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setblocking(False)
    try:
        s.bind((tree, PORT))
    except OSError:
        s.close()
        return None
    return s


def hello(name):
    """Returns the first frame of an agent that claims to be the latest of its node."""
    body = b"\x01" + struct.pack(">IQ", UNICAST_VERSION, 2**63) + name.encode()
    return struct.pack(">I", len(body)) + body


def user(trees, nodes):
    """Runs as an ordinary user; `nodes`: name=address of all."""
    os.setgid(NOBODY_UID)
    os.setuid(NOBODY_UID)
    results = {"bound": 0, "heard": 0, "sent": 0, "connected": 0}
    listeners, connections = [], []
    print("ready", flush=True)
    while not input_has_ended():
        if not listeners:
            listeners = [listener for listener in map(bind_to_tree, trees) if listener]
            results["bound"] = max(results["bound"], len(listeners))
        for listener in listeners:
            try:
                while listener.recv(65535):
                    results["heard"] += 1
            except BlockingIOError:
                pass
        sender = listeners[0] if listeners else socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for name, address in nodes:
            for payload in (PING, b"\xc2" + PING[1:] + bytes(12), os.urandom(1400)):
                try:
                    sender.sendto(payload, (address, PORT))
                    results["sent"] += 1
                except OSError:
                    pass
            for first_bytes in (hello(name), b"COOLKEY1" + os.urandom(32) + bytes(8) + bytes([len(name)]) + name.encode() + bytes(32), b""):
                s = socket.socket()
                s.setblocking(False)
                s.connect_ex((address, PORT))
                connections.append((s, first_bytes))
        for s, first_bytes in connections[-12 * len(nodes):]:
            try:
                s.send(first_bytes)
                results["connected"] += 1
            except OSError:
                pass
        while len(connections) > 400:
            connections.pop(0)[0].close()
        select.select([sys.stdin], [], [], 0.02)
    print(json.dumps(results))


def wire(interface):
    """Replays the node's packets, unchanged and with another chunk or other bytes."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    s.bind((interface, 0))
    print("ready", flush=True)
    results = {"repeated": 0, "changed": 0}
    own_frames = set()
    while not input_has_ended():
        if not select.select([s], [], [], 0.05)[0]:
            continue
        frame, address = s.recvfrom(65535)
        outgoing = address[2] == socket.PACKET_OUTGOING
        if not outgoing or frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[36:38] != struct.pack(">H", PORT) or frame in own_frames:
            continue
        if (results["repeated"] + results["changed"]) > 4000 or len(frame) < CHUNK + 20:
            continue
        other = bytearray(frame)
        # The UDP checksum is cleared, so that the receiver accepts the changed packet.
        other[40:42] = bytes(2)
        # A sequence number far ahead, which must not make the valid ones look old.
        other[HEADERS + 3] ^= 0x10
        other[CHUNK + 3] = (other[CHUNK + 3] + 3) % 256
        other[-20] ^= 0xFF
        own_frames = {bytes(other), frame}
        s.send(frame)
        s.send(bytes(other))
        results["repeated"] += 1
        results["changed"] += 1
    print(json.dumps(results))


def read(interface, text):
    """Counts packets of UDP and of TCP, and those that contain the text."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
    s.bind((interface, 0))
    print("ready", flush=True)
    results = {"udp": 0, "tcp": 0, "read_udp": 0, "read_tcp": 0}
    ended = False
    while not ended:
        # Packets that are already queued when the input ends are still examined.
        ended = input_has_ended()
        while select.select([s], [], [], 0.05)[0]:
            frame = s.recv(65535)
            protocol = {17: "udp", 6: "tcp"}.get(frame[23]) if frame[12:14] == b"\x08\x00" else None
            if protocol:
                results[protocol] += 1
                results["read_" + protocol] += text in frame
    print(json.dumps(results))


if __name__ == "__main__":
    if sys.argv[1] == "user":
        user(sys.argv[2].split(","), [node.split("=") for node in sys.argv[3:]])
    elif sys.argv[1] == "read":
        read(sys.argv[2], sys.argv[3].encode())
    else:
        wire(sys.argv[2])
