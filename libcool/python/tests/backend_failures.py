"""Test cases for groups and failures of the backend of torch.distributed."""

import datetime
import os
import re
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import ErrorType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import cool.torch
from cool.torch import groups, job_cluster


def expect_error(text, call, kind=cool.torch.Error):
    """Returns the error of a call and checks its message."""
    try:
        call()
    except kind as error:
        assert re.search(text, str(error)), f"{error} is not {text}"
        return error
    raise AssertionError(f"no error {text}")


def seconds(number):
    return datetime.timedelta(seconds=number)


def parts():
    """Checks groups of some of the ranks, created by all ranks or by their members only, and groups created from them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    halves = [dist.new_group([0, 1]), dist.new_group(list(range(2, size)))]
    mine = halves[rank // 2]
    total = torch.tensor([rank])
    dist.all_reduce(total, group=mine)
    assert total.item() == (1 if rank < 2 else sum(range(2, size)))
    received = torch.tensor([rank])
    dist.broadcast(received, 3 if rank > 1 else 1, group=mine)
    assert received.item() == (3 if rank > 1 else 1)
    # torch names groups by a counter, so each rank must create one.
    members = list(range(rank % 2, size, 2))
    local_group = dist.new_group(members, use_local_synchronization=True)
    gathered = [torch.empty(1, dtype=torch.int64) for _ in members]
    dist.all_gather(gathered, torch.tensor([rank]), group=local_group)
    assert [element.item() for element in gathered] == members
    dist.destroy_process_group(local_group)
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    part = backend.split(None, [3, 1], None)
    assert (part is None) == (rank in (0, 2))
    if part is not None:
        assert (part.rank(), part.size()) == ([3, 1].index(rank), 2)
        row = torch.tensor([rank])
        part.broadcast([row], dist.BroadcastOptions()).wait()
        assert row.item() == 3
        part.shutdown()
    disjoint_parts(backend)
    for group in halves:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def disjoint_parts(backend):
    """Checks that the ranks of each part of one split form a group, and that the parent's options stay as they are."""
    rank, size = dist.get_rank(), dist.get_world_size()
    before = list(backend.options.global_ranks_in_group)
    ranks = [rank for rank in range(size) if rank % 2 == dist.get_rank() % 2]
    # The ranks arrive in any order, so that two parts are mixed up in most turns if their ranks
    # derive the same key.
    for _ in range(8):
        dist.barrier()
        part = backend.split(None, ranks, backend.options)
        total = torch.tensor([rank])
        part.allreduce([total], dist.AllreduceOptions()).wait()
        assert total.item() == sum(ranks) and list(part.options.global_ranks_in_group) == ranks
        part.shutdown()
    assert list(backend.options.global_ranks_in_group) == before


