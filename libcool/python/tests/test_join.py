"""Tests of groups without a launcher, queues, and handles with other options, in Python."""

import os
import subprocess
import sys
import threading

import cool
import numpy as np
import pytest
from embedded import on

RANK = """
import cool, sys, numpy as np
key, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with cool.join(key, rank, size, timeout=600) as world:
    print(int(world.allreduce(np.array([rank + 1]))[0]))
"""


def test_processes_join_by_key_through_another_nodes_agent():
    with cool.Cluster(2, racks=2) as cluster:
        assert len(cluster.sockets) == 2

        def start(key, rank, size):
            environment = {**os.environ, "COOL_SOCKET": cluster.sockets[rank % 2]}
            command = [sys.executable, "-c", RANK, key, str(rank), str(size)]
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

        # Two concurrent groups.
        processes = [(start(key, rank, size), size) for key, size in (("a", 3), ("b", 2)) for rank in range(size)]
        for process, size in processes:
            assert process.communicate()[0] == f"{size * (size + 1) // 2}\n" and process.returncode == 0
        socket = cluster.sockets[0]
        with cool.join("alone", 0, 1, socket=socket) as world:
            assert world.size == 1
        with pytest.raises(cool.ArgumentError, match="there is no rank 2 in a group of 2"):
            cool.join("k", 2, 2, socket=socket)
        with pytest.raises(cool.ArgumentError, match="timeout: "):
            cool.join("k", 0, 2, timeout=-1, socket=socket)
        with pytest.raises(cool.AgentError, match="rank 1 of key k did not join in time"):
            cool.join("k", 0, 2, timeout=0.2, socket=socket)
    assert cluster.sockets == []
    with pytest.raises(cool.AgentError, match="no agent at"):
        cool.join("k", 0, 1, socket=socket)
    with pytest.raises(cool.Error, match="at least one"):
        cool.Cluster(0)


