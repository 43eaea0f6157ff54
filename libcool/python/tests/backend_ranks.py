"""Rank processes for the tests of the backend. They import torch once and then execute functions for the tests."""

import contextlib
import importlib
import multiprocessing
import tempfile
import traceback

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["backend_cases", "backend_failures", "backend_training", "torch._dynamo", "cool.torch.backend"])

# Timeout in seconds, longer than any test even on a busy machine.
LIMIT = 300


def _serve(conn, rank, size, init):
    """Executes the parent's functions as a rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("cool", init_method=init, rank=rank, world_size=size)
    while (request := conn.recv()) is not None:
        try:
            module, function, arguments = request
            conn.send((True, getattr(importlib.import_module(module), function)(*arguments)))
        except BaseException:
            conn.send((False, traceback.format_exc()))
    if dist.is_initialized():
        dist.destroy_process_group()
    conn.send((True, None))


class Ranks:
    """Processes of one group with the backend "cool", on agents that one of them starts."""

    def __init__(self, size):
        self._place = tempfile.TemporaryDirectory(prefix="cool-torch-")
        init = f"file://{self._place.name}/store"
        self._conns, self.processes = [], []
        for rank in range(size):
            conn, child_conn = FORKED.Pipe()
            process = FORKED.Process(target=_serve, args=(child_conn, rank, size, init), daemon=True)
            process.start()
            child_conn.close()
            self._conns.append(conn)
            self.processes.append(process)

    def path(self, name):
        return f"{self._place.name}/{name}"

    def run(self, module, function, *arguments):
        """Calls a function of a module, which only the ranks import, at all ranks. Fails with the exception of any rank."""
        for conn in self._conns:
            conn.send((module, function, arguments))
        replies = [_answer(conn) for conn in self._conns]
        failed = [f"rank {rank}: {result}" for rank, (succeeded, result) in enumerate(replies) if not succeeded]
        assert not failed, "\n".join(failed)
        return [result for _, result in replies]

    def close(self):
        for conn in self._conns:
            with contextlib.suppress(OSError):  # A killed process.
                conn.send(None)
        for process in self.processes:
            process.join(LIMIT)
            if process.exitcode is None:
                process.kill()
        codes = [process.exitcode for process in self.processes]
        self._place.cleanup()
        return codes


def _answer(conn):
    if not conn.poll(LIMIT):
        return False, f"no answer within {LIMIT} s"
    try:
        return conn.recv()
    except EOFError:
        return False, "it has ended"