def meshes():
    """Checks device meshes and distributed tensors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("a", "b"))
    total = torch.tensor([rank])
    dist.all_reduce(total, group=mesh.get_group("a"))
    assert total.item() == rank + (rank + 2) % 4
    whole = torch.arange(32.0).view(8, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert sharded.to_local().shape == (4, 2)
    assert torch.equal((sharded + 1).full_tensor(), whole + 1)
    assert torch.equal(sharded.redistribute(mesh, [Replicate(), Shard(0)]).full_tensor(), whole)
    assert sharded.sum().full_tensor() == whole.sum()


def arguments():
    """Checks that invalid arguments are rejected with a remedy, and that the group still works."""
    rank, size = dist.get_rank(), dist.get_world_size()
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    wrong = cool.torch.ArgumentError
    for tensor in (torch.zeros(3, 1).expand(3, 4), torch.zeros(3, 4)[:, :2]):
        expect_error(r"tensor has gaps or overlaps: call this with a tensor.contiguous\(\)", lambda: dist.all_reduce(tensor), wrong)
    expect_error(
        'tensor is on meta, but cool supports only tensors in main memory.*"cpu:cool,cuda:nccl"',
        lambda: backend.allreduce([torch.empty(3, device="meta")], dist.AllreduceOptions()),
        wrong,
    )
    expect_error("tensor is torch.sparse_coo.*to_dense", lambda: backend.broadcast([torch.zeros(3).to_sparse()], dist.BroadcastOptions()), wrong)
    expect_error("sparse tensors have no MAX, only SUM", lambda: dist.all_reduce(torch.zeros(3).to_sparse(), op=dist.ReduceOp.MAX), wrong)
    expect_error(rf"rank {rank} has a tensor of shape \[{3 + rank}\], of which 1 dim.*, rank {int(not rank)} one of", lambda: dist.all_reduce(torch.zeros(3 + rank).to_sparse()), wrong)
    expect_error("SUM cannot combine tensors of torch.float8", lambda: dist.all_reduce(torch.zeros(3).to(torch.float8_e5m2)), wrong)
    expect_error("input_split_sizes are", lambda: dist.all_to_all_single(torch.empty(4), torch.empty(4), None, [1] * (size - 1) + [9]), ValueError)
    expect_error("recv has 5 elements", lambda: dist.all_gather_into_tensor(torch.empty(5), torch.empty(2)), wrong)
    expect_error("tag is -2", lambda: dist.send(torch.zeros(1), (rank + 1) % size, tag=-2), wrong)
    total = torch.tensor([1])
    dist.all_reduce(total)
    assert total.item() == size and backend.get_error() == ErrorType.SUCCESS


def mismatch():
    """Checks that mismatching ranks get an error, at once or from the work and its future."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group, other = dist.new_group(timeout=seconds(60)), dist.new_group(timeout=seconds(60))
    error = expect_error("called allreduce of 2 f32 by sum", lambda: dist.all_reduce(torch.zeros(2 + (rank == 1)), group=group))
    assert isinstance(error, dist.DistBackendError) and isinstance(error.__cause__, cool.MismatchError)
    expect_error("", lambda: dist.barrier(group=group))
    assert group._get_backend(torch.device("cpu")).get_error() == ErrorType.COMM_ERROR
    work = dist.all_reduce(torch.zeros(2 + (rank == 1)), group=other, async_op=True)
    future = work.get_future()
    chained = future.then(lambda done: done.value())
    expect_error("called allreduce of 2 f32", future.wait, RuntimeError)
    expect_error("called allreduce of 2 f32", chained.wait, RuntimeError)
    expect_error("called allreduce of 2 f32", work.wait)
    assert work.is_completed() and not work.is_success() and work.exception() is not None


def lengths():
    """Checks that messages and parts of another length than the receiver's are errors, and that the group still works."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        dist.send(torch.ones(3), 1)
    elif rank == 1:
        error = expect_error("rank 1: rank 0 has sent 3 elements, but 5 are received", lambda: dist.recv(torch.zeros(5), 0))
        assert error.ranks == (0, 1)
    own = [1] * size
    expect_error(f"rank {rank} sends 1 elements to itself, and receives 2", lambda: dist.all_to_all_single(torch.zeros(size + 1), torch.zeros(size), own[:rank] + [2] + own[rank + 1 :], own), ValueError)
    # Rank 0 expects one element more from rank 1 than it sends.
    splits = [1, 2, *own[2:]] if rank == 0 else own
    exchange = lambda: dist.all_to_all_single(torch.zeros(sum(splits)), torch.zeros(size), splits, own)
    exchange() if rank else expect_error("rank 0: rank 1 has sent 1 elements, but 2 are received", exchange)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size
    # Ranks without splits make another call.
    group = dist.new_group()
    text = "all ranks must pass lists or splits, which counts as a barrier here, or none may: .*called"
    expect_error(text, lambda: dist.all_to_all_single(torch.zeros(size), torch.zeros(size), own if rank else None, own if rank else None, group=group))


def unequal_attempts():
    """Checks that a rank may try to join more often than others, with the same store."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("attempts", dist.distributed_c10d._get_default_store())
    for attempts in (1, 0, 2):
        for _ in range(attempts if rank == 1 else 0):
            expect_error("ranks 0 did not join within 0.01 s", lambda: groups.join(store, rank, size, "x", seconds(0.01)))
        dist.barrier()
        assert rank != 1 or not store.check([groups._request_of(rank)]), "rank 0 must not find the request of an earlier attempt"
        comm, key = groups.join(store, rank, size, "x", seconds(60))
        keys = [None] * size
        dist.all_gather_object(keys, key)
        assert keys == [key] * size and comm.allreduce(torch.ones(1))[0] == size
        comm.free()


