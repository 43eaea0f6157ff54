"""The same program in Rust, C and Python, over 16 nodes (`make bindings` builds them)."""
import os
import shutil

from conftest import ROOT, succeed

BINDINGS = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "bindings")
PROGRAMS = {
    "rust": [os.path.join(BINDINGS, "suite-rust")],
    "c": [os.path.join(BINDINGS, "suite-c")],
    "python": [os.path.join(BINDINGS, "python/bin/python3"), os.path.join(ROOT, "libcool/python/examples/suite.py")],
}


def test_programs_in_three_languages_receive_the_same_on_16_nodes(make_bed):
    bed = make_bed("tree:4x4", host_mbit=50, uplink_mbit=50)
    assert shutil.which(PROGRAMS["rust"][0]), "make bindings builds the programs"
    output = {name: succeed(bed, "cool", "run", "-n", "16", "--", *program) for name, program in PROGRAMS.items()}
    assert len(output["rust"].splitlines()) == 25
    assert output["c"] == output["rust"]
    assert output["python"] == output["rust"]
    groups = succeed(bed, "cool", "groups")
    assert "no groups" in groups.lower() or len(groups.splitlines()) <= 1, groups
