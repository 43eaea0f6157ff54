"""Rank processes for the tests of the backend, which execute functions for the tests."""

import contextlib
import importlib
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Client, Listener

# Timeout in seconds, longer than any test even on a busy machine.
LIMIT = 300


def _serve(address, rank, size, init):
    """Executes the parent's functions as a rank."""
    import torch
    import torch.distributed as dist

    conn = Client(address)
    conn.send(rank)
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

    def __init__(self, python, size):
        self._place = tempfile.TemporaryDirectory(prefix="cool-torch-")
        address, init = self.path("ranks"), f"file://{self.path('store')}"
        with Listener(address, "AF_UNIX", backlog=size) as listener:
            self.processes = [subprocess.Popen([python, __file__, address, str(rank), str(size), init]) for rank in range(size)]
            conns = [listener.accept() for _ in range(size)]
        self._conns = [conn for _, conn in sorted((conn.recv(), conn) for conn in conns)]

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
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
        codes = [process.wait() for process in self.processes]
        self._place.cleanup()
        return codes


def _answer(conn):
    if not conn.poll(LIMIT):
        return False, f"no answer within {LIMIT} s"
    try:
        return conn.recv()
    except EOFError:
        return False, "it has ended"


if __name__ == "__main__":
    address, rank, size, init = sys.argv[1:]
    _serve(address, int(rank), int(size), init)
