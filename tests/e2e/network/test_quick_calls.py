"""Ranks on different nodes execute short calls by datagrams if all can; otherwise their agents
execute them."""
import subprocess
import sys

from test_collectives import OPERATIONS, bench
from test_doctor import doctor_reports

# Ports of the sockets of ranks and of their agents (docs/design/architecture.md).
PORTS = range(20_000, 32_000)

# Binds every second of these ports until its input ends.
TAKE = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
sockets = []
for port in range(%d, %d, 2):
    sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sockets[-1].bind(("", port))
print("taken", flush=True)
sys.stdin.read()
""" % (PORTS.start, PORTS.stop)


def plans(bed, operations, sizes, *options):
    report = bench(bed, operations, sizes, 1, "--reps", "3", *options)
    return {(r["op"], r["bytes"]): r["plan"] for r in report["results"]}


def test_short_calls_are_quick_and_long_ones_go_by_agents(make_bed):
    plan_of = plans(make_bed("tree:2x3", host_mbit=50, uplink_mbit=50), OPERATIONS, "8,200,64K")
    for operation in OPERATIONS.split(","):
        sizes = [0] if operation == "barrier" else [8, 200]
        assert all(plan_of[operation, size].startswith("quick ") for size in sizes), plan_of
    assert not plan_of["bcast", 64 * 1024].startswith("quick"), plan_of


def test_the_leader_of_several_ranks_on_a_node_goes_out_for_them(make_bed):
    """Of seven ranks on six nodes, one node has two, so parts differ and agents gather. Of twelve
    ranks, each node has two."""
    bed = make_bed("tree:2x3")
    plan_of = plans(bed, "bcast,reduce,allreduce,gather,barrier", "8", "--ranks", "7")
    quick = {operation for (operation, _), plan in plan_of.items() if plan.startswith("quick ")}
    assert quick == {"bcast", "reduce", "allreduce", "barrier"}, plan_of
    plan_of = plans(bed, OPERATIONS, "8,200", "--ranks", "12")
    agents = {"scan", "exscan", "reduce_scatter", "alltoall"}
    assert {o for (o, size), plan in plan_of.items() if not plan.startswith("quick ")} == agents & {o for o, _ in plan_of}, plan_of


def test_a_node_whose_ports_are_taken_keeps_all_from_quick_calls(make_bed):
    bed = make_bed("tree:2x3")
    process = bed.network.net.get("h2").popen(
        [sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "taken\n"
        plan_of = plans(bed, "bcast,allreduce,barrier", "8")
        assert not any(plan.startswith("quick") for plan in plan_of.values()), plan_of
    finally:
        process.stdin.close()
        process.wait()
    assert plans(bed, "bcast", "8")["bcast", 8] == "quick multicast"


def test_a_reduced_mtu_keeps_short_calls_working(make_bed):
    """Datagrams of full size then do not arrive, so agents execute all calls. Calls whose datagrams
    would pass are executed by them, too."""
    bed = make_bed("tree:2x2")
    host = bed.network.net.get("h3")
    assert plans(bed, "reduce", "8")["reduce", 8].startswith("quick ")
    bed.network.run_in(host, "ip", "link", "set", host.defaultIntf().name, "mtu", "1280")
    plan_of = plans(bed, "reduce", "8")
    assert not any(plan.startswith("quick") for plan in plan_of.values()), plan_of
    assert doctor_reports(bed, "node h3", "1280", "1500", "restart the agent")
    assert doctor_reports(bed, "node h3", "datagrams of 4156 bytes", "do not arrive", "UDP 20000 to 31999")
    bed.network.run_in(host, "ip", "link", "set", host.defaultIntf().name, "mtu", "1500")
    assert plans(bed, "reduce", "8")["reduce", 8].startswith("quick ")
    assert not doctor_reports(bed, "do not arrive")


def test_longer_calls_are_quick_where_links_are_fast(make_bed):
    """Their messages have several parts. Nothing is lost on a bridge without shaping, so no message
    is requested again. In the second run, each node has two ranks."""
    bed = make_bed("tree:1x4", host_mbit=0, uplink_mbit=0, switches="bridge")
    bed.wait_until_measured()
    for ranks, quick, slow in (("4", "5000,16M", "17M"), ("8", "5000,128K", "1M")):
        for operation in ("bcast", "reduce", "allreduce", "allgather", "gather", "scatter"):
            plan_of = plans(bed, operation, quick, "--ranks", ranks)
            assert all(plan.startswith("quick ") for plan in plan_of.values()), plan_of
        plan_of = plans(bed, "bcast,allreduce", slow, "--ranks", ranks)
        assert not any(plan.startswith("quick ") for plan in plan_of.values()), plan_of


def test_long_calls_recover_from_lost_parts(make_bed):
    bed = make_bed("tree:1x4", host_mbit=0, uplink_mbit=0, switches="bridge", controller_flags=("--host-mbit", "1000"), loss=0.02)
    report = bench(bed, "bcast,allreduce", "64K", 2, "--reps", "20")
    assert all(r["plan"].startswith("quick ") for r in report["results"]), report


def test_lost_datagrams_of_many_short_calls_are_requested_again(make_bed):
    """Each link drops a fifth of all packets, so nearly each of hundreds of calls loses some
    packets. All results are verified."""
    bed = make_bed("tree:2x3", host_mbit=50, uplink_mbit=50, loss=0.2)
    report = bench(bed, "bcast,allreduce", "1000", 2, "--reps", "100")
    assert all(r["plan"].startswith("quick ") for r in report["results"]), report
