"""Large networks: the controller with simulated switches and agents, which must leave nothing
behind (`make load` measures the load), and groups whose agents connect on demand, as on many
nodes."""
import json
import os
import signal
import subprocess

import faults
from conftest import PATIENCE, end_controller, succeed, wait_for
from test_collectives import OPERATIONS, UNEQUAL, bench
from test_faults import STOPPED_TIMEOUT, kill_an_agent_under_a_job
from test_jobs import running

import testbed

# The smallest group that connects on demand has two nodes.
ON_DEMAND = ("--mesh-nodes", "1")


def test_hundreds_of_groups_leave_nothing_behind():
    process = subprocess.run([os.path.join(testbed.BIN, "cool-load"), "--topology", "leafspine:4x2x10", "fabric",
                           "--controller", os.path.join(testbed.BIN, "cool-controller"),
                           "--groups", "20", "--cycles", "300", "--failures", "2"],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert (report["switches"], report["hosts"], report["groups_came_and_went"]) == (6, 40, 300)
    assert report["messages_lost"] == 0
    assert 0 < report["world_bytes_per_agent"] < 10_000, "a world on 40 hosts takes few bytes"


def test_all_collectives_are_right_with_on_demand_connections(make_bed):
    bed = make_bed("tree:2x3", host_mbit=50, uplink_mbit=50, controller_flags=ON_DEMAND)
    bench(bed, OPERATIONS, "0,1000,256K", 1, "--ranks", "12", "--reps", "2")
    bench(bed, UNEQUAL, "1000", 1, "--reps", "1")


def test_a_lost_agent_is_named_where_agents_connect_on_demand(make_bed):
    bed = make_bed("tree:2x3", switches="bridge", controller_flags=ON_DEMAND)
    kill_an_agent_under_a_job(bed)
    bench(bed, "bcast,allreduce,alltoall", "1000", 1, "--reps", "1")


def test_survivors_go_on_where_agents_connect_on_demand(make_bed):
    # The survivors wait 5 s for each other, as in test_faults.
    bed = make_bed("tree:4x2", switches="bridge", controller_flags=ON_DEMAND, peer_timeout_ms=10_000)
    with faults.events() as receiver:
        # This seed results in each kind of fault once, in two jobs.
        series = faults.Series(bed, receiver, seed=2443, faults=faults.kinds(STOPPED_TIMEOUT))
        series.run(len(faults.FAULTS))
    assert not series.violations, "\n".join(series.violations)
    assert len(series.seconds) == len(faults.FAULTS), "each kind of fault: %s" % series.figures()


def test_an_on_demand_group_continues_under_another_controller(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", controller_flags=ON_DEMAND)
    job = subprocess.Popen(["cool", "run", "-n", "4", "--", os.path.join(bed.bin_dir, "cool-misuse"), "barriers"],
                           env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "started" in job.stdout.readline()
    end_controller(bed, signal.SIGKILL)
    bed.start_controller()
    wait_for(lambda: bed.whole() and [j["state"] for j in running(bed)] == ["running"], "the job is taken over")
    assert job.poll() is None
    succeed(bed, "cool", "cancel", "--all")
    job.communicate(timeout=PATIENCE)
