"""Launchers of other makers in the emulated hosts: mpirun is started in the first, and starts its daemons in the others by `enter-host`."""
import os
import subprocess

from conftest import PATIENCE, ROOT

ENTER = os.path.join(ROOT, "bench", "enter-host")


def begin_in_hosts(bed, folder, command, variables=()):
    """Starts a launcher in the first host; the process, whose output is text."""
    hosts = {h["name"]: h for h in bed.description["hosts"]}
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join("%s %s\n" % (bed.network.net.get(h).IP(), h) for h in hosts))
    (folder / "pids").write_text("".join("%s %d %s\n" % (name, h["pid"], h["interface"]) for name, h in hosts.items()))
    return subprocess.Popen([ENTER, "h1", " ".join(command)], env={**os.environ, **dict(variables), "BENCH_HOSTS": str(folder)},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    """A process once it has ended, with its output."""
    try:
        out, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def start_in_hosts(bed, folder, command, variables=()):
    """What a launcher prints."""
    done = ended(begin_in_hosts(bed, folder, command, variables))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
