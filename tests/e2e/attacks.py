"""Attacks of a user with a certificate: by ranks on agents and launchers, and by requests to the
controller. Each returns figures about itself and raises an error if it succeeds. `hostile.py` has the
attacks on the network.

A caller must also check that other users' jobs go on."""
import json
import os
import signal
import subprocess
import time

from testbed import PATIENCE, Failure, wait_for

# Bytes that one attack may add to the logs of the controller and of each agent.
LOG_BYTES_MAX = 1 << 20
# Sequences that clear a terminal and change its title, by ESC and by the C1 control character.
ESCAPE_SEQUENCES = "\x1b[2J\x1b]0;x\x07\x9b2J"
# A rank that stops each process of its user whose number is among the next ones, so that it stops
# between the launcher's fork and the program's start. It ends after $1 seconds.
STOP_CHILDREN = """
import os, signal, sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    last = os.fork()
    if last == 0:
        os._exit(0)
    os.waitpid(last, 0)
    for pid in range(last - 2, last + 20):
        if pid != os.getpid():
            try:
                os.kill(pid, signal.SIGSTOP)
            except (PermissionError, ProcessLookupError):
                pass
"""


class IncompleteAttack(Failure):
    """An attack that could not be carried out, for example because no controller leads."""


class Attacker:
    """A user of a testbed with launchers. `bed.public` must contain `cool-misuse`."""

    def __init__(self, bed, user, uid, node):
        self.bed, self.user, self.uid, self.node = bed, user, uid, node
        self.environment = {**bed.environment(), "COOL_CERTS": os.path.join(bed.certificates, "users", user)}

    def attack(self, name, seconds):
        """Runs one of `ATTACKS` for that time. Raises an error if a log has grown beyond its bound
        or processes of the user remain."""
        sizes = {daemon: os.path.getsize(daemon.log) for daemon in self.bed.daemons}
        results = ATTACKS[name](self, seconds)
        for daemon, size in sizes.items():
            if os.path.exists(daemon.log) and os.path.getsize(daemon.log) > size + LOG_BYTES_MAX:
                raise Failure("%s has written %d bytes to its log" % (daemon.name, os.path.getsize(daemon.log) - size))
        wait_for(lambda: not self.processes(), "no process of %s remains" % self.user)
        return results

    def processes(self):
        """Returns the numbers of this user's processes that have not ended."""
        return [pid for pid in filter(str.isdigit, os.listdir("/proc")) if is_process_of(pid, self.uid)]

    def start(self, *command, **options):
        """Starts a command of `cool` as this user, in a directory that every user may access."""
        return subprocess.Popen(["cool", *command], env=self.environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def start_job(self, *command):
        return self.start("run", "-n", "1", "--hosts", self.node, "--", *command)

    def rank(self, *arguments):
        """Runs cool-misuse as a rank. Returns the figures that it prints."""
        return figures(self.start_job(os.path.join(self.bed.public, "cool-misuse"), *arguments))

    def tool(self, *arguments):
        """Runs cool-misuse next to the controller. Returns the figures that it prints."""
        command = [os.path.join(self.bed.public, "cool-misuse"), *arguments]
        return figures(subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def wait_until_running(self, job):
        """Waits until the user's only job runs. Returns its number."""
        while job.poll() is None:
            process = self.start("jobs", "--json")
            out, errors = process.communicate(timeout=PATIENCE)
            if process.returncode:
                raise IncompleteAttack("cool jobs: %s" % errors.strip())
            for listed in json.loads(out)["jobs"]:
                if listed["state"] == "running":
                    return listed["job"]
        raise IncompleteAttack("the job has ended with status %d" % job.returncode)

    def cancel(self, job):
        """Ends a job that was started here, and waits for its command."""
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=PATIENCE)


def is_process_of(pid, uid):
    try:
        with open("/proc/%s/status" % pid) as f:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status["Uid"].split()[0] == str(uid) and not status["State"].startswith("Z")


def figures(process):
    """Returns the JSON object in the last line of a program's output."""
    out, errors = process.communicate(timeout=PATIENCE)
    if process.returncode or "{" not in out:
        raise IncompleteAttack("status %d: %s" % (process.returncode, (out + errors).strip()))
    return json.loads(out[out.rindex("{"):])


def flood_frames(attacker, seconds):
    kinds = ("cancel", "watched", "check-plan", "revoke")
    return {kind: attacker.rank("flood-frames", kind, "--seconds", str(max(1, seconds // len(kinds))))["bytes"] for kind in kinds}


def hoard_regions(attacker, seconds):
    return attacker.rank("hoard-regions", "--ranks", "256", "--seconds", str(seconds))


def submit_long_jobs(attacker, _seconds):
    """Submits jobs that are longer than a launcher accepts, and than a message may be."""
    results = {size: attacker.tool("long-job", str(size)) for size in (200_000, (64 << 20) - 200, (64 << 20) + 200)}
    accepted = [size for size, result in results.items() if result["refused"] is None]
    if accepted:
        raise Failure("jobs with arguments of these lengths are accepted: %s" % accepted)
    return results


def flood_signals(attacker, seconds):
    job = attacker.start_job("sleep", "1000")
    try:
        return attacker.tool("flood-signals", str(attacker.wait_until_running(job)), "--seconds", str(seconds))
    finally:
        attacker.cancel(job)


def hoard_connections(attacker, seconds):
    address = attacker.environment["COOL_CONTROLLER"].split("//")[1].split(",")[0]
    return attacker.tool("hoard-connections", address, "--seconds", str(seconds))


def print_without_reader(attacker, seconds):
    """Runs a job that prints without end while its command is stopped."""
    job = attacker.start_job("yes")
    try:
        attacker.wait_until_running(job)
        job.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        job.send_signal(signal.SIGCONT)
    finally:
        attacker.cancel(job)
    return {}


def stop_children(attacker, seconds):
    """Starts jobs while a rank stops new processes of its user, and cancels them."""
    stopper = attacker.start_job("/usr/bin/python3", "-c", STOP_CHILDREN, str(seconds))
    jobs = 0
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            attacker.cancel(attacker.start_job("sleep", "1000"))
            jobs += 1
    finally:
        attacker.cancel(stopper)
    return {"jobs": jobs}


def print_escape_sequences(attacker, _seconds):
    """Starts a job whose arguments contain escape sequences; an operator must not receive them."""
    job = attacker.start_job("sh", "-c", "sleep 1000", ESCAPE_SEQUENCES)
    try:
        attacker.wait_until_running(job)
        for command in (["jobs"], ["jobs", "--json"], ["groups"]):
            out = attacker.bed.run(["cool", *command], capture_output=True, text=True, timeout=PATIENCE).stdout
            if any(character in out for character in "\x1b\x07\x9b"):
                raise Failure("cool %s prints %r" % (" ".join(command), out))
    finally:
        attacker.cancel(job)
    return {}


ATTACKS = {
    "a rank floods its agent with frames": flood_frames,
    "a process hoards connections and memory regions": hoard_regions,
    "a user submits jobs that are too long": submit_long_jobs,
    "a user floods a job with signals": flood_signals,
    "a user hoards connections to the controller": hoard_connections,
    "a job prints while its command is stopped": print_without_reader,
    "a rank stops processes before they start": stop_children,
    "a job's arguments contain escape sequences": print_escape_sequences,
}
