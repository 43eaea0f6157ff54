"""Test cases that compare training with the backend to the same training in one process."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 6, 8


def model():
    """Returns a network that is equal at every rank."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).double()


def examples(step):
    """Returns the examples of all ranks in a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 20, generator=generator, dtype=torch.float64)
    return x, (x.sum(1) > 0).long()


def losses_of(net, optimizer, rank=0, size=1):
    """Trains on this rank's examples and returns the loss of each step over all ranks."""
    losses = []
    for step in range(STEPS):
        x, y = (part.chunk(size)[rank] for part in examples(step))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    if size > 1:
        dist.all_reduce(losses, op=dist.ReduceOp.AVG)
    return losses


def alone():
    """Returns the losses and weights of one process."""
    net = model()
    losses = losses_of(net, torch.optim.Adam(net.parameters(), lr=0.01))
    return losses, [weight.detach() for weight in net.parameters()]


def check(losses, weights):
    """Compares with one process, up to rounding of sums."""
    expected, expected_weights = alone()
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close([weight.detach() for weight in weights], expected_weights)


def ddp():
    """Checks data-parallel training with buckets that overlap the backward pass."""
    net = DistributedDataParallel(model(), bucket_cap_mb=0.01)
    losses = losses_of(net, torch.optim.Adam(net.parameters(), lr=0.01), dist.get_rank(), dist.get_world_size())
    check(losses, net.parameters())


def powersgd():
    """Checks training with compressed gradients. The hook's callbacks wait for further calls."""
    net = DistributedDataParallel(model().float())
    net.register_comm_hook(PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2), powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(STEPS):
        x, y = (part.chunk(dist.get_world_size())[dist.get_rank()] for part in examples(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x.float()), y).backward()
        optimizer.step()
    weights = torch.cat([weight.detach().view(-1) for weight in net.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weights)
    assert all(torch.equal(other, weights) for other in gathered) and weights.isfinite().all()


def fsdp2(allocates):
    """Checks sharded training, with gathered parameters in shared or ordinary memory."""
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    if allocates:
        net.set_allocate_memory_from_process_group_for_comm(True)
    losses = losses_of(net, torch.optim.Adam(net.parameters(), lr=0.01), dist.get_rank(), dist.get_world_size())
    check(losses, [weight.full_tensor() for weight in net.parameters()])


def fsdp2_hybrid():
    """Checks hybrid sharding: two copies of the shards."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "shards"))
    net = model()
    fully_shard(net, mesh=mesh)
    losses = losses_of(net, torch.optim.Adam(net.parameters(), lr=0.01), dist.get_rank(), dist.get_world_size())
    check(losses, [weight.full_tensor() for weight in net.parameters()])


def zero():
    """Checks a sharded optimizer, which broadcasts its parameters."""
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    losses = losses_of(net, optimizer, dist.get_rank(), dist.get_world_size())
    check(losses, net.parameters())


def embedding():
    """Checks sparse gradients of an embedding: rank i looks up i + 1 words."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    net = DistributedDataParallel(nn.Embedding(16, 4, sparse=True))
    words = [torch.randint(16, (count,)) for count in range(1, size + 1)]
    net(words[rank]).square().sum().backward()
    expected = nn.Embedding(16, 4, sparse=True)
    expected.load_state_dict(net.module.state_dict())
    (sum(expected(some).square().sum() for some in words) / size).backward()
    torch.testing.assert_close(net.module.weight.grad.to_dense(), expected.weight.grad.to_dense())
