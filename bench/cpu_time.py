"""Measures the CPU time, user and system, of agents, ranks, and the emulated switches
(proc_pid_stat(5)).

The kernel counts the time of a process in whole ticks of 10 ms, so figures of short cases are
coarse. Only `busy`, the time of the whole machine, includes the work of the kernel for packets
outside of any process (part of the shaping and of TCP).
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "mininet"))
import ovs  # noqa: E402

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def process_seconds(pid):
    """Returns the seconds that a process and its ended children have used, or zeros if the process
    has ended."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            user, system, children_user, children_system = (int(t) for t in f.read().rpartition(")")[2].split()[11:15])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    return (user + system) / TICKS_PER_SECOND, (children_user + children_system) / TICKS_PER_SECOND


def processes_seconds(pids):
    """Returns the seconds that these processes have used, without their children."""
    return sum(process_seconds(pid)[0] for pid in pids)


def machine_ticks():
    """Returns user, nice, system, idle, iowait, irq, softirq, and steal ticks since the machine
    booted (proc_stat(5))."""
    with open("/proc/stat") as f:
        return [int(t) for t in f.readline().split()[1:9]]


def busy_seconds(ticks):
    """Returns the CPU seconds in a result of `machine_ticks` in which the machine was not idle."""
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_SECOND


def idle_share(before, after):
    """Returns the idle share of CPU time between two results of `machine_ticks`, or None if no time
    has passed."""
    elapsed = sum(after) - sum(before)
    return (after[3] + after[4] - before[3] - before[4]) / elapsed if elapsed else None


def sample(bed, ranks=None):
    """Returns the CPU seconds used so far, by consumer. `ranks` must return those of the ranks.
    Without it, ranks are the children of agents, which count only once they have ended. Switches
    other than Open vSwitch are part of the kernel and use no CPU time of a process."""
    agents = [process_seconds(agent.process.pid) for agent in bed.agents.values()]
    return {"agents": sum(own for own, _ in agents), "ranks": ranks() if ranks else sum(children for _, children in agents),
            "switches": processes_seconds([ovs.daemon_pid()]) if bed.options["switches"] == "ovs" else 0.0, "busy": busy_seconds(machine_ticks())}


def cpu_used(before, after):
    return {consumer: after[consumer] - before[consumer] for consumer in after}


def delivered(op, length, ranks):
    """Returns the bytes that must arrive at all nodes together. For bcast, every node except the
    root receives the message; for reduce, every vector except the root's is received; for
    allreduce, both; for gather and scatter, every part except the root's; for allgather, every
    other part at every node."""
    factor = {"bcast": ranks - 1, "reduce": ranks - 1, "allreduce": 2 * (ranks - 1), "allgather": ranks - 1}
    return length * factor.get(op, (ranks - 1) / ranks)


def per_mib(seconds, op, length, ranks, calls):
    """Returns the seconds per MiB delivered by `calls` calls, by consumer. Returns an empty
    dictionary if no node receives data."""
    mib = delivered(op, length, ranks) * calls / MIB
    if not mib:
        return {}
    return {consumer: max(0.0, consumed) / mib for consumer, consumed in seconds.items()}