class RecordingCluster:
    """Agents that records how long the end of the process waits for other ranks."""

    def wait_until_unused(self, seconds):
        self.seconds = seconds
        return True

    def close(self):
        pass


def ends():
    """Checks that a process that ends by an exception does not wait long for the other ranks that use its agents."""
    opened, groups._open = groups._open, set()
    cluster = RecordingCluster()
    try:
        groups._leave(cluster)
        assert cluster.seconds == groups.END_SECONDS
        try:
            raise ValueError
        except ValueError:
            groups._leave(cluster)
        assert cluster.seconds == groups.FAILED_END_SECONDS
    finally:
        groups._open = opened


def signals():
    """Checks that all threads of the library block signals, so that the system delivers them to the program's threads."""
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    threads = [thread.native_id for thread in threading.enumerate() if thread.name == "cool.torch"]
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as name:
            threads += [int(task)] if name.read().startswith(("cool", "tokio")) else []
    assert len(threads) >= 2
    for thread in threads:
        with open(f"/proc/self/task/{thread}/status") as status:
            blocked = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk"))
        assert blocked & 1 << signal.SIGUSR1 - 1, thread


def no_agents():
    """Checks the remedy for ranks on several machines, all or some of which have no agent."""
    store, agents, groups._job_agents = dist.HashStore(), groups._job_agents, None
    original, program = groups._host_status, job_cluster.program

    def status(host, why=None):
        return {"host": host, "machine": host, "pid": 1, "why": why}

    groups._host_status, job_cluster.program = lambda: status("h1", "COOL_SOCKET is not set"), lambda: None
    try:
        decision = groups._choose_agents({1: status("h2")}, "0")
        assert decision["error"].startswith("no COOL agent at rank 0 on h1 (COOL_SOCKET is not set), and rank 1 on h2 has one; start")
        decision = groups._choose_agents({1: status("h2", "COOL_SOCKET is not set")}, "0")
        assert decision["error"].startswith("no COOL agent on h1 (COOL_SOCKET is not set), and no program `cool` to start one; install")
        groups._host_status = lambda: status("h1")
        error = groups._choose_agents({1: status("h2", "COOL_SOCKET is not set")}, "0")["error"]
        assert error.startswith("no COOL agent at rank 1 on h2 (COOL_SOCKET is not set), and rank 0 on h1 has one; start")
        expect_error("rank 1: rank 0 could not start: .no memory", lambda: _join_alone(store))
        expect_error("ranks 1 did not join within 0.1 s; check that they were started", lambda: groups.join(store, 0, 2, "0", seconds(0.1)))
    finally:
        groups._job_agents, groups._host_status, job_cluster.program = agents, original, program
    assert groups.bounded("k" * 200) == "k" * 200 and len(groups.bounded("\u00e9" * 300).encode()) <= 200


def _join_alone(store):
    """Raises the error of rank 1 if rank 0 cannot choose agents."""
    choose, groups._choose_agents = groups._choose_agents, lambda *_: {}["no memory"]
    decides = threading.Thread(target=expect_error, args=("no memory", lambda: groups.join(store, 0, 2, "0", seconds(60)), KeyError))
    decides.start()
    try:
        groups.join(store, 1, 2, "0", seconds(60))
    finally:
        decides.join()
        groups._choose_agents = choose


