"""The caller of a job loses its connection or its controller, or is interrupted: the job continues,
and every line is printed once or reported lost."""
import re
import signal
import subprocess
import time

import network
from conftest import PATIENCE, SHORT_GRACE, log_of, run, succeed, wait_for
from test_management_failures import BLINK, away, management_down, restarted_in_order
from test_jobs import ended, lines, running, start
from test_recovery import killed_controller

# The program of each rank, which counts until the file exists.
COUNT = "i=0; until test -e %s; do i=$((i+1)); echo $i; sleep 0.05; done; echo last $i"


def parse_output(out, errors):
    """Returns the numbers that each rank has printed, in order, and how many lines are reported
    lost; all ranks printed their last."""
    printed, lost = {}, {}
    for rank, text in re.findall(r"^\[(\d+)\] (.*)$", out, re.M):
        printed.setdefault(int(rank), []).append(text)
    for count, rank in re.findall(r"^cool: (\d+) lines of rank (\d+) are lost$", errors, re.M):
        lost[int(rank)] = lost.get(int(rank), 0) + int(count)
    for rank, texts in printed.items():
        numbers = [int(text) for text in texts[:-1]]
        assert numbers == sorted(set(numbers)), "rank %d: a line is duplicated or out of order: %s" % (rank, numbers)
        last = int(texts[-1].removeprefix("last "))
        assert len(numbers) + lost.get(rank, 0) == last, "rank %d: %d lines of %d, %d lost" % (rank, len(numbers), last, lost.get(rank, 0))
    return printed, lost


class CountingJob:
    """A job on all nodes that counts until it is finished, its output in files."""

    def __init__(self, bed, mark, prefix=(), **environment):
        self.bed, self.stop_file = bed, "%s/%s" % (bed.directory, mark)
        # The files are opened for appending, because reading them moves the offset that the job
        # shares.
        self.output_files = [open("%s/%s.%s" % (bed.directory, mark, stream), "a+") for stream in ("out", "err")]
        self.job = subprocess.Popen([*prefix, "cool", "run", "--", "sh", "-c", COUNT % self.stop_file], env={**bed.environment(), **environment},
                                    stdout=self.output_files[0], stderr=self.output_files[1])
        wait_for(lambda: self.read()[0].count("\n") > 8, "the ranks count")

    def read(self):
        for stream in self.output_files:
            stream.seek(0)
        return [stream.read() for stream in self.output_files]

    def finish(self):
        """Returns the number of lines reported lost by rank, and the other messages."""
        with open(self.stop_file, "w"):
            pass
        status = self.job.wait(PATIENCE)
        out, errors = self.read()
        assert status == 0, out + errors
        printed, lost = parse_output(out, errors)
        assert len(printed) == len(self.bed.network.net.hosts)
        return lost, errors


