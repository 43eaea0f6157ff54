"""Two controllers of one cluster, led by a real etcd over TLS: one leads, the other stands by and takes over."""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import urllib.request

import pytest
import testbed
from conftest import PATIENCE, log_of, succeed, wait_for
from test_recovery import multicast, whole

NAMES = ("one", "two")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Etcd:
    """An etcd of one member, which asks for certificates."""

    def __init__(self, bed):
        self.bed, self.folder = bed, os.path.join(bed.directory, "etcd")
        self.url = "https://127.0.0.1:%d" % free_port()
        self.peers = "http://127.0.0.1:%d" % free_port()
        os.mkdir(self.folder)
        self.certify()

    def file(self, name):
        return os.path.join(self.folder, name)

    def certify(self):
        """A CA, a certificate of the server for its address, and one of clients."""
        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], check=True, capture_output=True)

        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl("req", "-x509", *key, "-keyout", self.file("ca.key"), "-out", self.file("ca.pem"), "-days", "2", "-subj", "/CN=etcd CA")
        for name, more in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
            openssl("req", *key, "-keyout", self.file(name + ".key"), "-out", self.file(name + ".csr"), "-subj", "/CN=" + name)
            with open(self.file(name + ".ext"), "w") as f:
                f.write(more + "\n")
            openssl("x509", "-req", "-in", self.file(name + ".csr"), "-CA", self.file("ca.pem"), "-CAkey", self.file("ca.key"),
                    "-CAcreateserial", "-out", self.file(name + ".pem"), "-days", "2", "-extfile", self.file(name + ".ext"))

    def start(self):
        self.daemon = self.bed.daemon("etcd", [
            "etcd", "--name", "one", "--data-dir", self.file("data"), "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", self.peers, "--initial-advertise-peer-urls", self.peers, "--initial-cluster", "one=" + self.peers,
            "--client-cert-auth", "--trusted-ca-file", self.file("ca.pem"), "--cert-file", self.file("server.pem"),
            "--key-file", self.file("server.key")])

    def end(self, number):
        self.daemon.signal(number)
        self.daemon.process.wait(PATIENCE)
        self.bed.daemons.remove(self.daemon)

    def flags(self):
        return ("--lead-by", self.url, "--lead-by-ca", self.file("ca.pem"), "--lead-by-cert", self.file("client.pem"),
                "--lead-by-key", self.file("client.key"))

    def generation(self):
        """Of whoever led last."""
        got = subprocess.run(["etcdctl", "--endpoints", self.url, "--cacert", self.file("ca.pem"), "--cert", self.file("client.pem"),
                              "--key", self.file("client.key"), "get", "--print-value-only", "/cool/generation"],
                             env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, check=True, timeout=PATIENCE)
        return int(got.stdout)


class PairBed(testbed.Testbed):
    """A testbed with two controllers, which switches, agents and tools know both."""

    def openflow_address(self):
        return " ".join("ssl:127.0.0.1:%d" % (testbed.OPENFLOW_PORT + offset) for offset in range(2))

    def controller_address(self, ip):
        return ",".join("https://%s:%d" % (ip, testbed.GRPC_PORT + offset) for offset in range(2))

    def start_programs(self):
        # As docs/deployment.md says, so that switches are soon back at a controller that was started anew.
        for switch in self.network.net.switches:
            both = subprocess.check_output(["ovs-vsctl", "get", "bridge", switch.name, "controller"], text=True)
            for controller in re.findall(r"[0-9a-f-]{36}", both):
                subprocess.check_call(["ovs-vsctl", "set", "controller", controller, "max_backoff=1000"])
        self.etcd = Etcd(self)
        self.etcd.start()
        self.controller_flags = self.etcd.flags()
        self.pair = [None, None]
        super().start_programs()

    def start_controller(self, *_):
        for which in range(2):
            self.start_one(which)

    def start_one(self, which):
        super().start_controller(NAMES[which], which)
        self.pair[which] = self.controller
        # So that it is known which of them leads.
        wait_for(lambda: self.leads(which) is not None, "it shows whether it leads")
        wait_for(lambda: 1 in (self.leads(0), self.leads(1)), "one of them leads")

    def leads(self, which):
        """1 or 0; None if the controller is not there."""
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % (testbed.PAGES_PORT + which), timeout=5) as page:
                return int(re.search(r"^cool_controller_leads (\d)$", page.read().decode(), re.M)[1])
        except OSError:
            return None

    def leader(self):
        [leader] = [which for which in range(2) if self.leads(which) == 1]
        return leader

    def ended(self, which):
        """How a controller ended, which is waited for."""
        status = self.pair[which].process.wait(PATIENCE)
        self.daemons.remove(self.pair[which])
        return status


