"""PyTorch over COOL on emulated hosts: training by torchrun, mpirun and srun, survivors that name a
killed rank and continue, and some of torch's own tests of backends."""
import json
import os
import subprocess

import pytest
import torch_suite
import torch_train
import warm_python
from conftest import PATIENCE, ROOT
from launchers import HOST_LIBRARIES, Slurm, start_in_hosts

EXAMPLE = os.path.join(ROOT, "libcool", "python", "examples", "train_fashion.py")
# Pictures of each rank in a step, and the number of steps.
BATCH, STEPS = 32, 3
# A few of each kind of torch's own tests. `make torch` runs all of them.
CASES = ("test_DistributedDataParallelCPU", "test_DistributedDataParallelCPU_grad_is_view", "test_all_gather_coalesced_simple",
         "test_all_gather_complex", "test_all_reduce_max", "test_all_reduce_sum_async", "test_barrier", "test_broadcast", "test_ddp_create_graph",
         "test_destroy_group", "test_gather", "test_irecv", "test_isend_torch_profiler", "test_reduce_max", "test_scatter_full_group",
         "test_send_recv_any_source", "test_send_recv_with_tag")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The path of a Python that imports torch once for all processes, while the testbed starts."""
    modules = ("torch", "torch._dynamo", "torch.distributed.run", "cool.torch.backend")
    with warm_python.Python(torch_train.PYTHON, str(tmp_path_factory.mktemp("warm")), modules, {"OMP_NUM_THREADS": "1"}) as path:
        yield path


@pytest.fixture(scope="module")
def bed(python, make_bed):
    return make_bed("tree:2x2", switches="bridge")


@pytest.fixture(scope="module")
def ranks(python, bed, tmp_path_factory):
    with torch_train.Ranks(bed, python, str(tmp_path_factory.mktemp("ranks")), PATIENCE) as ranks:
        yield ranks


def hosts(bed):
    return bed.description["hosts"]


def test_torchrun_trains_on_four_hosts(python, bed):
    nodes = hosts(bed)
    agents = []
    for number, host in enumerate(nodes):
        command = [python, "-m", "torch.distributed.run", "--nnodes", str(len(nodes)), "--node-rank", str(number),
                   "--nproc-per-node", "1", "--master-addr", nodes[0]["ip"], "--master-port", "29500", "--local-addr", host["ip"],
                   EXAMPLE, "--batch", str(BATCH), "--steps", str(STEPS), "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python, "COOL_SOCKET": os.path.join(bed.directory, host["name"] + ".sock")}
        agents.append(subprocess.Popen(["mnexec", "-a", str(host["pid"]), *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True))
    try:
        outputs = [agent.communicate(timeout=2 * PATIENCE) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert all(agent.returncode == 0 for agent in agents), outputs
    result = json.loads(outputs[0][0])
    assert result["hashes_equal"] and result["ranks"] == len(nodes) and result["steps"] == STEPS, result


def rank_command(python, bed, host):
    """Returns the shell command of a rank; `host` is the shell's expression for the name of its
    host."""
    return "MASTER_ADDR=%s OMP_NUM_THREADS=1 COOL_SOCKET=%s/%s.sock exec %s %s --batch %d --steps %d --json" % (
        hosts(bed)[0]["ip"], bed.directory, host, python, EXAMPLE, BATCH, STEPS)


def test_open_mpi_starts_ranks_that_train(python, bed, tmp_path):
    host = HOST_LIBRARIES["openmpi"]()
    mpirun = [*host.mpirun(bed, len(hosts(bed))), "sh", "-c", "'%s'" % rank_command(python, bed, "$(hostname)")]
    result = json.loads(start_in_hosts(bed, tmp_path, mpirun, host.variables))
    assert result["hashes_equal"] and result["ranks"] == len(hosts(bed)), result


def test_slurm_starts_ranks_that_train(python, bed, tmp_path):
    ranks = str(len(hosts(bed)))
    with Slurm(bed, tmp_path) as slurm:
        result = json.loads(slurm.srun("-N", ranks, "-n", ranks, "sh", "-c", rank_command(python, bed, "$SLURMD_NODENAME")))
    assert result["hashes_equal"] and result["ranks"] == len(hosts(bed)), result


@pytest.mark.parametrize("strategy", torch_train.STRATEGIES)
def test_each_way_of_training_gives_the_same_weights_every_time(bed, ranks, strategy):
    first, second = (torch_train.train(ranks, hosts(bed), "cool", strategy, BATCH, epochs=1, steps=STEPS) for _ in range(2))
    assert first["hashes_equal"] and first["hash"] == second["hash"], (first, second)


def test_survivors_name_the_killed_rank_and_continue_training(bed, ranks):
    result = torch_train.kill_rank(ranks, hosts(bed), BATCH, "cool")
    assert result["named"] == result["survivors"] == len(hosts(bed)) - 1, result
    assert result["hashes_equal"], result


def test_torchs_own_tests_of_backends_pass(python, bed, tmp_path):
    results = torch_suite.cases(str(tmp_path), "cool", "cool", CASES, torch_suite.sockets(bed), python)
    assert {name: results.get(name, {}).get("result") for name in CASES} == dict.fromkeys(CASES, "passed"), results
