"""A limit for each flow (5-tuple) that a host sends, as cloud providers enforce.

A classful queue (HTB) limits the host's link, and each of its classes a flow. Conntrack assigns
classes to connections in turn, to those that the host accepts, too. All other frames, such as ARP
and LLDP, use a class of their own.
"""
import subprocess

# Number of classes. A host with more flows shares them.
FLOWS = 256
OTHER_FRAMES = FLOWS + 1
# Bytes that may wait in a class, about as many as a connection sends at once.
QUEUE_KB = 128


def make_queues(intf, link_mbit, flow_mbit, burst_kb):
    """Limits what a host sends over an interface to `link_mbit`, and each flow to `flow_mbit`."""
    # This fails if the interface has no queue yet, which is not an error.
    subprocess.run(["mnexec", "-a", str(intf.node.pid), "tc", "qdisc", "delete", "dev", intf.name, "root"], capture_output=True)
    _feed(intf.node, ["tc", "-batch", "-"], queues(intf.name, link_mbit, flow_mbit, burst_kb))


def assign_classes(host, is_ipv6):
    """Assigns a class to each flow of a host."""
    _feed(host, ["ip6tables-restore" if is_ipv6 else "iptables-restore", "--noflush"], rules(host.defaultIntf().name))


def queues(device, link_mbit, flow_mbit, burst_kb):
    """Returns the commands of tc(8) that make the queues."""
    # Each class is entitled to its share of the link, and may use the rest up to its limit.
    share = "rate %gmbit" % (link_mbit / OTHER_FRAMES)
    burst = "burst %dkb cburst %dkb quantum 3000" % (burst_kb, burst_kb)
    lines = ["qdisc add dev %s root handle 1: htb default %x" % (device, OTHER_FRAMES),
             "class add dev %s parent 1: classid 1:ffff htb rate %gmbit %s" % (device, link_mbit, burst)]
    for number in range(1, OTHER_FRAMES + 1):
        ceiling = link_mbit if number == OTHER_FRAMES else flow_mbit
        lines.append("class add dev %s parent 1:ffff classid 1:%x htb %s ceil %gmbit %s" % (device, number, share, ceiling, burst))
        lines.append("qdisc add dev %s parent 1:%x bfifo limit %dkb" % (device, number, QUEUE_KB))
    return lines


def rules(device):
    """Returns the rules for iptables-restore(8) that assign a class to each flow."""
    unmarked = "-m connmark --mark 0"
    lines = ["*mangle", ":FLOWS -",
             "-A INPUT -i %s -m conntrack --ctstate NEW %s -j FLOWS" % (device, unmarked),
             "-A OUTPUT -o %s -m conntrack --ctstate NEW %s -j FLOWS" % (device, unmarked)]
    for number in range(1, FLOWS + 1):
        # Of the flows that reach this rule, it takes as many as each later rule.
        turn = "-m statistic --mode nth --every %d --packet 0" % (FLOWS + 1 - number)
        lines.append("-A FLOWS %s %s -j CONNMARK --set-mark %d" % (unmarked, turn, number))
        lines.append("-A POSTROUTING -o %s -m connmark --mark %d -j CLASSIFY --set-class 1:%x" % (device, number, number))
    return [*lines, "COMMIT"]


def _feed(host, command, lines):
    text = "\n".join(lines) + "\n"
    process = subprocess.run(["mnexec", "-a", str(host.pid), *command], input=text, capture_output=True, text=True, timeout=60)
    if process.returncode:
        raise RuntimeError("%s at %s: %s" % (" ".join(command), host.name, process.stderr.strip()))
