#!/usr/bin/python3
"""Builds an emulated network, starts COOL on it, runs a command, and removes everything again.

    sudo mininet/testbed.py --topology tree:4x4 --host-mbit 50 --uplink-mbit 50 -- cool topology

The command runs next to the controller. COOL_CONTROLLER is set for `cool`, the programs of --bin
are on its PATH, and COOL_TESTBED names a JSON file that describes the network. Exits with the
command's status. Needs root and Debian's mininet, openvswitch-switch and ethtool.
"""
import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import network  # noqa: E402
import ovs  # noqa: E402
import topologies  # noqa: E402
from build_directory import TARGET  # noqa: E402
from signal_cleanup import unwind_on_signals  # noqa: E402, F401  programs import it from here

OPENFLOW_PORT = 6653
GRPC_PORT = 7400
PAGES_PORT = 7480  # of the controller, and of each agent on its own host
LOCK = "/run/lock/cool-testbed.lock"
# Seconds within which every awaited event must occur, even on a busy machine. The bound is long,
# because it costs nothing when the event occurs.
PATIENCE = 600
# This environment variable permits agents to run as root, as in a laboratory; earlier versions
# ignore it. In testbeds with users, agents are not root.
ALLOW_ROOT = "COOL_ALLOW_ROOT"
# Runs a program in a mount namespace with accounts that the machine does not have, and with or
# without cgroups of version 2. $0 is the passwd file, $1 the group file, and $2 the type of the
# filesystem to mount at /sys/fs/cgroup (cgroup2, or tmpfs for none).
ACCOUNTS = 'mount --bind "$0" /etc/passwd && mount --bind "$1" /etc/group && mount -t "$2" none /sys/fs/cgroup && shift 2 && exec "$@"'
AGENT_USER = "coolagent"
AGENT_UID = 990
# Directory of COOL's programs, unless --bin names another.
BIN = os.environ.get("COOL_BIN") or os.path.join(TARGET, "release")


class Failure(Exception):
    """An error that the user should see, in one line."""


def wait_for(condition, what, seconds=PATIENCE, process=None):
    """Polls until `condition` returns a true value, and returns that value. Use it for conditions
    that no program reports, such as values of counters, lines of logs, or the controller's state.
    Raises Failure after `seconds`, or if the `process` that must meet the condition ends before;
    `what` describes the condition in its message.

    Conditions that run programs are evaluated less often, because the awaited programs share
    their CPUs.
    """
    end = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        is_over = process is not None and process.poll() is not None
        if value := condition():
            return value
        if is_over:
            raise Failure("a process ended with status %d before: %s" % (process.returncode, what))
        now = time.monotonic()
        if now > end:
            raise Failure("not within %d s: %s" % (seconds, what))
        time.sleep(min(max(0.05, 3 * (now - begun)), 0.25))


class Daemon:
    """A process that the testbed starts and ends, with its log in a file."""

    def __init__(self, name, command, directory, prefix=()):
        self.name, self.log = name, os.path.join(directory, name + ".log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([*prefix, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)

    def check(self):
        if self.process.poll() is not None:
            with open(self.log, errors="replace") as log:
                last = log.read().strip().splitlines()[-3:]
            raise Failure("%s ended with status %d: %s" % (self.name, self.process.returncode, " | ".join(last) or "no output"))

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def allow_root():
    """Returns the value of COOL_ALLOW_ROOT for agents: that of this process's environment, or "1"
    by default."""
    return os.environ.get(ALLOW_ROOT, "1")


def check_programs(folder):
    for program in ("cool", "cool-controller", "cool-nodeagent"):
        if not os.access(os.path.join(folder, program), os.X_OK):
            raise Failure("%s is not in %s: cargo build --release --workspace, or name another directory with --bin" % (program, folder))


def install(file, folder, owner=0):
    """Copies the file into the directory and replaces an existing one atomically."""
    target = os.path.join(folder, os.path.basename(file))
    shutil.copy(file, target + ".new")
    os.chown(target + ".new", owner, owner)
    os.rename(target + ".new", target)


def stop_all(daemons, grace=30.0):
    """Asks all processes to end, waits for them together, then kills the remaining ones."""
    for daemon in daemons:
        daemon.signal(signal.SIGTERM)
    end = time.monotonic() + grace
    for daemon in daemons:
        try:
            daemon.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            print("testbed: %s did not end within %g s; killed" % (daemon.name, grace), file=sys.stderr)
            daemon.signal(signal.SIGKILL)
            daemon.process.wait()


@contextlib.contextmanager
def favored_switch():
    """Raises the priority of the switch process, because it represents hardware, which must not
    wait behind the applications that it connects."""
    pid = ovs.daemon_pid()
    before = os.getpriority(os.PRIO_PROCESS, pid)
    threads = [int(t) for t in os.listdir("/proc/%d/task" % pid)]
    with contextlib.suppress(PermissionError):
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, -10)
    try:
        yield
    finally:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, thread, before)


