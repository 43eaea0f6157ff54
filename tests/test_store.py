"""What is on nodes before a job starts: staged by `cool run`, or kept by name in their stores."""
import json
import os
import re
import signal

import network
from conftest import run, succeed, wait_for
from test_copy import MIB, described, make_folder, noise, write
from test_jobs import ended, racks, start


def on_node(bed, name, *command):
    """A command on a node, from which the controller is elsewhere."""
    host = bed.network.net.get(name)
    controller = "COOL_CONTROLLER=" + bed.controller_address(network.MANAGEMENT_ADDRESS)
    return ("mnexec", "-a", str(host.pid), "env", controller, *command)


def test_a_job_finds_what_was_staged_on_its_nodes_and_on_no_other(make_bed, tmp_path):
    bed = make_bed("tree:2x2")
    model = write(str(tmp_path / "model"), noise(1, MIB))
    scripts = make_folder(str(tmp_path / "scripts"))
    dest = str(tmp_path / "{node}")
    (a, b), _ = racks(bed)[0], racks(bed)[1]
    # By the node that this command runs on; the nodes are the controller's choice.
    command = on_node(bed, a, "cool", "run", "-n", "2", "--stage", model + ":" + dest + "/", "--stage", scripts + ":" + dest + "/s",
                      "--", "sh", "-c", "wc -c < %s/$(basename $COOL_SOCKET .sock)/model" % tmp_path)
    assert sorted(succeed(bed, *command).splitlines()) == ["[0] %d" % MIB, "[1] %d" % MIB]
    for node in (a, b):
        assert described(str(tmp_path / node / "s")) == described(scripts)
    assert sorted(os.listdir(tmp_path)) == sorted([a, b, "model", "scripts"]), "no other node has it"
    # At the same path, which nodes share here, it is there already.
    inode = os.stat(model).st_ino
    lines = succeed(bed, "cool", "run", "--stage", model, "--stage-from", a, "--", "wc", "-c", model).splitlines()
    assert len(lines) == 4 and os.stat(model).st_ino == inode
    # A node that cannot have it is named, and nothing runs.
    os.makedirs(tmp_path / b / "file")
    command = ("cool", "run", "--stage-from", a, "--hosts", a + "," + b, "--stage", model + ":" + dest + "/file", "--", "touch", str(tmp_path / "ran"))
    refused = run(bed, *command)
    errors = refused.stderr.splitlines()
    assert refused.returncode == 1 and errors[0].startswith("cool: %s: %s/%s/file: is a folder" % (b, tmp_path, b)), errors
    assert errors[1:] == ["cool: 1 of 2 nodes have %s; the job was not started" % model], errors
    assert not os.path.exists(tmp_path / "ran")
