"""Every collective delivers the right bytes despite losses. `cool bench` checks each result on
every rank."""
import json
import os
import re
import signal
import subprocess

import pytest
from link_byte_checks import assert_carried
from conftest import PATIENCE, run, succeed, wait_for
from test_management_failures import ofctl
from test_jobs import ended, start

OPERATIONS = "bcast,reduce,allreduce,gather,allgather,scatter,reduce_scatter,alltoall,scan,exscan,barrier"
UNEQUAL = "gatherv,allgatherv,scatterv,reduce_scatterv,alltoallv"


def bench(bed, operations, sizes, root, *options):
    return json.loads(succeed(bed, "cool", "bench", "--ops", operations, "--bytes", sizes, "--root", str(root), "--json", *options))


@pytest.mark.parametrize("root, sizes", [(0, "1000,64K"), (11, "0,4,1000,64K,1M")])
def test_all_collectives_are_right_on_the_4x4_tree(make_bed, root, sizes):
    bench(make_bed("tree:4x4"), OPERATIONS, sizes, root, "--reps", "1")


def test_all_collectives_are_right_on_uneven_racks(make_bed):
    """Seven ranks run on six nodes in two racks; one node has two."""
    bench(make_bed("tree:2x3"), OPERATIONS, "0,20,100K", 6, "--ranks", "7", "--reps", "2")


def test_all_collectives_are_right_interleaved_over_a_leafspine(make_bed):
    bench(make_bed("leafspine:2x2x3"), OPERATIONS, "12,300K", 4, "--placement", "interleaved", "--reps", "2")


@pytest.mark.parametrize("loss,sizes,root", [(0.01, "0,1000,1M", 5), (0.2, "0,1000,64K", 5), (0.05, "0,1000,256K", 0)])
def test_all_collectives_are_right_with_loss(make_bed, loss, sizes, root):
    bench(make_bed("tree:2x3", host_mbit=50, uplink_mbit=50, loss=loss), OPERATIONS, sizes, root, "--reps", "2")


def test_a_lossy_broadcast_is_repaired_by_the_chain(make_bed):
    report = bench(make_bed("tree:2x3", host_mbit=50, uplink_mbit=50, loss=0.05), "bcast", "4M", 0, "--reps", "1")
    assert report["results"][0]["chunks_repaired"] > 0


def test_all_collectives_are_right_where_agents_drop_datagrams(make_bed):
    """Agents drop datagrams by a seed, without a packet filter, so a failure can be reproduced."""
    bed = make_bed("tree:2x3", host_mbit=50, uplink_mbit=50, lose=(0.1, 40))
    report = bench(bed, OPERATIONS, "0,1000,256K", 1, "--reps", "2")
    repaired = {r["op"]: r["chunks_repaired"] for r in report["results"] if r["bytes"] == 256 * 1024}
    assert repaired["bcast"] > 0, repaired


