"""A program without a key on a member node receives nothing; its packets change nothing and are
counted. A user with a certificate disturbs no job of another user."""
import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.request

import attacks
import hostile
import pytest
from conftest import PATIENCE, end_agent, log_of, run, succeed, wait_for

import testbed


def end(attack):
    out, _ = attack.communicate("\n", timeout=PATIENCE)
    assert attack.returncode == 0
    return json.loads(out)


def refused_packets(bed, name):
    """Returns the packets that an agent has refused, by reason."""
    host = bed.network.net.get(name)
    url = "http://%s:%d/metrics" % (bed.pages_ip(host), testbed.PAGES_PORT)
    text = succeed(bed, "mnexec", "-a", str(host.pid), "/usr/bin/python3", "-c",
                   "import urllib.request as u; print(u.urlopen(%r, timeout=%d).read().decode())" % (url, PATIENCE))
    return {reason: int(count) for reason, count in re.findall(r'cool_agent_refused_total\{reason="(\w+)"\} (\d+)', text)}


@contextlib.contextmanager
def checked_job(bed):
    """Runs a job of collectives, and checks at the end of the context that all its results were
    right and that all daemons still run."""
    job = subprocess.Popen(["cool", "bench", "--ops", "bcast,allreduce,gather,barrier", "--bytes", "1K,100K,1M", "--reps", "3", "--plan", "bcast=multicast"],
                           env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    yield job
    out, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, out
    for daemon in bed.daemons:
        daemon.check()


def test_a_user_of_a_member_node_receives_and_disturbs_nothing(make_bed):
    bed = make_bed("tree:2x2")
    with checked_job(bed) as job:
        wait_for(lambda: hostile.trees(bed), "the job has trees", process=job)
        attack = hostile.start(bed, "h2", "user", ",".join(hostile.trees(bed)), *hostile.nodes(bed))
    results = end(attack)
    assert results["sent"] > 0 and results["connected"] > 0, results
    assert (results["bound"], results["heard"]) == (0, 0), results
    counts = refused_packets(bed, "h1")
    assert counts["handshake"] + counts["unproven"] > 0, counts
    assert counts["unknown"] > 0, counts


def test_packets_that_are_repeated_or_changed_are_refused(make_bed):
    bed = make_bed("tree:2x2")
    before = {host.name: refused_packets(bed, host.name) for host in bed.network.net.hosts}
    # The probes of a new network would be the packets that the program repeats.
    bed.wait_until_measured()
    attack = hostile.start(bed, "h1", "wire", "h1-eth0")
    with checked_job(bed):
        pass
    results = end(attack)
    assert results["repeated"] > 0, results
    counts = {name: {reason: count - before[name][reason] for reason, count in refused_packets(bed, name).items()} for name in before}
    others = [counts[name] for name in counts if name != "h1"]
    assert sum(count["replayed"] for count in others) > 0, counts
    assert sum(count["forged"] for count in others) > 0, counts
    assert "is gone" not in log_of(bed, "h2")


TEXT = "a secret of this job. "


@pytest.mark.parametrize("encrypt", [False, True])
def test_only_encryption_hides_data_from_readers_of_the_wire(make_bed, encrypt):
    bed = make_bed("tree:2x2", agent_flags=("--encrypt",) if encrypt else ())
    plans = {"udp": "multicast", "tcp": "flat:chain"}
    matches = {}
    for protocol, plan in plans.items():
        reader = hostile.start(bed, "h2", "read", "h2-eth0", TEXT.strip())
        out = succeed(bed, "cool", "run", "-n", "4", "--ranks-per-node", "1", "--", os.path.join(bed.bin_dir, "cool-misuse"), "broadcast", plan, TEXT)
        results = end(reader)
        assert out.count("received it") == 4 and results[protocol] > 20, (out, results)
        matches[protocol] = results["read_" + protocol]
    assert all((count == 0) == encrypt for count in matches.values()), matches


def test_encrypting_and_plain_agents_share_no_group(make_bed):
    bed = make_bed("tree:2x2", agent_flags=("--encrypt",))
    bed.agent_flags = ()
    bed.restart_agent("h4")
    # Until the controller has noticed that the agent was killed, the job fails for that reason.
    reason = "the agents of h1, h2, h3 encrypt (--encrypt), but those of h4 do not"
    wait_for(lambda: reason in run(bed, "cool", "bench", "--ops", "barrier", "--reps", "1").stderr, "the group is refused")
    succeed(bed, "cool", "run", "--hosts", "h1,h2,h3", "--", os.path.join(bed.bin_dir, "cool-misuse"), "sum")


def test_an_agent_refuses_a_port_that_another_user_has_bound(make_bed):
    bed = make_bed("tree:1x4")
    end_agent(bed, "h4")
    # Linux permits the agent to bind its port in addition to more than ten such sockets, so the
    # agent itself must detect them.
    program = hostile.start(bed, "h4", "user", ",".join("239.77.0.%d" % n for n in range(20)), "h4=10.0.0.99")
    socket_table = "/proc/%d/net/udp" % bed.network.net.get("h4").pid
    wait_for(lambda: sum(line.split()[7] == "65534" for line in open(socket_table).readlines()[1:]) == 20, "the program has bound all addresses")
    bed.start_agent("h4")
    assert bed.agents["h4"].process.wait(PATIENCE) == 1
    bed.daemons.remove(bed.agents["h4"])
    assert "user 65534 has a socket at 239.77.0." in log_of(bed, "h4"), log_of(bed, "h4")
    assert end(program)["bound"] == 20
    bed.start_agent("h4")
    bed.wait_until_joined()


ANN, MALLORY = 4001, 4666


def test_attacks_of_a_user_disturb_no_job_of_another(make_bed):
    passwd = "ann:x:%d:%d::/:/bin/sh\nmallory:x:%d:%d::/:/bin/sh\n" % (ANN, ANN, MALLORY, MALLORY)
    bed = make_bed("tree:1x2", switches="bridge", users=(passwd, "ann:x:%d:\nmallory:x:%d:\n" % (ANN, MALLORY)))
    succeed(bed, "cool", "certs", bed.certificates, "--user", "ann", "--user", "mallory")
    for program in ("cool-faults", "cool-misuse"):
        testbed.install(os.path.join(bed.bin_dir, program), bed.public)
    agents = [agent.process.pid for agent in bed.agents.values()]
    environment = {**bed.environment(), "COOL_CERTS": os.path.join(bed.certificates, "users", "ann")}
    # The job ends by a signal of its caller, because the attacks take longer on a slow machine.
    victim = subprocess.Popen(["cool", "run", "-n", "2", "--ranks-per-node", "1", "--", os.path.join(bed.public, "cool-faults"), "--seconds", "600", "--bytes", "4096", "--seed", "3"],
                              env=environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    attacker = attacks.Attacker(bed, "mallory", MALLORY, "h1")
    for name in attacks.ATTACKS:
        attacker.attack(name, 1)
        assert victim.poll() is None, "%s: %s" % (name, victim.communicate()[0])
    victim.send_signal(signal.SIGINT)
    out, _ = victim.communicate(timeout=PATIENCE)
    assert victim.returncode == 130, out
    assert [agent.process.pid for agent in bed.agents.values()] == agents
    for daemon in bed.daemons:
        daemon.check()
