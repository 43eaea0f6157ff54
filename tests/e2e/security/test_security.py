"""Authentication: certificates on both channels of the controller."""
import os
import re
import shutil
import socket
import subprocess
import time

from conftest import PATIENCE, log_of, run, succeed, wait_for


def certificates(bed, name, *more):
    """Creates a directory of certificates of another CA."""
    folder = os.path.join(bed.directory, name)
    succeed(bed, "cool", "certs", folder, *more)
    return folder


def run_topology(bed, *options):
    """Runs `cool topology` with other options than the testbed's; returns status and messages."""
    environment = {k: v for k, v in bed.environment().items() if not k.startswith("COOL_")}
    process = subprocess.run(["cool", *options, "topology"], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert len((process.stdout + process.stderr).splitlines()) == 1, process.stdout + process.stderr
    return process.returncode, process.stderr


def test_switches_agents_and_tools_use_tls_and_collectives_run(make_bed):
    bed = make_bed("tree:2x2")
    for switch in bed.network.net.switches:
        assert subprocess.check_output(["ovs-vsctl", "get-controller", switch.name], text=True).strip() == "ssl:127.0.0.1:6653"
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "100K", "--reps", "1")


def test_a_switch_and_a_tool_in_plain_text_are_refused_and_named(make_bed):
    bed = make_bed("tree:2x2")
    with socket.create_connection(("127.0.0.1", 6653), timeout=PATIENCE) as s:
        name = "%s:%d" % s.getsockname()
        s.sendall(bytes([4, 0, 0, 8, 0, 0, 0, 1]))
        reply = b""
        while chunk := s.recv(4096):
            reply += chunk
    assert reply[:1] != b"\x04", "the controller sends no OpenFlow message"
    wait_for(lambda: any("switch turned away: it does not speak TLS; " in line and "peer=%s" % name in line
                         for line in log_of(bed, "controller").splitlines()), "the log names the switch")
    status, errors = run_topology(bed, "--insecure-plaintext", "--controller", "http://127.0.0.1:7400")
    assert status == 1
    status, errors = run_topology(bed, "--controller", "http://127.0.0.1:7400")
    assert status == 1 and "--insecure-plaintext" in errors, errors


def test_certificates_of_another_deployment_are_refused(make_bed):
    bed = make_bed("tree:2x2")
    folder = certificates(bed, "others")
    status, errors = run_topology(bed, "--certs", folder)
    assert status == 1 and "another CA" in errors and "127.0.0.1:7400" in errors, errors
    # With the deployment's CA, only the controller still rejects the certificate.
    shutil.copy(os.path.join(bed.certificates, "ca.pem"), folder)
    status, errors = run_topology(bed, "--certs", folder)
    assert status == 1 and "another CA" in errors, errors
    wait_for(lambda: "turned away: its certificate was issued by another CA" in log_of(bed, "controller"),
             "the log reports it")


def test_an_agents_certificate_is_valid_for_agents_only(make_bed):
    bed = make_bed("tree:2x2")
    folder = os.path.join(bed.directory, "disguised")
    os.mkdir(folder)
    for role, extension in (("agent", "pem"), ("agent", "key")):
        shutil.copy(os.path.join(bed.certificates, "%s.%s" % (role, extension)), os.path.join(folder, "tool." + extension))
    shutil.copy(os.path.join(bed.certificates, "ca.pem"), folder)
    status, errors = run_topology(bed, "--certs", folder)
    assert status == 1 and "requires a certificate for tool, not for agent" in errors, errors

    succeed(bed, "cool", "certs", bed.certificates, "--node", "h9")
    process = subprocess.run([os.path.join(bed.bin_dir, "cool-nodeagent"), "--allow-root", "--name", "h8", "--interface", "lo", "--udp-port", "7500", "--tcp-port",
                           "7500", "--socket", os.path.join(folder, "h8.sock"), "--controller", bed.controller_address("127.0.0.1"),
                           "--certs", os.path.join(bed.certificates, "h9")], capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == 1 and "the certificate is for node h9, but the agent registers h8" in process.stderr, process.stderr


CAPTURE = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88cc))
s.bind((sys.argv[1], 0x88cc))
s.settimeout(60)
while True:
    frame, address = s.recvfrom(2000)
    if address[2] != socket.PACKET_OUTGOING:
        print(frame.hex())
        break
"""
SEND = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0x88cc))
s.send(bytes.fromhex(sys.argv[2]))
"""


def in_host(bed, name, script, *arguments):
    host = bed.network.net.get(name)
    return bed.network.run_in(host, "/usr/bin/python3", "-c", script, host.defaultIntf().name, *arguments).strip()


def tlv(kind, value):
    return ((kind << 9) | len(value)).to_bytes(2, "big") + value


def forged_lldp(dpid, port):
    """Returns a forgery of the controller's LLDP frame of a switch port, with an invalid proof."""
    prefix = b"\x02\xc0\x01"
    return (bytes.fromhex("0180c200000e 020000000099 88cc") + tlv(1, b"\x07dpid:%016x" % dpid) + tlv(2, b"\x07%d" % port) + tlv(3, b"\0\x78")
            + tlv(127, prefix + b"\x01\x02" + dpid.to_bytes(8, "big") + port.to_bytes(4, "big"))
            + tlv(127, prefix + b"\x03\x02" + (1 << 40).to_bytes(8, "big") + bytes(32)) + tlv(0, b""))


