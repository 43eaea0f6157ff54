"""Programs of an earlier release are upgraded one after the other, the controller first, while
collectives run; both kinds work together.

COOL_BEFORE must name the directory of the earlier programs (made by tools/build-before); otherwise
these tests are skipped.
"""
import os
import signal

import pytest
import testbed
from conftest import end_agent, end_controller, log_of, succeed, wait_for
from test_jobs import ended, racks, running, start

BEFORE = os.environ.get("COOL_BEFORE")
pytestmark = pytest.mark.skipif(not BEFORE,
                                reason="COOL_BEFORE names no directory of earlier programs: see tools/build-before")

# All operations, each checked byte by byte.
BENCH = ("bench", "--ops", "bcast,reduce,allreduce,gather,allgather,scatter", "--bytes", "1000,1M", "--reps", "2")


def run_benchmarks(bed):
    """Runs collectives of ranks that are linked with the earlier library, and with this one."""
    for folder in BEFORE, testbed.BIN:
        succeed(bed, os.path.join(folder, "cool"), *BENCH)


def test_a_cluster_is_upgraded_program_by_program_while_jobs_run(make_bed):
    bed = make_bed("tree:2x2", bin_dir=BEFORE, lldp_ms=1000)
    run_benchmarks(bed)

    # The controller is upgraded first, while an older job continues.
    job = start(bed, os.path.join(BEFORE, "cool"), "run", "--ranks-per-node", "1", "--", os.path.join(BEFORE, "cool-misuse"), "barriers")
    assert "started" in job.stdout.readline()
    end_controller(bed)
    bed.bin_dir = os.path.abspath(testbed.BIN)
    bed.start_controller()
    wait_for(lambda: bed.whole() and [j["state"] for j in running(bed)] == ["running"], "the job is taken over")
    assert job.poll() is None
    run_benchmarks(bed)

    # The agents of the job are upgraded last. Those of the other rack are upgraded while it runs.
    job.send_signal(signal.SIGINT)
    ended(job)
    nodes_by_rack = racks(bed)
    for rack, other in (sorted(nodes_by_rack), sorted(nodes_by_rack, reverse=True)):
        job = start(bed, os.path.join(BEFORE, "cool"), "run", "--racks", str(other), "--ranks-per-node", "1", "--", os.path.join(BEFORE, "cool-misuse"), "barriers")
        assert "started" in job.stdout.readline()
        for name in nodes_by_rack[rack]:
            end_agent(bed, name)
            bed.start_agent(name)
            wait_for(bed.whole, "the agent of %s has joined" % name)
            run_benchmarks(bed)
        assert job.poll() is None and len(running(bed)) == 1
        job.send_signal(signal.SIGINT)
        ended(job)
    assert "panicked" not in "".join(log_of(bed, name) for name in ["controller", *bed.agents])
