"""Several controllers for the same switches, and controllers that may use only a part of their
tables."""
import json
import os
import re
import signal
import subprocess

from conftest import PATIENCE, end_controller, log_of, succeed, wait_for

LATER_OPENFLOW, LATER_GRPC = 6654, 7401


def connect_to_both(bed):
    """Configures both controllers at all switches."""
    for switch in bed.network.net.switches:
        subprocess.check_call(["ovs-vsctl", "set-controller", switch.name, bed.network.controller, "ssl:127.0.0.1:%d" % LATER_OPENFLOW])


def masters():
    """Returns the ports of the controllers that are masters of switches."""
    output = subprocess.check_output(["ovs-vsctl", "--format=csv", "--no-headings", "--columns=target,role", "list", "controller"], text=True)
    return {int(line.split(",")[0].strip('"').rsplit(":", 1)[1]) for line in output.splitlines() if line.endswith("master")}


def links_of_later(bed):
    process = subprocess.run(["cool", "--controller", "https://127.0.0.1:%d" % LATER_GRPC, "topology", "--json"], env=bed.environment(),
                          capture_output=True, text=True, timeout=PATIENCE)
    return len(json.loads(process.stdout)["links"]) if process.returncode == 0 else 0


def test_the_later_of_two_controllers_is_master_of_the_switches(make_bed):
    bed = make_bed("leafspine:2x2x4", lldp_ms=400)
    wait_for(bed.whole, "the network is complete")
    later = bed.daemon("later", [os.path.join(bed.bin_dir, "cool-controller"), "--openflow", "127.0.0.1:%d" % LATER_OPENFLOW,
                                 "--grpc", "127.0.0.1:%d" % LATER_GRPC, *bed.security()])
    wait_for(lambda: "listening" in log_of(bed, "later"), "the later controller listens")
    connect_to_both(bed)
    wait_for(lambda: links_of_later(bed) == len(bed.network.uplinks()), "the later controller has the network")
    wait_for(lambda: "turned away: a controller that started later runs it" in log_of(bed, "controller"), "the earlier one is refused")
    # Open vSwitch shows roles in a status that it updates every few seconds.
    wait_for(lambda: masters() == {LATER_OPENFLOW}, "the later one is master of all")
    assert "turned away" not in log_of(bed, "later")
    # After a restart, the first controller is the later one. It then starts in a network with rules
    # of the other controller.
    end_controller(bed)
    bed.start_controller()
    wait_for(bed.whole, "the first one has the network again")
    wait_for(lambda: "turned away: a controller that started later runs it" in log_of(bed, "later"), "the other is refused")
    later.signal(signal.SIGTERM)
    later.process.wait(PATIENCE)
    bed.daemons.remove(later)
    for switch in bed.network.net.switches:
        bed.network.connect(switch.name)
    wait_for(bed.whole, "the network is complete")
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "100K", "--reps", "1")


def test_racks_keep_their_numbers_over_an_orderly_restart(make_bed):
    """ARP entries of hosts remain valid, because they contain the number of the rack."""
    bed = make_bed("tree:4x1")
    racks = lambda: {n["name"]: n["rack"] for n in bed.cool_json("topology")["nodes"]}
    before = racks()
    succeed(bed, "cool", "bench", "--ops", "allreduce", "--bytes", "1000", "--reps", "1")
    for _ in range(2):
        end_controller(bed)
        bed.start_controller()
        bed.wait_until_joined()
        assert racks() == before
        succeed(bed, "cool", "bench", "--ops", "allreduce", "--bytes", "1000", "--reps", "1")


def test_groups_run_by_chains_where_a_named_switch_is_full(make_bed):
    bed = make_bed("tree:2x2", controller_flags=("--max-groups-per-switch", "0"))
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "100K", "--reps", "1")
    assert "is full, 0 of its 0 group entries are in use" in log_of(bed, "controller")
    assert "group_id" not in subprocess.check_output(["ovs-ofctl", "-O", "OpenFlow13", "dump-groups", "s1"], text=True)


def ofctl(*arguments):
    return subprocess.check_output(["ovs-ofctl", "-O", "OpenFlow13", *arguments], text=True)


def group_numbers(switch):
    return {int(number) for number in re.findall(r"group_id=(\d+)", ofctl("dump-groups", switch))}


def restart_controller(bed, *flags, between=lambda: None):
    """Ends the controller in an orderly way, calls a function while there is none, and restarts it
    with these flags."""
    end_controller(bed)
    between()
    bed.controller_flags = flags
    bed.start_controller()


def test_the_operators_table_and_group_range_are_used(make_bed):
    bed = make_bed("tree:2x2", lldp_ms=300)
    switches = [switch.name for switch in bed.network.net.switches]

    def lead_to_table_5():
        for switch in switches:
            ofctl("del-flows", switch)
            ofctl("del-groups", switch)
            ofctl("add-flow", switch, "table=0,priority=0,actions=goto_table:5")
            ofctl("add-group", switch, "group_id=7,type=all,bucket=output:1")

    restart_controller(bed, "--flow-table", "5", "--first-group", "0x1000", between=lead_to_table_5)
    bed.wait_until_joined()
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "100K", "--reps", "1")
    bench = subprocess.Popen(["cool", "bench", "--ops", "bcast", "--bytes", "1M", "--reps", "1000000"], env=bed.environment(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: all(group_numbers(switch) - {7} for switch in switches), "every switch has a part of a tree", process=bench)
    for switch in switches:
        assert all(0x1000 <= number < 0x1000 + (1 << 18) for number in group_numbers(switch) - {7})
        assert ofctl("dump-flows", switch, "table=0").count("cookie=") == 1
        assert ofctl("dump-flows", switch, "cookie=0x434f4f4c00000000/0xffffffff00000000").count("table=5,") > 5
    bench.send_signal(signal.SIGINT)
    bench.wait(PATIENCE)
    # A later controller finds the entries of this one in that table, and does not change those of
    # others.
    restart_controller(bed, "--flow-table", "5", "--first-group", "0x1000")
    bed.wait_until_joined()
    succeed(bed, "cool", "bench", "--ops", "allreduce", "--bytes", "100K", "--reps", "1")
    assert all(7 in group_numbers(switch) for switch in switches)


def test_unicast_beyond_a_switchs_flow_limit_is_logged(make_bed):
    bed = make_bed("tree:2x1", lldp_ms=300)
    # Entries of an earlier controller remain in the switches, even if a later one may add only few.
    clear = lambda: [ofctl("del-flows", switch.name) for switch in bed.network.net.switches]
    restart_controller(bed, "--max-flows-per-switch", "7", between=clear)
    wait_for(lambda: "it may have 7 flows" in log_of(bed, "controller"),
             "the controller reports the entries that did not fit")
    for switch in bed.network.net.switches:
        assert ofctl("dump-flows", switch.name).count("cookie=") <= 7
    # Once the limit is raised, all entries are installed.
    restart_controller(bed)
    bed.wait_until_joined()
    succeed(bed, "cool", "bench", "--ops", "allreduce", "--bytes", "100K", "--reps", "1")
