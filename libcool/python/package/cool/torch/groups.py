"""How the ranks of a group find each other: by a key in the group's Store. On one machine without agents, rank 0 brings them."""

import hashlib
import json
import logging
import secrets
import socket
from multiprocessing.util import Finalize

from torch.distributed import DistStoreError

import cool

from . import errors

log = logging.getLogger(__name__)

# The sockets of agents that ranks of this machine share, if there are no others.
_shared = None

# The backends of the groups that this process is in. torch's own references do not keep what is Python's of them, when it wraps
# them for its checks.
_open = set()

# For how many seconds the process that brought the agents stays for the others' sake.
STAYS = 300


def opened(backend):
    """A group is left at the end of the process at the latest."""
    _open.add(backend)


def left(backend):
    """A group was left."""
    _open.discard(backend)


def _leave(cluster):
    """The end of a process whose agents others need."""
    for backend in list(_open):
        backend.shutdown()
    if not cluster.wait_until_unused(STAYS):
        log.warning("other ranks go on after %d s; they lose the agents that end with this process", STAYS)
    cluster.close()


def join(store, rank, size, name, timeout):
    """The ranks of a new group; ``timeout`` is a timedelta. Returns the communicator, and the key by which its ranks met."""
    # A store may have been used before, by all ranks alike.
    place = f"cool/{store.add(f'cool/times/{rank}', 1)}"
    seconds = timeout.total_seconds()
    if rank == 0:
        try:
            told = _decide(store, place, size, name, timeout)
        except Exception as error:
            store.set(place, json.dumps({"error": f"rank 0 could not begin: {error}"}))
            raise
        store.set(place, json.dumps(told))
    else:
        store.set(f"{place}/{rank}", json.dumps(_whereabouts()))
        _wait(store, {0: place}, timeout)
        told = json.loads(store.get(place))
    if told.get("error"):
        raise errors.Error(f"rank {rank}: {told['error']}")
    share(told["sockets"])
    return meet(told["key"], rank, size, seconds), told["key"]


def bounded(key):
    """A key that is no longer than keys may be, and no other's."""
    known = key.encode()
    return key if len(known) <= 200 else f"{known[:120].decode(errors='ignore')} {hashlib.sha256(known).hexdigest()}"


def meet(key, rank, size, seconds):
    """The ranks that give the same key."""
    try:
        return cool.join(key, rank, size, timeout=seconds, socket=_shared[0] if _shared else None)
    except cool.EnvironmentError as error:
        raise errors.of(error, [], f"rank {rank}: no COOL agent: ") from error
    except cool.Error as error:
        raise errors.of(error, []) from error


def share(sockets):
    """All later groups of this process are made by these agents."""
    global _shared
    _shared = sockets


def _whereabouts():
    """The machine's name, and why it has no agent, if so."""
    try:
        cool.agent_socket()
    except cool.EnvironmentError as error:
        return {"host": socket.gethostname(), "why": str(error)}
    return {"host": socket.gethostname(), "why": None}


def _wait(store, places, timeout):
    """Waits until these ranks have said something in the store."""
    try:
        store.wait(list(places.values()), timeout)
    except DistStoreError as error:
        late = ", ".join(str(rank) for rank, place in places.items() if not store.check([place]))
        raise errors.Error(f"ranks {late} did not come within {timeout.total_seconds():g} s; were they started?") from error


def _decide(store, place, size, name, timeout):
    """What rank 0 tells the others: the key, and the agents that it brings. Those are brought only if no rank has one and
    all are on this machine."""
    told = {"key": bounded(f"torch {secrets.token_hex(8)} {name}"), "sockets": _shared}
    mine = _whereabouts()
    if _shared or mine["why"] is None:
        return told
    places = {rank: f"{place}/{rank}" for rank in range(1, size)}
    _wait(store, places, timeout)
    for rank, at in places.items():
        other = json.loads(store.get(at))
        if other["host"] != mine["host"] or other["why"] is None:
            has = "has none either" if other["why"] else "has one"
            told["error"] = (
                f"no COOL agent at rank 0 on {mine['host']} ({mine['why']}), and rank {rank} on {other['host']} {has}; start "
                "cool-nodeagent on every node, or run all ranks on one machine, where they bring agents themselves"
            )
            return told
    cluster = cool.Cluster(1)
    Finalize(None, _leave, (cluster,), exitpriority=10)
    told["sockets"] = cluster.sockets
    return told
