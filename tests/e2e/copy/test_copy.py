"""Copies of files and directories to many nodes: exact, incremental, and with a report of nodes
without a copy."""
import filecmp
import hashlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess

import pytest
from conftest import PATIENCE, SHORT_GRACE, end_agent, run, succeed, wait_for
from network import MANAGEMENT_ADDRESS
from test_management_failures import away
from test_jobs import ended, start
from test_users import ANN, GROUP, PASSWD, environment

MIB = 1 << 20


def noise(seed, size):
    return random.Random(seed).randbytes(size)


def write(path, data, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    os.chmod(path, mode)
    return path


def make_folder(path):
    """Creates a directory with all kinds of entries."""
    write(path + "/data/large", noise(1, 3 * MIB), 0o440)
    write(path + "/bin/program", b"#!/bin/sh\n", 0o751)
    write(path + "/empty", b"", 0o600)
    with open(path + "/sparse", "wb") as f:
        f.seek(50 * MIB)
        f.write(noise(2, 100_000))
        f.truncate(90 * MIB)
    os.symlink("bin/program", path + "/link")
    os.utime(path + "/empty", ns=(1, 1_234_567_890_123_456_789))
    os.chmod(path + "/data", 0o1755)
    return path


def properties(path):
    """Returns all properties of a file or directory that a copy must have."""
    entries = {}
    for folder, folders, files in os.walk(path):
        for name in [""] + folders + files:
            entry = os.path.join(folder, name)
            status = os.lstat(entry)
            if stat.S_ISREG(status.st_mode):
                with open(entry, "rb") as f:
                    content = f.read()
            else:
                content = os.readlink(entry) if stat.S_ISLNK(status.st_mode) else None
            mode = None if stat.S_ISLNK(status.st_mode) else status.st_mode
            entries[os.path.relpath(entry, path)] = (mode, status.st_mtime_ns, content)
    return entries


def copy_all(bed, *arguments):
    """Runs `cool copy --json`, which must succeed on all nodes; returns its report."""
    return json.loads(succeed(bed, "cool", "copy", "--json", *arguments))


def names(outcome):
    return sorted(node["node"] for node in outcome["nodes"])


@pytest.mark.parametrize("switches", ["ovs", "bridge"])
def test_a_directory_is_copied_exactly_and_only_once(make_bed, tmp_path, switches):
    bed = make_bed("tree:2x2", switches=switches)
    source = make_folder(str(tmp_path / "source"))
    dest = str(tmp_path / "{node}" / "copy")
    outcome = copy_all(bed, "--from", "h2", source, dest)
    assert names(outcome) == ["h1", "h2", "h3", "h4"] and not any(node["error"] for node in outcome["nodes"])
    # Holes do not count, except for parts that are smaller than the file system's block.
    assert 3.1 * MIB - 10_000 < outcome["bytes"] < 3.3 * MIB, outcome
    assert 3 * MIB < outcome["sent"] < 3.3 * MIB, outcome
    for node in names(outcome):
        copy = str(tmp_path / node / "copy")
        assert properties(copy) == properties(source), node
        assert os.stat(copy + "/sparse").st_blocks * 512 < MIB, "holes stay holes"
        assert os.listdir(tmp_path / node) == ["copy"], "no other file is left"
    second = copy_all(bed, "--from", "h2", source, dest)
    assert second["sent"] < 10_000, second
    assert copy_all(bed, "--from", "h2", "--via", "swarm", source, str(tmp_path / "{node}" / "swarm"))["via"] == "swarm"
    for node in names(outcome):
        assert properties(str(tmp_path / node / "swarm")) == properties(source), node
    os.chmod(source + "/data/large", 0o600)
    with open(source + "/data/large", "r+b") as f:
        f.seek(MIB)
        f.write(noise(3, 3 * MIB // 100))
    # Only the changed blocks, and one on each side of them, are sent.
    assert copy_all(bed, "--from", "h2", source, dest)["sent"] < 3 * MIB // 4 + 3 * MIB // 100
    assert all(properties(str(tmp_path / node / "copy")) == properties(source) for node in names(outcome))


def test_a_file_reaches_only_the_named_nodes(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    source = write(str(tmp_path / "source"), noise(4, MIB))
    outcome = copy_all(bed, "--from", "h1", "--nodes", "h3", source, str(tmp_path / "{node}") + "/")
    assert names(outcome) == ["h3"]
    assert sorted(os.listdir(tmp_path)) == ["h3", "source"] and os.listdir(tmp_path / "h3") == ["source"]
    rack = next(node["rack"] for node in bed.cool_json("topology")["nodes"] if node["name"] == "h1")
    outcome = copy_all(bed, "--from", "h1", "--racks", str(rack), "--compress", source, str(tmp_path / "{node}" / "other"))
    assert len(names(outcome)) == 2 and "h1" in names(outcome)
    for arguments, message in ((["--from", "h1", "--nodes", "h9"], "no node h9"), (["--from", "h1", "--racks", "77"], "no nodes in rack 77"),
                           (["--from", "h9"], "no node h9")):
        result = run(bed, "cool", "copy", *arguments, source, str(tmp_path / "x"))
        assert result.returncode == 1 and message in result.stderr, result.stderr
    result = run(bed, "cool", "copy", "--from", "h1", str(tmp_path / "nothing"), str(tmp_path / "{node}" / "x"))
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
    assert "h1: %s: No such file" % (tmp_path / "nothing") in result.stderr, result.stderr
    result = run(bed, "cool", "copy", source, str(tmp_path / "{node}" / "x"))
    assert result.returncode == 1 and "--from" in result.stderr, "no agent is in this namespace"


def test_a_copy_destroys_neither_its_source_nor_other_files(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    for folder in (data / "a", scratch):
        os.makedirs(folder)
        write(str(folder / "keep"), b"kept")
    os.mkfifo(tmp_path / ".blocked.cool-copy")
    mine, into = str(data / "a"), str(tmp_path / "{node}") + "/"
    for arguments, message in ((["--delete", mine, str(data)], "contains the source"),
                               (["--delete", mine + "/..", str(scratch) + "/"], "has no name for the copies"),
                               (["/proc/version", into], "another length than the system reports"),
                               ([mine, str(tmp_path / "blocked")], ".blocked.cool-copy: is not a directory")):
        result = run(bed, "cool", "copy", "--from", "h1", "--nodes", "h2", *arguments)
        assert result.returncode == 1 and message in result.stderr, result.stderr
    assert all((folder / "keep").read_bytes() == b"kept" for folder in (data / "a", scratch))
    os.makedirs(tmp_path / "h2", exist_ok=True)
    shutil.copytree(scratch, tmp_path / "h2" / "source")
    source = make_folder(str(tmp_path / "source"))
    write(source + "/keep", b"changed")
    job = start(bed, "cool", "copy", "--limit", "1M", "--from", "h1", "--nodes", "h2", source, into)
    wait_for(lambda: os.path.exists(tmp_path / "h2" / ".source.cool-copy" / "tree" / "sparse"), "the copy has begun")
    write(str(tmp_path / "h2" / "source" / "results"), b"mine")
    status, _, errors = ended(job)
    assert status == 1 and "h2/source/results: was created or changed during the copy" in errors, errors
    assert sorted(os.listdir(tmp_path / "h2" / "source")) == ["keep", "results"] and os.listdir(tmp_path / "h2") == ["source"]


def test_staging_leaves_a_shared_link_to_the_same_content(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    write(str(tmp_path / "v3"), b"model")
    os.symlink("v3", tmp_path / "current")
    lines = succeed(bed, "cool", "run", "-n", "2", "--stage-from", "h1", "--stage", str(tmp_path / "current"), "--", "cat", str(tmp_path / "current"))
    assert sorted(lines.split()) == ["[0]", "[1]", "model", "model"] and os.path.islink(tmp_path / "current")


@pytest.mark.parametrize("way", ["auto", "swarm"])
def test_a_node_with_a_full_disk_is_named_and_delays_no_other(make_bed, tmp_path, way):
    bed = make_bed("tree:2x2", switches="bridge")
    source = write(str(tmp_path / "source"), noise(7, 8 * MIB))
    small, host = str(tmp_path / "h3"), bed.network.net.get("h3")
    os.mkdir(small)
    bed.network.run_in(host, "mount", "-t", "tmpfs", "-o", "size=3m", "small", small)
    try:
        process = run(bed, "cool", "copy", "--from", "h1", "--via", way, source, str(tmp_path / "{node}" / "copy"))
        listing = bed.network.run_in(host, "ls", "-A", small)
    finally:
        bed.network.run_in(host, "umount", small)
    assert process.returncode == 1
    assert process.stderr.splitlines() == ["cool: h3: %s/.copy.cool-copy/tree: No space left on device" % small,
                                        "cool: 3 of 4 nodes have a copy"], process.stderr
    assert listing.strip() == ""
    for node in ("h1", "h2", "h4"):
        assert filecmp.cmp(str(tmp_path / node / "copy"), source, shallow=False)


def copy_as(bed, *command):
    """Runs a command as ann; returns the finished process."""
    return subprocess.run(command, env=environment(bed, "ann"), capture_output=True, text=True, timeout=PATIENCE)


def bytes_to(host, carried):
    """Returns the bytes that have arrived at a host, of those that links have carried."""
    return sum(count for (_, b), count in carried.items() if b == host)


def received_bytes(bed, host):
    return bytes_to(host, bed.link_bytes())


def least_received(bed, before):
    """Returns the least number of bytes that have arrived at a host other than h1 since the counts
    `before`."""
    carried = bed.link_bytes()
    hosts = [host["name"] for host in bed.description["hosts"] if host["name"] != "h1"]
    return min(bytes_to(host, carried) - bytes_to(host, before) for host in hosts)


def start_copy(bed, folder, minimum, *options):
    """Starts a copy of 16 MiB from h1 and waits until `minimum` bytes have arrived at each other
    node; returns the job, the source, and the paths of the copies."""
    bed.wait_until_measured()
    source = write(str(folder / "source"), noise(6, 16 * MIB))
    dest = str(folder / "{node}" / "copy")
    before = bed.link_bytes()
    job = start(bed, "cool", "copy", "--from", "h1", *options, source, dest)
    wait_for(lambda: least_received(bed, before) > minimum, "some pieces have arrived", process=job)
    return job, source, dest


def test_survivors_complete_a_copy_that_the_lost_node_resumes(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, controller_flags=SHORT_GRACE)
    # Two pieces of 4 MiB are in flight at the same time.
    job, source, dest = start_copy(bed, tmp_path, 11 * MIB, "--json")
    bed.agents["h3"].signal(signal.SIGKILL)
    status, out, errors = ended(job)
    assert status == 1, out + errors
    assert "cool: lost h3; the others continue" in errors and "cool: h3: it was lost during the copy" in errors, errors
    assert [node["node"] for node in json.loads(out)["nodes"] if node["error"]] == ["h3"]
    for node in ("h1", "h2", "h4"):
        assert filecmp.cmp(tmp_path / node / "copy", source, shallow=False)
    assert not os.path.exists(tmp_path / "h3" / "copy"), "nothing half-written is visible"
    bed.restart_agent("h3")
    wait_for(bed.whole, "the node is back")
    second = copy_all(bed, "--from", "h1", source, dest)
    assert 0 < second["sent"] < 14 * MIB, "it continues from its partial copy: %r" % second
    assert filecmp.cmp(tmp_path / "h3" / "copy", source, shallow=False)
    assert os.listdir(tmp_path / "h3") == ["copy"]


def test_an_interrupted_copy_leaves_nothing_visible_and_resumes(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, controller_flags=SHORT_GRACE)
    job, source, dest = start_copy(bed, tmp_path, 6 * MIB, "--limit", "2M")
    job.send_signal(signal.SIGINT)
    assert ended(job)[0] == 130
    assert not any(os.path.exists(tmp_path / node / "copy") for node in ("h2", "h3", "h4"))
    assert 0 < copy_all(bed, "--from", "h1", source, dest)["sent"] < 14 * MIB
    for node in ("h1", "h2", "h3", "h4"):
        assert os.listdir(tmp_path / node) == ["copy"]
        assert filecmp.cmp(tmp_path / node / "copy", source, shallow=False)


def test_killed_ranks_and_supervisors_restart_unnoticed(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, controller_flags=SHORT_GRACE)
    wait_for(bed.whole, "all nodes are connected")
    job, source, _ = start_copy(bed, tmp_path, 4 * MIB, "--json", "--via", "swarm")
    subprocess.run(["pkill", "-KILL", "-P", str(bed.agents["h3"].process.pid)], check=True)
    status, out, errors = ended(job)
    assert status == 0 and "cool: lost h3; the others continue" in errors, out + errors
    assert all(filecmp.cmp(tmp_path / node / "copy", source, shallow=False) for node in names(json.loads(out)))


def test_the_source_may_be_lost_once_others_have_all_blocks(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, controller_flags=SHORT_GRACE)
    wait_for(bed.whole, "all nodes are connected")
    bed.agents["h4"].signal(signal.SIGKILL)
    wait_for(lambda: "h4" in away(bed), "one node is disconnected")
    bed.wait_until_measured()
    source, dest = write(str(tmp_path / "source"), noise(13, 16 * MIB)), str(tmp_path / "{node}" / "copy")
    before = received_bytes(bed, "h2")
    job = start(bed, "cool", "copy", "--from", "h1", "--nodes", "h2,h3,h4", "--json", "--via", "swarm", source, dest)
    wait_for(lambda: received_bytes(bed, "h2") - before > MIB, "some data has arrived")
    bed.restart_agent("h4")
    slow = next(link for link in bed.network.net.links if "h4" in (link.intf1.node.name, link.intf2.node.name))
    bed.network.shape(slow, 5)
    wait_for(lambda: all(os.path.exists(tmp_path / node / "copy") for node in ("h2", "h3")),
             "two nodes have the whole copy")
    assert not os.path.exists(tmp_path / "h4" / "copy"), "the late node is still incomplete"
    bed.agents["h1"].signal(signal.SIGKILL)
    bed.network.shape(slow, 20)
    status, out, errors = ended(job)
    assert status == 0 and "cool: lost h1; the others continue" in errors, out + errors
    assert names(json.loads(out)) == ["h2", "h3", "h4"]
    assert all(filecmp.cmp(tmp_path / node / "copy", source, shallow=False) for node in ("h2", "h3", "h4"))
    bed.restart_agent("h1")
    bed.wait_until_joined()


def copy_of_input(bed, folder, *arguments):
    """Starts `cool copy - ...` on h1; its temporary data is in the directory `folder`."""
    os.makedirs(folder, exist_ok=True)
    environment = {**bed.environment(), "COOL_CONTROLLER": bed.controller_address(MANAGEMENT_ADDRESS), "TMPDIR": folder}
    return subprocess.Popen(["mnexec", "-a", str(bed.network.net.get("h1").pid), "cool", "copy", "-", *arguments], env=environment, umask=0o027,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish_with_input(job, data):
    """Returns status, output and errors for this complete input."""
    try:
        out, errors = job.communicate(data, timeout=PATIENCE)
    finally:
        job.kill()
    return job.returncode, out.decode(), errors.decode()


def test_standard_input_is_copied_to_all_nodes_and_nowhere_else(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, controller_flags=SHORT_GRACE)
    data, spool = noise(7, 5 * MIB + 1), str(tmp_path / "spool")
    status, out, errors = finish_with_input(copy_of_input(bed, spool, "--json", str(tmp_path / "{node}" / "copy")), data)
    assert status == 0, errors
    assert names(json.loads(out)) == ["h1", "h2", "h3", "h4"]
    for node in ("h1", "h2", "h3", "h4"):
        copy = tmp_path / node / "copy"
        assert hashlib.sha256(copy.read_bytes()).digest() == hashlib.sha256(data).digest(), node
        assert stat.S_IMODE(copy.stat().st_mode) == 0o640 and os.listdir(tmp_path / node) == ["copy"]
    assert os.listdir(spool) == []
    for arguments, message in (([str(tmp_path) + "/"], "SOURCE `-` has no file name"), (["--from", "h2", str(tmp_path / "x")], "cannot be combined with --from")):
        status, _, errors = finish_with_input(copy_of_input(bed, spool, *arguments), b"")
        assert status == 1 and message in errors and errors.count("\n") == 1, errors
    assert os.listdir(spool) == []


def test_a_stream_stays_in_order_and_survives_the_loss_of_a_node(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, controller_flags=SHORT_GRACE)
    bed.wait_until_measured()
    spool, dest = tmp_path / "spool", str(tmp_path / "{node}" / "copy")
    os.makedirs(tmp_path / "h4")
    os.mkfifo(tmp_path / "h4" / "copy")
    reader = subprocess.Popen(["sha256sum", tmp_path / "h4" / "copy"], stdout=subprocess.PIPE, text=True)
    job = copy_of_input(bed, str(spool), "--json", "--stream", dest)
    data, before = noise(10, 24 * MIB), sum(bed.link_bytes().values())
    try:
        job.stdin.write(data[:20 * MIB])
        job.stdin.flush()
    except BrokenPipeError:
        pytest.fail("cool copy ended early: %s" % job.communicate()[1].decode())
    wait_for(lambda: sum(bed.link_bytes().values()) - before > 40 * MIB,
             "some data has arrived and more follows", process=job)
    assert sorted(name.name for name in spool.glob("*/*")) == ["input", "lock"]
    assert [file.stat().st_size for file in spool.glob("*/*") if file.is_file()] == [0], "no file has any of it"
    bed.agents["h3"].signal(signal.SIGKILL)
    status, out, errors = finish_with_input(job, data[20 * MIB:])
    assert status == 1 and "cool: lost h3; the others continue" in errors, errors
    digest = hashlib.sha256(data).hexdigest()
    assert [hashlib.sha256((tmp_path / node / "copy").read_bytes()).hexdigest() for node in ("h1", "h2")] == [digest] * 2
    assert [stat.S_IMODE((tmp_path / node / "copy").stat().st_mode) for node in ("h1", "h2")] == [0o640] * 2
    assert reader.communicate(timeout=PATIENCE)[0].split()[0] == digest
    assert not os.path.exists(tmp_path / "h3" / "copy") and json.loads(out)["bytes"] == len(data)
    assert os.listdir(spool) == []
    for arguments, message in ((["--via", "swarm"], "a swarm does not keep the order of a stream"), (["--verify"], "cannot be used with")):
        status, _, errors = finish_with_input(copy_of_input(bed, str(spool), "--stream", *arguments, dest), b"")
        assert status in (1, 2) and message in errors, errors
    bed.restart_agent("h3")
    bed.wait_until_joined()


def test_an_interrupted_copy_of_standard_input_leaves_nothing(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge", host_mbit=20, uplink_mbit=20, controller_flags=SHORT_GRACE)
    bed.wait_until_measured()
    spool, dest = tmp_path / "spool", str(tmp_path / "{node}" / "copy")
    for number, expected_status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        job = copy_of_input(bed, str(spool), dest)
        job.stdin.write(noise(8, MIB))
        job.stdin.flush()
        wait_for(lambda: [file for file in spool.glob("*/input") if file.stat().st_size == MIB],
                 "the data received so far is kept")
        [folder] = spool.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "only its user can reach it"
        job.send_signal(number)
        job.wait(PATIENCE)
        status, _, errors = finish_with_input(job, None)
        assert status == expected_status and errors == "cool: interrupted while standard input was being read; nothing was copied\n", errors
        assert list(spool.iterdir()) == []
    before = sum(bed.link_bytes().values())
    job = copy_of_input(bed, str(spool), "--limit", "2M", dest)
    job.stdin.write(noise(9, 16 * MIB))
    job.stdin.close()
    wait_for(lambda: sum(bed.link_bytes().values()) - before > 6 * MIB, "some data has arrived")
    job.stdin = None
    job.send_signal(signal.SIGINT)
    assert finish_with_input(job, None)[0] == 130
    assert list(spool.iterdir()) == []
    assert not any(os.path.exists(tmp_path / node / "copy") for node in ("h2", "h3", "h4"))


def test_a_node_without_permission_is_named_and_the_others_copy(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", users=(PASSWD, GROUP))
    bed.run(["cool", "certs", bed.certificates, "--user", "ann"], check=True, capture_output=True)
    shutil.copy(os.path.join(bed.bin_dir, "cool"), bed.public)
    source = write(bed.public + "/source", noise(5, MIB))
    for node in ("h1", "h2", "h3", "h4"):
        os.makedirs(os.path.join(bed.public, node), exist_ok=True)
        os.chown(os.path.join(bed.public, node), 0 if node == "h3" else ANN, -1)
    command = [bed.public + "/cool", "copy", "--from", "h1", "--json", source, bed.public + "/{node}/copy"]
    for quorum, status in (("100%", 1), ("3", 0), ("75%", 0), ("80%", 1)):
        process = copy_as(bed, *command, "--quorum", quorum)
        assert process.returncode == status, process.stderr
        errors = process.stderr.splitlines()
        assert errors[0] == "cool: h3: %s/h3/.copy.cool-copy: Permission denied" % bed.public, process.stderr
        assert errors[1:] == (["cool: 3 of 4 nodes have a copy"] if status else [])
    for node in ("h1", "h2", "h4"):
        copy = os.path.join(bed.public, node, "copy")
        assert properties(copy) == properties(source) and os.stat(copy).st_uid == ANN
    assert os.listdir(os.path.join(bed.public, "h3")) == []


def test_a_swarm_continues_without_a_lost_node(make_bed, tmp_path):
    # One rack only: with several, the source sends blocks again if racks forward them slowly
    # (docs/design/swarm.md).
    bed = make_bed("tree:1x6", switches="bridge", host_mbit=20, controller_flags=SHORT_GRACE)
    job, source, dest = start_copy(bed, tmp_path, 6 * MIB, "--json", "--via", "swarm")
    bed.agents["h3"].signal(signal.SIGKILL)
    status, out, errors = ended(job)
    assert status == 1 and "cool: h3: it was lost during the copy" in errors, out + errors
    outcome = json.loads(out)
    assert outcome["via"] == "swarm"
    # On a busy machine, the source sends some blocks again, but not all of them.
    assert outcome["sent"] < 2 * outcome["bytes"], "the copy did not start again: %r" % outcome
    for node in outcome["nodes"]:
        missing = [count for _, count in node["progress"]]
        assert missing == sorted(missing, reverse=True), "no node lost what it had: %r" % outcome
    assert [node["node"] for node in outcome["nodes"] if node["error"]] == ["h3"]
    for node in ("h1", "h2", "h4", "h5", "h6"):
        assert filecmp.cmp(tmp_path / node / "copy", source, shallow=False)
        assert os.listdir(tmp_path / node) == ["copy"], "no other file is left"
    bed.restart_agent("h3")
    bed.wait_until_joined()


@pytest.mark.parametrize("way", ["auto", "swarm"])
def test_nodes_that_join_during_a_copy_resume_and_delay_no_copy(make_bed, tmp_path, way):
    bed = make_bed("tree:1x6", switches="bridge", host_mbit=20, controller_flags=SHORT_GRACE)
    wait_for(bed.whole, "all nodes are connected")
    end_agent(bed, "h5")
    wait_for(lambda: bed.found()[0] == 5, "one node is disconnected")
    bed.wait_until_measured()
    size = 24 * MIB
    source, dest = write(str(tmp_path / "source"), noise(12, size)), str(tmp_path / "{node}" / "copy")
    before = received_bytes(bed, "h3")
    job = start(bed, "cool", "copy", "--from", "h1", "--json", "--via", way, source, dest)
    wait_for(lambda: received_bytes(bed, "h3") - before > MIB, "some data has arrived")
    bed.start_agent("h5")
    # Four generations of 2 MiB arrive at the same time, or two pieces of 4 MiB; those that are
    # incomplete when a node is lost are sent again.
    wait_for(lambda: received_bytes(bed, "h3") - before > 14 * MIB, "some pieces are complete")
    bed.restart_agent("h3")
    status, out, errors = ended(job)
    assert status == 0 and "cool: lost h3; the others continue" in errors, out + errors
    outcome = json.loads(out)
    assert names(outcome) == ["h1", "h2", "h3", "h4", "h5", "h6"] and (outcome["via"] == "swarm") == (way == "swarm"), out
    for node in names(outcome):
        assert filecmp.cmp(tmp_path / node / "copy", source, shallow=False)
        assert os.listdir(tmp_path / node) == ["copy"], "no other file is left"
    progress = {node["node"]: node["progress"] for node in outcome["nodes"]}
    assert progress["h3"][0][1] < size == progress["h5"][0][1], "it continued from its partial copy: %r" % progress["h3"]
    seconds = {node: points[-1][0] for node, points in progress.items()}
    # h3 continues only when its agent has reconnected, with megabytes missing; h5 may catch up with
    # the other nodes.
    assert max(seconds[node] for node in ("h2", "h4", "h6")) < seconds["h3"], "no copy waits for others: %r" % seconds
