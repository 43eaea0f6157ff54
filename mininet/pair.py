"""A testbed with two controllers and a real etcd over TLS, which decides which of them leads."""
import json
import os
import re
import subprocess
import urllib.request

import testbed
from testbed import PATIENCE, wait_for

NAMES = ("one", "two")


class Member:
    """A member of an etcd cluster, which may be running or not."""

    def __init__(self, number):
        self.name = "etcd-%d" % number
        # The system assigns these ports to no other socket.
        self.url, self.peer_url = ("%s://127.0.0.1:%d" % (scheme, 7410 + 2 * number + i) for i, scheme in enumerate(("https", "http")))
        self.daemon = None


class Etcd:
    """An etcd cluster whose members require certificates of clients; members reach each other by
    plain HTTP."""

    def __init__(self, bed, members):
        self.bed, self.folder = bed, os.path.join(bed.directory, "etcd")
        self.members = [Member(number) for number in range(members)]
        os.mkdir(self.folder)
        self.certify()

    def file(self, name):
        return os.path.join(self.folder, name)

    def certify(self):
        """Creates a CA, a server certificate for its address, and a client certificate."""
        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], check=True, capture_output=True)

        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl("req", "-x509", *key, "-keyout", self.file("ca.key"), "-out", self.file("ca.pem"), "-days", "2", "-subj", "/CN=etcd CA")
        for name, extension in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
            openssl("req", *key, "-keyout", self.file(name + ".key"), "-out", self.file(name + ".csr"), "-subj", "/CN=" + name)
            with open(self.file(name + ".ext"), "w") as f:
                f.write(extension + "\n")
            openssl("x509", "-req", "-in", self.file(name + ".csr"), "-CA", self.file("ca.pem"), "-CAkey", self.file("ca.key"),
                    "-CAcreateserial", "-out", self.file(name + ".pem"), "-days", "2", "-extfile", self.file(name + ".ext"))

    def start(self):
        """Starts the members that do not run."""
        for member in self.members:
            if member.daemon is None:
                member.daemon = self.bed.daemon(member.name, [
                    "etcd", "--name", member.name, "--data-dir", self.file(member.name),
                    "--listen-client-urls", member.url, "--advertise-client-urls", member.url,
                    "--listen-peer-urls", member.peer_url, "--initial-advertise-peer-urls", member.peer_url,
                    "--initial-cluster", ",".join("%s=%s" % (other.name, other.peer_url) for other in self.members),
                    "--client-cert-auth", "--trusted-ca-file", self.file("ca.pem"), "--cert-file", self.file("server.pem"),
                    "--key-file", self.file("server.key")])

    def end(self, signal_number, members=None):
        """Sends a signal to these members, or to all, and waits until they have ended."""
        for member in members or self.members:
            member.daemon.signal(signal_number)
            member.daemon.process.wait(PATIENCE)
            self.bed.daemons.remove(member.daemon)
            member.daemon = None

    def urls(self):
        return ",".join(member.url for member in self.members)

    def flags(self):
        return ("--lead-by", self.urls(), "--lead-by-ca", self.file("ca.pem"), "--lead-by-cert", self.file("client.pem"),
                "--lead-by-key", self.file("client.key"))

    def etcdctl(self, *arguments, member=None):
        """Returns the output of etcdctl, from one member or from any that answers."""
        process = subprocess.run(["etcdctl", "--endpoints", member.url if member else self.urls(), "--cacert", self.file("ca.pem"),
                              "--cert", self.file("client.pem"), "--key", self.file("client.key"), *arguments],
                             env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, check=True, timeout=PATIENCE)
        return process.stdout

    def generation(self):
        """Returns the generation of the last leader."""
        return int(self.etcdctl("get", "--print-value-only", "/cool/generation"))

    def leader(self):
        """Returns the member that the others follow, or None while they have not elected one or a
        member does not run."""
        try:
            statuses = [json.loads(self.etcdctl("endpoint", "status", "--write-out", "json", member=member))[0]["Status"] for member in self.members]
        except subprocess.CalledProcessError:
            return None
        # The status of a member without a leader does not contain this key.
        leaders = {status.get("leader") for status in statuses}
        leading_members = [member for member, status in zip(self.members, statuses) if {status["header"]["member_id"]} == leaders]
        return leading_members[0] if leading_members else None


class PairBed(testbed.Testbed):
    """A testbed with two controllers, both of which are configured at switches, agents and
    tools."""

    etcd_members = 1

    def openflow_address(self):
        return " ".join("ssl:127.0.0.1:%d" % (testbed.OPENFLOW_PORT + offset) for offset in range(2))

    def controller_address(self, ip):
        return ",".join("https://%s:%d" % (ip, testbed.GRPC_PORT + offset) for offset in range(2))

    def start_programs(self):
        # Set as docs/guide/deployment.md recommends, so that switches soon reconnect to a restarted
        # controller.
        for switch in self.network.net.switches:
            both = subprocess.check_output(["ovs-vsctl", "get", "bridge", switch.name, "controller"], text=True)
            for controller in re.findall(r"[0-9a-f-]{36}", both):
                subprocess.check_call(["ovs-vsctl", "set", "controller", controller, "max_backoff=1000"])
        self.etcd = Etcd(self, self.etcd_members)
        self.etcd.start()
        self.controller_flags = (*self.controller_flags, *self.etcd.flags())
        self.pair = [None, None]
        super().start_programs()

    def start_controller(self, *_):
        for index in range(2):
            self.start_one(index)

    def launch(self, index):
        """Starts one of the controllers, as its systemd unit does. Does not wait until it
        serves."""
        super().start_controller(NAMES[index], index)
        self.pair[index] = self.controller

    def start_one(self, index):
        self.launch(index)
        # A test determines the leader by the metrics, so they must be available.
        wait_for(lambda: self.leads(index) is not None, "the controller reports whether it leads")
        wait_for(lambda: 1 in (self.leads(0), self.leads(1)), "one of the controllers leads")

    def leads(self, index):
        """Returns whether the controller leads (1 or 0), or None if it does not answer."""
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % (testbed.PAGES_PORT + index), timeout=5) as page:
                return int(re.search(r"^cool_controller_leads (\d)$", page.read().decode(), re.M)[1])
        except OSError:
            return None

    def leader(self):
        [leader] = [index for index in range(2) if self.leads(index) == 1]
        return leader

    def await_end(self, index):
        """Waits until a controller has ended; returns its status."""
        status = self.pair[index].process.wait(PATIENCE)
        self.daemons.remove(self.pair[index])
        return status
