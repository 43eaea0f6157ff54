"""Agents whose data interfaces have only IPv6 addresses: groups, trees and unicast over IPv6."""
import os
import signal

import pytest
from link_byte_checks import assert_carried
from conftest import PATIENCE, end_controller, run, succeed, wait_for
from test_collectives import OPERATIONS, bench
from test_jobs import ended, start

ALL = ("h1", "h2", "h3", "h4")


@pytest.fixture
def bed(make_bed):
    return make_bed("tree:2x2", ipv6=ALL)


def test_all_collectives_are_right_over_ipv6(bed):
    assert {node["ip"] for node in bed.cool_json("topology")["nodes"]} == {"fd00::%d" % n for n in range(1, 5)}
    report = bench(bed, OPERATIONS, "0,4,1000,65536,1M", 1, "--ranks", "6", "--reps", "2")
    assert {result["op"] for result in report["results"]} == set(OPERATIONS.split(","))


def test_an_ipv6_group_has_trees_and_agents_execute_short_calls(bed):
    job = start(bed, "cool", "run", "-n", "4", "--ranks-per-node", "1", "--", os.path.join(bed.bin_dir, "cool-misuse"), "barriers")
    assert "started" in job.stdout.readline()
    group, = bed.cool_json("groups")["groups"]
    addresses = [tree["address"] for tree in group["trees"]]
    assert addresses and all(address.startswith("ff18::434f:4f4c:c000:") for address in addresses), addresses
    job.send_signal(signal.SIGINT)
    ended(job)
    report = bench(bed, "bcast,barrier", "1000", 0, "--reps", "1")
    assert not any("quick" in result["plan"] for result in report["results"]), report["results"]


def test_a_broadcast_over_ipv6_crosses_every_link_once(make_bed):
    bed = make_bed("tree:2x2", host_mbit=20, uplink_mbit=20, ipv6=ALL)
    size = 4 << 20

    def judge(carried):
        assert sum(count > size for (_, host), count in carried.items() if host.startswith("h")) >= 3, carried
        overloaded = {link: round(count / size, 3) for link, count in carried.items() if count > 1.12 * size}
        return "links that carried more than 1.12 times the message: %s" % overloaded if overloaded else ""

    command = ["cool", "bench", "--ops", "bcast", "--bytes", str(size), "--reps", "1", "--warmup", "0", "--json"]
    assert_carried(bed, lambda: succeed(bed, *command), judge)


@pytest.mark.parametrize("loss,sizes", [(0.02, "0,1000,256K"), (0.1, "0,1000,64K")])
def test_all_collectives_are_right_over_ipv6_with_loss(make_bed, loss, sizes):
    bed = make_bed("tree:2x2", host_mbit=50, uplink_mbit=50, loss=loss, ipv6=ALL)
    bench(bed, OPERATIONS, sizes, 0, "--reps", "2")


def test_ipv6_collectives_survive_a_lost_link_and_a_restart(make_bed):
    bed = make_bed("leafspine:2x2x2", ipv6=ALL)
    bench(bed, OPERATIONS, "1000,256K", 2, "--reps", "1")
    link = bed.network.uplinks()[0]
    bed.network.cut(link)
    try:
        wait_for(lambda: len(bed.cool_json("topology")["links"]) == 3,
                 "the controller reports the link as lost")
        bench(bed, OPERATIONS, "1000,256K", 2, "--reps", "1")
    finally:
        bed.network.restore(link)
    end_controller(bed)
    bed.start_controller()
    bed.wait_until_joined()
    bench(bed, OPERATIONS, "1000,256K", 3, "--reps", "1")


def test_a_group_with_an_ipv4_only_node_is_refused_by_name(make_bed):
    bed = make_bed("tree:2x2", ipv6=("h1", "h2", "h3"))
    process = run(bed, "cool", "bench", "--ops", "bcast", "--bytes", "1000", "--reps", "1")
    assert process.returncode != 0
    output = process.stdout + process.stderr
    assert "h4 (%s)" % bed.network.net.get("h4").IP() in output and "(fd00::" in output and "--ipv6" in output, output
    # The nodes that share an IP version continue without h4.
    succeed(bed, "cool", "run", "-n", "3", "--hosts", "h1,h2,h3", "--", os.path.join(bed.bin_dir, "cool-faults"), "--steps", "13", "--seed", "0",
            "--bytes", "30000")


def test_agents_only_refuses_ipv6_agents_with_a_reason(make_bed):
    bed = make_bed("tree:2x2", ipv6=("h4",), without_agent=("h4",), controller_flags=("--agents-only",))
    bed.start_agent("h4")
    agent = bed.agents["h4"]
    assert agent.process.wait(PATIENCE) != 0
    with open(agent.log) as log:
        assert "--agents-only" in log.read()
    bed.daemons.remove(agent)


def test_ipv6_collectives_are_right_on_learning_switches(make_bed):
    bed = make_bed("tree:2x2", ipv6=ALL, controller_flags=("--unicast", "normal"))
    bench(bed, OPERATIONS, "1000,256K", 3, "--reps", "1")


def test_packets_of_outsiders_to_an_ipv6_tree_are_dropped(make_bed):
    bed = make_bed("tree:2x2", ipv6=ALL)
    host = bed.network.net.get("h4")
    script = ("import socket\n"
              "u=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); u.bind(('fd00::4',0))\n"
              "u.setsockopt(socket.IPPROTO_IPV6,socket.IPV6_MULTICAST_IF,socket.if_nametoindex('h4-eth0'))\n"
              "[u.sendto(b'x',('ff18::434f:4f4c:c000:77',7420)) for _ in range(5)]\n")
    bed.network.run_in(host, "/usr/bin/python3", "-c", script)
    wait_for(lambda: sum(found["packets"] for found in bed.cool_json("groups")["outsiders"]) >= 5,
             "its sent packets are counted")
