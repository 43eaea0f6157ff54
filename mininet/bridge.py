"""Switches without OpenFlow: bridges of the kernel, which learn addresses and forward multicast to
the ports where members have joined (IGMP and MLD snooping).

They run no spanning tree protocol, so the network must have no loops.
"""
import subprocess

from emulator import SILENCE, Switch, sh


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
        """Makes the bridge ask hosts for their memberships every 5 s; all bridges learn from the answers."""
        query = ("mcast_query_interval", "500", "mcast_query_response_interval", "50", "mcast_startup_query_interval", "50")
        sh("ip", "link", "set", self.name, "type", "bridge", "mcast_querier", "1", *query)

    def stop(self, deleteIntfs=True):
        subprocess.run(["ip", "link", "delete", self.name], capture_output=True, timeout=SILENCE)
        super().stop(deleteIntfs)
