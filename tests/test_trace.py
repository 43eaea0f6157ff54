"""Traces: what agents remember of calls, put together over all nodes."""
import json
import os

from conftest import succeed


def test_the_slowest_call_and_the_rank_that_was_late_are_told(make_bed, tmp_path):
    bed = make_bed("tree:2x2")
    # Rank 2 stops itself for a moment before the third of five barriers. By a forced plan, agents carry them out.
    succeed(bed, "cool", "run", "-n", "4", "--env", "COOL_PLAN=barrier=cool-p-p", "--", os.path.join(bed.bin_dir, "cool-misuse"), "late")
    timeline = tmp_path / "trace.json"
    traced = bed.cool_json("trace", "--perfetto", str(timeline))["calls"]
    assert len(traced) == 5 and traced[0]["operation"] == "barrier with plan cool-p-p"
    slowest = traced[0]
    assert (slowest["call"], slowest["last_to_come"]["rank"], len(slowest["nodes"])) == (2, 2, 4)
    assert slowest["nanoseconds"] >= slowest["last_to_come"]["after_ns"] >= 1e9
    slices = [e for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == 5 * 4 and {e["name"] for e in slices} == {"barrier"}
    assert max(slices, key=lambda e: e["dur"])["args"]["call"].startswith("2 of group")
    assert "2 on " in succeed(bed, "cool", "trace", "--slowest", "1").splitlines()[1]
