"""Measures other programs that distribute a file to all nodes, each tuned for a cluster
(copying.py).

A peer starts its daemons in the emulated hosts, waits until they are ready, and copies. `seconds`
count from then until the last copy is complete; every copy is compared with the source. All hosts
share one file system. If a program requires the same path on every node, the daemon of a host runs
in a mount namespace in which the directory `local` is the one of its own copy. BitTorrent is in
mininet/copies.py.
"""
import concurrent.futures
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time

import copies
import peers
import testbed

# Runs a command with its own host name ($0), its own hosts file ($1), and its own directory ($2)
# mounted at $3.
AS_HOST = 'mount --bind "$1" /etc/hosts && mount --bind "$2" "$3" && hostname "$0" && shift 3 && exec "$@"'
RSYNC_PORT, SSH_PORT, SLURMCTLD_PORT = 873, 22, 6817
# Share of the rate of the slowest link for programs that cannot determine their rate. Frame headers
# and other traffic need the rest.
RATE_SHARE = 0.93
SLURM = """ClusterName=copies
SlurmctldHost={source}({ip})
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/linear
ReturnToService=2
MessageTimeout=100
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
"""
SSHD = """Port 22
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
"""
SSH = """IdentityFile {folder}/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
Ciphers aes128-gcm@openssh.com
"""
RSYNCD = """use chroot = no
uid = root
gid = root
max connections = 0
log file = /dev/null
[source]
path = {path}
read only = yes
"""


class Peer:
    """A program that makes one copy in a testbed. All processes that it starts end with the
    copy."""

    programs = ()

    def __init__(self, bed, distribution):
        self.bed, self.distribution, self.hosts = bed, distribution, [distribution.source, *distribution.receivers]

    def copy(self):
        """Starts the daemons, copies once, and ends all processes. Returns the seconds of the copy
        and of each node."""
        with contextlib.ExitStack() as stack:
            self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cool-copy-peer-", dir=os.path.dirname(self.distribution.copies)))
            self.log = stack.enter_context(open(os.path.join(self.folder, "log"), "w+b"))
            self.processes = stack.enter_context(peers.Processes())
            stack.callback(self.end)
            self.prepare()
            self.start_time = time.monotonic()
            nodes = {name: {"seconds": s, "own": s, "progress": [(s, self.distribution.size)]} for name, s in self.distribute().items()}
        for host in self.distribution.receivers:
            self.distribution.check(host, self.distribution.copy_of(host))
        return {"seconds": max(node["seconds"] for node in nodes.values()), "nodes": nodes, "missing": {}}

    def end(self):
        """Terminates all started processes. Some, such as sshd, overwrite their environment, so
        `Processes` cannot find them by its mark."""
        for process in self.processes.started:
            process.terminate()

    def prepare(self):
        """Starts the daemons and waits until they are ready."""

    def distribute(self):
        """Copies the file. Returns the seconds until each host had its copy, by host name."""
        raise NotImplementedError

    def elapsed(self):
        return time.monotonic() - self.start_time

    def all_at(self, seconds):
        """Returns the same seconds for all hosts, for programs that do not report the time of each
        host."""
        return dict.fromkeys((host["name"] for host in self.distribution.receivers), seconds)

    def enter(self, host, command):
        """Returns the command line that runs a command in a host."""
        return peers.in_host(host, *command)

    def daemon(self, command, environment=None):
        return self.processes.start(command, environment or os.environ, self.log)

    def run(self, command, environment=None):
        """Runs a command and returns the seconds at which it ended. Raises `peers.PeerError` if it
        fails or takes too long."""
        process = self.daemon(command, environment)
        peers.wait_until_done(process, time.monotonic() + self.distribution.patience, self.distribution.patience, self.log)
        return self.elapsed()

    def write(self, name, text):
        """Writes a file for the program and returns its path."""
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def await_port(self, host, port):
        command = self.enter(host, ["ss", "-Hltn", "sport = :%d" % port])
        testbed.wait_for(lambda: subprocess.run(command, capture_output=True).stdout,
                         "%s listens on port %d" % (host["name"], port), 60)

    def make_folders(self):
        for host in self.hosts:
            os.makedirs(os.path.dirname(self.distribution.copy_of(host)), exist_ok=True)

    def local(self):
        """Returns the directory in which every host sees its own copy."""
        return os.path.join(self.distribution.copies, "local")

    def as_host(self, host, command):
        """Returns the command line that runs a command in a host with its own host name, with the
        names of all hosts, and with its own copy in `local`."""
        os.makedirs(self.local(), exist_ok=True)
        return self.enter(host, ["unshare", "--mount", "--uts", "sh", "-c", AS_HOST, host["name"], self.names, os.path.dirname(self.distribution.copy_of(host)),
                                 self.local(), *command])

    @functools.cached_property
    def names(self):
        """Writes a file with the names and addresses of all hosts, and returns its path."""
        return self.write("hosts", "127.0.0.1 localhost\n" + "".join("%s %s\n" % (h["ip"], h["name"]) for h in self.hosts))


