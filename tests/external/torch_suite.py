#!/usr/bin/python3
"""Runs the tests of torch, of accelerate, and an epoch of Lightning with Gloo and with COOL (`make
torch`).

    sudo tests/external/torch_suite.py --only 'all_reduce|broadcast'

The tests of torch are those in its wheel (torch.testing._internal.distributed.distributed_test).
Their 4 ranks are forked on this machine and have one agent each, in hosts of an emulated network.
Some tests exist only for certain backend names. Each test runs under the names "cool", "gloo" and
"mpi", in this order, until it passes with Gloo; under each name, both COOL and Gloo are used. The
program reports the tests that pass with Gloo and fail with COOL: those of EXPECTED must fail, and
all others must pass. Needs root, the same packages as the end-to-end tests, and
target/bindings/python with torch (tools/bindings, tools/torch target/bindings/python).
"""
import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "mininet"), os.path.join(ROOT, "bench")]
import section  # noqa: E402
import testbed  # noqa: E402

FOLDER = os.path.join(testbed.TARGET, "torch-suite")
PYTHON = os.path.join(testbed.TARGET, "bindings", "python", "bin", "python3")
NAMES = ("cool", "gloo", "mpi")
TOPOLOGY = "tree:2x2"
SECONDS = 1800
# Tests that pass with Gloo but not with COOL, and the reasons.
EXPECTED = {
    "test_ddp_logging_data_cpu": "DDP's log calls every backend of others `custom`",
}
# Wheels that are installed without their dependencies, so that torch does not change, and packages
# that are installed with their dependencies.
OTHERS = ("accelerate==1.15.0", "lightning==2.6.6", "torchmetrics==1.9.0", "lightning-utilities==0.15.3", "torchdata==0.11.0")
NEEDED = ("psutil", "pyyaml", "huggingface_hub", "safetensors", "tqdm")


def sockets(bed):
    """Returns the agents' sockets, one per rank; neighbors in rank order are in different racks."""
    hosts = [h["name"] for h in bed.description["hosts"]]
    return ",".join(os.path.join(bed.directory, name + ".sock") for name in hosts[::2] + hosts[1::2])


def run(python, script, arguments, out, variables):
    """Runs a program that writes results to the file `out`, and returns them by test. Tests that
    the program does not reach have no result."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(out)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    with open(out + ".log", "w") as log:
        command = [python, os.path.join(HERE, script), "--out", out, *arguments]
        try:
            process = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise testbed.Failure("%s: not finished within %d s, see %s"
                                  % (script, SECONDS, log.name)) from None
    if process.returncode:
        raise testbed.Failure("%s: status %d, see %s" % (script, process.returncode, log.name))
    with open(out) as f:
        return {result["test"]: result for result in map(json.loads, f)}


def cases(folder, name, take, only, agent_sockets, python=PYTHON):
    """Runs torch's tests under a name with the backend `take`. Returns the results."""
    return run(python, "torch_cases.py", ["--take", take, "--only", *only],
               os.path.join(folder, "%s-as-%s.jsonl" % (take, name)), {"BACKEND": name, "COOL_SOCKETS": agent_sockets})


def run_both(folder, name, only, agent_sockets):
    """Runs tests under a name with Gloo, then those that were not skipped with COOL. Returns both
    results."""
    if not only:
        return {}, {}
    baseline = cases(folder, name, "gloo", only, agent_sockets)
    chosen = [test for test, result in baseline.items() if result["result"] != "skipped"]
    return baseline, cases(folder, name, "cool", chosen, agent_sockets) if chosen else {}


def does_not_exist(result):
    """Returns whether a test does not exist under this name. A test that needs a GPU is skipped
    only when it runs."""
    return result["result"] == "skipped" and result["seconds"] == 0


def prepare_python():
    """Returns a Python with torch, accelerate and lightning, which is installed if it is
    missing."""
    folder = os.path.join(FOLDER, "python")
    python = os.path.join(folder, "bin", "python3")
    if not os.path.exists(os.path.join(folder, "whole")):
        subprocess.run([PYTHON, "-m", "venv", "--clear", folder], check=True)
        site_packages, = (os.path.join(folder, "lib", name, "site-packages") for name in os.listdir(os.path.join(folder, "lib")))
        paths = subprocess.run([PYTHON, "-c", "import sys; print('\\n'.join(p for p in sys.path if p.endswith('site-packages')))"],
                               capture_output=True, text=True, check=True).stdout
        with open(os.path.join(site_packages, "torch.pth"), "w") as f:
            f.write(paths)
        pip = [os.path.join(folder, "bin", "pip"), "--quiet", "--disable-pip-version-check", "install", "--no-warn-conflicts"]
        subprocess.run([*pip, "--no-deps", *OTHERS], check=True)
        subprocess.run([*pip, *NEEDED], check=True)
        open(os.path.join(folder, "whole"), "w").close()
    return python


