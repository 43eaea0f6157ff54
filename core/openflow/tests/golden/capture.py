#!/usr/bin/python3
"""Captures the golden messages from Open vSwitch (as root, with it running).

For each command of ovs-ofctl below, the raw OpenFlow 1.3 messages of the two directions are
written to NAME.to-switch and NAME.from-switch: ovs-ofctl connects through a relay of this script
to a bridge that the script creates. Afterwards, `UPDATE_GOLDEN=1 cargo test -p rs-openflow --test
golden` writes the messages as text to words.txt.
"""

import pathlib
import selectors
import socket
import struct
import subprocess

HERE = pathlib.Path(__file__).parent
BRIDGE = "ofcap0"

MATCHES = [
    "in_port=1,dl_src=02:00:00:00:00:01/ff:00:00:00:00:ff,dl_vlan=7,dl_vlan_pcp=3,ip,nw_tos=32,nw_ecn=1",
    "metadata=0x1234/0xffff,tun_id=0x99/0xff,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00",
    "tcp,nw_src=10.0.0.0/8,nw_dst=10.1.2.3,tp_src=80,tp_dst=0x1000/0xf000",
    "udp,tp_src=53,tp_dst=5353",
    "sctp,tp_src=1,tp_dst=2",
    "icmp,icmp_type=8,icmp_code=0",
    "arp,arp_op=1,arp_spa=10.0.0.1,arp_tpa=10.0.0.0/24,arp_sha=02:00:00:00:00:01,arp_tha=02:00:00:00:00:02",
    "ipv6,ipv6_src=fe80::1,ipv6_dst=2001:db8::/32,ipv6_label=0x12345",
    "icmp6,icmpv6_type=135,icmpv6_code=0,nd_target=fe80::2,nd_sll=02:00:00:00:00:03",
    "icmp6,icmpv6_type=136,icmpv6_code=0,nd_target=fe80::2,nd_tll=02:00:00:00:00:04",
    "mpls,mpls_label=77,mpls_tc=5,mpls_bos=1",
    "reg0=5,ct_state=+trk+est,ip",
]
ACTIONS = [
    "output:2,controller:128,normal,flood,all,in_port,local",
    "push_vlan:0x8100,set_field:4103->vlan_vid,set_field:3->vlan_pcp,pop_vlan,set_queue:4,output:1",
    "push_mpls:0x8847,set_field:9->mpls_label,set_mpls_ttl:64,dec_mpls_ttl,output:1",
    "set_field:02:00:00:00:00:09->eth_dst,set_field:10.9.9.9->ip_dst,dec_ttl,group:1",
    "meter:1,output:1,clear_actions,write_actions(output:2),write_metadata:0x5/0xff,goto_table:1",
    "learn(table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]),ct(commit,zone=3),move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]",
    "drop",
]


def flows():
    for number, match in enumerate(MATCHES):
        yield f"cookie={number:#x},priority={1000 + number},idle_timeout=60,hard_timeout=600,{match},actions=output:1"
    matches = ["ip", "ip,in_port=1", "mpls,in_port=2", "tcp,in_port=3", "ip,in_port=4", "ip,in_port=5", "ip,in_port=6"]
    for number, (match, actions) in enumerate(zip(matches, ACTIONS)):
        yield f"priority={2000 + number},send_flow_rem,{match},actions={actions}"


def commands():
    """Yields each command: name, whether it may fail, arguments (TARGET: the bridge)."""
    yield "show", False, ["show", "TARGET"]
    yield "add-meter", False, ["add-meter", "TARGET", "meter=1,kbps,burst,stats,bands=type=drop,rate=1000,burst_size=50"]
    yield "add-group-all", False, ["add-group", "TARGET", "group_id=1,type=all,bucket=output:1,bucket=set_field:02:00:00:00:00:07->eth_dst,output:2"]
    yield "add-group-ff", False, ["add-group", "TARGET", "group_id=2,type=ff,bucket=watch_port:1,output:1,bucket=watch_group:1,group:1"]
    yield "add-group-select", False, ["add-group", "TARGET", "group_id=3,type=select,bucket=weight:5,output:1,bucket=weight:7,output:2"]
    for number, flow in enumerate(flows()):
        yield f"add-flow-{number:02}", False, ["add-flow", "TARGET", flow]
    yield "mod-flows", False, ["mod-flows", "TARGET", "cookie=1/-1,actions=drop"]
    yield "dump-flows", False, ["dump-flows", "TARGET"]
    yield "dump-aggregate", False, ["dump-aggregate", "TARGET", "tcp"]
    yield "dump-tables", False, ["dump-tables", "TARGET"]
    yield "dump-table-features", False, ["dump-table-features", "TARGET"]
    yield "dump-ports", False, ["dump-ports", "TARGET"]
    yield "dump-ports-desc", False, ["dump-ports-desc", "TARGET"]
    yield "dump-desc", False, ["dump-desc", "TARGET"]
    yield "dump-groups", False, ["dump-groups", "TARGET"]
    yield "dump-group-stats", False, ["dump-group-stats", "TARGET"]
    yield "dump-group-features", False, ["dump-group-features", "TARGET"]
    yield "dump-meters", False, ["dump-meters", "TARGET"]
    yield "meter-stats", False, ["meter-stats", "TARGET"]
    yield "meter-features", False, ["meter-features", "TARGET"]
    yield "queue-stats", False, ["queue-stats", "TARGET"]
    yield "queue-get-config", False, ["queue-get-config", "TARGET", "1"]
    yield "mod-port", False, ["mod-port", "TARGET", "1", "no-flood"]
    yield "set-frags", False, ["set-frags", "TARGET", "drop"]
    yield "packet-out", False, ["packet-out", "TARGET", "in_port=controller,packet=ffffffffffff02000000000108060001080006040001020000000001" "0a0000010000000000000a000002,actions=output:1,group:1"]
    yield "no-such-group", True, ["add-flow", "TARGET", "priority=9,actions=group:99"]
    yield "bundle", False, ["--bundle", "add-flow", "TARGET", "priority=8,actions=drop"]
    yield "del-meters", False, ["del-meters", "TARGET"]
    yield "del-groups", False, ["del-groups", "TARGET"]
    yield "del-flows", False, ["del-flows", "TARGET", "tcp,out_port=1"]


