"""The management network fails, and the controller stops and restarts: flows and jobs continue,
unless a node is really lost."""
import contextlib
import json
import re
import signal
import subprocess
import time

import pytest
from conftest import PATIENCE, end_controller, log_of, run, succeed, wait_for
from test_jobs import ended, lines, running, start
from test_recovery import multicast

# The program of each rank, which ends when the file exists.
UNTIL = "echo up; until test -e %s; do sleep 0.1; done; echo down"
# Long enough for both sides to close the connection: the controller after 5 s, an agent after 15 s.
BLINK = 20
# Longer than the controller needs to detect that it is isolated: up to 15 s, after which silent
# switches count as disconnected.
GRACE = 20


def ofctl(bed, what, switch):
    """Returns the output of ovs-ofctl for a switch; retries, because a busy switch may close the
    connection."""
    outputs = []

    def succeeds():
        process = run(bed, "ovs-ofctl", "-O", "OpenFlow13", "--no-names", what, switch.name)
        outputs.append(process.stdout)
        return process.returncode == 0

    wait_for(succeeds, "%s of %s" % (what, switch.name))
    return outputs[-1]


def entries(bed):
    """Returns COOL's flows and groups in the switches, and the age of the youngest flow in
    seconds."""
    entries_by_switch, youngest = {}, float("inf")
    for switch in bed.network.net.switches:
        flows = [line for line in ofctl(bed, "dump-flows", switch).splitlines() if "cookie=0x434f4f4c" in line]
        youngest = min([youngest] + [float(re.search(r"duration=([\d.]+)s", line).group(1)) for line in flows])
        flows = [re.sub(r"(duration|n_packets|n_bytes)=[^,]*, ?", "", line) for line in flows]
        groups = [line for line in ofctl(bed, "dump-groups", switch).splitlines() if "group_id" in line]
        entries_by_switch[switch.name] = sorted(line.strip() for line in flows + groups)
    return entries_by_switch, youngest


def await_settled(bed):
    """Waits until the switches' entries do not change any more; returns them."""
    previous = [None]

    def is_unchanged():
        before, previous[0] = previous[0], entries(bed)[0]
        time.sleep(0.5)
        return before == previous[0]

    wait_for(is_unchanged, "switches have the expected entries")
    return previous[0]


def assert_untouched(bed, before, since):
    """Asserts that every entry is unchanged and was never replaced."""
    age = time.monotonic() - since
    entries_by_switch, youngest = entries(bed)
    assert entries_by_switch == before
    assert youngest >= age, "an entry was installed again"


def start_job_on_all_nodes(bed, mark):
    """Starts a job with a rank on every node; returns it with the file that ends it."""
    stop = "%s/%s" % (bed.directory, mark)
    job = start(bed, "cool", "run", "--", "sh", "-c", UNTIL % stop)
    lines(job, len(bed.network.net.hosts))
    return job, stop


def finish(bed, job, stop):
    with open(stop, "w"):
        pass
    assert job.poll() is None, ended(job)
    status, out, errors = ended(job)
    assert status == 0, out + errors
    assert out.count("down") == len(bed.network.net.hosts), out
    return errors


@contextlib.contextmanager
def management_down(bed, hosts):
    """Takes the management links of hosts down."""
    for host in hosts:
        bed.network.cut_management(host)
    try:
        yield
    finally:
        for host in hosts:
            bed.network.restore_management(host)


def away(bed):
    return {n["name"] for n in bed.cool_json("topology")["nodes"] if n["away_ms"] is not None}


def test_a_node_cut_off_from_its_controller_keeps_all_it_has(make_bed):
    bed = make_bed("tree:2x2", lldp_ms=400)
    wait_for(bed.whole, "the network is complete")
    job, stop = start_job_on_all_nodes(bed, "blink")
    before, since = await_settled(bed), time.monotonic()
    with management_down(bed, ["h1"]):
        wait_for(lambda: away(bed) == {"h1"}, "the agent of h1 is away")
        assert "its agent away for" in succeed(bed, "cool", "topology")
        result = subprocess.run(["cool", "doctor"], env=bed.environment(), capture_output=True, text=True, timeout=PATIENCE)
        assert "node h1: its agent has been disconnected" in result.stdout, result.stdout
        while time.monotonic() < since + BLINK:
            assert_untouched(bed, before, since)
            time.sleep(1)
    wait_for(lambda: not away(bed), "the agent of h1 is back")
    assert_untouched(bed, before, since)
    assert "agent reconnected" in log_of(bed, "controller")
    finish(bed, job, stop)
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "100K", "--reps", "1")