def table(by_name, others):
    """Returns the table of docs/measurements/torch.md."""
    lines = ["| tests | pass with gloo | of these pass with cool | expected to fail | pass with cool only | need a GPU or more ranks |",
             "| --- | --: | --: | --: | --: | --: |"]
    for name, (baseline, with_cool) in by_name.items():
        passed, ours = ({test for test, result in results.items() if result["result"] == "passed"} for results in (baseline, with_cool))
        needs = sum(result["result"] == "skipped" and not does_not_exist(result) for result in baseline.values())
        lines.append("| torch's, under the name \"%s\" | %d | %d | %d | %d | %d |" % (
            name, len(passed), len(passed & ours), len(passed & set(EXPECTED)), len(ours - passed), needs))
    for test, result in others.get("gloo", {}).items():
        lines.append("| %s | %s | %s | | | |" % (test, *("yes" if one.get("result") == "passed" else "no" for one in (result, others["cool"].get(test, {})))))
    return "\n".join([*lines, "", *("- `%s` fails: %s." % item for item in EXPECTED.items())])


def verdicts(by_name, others):
    """Yields a line for each unexpected result."""
    for name, (baseline, with_cool) in by_name.items():
        for test, result in with_cool.items():
            if result["result"] != "passed" and baseline[test]["result"] == "passed" and test not in EXPECTED:
                yield "%s (as %s): %s with COOL: %s" % (test, name, result["result"], result["why"].strip()[-1500:])
            if result["result"] == "passed" and test in EXPECTED:
                yield "%s (as %s) is expected to fail but passes: remove it from EXPECTED" % (test, name)
        for test, result in baseline.items():
            if result["result"] == "passed" and test not in with_cool:
                yield "%s (as %s): not finished with COOL" % (test, name)
    for test, result in others.get("cool", {}).items():
        if result["result"] != "passed":
            yield "%s: %s" % (test, result["why"].strip()[-1500:])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", help="run the tests that match this regular expression")
    p.add_argument("--skip-others", action="store_true", help="omit accelerate and Lightning")
    p.add_argument("--docs", action="store_true",
                   help="write the table of docs/measurements/torch.md")
    options = p.parse_args()
    testbed.unwind_on_signals()
    os.makedirs(FOLDER, exist_ok=True)
    start, by_name, others = time.monotonic(), {}, {}
    with testbed.Testbed(TOPOLOGY, peer_timeout_ms=20_000) as bed:
        agent_sockets = sockets(bed)
        names = run(PYTHON, "torch_cases.py", ["--list"], os.path.join(FOLDER, "list.jsonl"), {"BACKEND": "gloo"})
        pending = [test for test in names if not options.only or re.search(options.only, test)]
        for name in NAMES:
            by_name[name] = run_both(FOLDER, name, pending, agent_sockets)
            pending = [test for test, result in by_name[name][0].items() if does_not_exist(result) or result["result"] == "failed"]
            print("as %s: %d tests" % (name, len(by_name[name][1])), flush=True)
        if not options.skip_others:
            python = prepare_python()
            for backend in ("gloo", "cool"):
                others[backend] = run(python, "torch_peers.py", ["--backend", backend], os.path.join(FOLDER, "others-%s.jsonl" % backend),
                                      {"COOL_SOCKETS": agent_sockets})
    wrong = list(verdicts(by_name, others))
    text = table(by_name, others)
    print(text, *wrong, "%.0f s" % (time.monotonic() - start), sep="\n")
    if options.docs:
        section.replace("torch.md", "torch suites", "Run %s by `make torch`.\n\n%s" % (time.strftime("%Y-%m-%d", time.gmtime()), text))
    return int(bool(wrong))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (testbed.Failure, OSError, ValueError, subprocess.SubprocessError) as e:
        sys.exit("torch_suite: %s" % e)
