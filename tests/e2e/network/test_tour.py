"""The tour in docs/guide/tour.md: every command that it shows works in the network that it describes, which stays healthy."""
import os
import re

from conftest import ROOT, succeed

# The directory for copies and stores in the tour.
TOUR_DIRECTORY = "/tmp/cool-tour"


def tour_commands():
    """Returns the command lines that the tour runs in the shell of the testbed."""
    with open(os.path.join(ROOT, "docs", "guide", "tour.md")) as f:
        block = re.search(r"^Run these commands in the shell.*?^```sh\n(.*?)^```$", f.read(), re.DOTALL | re.MULTILINE)
    return block.group(1).splitlines()


def test_each_command_of_the_tour_succeeds_on_a_healthy_network(make_bed, tmp_path):
    """`cool doctor` must report nothing, neither in the new network nor after the jobs, copies and benchmark of the tour."""
    commands = tour_commands()
    assert any(TOUR_DIRECTORY in command for command in commands), commands
    bed = make_bed("tree:4x4", host_mbit=50, uplink_mbit=50)
    bed.wait_until_measured()
    directory = str(tmp_path / "cool-tour")
    # The shell of the tour runs in the checkout and ignores the comments after the commands.
    outputs = [succeed(bed, "env", "--chdir=" + ROOT, "sh", "-c", command.replace(TOUR_DIRECTORY, directory)) for command in commands]
    diagnoses = [output for command, output in zip(commands, outputs) if command.split()[:2] == ["cool", "doctor"]]
    assert diagnoses == ["nothing is wrong: 5 switches, 16 nodes\n"] * 2, diagnoses
