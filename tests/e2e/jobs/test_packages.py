"""Packages of `make packages`, installed as docs/guide/deployment.md describes on machines that
boot Debian, upgraded as docs/guide/upgrade.md describes, and removed.

The commands in the documents run literally. Run `make test-packages`; without packages and a Debian
system, these tests are skipped.
"""
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess

import pytest
from conftest import PATIENCE, ROOT, wait_for

import network
import ovs
import testbed
from machine import Machine

PACKAGES, DEBIAN = os.environ.get("COOL_PACKAGES"), os.environ.get("COOL_DEBIAN")
pytestmark = pytest.mark.skipif(not (PACKAGES and DEBIAN), reason="COOL_PACKAGES and COOL_DEBIAN name no folders: make test-packages")
UNITS = {"cool-controller": ["cool-controller"], "cool-nodeagent": ["cool-launcher", "cool-nodeagent"]}
NODE_FILES = ("ca.pem", "agent.pem", "agent.key")
SWITCH_FILES = ("ca.pem", "switch.pem", "switch.key")
# Files that any system writes when packages are installed and removed, and while it runs.
UNCHECKED_PATHS = ("/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var/cache", "/var/lib/apt", "/var/lib/dpkg", "/var/lib/logrotate", "/var/lib/systemd", "/var/log",
             "/var/tmp", "/etc/.pwd.lock", "/etc/group-", "/etc/gshadow-", "/etc/passwd-", "/etc/shadow-", "/home/ann")


def commands(document, section):
    """Returns the commands of a section, in order: [(where, text)]."""
    with open(os.path.join(ROOT, "docs", "guide", document)) as f:
        text = ("\n" + f.read()).split("\n%s\n" % section)[1].split("\n## ")[0]
    return re.findall(r"^ *```sh\n *# on (.+)\n((?:.+\n)+?) *```$", text, re.M)


class Cluster:
    """Machines on an emulated network: one for the controller, and one for each node."""

    def __init__(self, stack):
        stack.enter_context(ovs.running())
        self.network = network.Network("tree:2x2")
        stack.callback(self.network.stop)
        self.network.start("ssl:127.0.0.1:1")
        self.controller = self.boot(stack, "controller", None)
        self.nodes = [self.boot(stack, host.name, host) for host in self.network.net.hosts]
        self.outputs = {}

    @property
    def machines(self):
        return [self.controller, *self.nodes]

    def boot(self, stack, name, host):
        """Boots a machine on which ann has an account, and on which the name of the controller
        resolves."""
        machine = stack.enter_context(Machine(name, DEBIAN, host and host.pid))
        with open(machine.path("/etc/hosts"), "w") as f:
            f.write("127.0.0.1 localhost\n%s controller.example\n" % network.MANAGEMENT_ADDRESS)
        machine.run("useradd", "--create-home", "ann")
        machine.files = files(machine)
        copy_files(machine, glob.glob(os.path.join(PACKAGES, "*.deb")), "")
        return machine

    def run_section(self, document, section, where=None, step=None):
        """Runs the commands of a section, or of one step of it, on the machines that it names."""
        section_commands = commands(document, section)
        assert section_commands, "%s has no commands in %s" % (document, section)
        for place, text in section_commands if step is None else [[c for c in section_commands if c[0] == where][step]]:
            assert place in ("the controller's machine", "each node", "each switch"), place
            for line in text.splitlines():
                self.run_line(place, line.strip())

    def run_line(self, place, line):
        if place == "each switch":
            for switch in self.network.net.switches:
                variables = {**os.environ, "BRIDGE": switch.name, "CONTROLLER": "127.0.0.1"}
                subprocess.run(["sh", "-c", line], env=variables, check=True)
            return
        for machine in self.nodes if place == "each node" else [self.controller]:
            if line == "cool doctor":
                wait_for(lambda: doctor_finds_nothing(self), "cool doctor finds nothing")
            self.outputs[line] = machine.run("sh", "-c", line).stdout
            if line == "cool certs certs":
                self.install_certificates()

    def install_certificates(self):
        """Copies certificates and keys to the directories where they are used, as an operator
        does."""
        folder = self.controller.path("/root/certs")
        for node in self.nodes:
            copy_files(node, [os.path.join(folder, name) for name in NODE_FILES], "certs")
            edit(node, "interface", self.network.net.get(node.name).defaultIntf().name)
        for name in SWITCH_FILES:
            shutil.copy(os.path.join(folder, name), "/etc/openvswitch")