class Rsync(Peer):
    """rsync: all receivers fetch the file from the daemon of the source at once."""

    programs = ("rsync",)

    def serve(self, host, path):
        """Starts a daemon that serves a directory."""
        configuration = self.write("rsyncd-%s" % host["name"], RSYNCD.format(path=path))
        self.daemon(self.enter(host, ["rsync", "--daemon", "--no-detach", "--config", configuration, "--address", host["ip"], "--port", str(RSYNC_PORT)]))

    def prepare(self):
        self.make_folders()
        for host, path in self.servers():
            self.serve(host, path)
        for host, _ in self.servers():
            self.await_port(host, RSYNC_PORT)

    def servers(self):
        yield self.distribution.source, os.path.dirname(self.distribution.path)

    def get(self, host, server):
        name = os.path.basename(self.distribution.path if server is self.distribution.source else self.distribution.copy_of(server))
        # The file is fetched through the daemon, because rsync between two local paths does not use
        # its delta algorithm.
        return self.run(self.enter(host, ["rsync", "--times", "--no-compress", "rsync://%s/source/%s" % (server["ip"], name), self.distribution.copy_of(host)]))

    def distribute(self):
        with concurrent.futures.ThreadPoolExecutor(len(self.hosts)) as threads:
            futures = {host["name"]: threads.submit(self.get, host, self.distribution.source) for host in self.distribution.receivers}
            return {name: future.result() for name, future in futures.items()}


class RsyncTree(Rsync):
    """rsync in two steps: the first host of each rack fetches the file from the source, then the
    other hosts of the rack fetch it from that host."""

    def racks(self):
        """Yields the head of each rack, which is the source in its own rack, and the other hosts of
        the rack."""
        by_name = {host["name"]: host for host in self.hosts}
        for rack in peers.racks(self.bed.description):
            members = [by_name[host["name"]] for host in rack]
            head = self.distribution.source if self.distribution.source in members else members[0]
            yield head, [host for host in members if host is not head]

    def servers(self):
        for head, _ in self.racks():
            yield head, os.path.dirname(self.distribution.path if head is self.distribution.source else self.distribution.copy_of(head))

    def get_after(self, first_copies, host, server):
        """Fetches the file once `first_copies` have completed."""
        for first in first_copies:
            first.result()
        return self.get(host, server)

    def distribute(self):
        with concurrent.futures.ThreadPoolExecutor(len(self.hosts)) as threads:
            heads = {head["name"]: threads.submit(self.get, head, self.distribution.source) for head, _ in self.racks() if head is not self.distribution.source}
            futures = dict(heads)
            for head, others in self.racks():
                # The other hosts in the rack of the source also wait until its link is free.
                first_copies = [heads[head["name"]]] if head["name"] in heads else list(heads.values())
                futures.update({host["name"]: threads.submit(self.get_after, first_copies, host, head) for host in others})
            return {name: future.result() for name, future in futures.items()}


