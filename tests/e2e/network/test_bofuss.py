"""The flow rules on a switch other than Open vSwitch, if it is installed (tools/build-bofuss)."""
import signal

import bofuss
import pytest
from conftest import end_controller, succeed, wait_for
from test_pages import metric, page

pytestmark = pytest.mark.skipif(not bofuss.is_installed(), reason="ofdatapath and ofprotocol are not on the PATH: see tools/build-bofuss")


def test_bofuss_carries_collectives_despite_failures(make_bed):
    bed = make_bed("leafspine:2x2x2", lldp_ms=400, switches="bofuss", insecure_plaintext=True,
                   controller_flags=("--switches", "spine1=1,spine2=2,leaf1=3", "--first-group", "0x1000"))
    bench = ("cool", "bench", "--ops", "bcast,reduce,allreduce,gather,allgather,scatter", "--bytes", "1M", "--reps", "1")
    succeed(bed, *bench)
    assert {"spine1", "spine2", "leaf1"} < {switch["name"] for switch in bed.cool_json("topology")["switches"]}
    bed.network.cut(bed.network.uplinks()[0])
    wait_for(lambda: len(bed.cool_json("topology")["links"]) == 3, "the link is lost")
    succeed(bed, *bench)
    end_controller(bed, signal.SIGKILL)
    bed.start_controller()
    wait_for(lambda: len((bed.cool_json("topology") or {"links": []})["links"]) == 3, "the network is found again")
    wait_for(lambda: all(node["located"] for node in bed.cool_json("topology")["nodes"]), "all nodes are found again")
    succeed(bed, *bench)
    wait_for(lambda: "cool_port_transmit_bytes_total{" in page("metrics"),
             "switches report their counters")
    assert metric(page("metrics"), "cool_switch_outsider_packets_total") == 0
