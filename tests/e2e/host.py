"""Acts as a host without an agent in its own network namespace, for tests.

    host.py DEVICE COMMAND [ARGUMENT]

reach IP: connects to another host by TCP and exits with 0 if it answers; a refusal suffices.
echo: returns each datagram to its sender until the input ends.
send IP: sends datagrams to an echo until the input ends; prints how many were sent and returned.

serve: answers DISCOVER broadcasts until the input ends. Like a DHCP server, it sends the answer to
    the Ethernet address of the client, which has no IP address yet.
discover [IP]: broadcasts, or multicasts to an address, until an answer arrives, and prints the answer.
claim IP: announces by ARP or neighbor discovery that it has an address.
route PREFIX: acts as an IPv6 router for addresses with this 64-bit prefix until the input ends. It
    multicasts an advertisement in response to each solicitation.
tell MAC: sends some frames to an Ethernet address.
vlan NUMBER: creates the tap interface DEVICE.NUMBER until the input ends. Frames that leave through
    it leave through DEVICE with the tag of the VLAN.
hear: counts the frames of `tell` for this host until the input ends, and prints the number.
"""
import fcntl
import os
import select
import socket
import struct
import sys
import threading
import time

# A port without a listener, and the port of the echo.
CLOSED_PORT = 9
ECHO_PORT = 7
REPLY_SECONDS = 2
# Seconds between two datagrams, and for datagrams that are still in flight at the end.
PAUSE_SECONDS = 0.02
LAST_SECONDS = 5
TRIES = 60
# Constants of Linux: a tap whose frames have no extra header; an option with which packet sockets
# report the VLAN tags that they strip; the type of frames that the host itself sent.
TUNSETIFF, IFF_TAP_NO_PI = 0x400454ca, 0x1002
SOL_PACKET, PACKET_AUXDATA, VLAN_VALID, PACKET_OUTGOING = 263, 8, 1 << 4, 4
BROADCAST = b"\xff" * 6
# ICMPv6 message types (RFC 4861), and the address of all nodes of the link.
ROUTER_SOLICITATION, ROUTER_ADVERTISEMENT, NEIGHBOR_ADVERTISEMENT = 133, 134, 136
ALL_NODES, ALL_NODES_MAC = "ff02::1", b"\x33\x33\0\0\0\1"
ROUTER_SECONDS = 1800
# EtherType of frames that are only counted (IEEE 802, for local experiments), and their number.
EXPERIMENT = b"\x88\xb5"
FRAME_COUNT = 20


def mac_of(device):
    with socket.socket() as s:
        return fcntl.ioctl(s, 0x8927, struct.pack("256s", device.encode()))[18:24]


def raw(device):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    s.bind((device, 0))
    return s


def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def datagram(to, mac, source, target, text):
    """Returns a frame with a UDP datagram, without checksum, as IPv4 permits."""
    (ip, port), (to_ip, to_port) = source, target
    udp = struct.pack("!HHHH", port, to_port, 8 + len(text), 0) + text
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, socket.inet_aton(ip), socket.inet_aton(to_ip))
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return to + mac + b"\x08\x00" + head + udp


def icmpv6(to, mac, source, target, body):
    """Returns a frame with ICMPv6 of the link."""
    source, target = (socket.inet_pton(socket.AF_INET6, ip) for ip in (source, target))
    total = checksum(source + target + struct.pack("!II", len(body), 58) + body)
    return to + mac + struct.pack("!HIHBB", 0x86dd, 6 << 28, len(body), 58, 255) + source + target + body[:2] + struct.pack("!H", total) + body[4:]


def link_local(mac):
    return socket.inet_ntop(socket.AF_INET6, b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:])


def received(s, port):
    """Returns the sender's Ethernet address and the text of the next frame with a datagram for a
    port."""
    while True:
        frame = s.recv(65535)
        if frame[12:14] == b"\x08\x00" and frame[23] == 17 and struct.unpack("!H", frame[36:38])[0] == port:
            return frame[6:12], frame[42:14 + struct.unpack("!H", frame[16:18])[0]]


def reach(_device, ip):
    try:
        socket.create_connection((ip, CLOSED_PORT), REPLY_SECONDS).close()
    except ConnectionRefusedError:
        return
    except OSError as e:
        sys.exit("%s: %s" % (ip, e))


def echo(_device):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("0.0.0.0", ECHO_PORT))
    print("echoes", flush=True)
    while s in select.select([s, sys.stdin], [], [])[0]:
        s.sendto(*s.recvfrom(65535))


