"""The controller under played switches and agents: what comes goes without a trace. How much it takes: `make load`."""
import json
import os
import subprocess

from conftest import PATIENCE

import testbed


def test_a_thousand_groups_come_and_go_and_leave_nothing_in_switches_or_controller():
    done = subprocess.run([os.path.join(testbed.BIN, "cool-load"), "--topology", "leafspine:8x2x10", "fabric",
                           "--controller", os.path.join(testbed.BIN, "cool-controller"),
                           "--groups", "20", "--cycles", "1000", "--failures", "2"],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["switches"], found["hosts"], found["groups_came_and_went"]) == (10, 80, 1000)
    assert found["messages_lost"] == 0
