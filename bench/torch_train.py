#!/usr/bin/python3
"""Compares training with PyTorch over COOL and over Gloo on one emulated network.

    sudo bench/torch_train.py --docs
    sudo bench/torch_train.py --parts steps --strategies ddp --placements interleaved --steps 5

The neural network and the data are those of libcool/python/examples/train_fashion.py, whose
functions are used here. The ranks are forked from one process (torch_ranks.py), one rank per host.
The parts of the measurement:
  steps     steps of DDP, FSDP2 and ZeRO-1 on links of --host-mbit and --uplink-mbit: their seconds,
            and the bytes on the busiest link
  killed    a rank is killed in a step: when each survivor gets an error, and when training resumes
  adapter   an allreduce through torch and one through COOL's own binding, of ranks on one host
  training  --epochs of each strategy with 4 ranks in 4 racks, with the same pictures in each step,
            on unshaped links, twice with COOL: test accuracy, and whether the weights are equal

Writes report.json to target/torch-train, and with --docs the section of docs/measurements/torch.md.
Needs root, the same as bench/bench.py, Debian's dataset-fashion-mnist, and target/bindings/python
with torch (tools/bindings --release, tools/torch target/bindings/python).
"""
import argparse
import contextlib
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "mininet")]
import bench  # noqa: E402
import network  # noqa: E402
import peers  # noqa: E402
import testbed  # noqa: E402
import torch_tables  # noqa: E402

BACKENDS, STRATEGIES, PARTS = ("cool", "gloo"), ("ddp", "fsdp2", "zero1"), ("steps", "killed", "adapter", "training")
# Bytes of the parameters of train_fashion.network().
WEIGHTS = 4 * 282_714
PYTHON = os.path.join(testbed.TARGET, "bindings", "python", "bin", "python3")
# The rank that is killed.
VICTIM = 2