class Testbed:
    """COOL on an emulated network, as a context: `with Testbed("tree:2x2") as bed:
    bed.run([...])`."""

    def __init__(self, topology, host_mbit=0.0, uplink_mbit=0.0, loss=0.0, mtu=1500, slots=4, bin_dir=None, logs=None,
                 log_level="info", set_rates=True, insecure_plaintext=False, lldp_ms=0,
                 controller_flags=(), lose=None, users=None, hide_cgroups=False, switches="ovs", peer_timeout_ms=0,
                 agent_flags=(), without_agent=(), ipv6=(), flow_mbit=0.0):
        self.options = {"host_mbit": host_mbit, "uplink_mbit": uplink_mbit, "loss": loss, "mtu": mtu, "switches": switches, "ipv6": ipv6,
                        "flow_mbit": flow_mbit}
        self.topology, self.slots, self.log_level = topology, slots, log_level
        self.bin_dir = os.path.abspath(bin_dir or BIN)
        # Whether the controller is given the rates of links, as an operator configures rates that
        # ports do not report.
        self.set_rates = set_rates
        self.logs, self.insecure_plaintext, self.lldp_ms = logs, insecure_plaintext, lldp_ms
        self.controller_flags, self.agent_flags, self.peer_timeout_ms = controller_flags, agent_flags, peer_timeout_ms
        # Hosts on which no agent is started.
        self.without_agent = without_agent
        # A pair: the share of datagrams that each agent drops itself, and the random seed of the
        # first agent. The seed of each further agent is larger by one.
        self.lose = lose
        # Lines of passwd(5) and group(5) for users that the machine does not have. If there are
        # any, agents are not root, and each has a launcher, with or without cgroups.
        self.users, self.hide_cgroups = users, hide_cgroups
        self.daemons = []
        self.agents, self.launchers = {}, {}
        # Command prefixes with which agents start, by the names of their hosts (bench/inject.py).
        self.agent_wrappers = {}
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def _start(self):
        if os.geteuid():
            raise Failure("the testbed creates network namespaces and switches: run it as root")
        check_programs(self.bin_dir)
        self._lock()
        self.directory = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="cool-testbed-"))
        self.logs = self.logs or self.directory
        os.makedirs(self.logs, exist_ok=True)
        has_ovs = self.options["switches"] == "ovs"
        if has_ovs:
            self.stack.enter_context(ovs.running())
        if not self.insecure_plaintext:
            self.certificates = os.path.join(self.directory, "certs")
            subprocess.run([os.path.join(self.bin_dir, "cool"), "certs", self.certificates], stdout=subprocess.DEVNULL, check=True)
            if has_ovs:
                self.stack.enter_context(ovs.use_certificates(self.certificates))
        if self.users:
            self.prepare_accounts()
        self.network = self.make_network()
        self.stack.callback(self.network.stop)
        self.network.start(self.openflow_address())
        if has_ovs:
            self.stack.enter_context(favored_switch())
        self.description = self.network.describe()
        self.description_file = os.path.join(self.directory, "testbed.json")
        with open(self.description_file, "w") as f:
            json.dump(self.description, f, indent=1)
        # Registered after the network's cleanup, so that the daemons end first.
        self.stack.callback(lambda: stop_all(self.daemons))
        self.start_programs()

    def prepare_accounts(self):
        """Prepares the directories that users other than root must be able to enter, and the files
        of the agents' account."""
        os.chmod(self.directory, 0o711)
        os.chown(self.directory, AGENT_UID, AGENT_UID)
        self.public, self.agent_certificates = (os.path.join(self.directory, name) for name in ("public", "agent"))
        os.mkdir(self.public, 0o755)
        os.mkdir(self.agent_certificates, 0o700)
        os.chown(self.agent_certificates, AGENT_UID, AGENT_UID)
        self.install_agent()
        self.install_agent_certificates()
        account = "%s:x:%d:" % (AGENT_USER, AGENT_UID)
        for name, fields, text in (("passwd", "%d::/:/bin/false" % AGENT_UID, self.users[0]), ("group", "", self.users[1])):
            with open("/etc/" + name) as f, open(os.path.join(self.directory, name), "w") as copy:
                copy.write(f.read() + account + fields + "\n" + text)

    def install_agent(self):
        """Installs the agents' program in a directory from which their account may run it. Running
        agents use the previous program until they restart."""
        install(os.path.join(self.bin_dir, "cool-nodeagent"), self.public)

    def install_agent_certificates(self):
        """Installs the agents' certificates; the key is written last."""
        for name in ("ca.pem", "agent.pem", "agent.key"):
            install(os.path.join(self.certificates, name), self.agent_certificates, AGENT_UID)

    def with_accounts(self):
        """Returns a command prefix that runs a command on a system with the accounts of `users`."""
        files = (os.path.join(self.directory, name) for name in ("passwd", "group"))
        # The shell's $0 and $1 are the files; a shift by 2 leaves the command.
        return ["unshare", "--mount", "sh", "-c", ACCOUNTS, *files, "tmpfs" if self.hide_cgroups else "cgroup2"]

    def event_log(self, controller="controller"):
        """Returns the path of a controller's event log, which only exists in a testbed with
        users."""
        return os.path.join(self.directory, controller + "-events.jsonl")

    def launcher_socket(self, name):
        return os.path.join(self.directory, name + ".launcher")

    def start_launcher(self, name):
        command = [os.path.join(self.bin_dir, "cool-launcher"), "--socket", self.launcher_socket(name), "--agent-user", AGENT_USER,
                   "--min-uid", "900"]
        self.launchers[name] = self.daemon("launcher-" + name, command, ("mnexec", "-a", str(self.network.net.get(name).pid), *self.with_accounts()))

    def start_programs(self):
        """Starts the controller and an agent on every host, and waits until all are located."""
        self.start_controller()
        for host in (host for host in self.network.net.hosts if host.name not in self.without_agent):
            if self.users:
                self.start_launcher(host.name)
            self.start_agent(host.name)
        self.wait_until_joined()

    def replace_programs(self, bin_dir):
        """Ends the controller and the agents, and starts the programs of another directory in the
        same network."""
        stop_all(self.daemons)
        self.daemons.clear()
        # A controller of another version may number racks differently, and so give hosts other
        # PMACs.
        for host in self.network.net.hosts:
            host.cmd("ip neigh flush all")
        self.bin_dir = bin_dir
        self.start_programs()

    def make_network(self):
        """Returns the network, not yet built."""
        return network.Network(self.topology, **self.options)

    def _lock(self):
        """Locks the machine for one testbed, because names of interfaces and bridges are shared by
        the machine."""
        lock = self.stack.enter_context(open(LOCK, "w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure("another testbed runs on this machine (%s is locked); wait for it or end it" % LOCK) from None

    def security(self):
        """Returns the flags by which COOL's programs find their certificates, or communicate
        without TLS."""
        return ["--insecure-plaintext"] if self.insecure_plaintext else ["--certs", self.certificates]

    def openflow_address(self):
        """Returns the address at which switches reach the controller."""
        return "%s:127.0.0.1:%d" % ("tcp" if self.insecure_plaintext else "ssl", OPENFLOW_PORT)

    def controller_address(self, ip):
        return "%s://%s:%d" % ("http" if self.insecure_plaintext else "https", ip, GRPC_PORT)

    def pages_ip(self, _host):
        """Returns the address of an agent's pages, in its host's namespace."""
        return "127.0.0.1"

    def environment(self):
        """Returns the variables that `cool`, and scripts that read counters, need."""
        security = {"COOL_INSECURE_PLAINTEXT": "1"} if self.insecure_plaintext else {"COOL_CERTS": self.certificates}
        # USER is the owner of jobs. Agents without launchers start only jobs of their own user,
        # root.
        return {**os.environ, **security, "USER": "root", ALLOW_ROOT: allow_root(), "COOL_CONTROLLER": self.controller_address("127.0.0.1"), "COOL_TESTBED": self.description_file,
                "PATH": self.bin_dir + ":" + os.environ.get("PATH", "/usr/bin:/bin")}

    def start_controller(self, name="controller", offset=0):
        """Starts a controller. A second controller must have another name, and an offset that is
        added to all of its ports."""
        command = [os.path.join(self.bin_dir, "cool-controller"), "--openflow", "0.0.0.0:%d" % (OPENFLOW_PORT + offset),
                   "--grpc", "0.0.0.0:%d" % (GRPC_PORT + offset), "--http", "127.0.0.1:%d" % (PAGES_PORT + offset), *self.security(),
                   *self.controller_flags, *(("--event-log", self.event_log(name)) if self.users else ())]
        if self.lldp_ms:
            command += ["--lldp-interval-ms", str(self.lldp_ms)]
        for kind in ("host", "uplink") if self.set_rates else ():
            mbit = self.network.common_mbit(kind)
            if mbit:
                command += ["--%s-mbit" % kind, "%g" % mbit]
        # However late switches connect, nodes wait for them. Controllers of earlier releases ignore
        # the variable, and always wait.
        self.controller = self.daemon(name, command, ("env", "COOL_NETWORK=openflow") if self.network.has_openflow else ())

    def start_agent(self, name, certificates=None):
        """Starts an agent on a host. `certificates` is the directory of its certificates, if the
        agent does not use those of the testbed."""
        host = self.network.net.get(name)
        command = [os.path.join(self.bin_dir, "cool-nodeagent"), "--name", name, "--interface", host.defaultIntf().name,
                   "--controller", self.controller_address(network.MANAGEMENT_ADDRESS), *self.security(),
                   "--socket", os.path.join(self.directory, name + ".sock"), "--slots", str(self.slots),
                   "--http", "%s:%d" % (self.pages_ip(host), PAGES_PORT), *self.agent_flags]
        if not self.network.has_openflow and "--rack" not in self.agent_flags:
            command += ["--rack", self.network.switch_of(host)]
        if self.peer_timeout_ms:
            command += ["--peer-timeout-ms", str(self.peer_timeout_ms)]
        if self.lose:
            share, seed = self.lose
            command += ["--lose", "%g:%d" % (share, seed + self.network.net.hosts.index(host))]
        if certificates:
            command[command.index("--certs") + 1] = certificates
        prefix = ["mnexec", "-a", str(host.pid)]
        if self.users:
            command[0] = os.path.join(self.public, "cool-nodeagent")
            command[command.index("--certs") + 1] = self.agent_certificates
            command += ["--launcher", self.launcher_socket(name)]
            prefix += [*self.with_accounts(), "setpriv", "--pdeathsig", "TERM", "--reuid", str(AGENT_UID), "--regid", str(AGENT_UID),
                       "--clear-groups", "--inh-caps", "+net_raw", "--ambient-caps", "+net_raw"]
        self.agents[name] = self.daemon(name, [*self.agent_wrappers.get(name, ()), *command], prefix)

    def restart_agent(self, name, certificates=None):
        """Kills an agent, unless it has died already, and starts another one on the same host."""
        agent = self.agents[name]
        agent.signal(signal.SIGKILL)
        agent.process.wait(PATIENCE)
        self.daemons.remove(agent)
        self.start_agent(name, certificates)

    def daemon(self, name, command, prefix=()):
        """Starts a program that ends with the testbed at the latest."""
        # If the testbed is killed, its daemons must end too.
        prefix = ("setpriv", "--pdeathsig", "TERM", *prefix, "env", "RUST_LOG=" + self.log_level, "%s=%s" % (ALLOW_ROOT, allow_root()))
        daemon = Daemon(name, command, self.logs, prefix)
        self.daemons.append(daemon)
        return daemon

    def cool_json(self, *arguments):
        """Returns the parsed output of `cool ARGUMENTS --json`, or None if it failed."""
        process = subprocess.run(["cool", *arguments, "--json"], env=self.environment(), capture_output=True, text=True, timeout=PATIENCE)
        return json.loads(process.stdout) if process.returncode == 0 else None

    def found(self):
        """Returns the numbers of located nodes with a connected agent, and of links between
        switches that the controller has found."""
        topology = self.cool_json("topology") or {"nodes": [], "links": []}
        return sum(n["located"] and n["away_ms"] is None for n in topology["nodes"]), len(topology["links"])

    def all_of_it(self):
        """Returns the numbers that `found` returns when nothing is missing."""
        uplinks = [link for link in self.description["links"] if link["kind"] == "uplink" and self.network.has_openflow]
        return len(self.description["hosts"]) - len(self.without_agent), len(uplinks)

    def whole(self):
        """Returns whether the controller has located every host with an agent, each connected, and
        found every link."""
        return self.found() == self.all_of_it()

    def wait_until_joined(self):
        """Waits until the network is complete, while all programs run."""
        end = time.monotonic() + PATIENCE
        while not self.whole():
            for daemon in self.daemons:
                daemon.check()
            if time.monotonic() > end:
                raise Failure("after %g s, %d nodes are located and %d links between switches "
                              "found, of %d and %d (--logs DIR keeps the logs)"
                              % (PATIENCE, *self.found(), *self.all_of_it()))
            time.sleep(0.1)

    def wait_until_measured(self, timeout=10.0):
        """Waits until agents have probed each other, so that they do not probe during a
        measurement.

        Returns after `timeout` seconds at the latest, because measurements take long if many
        packets are lost. The controller then plans with the costs that it has measured by then.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            topology = self.cool_json("topology")
            if topology and topology["measurements"]["pending"] == 0:
                return
            time.sleep(0.1)

    def run(self, command, **options):
        """Runs a command inside the testbed's environment, as subprocess.run does."""
        return subprocess.run(command, env=self.environment(), **options)

    def link_bytes(self):
        return network.link_bytes(self.description)

    def between_switches(self, carried):
        """Returns the byte counts of the links between switches. `carried` maps (from, to) to
        bytes."""
        return network.between_switches(self.description, carried)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--topology", type=topologies.argument, default="tree:4x4", help=topologies.FORMS + "; default %(default)s")
    p.add_argument("--host-mbit", type=float, default=0,
                   help="rate of each host link in Mbit/s; 0 leaves it unshaped")
    p.add_argument("--uplink-mbit", type=float, default=0,
                   help="rate of each link between switches; 0 leaves it unshaped")
    p.add_argument("--flow-mbit", type=float, default=0,
                   help="rate of each flow (5-tuple) that a host sends, below --host-mbit, as "
                        "cloud providers limit it; 0: no limit")
    p.add_argument("--loss", type=float, default=0,
                   help="share of packets lost where a host receives, 0 to 0.5")
    p.add_argument("--mtu", type=int, default=1500,
                   help="MTU of the data links in bytes (576 to 9000)")
    p.add_argument("--ipv6", action="store_true", help="data links have only IPv6 addresses")
    p.add_argument("--switches", choices=network.SWITCHES, default="ovs",
                   help="ovs: Open vSwitch; bofuss: another switch with OpenFlow; bridge: bridges "
                        "without OpenFlow; routed: routers, each rack a subnet; default "
                        "%(default)s")
    p.add_argument("--slots", type=int, default=4, help="ranks that a node runs at a time")
    p.add_argument("--peer-timeout-ms", type=int, default=0,
                   help="silence after which agents consider a node lost; all nodes share this "
                   "machine's CPUs, so it must be longer than usual on a busy machine")
    p.add_argument("--bin",
                   help="directory of cool, cool-controller and cool-nodeagent; default COOL_BIN "
                        "or target/release")
    p.add_argument("--logs",
                   help="directory for the logs of controller and agents; default: removed with "
                        "the testbed")
    p.add_argument("--log-level", default="info",
                   help="log level of controller and agents: error, warn, info, debug or trace")
    p.add_argument("--insecure-plaintext", action="store_true",
                   help="use neither certificates nor TLS")
    p.add_argument("--link-bytes", metavar="FILE",
                   help="write the bytes that the command caused on each link, as JSON")
    p.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...",
                   help="command to run; afterwards everything is removed")
    options = p.parse_args()
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not options.command:
        p.error("name a command to run, after --")
    if not 0 <= options.loss <= 0.5:
        p.error("--loss %g: expected a share from 0 to 0.5" % options.loss)
    if not 576 <= options.mtu <= 9000:
        p.error("--mtu %d: expected 576 to 9000" % options.mtu)
    if options.flow_mbit and not 0 < options.flow_mbit < options.host_mbit:
        p.error("--flow-mbit %g: expected a rate below --host-mbit" % options.flow_mbit)
    if min(options.host_mbit, options.uplink_mbit) < 0 or options.slots < 1:
        p.error("rates must not be negative and --slots at least 1")
    return options


def main():
    options = parse_arguments()
    unwind_on_signals()
    bed = Testbed(options.topology, options.host_mbit, options.uplink_mbit, options.loss, options.mtu, options.slots, options.bin, options.logs, log_level=options.log_level,
                  insecure_plaintext=options.insecure_plaintext, switches=options.switches, peer_timeout_ms=options.peer_timeout_ms,
                  ipv6=tuple(topologies.parse(options.topology).hosts()) if options.ipv6 else (), flow_mbit=options.flow_mbit)
    with bed:
        bed.wait_until_measured()
        before = bed.link_bytes()
        status = ovs.run_to_end(options.command, bed.environment())
        if options.link_bytes:
            after = bed.link_bytes()
            rows = [{"from": x, "to": y, "bytes": after[x, y] - before[x, y]} for x, y in after]
            with open(options.link_bytes, "w") as f:
                json.dump(rows, f, indent=1)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, RuntimeError, OSError) as e:
        sys.exit("testbed: %s" % e)
