"""The backend "cool" of torch.distributed, in processes on agents that rank 0 brings, compared with gloo and with one process."""

import pytest
import torch_cases
import torch_training
from torch_ranks import Ranks


@pytest.fixture(scope="module")
def ranks():
    """Four ranks in a group, on agents that rank 0 of them brings."""
    ranks = Ranks(4)
    yield ranks
    assert ranks.close() == [0] * 4


@pytest.mark.parametrize("case", ["reductions", "moves", "uneven", "in_place_within", "coalesced", "factors", "messages", "objects", "futures"])
def test_calls(ranks, case):
    ranks.run(getattr(torch_cases, case))


@pytest.mark.parametrize("way, arguments", [("ddp", ()), ("fsdp2", (False,)), ("fsdp2", (True,)), ("fsdp2_hybrid", ()), ("zero", ())])
def test_training_goes_as_by_one_process(ranks, way, arguments):
    ranks.run(getattr(torch_training, way), *arguments)
