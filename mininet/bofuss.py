"""Switches other than Open vSwitch: BOFUSS, the basic OpenFlow 1.3 user-space software switch
(Fernandes et al., JNCA 2020), for tests of flow rules.

Its programs ofdatapath and ofprotocol must be on the PATH (tools/build-bofuss builds them). It
supports no TLS and forwards some hundred Mbit/s.
"""
import shutil
import subprocess
import tempfile

from emulator import Switch

PROGRAMS = ("ofdatapath", "ofprotocol")


def is_installed():
    return all(map(shutil.which, PROGRAMS))


class Bofuss(Switch):
    """A switch in the root namespace. `start` starts its datapath (ofdatapath), and `connect_to`
    the process that connects the datapath to the controller (ofprotocol)."""

    def start(self, _controllers):
        self.folder = tempfile.TemporaryDirectory(prefix="cool-bofuss-")
        self.processes = []
        ports = ",".join(intf.name for intf in self.intfList() if intf.name != "lo")
        self.start_program("ofdatapath", "-i", ports, "punix:" + self.socket(), "-d", "%012x" % int(self.dpid, 16), "--no-slicing")

    def connect_to(self, controller):
        self.start_program("ofprotocol", "unix:" + self.socket(), controller, "--fail=closed")

    def start_program(self, *command):
        log = open("%s/%s.log" % (self.folder.name, command[0]), "w")
        with log:
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def socket(self):
        return self.folder.name + "/datapath"

    def stop(self, deleteIntfs=True):
        for process in reversed(self.processes):
            process.terminate()
            process.wait()
        self.folder.cleanup()
        super().stop(deleteIntfs)