def copy_files(machine, paths, folder):
    """Copies files to a directory in root's home directory of a machine."""
    target = machine.path(os.path.join("/root", folder))
    os.makedirs(target, exist_ok=True)
    for path in paths:
        shutil.copy(path, target)


def edit(machine, option, value):
    """Sets an option in the machine's configuration file."""
    path = machine.path("/etc/cool/cool.toml")
    with open(path) as f:
        text, count = re.subn(r'^%s = ".*"$' % option, '%s = "%s"' % (option, value), f.read(), flags=re.M)
    assert count == 1, option
    with open(path, "w") as f:
        f.write(text)


def files(machine):
    """Returns all files of a machine except those in UNCHECKED_PATHS."""
    excluded = [word for place in UNCHECKED_PATHS for word in ("-path", place, "-prune", "-o")]
    return set(machine.run("find", "/", *excluded, "-print").stdout.splitlines())


@pytest.fixture(scope="module")
def cluster():
    """Installs the cluster by all steps of docs/guide/deployment.md."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster(stack)
        cluster.run_section("deployment.md", "## Steps")
        yield cluster


def test_the_documented_installation_runs_programs(cluster):
    outputs = {line.split()[1]: text for line, text in cluster.outputs.items() if line.startswith("cool ")}
    assert sorted(line.split()[-1] for line in outputs["run"].splitlines()) == ["h1", "h2", "h3", "h4"]
    assert "allreduce" in outputs["bench"] and "bcast" in outputs["bench"]
    for machine in cluster.machines:
        package = "cool-controller" if machine is cluster.controller else "cool-nodeagent"
        for unit in UNITS[package]:
            state = machine.run("systemctl", "show", "--property=ActiveState,NRestarts,User", unit).stdout.split()
            assert "ActiveState=active" in state and "NRestarts=0" in state, state
            assert unit == "cool-launcher" or "User=cool" in state


def test_the_packages_are_as_debian_wants_them():
    process = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *glob.glob(os.path.join(PACKAGES, "*.deb"))], capture_output=True,
                           text=True, timeout=10 * PATIENCE)
    print(process.stdout)
    assert process.returncode == 0, process.stdout


def test_systemd_finds_nothing_wrong_with_the_units(cluster):
    for machine in (cluster.controller, cluster.nodes[0]):
        process = machine.run("sh", "-c", "systemd-analyze verify /lib/systemd/system/cool-*.service")
        assert not process.stdout + process.stderr


def test_programs_have_no_more_rights_than_their_units_state(cluster):
    agent = cluster.nodes[0]
    pid = agent.run("systemctl", "show", "--property=MainPID", "--value", "cool-nodeagent").stdout.strip()
    status = dict(line.split(":\t", 1) for line in agent.run("cat", "/proc/%s/status" % pid).stdout.splitlines() if ":\t" in line)
    net_raw = 1 << 13
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {net_raw}
    permissions = agent.run("stat", "--format=%U:%G %a", "/etc/cool/certs/agent.key").stdout.strip()
    assert permissions == "root:cool 640"
    process = agent.run("setpriv", "--reuid", "ann", "--regid", "ann", "--clear-groups", "cat", "/etc/cool/certs/agent.key", check=False)
    assert process.returncode and "Permission denied" in process.stderr


def test_the_event_log_rotates_and_goes_on(cluster):
    machine = cluster.controller
    log = machine.path("/var/log/cool/events.jsonl")
    assert os.path.getsize(log) > 0
    machine.run("logrotate", "--force", "/etc/logrotate.d/cool")
    machine.run("cool", "run", "--user", "ann", "--workdir", "/tmp", "-n", "1", "--", "true")
    wait_for(lambda: os.path.exists(log) and os.path.getsize(log) > 0, "events go to a new file")


def test_a_renewed_key_stays_readable_by_the_group(cluster):
    machine = cluster.controller
    machine.run("cool", "certs", "renewed")
    machine.run("chgrp", "cool", "renewed/controller.key")
    machine.run("chmod", "640", "renewed/controller.key")
    machine.run("cool", "certs", "renewed", "--renew")
    permissions = machine.run("stat", "--format=%G %a", "renewed/controller.key", "renewed/tool.key").stdout.split("\n")
    assert permissions[:2] == ["cool 640", "root 600"]


def test_the_wheel_and_the_library_for_c_work_on_a_node(cluster, tmp_path):
    [wheel] = glob.glob(os.path.join(PACKAGES, "*.whl"))
    [dev] = glob.glob(os.path.join(PACKAGES, "libcool-dev_*.deb"))
    subprocess.run(["dpkg-deb", "-x", dev, tmp_path], check=True)
    environment = {**os.environ, "PKG_CONFIG_SYSROOT_DIR": str(tmp_path), "PKG_CONFIG_LIBDIR": glob.glob("%s/usr/lib/*/pkgconfig" % tmp_path)[0]}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "cool"], env=environment, capture_output=True, text=True, check=True).stdout.split()
    program = str(tmp_path / "suite")
    unresolved = "-Wl,--unresolved-symbols=ignore-all"
    [library] = glob.glob(os.path.join(PACKAGES, "libcool0_*.deb"))
    subprocess.run(["dpkg-deb", "-x", library, tmp_path], check=True)
    subprocess.run(["cc", "-o", program, os.path.join(ROOT, "libcool/c/examples/suite.c"), *flags, unresolved], check=True)
    for node in cluster.nodes:
        copy_files(node, [wheel], "")
        shutil.copy(program, node.path("/usr/local/bin/suite"))
        node.run("python3", "-m", "venv", "--system-site-packages", "/opt/cool")
        node.run("/opt/cool/bin/pip", "install", "--no-index", os.path.join("/root", os.path.basename(wheel)))
        shutil.copy(os.path.join(ROOT, "libcool/python/examples/suite.py"), node.path("/opt/cool/"))
    programs = [os.path.basename(path) for path in glob.glob(cluster.nodes[0].path("/opt/cool/bin/cool*"))]
    assert sorted(programs) == ["cool", "cool-controller", "cool-kmeans", "cool-nodeagent"]
    outputs = [cluster.controller.run("cool", "run", "--user", "ann", "--workdir", "/tmp", "--", *command).stdout
               for command in (["/usr/local/bin/suite"], ["/opt/cool/bin/python3", "/opt/cool/suite.py"])]
    assert outputs[0] == outputs[1] != ""


def test_a_program_of_mpi_gains_by_the_package_for_it(cluster, tmp_path):
    program = str(tmp_path / "collectives")
    subprocess.run(["mpicc.openmpi", "-o", program, os.path.join(ROOT, "apps/mpi/preload/tests/collectives.c")], check=True)
    node = cluster.nodes[0]
    [package] = glob.glob(os.path.join(PACKAGES, "libcool-mpi_*.deb"))
    node.run("apt-get", "install", "--yes", os.path.join("/root", os.path.basename(package)))
    shutil.copy(program, node.path("/usr/local/bin/collectives"))
    process = node.run("runuser", "-u", "ann", "--", "env", "COOL_MPI=require", "COOL_MPI_STATS=1", "COOL_MPI_MIN=1K", "cool", "mpirun", "--mpirun",
                    "mpirun.openmpi", "--oversubscribe", "-n", "2", "/usr/local/bin/collectives", "first")
    assert process.stdout == "right\n" and "cool-mpi: allreduce taken: 2 calls" in process.stderr, process.stdout + process.stderr


def build_upgrade(tmp_path, version):
    """Returns the packages with a later version number."""
    for path in glob.glob(os.path.join(PACKAGES, "*.deb")):
        folder = str(tmp_path / os.path.basename(path)[:-len(".deb")])
        subprocess.run(["dpkg-deb", "-R", path, folder], check=True)
        control = os.path.join(folder, "DEBIAN", "control")
        with open(control) as f:
            text = f.read()
        old = re.search(r"^Version: (.+)$", text, re.M)[1]
        with open(control, "w") as f:
            f.write(text.replace(old, version))
        name = os.path.basename(path).replace("_%s_" % old, "_%s_" % version)
        subprocess.run(["dpkg-deb", "-Znone", "-b", folder, str(tmp_path / name)], check=True, stdout=subprocess.DEVNULL)
    return glob.glob(str(tmp_path / "*.deb"))


def pid_of(machine, unit):
    return machine.run("systemctl", "show", "--property=MainPID", "--value", unit).stdout.strip()


def jobs(cluster):
    return json.loads(cluster.controller.run("cool", "jobs", "--json").stdout)["jobs"]


def test_an_upgrade_ends_no_job(cluster, tmp_path):
    later = build_upgrade(tmp_path, "99.0")
    for machine in cluster.machines:
        for old in glob.glob(machine.path("/root/*.deb")):
            os.remove(old)
        copy_files(machine, later, "")
    bench = ["cool", "bench", "--user", "ann", "--ranks-per-node", "1", "--ops", "allreduce", "--bytes", "64K", "--reps", "1000000"]
    job = subprocess.Popen(cluster.controller.command(*bench), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: [j["state"] for j in jobs(cluster)] == ["running"], "the job runs")
        before = [pid_of(cluster.controller, "cool-controller"), *(pid_of(node, "cool-nodeagent") for node in cluster.nodes)]
        cluster.run_section("upgrade.md", "# Upgrades", "the controller's machine", 0)
        cluster.run_section("upgrade.md", "# Upgrades", "each node", 0)
        after = [pid_of(cluster.controller, "cool-controller"), *(pid_of(node, "cool-nodeagent") for node in cluster.nodes)]
        assert before[0] != after[0] and before[1:] == after[1:]
        assert cluster.controller.run("dpkg-query", "-W", "-f", "${Version}", "cool-controller").stdout == "99.0"
        assert job.poll() is None, job.stdout.read()
        wait_for(lambda: doctor_finds_nothing(cluster) and [j["state"] for j in jobs(cluster)] == ["running"], "the job is taken over")
    finally:
        cluster.controller.run("cool", "cancel", "--all", check=False)
        job.communicate(timeout=PATIENCE)
    cluster.run_section("upgrade.md", "# Upgrades", "each node", 1)
    wait_for(lambda: doctor_finds_nothing(cluster), "all agents are back")
    cluster.controller.run("cool", "bench", "--user", "ann", "-n", "4", "--ops", "allreduce", "--bytes", "64K")


def doctor_finds_nothing(cluster):
    return cluster.controller.run("cool", "doctor", check=False).returncode == 0


def test_purged_packages_leave_only_the_keys(cluster):
    for machine in cluster.machines:
        ours = {os.path.basename(path).split("_")[0] for path in glob.glob(os.path.join(PACKAGES, "*.deb"))}
        installed = ours & set(machine.run("dpkg-query", "--show", "--showformat", "${Package}\\n").stdout.split())
        machine.run("apt-get", "purge", "--yes", *installed)
        left = {path for path in files(machine) - machine.files if not path.startswith(("/opt/cool", "/usr/local"))}
        assert not [path for path in left if not path.startswith("/etc/cool")]
        assert {os.path.dirname(path) for path in left if path.endswith(".key")} == {"/etc/cool/certs"}
        assert not os.path.exists(machine.path("/etc/cool/cool.toml")) and not os.path.exists(machine.path("/var/log/cool"))
        assert not machine.run("systemctl", "list-unit-files", "--no-legend", "cool*", check=False).stdout
        assert not machine.run("sh", "-c", "ps -u cool --no-headers || true").stdout
        # The document describes these steps.
        machine.run("rm", "-r", "/etc/cool")
        machine.run("userdel", "cool")
        assert not [path for path in files(machine) - machine.files if not path.startswith(("/opt/cool", "/usr/local"))]
        assert not machine.run("getent", "group", "cool", check=False).stdout
