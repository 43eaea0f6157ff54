"""Runs the ranks of PyTorch for torch_train.py. It imports torch once and forks ranks into the
network namespaces of hosts.

Reads one job per line, as JSON, and prints one event per line until the event "ended" of the job. A
job has `what` (one of JOBS), `hosts` in rank order (`pid`, `interface`, and `socket` of the agent),
`store` (the address on which the Store listens), `timeout` in seconds, `answers` (a pipe from which
rank 0 reads a line after each event "begin" and "end"), `backend`, and further fields that depend
on its kind. Times are those of CLOCK_MONOTONIC.
"""
import contextlib
import ctypes
import faulthandler
import json
import os
import select
import signal
import statistics
import sys
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "libcool", "python", "examples"))
os.environ.setdefault("OMP_NUM_THREADS", "1")
import cool.torch  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402,F401  DDP imports it, which takes long
import torch.distributed as dist  # noqa: E402
import train_fashion  # noqa: E402

CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1
LIBC = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20
# Seconds that the other ranks have to end after one has failed.
END_SECONDS = 10


def report(event, **more):
    """Prints an event by a single write, so that the lines of ranks are not interleaved."""
    os.write(1, (json.dumps({"event": event, **more}) + "\n").encode())


def synchronous(job, event):
    """Waits for all ranks. Rank 0 then reports the event and waits until torch_train.py has read
    the counters."""
    dist.barrier()
    if dist.get_rank() == 0:
        report(event)
        with open(job.answers) as replies:
            replies.readline()
    dist.barrier()


def shares(job, rank, size):
    """Yields the pictures and classes of this rank for step after step."""
    images, classes = train_fashion.pictures(train_fashion.FOLDER, "train")
    batches = train_fashion.batches(len(images), job.batch, 0, rank, size)
    for number in range(1 << 30):
        indices = batches[number % len(batches)]
        yield images[indices], classes[indices]


def steps(job, rank, size):
    """Runs steps of training. Reports when each step ended, and when its optimizer began and
    ended."""
    training, data = train_fashion.Training(job.strategy, 2e-3), shares(job, rank, size)
    for _ in range(job.warmup):
        training.step(*next(data))
    synchronous(job, "begin")
    start, end_times, optimizer_times = time.monotonic(), [], []
    for _ in range(job.steps):
        training.gradients(*next(data))
        before = time.monotonic()
        training.optimizer.step()
        end_times.append(time.monotonic())
        optimizer_times.append((before, end_times[-1]))
    synchronous(job, "end")
    report("steps", rank=rank, begun=start, ended=end_times, optimized=optimizer_times, hash=train_fashion.digest(training.weights()))


def computing(job, rank, size):
    """Runs the same steps on each rank alone, all at the same time, to measure computation without
    communication."""
    layers, data = train_fashion.network(), shares(job, rank, size)
    optimizer = torch.optim.Adam(layers.parameters(), lr=2e-3)
    end_times = []
    for number in range(job.warmup + job.steps):
        images, classes = next(data)
        if number == job.warmup:
            dist.barrier()
            start = time.monotonic()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layers(train_fashion.scaled(images)), classes).backward()
        optimizer.step()
        if number >= job.warmup:
            end_times.append(time.monotonic())
    dist.barrier()
    report("steps", rank=rank, begun=start, ended=end_times, optimized=[], hash="")


def training(job, rank, _):
    """Runs the training of the example and reports its result."""
    options = train_fashion.parse_arguments(["--json", "--backend", job.backend, "--strategy", job.strategy, "--epochs", str(job.epochs),
                                             "--batch", str(job.batch), *(["--steps", str(job.steps)] if job.steps else [])])
    result = train_fashion.train(options)
    if rank == 0:
        report("trained", **result)


def killed(job, rank, size):
    """Runs steps until a rank is lost. If the backend supports it, the survivors then shrink their
    group and run another step."""
    training, data = train_fashion.Training("ddp", 2e-3), shares(job, rank, size)
    training.step(*next(data))
    report("ready", rank=rank, pid=os.getpid())
    try:
        while True:
            training.step(*next(data))
    except RuntimeError as e:
        failed_at, message = time.monotonic(), "%s: %s" % (type(e).__name__, str(e).splitlines()[0])
    lost_ranks = cool.torch.lost() if job.goes_on else []
    report("failed", rank=rank, at=failed_at, message=message, gone=lost_ranks)
    if not job.goes_on:
        return
    dist.shrink_group(lost_ranks)
    survivor_training = train_fashion.Training("ddp", 2e-3, layers=training.layers)
    data = shares(job, dist.get_rank(), dist.get_world_size())
    survivor_training.step(*next(data))
    report("went on", rank=rank, at=time.monotonic(), size=dist.get_world_size(), hash=train_fashion.digest(survivor_training.weights()))
    dist.destroy_process_group()


