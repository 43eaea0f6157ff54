"""`cool doctor` reports the faults of a deployment, and none if there are none."""
from conftest import end_agent, run, succeed, wait_for


def doctor_reports(bed, *words):
    """Returns whether one finding contains all of these words."""
    process = run(bed, "cool", "doctor")
    assert process.returncode in (0, 1), process.stderr
    return any(all(word in line for word in words) for line in process.stdout.splitlines())


def test_a_healthy_deployment_produces_no_findings(make_bed):
    bed = make_bed("tree:2x2")
    assert succeed(bed, "cool", "doctor") == "nothing is wrong: 3 switches, 4 nodes\n"


def test_checksum_offload_where_nothing_fills_them_in_is_found(make_bed):
    bed = make_bed("tree:2x2")
    host = bed.network.net.get("h1")
    bed.network.run_in(host, "ethtool", "-K", host.defaultIntf().name, "tx", "on")
    # The controller knows with the first counters of a switch that it runs in user space.
    wait_for(lambda: doctor_reports(bed, "node h1", "checksum offload is on", "ethtool -K h1-eth0 tx off"), "the fault is reported")
    bed.network.run_in(host, "ethtool", "-K", host.defaultIntf().name, "tx", "off")
    succeed(bed, "cool", "doctor")


def test_a_node_whose_agent_has_ended_is_an_ordinary_host(make_bed):
    bed = make_bed("tree:2x2")
    address = bed.network.net.get("h3").IP()
    end_agent(bed, "h3")
    wait_for(lambda: [host["addresses"] for host in bed.cool_json("topology")["hosts"]] == [[address]], "h3 is a host")
    assert succeed(bed, "cool", "doctor") == "nothing is wrong: 3 switches, 3 nodes\n"
    bed.start_agent("h3")
    bed.wait_until_joined()
    wait_for(lambda: bed.cool_json("topology")["hosts"] == [], "h3 is a node again")


def test_a_switch_that_lost_its_controller_is_named(make_bed):
    bed = make_bed("tree:2x2")
    bed.network.disconnect("s2")
    wait_for(lambda: doctor_reports(bed, "switch s2 is not connected"), "the switch is named")
    bed.network.connect("s2")
    wait_for(lambda: run(bed, "cool", "doctor").returncode == 0, "all is well again")


def test_a_node_without_agent_is_a_silent_port_without_hosts(make_bed):
    bed = make_bed("tree:2x2", controller_flags=("--agents-only",))
    link = next(l for l in bed.description["links"] if "h3" in (l["a"], l["b"]))
    switch = link["a"] if link["b"] == "h3" else link["b"]
    end_agent(bed, "h3")
    wait_for(lambda: doctor_reports(bed, "switch %s" % switch, "nothing is received on port"), "the port is named")
    bed.start_agent("h3")
    bed.wait_until_joined()
    succeed(bed, "cool", "doctor")
