"""Formation of groups: the ranks agree on a key through the group's Store.

Without agents, the job starts its own: rank 0 if all ranks are on one machine, otherwise one rank of each (`job_cluster`).
"""

import hashlib
import json
import logging
import os
import secrets
import socket
import sys
from multiprocessing.util import Finalize

import cool

from . import errors, job_cluster

log = logging.getLogger(__name__)

# The agents that ranks of the job have started: their sockets by machine, or None.
_job_agents = None

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
    global _inherited, _open, _job_agents
    _inherited, _open, _job_agents = _open, set(), None


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
        try:
            number = store.add(COUNT, 0)
            while own not in (decision := _decision(store, number, timeout))["requests"]:
                number += 1
        except Exception:
            # Otherwise rank 0 could decide for this request when the rank has already made another one.
            store.delete_key(_request_of(rank))
            raise
    if decision.get("error"):
        raise errors.Error(f"rank {rank}: {decision['error']}")
    if "cluster" in decision:
        decision["agents"] = _agents_of_cluster(store, rank, decision["cluster"], timeout)
    share(decision["agents"])
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
    if "cluster" in decision:
        _conclude_cluster(store, decision["cluster"], decision["agents"], timeout)
    return decision


def _write(store, decision, requests):
    """Writes a decision for these requests."""
    number = store.add(COUNT, 1)
    decision["requests"] = [request["request"] for request in requests.values()]
    store.set(f"cool/decision/{number}", json.dumps(decision))


def _agents_of_cluster(store, rank, cluster, timeout):
    """Returns the sockets of the agents of a cluster by machine. The first rank of each machine starts its agent."""
    own = job_cluster.machine()
    if rank and rank == cluster["machines"][own]["first"]:
        try:
            outcome = {"socket": job_cluster.join(cluster["token"], cluster["machines"][own]["pids"])}
        except Exception as error:
            outcome = {"error": str(error)}
        store.set(f"{cluster['place']}/{rank}", json.dumps(outcome))
    place = f"{cluster['place']}/agents"
    _wait(store, {0: place}, timeout)
    outcome = json.loads(store.get(place))
    if "error" in outcome:
        raise errors.Error(f"rank {rank}: {outcome['error']}")
    return outcome["agents"]


def _conclude_cluster(store, cluster, agents, timeout):
    """Waits until each machine has an agent, at rank 0, and writes their sockets or the first error for all ranks."""
    outcome = {"agents": dict(agents)}
    starting = {ranks["first"]: machine for machine, ranks in cluster["machines"].items() if machine not in agents}
    places = {rank: f"{cluster['place']}/{rank}" for rank in starting}
    try:
        _wait(store, places, timeout)
        for rank, machine in starting.items():
            started = json.loads(store.get(places[rank]))
            if "error" in started:
                outcome = {"error": f"rank {rank} could not start an agent for the job: {started['error']}"}
                break
            outcome["agents"][machine] = started["socket"]
    except Exception as error:
        outcome = {"error": f"rank 0 could not start: {error}"}
    store.set(f"{cluster['place']}/agents", json.dumps(outcome))


def bounded(key):
    """Returns a key of at most 200 bytes that is unique to ``key``."""
    encoded = key.encode()
    return key if len(encoded) <= 200 else f"{encoded[:120].decode(errors='ignore')} {hashlib.sha256(encoded).hexdigest()}"


def meet(key, rank, size, seconds):
    """Joins the group of all ranks that pass the same key."""
    agent = _job_agents.get(job_cluster.machine()) if _job_agents else None
    try:
        return cool.join(key, rank, size, timeout=seconds, socket=agent)
    except cool.EnvironmentError as error:
        raise errors.of(error, [], f"rank {rank}: no COOL agent: ") from error
    except cool.Error as error:
        raise errors.of(error, []) from error


def share(agents):
    """Sets the agents, as sockets by machine, through which this process joins all later groups."""
    global _job_agents
    _job_agents = agents


def _host_status():
    """Returns the machine and, if it has no agent, the reason."""
    status = {"host": socket.gethostname(), "machine": job_cluster.machine(), "pid": os.getpid(), "why": None}
    try:
        cool.agent_socket()
    except cool.EnvironmentError as error:
        status["why"] = str(error)
    return status


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

    Agents are started only if no rank has one: in this process if all ranks are on this machine, otherwise as a cluster
    for the job. If only some ranks have one, all ranks get the error, because the others would wait for those that cannot
    join.
    """
    decision = {"key": bounded(f"torch {secrets.token_hex(8)} {name}"), "agents": _job_agents}
    if _job_agents:
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
    if equipped := next(((rank, other) for rank, other in others.items() if other["why"] is None), None):
        rank, other = equipped
        decision["error"] = (
            f"no COOL agent at rank 0 on {own['host']} ({own['why']}), and rank {rank} on {other['host']} has one; start "
            "cool-nodeagent on every node"
        )
        return decision
    if any(other["machine"] != own["machine"] for other in others.values()):
        return _start_cluster(decision, {0: own, **others})
    cluster = cool.Cluster(1)
    Finalize(None, _leave, (cluster,), exitpriority=10)
    decision["agents"] = {own["machine"]: cluster.sockets[0]}
    return decision


def _start_cluster(decision, requests):
    """Adds a cluster for the ranks of several machines to the decision: the controller and rank 0's agent run then."""
    if job_cluster.program() is None:
        decision["error"] = (
            f"no COOL agent on {requests[0]['host']} ({requests[0]['why']}), and no program `cool` to start one; install COOL's programs on "
            "every machine, in a directory of PATH, or start cool-nodeagent there"
        )
        return decision
    machines, own = job_cluster.by_machine(requests), requests[0]["machine"]
    token, agent = job_cluster.start(machines[own]["pids"], len(machines) - 1)
    decision["agents"] = {own: agent}
    decision["cluster"] = {"token": token, "place": f"cool/cluster/{secrets.token_hex(8)}", "machines": machines}
    return decision