def median_seconds(call, repetitions):
    """Returns the median duration in seconds of a call that all ranks must make, as seen by this
    rank."""
    call()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def adapter(job, rank, size):
    """Measures an allreduce through torch and through COOL's own binding in turn, with 8 bytes and
    with 64 MiB in memory of the backend."""
    with cool.join("adapter %s" % os.environ["MASTER_PORT"], rank, size) as comm:
        small, own_small = torch.zeros(2), torch.zeros(2)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        large = backend.allocate_tensor(16 * MIB, dtype=torch.float32, device=torch.device("cpu"))
        own_large = comm.alloc(16 * MIB, "f4")
        large.zero_()
        own_large[:] = 0
        timings = {"small": [], "own small": [], "large": [], "own large": []}
        for _ in range(job.rounds):
            timings["small"].append(median_seconds(lambda: dist.all_reduce(small), 200))
            timings["own small"].append(median_seconds(lambda: comm.allreduce(own_small, own_small), 200))
            timings["large"].append(median_seconds(lambda: dist.all_reduce(large), 5))
            timings["own large"].append(median_seconds(lambda: comm.allreduce(own_large, own_large), 5))
    if rank == 0:
        report("adapter", **{name.replace(" ", "_"): statistics.median(seconds) for name, seconds in timings.items()})


JOBS = {"steps": steps, "computing": computing, "training": training, "killed": killed, "adapter": adapter}


@contextlib.contextmanager
def fork(body):
    """Forks a child that runs `body`, yields its process id, and kills it at the end of the
    context."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            # If the parent is killed, no child must remain.
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            body()
            status = 0
        except BaseException as e:
            report("error", message="%s: %s" % (type(e).__name__, str(e).splitlines()[0]))
        finally:
            os._exit(status)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def keep_store(address, pipe):
    """Serves the Store until this process is killed. Writes its port to the pipe `pipe`."""
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    os.write(pipe, b"%d\n" % store.port)
    signal.pause()


def run_rank(job, rank, port):
    host = job.hosts[rank]
    with open("/proc/%d/ns/net" % host["pid"]) as namespace:
        if LIBC.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(len(job.hosts)), MASTER_ADDR=job.store, MASTER_PORT=str(port), LOCAL_RANK="0",
                      TORCHELASTIC_USE_AGENT_STORE="True", COOL_SOCKET=host["socket"], GLOO_SOCKET_IFNAME=host["interface"])
    faulthandler.enable()
    # A rank that hangs prints its stack.
    faulthandler.dump_traceback_later(0.9 * job.timeout)
    torch.set_num_threads(1)
    dist.init_process_group(job.backend)
    JOBS[job.what](job, dist.get_rank(), dist.get_world_size())
    if job.what != "killed":
        dist.destroy_process_group()


def run(job):
    """Runs a job and reports the exit statuses of its ranks: negative for a signal, None for a rank
    that did not end in time."""
    with contextlib.ExitStack() as stack:
        read_end, write_end = os.pipe()
        stack.enter_context(fork(lambda: keep_store(job.store, write_end)))
        with os.fdopen(read_end) as pipe:
            os.close(write_end)
            port = int(pipe.readline())
        pids = [stack.enter_context(fork_rank(job, rank, port)) for rank in range(len(job.hosts))]
        statuses = await_ranks(pids, time.monotonic() + job.timeout, job.may_die)
    report("ended", statuses=statuses)


def await_ranks(pids, end, may_die):
    """Waits for all processes and returns their exit statuses in order. After a failure that the
    job does not allow, the others have END_SECONDS to end."""
    files = {os.pidfd_open(pid): pid for pid in pids}
    statuses = dict.fromkeys(pids)
    while files and (ready := select.select(list(files), [], [], max(0.0, end - time.monotonic()))[0]):
        for file in ready:
            pid = files.pop(file)
            os.close(file)
            info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            statuses[pid] = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            if statuses[pid] and not may_die:
                end = min(end, time.monotonic() + END_SECONDS)
    for file in files:
        os.close(file)
    return list(statuses.values())


def fork_rank(job, rank, port):
    return fork(lambda: run_rank(job, rank, port))


def main():
    train_fashion.pictures(train_fashion.FOLDER, "train")
    train_fashion.pictures(train_fashion.FOLDER, "t10k")
    report("prepared", torch=torch.__version__)
    for line in sys.stdin:
        run(types.SimpleNamespace(**json.loads(line)))


if __name__ == "__main__":
    main()
