"""A cluster that an ordinary user starts with `cool up` and `cool join` on machines without any
configuration."""
import glob
import json
import os
import subprocess
import tempfile

import pytest
import testbed
from conftest import PATIENCE, wait_for

UID = 4001
PROGRAMS = ("cool", "cool-controller", "cool-nodeagent", "cool-misuse")


class BareBed(testbed.Testbed):
    """A network of machines on which nothing runs, with a home directory for a user."""

    def start_programs(self):
        os.chmod(self.directory, 0o711)
        self.home, self.public = (os.path.join(self.directory, name) for name in ("home", "public"))
        os.mkdir(self.home)
        os.chown(self.home, UID, UID)
        os.mkdir(self.public, 0o755)
        for program in PROGRAMS:
            testbed.install(os.path.join(self.bin_dir, program), self.public)

    def cool(self, host, *arguments, environment=()):
        """Runs `cool` on a machine as the user; returns the finished process."""
        return subprocess.run(self.command(host, os.path.join(self.public, "cool"), *arguments, environment=environment),
                              capture_output=True, text=True, timeout=PATIENCE)

    def command(self, host, *words, environment=(), uid=UID):
        """Returns a command that runs another one on a machine as the user, or as root."""
        user = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        variables = ["env", "-i", "PATH=/usr/bin:/bin", "HOME=" + self.home, *environment]
        return ["mnexec", "-a", str(self.network.net.get(host).pid), *user, *variables, *words]

    def processes(self, node):
        """Returns the process numbers of what runs for a node, by the name of the program."""
        with open(os.path.join(self.home, ".local/state/cool", node, "processes.json")) as f:
            return {process["program"]: process["pid"] for process in json.load(f)}


def succeed(bed, host, *arguments, environment=()):
    process = bed.cool(host, *arguments, environment=environment)
    assert process.returncode == 0, "%s: %s%s" % (arguments, process.stdout, process.stderr)
    return process.stdout


def fail(bed, host, *arguments):
    """Runs `cool`, which must fail with one line of text; returns that line."""
    process = bed.cool(host, *arguments)
    assert process.returncode == 1 and process.stderr.startswith("cool: ") and process.stderr.count("\n") == 1, process.stderr
    return process.stderr


def token_of(output):
    return next(line.split()[-1] for line in output.splitlines() if line.startswith("  cool join "))


def environment_of(output):
    """Returns the variables that the output of `cool up` lets the user export."""
    return next(line.split()[1:] for line in output.splitlines() if line.startswith("  export "))


def up(bed, *arguments):
    return succeed(bed, "h1", "up", "--name", "h1", "--interface", "h1-eth0", *arguments)


@pytest.fixture()
def bed():
    with BareBed("tree:1x4", switches="bridge") as bed:
        try:
            yield bed
        finally:
            for host in ("h4", "h3", "h2", "h1"):
                bed.cool(host, "down", "--name", host)


def has_nodes(bed, environment, count):
    process = bed.cool("h1", "topology", "--json", environment=environment)
    return process.returncode == 0 and len(json.loads(process.stdout)["nodes"]) == count


def check_collectives(bed, environment):
    succeed(bed, "h1", "bench", "--ops", "bcast,allreduce", "--bytes", "1000,100K", "--reps", "1", environment=environment)
    succeed(bed, "h1", "run", "-n", "8", "--", os.path.join(bed.public, "cool-misuse"), "sum", environment=environment)


def test_four_machines_become_a_cluster_by_up_and_join(bed):
    output = up(bed, "--", "--slots", "2", "--peer-timeout-ms", "20000")
    token, environment = token_of(output), environment_of(output)
    for host in ("h2", "h3", "h4"):
        joined = succeed(bed, host, "join", token, "--name", host, "--", "--slots", "2", "--peer-timeout-ms", "20000")
        assert joined.startswith("node %s has joined the controller at 10.0.0.2:7400" % host), joined
    assert has_nodes(bed, environment, 4)
    check_collectives(bed, environment)
    with open("/proc/%d/status" % bed.processes("h2")["agent"]) as f:
        status = dict(line.split(":\t", 1) for line in f if ":\t" in line)
    assert int(status["CapEff"], 16) == 0 and status["Uid"].split()[0] == str(UID)

    assert "node h3 has joined already" in fail(bed, "h3", "join", token, "--name", "h3")
    assert "a node h3 already" in fail(bed, "h4", "join", token, "--name", "h3", "--state", os.path.join(bed.home, "other"))
    assert "does not accept this token" in fail(bed, "h4", "join", token[:-1] + ("A" if token[-1] != "A" else "E"), "--name", "h5")
    assert "not a token" in bed.cool("h4", "join", token[:20]).stderr

    # A node leaves and returns without a token, and the first machine starts again.
    assert succeed(bed, "h3", "down", "--name", "h3") == "node h3: ended agent\n"
    wait_for(lambda: has_nodes(bed, environment, 3), "the node has left")
    succeed(bed, "h3", "join", "--name", "h3")
    check_collectives(bed, environment)
    assert succeed(bed, "h1", "down", "--name", "h1") == "node h1: ended agent, joins, controller\n"
    again = up(bed, "--no-agent")
    assert environment_of(again) == environment
    assert "does not accept this token" in fail(bed, "h4", "join", token, "--name", "h5")
    wait_for(lambda: has_nodes(bed, environment, 3), "the other nodes have returned")

    assert "belongs to a cluster of another machine" in fail(bed, "h2", "up", "--name", "h2", "--interface", "h2-eth0")
    assert "the controller runs at 10.0.0.2:7400" in fail(bed, "h1", "up", "--name", "h1", "--interface", "h1-eth0", "--controller-port", "7500")
    assert "has started a cluster itself" in fail(bed, "h1", "join", token, "--name", "h1")

    # A repeated command starts what is missing, and prints another token.
    before = bed.processes("h1")
    more = up(bed)
    assert token_of(more) != token_of(again)
    assert bed.processes("h1") == {**before, "agent": bed.processes("h1")["agent"]}
    running = [pid for host in ("h1", "h2", "h3", "h4") for pid in bed.processes(host).values()]
    for host in ("h2", "h3", "h4", "h1"):
        succeed(bed, host, "down", "--name", host, "--purge")
    assert not [pid for pid in running if os.path.exists("/proc/%d/exe" % pid)]
    assert succeed(bed, "h4", "down", "--name", "h5", "--purge") == "nothing was running for node h5\n"
    assert os.listdir(os.path.join(bed.home, ".local/state/cool")) == []
    assert not glob.glob(os.path.join(tempfile.gettempdir(), "cool-%d-*" % UID)), "no directory of sockets remains"


def test_a_cluster_that_cannot_start_leaves_nothing_running(bed):
    error = fail(bed, "h1", "up", "--name", "h1", "--interface", "h1-eth0", "--", "--slots", "none")
    assert "agent ended before it was ready" in error and "agent.log" in error, error
    assert succeed(bed, "h1", "down", "--name", "h1") == "nothing was running for node h1\n"
    assert "there is no interface eth7" in fail(bed, "h1", "up", "--interface", "eth7")
    assert "joined no deployment" in fail(bed, "h2", "join", "--name", "h2")
