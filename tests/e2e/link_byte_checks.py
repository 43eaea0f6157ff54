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

# How often an action is performed until no fault is found.
ATTEMPTS = 3


def drops(bed):
    """Returns the packets that the emulation has dropped so far, by place."""
    counts = collections.Counter()
    for _, count in switch_sockets():
        counts["sockets of switches"] += count
    for link in bed.description["links"]:
        counts["queues"] += queue_drops(link["a_intf"])
        for direction in ("rx", "tx"):
            with open("/sys/class/net/%s/statistics/%s_dropped" % (link["a_intf"], direction)) as f:
                counts["interfaces"] += int(f.read())
    for host in bed.description["hosts"]:
        prefix = ["mnexec", "-a", str(host["pid"])]
        counts["queues"] += queue_drops(host["interface"], prefix)
        output = subprocess.check_output([*prefix, "ss", "-H", "-u", "-a", "-n", "-m"], text=True)
        counts["sockets of hosts"] += sum(map(int, re.findall(r"skmem:\([^)]*\bd(\d+)\)", output)))
    return counts


def queue_drops(interface, prefix=()):
    """Returns the packets that the queues of an interface have dropped; the command prefix selects
    the namespace."""
    output = subprocess.check_output([*prefix, "tc", "-s", "-j", "qdisc", "show", "dev", interface], text=True)
    return sum(qdisc.get("drops", 0) for qdisc in json.loads(output))


def switch_sockets():
    """Returns, for each socket with which Open vSwitch receives and sends packets, the receive and
    send buffers in bytes, and the drops."""
    output = subprocess.check_output(["ss", "-H", "-0", "-a", "-n", "-m", "-p"], text=True)
    matches = re.findall(r'"ovs-vswitchd",.*?skmem:\(r\d+,rb(\d+),t\d+,tb(\d+),.*?\bd(\d+)\)', output)
    assert matches, "Open vSwitch has sockets: %s" % output
    return [(min(int(receive), int(send)), int(count)) for receive, send, count in matches]


def assert_carried(bed, action, judge):
    """Asserts that `judge(carried)` finds no fault in the bytes that each link, by (from, to),
    carried during `action`.

    `judge` returns the faults in words. If there are any, the action is repeated, because links
    also carry the packets of the daemons, which are many while a busy machine performs the action
    slowly. If there are faults every time, and the emulation lost packets each time or its buffers
    are too small to tell, the test is skipped. The reason contains the measurements.
    """
    attempts, was_undisturbed = [], False
    for _ in range(ATTEMPTS):
        # Agents of a new network probe each other, which would count as traffic of the action.
        bed.wait_until_measured(testbed.PATIENCE)
        before, dropped = bed.link_bytes(), drops(bed)
        action()
        carried = {link: count - before[link] for link, count in bed.link_bytes().items()}
        fault = judge(carried)
        if not fault:
            return
        dropped = {place: count for place, count in (drops(bed) - dropped).items() if count}
        buffer_bytes = min(buffer_bytes for buffer_bytes, _ in switch_sockets())
        was_undisturbed |= not dropped and buffer_bytes >= ovs.SOCKET_BYTES
        attempts.append("%s; dropped: %s; sockets of switches have %d bytes of %d" % (fault, dropped or "nothing that is counted", buffer_bytes, ovs.SOCKET_BYTES))
    assert not was_undisturbed, " | ".join(attempts)
    pytest.skip("the emulation loses packets: " + " | ".join(attempts))