class Ranks:
    """Controls the process that forks ranks (torch_ranks.py) and reads their events."""

    def __init__(self, bed, python, folder, timeout):
        self.bed, self.timeout = bed, timeout
        self.reply_pipe = os.path.join(bed.directory, "answers-%d" % time.monotonic_ns())
        os.mkfifo(self.reply_pipe)
        self.log = open(os.path.join(folder, "ranks.log"), "wb+")
        self.process = subprocess.Popen([python, os.path.join(HERE, "torch_ranks.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.pending = b""
        self.end = time.monotonic() + self.timeout
        self.torch = self.next()["torch"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def next(self):
        """Returns the next event. Raises peers.PeerError if the process ends or time is up."""
        while b"\n" not in self.pending:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, self.end - time.monotonic()))
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not data:
                raise peers.PeerError("%s: %s" % (
                    "the ranks' process has ended" if ready else "not finished in time",
                    peers.log_tail(self.log)))
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line)

    def reply(self):
        with open(self.reply_pipe, "w") as pipe:
            pipe.write("\n")

    def job(self, what, hosts, backend, **more):
        """Runs a job and yields its events until it has ended. Raises peers.PeerError if a rank
        fails, unless `may_die` is set."""
        may_die = more.pop("may_die", False)
        job = {"what": what, "backend": backend, "store": network.MANAGEMENT_ADDRESS, "answers": self.reply_pipe, "timeout": self.timeout, "steps": 0,
               "hosts": [{"pid": h["pid"], "interface": h["interface"], "socket": os.path.join(self.bed.directory, h["name"] + ".sock")} for h in hosts],
               "may_die": may_die, **more}
        # The process of the ranks enforces the timeout itself, so this one is a little longer.
        self.end = time.monotonic() + self.timeout + 30
        self.process.stdin.write((json.dumps(job) + "\n").encode())
        self.process.stdin.flush()
        errors = []
        while (event := self.next())["event"] != "ended":
            if event["event"] == "error":
                errors.append(event["message"])
            if event["event"] != "error" or may_die:
                yield event
        if may_die:
            yield event
        elif set(event["statuses"]) != {0}:
            raise peers.PeerError("%s by %s: %s (statuses %s)" % (what, backend, "; ".join(errors[:2]), event["statuses"]))


def duration(starts, ends):
    """Returns the seconds of each step, from the last rank's end of the previous step to the last
    rank's end of this one."""
    end_times = [max(at) for at in zip(*ends)]
    return [b - a for a, b in zip([max(starts), *end_times], end_times)]


def measure_steps(ranks, bed, hosts, options, backend, strategy):
    """Measures steps of a strategy. Returns their seconds, those of ZeRO-1's broadcasts, the bytes
    on the busiest link, and the hash of the weights."""
    events, byte_counts = [], {}
    for event in ranks.job("steps", hosts, backend, strategy=strategy, batch=options.batch, steps=options.steps, warmup=options.warmup):
        if event["event"] in ("begin", "end"):
            byte_counts[event["event"]] = bed.link_bytes()
            ranks.reply()
        elif event["event"] == "steps":
            events.append(event)
    seconds = duration([e["begun"] for e in events], [e["ended"] for e in events])
    carried = max(byte_counts["end"][link] - byte_counts["begin"][link] for link in byte_counts["end"]) / options.steps
    result = {"seconds": seconds, "median": statistics.median(seconds), "busiest_link_bytes": carried, "hash": events[0]["hash"],
             "hashes_equal": len({e["hash"] for e in events}) == 1}
    if strategy == "zero1":
        # The time from when the last rank enters the optimizer to when the last rank leaves it.
        times = [[max(t[1] for t in step) - max(t[0] for t in step)] for step in zip(*(e["optimized"] for e in events))]
        result["optimizer"] = statistics.median(t for t, in times)
    return result


def least_bytes(strategy, ranks):
    """Returns the least number of bytes that the busiest link must carry in a step."""
    shares = {"ddp": 2 * (ranks - 1) / ranks, "fsdp2": 3 * (ranks - 1) / ranks, "zero1": 2 * (ranks - 1) / ranks + 1}
    return shares[strategy] * WEIGHTS


def attempt(function, *arguments):
    """Calls a function. Returns its result, or the reason of its failure under `failed`."""
    try:
        return function(*arguments)
    except peers.PeerError as e:
        return {"failed": str(e)}


def part_steps(ranks, bed, options, report, save):
    hosts = peers.rank_order(bed.description, "racked")
    events = list(ranks.job("computing", hosts, "gloo", batch=options.batch, steps=options.steps, warmup=options.warmup))
    report["computing"] = statistics.median(duration([e["begun"] for e in events], [e["ended"] for e in events]))
    bench.print_now("computation alone: %.0f ms per step" % (1e3 * report["computing"]))
    report["steps"] = []
    for placement in options.placements:
        for strategy in options.strategies:
            order = options.backends if len(report["steps"]) % 2 == 0 else options.backends[::-1]
            hosts = peers.rank_order(bed.description, placement)
            results = {b: attempt(measure_steps, ranks, bed, hosts, options, b, strategy) for b in order}
            if placement == options.placements[0] and "cool" in order:
                # The weights of two runs must be equal bit by bit.
                results["cool again"] = attempt(measure_steps, ranks, bed, hosts, options, "cool", strategy)
            report["steps"].append({"placement": placement, "strategy": strategy, "least_bytes": least_bytes(strategy, len(hosts)), "results": results})
            bench.print_now("%s %s: %s" % (placement, strategy, "; ".join("%s %s" % (b, torch_tables.result_text(r)) for b, r in results.items())))
            save()


def kill_rank(ranks, hosts, batch, backend):
    """Kills a rank in a step. Returns the seconds until each survivor got an error, how many errors
    name the rank, and, with COOL, the seconds until all survivors completed another step."""
    ready, failures, resumed, errors, killed_at = {}, {}, {}, [], None
    for event in ranks.job("killed", hosts, backend, batch=batch, goes_on=backend == "cool", may_die=True):
        if event["event"] == "ready":
            ready[event["rank"]] = event["pid"]
            if len(ready) == len(hosts):
                killed_at = time.monotonic()
                os.kill(ready[VICTIM], signal.SIGKILL)
        elif event["event"] == "failed":
            failures[event["rank"]] = event
        elif event["event"] == "went on":
            resumed[event["rank"]] = event
        else:
            errors.append(event.get("message") or "statuses %s" % event["statuses"])
    survivors = set(range(len(hosts))) - {VICTIM}
    if killed_at is None or set(failures) != survivors:
        raise peers.PeerError("ranks %s got no error: %s" % (sorted(survivors - set(failures)), errors))
    delays = sorted(e["at"] - killed_at for e in failures.values())
    naming = [e for e in failures.values() if re.search(r"\brank %d on \S+ is gone" % VICTIM, e["message"])]
    result = {"told": delays, "named": len(naming), "survivors": len(survivors), "message": failures[min(failures)]["message"]}
    if backend == "cool":
        if set(resumed) != survivors:
            raise peers.PeerError("ranks %s did not resume: %s" % (sorted(survivors - set(resumed)),
                                                                errors))
        result.update(went_on=max(e["at"] - killed_at for e in resumed.values()), hashes_equal=len({e["hash"] for e in resumed.values()}) == 1)
    return result


def part_killed(ranks, bed, options, report, save):
    hosts = peers.rank_order(bed.description, "racked")
    report["killed"] = {backend: attempt(kill_rank, ranks, hosts, options.batch, backend) for backend in options.backends}
    for backend, result in report["killed"].items():
        bench.print_now("killed, %s: %s" % (
            backend, result.get("failed") or "error after %.2f s, rank named at %d of %d%s; %s" % (
            result["told"][-1], result["named"], result["survivors"], ", resumed after %.2f s" % result["went_on"] if "went_on" in result else "",
            result["message"])))
    save()


def on_one_host(ranks, bed, count):
    host = peers.rank_order(bed.description, "racked")[0]
    (result,) = ranks.job("adapter", [host] * count, "cool", rounds=3)
    return result


def part_adapter(ranks, bed, options, report, save):
    report["adapter"] = {count: attempt(on_one_host, ranks, bed, count) for count in (2, 8)}
    for count, result in report["adapter"].items():
        bench.print_now("%d ranks of one host: %s" % (
            count, result.get("failed") or "8 bytes %.0f us (%.0f with COOL's own binding), "
            "64 MiB %.1f ms (%.1f)" % (
            1e6 * result["small"], 1e6 * result["own_small"], 1e3 * result["large"], 1e3 * result["own_large"])))
    save()


def train(ranks, hosts, backend, strategy, batch, epochs, steps=0):
    """Runs the training and returns the report of the example."""
    (result,) = ranks.job("training", hosts, backend, strategy=strategy, batch=batch, epochs=epochs, steps=steps)
    return result


def part_training(ranks, bed, options, report, save):
    host_count, hosts = len(bed.description["hosts"]), [rack[0] for rack in peers.racks(bed.description)]
    batch = options.batch * host_count // len(hosts)
    report["training"], report["training_ranks"] = {}, len(hosts)
    for strategy in options.strategies:
        report["training"][strategy] = {name: attempt(train, ranks, hosts, name.split()[0], strategy, batch, options.epochs, options.epoch_steps)
                                        for name in ("cool", "gloo", "cool again") if name.split()[0] in options.backends}
        for name, result in report["training"][strategy].items():
            bench.print_now("%s by %s: %s" % (strategy, name, result.get("failed") or "accuracy %(accuracy).4f after %(steps)d steps, weights %(hash)s" % result))
        save()


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = lambda names: {"type": bench.list_of(bench.one_of(names)), "default": list(names), "help": "default " + ",".join(names)}
    p.add_argument("--parts", **choices(PARTS))
    p.add_argument("--backends", **choices(BACKENDS))
    p.add_argument("--strategies", **choices(STRATEGIES))
    p.add_argument("--placements", **choices(bench.PLACEMENTS))
    p.add_argument("--batch", type=int, default=64,
                   help="pictures per rank and step; default %(default)s")
    p.add_argument("--steps", type=int, default=5, help="measured steps; default %(default)s")
    p.add_argument("--warmup", type=int, default=2,
                   help="steps before the measured ones; default %(default)s")
    p.add_argument("--epochs", type=int, default=2,
                   help="epochs of the training; default %(default)s")
    p.add_argument("--epoch-steps", type=int, default=0,
                   help="maximum number of steps per epoch; 0 means all")
    bench.add_network_options(p)
    p.add_argument("--python", default=PYTHON, help="a Python with torch and cool; default target/bindings/python/bin/python3")
    p.add_argument("--timeout", type=int, default=300,
                   help="timeout of one job in seconds; default %(default)s")
    p.add_argument("--docs", action="store_true", help="write the section of docs/measurements/torch.md")
    bench.add_run_options(p, "torch-train")
    options = p.parse_args()
    options.out, options.bin = os.path.abspath(options.out), os.path.abspath(options.bin)
    if min(options.batch, options.steps, options.epochs, options.timeout) < 1 or min(options.warmup, options.wait, options.epoch_steps) < 0 or min(options.host_mbit, options.uplink_mbit) <= 0:
        p.error("--batch, --steps, --epochs and --timeout must be at least 1; rates must be more "
                "than 0; --warmup, --wait and --epoch-steps must not be negative")
    return options


def in_network(parts, rates, options, report, save):
    """Measures these parts on one network whose links have these rates, where 0 means unshaped."""
    bed = testbed.Testbed(options.topology, *rates, bin_dir=options.bin, log_level="warn", slots=8, peer_timeout_ms=bench.PEER_TIMEOUT_MS,
                          logs=os.path.join(options.out, "logs"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(bench.await_machine(bed, options.wait))
        bed.wait_until_measured()
        ranks = stack.enter_context(Ranks(bed, options.python, options.out, options.timeout))
        report.update(torch=ranks.torch, ranks=len(bed.description["hosts"]))
        for part in parts:
            globals()["part_" + part](ranks, bed, options, report, save)


def main():
    options = parse_arguments()
    testbed.unwind_on_signals()
    os.makedirs(options.out, exist_ok=True)
    report = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "processors": os.cpu_count(), "topology": options.topology,
              "host_mbit": options.host_mbit, "uplink_mbit": options.uplink_mbit, "batch": options.batch, "steps_measured": options.steps, "weights": WEIGHTS}

    def save():
        with open(os.path.join(options.out, "report.json"), "w") as f:
            json.dump(report, f, indent=1)

    # The accuracy of training does not depend on the rate of links, so it is measured on unshaped
    # links.
    for parts, rates in ((PARTS[:-1], (options.host_mbit, options.uplink_mbit)), (PARTS[-1:], (0, 0))):
        chosen = [part for part in parts if part in options.parts]
        if chosen:
            in_network(chosen, rates, options, report, save)
    print(torch_tables.section_text(report))
    if options.docs:
        torch_tables.write(report)
    return int(torch_tables.failed(report))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, peers.PeerError, RuntimeError, OSError, ValueError, KeyError) as e:
        sys.exit("torch_train: %s" % e)