def late():
    """Checks that a timeout names the late rank, also in a monitored barrier."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = rf"Rank {rank} successfully reached monitoredBarrier, .* from rank 0: " if rank else "^"
    for call, pattern in (
        (lambda group: dist.all_reduce(torch.zeros(1), group=group), "timeout has passed: .*rank 3 "),
        (lambda group: dist.monitored_barrier(group, timeout=seconds(0.3)), others + "Rank 3 failed to pass monitoredBarrier in 300 ms: .*rank 3 "),
    ):
        group = dist.new_group(timeout=seconds(0.3))
        if rank != 3:
            error = expect_error(pattern, lambda: call(group))
            assert error.ranks == (3,) and isinstance(error.__cause__, cool.TimeoutError)
        dist.barrier()
    expect_error(f"Rank {rank} timed out in monitoredBarrier", lambda: dist.monitored_barrier(timeout=seconds(0)))
    buffer = torch.zeros(1)
    work = dist.irecv(buffer, (rank + 1) % size, tag=77)
    expect_error("not complete after 100ms; it continues", lambda: work.wait(seconds(0.1)))
    assert not work.is_completed()
    dist.barrier()
    dist.send(torch.ones(1), (rank - 1) % size, tag=77)
    assert work.wait() and buffer.item() == 1


def anybody():
    """Checks repeated receives from any rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.send(torch.tensor([rank]), 0, tag=3)
    else:
        buffer, senders = torch.empty(1, dtype=torch.int64), set()
        for _ in range(size - 2):
            senders.add(dist.recv(buffer, tag=3))
            assert buffer.item() in senders
        work = dist.irecv(buffer, tag=3)
        while not work.is_completed():
            time.sleep(0)
        assert {work.source_rank()} == set(range(1, size)) - senders == {buffer.item()}
    total = torch.ones(1)
    work = dist.all_reduce(total, async_op=True)
    while not work.is_completed():
        time.sleep(0)
    assert total.item() == size and work.is_success()


def again(path):
    """Checks that groups can be created again with the same store and agents."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.FileStore(path, size)
    for _ in range(2):
        dist.destroy_process_group()
        dist.init_process_group("cpu:cool", store=store, rank=rank, world_size=size)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == size


def allocated():
    """Checks tensors in memory that is shared with the agent."""
    rank, size = dist.get_rank(), dist.get_world_size()
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    send, recv = (backend.allocate_tensor(n, dtype=torch.bfloat16, device=torch.device("cpu")) for n in (1000, 1000 * size))
    send.fill_(rank)
    for starts in (False, True):
        recv.zero_()
        work = dist.all_gather_into_tensor(recv, send, async_op=starts)
        assert not starts or work.wait()
        assert torch.equal(recv.view(size, 1000)[:, 7], torch.arange(size).to(torch.bfloat16))


def killed(rank_lost, shrinks):
    """Checks that a killed rank is named at all others, which continue without it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    dist.barrier(group)
    if rank == rank_lost:
        os.kill(os.getpid(), 9)
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    error = expect_error(f"rank {rank_lost}", work.wait)
    assert rank_lost in error.ranks and isinstance(error.__cause__, cool.LostError)
    expect_error(f"rank {rank_lost}", lambda: dist.all_reduce(torch.ones(1)))
    if not shrinks:
        return dist.distributed_c10d._abort_process_group()
    rest = dist.shrink_group([rank_lost], shrink_flags=shrinks - 1)
    assert rest.size() == dist.get_world_size() == size - 1
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size - 1
    dist.destroy_process_group()


def killed_in_training(rank_lost):
    """Checks that the backward pass of all other ranks names a rank that is killed in a step."""
    net = nn.parallel.DistributedDataParallel(nn.Linear(30, 30))
    for step in range(3):
        if step == 2 and dist.get_rank() == rank_lost:
            os.kill(os.getpid(), 9)
        loss = net(torch.ones(4, 30)).sum()
        if step < 2:
            loss.backward()
    # The error passes through C++, which does not preserve Python classes.
    expect_error(f"rank {rank_lost}", loss.backward, RuntimeError)
    assert dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).get_error() != ErrorType.SUCCESS
