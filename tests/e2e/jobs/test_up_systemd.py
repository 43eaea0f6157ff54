"""Clusters that `cool up --systemd` and `cool join --systemd` start as units of systemd, on machines that
boot this system: units of a user who lingers, and units of root."""
import contextlib
import json
import os
import tempfile

import pytest
import testbed
from conftest import PATIENCE, wait_for
from machine import Machine
from test_up import token_of

import network

SYSTEMD = "/lib/systemd/systemd"
PROGRAMS = ("cool", "cool-controller", "cool-nodeagent", "cool-misuse")
UID = 4001
AS_ANN = ("setpriv", "--reuid", str(UID), "--regid", str(UID), "--init-groups", "env", "HOME=/home/ann")
ANNS_RUNTIME = "XDG_RUNTIME_DIR=/run/user/%d" % UID
ANNS_SYSTEMCTL = (*AS_ANN, ANNS_RUNTIME, "systemctl", "--user")
# Options of all agents, because a busy machine does not schedule each of them within the default.
AGENT_OPTIONS = ("--", "--slots", "2", "--peer-timeout-ms", "20000")

pytestmark = pytest.mark.skipif(not os.path.exists(SYSTEMD), reason="this system has no systemd")


class Cluster:
    """Machines h1 and h2 on an emulated network, which have the programs and a user `ann`."""

    def __init__(self, stack):
        # Units with PrivateTmp= see no programs in /tmp.
        self.public = stack.enter_context(tempfile.TemporaryDirectory(prefix="cool-systemd-", dir="/opt"))
        os.chmod(self.public, 0o755)
        for program in PROGRAMS:
            testbed.install(os.path.join(testbed.BIN, program), self.public)
        self.network = network.Network("tree:1x2", switches="bridge")
        stack.callback(self.network.stop)
        self.network.start("")
        self.machines = [stack.enter_context(Machine(host.name, "/", host.pid, bare=True)) for host in self.network.net.hosts]
        for machine in self.machines:
            machine.run("useradd", "--create-home", "--uid", str(UID), "ann")
            machine.run("sh", "-c", "getent passwd cool || useradd --system cool")

    def cool(self, machine, *arguments, user=(), check=True):
        """Runs `cool` as root, or by the command `user` as another one; returns the finished process."""
        return machine.run(*user, os.path.join(self.public, "cool"), *arguments, check=check, timeout=2 * PATIENCE)

    def start(self, user=()):
        """Starts the cluster as units; returns what `cool up` has printed."""
        h1, h2 = self.machines
        output = self.cool(h1, "up", "--systemd", "--interface", "h1-eth0", *AGENT_OPTIONS, user=user).stdout
        self.cool(h2, "join", token_of(output), "--systemd", *AGENT_OPTIONS, user=user)
        return output

    def check_collectives(self, account, user=()):
        """Waits until both nodes are connected, and runs a program on them as an account. `cool` finds the
        controller by the state of the deployment."""
        h1, _ = self.machines

        def connected_nodes():
            process = self.cool(h1, "topology", "--json", user=user, check=False)
            # A node stays in the topology for a while after its agent has ended.
            return process.returncode == 0 and [n["name"] for n in json.loads(process.stdout)["nodes"] if n["slots"] and n["away_ms"] is None]

        wait_for(lambda: connected_nodes() == ["h1", "h2"], "both nodes are connected")
        self.cool(h1, "run", "--user", account, "-n", "4", "--workdir", "/tmp", "--", os.path.join(self.public, "cool-misuse"), "sum", user=user)


@pytest.fixture()
def cluster():
    with contextlib.ExitStack() as stack:
        yield Cluster(stack)


def units(machine, *systemctl):
    """Returns the names of a node's units that are active."""
    listed = machine.run(*systemctl, "list-units", "--plain", "--no-legend", "--state=active", "cool-*").stdout
    return sorted(line.split()[0] for line in listed.splitlines())


def names(node, *programs):
    return ["cool-%s-%s.service" % (node, program) for program in programs]


def rights(machine, unit, *systemctl):
    """Returns the status of the process of a unit: {field: value}."""
    pid = machine.run(*systemctl, "show", "--property=MainPID", "--value", unit).stdout.strip()
    return dict(line.split(":\t", 1) for line in machine.run("cat", "/proc/%s/status" % pid).stdout.splitlines() if ":\t" in line)