@pytest.fixture(scope="module")
def bed():
    with PairBed("tree:2x2", host_mbit=20, uplink_mbit=20, lldp_ms=400) as bed:
        yield bed


@contextlib.contextmanager
def under_way(bed):
    """A broadcast of 64 MiB runs when this begins, and ends well, after it."""
    before = multicast(bed)
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", "64M", "--reps", "1", "--warmup", "0", "--json"],
                           env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: multicast(bed) - before > 8 * (2 << 20), "the broadcast is under way")
    yield
    out, err = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, out + err
    assert json.loads(out)["results"][0]["bytes"] == 64 << 20


def serves(bed, which):
    """This one leads, alone, has the network, and runs jobs."""
    wait_for(lambda: bed.leads(which) == 1, "%s leads" % NAMES[which])
    assert bed.leads(1 - which) in (0, None)
    wait_for(lambda: whole(bed), "%s has the network" % NAMES[which])
    assert succeed(bed, "cool", "run", "-n", "4", "--", "echo", "here").count("here") == 4
    # Open vSwitch tells roles with a status that it renews every few seconds.
    wait_for(lambda: masters() == {testbed.OPENFLOW_PORT + which}, "%s is the master of all switches" % NAMES[which])


def masters():
    """The ports of the controllers that are switches' masters."""
    said = subprocess.check_output(["ovs-vsctl", "--format=csv", "--no-headings", "--columns=target,role", "list", "controller"], text=True)
    return {int(line.split(",")[0].strip('"').rsplit(":", 1)[1]) for line in said.splitlines() if line.endswith("master")}


def test_the_standby_takes_over_from_a_leader_that_is_killed(bed):
    leader, generation = bed.leader(), bed.etcd.generation()
    with under_way(bed):
        bed.pair[leader].signal(signal.SIGKILL)
        bed.ended(leader)
        serves(bed, 1 - leader)
    assert bed.etcd.generation() > generation
    bed.start_one(leader)
    assert bed.leads(leader) == 0


def test_a_leader_that_is_stopped_hands_over(bed):
    leader = bed.leader()
    with under_way(bed):
        bed.pair[leader].signal(signal.SIGTERM)
        assert bed.ended(leader) == 0
        serves(bed, 1 - leader)
    bed.start_one(leader)
    # And a standby that is stopped leaves the leader alone.
    bed.pair[leader].signal(signal.SIGTERM)
    assert bed.ended(leader) == 0
    assert bed.leads(1 - leader) == 1
    bed.start_one(leader)


def test_a_leader_that_has_stood_still_is_refused_and_ends(bed):
    leader = bed.leader()
    with under_way(bed):
        bed.pair[leader].signal(signal.SIGSTOP)
        wait_for(lambda: bed.leads(1 - leader) == 1, "the other one leads")
        bed.pair[leader].signal(signal.SIGCONT)
        assert bed.ended(leader) == 1
        assert "leads no more" in log_of(bed, NAMES[leader])
        serves(bed, 1 - leader)
    bed.start_one(leader)


def test_without_etcd_nobody_leads_and_collectives_go_on(bed):
    leader = bed.leader()
    with under_way(bed):
        bed.etcd.end(signal.SIGKILL)
        assert bed.ended(leader) == 1
        assert "etcd has not renewed its lease" in log_of(bed, NAMES[leader])
        # As its unit does.
        super(PairBed, bed).start_controller(NAMES[leader], leader)
        bed.pair[leader] = bed.controller
        wait_for(lambda: (bed.leads(0), bed.leads(1)) == (0, 0), "both stand by")
        bed.etcd.start()
        wait_for(lambda: 1 in (bed.leads(0), bed.leads(1)), "one of them leads again")
        serves(bed, bed.leader())
    # Nobody is waited for in vain: who stands by without etcd ends when it is told to.
    bed.etcd.end(signal.SIGKILL)
    wait_for(lambda: 1 not in (bed.leads(0), bed.leads(1)), "nobody leads")
    for which in range(2):
        if bed.pair[which].process.poll() is None:
            bed.pair[which].signal(signal.SIGTERM)
        assert bed.ended(which) in (0, 1)
