"""Programs under launchers other than COOL's: Debian's Open MPI and Slurm, MPICH, torchrun's
environment, and users other than root."""
import os
import pwd
import shutil
import subprocess

import pytest
from conftest import PATIENCE, mpich
from launchers import ENTER, Slurm, start_in_hosts

NOBODY = pwd.getpwnam("nobody")
HOSTS = 4


@pytest.fixture
def bed(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    # Users other than root can access the sockets of agents and the program, and nothing else.
    os.chmod(bed.directory, 0o711)
    shutil.copy(os.path.join(bed.bin_dir, "cool-misuse"), program(bed))
    return bed


def program(bed):
    return os.path.join(bed.directory, "program")


def socket_of(bed, host):
    return os.path.join(bed.directory, host + ".sock")


def await_success(process, seconds=PATIENCE):
    """Waits for a process, which must succeed; returns its output."""
    try:
        out, errors = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, "status %d\n%s%s" % (process.returncode, out, errors)
    return out


def in_host(bed, host, command, variables, user=None):
    """Starts a command in an emulated host, as root or another user; returns its process."""
    prefix = ["mnexec", "-a", str(bed.network.net.get(host).pid)]
    if user:
        prefix += ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    return subprocess.Popen([*prefix, *command], env={"PATH": os.environ["PATH"], **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def torchrun(bed, user, size=HOSTS, port="29500"):
    """Starts ranks on the hosts with torchrun's environment; returns their processes."""
    processes = []
    for rank in range(size):
        host = "h%d" % (rank % HOSTS + 1)
        variables = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(size), "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": port,
                     "COOL_SOCKET": socket_of(bed, host)}
        processes.append(in_host(bed, host, [program(bed), "sum"], variables, user))
    return processes


def sums(size):
    return ["rank %d of %d: %d" % (rank, size, size * (size + 1) // 2) for rank in range(size)]


@pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "nobody"])
def test_ranks_that_torchrun_starts_find_each_other(bed, user):
    outputs = [await_success(rank).strip() for rank in torchrun(bed, user, size=6)]
    assert outputs == sums(6)


def test_users_with_the_same_job_name_do_not_meet(bed):
    ranks = {user: torchrun(bed, user, size=HOSTS, port="29501") for user in (None, NOBODY)}
    for processes in ranks.values():
        assert [await_success(rank).strip() for rank in processes] == sums(HOSTS)


def test_a_user_cannot_be_a_rank_of_a_job_of_the_agents(bed):
    job = subprocess.Popen(["cool", "run", "-n", "1", "--hosts", "h1", "--", "sh", "-c", "echo $COOL_GROUP; sleep 1000"],
                           env=bed.environment(), stdout=subprocess.PIPE, text=True)
    try:
        group = job.stdout.readline().split()[1]
        variables = {"COOL_GROUP": group, "COOL_RANK": "0", "COOL_SIZE": "1", "COOL_SOCKET": socket_of(bed, "h1")}
        process = in_host(bed, "h1", [program(bed), "sum"], variables, NOBODY)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1 and "group %s is not one of user %d" % (group, NOBODY.pw_uid) in errors, errors
    finally:
        job.terminate()
        job.wait(PATIENCE)


def rank_command(bed):
    """Returns the command of a rank. It selects the agent by the name of its host, because the
    agents of all hosts run on this machine."""
    return ["sh", "-c", "'COOL_SOCKET=%s/$(hostname).sock exec %s sum'" % (bed.directory, program(bed))]


def test_ranks_that_open_mpi_starts_find_each_other(bed, tmp_path):
    outputs = start_in_hosts(bed, tmp_path, [
        "mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", ENTER, "--mca", "oob_tcp_if_include", "10.0.0.0/16",
        "--host", ",".join("h%d:2" % (i + 1) for i in range(HOSTS)), "-n", "8", *rank_command(bed)])
    assert sorted(outputs.splitlines()) == sums(8)


@pytest.fixture(scope="session")
def mpiexec():
    """Returns MPICH's mpiexec."""
    return os.path.join(mpich().folder, "bin", "mpiexec")


def test_ranks_that_mpich_starts_meet_if_they_name_a_job(bed, tmp_path, mpiexec):
    # The ranks get only MPICH's own variables and the name of the job.
    outputs = start_in_hosts(bed, tmp_path, [
        mpiexec, "-genvnone", "-genv", "COOL_JOB", "mpich", "-launcher", "ssh", "-launcher-exec", ENTER,
        "-hosts", ",".join("h%d" % (i + 1) for i in range(HOSTS)), "-n", "8", "-ppn", "2", *rank_command(bed)])
    assert sorted(outputs.splitlines()) == sums(8)


def test_ranks_that_slurm_starts_find_each_other(bed, tmp_path):
    with Slurm(bed, tmp_path) as slurm:
        script = "COOL_SOCKET=%s/$SLURMD_NODENAME.sock exec %s sum" % (bed.directory, program(bed))
        # The second run also has the variables that `--mpi=pmi2` sets.
        pmi2 = "PMI_RANK=$SLURM_PROCID PMI_SIZE=$SLURM_STEP_NUM_TASKS " + script
        for ranks, script in ((8, script), (4, pmi2)):
            outputs = slurm.srun("-N", "4", "-n", str(ranks), "sh", "-c", script)
            assert sorted(outputs.splitlines()) == sums(ranks)
