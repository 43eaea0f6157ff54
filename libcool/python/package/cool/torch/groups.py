"""Formation of groups: the ranks agree on a key through the group's Store. On one machine without agents, rank 0 starts them."""

import hashlib
import json
import logging
import os
import secrets
import socket
import sys
from multiprocessing.util import Finalize

import cool

from . import errors

log = logging.getLogger(__name__)

# Sockets of agents that a rank of this machine started, or None.
_shared = None

# Backends of the groups of this process. torch's own references do not keep the Python objects
# alive if it wraps the backends for its checks.
_open = set()

# Those of the process from which this process was forked. They are kept, because freeing them could
# wait for locks of threads that this process does not have.
_inherited = set()

# Time in seconds for which the process that started the agents waits for other ranks at its end, and the same for a
# process that ends by an exception, because launchers must learn of it soon.
END_SECONDS, FAILED_END_SECONDS = 300, 5


def _forget_groups():
    """Makes a forked process form groups of its own. It is no rank of the parent's groups, and does not run its agents."""
    global _inherited, _open, _shared
    _inherited, _open, _shared = _open, set(), None


os.register_at_fork(after_in_child=_forget_groups)


def opened(backend):
    """Registers a backend, so that its group is left at the end of the process at the latest."""
    _open.add(backend)


def left(backend):
    """Removes the backend of a group that was left."""
    _open.discard(backend)


def _ends_by_exception():
    """Returns whether this process ends because of an exception: Python has printed it, or it is still being handled."""
    return sys.exc_info()[0] is not None or getattr(sys, "last_type", None) is not None


def _leave(cluster):
    """Leaves all groups, waits until other ranks no longer use the agents of this process, and stops them."""
    for backend in list(_open):
        backend.shutdown()
    seconds = FAILED_END_SECONDS if _ends_by_exception() else END_SECONDS
    if not cluster.wait_until_unused(seconds):
        log.warning("other ranks are still running after %d s; they lose their agents when this process ends", seconds)
    cluster.close()


def join(store, rank, size, name, timeout):
    """Joins a new group; ``timeout`` is a timedelta. Returns the communicator and the key of the group.

    Each rank writes a request to the store, and rank 0 a decision for the requests of all ranks. The store may have been
    used for earlier groups, also by processes that have ended, so decisions have numbers, and each rank takes the first
    one that contains its own request.
    """
    if rank == 0:
        decision = _decide(store, size, name, timeout)
    else:
        own = secrets.token_hex(8)
        store.set(_request_of(rank), json.dumps({"request": own, **_host_status()}))
        number = store.add(COUNT, 0)
        while own not in (decision := _decision(store, number, timeout))["requests"]:
            number += 1
    if decision.get("error"):
        raise errors.Error(f"rank {rank}: {decision['error']}")
    share(decision["sockets"])
    return meet(decision["key"], rank, size, timeout.total_seconds()), decision["key"]


# Key of the number of decisions in the store.
COUNT = "cool/decisions"


def _request_of(rank):
    """Returns the key of a rank's request."""
    return f"cool/request/{rank}"


def _decision(store, number, timeout):
    """Returns the decision with a number once rank 0 has written it."""
    if number == 0:
        return {"requests": []}
    place = f"cool/decision/{number}"
    _wait(store, {0: place}, timeout)
    return json.loads(store.get(place))


def _decide(store, size, name, timeout):
    """Chooses the key of the group and its agents, at rank 0, and writes the decision for the other ranks."""
    requests = {}
    try:
        places = {rank: _request_of(rank) for rank in range(1, size)}
        try:
            _wait(store, places, timeout)
        finally:
            for rank, place in places.items():
                if store.check([place]):
                    requests[rank] = json.loads(store.get(place))
                    store.delete_key(place)
        decision = _choose_agents(requests, name)
    except Exception as error:
        _write(store, {"error": f"rank 0 could not start: {error}"}, requests)
        raise
    _write(store, decision, requests)
    return decision


def _write(store, decision, requests):
    """Writes a decision for these requests."""
    number = store.add(COUNT, 1)
    decision["requests"] = [request["request"] for request in requests.values()]
    store.set(f"cool/decision/{number}", json.dumps(decision))


def bounded(key):
    """Returns a key of at most 200 bytes that is unique to ``key``."""
    encoded = key.encode()
    return key if len(encoded) <= 200 else f"{encoded[:120].decode(errors='ignore')} {hashlib.sha256(encoded).hexdigest()}"


def meet(key, rank, size, seconds):
    """Joins the group of all ranks that pass the same key."""
    try:
        return cool.join(key, rank, size, timeout=seconds, socket=_shared[0] if _shared else None)
    except cool.EnvironmentError as error:
        raise errors.of(error, [], f"rank {rank}: no COOL agent: ") from error
    except cool.Error as error:
        raise errors.of(error, []) from error


def share(sockets):
    """Sets the sockets of the agents through which this process joins all later groups."""
    global _shared
    _shared = sockets


def _host_status():
    """Returns the machine's name and, if it has no agent, the reason."""
    try:
        cool.agent_socket()
    except cool.EnvironmentError as error:
        return {"host": socket.gethostname(), "why": str(error)}
    return {"host": socket.gethostname(), "why": None}


def _wait(store, places, timeout):
    """Waits until these ranks have written to the store."""
    try:
        store.wait(list(places.values()), timeout)
    except RuntimeError as error:  # Also DistStoreError. A FileStore raises no more specific error after its timeout.
        late = ", ".join(str(rank) for rank, place in places.items() if not store.check([place]))
        if not late:
            raise
        raise errors.Error(f"ranks {late} did not join within {timeout.total_seconds():g} s; check that they were started") from error


def _choose_agents(others, name):
    """Returns the decision on the key of the group and its agents, given the requests of the other ranks.

    Agents are started only if no rank has one and all ranks are on this machine. If only some ranks have one, all ranks
    get the error, because the others would wait for those that cannot join.
    """
    decision = {"key": bounded(f"torch {secrets.token_hex(8)} {name}"), "sockets": _shared}
    if _shared:
        return decision
    own = _host_status()
    if own["why"] is None:
        if lacking := next(((rank, other) for rank, other in others.items() if other["why"]), None):
            rank, other = lacking
            decision["error"] = (
                f"no COOL agent at rank {rank} on {other['host']} ({other['why']}), and rank 0 on {own['host']} has one; start "
                "cool-nodeagent on every node"
            )
        return decision
    for rank, other in others.items():
        if other["host"] != own["host"] or other["why"] is None:
            other_status = "has none either" if other["why"] else "has one"
            decision["error"] = (
                f"no COOL agent at rank 0 on {own['host']} ({own['why']}), and rank {rank} on {other['host']} {other_status}; start "
                "cool-nodeagent on every node, or run all ranks on one machine, where rank 0 starts agents"
            )
            return decision
    cluster = cool.Cluster(1)
    Finalize(None, _leave, (cluster,), exitpriority=10)
    decision["sockets"] = cluster.sockets
    return decision
