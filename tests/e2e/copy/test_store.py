"""Data on nodes before a job starts: staged by `cool run`, or kept by name in their stores."""
import json
import os
import re
import shutil
import signal
import subprocess

import network
from conftest import PATIENCE, SHORT_GRACE, run, succeed, wait_for
from test_management_failures import away
from test_copy import MIB, least_received, make_folder, names, noise, properties, received_bytes, write
from test_jobs import ended, racks, start
from test_users import ANN, GROUP, PASSWD, environment


def on_node(bed, name, *command):
    """Returns a command on a node, where the controller has another address."""
    host = bed.network.net.get(name)
    controller = "COOL_CONTROLLER=" + bed.controller_address(network.MANAGEMENT_ADDRESS)
    return ("mnexec", "-a", str(host.pid), "env", controller, *command)


def test_a_job_finds_staged_files_on_its_nodes_only(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    model = write(str(tmp_path / "model"), noise(1, MIB))
    scripts = make_folder(str(tmp_path / "scripts"))
    dest = str(tmp_path / "{node}")
    (a, b), _ = racks(bed).values()
    # The source is the node on which this command runs. The controller chooses the nodes of ranks.
    command = on_node(bed, a, "cool", "run", "-n", "2", "--stage", model + ":" + dest + "/", "--stage", scripts + ":" + dest + "/s",
                      "--", "sh", "-c", "wc -c < %s/$(basename $COOL_SOCKET .sock)/model" % tmp_path)
    assert sorted(succeed(bed, *command).splitlines()) == ["[0] %d" % MIB, "[1] %d" % MIB]
    for node in (a, b):
        assert properties(str(tmp_path / node / "s")) == properties(scripts)
    assert sorted(os.listdir(tmp_path)) == sorted([a, b, "model", "scripts"]), "no other node has it"
    # At the same path, which the nodes of this test share, the file already exists.
    inode = os.stat(model).st_ino
    lines = succeed(bed, "cool", "run", "--stage", model, "--stage-from", a, "--", "wc", "-c", model).splitlines()
    assert len(lines) == 4 and os.stat(model).st_ino == inode
    # A node that cannot store the file is named, and no rank is started.
    os.makedirs(tmp_path / b / "file")
    command = ("cool", "run", "--stage-from", a, "--hosts", a + "," + b, "--stage", model + ":" + dest + "/file", "--", "touch", str(tmp_path / "ran"))
    result = run(bed, *command)
    errors = result.stderr.splitlines()
    assert result.returncode == 1 and errors[0].startswith("cool: %s: %s/%s/file: is a directory" % (b, tmp_path, b)), errors
    assert errors[1:] == ["cool: 1 of 2 nodes have %s; the job was not started" % model], errors
    assert not os.path.exists(tmp_path / "ran")
    result = run(bed, "cool", "run", "--stage", model, "--", "true")
    assert result.returncode == 1 and "with --stage-from" in result.stderr, "no agent is in this namespace"


class Stores:
    """Stores of nodes that share a file system here, each in its own directory."""

    def __init__(self, bed, folder):
        self.bed, self.folder = bed, folder

    def path(self, node):
        return str(self.folder / node)

    def command(self, verb, *arguments):
        return ("cool", verb, "--store", self.path("{node}"), *arguments)

    def run(self, verb, *arguments):
        return run(self.bed, *self.command(verb, *arguments))

    def run_json(self, verb, *arguments):
        """Returns the JSON output of a successful command."""
        return json.loads(succeed(self.bed, *self.command(verb, "--json", *arguments)))

    def run_failing(self, verb, *arguments):
        """Returns the lines of a failed command."""
        process = self.run(verb, *arguments)
        assert process.returncode == 1, process
        return process.stderr.splitlines()

    def contents(self, *arguments):
        return {(c["name"], c["newest"]): c for c in self.run_json("ls", *arguments)["contents"]}

    def objects(self, node):
        return os.listdir(self.path(node) + "/objects")


def test_stored_content_is_on_all_16_nodes_and_any_returns_it(make_bed, tmp_path):
    bed = make_bed("tree:4x4", switches="bridge")
    stores = Stores(bed, tmp_path / "stores")
    source = make_folder(str(tmp_path / "source"))
    put = stores.run_json("put", "--from", "h1", "model", source)
    nodes = {"h%d" % n for n in range(1, 17)}
    assert {node["node"] for node in put["nodes"]} == nodes and not any(node["error"] for node in put["nodes"])
    assert put["sent"] < 1.1 * put["bytes"]
    assert os.stat(stores.path("h7")).st_mode & 0o777 == 0o700
    [content] = stores.contents().values()
    assert content["bytes"] == put["bytes"] and set(content["nodes"]) == nodes
    # Another name of the same content refers to the same object, so only the manifest is sent.
    second = stores.run_json("put", "--from", "h2", "--via", "swarm", "same", source)
    assert second["sent"] < 10_000, second
    assert set(stores.contents()) == {("model", True), ("same", True)}
    assert all(len(stores.objects(node)) == 1 for node in nodes)
    # A get copies from the store of the same node, or from that of another node.
    report = stores.run_json("get", "--nodes", "h5", "model", str(tmp_path / "{node}") + "/")
    assert report["sent"] < 10_000 and properties(str(tmp_path / "h5" / "model")) == properties(source)
    assert stores.run_json("rm", "--nodes", "h6", "model") == {"name": "model", "nodes": ["h6"]}
    succeed(bed, *stores.command("rm", "--nodes", "h6", "same"))
    assert stores.objects("h6") == []
    report = stores.run_json("get", "--nodes", "h6", "model", str(tmp_path / "{node}" / "x"))
    assert report["sent"] > 3 * MIB and properties(str(tmp_path / "h6" / "x")) == properties(source)
    # Without --nodes, the copy is made on the node where the command runs.
    succeed(bed, *on_node(bed, "h9", *stores.command("get", "same", str(tmp_path / "{node}" / "y"))))
    assert properties(str(tmp_path / "h9" / "y")) == properties(source)
    # A put without a source copies the content to stores that do not have it.
    assert [node["node"] for node in stores.run_json("put", "--nodes", "h6", "model")["nodes"]] == ["h6"]
    assert set(stores.contents("model")[("model", True)]["nodes"]) == nodes
    assert stores.run_json("stat", "model")["nodes"][0]["bytes"] == put["bytes"]
    table = succeed(bed, *stores.command("stat", "--nodes", "h6", "model")).splitlines()
    assert len(table) == 2 and table[1].startswith("h6 "), table


def test_a_new_version_replaces_the_old_and_sends_only_changes(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    stores = Stores(bed, tmp_path / "stores")
    data = noise(2, 4 * MIB)
    source = write(str(tmp_path / "source"), data)
    stores.run_json("put", "--from", "h1", "data", source)
    write(source, data[: 2 * MIB] + b"new" + data[2 * MIB :])
    put = stores.run_json("put", "--from", "h1", "--nodes", "h1,h2,h3", "data", source)
    assert 0 < put["sent"] < MIB, put
    assert all(len(stores.objects(node)) == 1 for node in ("h1", "h2", "h3", "h4"))
    contents = stores.contents()
    assert contents[("data", True)]["nodes"] == ["h1", "h2", "h3"] and contents[("data", False)]["nodes"] == ["h4"]
    # h4 gets the new version, of which it already has most blocks.
    report = stores.run_json("get", "--nodes", "h4", "data", str(tmp_path / "copy"))
    assert 0 < report["sent"] < MIB and properties(str(tmp_path / "copy")) == properties(source)
    assert stores.run_json("put", "data")["sent"] < MIB
    assert stores.contents()[("data", True)]["nodes"] == ["h1", "h2", "h3", "h4"]


def test_a_get_survives_a_lost_or_damaged_source(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, controller_flags=SHORT_GRACE)
    bed.wait_until_measured()
    stores = Stores(bed, tmp_path / "stores")
    source = write(str(tmp_path / "source"), noise(14, 8 * MIB))
    stores.run_json("put", "--from", "h1", "--nodes", "h1,h2,h3", "data", source)

    def get(name, *arguments):
        return stores.command("get", "--nodes", "h4", "--json", *arguments, "data", str(tmp_path / name))

    def check(name, out):
        assert names(json.loads(out)) == ["h4"] and properties(str(tmp_path / name)) == properties(source)

    before = received_bytes(bed, "h4")
    job = start(bed, *get("a"))
    wait_for(lambda: received_bytes(bed, "h4") - before > MIB, "some data has arrived")
    # The store in the same rack is used first.
    bed.agents["h3"].signal(signal.SIGKILL)
    status, out, errors = ended(job)
    assert status == 0 and "cool: lost h3; the others continue" in errors, out + errors
    check("a", out)
    bed.restart_agent("h3")
    bed.wait_until_joined()
    # From now on, the content in the store of h3 is damaged.
    [identity] = stores.objects("h3")
    write("%s/objects/%s/tree" % (stores.path("h3"), identity), noise(15, 8 * MIB))
    for way, via, message in (("auto", "swarm", "other nodes send it"), ("chain", "racked:chain", "continuing from h[12]")):
        process = run(bed, *get(way, "--via", way))
        assert process.returncode == 0 and re.search("h3: .* is damaged.*; " + message, process.stderr), process
        assert json.loads(process.stdout)["via"] == via and json.loads(process.stdout)["sent"] >= 8 * MIB
        check(way, process.stdout)


def test_a_quota_evicts_the_least_recently_used_content(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    stores = Stores(bed, tmp_path / "stores")
    for number, name in enumerate(("a", "b", "c")):
        write(str(tmp_path / name), noise(number, MIB))
    put = ("put", "--from", "h1")
    stores.run_json(*put, "--quota", "2500K", "a", str(tmp_path / "a"))
    stores.run_json(*put, "b", str(tmp_path / "b"))
    # After this use of a, b is the least recently used content.
    stores.run_json("get", "--nodes", "h1,h2,h3,h4", "a", str(tmp_path / "got" / "{node}"))
    stores.run_json(*put, "c", str(tmp_path / "c"))
    assert set(stores.contents()) == {("a", True), ("c", True)}
    large = write(str(tmp_path / "large"), noise(9, 3 * MIB))
    errors = stores.run_failing(*put, "--nodes", "h2,h3", "large", large)
    for node, error in zip(("h2", "h3"), sorted(errors[:2])):
        assert error == "cool: %s: %s: %d bytes do not fit into the quota of %d; nothing was changed" % (
            node, stores.path(node), 3 * MIB, 2500 << 10)
    assert errors[2:] == ["cool: 0 of 2 nodes have a copy"]
    assert set(stores.contents()) == {("a", True), ("c", True)}
    assert [store["quota"] for store in stores.run_json("ls")["stores"]] == [2500 << 10] * 4


def test_a_flipped_byte_is_found_named_dropped_and_mended(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    stores = Stores(bed, tmp_path / "stores")
    source = make_folder(str(tmp_path / "source"))
    stores.run_json("put", "--from", "h1", "model", source)
    assert re.match("4 objects on 4 nodes intact", succeed(bed, *stores.command("verify")))
    [identity] = stores.objects("h3")

    def flip():
        with open("%s/objects/%s/tree/data/large" % (stores.path("h3"), identity), "r+b") as f:
            f.seek(MIB)
            byte = f.read(1)[0]
            f.seek(MIB)
            f.write(bytes([byte ^ 1]))

    flip()
    line = "cool: h3: model: data/large differs from what was put"
    assert stores.run_failing("verify", "model") == [line, "cool: 1 damaged file; `cool verify --drop` removes their contents"]
    errors = stores.run_failing("get", "--from", "h3", "--nodes", "h3", "model", str(tmp_path / "x"))
    assert errors[0].startswith("cool: h3: ") and "is damaged; `cool verify --drop`" in errors[0], errors
    assert not os.path.exists(tmp_path / "x")
    # Putting the same content again repairs the damaged block in place. Alternatively, the object
    # is dropped and restored from another store.
    assert 0 < stores.run_json("put", "--from", "h1", "model", source)["sent"] < MIB
    assert re.match("4 objects on 4 nodes intact", succeed(bed, *stores.command("verify")))
    flip()
    report = json.loads(stores.run("verify", "--json").stdout)
    assert report["nodes"] == 4 and [damage["node"] for damage in report["damaged"]] == [line.split(": ")[1]], report
    assert stores.run_failing("verify", "--drop") == [line, "cool: removed what was damaged; `cool put NAME` restores it from a node that has it intact"]
    assert stores.objects("h3") == [] and stores.contents()[("model", True)]["nodes"] == ["h1", "h2", "h4"]
    stores.run_json("put", "model")
    assert re.match("4 objects on 4 nodes intact", succeed(bed, *stores.command("verify")))
    # A node whose store is writable by others is named; the other nodes respond.
    os.chmod(stores.path("h2"), 0o777)
    errors = stores.run_failing("ls")
    assert errors == ["cool: h2: %s: is writable by other users; name another directory with --store" % stores.path("h2"),
                      "cool: 3 of 4 nodes have executed the request"]
    os.chmod(stores.path("h2"), 0o700)
    succeed(bed, *stores.command("rm", "model"))
    assert stores.contents() == {} and all(stores.objects(node) == [] for node in ("h1", "h2", "h3", "h4"))
    assert stores.run_failing("rm", "model") == ["cool: none of these nodes has model; `cool ls` lists what there is"]
    for name, reason in (("a/b", "it contains a slash"), ("..", "it begins with a dot"), ("", "it is empty"), ("x" * 201, "it is longer than 200 bytes")):
        message = stores.run("rm", name).stderr
        assert "invalid name " in message and ": " + reason in message, message


def test_a_node_without_disk_space_is_named_and_keeps_its_copy(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    stores = Stores(bed, tmp_path / "stores")
    small, large = write(str(tmp_path / "small"), noise(7, 100_000)), write(str(tmp_path / "large"), noise(8, 3 * MIB))
    os.makedirs(stores.path("h3"), mode=0o700)
    for node, options, folder in (("h3", "size=2m,mode=0700", stores.path("h3")), ("h2", "mode=1777", "/var/tmp")):
        subprocess.run(on_node(bed, node, "mount", "-t", "tmpfs", "-o", options, "tmpfs", folder), check=True)
    stores.run_json("put", "--from", "h1", "data", small)
    errors = stores.run_failing("put", "--from", "h1", "data", large)
    assert re.fullmatch("cool: h3: .*: No space left on device", errors[0]) and errors[1:] == ["cool: 3 of 4 nodes have a copy"], errors
    contents = stores.contents()
    assert contents[("data", True)]["nodes"] == ["h1", "h2", "h4"] and contents[("data", False)]["nodes"] == ["h3"]
    assert re.match("4 objects on 4 nodes intact",
                    succeed(bed, *stores.command("verify"))), "the objects of h3 are intact"
    # A store without --store is in the default directory.
    succeed(bed, "cool", "put", "--from", "h1", "--nodes", "h2", "data", large)
    [stat] = json.loads(succeed(bed, "cool", "stat", "--nodes", "h2", "--json", "data"))["nodes"]
    assert stat["path"] == "/var/tmp/cool-store-0/objects/%s/tree" % stat["id"], stat


def test_a_store_is_its_users_and_no_other_users(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", users=(PASSWD, GROUP))
    bed.run(["cool", "certs", bed.certificates, "--user", "ann", "--user", "bob"], check=True, capture_output=True)
    shutil.copy(os.path.join(bed.bin_dir, "cool"), bed.public)
    os.chmod(bed.public, 0o1777)
    source = write(bed.public + "/source", noise(5, MIB))

    def run_as(user, verb, *arguments):
        command = (bed.public + "/cool", verb, "--store", bed.public + "/{node}", *arguments)
        return subprocess.run(command, env=environment(bed, user), capture_output=True, text=True, timeout=PATIENCE)

    process = run_as("ann", "put", "--from", "h1", "data", source)
    assert process.returncode == 0, process.stderr
    status = os.stat(bed.public + "/h2")
    assert (status.st_uid, status.st_mode & 0o777) == (ANN, 0o700)
    assert run_as("ann", "stat", "data").stdout.count("\n") == 5
    result = run_as("bob", "get", "--nodes", "h2", "data", bed.public + "/x")
    assert result.returncode == 1, result.stderr
    assert "cool: h1-h4 (4 nodes): %s/{node}: belongs to another user" % bed.public in result.stderr, result.stderr
    assert not os.path.exists(bed.public + "/x")


def test_an_interrupted_put_leaves_nothing_visible_and_resumes(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, controller_flags=SHORT_GRACE)
    bed.wait_until_measured()
    stores = Stores(bed, tmp_path / "stores")
    source = write(str(tmp_path / "source"), noise(6, 16 * MIB))
    before = bed.link_bytes()
    job = start(bed, *stores.command("put", "--from", "h1", "--limit", "2M", "data", source))
    wait_for(lambda: least_received(bed, before) > 6 * MIB, "some pieces have arrived")
    job.send_signal(signal.SIGINT)
    assert ended(job)[0] == 130
    assert all(content["nodes"] == ["h1"] for content in stores.contents().values()), "only the source's node may have the whole content"
    second = stores.run_json("put", "--from", "h1", "data", source)
    assert 0 < second["sent"] < 14 * MIB, second
    assert stores.contents()[("data", True)]["nodes"] == ["h1", "h2", "h3", "h4"]
    # A node whose agent is disconnected is named; the other nodes reply.
    bed.agents["h3"].signal(signal.SIGKILL)
    wait_for(lambda: "h3" in away(bed), "the agent of h3 is away")
    result = stores.run("ls", "--json")
    assert result.returncode == 1 and result.stderr.splitlines() == ["cool: h3: its agent is away", "cool: 3 of 4 nodes have executed the request"]
    assert json.loads(result.stdout)["contents"][0]["nodes"] == ["h1", "h2", "h4"]