def test_a_network_without_controller_outlasts_the_grace_time(make_bed):
    bed = make_bed("tree:2x2", lldp_ms=400, controller_flags=("--agent-grace", str(GRACE)))
    wait_for(bed.whole, "the network is complete")
    job, stop = start_job_on_all_nodes(bed, "cut")
    before, since = await_settled(bed), time.monotonic()
    rule = ["-p", "tcp", "--dport", "6653", "-j", "DROP"]
    subprocess.check_call(["iptables", "-I", "INPUT", *rule])
    try:
        with management_down(bed, [h.name for h in bed.network.net.hosts]):
            wait_for(lambda: len(away(bed)) == 4, "all agents are away")
            wait_for(lambda: sum("is not connected" in w for w in bed.cool_json("topology")["warnings"]) == 3, "no switch is connected")
            # All were disconnected before, so each grace time would have ended by then.
            end = time.monotonic() + 1.5 * GRACE
            while time.monotonic() < end:
                assert_untouched(bed, before, since)
                time.sleep(1)
            assert len(running(bed)) == 1, log_of(bed, "controller")
    finally:
        subprocess.check_call(["iptables", "-D", "INPUT", *rule])
    wait_for(bed.whole, "the network is complete again")
    assert await_settled(bed) == before
    assert_untouched(bed, before, since)
    finish(bed, job, stop)


@pytest.mark.parametrize("how", ["killed", "unplugged"])
def test_a_lost_node_is_given_up_before_the_grace_time_ends(make_bed, how):
    bed = make_bed("tree:2x2", lldp_ms=400, controller_flags=("--agent-grace", "86400"))
    wait_for(bed.whole, "the network is complete")
    job, stop = start_job_on_all_nodes(bed, how)
    if how == "killed":
        bed.agents["h1"].signal(signal.SIGKILL)
        status, _, errors = ended(job)
    else:
        link = next(l for l in bed.network.net.links if "h1" in (l.intf1.node.name, l.intf2.node.name))
        at_switch = next(i for i in (link.intf1, link.intf2) if i.node.name != "h1")
        with management_down(bed, ["h1"]):
            subprocess.check_call(["ip", "link", "set", at_switch.name, "down"])
            status, _, errors = ended(job)
            subprocess.check_call(["ip", "link", "set", at_switch.name, "up"])
    assert status == 1 and "node h1 was lost: its agent disconnected and no switch receives its LLDP" in errors, errors
    bed.restart_agent("h1")
    wait_for(bed.whole, "the network is complete again")


def test_an_agent_that_is_stopped_in_order_leaves_at_once(make_bed):
    bed = make_bed("tree:2x2", lldp_ms=400, controller_flags=("--agent-grace", "86400"))
    wait_for(bed.whole, "the network is complete")
    job, _ = start_job_on_all_nodes(bed, "left")
    bed.agents["h1"].signal(signal.SIGTERM)
    status, _, errors = ended(job)
    assert status == 1 and "node h1 was lost: its agent has left" in errors, errors
    bed.restart_agent("h1")
    wait_for(bed.whole, "the network is complete again")


def restarted_in_order(bed):
    """Restarts the controller as systemctl restart does."""
    end_controller(bed)
    bed.start_controller()


def test_jobs_and_collectives_survive_an_orderly_restart(make_bed):
    bed = make_bed("leafspine:2x2x4", host_mbit=12, uplink_mbit=12, lldp_ms=400)
    wait_for(bed.whole, "the network is complete")
    job, stop = start_job_on_all_nodes(bed, "restart")
    before = multicast(bed)
    bench = start(bed, "cool", "bench", "--ops", "bcast", "--bytes", "16M", "--reps", "1", "--warmup", "0", "--json")
    # The broadcast takes more than ten seconds, so most of it has not arrived yet.
    wait_for(lambda: multicast(bed) - before > 8 * (2 << 20), "the broadcast is under way")
    restarted_in_order(bed)
    assert bench.poll() is None, "the broadcast runs on"
    status, out, errors = ended(bench)
    assert status == 0 and json.loads(out)["results"][0]["bytes"] == 16 << 20, out + errors
    assert "the controller is shutting down; job" in errors, errors
    restarted_in_order(bed)
    assert "continues" in finish(bed, job, stop)
    assert running(bed) == []
    wait_for(bed.whole, "the network is complete")


def test_a_drained_controller_starts_no_job(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    wait_for(bed.whole, "the network is complete")
    one, other = (start(bed, "cool", "run", "-n", "2", "--", "sh", "-c", "echo up; sleep 1000") for _ in range(2))
    lines(one, 2), lines(other, 2)
    drain = start(bed, "cool", "drain")
    wait_for(lambda: "drained" in subprocess.run(["cool", "run", "-n", "1", "--", "true"], env=bed.environment(), capture_output=True,
                                                 text=True, timeout=PATIENCE).stderr, "no job is started")
    succeed(bed, "cool", "cancel", "--all")
    assert [ended(job)[0] for job in (one, other)] == [143, 143]
    assert ended(drain)[0] == 0
    succeed(bed, "cool", "drain", "--end")
    later_job = start(bed, "cool", "run", "-n", "1", "--", "sh", "-c", "echo up; sleep 1000")
    lines(later_job, 1)
    succeed(bed, "cool", "drain", "--cancel-after", "1s")
    assert ended(later_job)[0] == 143
    succeed(bed, "cool", "drain", "--end")
    succeed(bed, "cool", "drain", "h1")
    assert "h1 (drained)" in subprocess.run(["cool", "run", "--hosts", "h1", "--", "true"], env=bed.environment(), capture_output=True,
                                            text=True, timeout=PATIENCE).stderr
    succeed(bed, "cool", "run", "--hosts", "h2", "--", "true")
    succeed(bed, "cool", "drain", "--end", "h1")
    succeed(bed, "cool", "run", "--hosts", "h1", "--", "true")
