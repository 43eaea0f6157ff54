"""Launchers of other projects in the emulated hosts: mpirun starts in the first host, and its
daemons in the others by `enter-host`; Slurm's daemons run in all."""
import os
import socket
import subprocess
import time

from conftest import PATIENCE, ROOT, mpich

import network

# Time in which Slurm's daemons may end.
END_SECONDS = 10
ENTER = os.path.join(ROOT, "bench", "enter-host")


def write_host_names(bed, path):
    """Writes a file like /etc/hosts with the names and addresses of the hosts."""
    path.write_text("127.0.0.1 localhost\n" + "".join("%s %s\n" % (host["ip"], host["name"]) for host in bed.description["hosts"]))


def begin_in_hosts(bed, folder, command, variables=()):
    """Starts a launcher in the first host; returns its process, whose output is text."""
    hosts = {h["name"]: h for h in bed.description["hosts"]}
    write_host_names(bed, folder / "hosts")
    (folder / "pids").write_text("".join("%s %d %s\n" % (name, h["pid"], h["interface"]) for name, h in hosts.items()))
    # The launcher ignores SIGPIPE, like this process. MPICH's launcher writes to lost ranks, and
    # would otherwise end before it has forwarded the output of the others.
    return subprocess.Popen([ENTER, "h1", "exec " + " ".join(command)], env={**os.environ, **dict(variables), "BENCH_HOSTS": str(folder)},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, restore_signals=False)


def ended(process):
    """Waits for a process; returns a CompletedProcess with its output."""
    try:
        out, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def communicate(process, seconds):
    """Returns the output of a launcher and its ranks, and whether they ended by themselves; kills
    them when the time is over."""
    try:
        return (*process.communicate(timeout=seconds), True)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        return (*process.communicate(timeout=10), False)
    except subprocess.TimeoutExpired:
        process.kill()
    return (*process.communicate(), False)


def start_in_hosts(bed, folder, command, variables=()):
    """Runs a launcher, which must succeed; returns its output."""
    process = ended(begin_in_hosts(bed, folder, command, variables))
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


class OpenMpi:
    """Debian's Open MPI, with two ranks in a host if there are enough."""
    fortran, compiler, rank_variable = True, "mpicc.openmpi", b"OMPI_COMM_WORLD_RANK"
    # Options with which mpirun does not end the other ranks when one is killed.
    looks_on = ["--enable-recovery"]
    variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def mpirun(self, bed, ranks):
        hosts, network = [h["name"] for h in bed.description["hosts"]], "10.0.0.0/16"
        slots = max(2, -(-ranks // len(hosts)))
        return ["mpirun.openmpi", "--mca", "plm_rsh_agent", ENTER, "--mca", "oob_tcp_if_include", network, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", network, "--mca", "mpi_yield_when_idle", "1", "--host", ",".join("%s:%d" % (h, slots) for h in hosts),
                "-n", str(ranks)]


class Mpich:
    """PyPI's MPICH, by its own binary interface or the standard one."""
    fortran, rank_variable, looks_on = False, b"PMI_RANK", ["-disable-auto-cleanup"]
    # Ranks that wait yield their CPU, because they have none of their own.
    variables = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp",
                 "MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}

    def __init__(self, compiler):
        self.folder = os.path.join(mpich().folder, "bin")
        self.compiler = os.path.join(self.folder, compiler)

    def mpirun(self, bed, ranks):
        hosts = [h["name"] for h in bed.description["hosts"]]
        return [os.path.join(self.folder, "mpiexec"), "-genvnone", "-launcher", "ssh", "-launcher-exec", ENTER, "-hosts", ",".join(hosts),
                "-n", str(ranks), "-ppn", str(-(-ranks // len(hosts)))]


# The MPI libraries by their binary interface.
HOST_LIBRARIES = {"openmpi": OpenMpi, "mpich": lambda: Mpich("mpicc"), "abi": lambda: Mpich("mpicc_abi")}


class Slurm:
    """Slurm's controller next to COOL's, and a slurmd in each emulated host, over the management
    network."""

    def __init__(self, bed, folder, settings=()):
        """`settings` are further lines of slurm.conf."""
        self.hosts, self.conf, self.folder, self.daemons = bed.description["hosts"], folder / "slurm.conf", folder, []
        self.settings = settings

    def __enter__(self):
        names = [host["name"] for host in self.hosts]
        lines = ["ClusterName=cool", "SlurmctldHost=%s(%s)" % (socket.gethostname().split(".")[0], network.MANAGEMENT_ADDRESS),
                 "AuthType=auth/none", "CredType=cred/none", "SlurmUser=root", "SlurmdUser=root", "MpiDefault=none",
                 "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none", "SelectType=select/linear",
                 "ReturnToService=2", "StateSaveLocation=%s/state" % self.folder, "SlurmdSpoolDir=%s/spool-%%n" % self.folder,
                 "SlurmctldPidFile=%s/slurmctld.pid" % self.folder, "SlurmdPidFile=%s/slurmd-%%n.pid" % self.folder,
                 *("NodeName=%s NodeAddr=10.255.0.%d CPUs=2 State=UNKNOWN" % (h, i) for i, h in enumerate(names, 2)),
                 "PartitionName=all Nodes=%s Default=YES State=UP" % ",".join(names), *self.settings]
        (self.folder / "state").mkdir()
        # Test machines may have no cgroups; nothing here uses them, and this plugin does not need
        # them.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.conf.write_text("\n".join(lines) + "\n")
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        try:
            self._start("slurmctld", "-D")
            for host in self.hosts:
                self._start("mnexec", "-a", str(host["pid"]), "slurmd", "-D", "-N", host["name"])
            end = time.monotonic() + PATIENCE
            while (states := self.sinfo()) != ["idle"] * len(names):
                assert time.monotonic() < end, "nodes are %s: %s" % (states, self.log())
                time.sleep(0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            # Slurm's daemons sometimes do not end, and nothing here needs their state.
            try:
                daemon.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, *command):
        with open(self.folder / "log", "a") as log:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def log(self):
        return (self.folder / "log").read_text()[-3000:]

    def sinfo(self):
        """Returns the states of the nodes."""
        process = subprocess.run(["sinfo", "-N", "-h", "-o", "%T"], env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        return process.stdout.split()

    def srun(self, *command, **variables):
        """Runs a command with `srun`, which must succeed; returns its output. `variables` are added to its environment."""
        process = subprocess.run(["srun", *command], env={**self.environment, **variables}, capture_output=True, text=True, timeout=PATIENCE)
        assert process.returncode == 0, process.stdout + process.stderr + self.log()
        return process.stdout
