"""Certificates that change while programs run: renewed, of another CA, revoked, expiring; and
certificates of one switch or node."""
import os
import re
import signal
import subprocess
import time
import urllib.request

from conftest import PATIENCE, end_controller, log_of, run, succeed, wait_for
from network import MANAGEMENT_ADDRESS

READ = "have been reloaded"


def certs(bed, *options):
    return succeed(bed, "cool", "certs", bed.certificates, *options)


def change(bed, programs, *options):
    """Runs `cool certs` with these options on the testbed's directory, and waits until `programs`
    have reloaded it."""
    before = {name: log_of(bed, name).count(READ) for name in programs}
    certs(bed, *options)
    for name in programs:
        wait_for(lambda: log_of(bed, name).count(READ) > before[name], "%s reads the certificates of %s" % (name, options))


def all_programs(bed):
    return ["controller", *bed.agents]


def diagnosis(bed):
    """Returns the output of `cool doctor`."""
    return run(bed, "cool", "doctor").stdout


def metric(bed, name):
    with urllib.request.urlopen("http://127.0.0.1:7480/metrics", timeout=PATIENCE) as page:
        values = [line.split()[-1] for line in page.read().decode().splitlines() if line.startswith(name + " ")]
    return float(values[0]) if values else None


def barriers(bed, *hosts):
    job = subprocess.Popen(["cool", "run", "--hosts", ",".join(hosts), "--", os.path.join(bed.bin_dir, "cool-misuse"), "barriers"],
                           env=bed.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "started" in job.stdout.readline(), job.communicate(timeout=PATIENCE)
    return job


def end(job):
    job.terminate()
    job.communicate(timeout=PATIENCE)


def test_a_new_ca_is_rolled_out_under_a_running_job(make_bed):
    bed = make_bed("tree:2x2")
    job = barriers(bed, "h1", "h2", "h3")
    try:
        for step in ("--new-ca", "--renew", "--drop-old-ca"):
            change(bed, all_programs(bed), step)
            # A new connection uses the changed certificates.
            succeed(bed, "cool", "topology")
        log = log_of(bed, "controller")
        match = re.search(r"was lost|its node keeps its flows|switch \S+ (lost|disconnected)", log)
        assert not match, "no session has ended: %s" % match
        # An agent connects now, and then a controller starts, to which switches and agents connect
        # with their current certificates.
        bed.restart_agent("h4")
        bed.wait_until_joined()
        end_controller(bed)
        bed.start_controller()
        bed.wait_until_joined()
        assert job.poll() is None, job.communicate()
        succeed(bed, "cool", "run", "--hosts", "h1,h2,h3,h4", "--", os.path.join(bed.bin_dir, "cool-misuse"), "sum")
        assert job.poll() is None, job.communicate()
    finally:
        end(job)


def test_a_mismatched_certificate_and_key_are_reported_once(make_bed):
    bed = make_bed("tree:2x2")
    certificate, other = (os.path.join(bed.certificates, name) for name in ("controller.pem", "tool.pem"))
    with open(certificate, "rb") as f:
        original = f.read()
    with open(other, "rb") as f:
        other_content = f.read()
    warning = "cannot be used; the previous ones stay in effect"
    with open(certificate, "wb") as f:
        f.write(other_content)
    wait_for(lambda: warning in log_of(bed, "controller"), "the controller reports the mismatch")
    succeed(bed, "cool", "topology")
    before = log_of(bed, "controller").count(READ)
    with open(certificate, "wb") as f:
        f.write(original)
    bed.controller.signal(signal.SIGHUP)
    wait_for(lambda: log_of(bed, "controller").count(READ) > before, "a signal makes the controller read the files")
    assert log_of(bed, "controller").count(warning) == 1
    succeed(bed, "cool", "topology")


def test_a_revoked_agent_needs_a_new_certificate(make_bed):
    bed = make_bed("tree:2x2")
    certs(bed, "--node", "h4")
    bed.restart_agent("h4", os.path.join(bed.certificates, "h4"))
    bed.wait_until_joined()
    job = barriers(bed, "h1", "h2", "h3")
    try:
        change(bed, ["controller"], "--revoke", "h4")
        wait_for(lambda: "its certificate has been revoked" in log_of(bed, "controller"), "the controller ends the session")
        wait_for(lambda: "our certificate has been revoked" in log_of(bed, "h4"),
                 "the agent receives the reason of the rejection")
        assert "node h4: its agent has been disconnected" in diagnosis(bed)
        entry = next(c for c in bed.cool_json("certs", bed.certificates, "--list")["certificates"] if c["name"] == "h4")
        assert entry["revoked"] and entry["bound_to"]["name"] == "h4"
        certs(bed, "--node", "h4")
        wait_for(lambda: "node h4: its agent has been disconnected" not in diagnosis(bed),
                 "it connects again with another certificate")
        assert job.poll() is None, job.communicate()
    finally:
        end(job)


def test_certificates_that_expire_soon_are_reported_everywhere(make_bed):
    bed = make_bed("tree:2x2")
    month = 30 * 86400
    assert metric(bed, 'cool_certificate_expires_seconds{of="agent"}') > time.time() + month
    change(bed, all_programs(bed), "--renew", "--days", "20")
    for name in ("controller", "h1"):
        role = "controller" if name == "controller" else "agent"
        wait_for(lambda: "the certificate of %s expires on" % role in log_of(bed, name),
                 "its log contains the reason")
    assert metric(bed, 'cool_certificate_expires_seconds{of="controller"}') < time.time() + month
    assert metric(bed, 'cool_certificate_expires_seconds{of="ca"}') > time.time() + month
    result = run(bed, "cool", "doctor")
    assert result.returncode == 1 and "certificate of controller: it expires on" in result.stdout, result.stdout
    assert "the certificate of tool expires on" in result.stderr, result.stderr
    bed.restart_agent("h4")
    wait_for(lambda: "certificate of agent: it expires on" in diagnosis(bed), "the certificate of the session is reported")
    change(bed, all_programs(bed), "--renew")
    bed.restart_agent("h4")
    wait_for(lambda: "it expires on" not in diagnosis(bed), "no certificate expires soon")


def test_a_switch_with_another_ones_certificate_is_refused(make_bed):
    bed = make_bed("tree:2x2")
    ours, other = (switch.name for switch in bed.network.net.switches[:2])
    ids = {name: subprocess.check_output(["ovs-vsctl", "get", "bridge", name, "datapath-id"], text=True).strip().strip('"') for name in (ours, other)}

    def use_certificate(*folder):
        files = (os.path.join(bed.certificates, *folder, name) for name in ("switch.key", "switch.pem", "ca.pem"))
        subprocess.run(["ovs-vsctl", "set-ssl", *files], check=True)

    def reconnect(name):
        subprocess.run(["ovs-vsctl", "del-controller", name], check=True)
        subprocess.run(["ovs-vsctl", "set-controller", name, "ssl:127.0.0.1:6653"], check=True)

    def connected(name):
        return lambda: not any("switch %s is not connected" % name in w for w in bed.cool_json("topology")["warnings"])

    certs(bed, "--switch", "%s=%s" % (ours, ids[ours]))
    use_certificate("switches", ours)
    try:
        reconnect(other)
        reason = "it claims to be %s, but its certificate is for %s" % (ids[other], ids[ours])
        wait_for(lambda: reason in log_of(bed, "controller"), "the log contains both ids")
        assert reason in diagnosis(bed)
        assert metric(bed, 'cool_switch_refused_total{cause="impostor"}') >= 1
        assert not connected(other)()
        before = log_of(bed, "controller").count("switch %s connected" % ours)
        reconnect(ours)
        wait_for(lambda: log_of(bed, "controller").count("switch %s connected" % ours) > before,
                 "the owner of the certificate is served")
    finally:
        use_certificate()
        reconnect(other)
    wait_for(connected(other), "the switch connects with the certificate for any datapath id")


def test_an_agent_registers_only_an_address_of_its_certificate(make_bed):
    bed = make_bed("tree:2x2")
    host = bed.network.net.get("h4")

    def refusal(name):
        process = subprocess.run(["mnexec", "-a", str(host.pid), os.path.join(bed.bin_dir, "cool-nodeagent"), "--allow-root", "--name", name, "--interface",
                               host.defaultIntf().name, "--udp-port", "0", "--tcp-port", "0", "--probe-port", "0", "--socket",
                               os.path.join(bed.directory, name + ".sock"), "--controller", bed.controller_address(MANAGEMENT_ADDRESS),
                               "--certs", os.path.join(bed.certificates, name)], capture_output=True, text=True, timeout=PATIENCE)
        assert process.returncode == 1, process.stderr
        return process.stderr

    certs(bed, "--node", "h8=10.9.9.9,10.9.9.8", "--node", "h9=%s" % host.IP())
    assert "the certificate of node h8 is for address 10.9.9.9, 10.9.9.8, but the agent registers %s" % host.IP() in refusal("h8")
    assert "node h9 registers %s, which node h4 has" % host.IP() in refusal("h9")
