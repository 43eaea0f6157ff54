"""A controller with --observe changes nothing in switches that other programs have configured, and
reports what it finds and would install."""
import subprocess

import pytest
from conftest import PEER_TIMEOUT_MS, end_controller, log_of, succeed, wait_for
from test_forwarding import vsctl
from test_hosts import reach, without_loss

import testbed

# Cookies of COOL's flows begin with this.
COOL = "cookie=0x434f4f4c"
# What another controller has installed: forwarding, a group, and in s1 and s2 LLDP to controllers.
FORWARDING = "cookie=0x7,priority=10,actions=NORMAL"
TO_NOWHERE = "cookie=0x7,priority=30,dl_type=0x0800,nw_dst=203.0.113.9,actions=group:7"
LLDP = "cookie=0x7,priority=40,dl_type=0x88cc,actions=CONTROLLER:65535"
GROUP = "group_id=7,type=all,bucket=output:1,bucket=output:2"
FOREIGN = {"s1": [FORWARDING, TO_NOWHERE, LLDP], "s2": [FORWARDING, TO_NOWHERE, LLDP], "s3": [FORWARDING, TO_NOWHERE]}


def ofctl(command, switch, *arguments):
    return subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", command, switch, *arguments], capture_output=True, text=True, check=True).stdout


def install_foreign_entries(switch):
    ofctl("add-group", switch, GROUP)
    for flow in FOREIGN[switch]:
        ofctl("add-flow", switch, flow)


def entries(switch):
    """Returns all entries and settings of a switch, without counters and numbers of transactions."""
    lines = []
    for command in (("dump-flows", switch, "--no-stats"), ("dump-groups", switch), ("dump-meters", switch), ("dump-ports-desc", switch)):
        lines += [line for line in ofctl(*command).splitlines() if "reply" not in line]
    return lines


class ObservedBed(testbed.Testbed):
    """A testbed whose switches hold entries of another program before the controller observes
    them."""

    def start_programs(self):
        for switch in FOREIGN:
            install_foreign_entries(switch)
        self.before = {switch: entries(switch) for switch in FOREIGN}
        super().start_programs()

    def all_of_it(self):
        # s3 hands in no LLDP, so its link is not found.
        return 4, 1


@pytest.fixture(scope="module")
def bed():
    with ObservedBed("tree:2x2", controller_flags=("--observe",), peer_timeout_ms=PEER_TIMEOUT_MS) as bed:
        yield bed


def observation(bed):
    return (bed.cool_json("topology") or {}).get("observation") or {"switches": []}


def observed(bed):
    """Returns the observed switches, by name."""
    return {switch["name"]: switch for switch in observation(bed)["switches"]}


def ports_towards(bed, switch):
    """Returns the port of a switch towards each of its neighbors, by name."""
    ends = [(l["a"], l["a_port"], l["b"]) for l in bed.description["links"]] + [(l["b"], l.get("b_port"), l["a"]) for l in bed.description["links"]]
    return {peer: port for name, port, peer in ends if name == switch}


def peers(switch):
    """Returns what is connected to each port of an observed switch."""
    return {port["number"]: (port["peer_kind"], port["peer"]) for port in switch["ports"]}


def at(bed, switch, other):
    """Returns the port of a switch towards another one, as JSON shows it."""
    dpid = {s["name"]: s["dpid"] for s in bed.description["switches"]}
    return {"datapath_id": dpid[switch], "port": ports_towards(bed, switch)[other]}


def test_an_observer_changes_nothing_and_hosts_keep_working(bed):
    reach(bed, ("h1", "h4"), ("h4", "h1"))
    with without_loss(bed, "h1", "h4"):
        succeed(bed, "cool", "run", "-n", "4", "--", "echo", "here")
        succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "64K", "--reps", "1")
        end_controller(bed)
        bed.start_controller()
        bed.wait_until_joined()
        wait_for(lambda: all(switch["changes"] and switch["present"] for switch in observed(bed).values()) and len(observed(bed)) == 3, "all is read")
    assert {switch: entries(switch) for switch in FOREIGN} == bed.before
    # A master would have taken the switch from its controller.
    roles = lambda: vsctl("--bare", "--columns=role", "find", "controller", "is_connected=true").split()
    wait_for(lambda: len(roles()) == len(FOREIGN), "Open vSwitch reports the roles")
    assert set(roles()) == {"other"}
    assert "nothing in any switch is changed" in log_of(bed, "controller")


