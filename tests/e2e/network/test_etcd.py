"""Two controllers with an etcd of three members, which are killed one by one: the others continue
its work."""
import signal
import subprocess

import pytest
from conftest import LONG_LEASE, PEER_TIMEOUT_MS, wait_for
from pair import PairBed
from test_pair import assert_serves, broadcast_under_way


class BedOfThree(PairBed):
    etcd_members = 3


@pytest.fixture(scope="module")
def bed():
    with BedOfThree("tree:2x2", host_mbit=10, uplink_mbit=10, lldp_ms=400, peer_timeout_ms=PEER_TIMEOUT_MS,
                    controller_flags=LONG_LEASE) as bed:
        yield bed


def await_all_members(bed):
    """Waits until etcd has all its members again, one of them the leader."""
    bed.etcd.start()
    wait_for(bed.etcd.leader, "etcd has all its members")
    return bed.etcd.leader()


def test_a_killed_etcd_member_does_not_change_the_leader(bed):
    etcd_leader, leader, generation = await_all_members(bed), bed.leader(), bed.etcd.generation()
    follower = next(member for member in bed.etcd.members if member is not etcd_leader)
    # The broadcast lasts longer than a lease.
    with broadcast_under_way(bed):
        bed.etcd.end(signal.SIGKILL, [follower])
    assert_serves(bed, leader)
    assert bed.etcd.generation() == generation, "no other controller has led"
    assert await_all_members(bed) is etcd_leader


def test_the_standby_takes_over_while_a_member_is_missing(bed):
    etcd_leader, leader = await_all_members(bed), bed.leader()
    for signal_number in (signal.SIGKILL, signal.SIGTERM):
        follower = next(member for member in bed.etcd.members if member is not etcd_leader)
        bed.etcd.end(signal.SIGKILL, [follower])
        bed.pair[leader].signal(signal_number)
        bed.await_end(leader)
        assert_serves(bed, 1 - leader)
        bed.start_one(leader)
        leader = 1 - leader
        etcd_leader = await_all_members(bed)


def test_a_controller_leads_soon_after_etcds_leader_is_killed(bed):
    """etcd elects another leader first. On a busy machine, the controller's lease may expire
    meanwhile."""
    etcd_leader, leader = await_all_members(bed), bed.leader()
    # The broadcast lasts longer than a lease.
    with broadcast_under_way(bed):
        bed.etcd.end(signal.SIGKILL, [etcd_leader])
        wait_for(lambda: etcd_responds(bed), "the two other members agree")
    if bed.pair[leader].process.poll() is not None:
        assert bed.await_end(leader) == 1
        # The systemd unit also restarts the controller.
        bed.launch(leader)
    wait_for(lambda: 1 in (bed.leads(0), bed.leads(1)), "one of the controllers leads")
    leader = bed.leader()
    assert_serves(bed, leader)
    bed.pair[leader].signal(signal.SIGTERM)
    assert bed.await_end(leader) == 0
    assert_serves(bed, 1 - leader)
    bed.start_one(leader)
    await_all_members(bed)


def test_with_one_member_of_three_no_controller_leads(bed):
    await_all_members(bed)
    leader = bed.leader()
    with broadcast_under_way(bed):
        bed.etcd.end(signal.SIGKILL, bed.etcd.members[1:])
        assert bed.await_end(leader) == 1
        bed.launch(leader)
        wait_for(lambda: (bed.leads(0), bed.leads(1)) == (0, 0), "both are on standby")
        await_all_members(bed)
        wait_for(lambda: 1 in (bed.leads(0), bed.leads(1)), "one of the controllers leads again")
        assert_serves(bed, bed.leader())


def etcd_responds(bed):
    try:
        return bed.etcd.generation() > 0
    except subprocess.SubprocessError:
        return False
