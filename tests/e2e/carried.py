"""Checks of the bytes on links, valid only while the emulation loses no packets, because links
carry retransmissions too.

Switch sockets that are smaller than the queues of the network drop packets, and so do those of a
switch or an agent that waits long for a CPU. Most of these drops are counted; packets that a switch
cannot send for lack of buffers are not.
"""
import collections
import json
import re
import subprocess

import ovs
import pytest
import testbed

# How often an action is repeated if the emulation lost packets during it.
ATTEMPTS = 3


def lost(bed):
    """Returns the packets that the emulation has dropped so far, by place."""
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
    """Returns the packets that the queues of an interface have dropped; the command prefix selects
    the namespace."""
    listed = subprocess.check_output([*inside, "tc", "-s", "-j", "qdisc", "show", "dev", interface], text=True)
    return sum(qdisc.get("drops", 0) for qdisc in json.loads(listed))


def switch_sockets():
    """Returns, for each socket with which Open vSwitch receives and sends packets, the receive and
    send buffers in bytes, and the drops."""
    listed = subprocess.check_output(["ss", "-H", "-0", "-a", "-n", "-m", "-p"], text=True)
    found = re.findall(r'"ovs-vswitchd",.*?skmem:\(r\d+,rb(\d+),t\d+,tb(\d+),.*?\bd(\d+)\)', listed)
    assert found, "Open vSwitch has sockets: %s" % listed
    return [(min(int(receive), int(send)), int(drops)) for receive, send, drops in found]


def judged(bed, action, judge):
    """Asserts that `judge(carried)` finds no fault in the bytes that each link, by (from, to),
    carried during `action`.

    `judge` returns the faults in words. If there are any, and the emulation lost packets or its
    buffers are too small to tell, the action is repeated. If this persists, the test is skipped,
    and the reason contains the measurements.
    """
    told = []
    for _ in range(ATTEMPTS):
        # Agents of a new network probe each other, which would count as traffic of the action.
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