def test_units_of_a_user_return_when_the_user_does(cluster):
    h1, h2 = cluster.machines
    printed = cluster.cool(h1, "up", "--systemd", "--interface", "h1-eth0", "--no-agent", user=AS_ANN).stdout
    # No systemd of the user runs yet, so nothing could be started.
    assert "systemctl --user enable --now cool-h1-controller.service" in printed and "loginctl enable-linger" in printed
    assert cluster.cool(h1, "down", "--purge", user=AS_ANN).stdout == "nothing was running for node h1\n"
    for machine in cluster.machines:
        machine.run("loginctl", "enable-linger", "ann")
        wait_for(lambda: not machine.run("systemctl", "is-active", "user@%d" % UID, check=False).returncode, "the user's systemd runs")
    assert "loginctl" not in cluster.start(AS_ANN)
    assert units(h1, *ANNS_SYSTEMCTL) == names("h1", "agent", "controller", "joins")
    assert units(h2, *ANNS_SYSTEMCTL) == names("h2", "agent")
    cluster.check_collectives("ann", AS_ANN)
    for unit in names("h1", "controller", "joins", "agent"):
        status = rights(h1, unit, *ANNS_SYSTEMCTL)
        assert status["Uid"].split()[0] == str(UID) and int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1"
    verify(h1, "--user", "/home/ann/.config/systemd/user/cool-*.service", *AS_ANN, ANNS_RUNTIME)

    for machine in cluster.machines:
        machine.run("systemctl", "stop", "user@%d" % UID)
        machine.run("systemctl", "start", "user@%d" % UID)
    cluster.check_collectives("ann", AS_ANN)

    # Without --systemd, commands use the units that exist.
    tokens = [token_of(cluster.cool(h1, "up", "--interface", "h1-eth0", user=AS_ANN).stdout) for _ in range(2)]
    assert tokens[0] != tokens[1]
    assert "node h2 has joined already" in cluster.cool(h2, "join", user=AS_ANN, check=False).stderr
    assert cluster.cool(h2, "down", user=AS_ANN).stdout == "node h2: ended agent\n"
    assert cluster.cool(h1, "down", user=AS_ANN).stdout == "node h1: ended agent, joins, controller\n"
    for machine in cluster.machines:
        assert not units(machine, *ANNS_SYSTEMCTL)
        assert not machine.run("find", "/home/ann/.config/systemd", "-name", "cool-*").stdout


def verify(machine, scope, paths, *prefix):
    """Lets systemd check units, as a user if `prefix` is the command for that."""
    process = machine.run(*prefix, "sh", "-c", "systemd-analyze verify %s %s" % (scope, paths))
    assert not process.stdout + process.stderr


def test_units_of_root_run_as_an_account_and_return(cluster):
    h1, h2 = cluster.machines
    assert "there is no account bob" in cluster.cool(h1, "up", "--systemd", "--account", "bob", check=False).stderr
    cluster.start()
    assert units(h1, "systemctl") == names("h1", "agent", "controller", "joins") and units(h2, "systemctl") == names("h2", "agent")
    cluster.check_collectives("cool")
    number = h1.run("id", "-u", "cool").stdout.strip()
    for unit in names("h1", "controller", "joins", "agent"):
        status = rights(h1, unit, "systemctl")
        assert status["Uid"].split()[0] == number and {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    owners = h1.run("find", "/var/lib/cool/h1", "!", "-user", "cool").stdout
    assert not owners
    verify(h1, "--system", "/etc/systemd/system/cool-*.service")

    for machine in cluster.machines:
        machine.run("systemctl", "stop", "cool-*")
        assert not units(machine, "systemctl")
        # This is the target of a boot, which starts what it wants.
        machine.run("systemctl", "start", "multi-user.target")
    cluster.check_collectives("cool")

    assert cluster.cool(h2, "down").stdout == "node h2: ended agent\n"
    assert "runs as the account cool; add --systemd" in cluster.cool(h2, "join", check=False).stderr
    cluster.cool(h2, "join", "--systemd")
    cluster.check_collectives("cool")
    for machine in reversed(cluster.machines):
        cluster.cool(machine, "down", "--purge")
        assert not units(machine, "systemctl")
        assert not machine.run("find", "/etc/systemd/system", "/var/lib/cool", "-name", "cool-*").stdout
        assert not machine.run("ls", "/var/lib/cool").stdout


def test_a_unit_that_cannot_start_is_removed(cluster):
    h1, _ = cluster.machines
    process = cluster.cool(h1, "up", "--systemd", "--interface", "h1-eth0", "--", "--slots", "none", check=False)
    assert process.returncode == 1 and process.stderr.count("\n") == 1, process.stderr
    assert "cool-h1-agent.service" in process.stderr and "journalctl --unit 'cool-h1-*.service'" in process.stderr
    assert not units(h1, "systemctl")
    assert not h1.run("find", "/etc/systemd/system", "-name", "cool-*").stdout