def relay(client, unix_path, streams):
    """Relays one connection to the bridge until it ends, and records the bytes in `streams`."""
    switch = socket.socket(socket.AF_UNIX)
    switch.connect(unix_path)
    with client, switch, selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, (switch, "to-switch"))
        selector.register(switch, selectors.EVENT_READ, (client, "from-switch"))
        while True:
            for key, _ in selector.select():
                try:
                    data = key.fileobj.recv(65536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    return
                other, direction = key.data
                streams[direction] += data
                other.sendall(data)


def split(data):
    """Yields the messages of a stream."""
    while data:
        length = struct.unpack_from("!H", data, 2)[0]
        yield data[:length]
        data = data[length:]


def is_table_features(message):
    return message[1] == 19 and struct.unpack_from("!H", message, 8)[0] == 12


def save(name, streams):
    for direction, data in streams.items():
        messages = list(split(data))
        # ovs-ofctl requests table features before most commands, and the reply has over a megabyte:
        # one captured reply is enough.
        features = [message for message in messages if is_table_features(message)]
        kept = features[:1] if name == "dump-table-features" else []
        messages = [message for message in messages if not is_table_features(message) or message in kept]
        (HERE / f"{name}.{direction}").write_bytes(b"".join(messages))


def capture(name, may_fail, command, unix_path):
    streams = {"to-switch": b"", "from-switch": b""}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        target = "tcp:127.0.0.1:%d" % listener.getsockname()[1]
        command = ["ovs-ofctl", "-O", "OpenFlow13"] + [target if word == "TARGET" else word for word in command]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as process:
            # Some commands open several connections, one after the other.
            while process.poll() is None:
                try:
                    client, _ = listener.accept()
                except TimeoutError:
                    continue
                relay(client, unix_path, streams)
            if process.returncode != 0 and not may_fail:
                raise SystemExit(f"{name}: {process.stderr.read()}")
    save(name, streams)


def message(kind, body=b"", xid=1):
    return struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body


class Session:
    """A connection to the bridge in which this script is the controller."""

    def __init__(self, unix_path):
        self.streams = {"to-switch": b"", "from-switch": b""}
        self.received = b""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(unix_path)

    def tell(self, request):
        self.streams["to-switch"] += request
        self.socket.sendall(request)

    def receive(self, wanted):
        """Receives messages until one of type `wanted` has arrived."""
        while True:
            length = struct.unpack_from("!H", self.received, 2)[0] if len(self.received) >= 8 else 8
            if len(self.received) >= length:
                taken, self.received = self.received[:length], self.received[length:]
                self.streams["from-switch"] += taken
                if taken[1] == wanted:
                    return
                continue
            piece = self.socket.recv(65536)
            if not piece:
                raise SystemExit(f"the bridge closed the connection before a message of type {wanted}")
            self.received += piece

    def ask(self, request, wanted):
        self.tell(request)
        self.receive(wanted)


def capture_controller(unix_path):
    """Captures messages without a command of ovs-ofctl, and those sent without a request."""
    frame = bytes.fromhex("ffffffffffff020000000001080600010800060400010200000000010a0000010000000000000a000002")
    session = Session(unix_path)
    with session.socket:
        session.ask(message(0, struct.pack("!HHI", 1, 8, 1 << 4)), 0)
        session.ask(message(2, b"are you there?"), 3)
        session.ask(message(24, struct.pack("!I4xQ", 2, 7)), 25)
        session.tell(message(28, struct.pack("!6I", 7, 7, 7, 7, 15, 15)))
        session.ask(message(26), 27)
        session.ask(message(9, struct.pack("!HH", 0, 0xFFFF)) + message(7), 8)
        session.ask(message(200), 1)
        # A flow that lasts for a second, and a packet for it.
        none = 0xFFFFFFFF
        flow = struct.pack("!QQBBHHHIIIHxxHHI", 5, 0, 0, 0, 0, 1, 9999, none, none, none, 1, 1, 4, 0)
        to_controller = struct.pack("!HHIHHIH6x", 4, 24, 0, 0, 16, 0xFFFFFFFD, 0xFFFF)
        session.tell(message(14, flow + to_controller))
        to_table = struct.pack("!HHIH6x", 0, 16, 0xFFFFFFF9, 0)
        session.ask(message(13, struct.pack("!IIH6x", none, 1, len(to_table)) + to_table + frame), 10)
        session.receive(11)
        add_port("ofcap9")
        session.receive(12)
    save("controller", session.streams)


def add_port(name):
    command = ["ovs-vsctl", "add-port", BRIDGE, name, "--", "set", "interface", name, "type=internal"]
    subprocess.run(command, check=True)


def main():
    subprocess.run(["ovs-vsctl", "add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"], check=True)
    try:
        for port in ("ofcap1", "ofcap2"):
            add_port(port)
        unix_path = f"/var/run/openvswitch/{BRIDGE}.mgmt"
        for name, may_fail, command in commands():
            capture(name, may_fail, command, unix_path)
        capture_controller(unix_path)
    finally:
        subprocess.run(["ovs-vsctl", "--if-exists", "del-br", BRIDGE], check=True)


if __name__ == "__main__":
    main()