# Waits for rank 1, which joins and does nothing else, in each of these ways. Another thread sends SIGINT once this one waits.
INTERRUPTED = """
import cool, os, signal, sys, threading, numpy as np
main = threading.main_thread()

def waits():
    # The state of the main thread: S while it sleeps.
    with open(f"/proc/self/task/{main.native_id}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"

def interrupt(begun):
    begun.wait()
    while not waits():
        pass
    os.kill(os.getpid(), signal.SIGINT)

def check(name, call):
    begun = threading.Event()
    thread = threading.Thread(target=interrupt, args=(begun,))
    thread.start()
    try:
        begun.set()
        call()
        thread.join()
    except KeyboardInterrupt:
        thread.join()
        return
    sys.exit(f"{name} was not interrupted")

one, buffer = np.ones(1), np.zeros(1)
with cool.Cluster(nodes=int(sys.argv[1])) as cluster:
    ways = {
        "allreduce": lambda world: world.allreduce(one),
        "bcast": lambda world: world.bcast(buffer, root=1),
        "barrier": lambda world: world.barrier(),
        "wait": lambda world: world.iallreduce(one).wait(),
        "wait with a timeout": lambda world: world.iallreduce(one).wait(600),
        "recv": lambda world: world.recv(buffer, 1),
        "function": lambda world: world.allreduce(one, op=lambda left, right: left + right),
        "split": lambda world: world.split(0),
    }
    for name, call in ways.items():
        other = threading.Thread(target=lambda: others.append(cool.join(name, 1, 2, socket=cluster.sockets[-1])))
        others = []
        other.start()
        world = cool.join(name, 0, 2, socket=cluster.sockets[0])
        other.join()
        check(name, lambda: call(world))
    check("join", lambda: cool.join("alone", 0, 2, socket=cluster.sockets[0]))
    print("interrupted")
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_interrupt_ends_every_wait(nodes):
    run = subprocess.run([sys.executable, "-c", INTERRUPTED, str(nodes)], stdout=subprocess.PIPE, text=True, timeout=600)
    assert run.stdout == "interrupted\n" and run.returncode == 0


def test_a_queue_returns_the_first_completed_request():
    def main(world):
        queue, other = cool.Queue(), world.dup()
        buffer = np.zeros(3, dtype="u1")
        message = other.irecv(buffer)
        queue.add(message, "message")
        with pytest.raises(cool.ArgumentError, match="in a queue"):
            queue.add(message)
        assert queue.next(0) is None and queue.next(timeout=0.001) is None and not message.done() and len(queue) == 1
        sums = [world.iallreduce(np.full(1000, i + world.rank)) for i in range(20)]
        for i, request in enumerate(sums):
            queue.add(request, i)
        tokens = set()
        while len(tokens) < 20:
            token, request = queue.next(60)
            tokens.add(token)
            assert request.done() and request.wait()[0] == 2 * token + 1
        assert tokens == set(range(20))
        # The other rank's message must not arrive while this rank awaits sums.
        world.barrier()
        other.send(np.array([5], dtype="u1"), 1 - world.rank, tag=4)
        token, request = queue.next()
        assert token == "message" and request is message and request.message == (1 - world.rank, 4, 1)
        barrier = world.ibarrier()
        queue.add(barrier)
        assert queue.next(60) == (barrier, barrier)

        dropped = other.irecv(buffer)
        queue.add(dropped)
        del queue
        with pytest.raises(cool.ArgumentError, match="queue of this request was dropped"):
            dropped.wait()
        world.barrier()

    on(2, main)


def test_closing_a_queue_ends_a_thread_that_waits_for_it():
    def main(world):
        queue, tokens = cool.Queue(), []

        def read_queue():
            while (entry := queue.next()) is not None:
                tokens.append(entry[0])

        thread = threading.Thread(target=read_queue)
        thread.start()
        queue.add(world.iallreduce(np.ones(3)), "sum")
        message = world.irecv(np.zeros(1), tag=1)
        queue.add(message, "message")
        world.barrier()
        queue.close()
        thread.join()
        queue.add(world.ibarrier(), "late")
        while (entry := queue.next()) is not None:
            tokens.append(entry[0])
        assert "message" not in tokens and tokens[:1] == ["sum"] and not message.done()
        world.barrier()

    on(2, main)


def test_a_wait_that_times_out_may_be_repeated():
    def main(world):
        buffer = np.zeros(1)
        request, queued, queue = world.irecv(buffer, tag=1), world.irecv(np.zeros(1), tag=2), cool.Queue()
        queue.add(queued)
        for pending in (request, request, queued):
            with pytest.raises(cool.TimeoutError, match="not complete after 10ms; it continues"):
                pending.wait(timeout=0.01)
        with pytest.raises(cool.ArgumentError, match="timeout: "):
            request.wait(-1)
        # If one of two waiting threads times out, the other one takes over.
        results = []
        thread = threading.Thread(target=lambda: results.append(request.wait()[0]))
        thread.start()
        for _ in range(20):
            with pytest.raises(cool.TimeoutError):
                request.wait(0.001)
        world.barrier()
        world.send(np.ones(1), 1 - world.rank, tag=1)
        thread.join()
        assert results == [1] and request.wait(0) is buffer
        world.barrier()

    on(2, main)


def test_a_cluster_waits_until_its_ranks_have_left():
    with cool.Cluster(1) as cluster:
        assert cluster.wait_until_unused(60)
        command = [sys.executable, "-c", RANK + "\nsys.stdin.read()", "left", "1", "2"]
        other = subprocess.Popen(command, env={**os.environ, "COOL_SOCKET": cluster.sockets[0]}, stdin=subprocess.PIPE)
        with cool.join("left", 0, 2, socket=cluster.sockets[0]) as world:
            world.allreduce(np.array([1]))
            assert not cluster.wait_until_unused(0.01)
            other.kill()
            other.communicate()
        assert cluster.wait_until_unused(60)
    assert cluster.wait_until_unused(0)


def forked(function):
    """Returns what a forked process that calls the function prints, once it has ended with status 0."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writer, str(function()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def test_a_forked_process_frees_a_cluster_without_stopping_it():
    holder = [cool.Cluster(1)]
    socket = holder[0].sockets[0]
    assert forked(lambda: (holder[0].wait_until_unused(600), holder.clear())) == "(True, None)"
    assert forked(lambda: holder[0].close()) == "None"
    with cool.join("still runs", 0, 1, socket=socket) as world:
        assert world.size == 1
    holder[0].close()


