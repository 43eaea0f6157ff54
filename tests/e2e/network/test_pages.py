"""Observation of a running cluster: metrics, the live page in a browser, the picture of the
network, events."""
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
import xml.dom.minidom

import pytest
import yaml
from conftest import PATIENCE, ROOT, succeed, wait_for

import testbed

PAGES = "http://127.0.0.1:%d/" % testbed.PAGES_PORT
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=%d).read().decode())" % PATIENCE


def page(path=""):
    with urllib.request.urlopen(PAGES + path, timeout=PATIENCE) as response:
        return response.read().decode()


def metric(text, name, **labels):
    """Returns the sum of a metric over all series with these labels."""
    lines = re.findall(r"^%s(?:\{(.*)\})? (\S+)$" % name, text, re.M)
    assert lines, "%s in %s" % (name, text)
    return sum(float(value) for series_labels, value in lines if all('%s="%s"' % label in series_labels for label in labels.items()))


@pytest.fixture
def browser():
    assert shutil.which("chromium"), "install chromium, as `make packages-test` does"
    return ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1400,1200", "--virtual-time-budget=6000"]


@pytest.fixture
def job(make_bed):
    """Starts a job on a network."""
    bed = make_bed("leafspine:2x2x2")
    process = subprocess.Popen(["cool", "run", "-n", "4", "--", os.path.join(bed.bin_dir, "cool-misuse"), "barriers"],
                               env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert "started" in process.stdout.readline()
    yield bed
    process.terminate()
    process.wait(PATIENCE)


def test_the_controllers_metrics_describe_network_and_traffic(make_bed):
    bed = make_bed("leafspine:2x2x2")
    wait_for(lambda: page("metrics").count("cool_port_transmit_bytes_total{") == 4 * 2 + 4,
             "every switch has reported its ports")
    before = page("metrics")
    assert [metric(before, "cool_" + what) for what in ("switches", "links", "nodes", "nodes_located")] == [4, 4, 4, 4]
    assert metric(before, "cool_switch_flows") > 4 * 3
    assert metric(before, "cool_installation_seconds_count") >= 4
    assert metric(before, "cool_discovery_seconds_count") >= 8
    succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", "4M", "--reps", "1", "--warmup", "0")
    wait_for(lambda: metric(page("metrics"), "cool_port_transmit_bytes_total") - metric(before, "cool_port_transmit_bytes_total") > 4 << 20,
             "the bytes of a broadcast are counted")


def test_an_agents_metrics_include_its_collectives(make_bed):
    bed = make_bed("leafspine:2x2x2")

    def metrics(name):
        return bed.network.run_in(bed.network.net.get(name), "/usr/bin/python3", "-c", FETCH, PAGES + "metrics")

    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce", "--bytes", "1M", "--reps", "3", "--warmup", "0", "--plan", "bcast=multicast")
    pages = [metrics(host.name) for host in bed.network.net.hosts]
    for text in pages:
        assert metric(text, "cool_agent_calls_total", operation="bcast") >= 3
        assert metric(text, "cool_agent_call_seconds_count", operation="allreduce") >= 3
    assert sum(metric(text, "cool_agent_multicast_bytes_total", operation="bcast") for text in pages) >= 3 << 20


def test_alerts_and_dashboard_name_metrics_that_there_are(make_bed):
    bed = make_bed("leafspine:2x2x2")
    succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", "64K", "--reps", "1", "--warmup", "0")
    agents = bed.network.run_in(bed.network.net.get("h1"), "/usr/bin/python3", "-c", FETCH, PAGES + "metrics")
    metric_names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page("metrics") + agents, re.M):
        metric_names.update(name + ending for ending in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",)))
    folder = os.path.join(ROOT, "deploy", "prometheus")
    for name in "cool-alerts.yaml", "grafana.json":
        with open(os.path.join(folder, name)) as file:
            document = yaml.safe_load(file)
        rules = [rule for group in document.get("groups", []) for rule in group["rules"]]
        expressions = rules + [target for panel in document.get("panels", []) for target in panel["targets"]]
        assert len(expressions) > 10
        for rule in expressions:
            used_names = set(re.findall(r"\b(?:cool|process)_\w+", rule["expr"]))
            assert used_names <= metric_names, "%s: %s of %s" % (name, used_names - metric_names, sorted(metric_names))


def test_the_status_includes_groups_trees_jobs_and_events(job):
    # The page may be half a second old.
    wait_for(lambda: json.loads(page("status.json"))["jobs"], "the job is shown")
    status = json.loads(page("status.json"))
    assert len(status["jobs"]) == 1
    group = next(g for g in status["groups"] if g["id"] == status["jobs"][0]["group"])
    tree = next(t for t in group["trees"] if t["scope"] == "all")
    link_names = {l["name"] for l in status["links"]} | {n["link"]["name"] for n in status["nodes"]}
    assert set(tree["links"]) <= link_names
    assert any(e["message"] == "job starts" for e in status["events"])


def test_the_live_page_shows_the_cluster_and_updates_itself(job, browser, tmp_path):
    """The browser has no access to other servers."""
    process = subprocess.run([*browser, "--user-data-dir=%s" % tmp_path, "--dump-dom", PAGES], capture_output=True, text=True, timeout=PATIENCE)
    assert int(re.search(r'data-updates="(\d+)"', process.stdout).group(1)) >= 3, process.stdout + process.stderr
    for text in ("4 switches, 4 links, 4 of 4 nodes located", "tree: all", "job starts", 'data-link="s1:1-', ">h4<"):
        assert text in process.stdout, "%s in %s" % (text, process.stdout)
    assert "not responding" not in re.search(r'<span id="stale">(.*?)</span>', process.stdout).group(1)


def test_the_picture_of_the_network_has_every_link(make_bed, tmp_path):
    bed = make_bed("leafspine:2x2x2")
    path = str(tmp_path / "network.svg")
    succeed(bed, "cool", "topology", "--svg", path)
    lines = xml.dom.minidom.parse(path).getElementsByTagName("line")
    assert len(lines) == len(bed.description["links"])
    assert page("topology.svg") == open(path).read()


def test_only_reading_is_possible(make_bed):
    make_bed("leafspine:2x2x2")
    for path in ("", "status.json", "metrics"):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(urllib.request.Request(PAGES + path, data=b"x", method="POST"), timeout=PATIENCE)
        assert error.value.code == 405


def test_an_agents_metrics_count_calls_that_ranks_execute(make_bed):
    """Each link drops a fifth of all packets, so messages are requested and retransmitted."""
    bed = make_bed("tree:2x2", host_mbit=50, uplink_mbit=50, loss=0.2)
    succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", "8", "--reps", "100", "--warmup", "0")
    pages = [bed.network.run_in(host, "/usr/bin/python3", "-c", FETCH, PAGES + "metrics") for host in bed.network.net.hosts]
    for text in pages:
        calls = metric(text, "cool_agent_rank_calls_total", operation="bcast", plan="quick multicast")
        assert calls >= 100
        assert metric(text, "cool_agent_rank_call_bytes_total", operation="bcast", plan="quick multicast") == 8 * calls
        assert metric(text, "cool_agent_calls_total", operation="bcast") >= calls
        assert metric(text, "cool_agent_call_seconds_count", operation="bcast") >= calls
    for name in ("multicast_bytes", "chunks_repaired"):
        assert sum(metric(text, "cool_agent_%s_total" % name, operation="bcast") for text in pages) > 0, name
    for name in "asked", "answered":
        assert sum(metric(text, "cool_agent_datagrams_%s_total" % name) for text in pages) > 0, name
