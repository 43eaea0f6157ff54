"""Formation of groups: the ranks agree on a key through the group's Store. On one machine without agents, rank 0 starts them."""

import hashlib
import json
import logging
import os
import secrets
import socket
from multiprocessing.util import Finalize

from torch.distributed import DistStoreError

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

# Time in seconds for which the process that started the agents waits for other ranks at its end.
END_SECONDS = 300


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


def _leave(cluster):
    """Leaves all groups, waits until other ranks no longer use the agents of this process, and stops them."""
    for backend in list(_open):
        backend.shutdown()
    if not cluster.wait_until_unused(END_SECONDS):
        log.warning("other ranks are still running after %d s; they lose their agents when this process ends", END_SECONDS)
    cluster.close()


def join(store, rank, size, name, timeout):
    """Joins a new group; ``timeout`` is a timedelta. Returns the communicator and the key of the group."""
    # The store may have been used for earlier groups, so each join has a number, which is the same
    # at all ranks.
    place = f"cool/{store.add(f'cool/times/{rank}', 1)}"
    seconds = timeout.total_seconds()
    if rank == 0:
        try:
            decision = _choose_agents(store, place, size, name, timeout)
        except Exception as error:
            store.set(place, json.dumps({"error": f"rank 0 could not start: {error}"}))
            raise
        store.set(place, json.dumps(decision))
    else:
        store.set(f"{place}/{rank}", json.dumps(_host_status()))
        _wait(store, {0: place}, timeout)
        decision = json.loads(store.get(place))
    if decision.get("error"):
        raise errors.Error(f"rank {rank}: {decision['error']}")
    share(decision["sockets"])
    return meet(decision["key"], rank, size, seconds), decision["key"]


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
    except DistStoreError as error:
        late = ", ".join(str(rank) for rank, place in places.items() if not store.check([place]))
        raise errors.Error(f"ranks {late} did not join within {timeout.total_seconds():g} s; check that they were started") from error


def _choose_agents(store, place, size, name, timeout):
    """Chooses the key of the group and its agents, at rank 0.

    Agents are started only if no rank has one and all ranks are on this machine. If only some ranks have one, all ranks
    get the error, because the others would wait for those that cannot join.
    """
    decision = {"key": bounded(f"torch {secrets.token_hex(8)} {name}"), "sockets": _shared}
    if _shared:
        return decision
    places = {rank: f"{place}/{rank}" for rank in range(1, size)}
    _wait(store, places, timeout)
    own = _host_status()
    others = {rank: json.loads(store.get(key)) for rank, key in places.items()}
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
