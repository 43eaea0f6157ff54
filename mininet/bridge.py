"""Switches without OpenFlow: bridges of the kernel, which learn addresses and forward multicast to
the ports where members have joined (IGMP and MLD snooping).

They run no spanning tree protocol, so the network must have no loops.
"""
import subprocess
import time

from emulator import SILENCE, Switch, sh

# The time within which hosts answer a query.
RESPONSE_MS = 500


class Bridge(Switch):
    """A bridge in the root namespace."""

    def start(self, _controllers):
        sh("ip", "link", "add", self.name, "type", "bridge", "stp_state", "0", "mcast_snooping", "1")
        # The bridge itself must send nothing, such as router solicitations.
        sh("sysctl", "-qw", "net.ipv6.conf.%s.disable_ipv6=1" % self.name)
        for intf in self.intfList():
            if intf.name != "lo":
                sh("ip", "link", "set", intf.name, "master", self.name, "up")
        sh("ip", "link", "set", self.name, "up")

    def query_members(self):
        """Makes the bridge ask hosts for their memberships every 5 s; all bridges learn from the answers.

        Returns when bridges forward multicasts only to members. Until the time for the first answers has passed, they also
        flood reports. A host that hears another host's report sends none (RFC 2236, section 3), and would be no member until
        the next query. The kernel shows no event for that moment."""
        times = ("mcast_query_interval", "500", "mcast_query_response_interval", str(RESPONSE_MS // 10), "mcast_startup_query_interval", "50")
        # The bridge reads the times when it becomes querier.
        sh("ip", "link", "set", self.name, "type", "bridge", *times)
        sh("ip", "link", "set", self.name, "type", "bridge", "mcast_querier", "1")
        time.sleep(2 * RESPONSE_MS / 1000)

    def stop(self, deleteIntfs=True):
        subprocess.run(["ip", "link", "delete", self.name], capture_output=True, timeout=SILENCE)
        super().stop(deleteIntfs)
