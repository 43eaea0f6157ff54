"""Tests of the backend "cool" of torch.distributed, in processes on agents that rank 0 starts, compared with gloo and one process."""

import os
import subprocess
import sys

import pytest
from backend_ranks import LIMIT, Ranks

CALLS = ["reductions", "transfers", "unequal_parts", "started_exchanges", "averages", "in_place_within", "coalesced", "factors", "sparse", "messages", "objects", "futures"]
CALLS += ["waiting_callbacks", "inference", "other_orders"]
FAILURES = ["parts", "meshes", "no_agents", "arguments", "mismatch", "late", "anybody", "lengths", "unequal_attempts", "ends", "signals", "allocated"]


@pytest.fixture(scope="module")
def ranks(warm):
    """Four ranks in a group, on agents that rank 0 starts."""
    ranks = Ranks(warm, 4)
    yield ranks
    assert ranks.close() == [0] * 4


@pytest.mark.parametrize("case", CALLS)
def test_every_call_returns_the_same_as_gloo(ranks, case):
    ranks.run("backend_cases", case)


@pytest.mark.parametrize("case", FAILURES)
def test_groups_and_failures(ranks, case):
    ranks.run("backend_failures", case)


@pytest.mark.parametrize("case, arguments", [("ddp", ()), ("powersgd", ()), ("fsdp2", (False,)), ("fsdp2", (True,)), ("fsdp2_hybrid", ()), ("zero", ()), ("embedding", ())])
def test_training_goes_as_by_one_process(ranks, case, arguments):
    ranks.run("backend_training", case, *arguments)


def test_a_group_is_made_again_in_the_same_processes(ranks):
    ranks.run("backend_failures", "again", ranks.path("again"))


@pytest.mark.parametrize("case, arguments", [("killed", (1, 1)), ("killed", (1, 2)), ("killed", (1, 0)), ("killed_in_training", (1,))])
def test_a_killed_rank_is_named_and_the_others_continue(warm, case, arguments):
    ranks = Ranks(warm, 3)
    with pytest.raises(AssertionError, match="^rank 1: it has ended$"):
        ranks.run("backend_failures", case, *arguments)
    assert ranks.close() == [0, -9, 0]


def torchrun(python, program, *arguments):
    """Runs a program in two ranks by torchrun, which must succeed. Returns the words that it prints in each line, sorted."""
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program), *map(str, arguments)]
    run = subprocess.run(command, timeout=LIMIT, capture_output=True, text=True, env={**os.environ, "PYTHON_EXEC": python, "WARM_PYTHON_FINALIZES": "1"})
    assert run.returncode == 0, run.stdout + run.stderr
    return sorted(run.stdout.splitlines())


def test_torchrun_starts_ranks_that_start_their_agents(warm, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('cool')\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        # Written at once, because the ranks share their output.
        "os.write(1, f'{total.item()}\\n'.encode())\n"
    )
    assert torchrun(warm, program) == ["2.0", "2.0"]


def test_cool_is_imported_without_torch():
    subprocess.run([sys.executable, "-c", "import cool, sys; assert 'torch' not in sys.modules"], timeout=LIMIT, check=True)


def test_a_forked_process_may_form_groups_of_its_own(warm, tmp_path):
    program = tmp_path / "fork.py"
    program.write_text(
        "import multiprocessing, os, sys\n"
        "import torch, torch.distributed as dist\n"
        "def add(text):\n"
        "    total = torch.ones(1)\n"
        "    dist.all_reduce(total, async_op=True).get_future().wait()\n"
        "    os.write(1, f'{text} {total.item()}\\n'.encode())\n"
        "def work(rank):\n"
        "    dist.destroy_process_group()\n"
        "    dist.init_process_group('cool', init_method=f'file://{sys.argv[1]}', rank=rank, world_size=2)\n"
        "    add('forked')\n"
        "    dist.destroy_process_group()\n"
        "dist.init_process_group('cool')\n"
        "add('first')\n"
        "process = multiprocessing.get_context('fork').Process(target=work, args=(dist.get_rank(),))\n"
        "process.start()\n"
        f"process.join({LIMIT})\n"
        "assert process.exitcode == 0, process.exitcode\n"
        "add('then')\n"
    )
    assert torchrun(warm, program, tmp_path / "store") == sorted(["first 2.0", "forked 2.0", "then 2.0"] * 2)


def test_an_older_torch_is_refused(warm):
    program = "import sys, torch; del sys.modules['cool.torch']; torch.__version__ = '2.13.1+cpu'; import cool.torch"
    run = subprocess.run([warm, "-c", program], timeout=LIMIT, capture_output=True, text=True)
    assert run.returncode == 1 and "the backend cool needs torch 2.14 or later; this is torch 2.13.1+cpu" in run.stderr
