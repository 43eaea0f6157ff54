"""Ranks for the tests of the backend of torch.distributed: processes that import torch once and then do what tests ask."""

import contextlib
import multiprocessing
import os
import tempfile
import traceback

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch_cases", "torch_failures", "torch_training", "torch._dynamo", "cool.torch.backend"])

# Seconds; longer than any test, however busy the machine.
LIMIT = 300


def _serve(conn, rank, size, init, environment):
    """Does what the parent asks for, as a rank."""
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), **environment})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if init:
        dist.init_process_group("cool", init_method=init, rank=rank, world_size=size)
    while (asked := conn.recv()) is not None:
        try:
            function, arguments = asked
            conn.send((True, function(*arguments)))
        except BaseException:
            conn.send((False, traceback.format_exc()))
    if dist.is_initialized():
        dist.destroy_process_group()
    conn.send((True, None))


class Ranks:
    """As many processes, on the agents of one of them, that are in a group "cool"; without `joined` in none."""

    def __init__(self, size, environment=(), joined=True):
        self._place = tempfile.TemporaryDirectory(prefix="cool-torch-")
        init = f"file://{self._place.name}/store" if joined else None
        self._conns, self.processes = [], []
        for rank in range(size):
            conn, theirs = FORKED.Pipe()
            process = FORKED.Process(target=_serve, args=(theirs, rank, size, init, dict(environment)), daemon=True)
            process.start()
            theirs.close()
            self._conns.append(conn)
            self.processes.append(process)

    def path(self, name):
        return f"{self._place.name}/{name}"

    def run(self, function, *arguments, ranks=None):
        """What a function gives at each rank (all, or some); raises what is raised at the first of them that fails."""
        return self.answers(function, *arguments, ranks=ranks)()

    def answers(self, function, *arguments, ranks=None):
        """Starts a function; what is returned waits for its results."""
        conns = [(rank, self._conns[rank]) for rank in ranks or range(len(self._conns))]
        for _, conn in conns:
            conn.send((function, arguments))

        def answers():
            found = [(rank, _answer(conn, rank)) for rank, conn in conns]
            failed = [f"rank {rank}: {result}" for rank, (good, result) in found if not good]
            assert not failed, "\n".join(failed)
            return [result for _, (_, result) in found]

        return answers

    def close(self):
        for conn in self._conns:
            with contextlib.suppress(OSError):  # Of one that was killed.
                conn.send(None)
        for process in self.processes:
            process.join(LIMIT)
            if process.exitcode is None:
                process.kill()
        codes = [process.exitcode for process in self.processes]
        self._place.cleanup()
        return codes


def _answer(conn, rank):
    if not conn.poll(LIMIT):
        return False, f"no answer within {LIMIT} s"
    try:
        return conn.recv()
    except EOFError:
        return False, "it has ended"
