"""Costs of the network: agents measure them when they join, and plans are picked by them."""
import json

from conftest import PATIENCE, succeed

MBIT = 125_000


def is_near(measured, expected, share=0.33):
    """Returns whether a rate is near the expected one rather than that of other links; on a busy
    machine packets of a probe arrive in bursts."""
    return abs(measured / expected - 1) <= share


def test_rates_that_are_not_given_are_measured(make_bed):
    bed = make_bed("tree:2x2", host_mbit=20, uplink_mbit=10, set_rates=False)
    bed.wait_until_measured(PATIENCE)
    measurements = bed.cool_json("topology")["measurements"]
    rack, core, model = measurements["rack"], measurements["core"], measurements["cost_model"]
    assert (rack["probes"], core["probes"], measurements["pending"]) == (4, 2, 0), measurements
    assert is_near(rack["bytes_per_second"], 20 * MBIT) and is_near(core["bytes_per_second"], 10 * MBIT), measurements
    assert is_near(model["rack"]["bytes_per_second"], 20 * MBIT) and is_near(model["core"]["bytes_per_second"], 10 * MBIT), measurements
    assert rack["latency_ns"] > 0 and core["latency_ns"] > 0, measurements
    text = succeed(bed, "cool", "topology")
    assert "median of 4 probes" in text and "cost model of the planner: within racks" in text, text


def test_rates_that_are_given_count(make_bed):
    bed = make_bed("tree:2x2", host_mbit=20, uplink_mbit=10)
    bed.wait_until_measured(PATIENCE)
    model = bed.cool_json("topology")["measurements"]["cost_model"]
    assert (model["rack"]["bytes_per_second"], model["core"]["bytes_per_second"]) == (20 * MBIT, 10 * MBIT)


def test_the_shown_plan_is_picked_by_agents_and_predicted(make_bed):
    bed = make_bed("tree:2x2", host_mbit=20, uplink_mbit=10)
    bed.wait_until_measured(PATIENCE)
    for size, words in (("32K", "32 KiB"), ("256K", "256 KiB")):
        report = json.loads(succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", size, "--reps", "1", "--json"))
        (result,) = report["results"]
        first_line = succeed(bed, "cool", "plan", "--op", "bcast", "--bytes", size).splitlines()[0]
        assert first_line == "bcast of %s on 4 nodes in 2 racks: %s (picked)" % (words, result["plan"])
        assert result["predicted"] > 0
