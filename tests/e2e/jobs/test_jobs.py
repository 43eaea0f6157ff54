"""Jobs of users: the nodes of their ranks, their output, and that nothing is left when they end."""
import os
import signal
import subprocess
import time

from conftest import PATIENCE, run, succeed

def processes(mark):
    """Returns the processes with `mark` among their arguments, except those of `cool` itself."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                words = f.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mark in words and not words[0].endswith("cool"):
            pids.append(int(pid))
    return pids


def running(bed):
    return bed.cool_json("jobs")["jobs"]


def start(bed, *command):
    """Starts a command in the background of the test."""
    return subprocess.Popen(command, env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(command, count):
    """Returns the next lines that a command prints, sorted by rank."""
    output_lines = sorted(command.stdout.readline() for _ in range(count))
    assert all(output_lines), "the command has ended: %r" % (ended(command),)
    return output_lines


def ended(command):
    """Waits until a command has ended; returns its status, output and error messages."""
    try:
        out, errors = command.communicate(timeout=PATIENCE)
    finally:
        command.kill()
    return command.returncode, out, errors


# The program of each rank. It and its child process ignore SIGTERM. "$0" marks both processes.
STUBBORN = "trap '' TERM; sh -c 'trap \"\" TERM; echo up; while :; do sleep 0.2; done' \"$0\" & wait; while :; do sleep 0.2; done"


def racks(bed):
    """Returns the nodes of each rack by number. The racks are in the order in which jobs use them:
    that of their first nodes."""
    nodes_by_rack = {}
    for node in bed.cool_json("topology")["nodes"]:
        nodes_by_rack.setdefault(node["rack"], []).append(node["name"])
    return dict(sorted(nodes_by_rack.items(), key=lambda rack: rack[1]))


def test_ranks_run_on_the_requested_nodes(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    (_, (a, b)), (second, (c, d)) = racks(bed).items()

    def run_on(*options):
        """Returns the nodes of the ranks, in rank order."""
        lines = succeed(bed, "cool", "run", *options, "--", "sh", "-c", "basename $COOL_SOCKET .sock").splitlines()
        return [line.split()[1] for line in sorted(lines)]

    assert run_on("-n", "4", "--ranks-per-node", "2") == [a, a, b, b]
    assert run_on("-n", "2", "--hosts", b + "," + d) == [b, d]
    assert run_on("--racks", str(second)) == [c, d]
    # A node of the first rack is busy, so two ranks on separate nodes run in the other rack.
    busy = start(bed, "cool", "run", "-n", "4", "--hosts", a, "--", "sh", "-c", "echo up; sleep 1000")
    lines(busy, 4)
    assert run_on("-n", "2") == [c, d]
    result = run(bed, "cool", "run", "--hosts", "h9", "--", "true")
    assert result.returncode == 1 and "no node h9 is ready; ready nodes: h1, h2, h3, h4" in result.stderr
    busy.send_signal(signal.SIGINT)
    assert ended(busy)[0] == 130


def test_output_goes_into_files(make_bed, tmp_path):
    bed = make_bed("tree:2x2", switches="bridge")
    command = "echo out $COOL_RANK $HELLO; pwd; echo err $COOL_RANK >&2"
    process = run(bed, "cool", "run", "-n", "3", "--output", str(tmp_path / "logs"), "--env", "HELLO=there", "--workdir", "/usr", "--",
               "sh", "-c", command)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    for rank in range(3):
        assert (tmp_path / "logs" / ("%d.out" % rank)).read_text() == "out %d there\n/usr\n" % rank
        assert (tmp_path / "logs" / ("%d.err" % rank)).read_text() == "err %d\n" % rank


def test_the_first_failure_ends_every_process_of_the_job(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    script = "if [ $COOL_RANK = 2 ]; then read line < %s; exit 7; fi; " + STUBBORN
    fifo = os.path.join(bed.directory, "go")
    os.mkfifo(fifo)
    job = start(bed, "cool", "run", "-n", "4", "--", "sh", "-c", script % fifo, "cool-test-failing")
    assert lines(job, 3) == ["[0] up\n", "[1] up\n", "[3] up\n"]
    with open(fifo, "w") as f:
        f.write("go\n")
    status, _, errors = ended(job)
    assert status == 7 and "rank 2 on %s exited with status 7" % list(racks(bed).values())[1][0] in errors, errors
    assert processes("cool-test-failing") == []


def test_an_interrupt_ends_all_processes_before_cool_returns(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    job = start(bed, "cool", "run", "-n", "4", "--", "sh", "-c", STUBBORN, "cool-test-interrupted")
    lines(job, 4)
    assert len(processes("cool-test-interrupted")) >= 8
    job.send_signal(signal.SIGTERM)
    status, _, errors = ended(job)
    assert status == 143 and "the job has ended" in errors, errors
    assert processes("cool-test-interrupted") == []
    assert running(bed) == []


def test_an_interrupt_at_any_moment_leaves_no_job(make_bed):
    """The signals arrive while the command starts, while it submits its job, and while the job starts."""
    bed = make_bed("tree:2x2", switches="bridge")
    for step in range(24):
        job = start(bed, "cool", "run", "-n", "1", "--", "sleep", "1000")
        time.sleep(step * 0.005)
        job.send_signal(signal.SIGINT)
        status, _, errors = ended(job)
        assert status in (-signal.SIGINT, 130), (status, errors)
        assert running(bed) == [], "the signal came %d ms after the start" % (step * 5)


def test_jobs_are_listed_signaled_and_canceled(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    script = "trap 'echo got it' USR1; echo up; while :; do sleep 0.1; done"
    job = start(bed, "cool", "run", "-n", "2", "--time-limit", "5m", "--", "sh", "-c", script)
    assert lines(job, 2) == ["[0] up\n", "[1] up\n"]
    [description] = running(bed)
    assert (description["state"], description["nodes"], description["program"], description["time_limit_ms"]) == ("running", next(iter(racks(bed).values())), "sh", 300000)
    assert "5:00" in succeed(bed, "cool", "jobs")
    job.send_signal(signal.SIGUSR1)
    assert lines(job, 2) == ["[0] got it\n", "[1] got it\n"]
    succeed(bed, "cool", "cancel", "--signal", "USR1", str(description["job"]))
    assert lines(job, 2) == ["[0] got it\n", "[1] got it\n"]
    succeed(bed, "cool", "cancel", str(description["job"]))
    status, _, errors = ended(job)
    assert status == 143 and "canceled by" in errors, errors
    assert running(bed) == []
    result = run(bed, "cool", "cancel", str(description["job"]))
    assert result.returncode == 1 and "no job %d is running" % (description["job"] % 100_000) in result.stderr


def test_a_job_ends_when_its_time_is_over(make_bed):
    bed = make_bed("tree:2x2", switches="bridge")
    process = run(bed, "cool", "run", "-n", "4", "--time-limit", "1", "--", "sh", "-c", STUBBORN, "cool-test-late")
    assert process.returncode == 124 and "it exceeded its time limit of 1s" in process.stderr, process.stderr
    assert processes("cool-test-late") == []
