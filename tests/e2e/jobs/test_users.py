"""Users who do not trust each other: permission to run jobs, the accounts of ranks, and protection
from other users."""
import json
import os
import re
import shutil
import signal
import subprocess

import pytest
from conftest import PATIENCE, log_of, run, wait_for
from test_jobs import ended, lines

from testbed import AGENT_UID as AGENT

ANN, BOB = 4001, 4002
PASSWD = "ann:x:%d:4101:Ann:/home/ann:/bin/sh\nbob:x:%d:4102:Bob:/home/bob:/bin/bash\n" % (ANN, BOB)
# An account whose name is the number of another one.
PASSWD += "%d:x:4003:4102::/:/bin/sh\n" % BOB
GROUP = "ann:x:4101:\nbob:x:4102:\nteam:x:4200:ann\n"


@pytest.fixture
def bed(make_bed):
    """Agents that are not root, each with a launcher that has two more users than the machine."""
    bed = make_bed("tree:2x2", switches="bridge", users=(PASSWD, GROUP))
    bed.run(["cool", "certs", bed.certificates, "--user", "ann", "--user", "bob"], check=True, capture_output=True)
    shutil.copy(os.path.join(bed.bin_dir, "cool-misuse"), bed.public)
    return bed


# Working directory of jobs, because other users may have no access to the checkout.
WORKDIR = "/"


def environment(bed, user):
    """Returns a user's environment: a certificate, and the name that the user requests."""
    return {**bed.environment(), "COOL_CERTS": os.path.join(bed.certificates, "users", user), "USER": "root"}


