"""Two controllers with an etcd of three members, which are killed one by one: the others continue
its work."""
import signal
import subprocess

import pytest
from conftest import wait_for
from pair import PairBed
from test_pair import serves, under_way


class BedOfThree(PairBed):
    etcd_members = 3


@pytest.fixture(scope="module")
def bed():
    with BedOfThree("tree:2x2", host_mbit=40, uplink_mbit=40, lldp_ms=400) as bed:
        yield bed


def whole(bed):
    """Waits until etcd has all its members again, one of them the leader."""
    bed.etcd.start()
    wait_for(bed.etcd.leader, "etcd has all its members")
    return bed.etcd.leader()


def test_a_killed_etcd_member_does_not_change_the_leader(bed):
    leading, leader, generation = whole(bed), bed.leader(), bed.etcd.generation()
    for follower in [member for member in bed.etcd.members if member is not leading]:
        # Which lasts for several leases.
        with under_way(bed):
            bed.etcd.end(signal.SIGKILL, [follower])
        serves(bed, leader)
        assert bed.etcd.generation() == generation, "no other controller has led"
        assert whole(bed) is leading


def test_the_standby_takes_over_while_a_member_is_missing(bed):
    leading, leader = whole(bed), bed.leader()
    for signal_number in (signal.SIGKILL, signal.SIGTERM):
        for follower in [member for member in bed.etcd.members if member is not leading]:
            bed.etcd.end(signal.SIGKILL, [follower])
            bed.pair[leader].signal(signal_number)
            bed.ended(leader)
            serves(bed, 1 - leader)
            bed.start_one(leader)
            leader = 1 - leader
            leading = whole(bed)


def test_a_controller_leads_soon_after_etcds_leader_is_killed(bed):
    """etcd needs up to two seconds to elect another leader; a lease of three seconds may or may not
    survive that."""
    leading, leader = whole(bed), bed.leader()
    # Which lasts for several leases.
    with under_way(bed):
        bed.etcd.end(signal.SIGKILL, [leading])
        wait_for(lambda: answers(bed), "the two other members agree")
    if bed.pair[leader].process.poll() is not None:
        assert bed.ended(leader) == 1
        # As its unit does.
        bed.launch(leader)
    wait_for(lambda: 1 in (bed.leads(0), bed.leads(1)), "one of them leads")
    leader = bed.leader()
    serves(bed, leader)
    bed.pair[leader].signal(signal.SIGTERM)
    assert bed.ended(leader) == 0
    serves(bed, 1 - leader)
    bed.start_one(leader)
    whole(bed)


def test_one_member_of_three_lets_nobody_lead(bed):
    whole(bed)
    leader = bed.leader()
    with under_way(bed):
        bed.etcd.end(signal.SIGKILL, bed.etcd.members[1:])
        assert bed.ended(leader) == 1
        bed.launch(leader)
        wait_for(lambda: (bed.leads(0), bed.leads(1)) == (0, 0), "both stand by")
        whole(bed)
        wait_for(lambda: 1 in (bed.leads(0), bed.leads(1)), "one of them leads again")
        serves(bed, bed.leader())


def answers(bed):
    try:
        return bed.etcd.generation() > 0
    except subprocess.SubprocessError:
        return False
