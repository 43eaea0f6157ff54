"""PyTorch on machines on which nothing of COOL runs: the job starts its own controller and agents,
and nothing of them remains."""
import json
import os
import signal
import subprocess

import pytest
from bare_jobs import JobFolder
from conftest import PATIENCE
from test_torch import EXAMPLE, python  # noqa: F401
from test_up import BareBed

# Agents on a busy machine are not lost within the default of 2 s.
AGENT_OPTIONS = "--peer-timeout-ms 20000"
# A rank that reports that its group is complete, and then waits.
WAITING = """
import datetime, os, signal, torch, torch.distributed as dist
dist.init_process_group("cool", timeout=datetime.timedelta(seconds=%d))
x = torch.ones(100)
dist.all_reduce(x)
os.write(1, b"sum %%d\\n" %% int(x[0]))
signal.pause()
""" % PATIENCE


@pytest.fixture(scope="module")
def bed(python):
    with BareBed("tree:1x4", switches="bridge") as bed:
        yield bed


class Torchrun:
    """A job on all machines, which torchrun starts."""

    def __init__(self, bed, python, *program, hidden=()):
        """Machines in `hidden` do not have the program `cool`."""
        self.folder = JobFolder()
        nodes = bed.description["hosts"]
        self.processes = []
        for number, host in enumerate(nodes):
            command = [python, "-m", "torch.distributed.run", "--nnodes", str(len(nodes)), "--node-rank", str(number), "--nproc-per-node", "2",
                       "--master-addr", nodes[0]["ip"], "--master-port", "29500", "--local-addr", host["ip"], *program]
            path = "/usr/bin:/bin" if host["name"] in hidden else bed.public + ":/usr/bin:/bin"
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python, "PATH": path, "TMPDIR": self.folder.path,
                           "COOL_AGENT_OPTIONS": AGENT_OPTIONS}
            self.processes.append(subprocess.Popen(["mnexec", "-a", str(host["pid"]), *command], env=environment, stdout=subprocess.PIPE,
                                                   stderr=subprocess.PIPE, text=True))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()
        self.folder.remove()

    def ended(self):
        """Waits for all processes; returns their outputs and error messages."""
        return [process.communicate(timeout=2 * PATIENCE) for process in self.processes]


def test_torchrun_trains_on_machines_without_agents(bed, python):
    with Torchrun(bed, python, EXAMPLE, "--batch", "32", "--steps", "3", "--json") as job:
        outputs = job.ended()
        assert all(process.returncode == 0 for process in job.processes), outputs
        result = json.loads(outputs[0][0])
        assert result["hashes_equal"] and result["ranks"] == 8 and result["steps"] == 3, result
        job.folder.wait_until_unused()


def test_nothing_remains_of_a_job_that_is_killed(bed, python, tmp_path):
    program = tmp_path / "waiting.py"
    program.write_text(WAITING)
    with Torchrun(bed, python, str(program)) as job:
        for process in job.processes:
            assert [process.stdout.readline() for _ in range(2)] == ["sum 8\n"] * 2
        # On each machine an agent and the command that ends it; on the first also the controller and
        # the join server.
        assert len(job.folder.programs()) == 2 * 4 + 2
        for process in job.processes:
            process.send_signal(signal.SIGKILL)
        subprocess.run(["pkill", "-KILL", "-f", str(program)], check=False)
        job.folder.wait_until_unused()


def test_all_ranks_report_a_machine_without_the_program(bed, python, tmp_path):
    program = tmp_path / "waiting.py"
    program.write_text(WAITING)
    with Torchrun(bed, python, str(program), hidden=("h3",)) as job:
        outputs = job.ended()
        for process, (_, errors) in zip(job.processes, outputs):
            assert process.returncode != 0
            assert "could not start an agent for the job: no program `cool`" in errors, errors
        job.folder.wait_until_unused()