def start(bed, user, *command):
    return subprocess.Popen(["cool", *command], env=environment(bed, user), cwd=WORKDIR, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_as(bed, user, *command):
    return subprocess.run(["cool", *command], env=environment(bed, user), cwd=WORKDIR, capture_output=True, text=True, timeout=PATIENCE)


def only_job_id(bed, user):
    [job] = json.loads(run_as(bed, user, "jobs", "--json").stdout)["jobs"]
    return str(job["job"])


# Prints the user and groups of a rank. The output is one line, so that lines of ranks are not
# interleaved.
SELF = "echo $(id -u) $(id -g) $(id -G) $(pwd) $(umask) $(env | grep -v '^_=\\|^PWD=\\|^SHLVL=\\|^OLDPWD=' | sort | cut -d= -f1)"


def test_ranks_run_as_the_user_of_the_certificate(bed):
    job = start(bed, "ann", "run", "-n", "2", "--workdir", "/usr", "--env", "MORE=1", "--", "sh", "-c", SELF)
    status, out, errors = ended(job)
    assert status == 0, errors
    variables = "COOL_GROUP COOL_JOB COOL_NODE COOL_RANK COOL_SIZE COOL_SOCKET HOME LOGNAME MORE PATH SHELL USER"
    expected = "%d 4101 4101 4200 /usr 0022 %s" % (ANN, variables)
    assert [line.split("] ")[1] for line in out.splitlines()] == [expected] * 2
    status, out, errors = ended(start(bed, "bob", "run", "-n", "1", "--", "sh", "-c", "id -u; id -G; echo $HOME $USER $LOGNAME $SHELL"))
    assert [line.split("] ")[1] for line in out.splitlines()] == [str(BOB), "4102", "/home/bob bob bob /bin/bash"], errors
    # An operator may act for other users, but no rank runs as root or as the agent's user.
    process = run(bed, "cool", "run", "-n", "1", "--workdir", WORKDIR, "--user", "bob", "--", "id", "-u")
    assert process.stdout.split() == ["[0]", str(BOB)], process.stderr
    process = run(bed, "cool", "run", "-n", "1", "--workdir", WORKDIR, "--user", str(BOB), "--", "id", "-u")
    assert process.stdout.split() == ["[0]", "4003"], process.stderr
    for user, why in (("root", "starts nothing below 900 (--min-uid)"), ("coolagent", "is the agent's account"), ("eve", "has no user eve"),
                      ("0%d" % ANN, "has no user 0%d" % ANN)):
        process = run(bed, "cool", "run", "-n", "1", "--workdir", WORKDIR, "--user", user, "--", "id", "-u")
        assert process.returncode == 1 and why in process.stderr and process.stdout == "", process.stdout + process.stderr


def test_a_rank_may_open_its_own_output_again(bed):
    status, out, errors = ended(start(bed, "ann", "run", "-n", "1", "--", "sh", "-c", "echo out > /dev/stdout; echo err > /dev/stderr"))
    assert (status, out, errors) == (0, "[0] out\n", "[0] err\n")


def test_a_user_neither_sees_nor_ends_the_jobs_of_another(bed):
    job = start(bed, "ann", "run", "-n", "2", "--", "sh", "-c", "echo up $COOL_GROUP; sleep 1000")
    group = lines(job, 2)[0].split()[2]
    own_job = only_job_id(bed, "ann")
    assert json.loads(run_as(bed, "bob", "jobs", "--json").stdout)["jobs"] == []
    assert json.loads(run_as(bed, "bob", "groups", "--json").stdout)["groups"] == []
    assert str(json.loads(run_as(bed, "ann", "groups", "--json").stdout)["groups"][0]["id"]) == group
    for command in (["cancel", own_job], ["cancel", "--signal", "TERM", own_job]):
        result = run_as(bed, "bob", *command)
        assert result.returncode == 1 and "job %s does not belong to user bob" % own_job in result.stderr, result.stderr
    assert run_as(bed, "bob", "cancel", "--all").returncode == 0
    for command in (["drain"], ["doctor"], ["trace"]):
        result = run_as(bed, "bob", *command)
        assert result.returncode == 1 and "requires an operator" in result.stderr, result.stderr
    assert job.poll() is None
    assert own_job in [str(j["job"]) for j in bed.cool_json("jobs")["jobs"]], "operators see all"
    assert run_as(bed, "ann", "cancel", own_job).returncode == 0
    status, _, errors = ended(job)
    assert status == 143 and "canceled by ann" in errors, errors
    audit = [json.loads(line) for line in open(bed.event_log()) if '"audit"' in line]
    entries = [(a["who"], a["call"], a["result"]) for a in audit]
    assert ("tool of user ann", "run", "done") in entries and ("tool of user ann", "cancel", "done") in entries
    assert ("tool of user bob", "cancel", "job %s does not belong to user bob" % own_job) in entries
    assert all(a["from"].count(":") and a["about"] for a in audit)


def in_host(bed, host, uid, command, **variables):
    prefix = ["mnexec", "-a", str(bed.network.net.get(host).pid), "setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    return subprocess.run([*prefix, *command], env={"PATH": os.environ["PATH"], **variables}, capture_output=True, text=True, timeout=PATIENCE)


def test_no_other_user_not_even_root_is_a_rank_of_a_users_job(bed):
    job = start(bed, "ann", "run", "-n", "1", "--hosts", "h1", "--", "sh", "-c", "echo $COOL_GROUP; sleep 1000")
    group = lines(job, 1)[0].split()[1]
    variables = {"COOL_GROUP": group, "COOL_RANK": "0", "COOL_SIZE": "1", "COOL_SOCKET": os.path.join(bed.directory, "h1.sock")}
    for uid in (BOB, 0, AGENT):
        intruder = in_host(bed, "h1", uid, [os.path.join(bed.public, "cool-misuse"), "sum"], **variables)
        assert intruder.returncode == 1 and "group %s is not one of user %d" % (group, uid) in intruder.stderr, intruder.stderr
    process = in_host(bed, "h1", ANN, [os.path.join(bed.public, "cool-misuse"), "sum"], **variables)
    assert process.stdout.strip() == "rank 0 of 1: 1", process.stderr
    job.send_signal(signal.SIGINT)
    assert ended(job)[0] == 130


def test_collectives_run_between_ranks_of_a_user(bed):
    status, out, errors = ended(start(bed, "ann", "run", "-n", "4", "--", os.path.join(bed.public, "cool-misuse"), "sum"))
    assert status == 0 and sorted(line.split("] ")[1] for line in out.splitlines()) == ["rank %d of 4: 10" % r for r in range(4)], errors


def test_a_job_reaches_neither_agent_nor_keys_nor_launcher(bed):
    key = os.path.join(bed.agent_certificates, "agent.key")
    pid = bed.agents["h1"].process.pid
    with open("/proc/%d/status" % pid) as f:
        assert "Uid:" + 4 * ("\t%d" % AGENT) in f.read(), "the agent is not root"
    script = "cat %s; kill -9 %d; kill -9 -%d; id -u" % (key, pid, pid)
    status, out, errors = ended(start(bed, "ann", "run", "-n", "1", "--hosts", "h1", "--", "sh", "-c", script))
    assert status == 0 and out.split() == ["[0]", str(ANN)], out + errors
    assert errors.count("ermitted") == 2 and "Permission denied" in errors, errors
    assert bed.agents["h1"].process.poll() is None
    # Only the agent's account may connect to the launcher.
    connect_script = "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('%s')" % bed.launcher_socket("h1")
    result = in_host(bed, "h1", ANN, ["/usr/bin/python3", "-c", connect_script])
    assert "PermissionError" in result.stderr, result.stderr


# A rank that leaves orphaned child processes in separate sessions, which hold none of its files.
FORKS = "setsid sh -c 'sleep %d & setsid sleep %d & exit' </dev/null >/dev/null 2>&1; echo up; "


def sleeping(seconds):
    """Returns the processes that sleep for this duration, which no other process on the machine
    uses."""
    return [pid for pid in filter(str.isdigit, os.listdir("/proc")) if arguments(pid) == ["sleep", str(seconds)]]


def arguments(pid):
    try:
        with open("/proc/%s/cmdline" % pid) as f:
            return f.read().split("\0")[:-1]
    except OSError:
        return []


@pytest.mark.parametrize("cgroup", [True, False], ids=["cgroup", "subreaper"])
def test_nothing_that_a_job_has_forked_outlives_it(make_bed, cgroup):
    bed = make_bed("tree:2x2", switches="bridge", users=(PASSWD, GROUP), hide_cgroups=not cgroup)
    bed.run(["cool", "certs", bed.certificates, "--user", "ann"], check=True, capture_output=True)
    for marker, script, hosts, status in ((71_000_001, "exit 3", ["h1"], 3), (71_000_002, "sleep 71000002", ["h1", "h2"], 143),
                                          (71_000_003, "exit 0", ["h1", "h2"], 0)):
        job = start(bed, "ann", "run", "--hosts", ",".join(hosts), "--ranks-per-node", "1", "-n", str(len(hosts)), "--", "sh", "-c",
                    FORKS % (marker, marker) + script)
        lines(job, len(hosts))
        if status == 143:
            assert sleeping(marker), "the forked processes run"
            run_as(bed, "ann", "cancel", "--all")
        assert ended(job)[0] == status
        assert sleeping(marker) == [], "removed when the command returns"
    cgroups = re.findall(r'cgroup="(/[^"]+)"', log_of(bed, "h1") + log_of(bed, "h2"))
    assert len(cgroups) == (5 if cgroup else 0)
    root = "/proc/%d/root" % bed.launchers["h1"].process.pid
    assert os.path.isdir(root + "/sys/fs/cgroup") and not any(os.path.exists(root + path) for path in cgroups), "cgroups are removed"
    assert ("jobs have no cgroups on this node" in log_of(bed, "h1")) is not cgroup


def test_a_jobs_processes_end_with_the_agent(bed):
    marker = 71_000_004
    job = start(bed, "ann", "run", "-n", "1", "--hosts", "h4", "--", "sh", "-c", FORKS % (marker, marker) + "sleep %d" % marker)
    lines(job, 1)
    wait_for(lambda: len(sleeping(marker)) == 3, "all processes run")
    bed.restart_agent("h4")
    wait_for(lambda: sleeping(marker) == [], "no process of the job is left")
    assert ended(job)[0] == 1


def test_an_agent_that_is_root_reports_it_and_does_not_start(bed):
    process = subprocess.run([os.path.join(bed.bin_dir, "cool-nodeagent"), "--name", "h9", "--interface", "lo", "--controller", "https://127.0.0.1:7400"],
                          env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == 1 and "run it as a user of its own" in process.stderr, process.stderr


def test_a_user_has_as_many_jobs_as_one_may(make_bed):
    bed = make_bed("tree:2x2", switches="bridge", users=(PASSWD, GROUP), controller_flags=("--jobs-per-user", "1"))
    bed.run(["cool", "certs", bed.certificates, "--user", "ann", "--user", "bob"], check=True, capture_output=True)
    job = start(bed, "ann", "run", "-n", "1", "--", "sh", "-c", "echo up; sleep 1000")
    lines(job, 1)
    result = run_as(bed, "ann", "run", "-n", "1", "--", "true")
    assert result.returncode == 1 and "user ann already runs 1 jobs, the maximum per user (--jobs-per-user" in result.stderr, result.stderr
    assert run_as(bed, "bob", "run", "-n", "1", "--", "true").returncode == 0
    job.send_signal(signal.SIGINT)
    assert ended(job)[0] == 130