def send(_device, ip):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((ip, ECHO_PORT))
    sent, returned, input_ended = 0, set(), False
    while not input_ended:
        s.send(b"%d" % sent)
        sent += 1
        next_at = time.monotonic() + PAUSE_SECONDS
        while (remaining := next_at - time.monotonic()) > 0:
            ready = select.select([s, sys.stdin], [], [], remaining)[0]
            if s in ready:
                returned.add(s.recv(65535))
            if sys.stdin in ready:
                input_ended = True
                break
    s.settimeout(LAST_SECONDS)
    while len(returned) < sent:
        try:
            returned.add(s.recv(65535))
        except TimeoutError:
            break
    print(sent, len(returned))


def serve(s, mac):
    def offer_addresses():
        while True:
            client, text = received(s, 67)
            if text == b"DISCOVER":
                s.send(datagram(client, mac, ("10.0.0.250", 67), ("10.0.0.99", 68), b"OFFER"))

    threading.Thread(target=offer_addresses, daemon=True).start()
    print("serves", flush=True)
    sys.stdin.read()


def discover(s, mac, group="255.255.255.255"):
    # RFC 1112, section 6.4.
    to = b"\x01\0\x5e" + socket.inet_aton(group)[1:] if group.startswith("224.0.0.") else BROADCAST
    s.settimeout(REPLY_SECONDS)
    for _ in range(TRIES):
        s.send(datagram(to, mac, ("0.0.0.0", 68), (group, 67), b"DISCOVER"))
        try:
            print(received(s, 68)[1].decode())
            return
        except TimeoutError:
            continue
    sys.exit("no answer")


def claim(s, mac, ip):
    if ":" in ip:
        body = struct.pack("!BxxxBxxx", NEIGHBOR_ADVERTISEMENT, 0x20)
        body += socket.inet_pton(socket.AF_INET6, ip) + b"\2\1" + mac
        s.send(icmpv6(ALL_NODES_MAC, mac, ip, ALL_NODES, body))
        return
    address = socket.inet_aton(ip)
    s.send(BROADCAST + mac + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x800, 6, 4, 2) + mac + address + BROADCAST + address)


def route(s, mac, prefix):
    body = struct.pack("!BxxxBBHII", ROUTER_ADVERTISEMENT, 64, 0, ROUTER_SECONDS, 0, 0) + b"\1\1" + mac
    body += struct.pack("!BBBBIIxxxx", 3, 4, 64, 0xc0, ROUTER_SECONDS, ROUTER_SECONDS) + socket.inet_pton(socket.AF_INET6, prefix)
    print("routes", flush=True)
    while s in select.select([s, sys.stdin], [], [])[0]:
        frame = s.recv(65535)
        if frame[12:14] == b"\x86\xdd" and frame[20] == 58 and frame[54] == ROUTER_SOLICITATION and frame[6:12] != mac:
            s.send(icmpv6(ALL_NODES_MAC, mac, link_local(mac), ALL_NODES, body))


def send_frames(s, mac, to):
    for _ in range(FRAME_COUNT):
        s.send(bytes.fromhex(to.replace(":", "")) + mac + EXPERIMENT + bytes(46))


def count_frames(s, mac):
    count = 0
    print("hears", flush=True)
    while s in select.select([s, sys.stdin], [], [])[0]:
        frame = s.recv(65535)
        count += frame[:6] == mac and frame[12:14] == EXPERIMENT
    print(count)


def untagged_frame(s, number):
    """Returns the next frame without its VLAN tag, or None if it has none."""
    frame, ancillary, _, (_, _, packet_type, _, _) = s.recvmsg(65535, socket.CMSG_SPACE(20))
    for level, option, data in ancillary:
        if (level, option) == (SOL_PACKET, PACKET_AUXDATA) and packet_type != PACKET_OUTGOING:
            status, tag = struct.unpack("I12xH", data[:18])
            return frame if status & VLAN_VALID and tag & 0xfff == number else None
    return None


def vlan(s, _mac, number):
    name, number = "%s.%s" % (s.getsockname()[0], number), int(number)
    s.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP_NO_PI))
    print("carries", flush=True)
    while True:
        ready = select.select([s, tap, sys.stdin], [], [])[0]
        if sys.stdin in ready:
            return
        if tap in ready:
            frame = os.read(tap, 65535)
            s.send(frame[:12] + struct.pack("!HH", 0x8100, number) + frame[12:])
        frame = untagged_frame(s, number) if s in ready else None
        if frame:
            os.write(tap, frame)


if __name__ == "__main__":
    device, what, *arguments = sys.argv[1:]
    if what in ("reach", "echo", "send"):
        {"reach": reach, "echo": echo, "send": send}[what](device, *arguments)
    else:
        {"serve": serve, "discover": discover, "claim": claim, "tell": send_frames, "hear": count_frames, "route": route, "vlan": vlan}[what](raw(device), mac_of(device), *arguments)
