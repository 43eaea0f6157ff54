"""Two controllers of one cluster with a real etcd over TLS: one leads, and the standby takes
over."""
import contextlib
import json
import signal
import subprocess

import pytest
import testbed
from conftest import LONG_LEASE, PATIENCE, PEER_TIMEOUT_MS, log_of, succeed, wait_for
from pair import NAMES, PairBed
from test_recovery import multicast


@pytest.fixture(scope="module")
def bed():
    with PairBed("tree:2x2", host_mbit=10, uplink_mbit=10, lldp_ms=400, peer_timeout_ms=PEER_TIMEOUT_MS,
                 controller_flags=LONG_LEASE) as bed:
        yield bed


@contextlib.contextmanager
def broadcast_under_way(bed):
    """Runs a broadcast of 16 MiB that starts before this context and must succeed after it."""
    before = multicast(bed)
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", "16M", "--reps", "1", "--warmup", "0", "--json"],
                           env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: multicast(bed) - before > 4 * (1 << 20), "the broadcast is under way", process=job)
    yield
    out, err = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, out + err
    assert json.loads(out)["results"][0]["bytes"] == 16 << 20


def assert_serves(bed, index):
    """Waits until this controller alone leads, has the whole network, and runs jobs."""
    wait_for(lambda: bed.leads(index) == 1, "%s leads" % NAMES[index])
    assert bed.leads(1 - index) in (0, None)
    wait_for(bed.whole, "%s has the network" % NAMES[index])
    assert succeed(bed, "cool", "run", "-n", "4", "--", "echo", "here").count("here") == 4
    # Open vSwitch shows roles in a status that it updates every few seconds.
    wait_for(lambda: masters() == {testbed.OPENFLOW_PORT + index}, "%s is the master of all switches" % NAMES[index])


def masters():
    """Returns the ports of the controllers that are masters of switches."""
    output = subprocess.check_output(["ovs-vsctl", "--format=csv", "--no-headings", "--columns=target,role", "list", "controller"], text=True)
    return {int(line.split(",")[0].strip('"').rsplit(":", 1)[1]) for line in output.splitlines() if line.endswith("master")}


def test_the_standby_takes_over_from_a_leader_that_is_killed(bed):
    leader, generation = bed.leader(), bed.etcd.generation()
    with broadcast_under_way(bed):
        bed.pair[leader].signal(signal.SIGKILL)
        bed.await_end(leader)
        assert_serves(bed, 1 - leader)
    assert bed.etcd.generation() > generation
    bed.start_one(leader)
    assert bed.leads(leader) == 0


def test_a_leader_that_is_stopped_hands_over(bed):
    leader = bed.leader()
    with broadcast_under_way(bed):
        bed.pair[leader].signal(signal.SIGTERM)
        assert bed.await_end(leader) == 0
        assert_serves(bed, 1 - leader)
    bed.start_one(leader)
    # Stopping the standby does not affect the leader.
    bed.pair[leader].signal(signal.SIGTERM)
    assert bed.await_end(leader) == 0
    assert bed.leads(1 - leader) == 1
    bed.start_one(leader)


def test_the_successor_of_a_drained_leader_starts_no_job(bed):
    leader = bed.leader()
    succeed(bed, "cool", "drain")
    bed.pair[leader].signal(signal.SIGTERM)
    assert bed.await_end(leader) == 0
    wait_for(lambda: bed.leads(1 - leader) == 1, "the other one leads")
    wait_for(lambda: "is drained" in subprocess.run(["cool", "run", "-n", "1", "--", "true"], env=bed.environment(), capture_output=True,
                                                    text=True, timeout=PATIENCE).stderr, "it starts no job")
    succeed(bed, "cool", "drain", "--end")
    assert_serves(bed, 1 - leader)
    bed.start_one(leader)


def test_a_leader_that_has_stood_still_is_refused_and_ends(bed):
    leader = bed.leader()
    with broadcast_under_way(bed):
        bed.pair[leader].signal(signal.SIGSTOP)
        wait_for(lambda: bed.leads(1 - leader) == 1, "the other one leads")
        bed.pair[leader].signal(signal.SIGCONT)
        assert bed.await_end(leader) == 1
        assert "leadership lost" in log_of(bed, NAMES[leader])
        assert_serves(bed, 1 - leader)
    bed.start_one(leader)


def test_without_etcd_no_controller_leads_and_collectives_go_on(bed):
    leader = bed.leader()
    with broadcast_under_way(bed):
        bed.etcd.end(signal.SIGKILL)
        assert bed.await_end(leader) == 1
        assert "etcd did not renew its lease" in log_of(bed, NAMES[leader])
        # The systemd unit also restarts the controller.
        bed.launch(leader)
        wait_for(lambda: (bed.leads(0), bed.leads(1)) == (0, 0), "both are on standby")
        bed.etcd.start()
        wait_for(lambda: 1 in (bed.leads(0), bed.leads(1)), "one of the controllers leads again")
        assert_serves(bed, bed.leader())
    # A standby controller without etcd must end on request, without waiting.
    bed.etcd.end(signal.SIGKILL)
    wait_for(lambda: 1 not in (bed.leads(0), bed.leads(1)), "no controller leads")
    for index in range(2):
        if bed.pair[index].process.poll() is None:
            bed.pair[index].signal(signal.SIGTERM)
        assert bed.await_end(index) in (0, 1)
