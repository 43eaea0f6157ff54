"""Traces: the records of calls at agents, merged over all nodes."""
import json
import os

from conftest import succeed


def test_the_slowest_call_and_the_late_rank_are_reported(make_bed, tmp_path):
    bed = make_bed("tree:2x2")
    # Rank 2 stops itself for a moment before the third of five barriers. A forced plan makes agents
    # execute them.
    succeed(bed, "cool", "run", "-n", "4", "--env", "COOL_PLAN=barrier=cool-p-p", "--", os.path.join(bed.bin_dir, "cool-misuse"), "late")
    timeline = tmp_path / "trace.json"
    trace = bed.cool_json("trace", "--perfetto", str(timeline))["calls"]
    assert len(trace) == 5 and trace[0]["operation"] == "barrier with plan cool-p-p"
    slowest = trace[0]
    assert (slowest["call"], slowest["last_to_come"]["rank"], len(slowest["nodes"])) == (2, 2, 4)
    assert slowest["nanoseconds"] >= slowest["last_to_come"]["after_ns"] >= 1e9
    slices = [e for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == 5 * 4 and {e["name"] for e in slices} == {"barrier"}
    assert max(slices, key=lambda e: e["dur"])["args"]["call"].startswith("2 of group")
    assert "2 on " in succeed(bed, "cool", "trace", "--slowest", "1").splitlines()[1]


def test_calls_that_ranks_execute_themselves_are_reported(make_bed):
    """Ranks execute short calls by datagrams between nodes, and in the segment of one node."""
    bed = make_bed("tree:2x2")
    for ranks, plan in ([], "quick multicast"), (["--ranks", "4", "--ranks-per-node", "4"], "segment"):
        report = bed.cool_json("bench", "--ops", "bcast", "--bytes", "8", "--reps", "5", "--warmup", "0", *ranks)
        assert {r["plan"] for r in report["results"]} == {plan}, report
        calls = [c for c in bed.cool_json("trace", "--slowest", "1000")["calls"] if c["plan"] == plan and c["operation"].startswith("bcast of 8 u8")]
        assert len(calls) >= 5, calls
        for call in calls:
            times = [rank for node in call["nodes"] for rank in node["ranks"]]
            assert {rank["rank"] for rank in times} == {0, 1, 2, 3} and not call["failure"], call
            assert all(rank["came_ns"] <= rank["ended_ns"] for rank in times), call
            data = [(data["from"], data["messages"]) for node in call["nodes"] for data in node["data"]]
            root = int(call["operation"].rsplit(" ", 1)[1])
            assert data == ([(root, 1)] * 3 if plan == "quick multicast" else []), call
            assert sum(node["bytes_multicast"] for node in call["nodes"]) == (8 if data else 0), call
