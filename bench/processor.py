"""Processor time, user and system, of COOL's agents, of ranks and of the emulated switches (proc_pid_stat(5)).

The kernel counts what a process has used in whole ticks of 10 ms, so figures of short cases are coarse. What it does for
packets outside of any process (part of the shaping and of TCP) is in `busy` only, which is all that the machine did.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "mininet"))
import ovs  # noqa: E402

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def of_process(pid):
    """Seconds that a process has used and those of its children that have ended; none if it has ended itself."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            user, system, children_user, children_system = (int(t) for t in f.read().rpartition(")")[2].split()[11:15])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    return (user + system) / TICKS_PER_SECOND, (children_user + children_system) / TICKS_PER_SECOND


def of_processes(pids):
    """Seconds that these processes have used, without their children."""
    return sum(of_process(pid)[0] for pid in pids)


def machine_ticks():
    """User, nice, system, idle, iowait, irq, softirq, steal: since the machine started (proc_stat(5))."""
    with open("/proc/stat") as f:
        return [int(t) for t in f.readline().split()[1:9]]


def idle_share(before, after):
    """Of the machine's time between two of `machine_ticks`; None if there was none."""
    passed = sum(after) - sum(before)
    return (after[3] + after[4] - before[3] - before[4]) / passed if passed else None


def sample(bed, ranks=None):
    """Seconds used so far, by who used them. `ranks` tells those of the ranks; without it they are the agents' children, which
    count when they have ended."""
    agents = [of_process(agent.process.pid) for agent in bed.agents.values()]
    ticks = machine_ticks()
    return {"agents": sum(own for own, _ in agents), "ranks": ranks() if ranks else sum(children for _, children in agents),
            "switches": of_processes([ovs.daemon_pid()]), "busy": (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_SECOND}


def used(before, after):
    return {who: after[who] - before[who] for who in after}


def delivered(op, moved, ranks):
    """Bytes that must come into all nodes together: of a bcast each node's but the root's, of a reduce each vector but the root's
    own, of an allreduce both; of gather and scatter each part but the root's own, and of an allgather at every node."""
    whole = {"bcast": ranks - 1, "reduce": ranks - 1, "allreduce": 2 * (ranks - 1), "allgather": ranks - 1}
    return moved * whole.get(op, (ranks - 1) / ranks)


def per_mib(seconds, op, moved, ranks, calls):
    """Seconds for each MiB delivered by this many `calls`, by who used them; none where nothing has to come into any node."""
    mib = delivered(op, moved, ranks) * calls / MIB
    if not mib:
        return {}
    return {who: max(0.0, s) / mib for who, s in seconds.items()}
