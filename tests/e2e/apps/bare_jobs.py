"""The programs of COOL that a job starts on machines without agents, and the files of those programs."""
import glob
import os
import shutil
import tempfile

from conftest import wait_for


class JobFolder:
    """The directory in which the programs of a job have their files (TMPDIR). It belongs to a user."""

    def __init__(self, uid=0):
        # The paths of Unix sockets must be short.
        self.path = tempfile.mkdtemp(prefix="cool-")
        os.chown(self.path, uid, uid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)

    def programs(self):
        """Returns the process numbers of the programs, by which the job's processes are recognized: they have TMPDIR."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/environ" % pid, "rb") as f:
                    is_ours = ("TMPDIR=%s\0" % self.path).encode() in f.read()
                if is_ours and os.path.basename(os.readlink("/proc/%s/exe" % pid)).startswith("cool"):
                    found.append(int(pid))
            except OSError:
                continue  # It has ended.
        return found

    def wait_until_unused(self):
        """Waits until all programs have ended. They must have removed their files."""
        wait_for(lambda: not self.programs(), "the job's controller and agents have ended")
        remaining = glob.glob(self.path + "/cool-*")
        assert not remaining, remaining
