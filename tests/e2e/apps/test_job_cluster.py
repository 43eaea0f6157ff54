"""Programs of libcool on machines on which nothing of COOL runs: the ranks start a controller and agents,
without root if the user is not root, and nothing of them remains."""
import os
import signal
import subprocess

import pytest
import suite
from bare_jobs import JobFolder
from conftest import PATIENCE, ROOT, wait_for
from launchers import Slurm, write_host_names
from test_bindings import PROGRAMS
from test_up import UID, BareBed

RANKS, RANKS_PER_HOST = 8, 2
# Agents on a busy machine are not lost within the default of 2 s.
AGENT_OPTIONS = "--peer-timeout-ms 20000"
# A rank that reports that its group is complete, and then waits.
WAITING = """
import cool, os, signal
comm = cool.world()
comm.barrier()
os.write(1, b"%d\\n" % comm.size)
signal.pause()
"""
# Rank 0 gathers the ranks when the others have ended, and then prints their sum.
GATHERING = """
import cool, numpy, os, sys
comm = cool.world()
comm.barrier()
if comm.rank == 0:
    sys.stdin.read()
gathered = comm.gather(numpy.full(1000, comm.rank))
if comm.rank == 0:
    os.write(1, b"%d\\n" % gathered.sum())
"""


@pytest.fixture(scope="module")
def bed():
    with BareBed("tree:1x4", switches="bridge") as bed:
        yield bed


class Job:
    """The ranks of a job, which a launcher has started on all machines."""

    def __init__(self, bed, folder, command, uid=UID, **variables):
        hosts = bed.description["hosts"]
        common = {"COOL_JOB": "job", "COOL_SIZE": RANKS, "COOL_MASTER": hosts[0]["ip"], "COOL_AGENT_OPTIONS": AGENT_OPTIONS,
                  "TMPDIR": folder.path, "PATH": bed.public + ":/usr/bin:/bin", **variables}
        self.ranks = []
        for rank in range(RANKS):
            environment = ["%s=%s" % variable for variable in {**common, "COOL_RANK": rank}.items()]
            command_there = bed.command(hosts[rank // RANKS_PER_HOST]["name"], *command, environment=environment, uid=uid)
            self.ranks.append(subprocess.Popen(command_there, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.kill()
            rank.communicate()

    def outputs(self):
        """Waits for all ranks; returns what each has printed to standard output and standard error."""
        return [rank.communicate(timeout=2 * PATIENCE) for rank in self.ranks]


@pytest.fixture()
def folder():
    with JobFolder(UID) as folder:
        yield folder


@pytest.mark.parametrize("language", PROGRAMS)
def test_ranks_start_agents_where_none_run(bed, folder, language):
    # The user may not be able to read the Python of the bindings.
    with Job(bed, folder, PROGRAMS[language], uid=0 if language == "python" else UID, COOL_MASTER_KEY="secret") as job:
        outputs = job.outputs()
        assert not any(errors for _, errors in outputs), "\n".join(errors for _, errors in outputs)
        assert outputs[0][0] == suite.expected(RANKS)
        folder.wait_until_unused()


def test_two_jobs_run_at_once_on_different_ports(bed, folder):
    other_port = bed.description["hosts"][0]["ip"] + ":7502"
    with Job(bed, folder, PROGRAMS["rust"]) as first, Job(bed, folder, PROGRAMS["rust"], COOL_MASTER=other_port) as other:
        for job in (first, other):
            assert job.outputs()[0][0] == suite.expected(RANKS)
        folder.wait_until_unused()


def test_data_of_ranks_that_have_ended_is_delivered(bed, folder):
    with Job(bed, folder, [PROGRAMS["python"][0], "-c", GATHERING], uid=0) as job:
        first, *others = job.ranks
        for rank in others:
            assert rank.wait(PATIENCE) == 0, rank.communicate()
        out, errors = first.communicate(timeout=PATIENCE)
        assert out == "%d\n" % sum(1000 * rank for rank in range(RANKS)), errors
        folder.wait_until_unused()


def test_nothing_remains_of_ranks_that_are_killed(bed, folder):
    with Job(bed, folder, [PROGRAMS["python"][0], "-c", WAITING], uid=0) as job:
        for rank in job.ranks:
            assert rank.stdout.readline() == "%d\n" % RANKS, rank.communicate(timeout=PATIENCE)
        # On each machine an agent and the command that ends it; on the first also the controller and
        # the join server.
        assert len(folder.programs()) == 2 * 4 + 2
        for rank in job.ranks:
            rank.send_signal(signal.SIGKILL)
        folder.wait_until_unused()


def test_a_rank_reports_why_it_has_no_agent(bed, folder):
    with Job(bed, folder, PROGRAMS["rust"], PATH="/usr/bin:/bin") as job:
        for rank, (_, errors) in enumerate(job.outputs()):
            assert "rank %d: cannot start an agent for the job: cannot run cool: " % rank in errors and "COOL_PROGRAM" in errors, errors
    with Job(bed, folder, PROGRAMS["rust"], COOL_MASTER="10.0.0.1:x") as job:
        assert all("the master 10.0.0.1:x is not a known host" in errors for _, errors in job.outputs())


@pytest.fixture()
def host_names(bed, tmp_path):
    """Lets programs find the hosts by their names."""
    names, hosts = tmp_path / "hosts", bed.description["hosts"]
    write_host_names(bed, names)
    # Each host has mounts of its own.
    for host in hosts:
        subprocess.run(["mnexec", "-a", str(host["pid"]), "mount", "--bind", names, "/etc/hosts"], check=True)
    yield
    for host in hosts:
        subprocess.run(["mnexec", "-a", str(host["pid"]), "umount", "/etc/hosts"], check=True)


def test_slurms_prologs_let_each_step_start_agents(bed, folder, host_names, tmp_path):
    secrets, settings = tmp_path / "secrets", []
    (tmp_path / "key").write_text("secret")
    for setting, name in (("Prolog", "prolog.sh"), ("TaskProlog", "task-prolog.sh"), ("Epilog", "epilog.sh")):
        with open(os.path.join(ROOT, "deploy", "slurm", name)) as f:
            script = f.read().replace("/etc/cool/slurm-key", str(tmp_path / "key")).replace("/run/cool-slurm", str(secrets))
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
        settings.append("%s=%s" % (setting, tmp_path / name))
    variables = {"COOL_AGENT_OPTIONS": AGENT_OPTIONS, "TMPDIR": folder.path, "PATH": bed.public + ":" + os.environ["PATH"]}
    with Slurm(bed, tmp_path, settings) as slurm:
        for _ in range(2):
            output = slurm.srun("-N", "4", "-n", str(RANKS), *PROGRAMS["rust"], **variables)
            assert output == suite.expected(RANKS)
            folder.wait_until_unused()
        wait_for(lambda: not os.listdir(secrets), "the secrets of ended jobs are removed")