def test_one_multicast_repairs_the_losses_of_a_whole_rack(make_bed):
    """All hosts of the rack without the root lose the same chunks of the tree, every 32nd. The
    first in the chain receives each of them once and multicasts it to the other three."""
    bed = make_bed("tree:2x4", host_mbit=20, uplink_mbit=20)
    racks = {n["name"]: n["rack"] for n in bed.cool_json("topology")["nodes"]}
    # The root is the first rank, which is on the first node.
    rack = [bed.network.net.get(name) for name in racks if racks[name] != racks["h1"]]
    # These rules match data packets (with a tag, of type 1) by the path in their headers: 0 is the
    # tree of the group, 3 that of the rack.
    drop_rule, repair_rule = "28&0xFFFF0000=0xC2010000&&68&0x1F=7&&72&0xFF00=0", "28&0xFFFF0000=0xC2010000&&72&0xFF00=0x300"
    for host in rack:
        for rule, target in ((drop_rule, "DROP"), (repair_rule, "ACCEPT")):
            bed.network.run_in(host, "iptables", "-A", "INPUT", "-p", "udp", "-m", "u32", "--u32", rule, "-j", target)

    def counts():
        """Returns, for each host of the rack, how many packets it has dropped, and how many repairs
        it has received."""
        outputs = [succeed(bed, "mnexec", "-a", str(host.pid), "iptables", "-L", "INPUT", "-v", "-n", "-x") for host in rack]
        return [[int(line.split()[0]) for line in output.splitlines()[2:]] for output in outputs]

    # A group whose tree is not installed yet broadcasts along the chain, and nothing is dropped.
    def drops_chunks_of_the_tree():
        bench(bed, "bcast", "2M", 0, "--reps", "1", "--warmup", "0", "--plan", "bcast=cool-b-r")
        return all(dropped > 30 for dropped, _ in counts())

    wait_for(drops_chunks_of_the_tree, "a broadcast uses the tree")
    packets = counts()
    # On a busy machine, switches lose more packets, which are repaired in the same way. A node that
    # requests repairs late gets some of them along the chain.
    chunks = min(dropped for dropped, _ in packets)
    first, *others = sorted(repairs for _, repairs in packets)
    assert chunks > 30 and first == 0 and min(others) >= 0.5 * chunks, packets