def test_a_forked_process_does_not_wait_in_queues_of_its_parent():
    def error(call):
        with pytest.raises(cool.ArgumentError) as error:
            call()
        return error.value

    def main(world):
        queue, request = [cool.Queue()], world.irecv(np.zeros(1))
        queue[0].add(request)

        def child():
            errors = [error(call) for call in (queue[0].next, request.wait, request.done, lambda: queue[0].add(request))]
            queue.clear()
            return errors

        parent = os.getpid()
        created, started = f"this queue was created in process {parent}; create one here", f"this call was started in process {parent}; wait for it there"
        text = forked(child)
        assert text.count(created) == text.count(started) == 2
        world.send(np.ones(1), 0)
        assert queue[0].next()[1] is request

    on(1, main)


def test_the_agent_of_a_process_is_found():
    def run_without_socket(**variables):
        environment = {name: value for name, value in os.environ.items() if name != "COOL_SOCKET"}
        command = [sys.executable, "-c", "import cool; print(cool.agent_socket())"]
        return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, timeout=600)

    assert run_without_socket(COOL_SOCKET="/run/cool/h1.sock").stdout == "/run/cool/h1.sock\n"
    result = run_without_socket()
    assert result.returncode != 0 and "EnvironmentError" in result.stderr, result.stderr
    assert "COOL_SOCKET is not set" in result.stderr, result.stderr


def test_a_queue_returns_failures():
    def main(world):
        queue = cool.Queue()
        world.set_timeout(20)
        queue.add(world.iallreduce(np.zeros(2 + world.rank)), "wrong")
        token, request = queue.next(60)
        assert token == "wrong" and request.done()
        for _ in range(2):
            with pytest.raises(cool.MismatchError, match="called allreduce of 2 f64 by sum"):
                request.wait()

    on(2, main)


def test_others_ask_and_wait_while_a_thread_waits_for_a_request():
    def main(world):
        request = world.irecv(np.zeros(1), tag=1)
        results = []
        threads = [threading.Thread(target=lambda: results.append(request.wait()[0])) for _ in range(2)]
        for thread in threads:
            thread.start()
        # None of them is complete before the other rank has sent.
        for _ in range(100):
            assert not request.done()
        world.barrier()
        world.send(np.ones(1), 1 - world.rank, tag=1)
        for thread in threads:
            thread.join()
        assert results == [1, 1] and request.done()

    on(2, main)


def test_a_handle_with_another_timeout_shares_the_group():
    def main(world):
        short, lending = world.with_timeout(60), world.lending()
        assert (short.group, short.rank, lending.size) == (world.group, world.rank, world.size)
        send, recv = world.alloc(1000), world.alloc(1000)
        send += 1
        assert lending.iallreduce(send, recv=recv).wait() is recv and (recv == world.size).all()
        part = world.dup()
        if world.rank == 0:
            with pytest.raises(cool.TimeoutError):
                part.with_timeout(0.2).recv(np.zeros(1))
        world.barrier()
        part.free()
        with pytest.raises(cool.ArgumentError, match="timeout: "):
            world.with_timeout(-1)
        short.barrier()
        copy = world.dup()
        view = copy.with_timeout(5).lending()
        copy.free()
        with pytest.raises(cool.ArgumentError, match="was freed"):
            view.barrier()
        world.barrier()

    on(2, main)
