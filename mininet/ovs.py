#!/usr/bin/python3
"""Open vSwitch for the length of a command: started if it does not run, stopped again if we started it.

    sudo mininet/ovs.py COMMAND [ARG...]
"""
import contextlib
import subprocess
import sys

CTL = "/usr/share/openvswitch/scripts/ovs-ctl"


def is_running():
    """Whether both daemons answer."""
    show = subprocess.run(["ovs-vsctl", "--timeout=5", "show"], capture_output=True)
    status = subprocess.run(["ovs-appctl", "--timeout=5", "-t", "ovs-vswitchd", "version"], capture_output=True)
    return show.returncode == 0 and status.returncode == 0


def daemon_pid():
    """Process id of the switch daemon."""
    with open("/var/run/openvswitch/ovs-vswitchd.pid") as f:
        return int(f.read())


@contextlib.contextmanager
def running():
    """Open vSwitch runs inside this context."""
    if is_running():
        yield
        return
    start = subprocess.run([CTL, "start", "--system-id=random", "--no-monitor"], capture_output=True, text=True)
    if not is_running():
        raise RuntimeError("Open vSwitch does not start: " + (start.stderr or start.stdout).strip())
    try:
        yield
    finally:
        subprocess.run([CTL, "stop"], capture_output=True)


@contextlib.contextmanager
def certified(folder):
    """Open vSwitch shows the switches' certificate of a folder made by `cool certs`, as long as this context lasts."""
    def vsctl(*arguments):
        return subprocess.run(["ovs-vsctl", *arguments], capture_output=True, text=True, check=True).stdout

    before = dict(line.split(": ", 1) for line in vsctl("get-ssl").splitlines() if ": " in line)
    vsctl("set-ssl", *("%s/%s" % (folder, name) for name in ("switch.key", "switch.pem", "ca.pem")))
    try:
        yield
    finally:
        if before.get("Private key"):
            vsctl("set-ssl", before["Private key"], before["Certificate"], before["CA Certificate"])
        else:
            vsctl("del-ssl")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    with running():
        status = subprocess.call(sys.argv[1:])
    sys.exit(status)