def test_two_jobs_at_once_do_not_mix(make_bed):
    """Two jobs, which share nodes, switches and links, check every byte."""
    bed = make_bed("tree:4x4", host_mbit=20, uplink_mbit=20)
    command = ["cool", "bench", "--ops", OPERATIONS, "--bytes", "1000,100K", "--reps", "2", "--json"]
    jobs = [subprocess.Popen(command, env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for job in jobs:
        out, err = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, out + err


def test_a_broadcast_crosses_every_link_once(make_bed):
    """The rate is so low that the emulated switches lose no packets, even on a busy machine."""
    bed = make_bed("tree:4x4", host_mbit=20, uplink_mbit=20)
    size = 8 << 20

    def judge(carried):
        received = [count for (_, host), count in carried.items() if host.startswith("h")]
        assert sum(count > size for count in received) >= 15, "every receiver's link carries the message: %s" % carried
        # With headers, each link carries about 1.06 times the message. Agents that wait for a CPU request some packets again.
        overloaded = {link: round(count / size, 3) for link, count in carried.items() if count > 1.25 * size}
        return "links that carried more than 1.25 times the message: %s" % overloaded if overloaded else ""

    command = ["cool", "bench", "--ops", "bcast", "--bytes", str(size), "--reps", "1", "--warmup", "0", "--json"]
    assert_carried(bed, lambda: succeed(bed, *command), judge)


# The plans to force, by operation. Some have a pattern per level, and some ignore the network.
FORCED = {
    "bcast": ("cool-b-r", "flat:scatter-allgather", "flat:binomial"),
    "reduce": ("rack:binomial,center:chain", "flat:recursive-halving", "flat:binomial"),
    "allreduce": ("cool-b-r", "flat:ring", "flat:recursive-doubling"),
    "gather": ("rack:binomial,center:binomial", "flat:linear", "flat:binomial"),
    "allgather": ("rack:binomial+parallel,center:ring+parallel", "flat:bruck", "flat:ring"),
    "scatter": ("rack:binomial,center:binomial", "flat:minimum-spanning-tree", "flat:linear"),
    "reduce_scatter": ("sharded", "flat:recursive-halving", "flat:ring"),
    "alltoall": ("cool-p-p", "flat:bruck", "flat:linear"),
    "scan": ("cool-p-p", "flat:recursive-doubling", "flat:chain"),
    "exscan": ("rack:chain,center:chain", "flat:chain", "flat:recursive-doubling"),
    "barrier": ("cool-p-p", "flat:recursive-doubling", "flat:binomial"),
}


@pytest.mark.parametrize("switches, topology, loss", [("bridge", "tree:3+1+2", 0), ("ovs", "tree:2x3", 0.02), ("ovs", "tree:3+1+2", 0.02)])
def test_every_operation_is_right_under_three_plans(make_bed, switches, topology, loss):
    """Each operation runs by the plan that COOL picks, and by two forced plans, preferably ones
    that it picks at no size."""
    bed = make_bed(topology, switches=switches, host_mbit=50, uplink_mbit=50, loss=loss)

    def plans(forced):
        options = [word for op, plan in forced.items() for word in ("--plan", "%s=%s" % (op, plan))]
        report = bench(bed, OPERATIONS + "," + UNEQUAL, "0,1000,200K", 4, "--reps", "1", *options)
        used = {}
        for result in report["results"]:
            # The segment size and the parallel part within a node are not compared.
            plan = result["plan"].split("/")[0].removeprefix("node:parallel,")
            used.setdefault(result["op"].removesuffix("v"), set()).add(plan)
        return used

    picked = plans({})
    others = {op: sorted(FORCED[op], key=lambda plan: plan in picked[op])[:2] for op in FORCED}
    for choice in range(2):
        forced = {op: others[op][choice] for op in others}
        for op, used in plans(forced).items():
            assert used == {forced[op]}, "%s used %s instead of %s" % (op, used, forced[op])


@pytest.mark.parametrize("switches, loss", [("ovs", 0.02), ("bridge", 0)])
def test_floating_point_sums_have_the_same_bits_over_20_runs(make_bed, switches, loss):
    """Each of two jobs makes twenty calls of each kind, and each time another rank calls first."""
    bed = make_bed("tree:3+1+2", switches=switches, host_mbit=50, uplink_mbit=50, loss=loss)
    # Both jobs must pick plans by the same costs, so all measurements must be complete.
    bed.wait_until_measured(PATIENCE)
    command = ["cool", "run", "-n", "7", "--", os.path.join(bed.bin_dir, "cool-bits"), "20", "3000", "default", "cool-b-r", "flat:chain",
               "flat:recursive-halving", "sharded"]
    first, second = [sorted(succeed(bed, *command).splitlines()) for _ in range(2)]
    assert first == second
    assert len(first) > 7 * 12, "each rank reports several plans for each operation: %s" % first


def test_an_invalid_forced_plan_is_named_with_the_valid_ones(make_bed):
    bed = make_bed("tree:2x2")
    process = run(bed, "cool", "run", "-n", "2", "--env", "COOL_PLAN=scan=multicast", "--", os.path.join(bed.bin_dir, "cool-bits"), "1", "8", "default")
    assert process.returncode != 0
    assert "COOL_PLAN" in process.stderr and "multicast cannot run scan" in process.stderr and "flat:chain" in process.stderr, process.stderr
    environment = "COOL_PLAN=reduce=rack:binomial,center:chain,allreduce=flat:ring"
    out = succeed(bed, "cool", "run", "-n", "2", "--env", environment, "--", os.path.join(bed.bin_dir, "cool-bits"), "1", "8")
    assert out == "", "the program makes no call without a plan"


def test_a_communicator_and_its_duplicates_share_their_trees(make_bed):
    bed = make_bed("tree:2x2")
    group_counts = []
    for case, groups in (("barriers", 1), ("duplicates", 21)):
        job = start(bed, "cool", "run", "-n", "4", "--ranks-per-node", "1", "--", os.path.join(bed.bin_dir, "cool-misuse"), case)
        assert "started" in job.stdout.readline()
        reported_groups = bed.cool_json("groups")["groups"]
        addresses = [tuple(sorted(tree["address"] for tree in group["trees"])) for group in reported_groups]
        assert len(reported_groups) == groups and len(set(addresses)) == 1 and addresses[0], addresses
        group_counts.append([len(re.findall("group_id", ofctl(bed, "dump-groups", switch))) for switch in bed.network.net.switches])
        job.send_signal(signal.SIGINT)
        ended(job)
        wait_for(lambda: bed.cool_json("groups")["groups"] == [], "its groups are released")
    assert group_counts[0] == group_counts[1]