class Clush(Peer):
    """ClusterShell: scp to all hosts at once."""

    programs = ("clush", "sshd")
    through_heads = False

    def prepare(self):
        self.make_folders()
        peers.run_checked("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.path.join(self.folder, "key"))
        os.makedirs("/run/sshd", exist_ok=True)
        configuration = self.write("sshd", SSHD.format(folder=self.folder))
        self.ssh = self.write("ssh", SSH.format(folder=self.folder))
        for host in self.hosts:
            self.daemon(self.as_host(host, ["/usr/sbin/sshd", "-D", "-f", configuration, "-o", "ListenAddress=" + host["ip"]]))
        for host in self.hosts:
            self.await_port(host, SSH_PORT)

    def topology(self):
        """Returns the options with which the heads of racks forward the file."""
        heads = [(head["name"], [host["name"] for host in others]) for head, others in RsyncTree(self.bed, self.distribution).racks()]
        [source_rack] = [others for name, others in heads if name == self.distribution.source["name"]]
        others = [(name, members) for name, members in heads if name != self.distribution.source["name"]]
        lines = ["%s: %s" % (self.distribution.source["name"], ",".join(source_rack + [name for name, _ in others])), *("%s: %s" % (name, ",".join(m)) for name, m in others)]
        return ["--topology", self.write("topology", "[routes]\n" + "\n".join(lines) + "\n")]

    def distribute(self):
        command = ["clush", "-q", "-S", "-f", "64", "-O", "ssh_options=-F " + self.ssh, *(self.topology() if self.through_heads else ()),
                   "-w", ",".join(host["name"] for host in self.distribution.receivers), "--copy", self.distribution.path, "--dest", os.path.join(self.local(), "copy")]
        # The heads must use the Python of the system, in which ClusterShell is installed,
        # regardless of PATH.
        return self.all_at(self.run(self.as_host(self.distribution.source, command), {**os.environ, "CLUSTERSHELL_GW_PYTHON_EXECUTABLE": "/usr/bin/python3"}))


class ClushTree(Clush):
    """ClusterShell: scp through the first host of each rack."""

    through_heads = True


# Runs a command and writes its duration in seconds to a file.
TIMED = """import subprocess, sys, time
began = time.monotonic()
subprocess.run(sys.argv[2:], check=True)
with open(sys.argv[1], "w") as f:
    f.write(str(time.monotonic() - began))
"""
# Block size of sbcast, whose default is 8 MiB.
BLOCK_KIB = 1024


class Sbcast(Peer):
    """sbcast of Slurm, whose controller runs on the source. All traffic uses the data network."""

    programs = ("sbcast", "slurmctld", "slurmd")

    def __init__(self, bed, distribution, fanout=2):
        super().__init__(bed, distribution)
        self.fanout = fanout

    def prepare(self):
        self.make_folders()
        os.mkdir(os.path.join(self.folder, "state"))
        self.write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")
        lines = ["NodeName=%s NodeAddr=%s CPUs=2 State=UNKNOWN" % (host["name"], host["ip"]) for host in self.hosts]
        lines.append("PartitionName=all Nodes=%s Default=YES State=UP" % ",".join(host["name"] for host in self.hosts))
        conf = self.write("slurm.conf", SLURM.format(source=self.distribution.source["name"], ip=self.distribution.source["ip"], folder=self.folder) + "\n".join(lines) + "\n")
        self.environment = {**os.environ, "SLURM_CONF": conf}
        self.daemon(self.as_host(self.distribution.source, ["slurmctld", "-D"]), self.environment)
        self.await_port(self.distribution.source, SLURMCTLD_PORT)
        for host in self.hosts:
            self.daemon(self.as_host(host, ["slurmd", "-D", "-N", host["name"]]), self.environment)
        states = self.as_host(self.distribution.source, ["sinfo", "-N", "-h", "-o", "%T"])
        testbed.wait_for(lambda: subprocess.run(states, env=self.environment, capture_output=True, text=True).stdout.split() == ["idle"] * len(self.hosts),
                         "all nodes are idle in Slurm", 120)

    def distribute(self):
        """Copies in an allocation of all nodes. The time of the allocation does not count."""
        seconds_file = os.path.join(self.folder, "seconds")
        sbcast = ["sbcast", "--force", "--compress=none", "--fanout=%d" % self.fanout, "--size=%dk" % BLOCK_KIB, self.distribution.path, os.path.join(self.local(), "copy")]
        self.run(self.as_host(self.distribution.source, ["salloc", "-Q", "-N", str(len(self.hosts)), "/usr/bin/python3", "-c", TIMED, seconds_file, *sbcast]), self.environment)
        with open(seconds_file, encoding="utf-8") as f:
            return self.all_at(float(f.read()))


class Multicast(Peer):
    """A program that sends by multicast."""

    def kbit(self):
        """Returns a rate in kbit/s that all links can carry."""
        return int(1000 * RATE_SHARE * min(link["mbit"] for link in self.bed.description["links"] if link["mbit"]))

    def await_members(self, address):
        """Waits until OpenFlow switches know that all receivers have joined an address. Programs
        that announce themselves only once would otherwise wait for each other."""
        def count():
            carried = (self.bed.cool_json("topology") or {"multicast": []})["multicast"]
            return sum(len(entry["receivers"]) for entry in carried if entry["address"] == address)
        if self.bed.options["switches"] == "ovs" and "normal" not in self.bed.controller_flags:
            testbed.wait_for(lambda: count() >= len(self.distribution.receivers), "all receivers have joined " + address, 120)

    def await_receivers(self, receivers):
        """Waits for all receivers. Returns the seconds at which each one ended, by host name."""
        with concurrent.futures.ThreadPoolExecutor(len(receivers)) as threads:
            futures = {name: threads.submit(self.await_end, process) for name, process in receivers.items()}
            return {name: future.result() for name, future in futures.items()}

    def await_end(self, process):
        peers.wait_until_done(process, time.monotonic() + self.distribution.patience, self.distribution.patience, self.log)
        return self.elapsed()


# Rendezvous address of udpcast's sender and receivers, which did not find each other at its
# default, 224.0.0.1.
RENDEZVOUS = "230.1.1.1"


class Udpcast(Multicast):
    """udpcast: a receiver in each host, and a sender that starts after all receivers."""

    programs = ("udp-sender", "udp-receiver")

    def prepare(self):
        self.make_folders()
        command = lambda host: ["udp-receiver", "--nokbd", "--interface", host["interface"], "--mcast-rdv-address", RENDEZVOUS, "--file", self.distribution.copy_of(host)]
        self.receivers = {host["name"]: self.daemon(self.enter(host, command(host))) for host in self.distribution.receivers}
        self.await_members(RENDEZVOUS)

    def distribute(self):
        sender = self.daemon(self.enter(self.distribution.source, [
            "udp-sender", "--nokbd", "--no-progress", "--full-duplex", "--interface", self.distribution.source["interface"], "--file", self.distribution.path,
            "--min-receivers", str(len(self.receivers)), "--max-bitrate", "%dk" % self.kbit(), "--mcast-rdv-address", RENDEZVOUS]))
        seconds = self.await_receivers(self.receivers)
        self.await_end(sender)
        return seconds


# Address of the announcements of UFTP's sender.
ANNOUNCEMENTS = "230.4.4.1"


class Uftp(Multicast):
    """UFTP: a daemon in each host receives."""

    programs = ("uftp", "uftpd")

    def prepare(self):
        self.make_folders()
        for host in self.distribution.receivers:
            self.daemon(self.enter(host, ["uftpd", "-d", "-I", host["interface"], "-D", os.path.dirname(self.distribution.copy_of(host)), "-B", str(1 << 20)]))
        self.await_members(ANNOUNCEMENTS)

    def distribute(self):
        # A closed group ends registration once all these hosts have registered. Congestion control
        # is off because the rate is known.
        return self.all_at(self.run(self.enter(self.distribution.source, [
            "uftp", "-I", self.distribution.source["interface"], "-R", str(self.kbit()), "-b", "1440", "-r", "0.05:0.02:1", "-D", "copy",
            "-H", ",".join(host["ip"] for host in self.distribution.receivers), self.distribution.path])))


PEERS = {"rsync": Rsync, "rsync-tree": RsyncTree, "clush": Clush, "clush-tree": ClushTree, "sbcast": Sbcast, "udpcast": Udpcast, "uftp": Uftp}


def check_installed(way):
    """Raises an error if a program that this way needs is not installed."""
    if way == "torrent" and not copies.has_torrent():
        raise RuntimeError("BitTorrent is not installed: run apt-get install python3-libtorrent, "
                           "or remove it from --ways")
    missing = [program for program in getattr(PEERS.get(way), "programs", ()) if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")]
    if missing:
        raise RuntimeError("%s is not installed, but %s needs it: see --help for the package, or "
                           "change --ways" % (", ".join(missing), way))