def test_a_disconnected_caller_loses_no_line_of_its_job(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", lldp_ms=1000)
    wait_for(bed.whole, "the network is complete")
    host = bed.network.net.get("h1")
    job = CountingJob(bed, "cut", ("mnexec", "-a", str(host.pid)), COOL_CONTROLLER=bed.controller_address(network.MANAGEMENT_ADDRESS))
    with management_down(bed, ["h1"]):
        end = time.monotonic() + BLINK
        wait_for(lambda: "the caller of the job has disconnected" in log_of(bed, "controller"), "the caller is away")
        wait_for(lambda: away(bed) == {"h1"}, "the agent of h1 is away")
        while time.monotonic() < end:
            assert job.job.poll() is None and len(running(bed)) == 1, job.read()
            time.sleep(1)
    wait_for(lambda: not away(bed), "the agent of h1 is back")
    lost, errors = job.finish()
    assert lost == {} and "waiting for a controller" in errors, errors


def test_no_line_is_duplicated_or_silently_lost_in_a_restart(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", lldp_ms=1000)
    wait_for(bed.whole, "the network is complete")
    for mark, restart in (("stopped", restarted_in_order), ("killed", lambda bed: killed_controller(bed, None))):
        wait_for(bed.whole, "the network is complete")
        job = CountingJob(bed, mark)
        restart(bed)
        wait_for(lambda: bed.cool_json("jobs") and any(j["state"] == "running" for j in running(bed)), "the job is taken over")
        lost, errors = job.finish()
        assert "waiting for a controller" in errors, errors
        assert mark == "killed" or lost == {}, errors


def test_a_job_ends_if_its_caller_does_not_reconnect(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", controller_flags=SHORT_GRACE)
    job = start(bed, "cool", "run", "-n", "2", "--", "sh", "-c", "echo up; sleep 1000")
    # The output exceeds what the controller keeps for a caller.
    suspended = start(bed, "cool", "run", "-n", "1", "--", "sh", "-c", "echo up; yes | head -c 20000000; sleep 1000")
    lines(job, 2), lines(suspended, 1)
    suspended.send_signal(signal.SIGSTOP)
    job.kill()
    job.wait()
    assert len(running(bed)) == 2
    wait_for(lambda: running(bed) == [], "the jobs have ended")
    log = log_of(bed, "controller")
    assert "its caller has not reconnected within 20s" in log
    assert log.count("does not read its output") <= 1, "it is logged once, not for every line"
    suspended.send_signal(signal.SIGCONT)
    status, _, errors = ended(suspended)
    assert status == 1 and "has ended: its caller has not reconnected within 20s" in errors, errors


def test_a_caller_that_stops_reading_loses_and_delays_nothing(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", lldp_ms=1000)
    wait_for(bed.whole, "the network is complete")
    count = 40000
    flood = start(bed, "cool", "run", "-n", "4", "--ranks-per-node", "1", "--", "sh", "-c", "seq -f 'a line that is long enough %%.0f' 1 %d" % count)
    wait_for(lambda: "its output" in log_of(bed, "h1"), "its ranks wait")
    # Other jobs on the same nodes are not affected.
    succeed(bed, "cool", "bench", "--ops", "allreduce", "--bytes", "1000", "--reps", "1")
    assert flood.poll() is None
    status, out, errors = ended(flood)
    assert status == 0 and errors == "", errors
    printed = {}
    for rank, number in re.findall(r"^\[(\d)\] a line that is long enough (\d+)$", out, re.M):
        printed.setdefault(rank, []).append(int(number))
    assert printed == {str(rank): list(range(1, count + 1)) for rank in range(4)}


def test_job_numbers_are_unique_and_their_last_digits_suffice(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", lldp_ms=1000)
    wait_for(bed.whole, "the network is complete")
    jobs = []
    for _ in range(2):
        restarted_in_order(bed)
        wait_for(bed.whole, "the network is complete")
        jobs.append(start(bed, "cool", "run", "-n", "2", "--", "sh", "-c", "echo up; sleep 1000"))
        lines(jobs[-1], 2)
    wait_for(lambda: len(running(bed)) == 2, "both run")
    one, other = sorted(job["job"] for job in running(bed))
    assert one != other and one % 100000 == other % 100000 == 1
    ambiguous = run(bed, "cool", "cancel", "1")
    assert ambiguous.returncode == 1 and "1 matches several jobs" in ambiguous.stderr, ambiguous.stderr
    assert str(one) in succeed(bed, "cool", "jobs") and str(other) in succeed(bed, "cool", "jobs")
    succeed(bed, "cool", "cancel", str(one))
    assert ended(jobs[0])[0] == 143
    assert "\n1 " in succeed(bed, "cool", "jobs")
    succeed(bed, "cool", "cancel", "1")
    assert ended(jobs[1])[0] == 143


def test_a_grace_time_below_the_detection_time_is_refused(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", lldp_ms=1000)
    result = run(bed, "cool-controller", "--agent-grace", "19", *bed.security())
    assert result.returncode != 0 and "19 is not in 20..=86400" in result.stderr, result.stderr