def test_forged_replayed_and_relayed_lldp_is_reported(make_bed):
    bed = make_bed("tree:2x2")
    links = bed.cool_json("topology")["links"]

    def reported(words):
        return lambda: any(words in w for w in bed.cool_json("topology")["warnings"])

    in_host(bed, "h1", SEND, forged_lldp(0x1, 7).hex())
    wait_for(reported("receives switch 0000000000000001 port 7, but the frame is forged"), "the forged frame is reported")
    frames = []

    def relay_until_reported():
        """Relays a captured frame until the link through nodes is reported. A single frame may
        arrive so late on a busy machine that it counts as an old frame instead of a link."""
        if reported("through node h")():
            return True
        frames.append(in_host(bed, "h1", CAPTURE))
        in_host(bed, "h3", SEND, frames[-1])
        return False

    wait_for(relay_until_reported, "the carried frame is reported")
    in_host(bed, "h3", SEND, frames[0])
    wait_for(reported("receives an old announcement of switch"), "the frame sent twice is reported")
    assert bed.cool_json("topology")["links"] == links
    assert "forged" in log_of(bed, "controller")
    succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", "100K", "--reps", "1")


MULTICAST = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[2]))
for n in range(int(sys.argv[4])):
    s.sendto(b"forged", (sys.argv[3], 7420))
"""
LISTEN = """
import select, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
s.bind((sys.argv[1], 0x0800))
print("listening", flush=True)
count = 0
while True:
    ready, _, _ = select.select([s, sys.stdin], [], [])
    if s in ready:
        frame, address = s.recvfrom(65536)
        count += address[2] != socket.PACKET_OUTGOING and frame.endswith(b"forged")
    elif sys.stdin in ready:
        break
print(count)
"""


def test_packets_of_nonmembers_into_a_group_are_counted(make_bed):
    bed = make_bed("tree:2x2")
    job = subprocess.Popen(["cool", "run", "-n", "3", "--", os.path.join(bed.bin_dir, "cool-misuse"), "barriers"],
                           env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert "started" in job.stdout.readline()
        group = bed.cool_json("groups")["groups"][0]
        members = {m["node"] for m in group["members"]}
        tree = next(t for t in group["trees"] if t["scope"] == "all")
        outsider = next(h for h in bed.network.net.hosts if h.name not in members)
        member = bed.network.net.get(sorted(members)[0])
        listener = subprocess.Popen(["mnexec", "-a", str(member.pid), "/usr/bin/python3", "-c", LISTEN, member.defaultIntf().name],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert listener.stdout.readline().strip() == "listening"
        bed.network.run_in(outsider, "ip", "route", "replace", "224.0.0.0/4", "dev", outsider.defaultIntf().name)

        def are_counted():
            # The emulation may lose packets on a busy machine, so they are sent again.
            in_host(bed, outsider.name, MULTICAST, outsider.IP(), tree["address"], "50")
            return sum(o["packets"] for o in bed.cool_json("groups")["outsiders"]) >= 50

        wait_for(are_counted, "the packets are counted")
        # Forwarded packets would have arrived before they were counted.
        assert listener.communicate(timeout=PATIENCE)[0].strip() == "0", "nothing reaches a member"
        assert "dropped" in succeed(bed, "cool", "groups")
        assert job.poll() is None, "the job continues"
    finally:
        job.terminate()
        job.wait(PATIENCE)


FLOOD = """
import socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
ask = bytes.fromhex("ffffffffffff 020000000099 0806 0001080006040001 020000000099 0a000063 000000000000 0a0000fe".replace(" ", ""))
lldp = bytes.fromhex(sys.argv[2])
print("flooding", flush=True)
while True:
    for n in range(200):
        s.send(ask)
        s.send(lldp)
    time.sleep(0.01)
"""


def test_a_host_that_floods_the_controller_is_rate_limited(make_bed):
    bed = make_bed("tree:2x2")
    before = bed.cool_json("topology")
    host = bed.network.net.get("h4")
    flood = subprocess.Popen(["mnexec", "-a", str(host.pid), "/usr/bin/python3", "-c", FLOOD, host.defaultIntf().name,
                              forged_lldp(1, 7).hex()], stdout=subprocess.PIPE, text=True)
    try:
        assert flood.stdout.readline().strip() == "flooding"
        # The loop takes longer than the timeout for missing LLDP frames.
        for _ in range(5):
            succeed(bed, "cool", "run", "--hosts", "h1,h2,h3", "--", os.path.join(bed.bin_dir, "cool-misuse"), "sum")
            time.sleep(1)
        now = bed.cool_json("topology")
        assert now["links"] == before["links"]
        assert [n["located"] for n in now["nodes"] if n["name"] != "h4"] == [True] * 3
        tor = next(l["a"] for l in bed.description["links"] if l["b"] == "h4")

        def dropped():
            stats = subprocess.check_output(["ovs-ofctl", "-O", "OpenFlow13", "meter-stats", tor], text=True)
            return max(int(band) for band in re.findall(r"0: packet_count:(\d+)", stats))

        wait_for(lambda: dropped() > 1000, "the switch drops most of the flood")
    finally:
        flood.kill()
        flood.wait(PATIENCE)


def test_nothing_starts_without_certificates_unless_insecure(make_bed):
    bed = make_bed("tree:2x2")
    missing = os.path.join(bed.directory, "missing")
    process = run(bed, os.path.join(bed.bin_dir, "cool-controller"), "--certs", missing)
    assert process.returncode == 1 and missing in process.stderr and "cool certs" in process.stderr, process.stderr
    bed = make_bed("tree:2x2", insecure_plaintext=True)
    succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", "1000", "--reps", "1")
