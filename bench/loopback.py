#!/usr/bin/python3
"""Compares a broadcast between four agents on loopback with one iperf3 TCP stream on the same
machine.

    sudo bench/loopback.py                          # bcast of 1 GiB, 5 rounds
    sudo bench/loopback.py --bytes 256M --rounds 11 --plan bcast=flat:chain

The controller, agents and ranks are processes as on a cluster. Each agent has its own interface to
a switch, through which the controller discovers it. Because all interfaces are in one network
namespace, the kernel carries the traffic between agents over the loopback device, at the speed of
the CPUs, and there are no trees. COOL is measured with ordinary arrays, which are copied into the
memory that ranks share with their agents, and with arrays of comm.alloc, which are in that memory.
Every result is verified outside the measured time.

Writes report.json to target/loopback, and with --docs the table in docs/measurements/loopback.md.
Needs the same as bench.py, and iperf3. The machine must be idle otherwise.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import network  # noqa: E402
import page  # noqa: E402
import section  # noqa: E402
import testbed  # noqa: E402

SWITCH = "cool-lo"
ADDRESS = "10.254.0.%d"
IPERF_PORT = 5299
# The ports of the switch report 10 Gbit/s, which is meaningless here. This rate is high enough to
# limit no agent.
HOST_MBIT = 1_000_000


class Host:
    """A host with the interface that a testbed expects, in the namespace of this program."""

    def __init__(self, number):
        self.name, self.pid = "n%d" % number, os.getpid()
        self.interface, self.port, self.ip = "%s%d" % (SWITCH, number), "%s%ds" % (SWITCH, number), ADDRESS % number

    def defaultIntf(self):
        return argparse.Namespace(name=self.interface)


class OneNamespace:
    """A network of hosts at one switch, all in the namespace of this program. The controller
    discovers them through the switch, and they reach each other over loopback."""

    def __init__(self, hosts, mtu):
        self.net, self.mtu = self, mtu
        self.hosts = [Host(number) for number in range(1, hosts + 1)]

    def start(self, controller):
        self.stop()
        network.sh("ovs-vsctl", "add-br", SWITCH, "--", "set", "bridge", SWITCH, "datapath_type=netdev", "protocols=OpenFlow13",
                   "fail_mode=secure")
        for host in self.hosts:
            network.sh("ip", "link", "add", host.interface, "type", "veth", "peer", "name", host.port)
            for end in (host.interface, host.port):
                network.sh("sysctl", "-qw", "net.ipv6.conf.%s.disable_ipv6=1" % end)
                network.sh("ip", "link", "set", end, "mtu", str(self.mtu), "up")
            network.sh("ip", "address", "add", host.ip + "/32", "dev", host.interface)
            network.sh("ovs-vsctl", "add-port", SWITCH, host.port)
        network.sh("ovs-vsctl", "set-controller", SWITCH, controller)

    def stop(self):
        # This also removes the leftovers of a run that was killed.
        subprocess.run(["ovs-vsctl", "--if-exists", "del-br", SWITCH], capture_output=True)
        for host in self.hosts:
            subprocess.run(["ip", "link", "delete", host.interface], capture_output=True)

    def describe(self):
        return {"hosts": [{"name": h.name, "ip": h.ip, "interface": h.interface} for h in self.hosts], "links": []}

    def get(self, name):
        return next(host for host in self.hosts if host.name == name)


class Loopback(testbed.Testbed):
    """A testbed with COOL on `OneNamespace`. There are no trees, because the traffic of trees would
    pass the switch instead of loopback."""

    def __init__(self, hosts, slots=1, **options):
        flags = ("--max-groups-per-switch", "0", "--host-mbit", str(HOST_MBIT))
        super().__init__("one namespace", slots=slots, set_rates=False, controller_flags=flags, **options)
        self.size = hosts

    def make_network(self):
        return OneNamespace(self.size, self.options["mtu"])

    def pages_ip(self, host):
        return host.ip

    def controller_address(self, _ip):
        return super().controller_address("127.0.0.1")


def iperf(seconds):
    """Runs iperf3. Returns the bytes per second of one TCP stream, and the number of CPUs that both
    ends used together."""
    server = subprocess.Popen(["iperf3", "-s", "-1", "--forceflush", "-p", str(IPERF_PORT)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    with server:
        try:
            first_line = next((line for line in server.stdout if "listening" in line or "error" in line),
                        "the server printed nothing")
            if "listening" not in first_line:
                raise RuntimeError("iperf3: " + first_line.strip())
            process = subprocess.run(["iperf3", "-J", "-c", "127.0.0.1", "-p", str(IPERF_PORT), "-t", str(seconds)], capture_output=True, text=True,
                                  timeout=seconds + 30)
            result = json.loads(process.stdout)
            if "error" in result:
                raise RuntimeError("iperf3: " + result["error"])
        finally:
            server.kill()
    end = result["end"]
    cpu = end["cpu_utilization_percent"]
    return end["sum_received"]["bits_per_second"] / 8, (cpu["host_total"] + cpu["remote_total"]) / 100


def bcast(bed, options, alloc):
    """Runs one broadcast with `cool bench`. Returns its seconds and its plan."""
    command = ["cool", "bench", "--json", "--ops", "bcast", "--bytes", str(options.bytes), "--reps", "1", "--warmup", "1", "--pause", "20"]
    command += (["--plan", options.plan] if options.plan else []) + (["--alloc"] if alloc else [])
    process = bed.run(command, capture_output=True, text=True, timeout=300)
    if process.returncode:
        raise RuntimeError("cool bench: " + process.stderr.strip()[-300:])
    [result] = json.loads(process.stdout)["results"]
    [seconds] = result["seconds"]
    return seconds, result["plan"]


def table(report):
    """Returns the section of the document."""
    figures = report["bytes_per_second"]
    lines = ["Measured %(date)s: a bcast of %(length)s between %(agents)d agents, plan %(plan)s, %(processors)d CPUs, %(rounds)d rounds; medians, with minimum and "
             "maximum in parentheses. iperf3 used %(iperf3_cpus).2f CPUs." % {
                 **report, "length": page.size(report["bytes"]), "rounds": len(figures["cool"]),
                 "iperf3_cpus": statistics.median(figures["iperf3_processors"])},
             "", "| | GB/s | of iperf3 |", "| --- | --: | --: |"]
    for name, title in (("iperf3", "iperf3, one stream"), ("cool_alloc", "COOL, arrays of `comm.alloc`"), ("cool", "COOL, ordinary arrays")):
        rates = tuple(x / 1e9 for x in (statistics.median(figures[name]), min(figures[name]), max(figures[name])))
        share = "%.2f" % report["over_iperf3"][name] if name in report["over_iperf3"] else ""
        lines.append("| %s | %.2f (%.2f to %.2f) | %s |" % (title, *rates, share))
    return "\n".join(lines)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--agents", type=int, default=4, help="number of agents; default %(default)s")
    p.add_argument("--bytes", type=bench.size, default="1G",
                   help="length of the message; default %(default)s")
    p.add_argument("--rounds", type=int, default=5,
                   help="rounds, in each of which all are measured; default %(default)s")
    p.add_argument("--seconds", type=int, default=2,
                   help="duration of each iperf3 stream; default %(default)s")
    p.add_argument("--plan", help="plan that COOL must use")
    p.add_argument("--mtu", type=int, default=65535, 
                   help="MTU of the agents' interfaces; default %(default)s, the largest of the "
                   "loopback device")
    p.add_argument("--agent-flags", default="", metavar="FLAGS",
                   help="further flags of the agents, for example --agent-flags=--encrypt")
    p.add_argument("command", nargs="*",
                   help="command to run with the agents instead of a measurement")
    p.add_argument("--docs", action="store_true",
                   help="write the table to docs/measurements/loopback.md")
    bench.add_run_options(p, "loopback")
    options = p.parse_args()
    if options.agents < 2 or options.rounds < 1 or options.seconds < 1:
        p.error("--agents must be at least 2, --rounds and --seconds at least 1")
    return options


def measure(bed, options):
    """Measures all rounds. Returns the rates by library, and the plan of COOL."""
    measurements = {"iperf3": [], "iperf3_processors": [], "cool": [], "cool_alloc": []}
    for _ in range(options.rounds):
        stream, processors = iperf(options.seconds)
        measurements["iperf3"].append(stream)
        measurements["iperf3_processors"].append(processors)
        for name, alloc in (("cool", False), ("cool_alloc", True)):
            seconds, plan = bcast(bed, options, alloc)
            measurements[name].append(options.bytes / seconds)
    return measurements, plan


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    bed = Loopback(options.agents, bin_dir=options.bin, mtu=options.mtu, log_level="warn", agent_flags=tuple(options.agent_flags.split()),
                   logs=os.path.join(options.out, "logs"))
    with bench.await_machine(bed, options.wait):
        bed.wait_until_measured()
        if options.command:
            return bed.run(options.command).returncode
        measurements, plan = measure(bed, options)
    ratios = {name: statistics.median(measurements[name]) / statistics.median(measurements["iperf3"]) for name in ("cool", "cool_alloc")}
    report = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "processors": os.cpu_count(), "agents": options.agents, "mtu": options.mtu,
              "bytes": options.bytes, "plan": plan, "bytes_per_second": measurements, "over_iperf3": ratios}
    with open(os.path.join(options.out, "report.json"), "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)
    text = table(report)
    print(text)
    if options.docs:
        section.replace("loopback.md", "loopback", text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as e:
        sys.exit("loopback: %s" % e)
