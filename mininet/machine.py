"""Machines that boot a Debian system on the hosts of the emulated network.

Each machine has its own namespaces (processes, mounts, names, cgroups) and the network namespace of
its host. Its files are those of a directory (tools/debian-root), which does not change: writes stay
in memory and are lost when the machine ends. The first process is systemd, so units run as on a
real machine.
"""
import os
import secrets
import shlex
import subprocess
import tempfile
import time

BOOT_SECONDS = 120
# Shell script that starts a machine and waits outside of it, to remove the machine's cgroup when
# the machine has ended. $0 is the name of the cgroup, $1 the directory of the system, $2 the
# machine's name, $3 whether enabled services start.
OUTSIDE = """
mount -t cgroup2 none /sys/fs/cgroup
mkdir /sys/fs/cgroup/"$0"
setpriv --pdeathsig KILL sh -c 'echo $$ >/sys/fs/cgroup/"$0"/cgroup.procs && shift && exec "$@"' "$0" - \\
    unshare --mount --pid --uts --ipc --cgroup --fork --kill-child sh -euc "$INSIDE" "$1" "$2" "$3" || echo "ended with status $?"
find /sys/fs/cgroup/"$0" -depth -type d -exec rmdir {} +
"""
# Shell script that boots the machine inside its namespaces. $0 is the directory of the system, $1
# the machine's name, $2 is "bare" if enabled services do not start.
INSIDE = """
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir="$0",upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
cd /mnt/root
if [ "$2" = bare ]; then
    rm -rf etc/systemd/system etc/rc?.d etc/systemd/user/*.wants
    mkdir etc/systemd/system
fi
mount -t proc proc proc
# Kernel parameters are the whole machine's.
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
hostname "$1"
echo "$1" >etc/hostname
mkdir -p root/before
pivot_root . root/before
umount -l /root/before
rmdir /root/before
exec env -i container=cool-machine PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console
"""


class Machine:
    """A machine that runs as long as this context: `with Machine("h1", root, pid) as machine:
    machine.run("hostname")`.

    `root` is the directory of its system, which may be that of this system (`/`). Its network is that
    of the process `pid`, or that of this process. If it is `bare`, the services that are enabled in
    the system do not start.
    """

    def __init__(self, name, root, pid=None, bare=False):
        self.name, self.root, self.pid, self.bare = name, os.path.abspath(root), pid or os.getpid(), bare

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        command = ["nsenter", "--net=/proc/%d/ns/net" % self.pid, "unshare", "--mount", "sh", "-euc", OUTSIDE,
                   "cool-machine-" + secrets.token_hex(8), self.root, self.name, "bare" if self.bare else "enabled"]
        self.outside = subprocess.Popen(command, env={**os.environ, "INSIDE": INSIDE}, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, start_new_session=True)
        try:
            self._await_boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # All other processes of the machine end with its first process.
        if self.outside.poll() is None:
            first_pid = self._first_pid()
            if first_pid:
                os.kill(first_pid, 9)
            else:
                self.outside.terminate()
        self.outside.wait(BOOT_SECONDS)
        self.log.close()

    def _await_boot(self):
        end = time.monotonic() + BOOT_SECONDS
        while True:
            if self.outside.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                raise RuntimeError("machine %s does not boot: %s" % (self.name, self.log.read()[-2000:]))
            if self._first_pid() and self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"):
                return
            time.sleep(0.1)

    def _first_pid(self):
        """Returns the host's process id of the machine's first process, or None if it does not
        exist."""
        pid = self.outside.pid
        while True:
            with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
                children = f.read().split()
            if not children:
                return None
            pid = int(children[0])
            with open("/proc/%d/status" % pid) as f:
                pids = next(line.split()[1:] for line in f if line.startswith("NSpid:"))
            if len(pids) > len(self._own_pids()) and pids[-1] == "1":
                return pid

    @staticmethod
    def _own_pids():
        with open("/proc/self/status") as f:
            return next(line.split()[1:] for line in f if line.startswith("NSpid:"))

    def command(self, *command):
        """Returns a subprocess command that runs in the machine."""
        prefix = ["nsenter", "--target", str(self._first_pid()), "--all", "env", "-i", "HOME=/root", "USER=root", "LANG=C.UTF-8",
                  "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"]
        return [*prefix, "sh", "-c", "cd /root && exec " + shlex.join(command)]

    def run(self, *command, check=True, timeout=600):
        """Runs a command in the machine; returns the finished process, or raises a RuntimeError
        with its output."""
        process = subprocess.run(self.command(*command), capture_output=True, text=True, timeout=timeout)
        if check and process.returncode:
            raise RuntimeError("%s: %s: status %d\n%s%s" % (self.name, " ".join(command), process.returncode, process.stdout, process.stderr))
        return process

    def path(self, path):
        """Returns the path by which this process reaches a file of the machine."""
        return "/proc/%d/root%s" % (self._first_pid(), path)
