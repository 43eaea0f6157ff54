"""The same program in Rust, C and Python (`make bindings` builds them), over 16 nodes and in one
process, prints the results in tests/e2e/suite.py."""
import json
import os
import shutil
import subprocess

import pytest
import suite
import testbed
from conftest import PATIENCE, ROOT, succeed
from network import MANAGEMENT_ADDRESS

BINDINGS = os.path.join(testbed.TARGET, "bindings")
PYTHON = os.path.join(BINDINGS, "python/bin/python3")


def programs(name):
    """Returns the commands of an example, by language."""
    built = {language: [os.path.join(BINDINGS, "%s-%s" % (name, language))] for language in ("rust", "c")}
    return {**built, "python": [PYTHON, os.path.join(ROOT, "libcool/python/examples/%s.py" % name)]}


def embedded(command, ranks):
    """Runs a program with all its ranks in one process."""
    environment = {**os.environ, "COOL_EMBEDDED": str(ranks)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)


PROGRAMS = programs("suite")


def same(printed, ranks):
    assert printed.splitlines() == suite.expected(ranks).splitlines()


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_program_prints_correct_results_on_16_nodes(make_bed, language):
    bed = make_bed("tree:4x4", switches="bridge", host_mbit=50, uplink_mbit=50)
    assert shutil.which(PROGRAMS[language][0]), "make bindings builds the programs"
    printed = succeed(bed, "cool", "run", "-n", "16", "--", *PROGRAMS[language])
    assert all(line.startswith("[0] ") for line in printed.splitlines())
    same("".join(line.removeprefix("[0] ") + "\n" for line in printed.splitlines()), 16)
    groups = succeed(bed, "cool", "groups")
    assert "no groups" in groups.lower() or len(groups.splitlines()) <= 1, groups


@pytest.mark.parametrize("ranks", [1, 5, 16])
@pytest.mark.parametrize("language", PROGRAMS)
def test_a_program_prints_the_same_in_one_process(language, ranks):
    done = embedded(PROGRAMS[language], ranks)
    assert done.returncode == 0, done.stderr
    same(done.stdout, ranks)


def test_a_program_copies_files_and_learns_nodes_without_copy(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    source, dest = tmp_path / "source", str(tmp_path / "{node}" / "%s")
    source.write_bytes(os.urandom(1 << 20))
    # The program runs on h1, because it uses that node's agent.
    on_h1 = ["mnexec", "-a", str(bed.network.net.get("h1").pid)]
    environment = {**bed.environment(), "COOL_CONTROLLER": bed.controller_address(MANAGEMENT_ADDRESS)}

    def run(command, *arguments):
        return subprocess.run([*on_h1, *command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=PATIENCE)

    for language, command in programs("copy_files").items():
        done = run(command, source, dest % language)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["bytes"] == 1 << 20 if language == "c" else done.stdout == "1048576 bytes on 4 nodes\n", done.stdout
        assert all((tmp_path / node / language).read_bytes() == source.read_bytes() for node in ("h1", "h2", "h3", "h4"))
        os.makedirs(tmp_path / "h3" / "taken")
        done = run(command, source, dest % "taken")
        assert done.returncode == 1 and "copy: h3: %s: is a directory" % (tmp_path / "h3" / "taken") in done.stderr, done.stderr
        shutil.rmtree(tmp_path / "h3" / "taken")
