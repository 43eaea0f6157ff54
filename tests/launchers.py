"""Launchers of other makers in the emulated hosts: mpirun is started in the first, and starts its daemons in the others by `enter-host`."""
import os
import subprocess

from conftest import PATIENCE, ROOT

ENTER = os.path.join(ROOT, "bench", "enter-host")


def in_hosts(bed, folder, command, variables=()):
    """What a launcher leaves that is started in the first host; the finished process, with its output as text."""
    hosts = {h["name"]: h for h in bed.description["hosts"]}
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join("%s %s\n" % (bed.network.net.get(h).IP(), h) for h in hosts))
    (folder / "pids").write_text("".join("%s %d %s\n" % (name, h["pid"], h["interface"]) for name, h in hosts.items()))
    return subprocess.run([ENTER, "h1", " ".join(command)], env={**os.environ, **dict(variables), "BENCH_HOSTS": str(folder)}, capture_output=True,
                          text=True, timeout=PATIENCE)


def start_in_hosts(bed, folder, command, variables=()):
    """What it prints."""
    done = in_hosts(bed, folder, command, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