def test_the_report_states_what_was_found_and_what_was_not(bed):
    located = lambda: {node["name"] for node in bed.cool_json("topology")["nodes"] if node["port"] is not None} == {"h1", "h2", "h3", "h4"}
    # Agents receive the LLDP of the ports, also where switches hand in none.
    wait_for(located, "all nodes are at their ports")
    wait_for(lambda: observed(bed)["s2"]["present"], "the entries are counted")
    report, switches = observation(bed), observed(bed)
    for name, others in (("s2", ("h1", "h2")), ("s3", ("h3", "h4"))):
        for host in others:
            assert peers(switches[name])[ports_towards(bed, name)[host]] == ("node", host)
    assert peers(switches["s1"])[ports_towards(bed, "s1")["s2"]] == ("switch", at(bed, "s2", "s1"))
    assert peers(switches["s2"])[ports_towards(bed, "s2")["s1"]] == ("switch", at(bed, "s1", "s2"))
    assert peers(switches["s1"])[ports_towards(bed, "s1")["s3"]] == ("perhaps_switch", at(bed, "s3", "s1"))
    for name, switch in switches.items():
        assert "Open vSwitch" in switch["model"] and switch["capacity"]["flows"] > 1000 and switch["capacity"]["groups"] > 1000
        assert (switch["present"]["flows"], switch["present"]["foreign_groups"], switch["present"]["meters"]) == (len(FOREIGN[name]), 1, 0)
        planned = sum(flows["flows"] for flows in switch["planned_flows"])
        assert planned > 10 and switch["changes"] == {"present": {"flows": 0, "groups": 0}, "put": {"flows": planned, "groups": switch["planned_groups"]},
                                                     "deleted": {"flows": 0, "groups": 0}}
        assert switch["obstacles"] == []
    # Both nodes are in one rack: a tree of the group, and one of the rack.
    assert report["group_nodes"] == ["h1", "h2"] and report["group_trees"] == 2
    assert switches["s2"]["for_group"] == {"flows": 4, "groups": 2}
    assert any("entries for 2 of 4 nodes (the first is h3)" in text for text in report["unknown"])
    text = succeed(bed, "cool", "topology")
    for part in ("The controller only observes (--observe)", "observed switch s3 (", "perhaps s3 port", "groups of others: 1", "would hold: ", "not found out:"):
        assert part in text, text
    assert "note: network: the controller only observes" in succeed(bed, "cool", "doctor")


def switch_port(bed, host, state):
    """Switches the port of a switch towards a host "up" or "down"."""
    interface = bed.network.port_of(bed.network.net.get(host))
    bed.network.run_in(interface.node, "ip", "link", "set", interface.name, state)


def test_a_service_connection_leaves_a_standalone_switch_alone(bed):
    """Open vSwitch deletes all flows and groups when it is given its first controller, unless the
    controller is of the type "service"."""
    vsctl("del-controller", "s3")
    wait_for(lambda: not any("s3" == s["name"] and not s["obstacles"] for s in observed(bed).values()), "s3 is disconnected")
    for command in ("del-flows", "del-groups"):
        ofctl(command, "s3")
    install_foreign_entries("s3")
    before = entries("s3")
    switch_port(bed, "h3", "down")
    live_ports = lambda: sum("LIVE" in line for line in entries("s3"))
    wait_for(lambda: live_ports() == 2, "Open vSwitch shows that a port is down")
    without_h3 = entries("s3")
    vsctl("--", "--id=@c", "create", "Controller", 'target="%s"' % bed.openflow_address(), "type=service", "--", "add", "bridge", "s3", "controller", "@c")
    wait_for(lambda: not observed(bed)["s3"]["obstacles"] and observed(bed)["s3"]["present"], "s3 is connected")
    assert entries("s3") == without_h3
    # Without notifications, changes of ports are still noticed: the controller asks every 30 s, so
    # one port goes up and another down within the same interval.
    numbers = [ports_towards(bed, "s3")[host] for host in ("h3", "h4")]

    def states():
        up = {port["number"]: port["up"] for port in observed(bed)["s3"]["ports"]}
        return [up[number] for number in numbers]

    assert states() == [False, True]
    switch_port(bed, "h3", "up")
    switch_port(bed, "h4", "down")
    wait_for(lambda: states() == [True, False], "the ports are up and down")
    switch_port(bed, "h4", "up")
    wait_for(lambda: live_ports() == 3, "Open vSwitch shows that all ports are up")
    assert entries("s3") == before


def test_the_handed_over_network_holds_what_was_planned(bed):
    """The last test, because the controller now changes the switches."""
    vsctl("clear", "bridge", "s3", "controller")
    vsctl("set-controller", "s3", bed.openflow_address())
    install_foreign_entries("s3")
    ofctl("add-flow", "s3", LLDP)
    complete = lambda: len(bed.cool_json("topology")["links"]) == 2 and len(observation(bed)["group_nodes"]) == 4
    wait_for(complete, "the observer finds everything")
    planned = {name: sum(flows["flows"] for flows in switch["planned_flows"]) for name, switch in observed(bed).items()}
    own = lambda switch: sum(COOL in line for line in entries(switch))
    assert {switch: own(switch) for switch in FOREIGN} == {"s1": 0, "s2": 0, "s3": 0}
    end_controller(bed)
    bed.controller_flags = ()
    bed.start_controller()
    wait_for(lambda: {switch: own(switch) for switch in FOREIGN} == planned, "the switches hold %s" % planned)
    for switch in FOREIGN:
        assert sum("cookie=0x7" in line for line in entries(switch)) == 3
