"""Invalid input and faults: each results in an error that names its subject, and no program
hangs."""
import os
import signal
import socket
import subprocess

import faults
import inject
import pytest
from conftest import PATIENCE, end_controller, log_of, run, succeed, wait_for

import network

# Seeds with which system calls fail in one rank (1), in all ranks (5), in an agent (0), and in an
# agent that starts (24).
SYSTEM_CALL_SEEDS = (1, 5, 0, 24)
# Seconds after which a call counts as waiting for a stopped rank, because a busy machine delays the
# other ranks for seconds.
STOPPED_TIMEOUT = 20.0


def test_a_second_agent_with_a_name_in_use_is_refused_by_name(make_bed):
    bed = make_bed("tree:2x2")
    host = bed.network.net.get("h2")
    process = subprocess.run(["mnexec", "-a", str(host.pid), os.path.join(bed.bin_dir, "cool-nodeagent"), "--allow-root", "--name", "h1", "--interface",
                           "h2-eth0", "--controller", bed.controller_address(network.MANAGEMENT_ADDRESS), *bed.security(), "--udp-port", "7500",
                           "--tcp-port", "7500", "--probe-port", "7501", "--socket", os.path.join(bed.directory, "twin.sock")],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode != 0
    assert "h1" in process.stderr + process.stdout
    succeed(bed, "cool", "bench", "--ops", "allreduce", "--bytes", "1000", "--reps", "1")


def test_garbage_at_every_port_is_survived(make_bed):
    bed = make_bed("tree:2x2")
    garbage = [b"", b"\x00", b"GET / HTTP/1.0\r\n\r\n", bytes(range(256)) * 5, b"\x04" + b"\xff" * 64, os.urandom(1400)]
    for payload in garbage:
        with socket.create_connection(("127.0.0.1", 6653), timeout=PATIENCE) as s:
            s.sendall(payload)
        with socket.create_connection(("127.0.0.1", 7400), timeout=PATIENCE) as s:
            s.sendall(payload)
    for host in bed.network.net.hosts:
        script = ("import socket,sys\n"
                  "for b in %r:\n"
                  "  u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.sendto(b,('%s',7420))\n"
                  "  t=socket.create_connection(('%s',7420),60); t.sendall(b); t.close()\n") % (garbage, host.IP(), host.IP())
        bed.network.run_in(host, "/usr/bin/python3", "-c", script)
    succeed(bed, "cool", "bench", "--ops", "bcast,allreduce,gather", "--bytes", "1000,100K", "--reps", "1")
    for daemon in bed.daemons:
        daemon.check()


@pytest.mark.parametrize("case", ["other-size", "other-operation"])
def test_a_rank_that_makes_another_call_is_named(make_bed, case):
    bed = make_bed("tree:2x2")
    process = run(bed, "cool", "run", "-n", "4", "--", os.path.join(bed.bin_dir, "cool-misuse"), case, timeout=PATIENCE)
    assert process.returncode != 0
    text = process.stdout + process.stderr
    assert "rank 2" in text and "bcast" in text, text
    succeed(bed, "cool", "bench", "--ops", "bcast", "--bytes", "1000", "--reps", "1")


def test_a_controller_that_starts_last_finds_switches_and_agents(make_bed):
    bed = make_bed("tree:2x2")
    end_controller(bed, signal.SIGKILL)
    bed.start_controller()
    bed.wait_until_joined()
    succeed(bed, "cool", "bench", "--ops", "bcast,reduce", "--bytes", "100K", "--reps", "1")


def test_a_switch_with_only_openflow_1_0_is_refused_and_named(make_bed):
    bed = make_bed("tree:2x2", insecure_plaintext=True)
    with socket.create_connection(("127.0.0.1", 6653), timeout=PATIENCE) as s:
        s.sendall(bytes([1, 0, 0, 8, 0, 0, 0, 1]))
        received = b""
        while chunk := s.recv(4096):
            received += chunk
    types = []
    while received:
        types.append(received[1])
        received = received[int.from_bytes(received[2:4], "big"):]
    assert types[0] == 0 and 1 in types, "a hello, then an error: %s" % types
    wait_for(lambda: "1.0" in log_of(bed, "controller"), "the controller's log names the version")


def kill_an_agent_under_a_job(bed):
    """Kills an agent while a job runs, asserts that the job's error names its node, and restarts
    it."""
    job = subprocess.Popen(["cool", "run", "-n", "6", "--", os.path.join(bed.bin_dir, "cool-misuse"), "barriers"],
                           env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "started" in job.stdout.readline()
    bed.agents["h5"].signal(signal.SIGKILL)
    bed.agents["h5"].process.wait(PATIENCE)
    out, err = job.communicate(timeout=PATIENCE)
    assert job.returncode != 0
    assert "h5" in out + err, out + err
    bed.restart_agent("h5")
    bed.wait_until_joined()


def test_a_dead_agent_fails_the_job_by_name_and_the_rest_goes_on(make_bed):
    bed = make_bed("tree:2x3")
    kill_an_agent_under_a_job(bed)
    succeed(bed, "cool", "bench", "--ops", "allreduce", "--bytes", "1000", "--reps", "1")


def test_survivors_of_random_faults_learn_the_lost_and_continue(make_bed):
    """A few of the many faults that `make faults` injects."""
    bed = make_bed("tree:4x2", peer_timeout_ms=10_000)
    with faults.events() as receiver:
        # This seed results in each kind of fault once, in two jobs.
        series = faults.Series(bed, receiver, seed=272, faults=faults.kinds(STOPPED_TIMEOUT))
        series.run(len(faults.FAULTS))
    assert not series.violations, "\n".join(series.violations)
    assert len(series.seconds) == len(faults.FAULTS), "each kind of fault: %s" % series.figures()


def test_failed_system_calls_cause_errors_and_no_wrong_data(make_bed):
    """A few of the many errors that `make inject` injects."""
    bed = make_bed(inject.TOPOLOGY, switches="bridge")
    with inject.series(bed) as series:
        records = [series.run(seed) for seed in SYSTEM_CALL_SEEDS]
    violations = ["seed %(seed)d: %(violation)s" % record for record in records if "violation" in record]
    assert not violations, "\n".join(violations)
    assert any(record["injected"] for record in records)


def test_operations_and_messages_are_right_despite_packet_loss(make_bed):
    bed = make_bed("tree:2x3", host_mbit=50, uplink_mbit=50, loss=0.03)
    for seed in range(2):
        succeed(bed, "cool", "run", "-n", "12", "--", os.path.join(bed.bin_dir, "cool-faults"), "--steps", "39", "--seed", str(seed),
                "--bytes", "262144")


def test_the_testbed_leaves_nothing_behind(make_bed):
    bed = make_bed("tree:1x2")
    names = [l["a_intf"] for l in bed.description["links"]] + [network.management_link(host.name) for host in bed.network.net.hosts]
    make_bed("tree:1x1")  # This replaces the first testbed.
    remaining = set(os.listdir("/sys/class/net")) & set(names) - {l["a_intf"] for l in make_bed("tree:1x1").description["links"]} - {"m-h1"}
    assert not remaining
    assert all(d.process.poll() is not None for d in bed.daemons)
