"""What links carry, judged only where the emulation loses nothing: whatever it loses is sent once more, and links carry it twice.

Sockets of switches that are smaller than the queues of the network drop packets, and so do those of a switch or an agent that waits
for a processor for long. Most of that is counted somewhere; what a switch cannot send for want of room is not.
"""
import collections
import json
import re
import subprocess

import ovs
import pytest
import testbed

# How often an action is repeated during which the emulation has lost something.
ATTEMPTS = 3


def lost(bed):
    """Returns the packets that the emulation itself has dropped so far, by the place where it did."""
    dropped = collections.Counter()
    for _, drops in switch_sockets():
        dropped["sockets of switches"] += drops
    for link in bed.description["links"]:
        dropped["queues"] += queue_drops(link["a_intf"])
        for direction in ("rx", "tx"):
            with open("/sys/class/net/%s/statistics/%s_dropped" % (link["a_intf"], direction)) as f:
                dropped["interfaces"] += int(f.read())
    for host in bed.description["hosts"]:
        inside = ["mnexec", "-a", str(host["pid"])]
        dropped["queues"] += queue_drops(host["interface"], inside)
        listed = subprocess.check_output([*inside, "ss", "-H", "-u", "-a", "-n", "-m"], text=True)
        dropped["sockets of hosts"] += sum(map(int, re.findall(r"skmem:\([^)]*\bd(\d+)\)", listed)))
    return dropped


def queue_drops(interface, inside=()):
    """Returns the packets that the queues of an interface have dropped, in the namespace of the command's beginning."""
    listed = subprocess.check_output([*inside, "tc", "-s", "-j", "qdisc", "show", "dev", interface], text=True)
    return sum(qdisc.get("drops", 0) for qdisc in json.loads(listed))


def switch_sockets():
    """Returns the room, in bytes to receive and to send, and the drops of each socket by which Open vSwitch takes and sends packets."""
    listed = subprocess.check_output(["ss", "-H", "-0", "-a", "-n", "-m", "-p"], text=True)
    found = re.findall(r'"ovs-vswitchd",.*?skmem:\(r\d+,rb(\d+),t\d+,tb(\d+),.*?\bd(\d+)\)', listed)
    assert found, "Open vSwitch has sockets: %s" % listed
    return [(min(int(receive), int(send)), int(drops)) for receive, send, drops in found]


def judged(bed, action, judge):
    """Asserts that `judge(carried)` finds nothing wrong with the bytes that each link has carried during `action`, by (from, to).

    `judge` returns what is wrong in words. If something is, and the emulation has lost packets or has too little room to tell, the
    action is repeated; if that goes on, the test is skipped, and the reason has what was measured.
    """
    told = []
    for _ in range(ATTEMPTS):
        # Agents that still probe each other, as they do in a new network, would count as carrying more.
        bed.wait_until_measured(testbed.PATIENCE)
        before, gone = bed.link_bytes(), lost(bed)
        action()
        carried = {link: count - before[link] for link, count in bed.link_bytes().items()}
        wrong = judge(carried)
        if not wrong:
            return
        gone = {place: count for place, count in (lost(bed) - gone).items() if count}
        room = min(room for room, _ in switch_sockets())
        assert gone or room < ovs.SOCKET_BYTES, wrong
        told.append("%s; dropped: %s; sockets of switches have %d bytes of %d" % (wrong, gone or "nothing that is counted", room, ovs.SOCKET_BYTES))
    pytest.skip("the emulation loses packets: " + " | ".join(told))
