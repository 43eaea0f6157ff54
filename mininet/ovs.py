#!/usr/bin/python3
"""Runs Open vSwitch for the duration of a command: starts it if it does not run, and then stops it
again.

    sudo mininet/ovs.py COMMAND [ARG...]
"""
import contextlib
import fcntl
import pathlib
import re
import subprocess
import sys

from signal_cleanup import unwind_on_signals

# Seconds within which a command must end after a signal.
END_SECONDS = 30
CTL = "/usr/share/openvswitch/scripts/ovs-ctl"

# Packets that the userspace datapath forwards wait for shaped ports in the one packet socket that
# sends them, and before that in a socket of the port where they arrived. With the default size of
# about 90 packets, the sending socket holds less than the queue of a single port, and drops the
# rest without a report.
SOCKET_BYTES = 32 << 20
# Seconds within which Open vSwitch's daemons must start or end, even on a busy machine.
START_SECONDS = 300
SOCKET_DEFAULTS = ("wmem_default", "rmem_default")
# File that programs lock while they need large socket buffers. It contains the sizes that the first
# of them found.
SOCKET_USERS = "/run/lock/cool-socket-sizes"


def is_running():
    """Returns whether both daemons answer."""
    show = subprocess.run(["ovs-vsctl", "--timeout=600", "show"], capture_output=True)
    status = subprocess.run(["ovs-appctl", "--timeout=600", "-t", "ovs-vswitchd", "version"], capture_output=True)
    return show.returncode == 0 and status.returncode == 0


def daemon_pid():
    """Returns the process id of the switch daemon."""
    with open("/var/run/openvswitch/ovs-vswitchd.pid") as f:
        return int(f.read())


@contextlib.contextmanager
def roomy_sockets():
    """Sockets that are opened inside this context can hold all packets of the queues of an emulated
    network.

    The sizes belong to the machine, so programs that run at the same time share them: the last one
    to leave restores the sizes that the first one found.
    """
    settings = [pathlib.Path("/proc/sys/net/core", name) for name in SOCKET_DEFAULTS]
    # A network namespace can at most read these sizes; its creator has set them.
    settings = [setting for setting in settings if setting.exists()]
    with open(SOCKET_USERS, "a+") as users:
        with socket_sizes_locked():
            # Every program inside this context holds a shared lock, so an exclusive one is
            # available only to the last.
            fcntl.flock(users, fcntl.LOCK_SH)
            users.seek(0)
            before = users.read().split()
            if not before:
                before = [setting.read_text().strip() for setting in settings]
                print(*before, file=users, flush=True)
            try:
                for setting in settings:
                    if int(setting.read_text()) < SOCKET_BYTES:
                        setting.write_text(str(SOCKET_BYTES))
            except OSError as error:
                print("warning: switches will drop packets that wait in queues: %s" % error, file=sys.stderr)
        try:
            yield
        finally:
            with socket_sizes_locked(), contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(OSError):
                    for setting, value in zip(settings, before):
                        setting.write_text(value)
                users.truncate(0)


@contextlib.contextmanager
def socket_sizes_locked():
    """Admits one program of the machine at a time to this context. Others wait, so it must be
    short."""
    with open(SOCKET_USERS + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def warn_of_small_sockets():
    """Prints a warning if the running daemon was started with sockets that are too small for the
    queues of an emulated network."""
    output = subprocess.run(["ss", "-H", "-x", "-n", "-p", "-m"], capture_output=True, text=True).stdout
    sizes = [int(size) for size in re.findall(r'"ovs-vswitchd",.*?\brb(\d+)', output)]
    if sizes and max(sizes) < SOCKET_BYTES:
        print("warning: Open vSwitch was started with sockets of %d bytes, too few for the packets "
              "that wait for shaped ports, and will drop packets; "
              "stop it, so that one with larger sockets is started" % max(sizes), file=sys.stderr)


@contextlib.contextmanager
def running():
    """Runs Open vSwitch during this context, if it does not run already."""
    if is_running():
        warn_of_small_sockets()
        yield
        return
    with roomy_sockets():
        start = subprocess.run([CTL, "start", "--system-id=random", "--no-monitor"], capture_output=True, text=True, timeout=START_SECONDS)
        if not is_running():
            raise RuntimeError("Open vSwitch does not start: " + (start.stderr or start.stdout).strip())
        try:
            yield
        finally:
            subprocess.run([CTL, "stop"], capture_output=True, timeout=START_SECONDS)


@contextlib.contextmanager
def use_certificates(folder):
    """Makes Open vSwitch use the switches' certificate during this context, and restores the
    previous configuration afterwards. `folder` is a directory that `cool certs` has made."""
    def vsctl(*arguments):
        return subprocess.run(["ovs-vsctl", "--timeout=%d" % START_SECONDS, *arguments], capture_output=True, text=True, check=True).stdout

    before = dict(line.split(": ", 1) for line in vsctl("get-ssl").splitlines() if ": " in line)
    vsctl("set-ssl", *("%s/%s" % (folder, name) for name in ("switch.key", "switch.pem", "ca.pem")))
    try:
        yield
    finally:
        if before.get("Private key"):
            vsctl("set-ssl", before["Private key"], before["Certificate"], before["CA Certificate"])
        else:
            vsctl("del-ssl")


def run_to_end(command, environment=None):
    """Returns the exit status of a command in a shell's notation. A signal that ends this process
    also ends the command."""
    child = subprocess.Popen(command, env=environment)
    try:
        status = child.wait()
    except BaseException:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    unwind_on_signals()
    try:
        with running():
            status = run_to_end(sys.argv[1:])
    except (RuntimeError, OSError) as e:
        sys.exit("ovs: %s" % e)
    sys.exit(status)
