"""Runs torch's own tests of torch.distributed backends (torch.testing._internal.distributed.distributed_test, part of its wheel) on one backend.

    BACKEND=gloo python3 tests/external/torch_cases.py --take cool --out result.jsonl --only test_all_reduce_sum test_barrier

Run by PyTorch's Python (tools/torch). The tests go by the name of the backend in BACKEND, as some are only for one of a name; `--take` says
which backend is taken for it. COOL_SOCKETS has the agents' sockets, a rank's each, with commas between. Ranks are forked, so that torch is
imported once. To the file go lines of JSON: test, result (passed, failed, skipped), why, seconds.
"""
import argparse
import json
import os
import sys
import tempfile
import time
import unittest

os.environ.setdefault("WORLD_SIZE", "4")
# Seconds after which the ranks of a test are ended.
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "120")
# Read when the tests are imported; each test makes folders of its own.
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

import torch  # noqa: E402
import torch._dynamo  # noqa: E402,F401  DDP imports it, and it takes long
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

NAME = os.environ["BACKEND"]
# The tests ask for these when they are imported.
DistTestCases.backend_feature["ddp"].add(NAME)
if NAME == "mpi":
    dist.is_mpi_available = lambda: True

from torch.testing._internal.distributed import distributed_test  # noqa: E402


def gloo(options, _):
    """Creates Gloo under any name."""
    return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)


def cool(options, more):
    """Creates COOL under any name."""
    from cool.torch.backend import create

    return create(options, more)


TAKEN = {"gloo": gloo, "cool": cool}


def take(name):
    """A backend's creator stands for the name of the tests; but MPI's is built into torch, so there the tests learn the backend's own name
    once they have chosen themselves."""
    if NAME == "mpi":
        distributed_test.BACKEND = name
    elif name != NAME:
        # What is called gloo:all_reduce and the like in a profile is made by Gloo itself.
        distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()
        dist.Backend.register_backend(NAME, TAKEN[name], extended_api=True, devices=["cpu"])


class Cases(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank, *arguments, **named):
        sockets = os.environ.get("COOL_SOCKETS")
        if sockets:
            os.environ["COOL_SOCKET"] = sockets.split(",")[rank]
        super()._run(rank, *arguments, **named)


class Told(unittest.TestResult):
    """Writes the result of each test as soon as it ends."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def startTest(self, test):
        super().startTest(test)
        self.begun, self.verdict = time.monotonic(), ("passed", "")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.verdict = "skipped", reason

    def addError(self, test, err):
        super().addError(test, err)
        self.verdict = "failed", str(err[1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.verdict = "failed", str(err[1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.verdict = "failed", str(err[1])

    def stopTest(self, test):
        result, why = self.verdict
        self.file.write(json.dumps({"test": test._testMethodName, "result": result, "why": why, "seconds": time.monotonic() - self.begun}) + "\n")
        self.file.flush()
        super().stopTest(test)


def skipped(name):
    """Whether a test is left out under this name of the backend, which is known before it runs."""
    return getattr(getattr(Cases, name), "__unittest_skip__", False)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--take", choices=tuple(TAKEN), help="the backend that is taken for BACKEND; default: the one of this name")
    p.add_argument("--out", required=True, help="file of the results")
    p.add_argument("--only", nargs="*", help="the tests to run; default: all")
    p.add_argument("--list", action="store_true", help="write the names of the tests only")
    options = p.parse_args()
    names = unittest.defaultTestLoader.getTestCaseNames(Cases)
    unknown = set(options.only or ()) - set(names)
    if unknown:
        p.error("no such tests: " + " ".join(sorted(unknown)))
    if options.take:
        take(options.take)
    with open(options.out, "w") as file:
        result = Told(file)
        for name in names if options.only is None else options.only:
            if options.list:
                file.write(json.dumps({"test": name}) + "\n")
            elif skipped(name):
                file.write(json.dumps({"test": name, "result": "skipped", "why": getattr(Cases, name).__unittest_skip_why__, "seconds": 0}) + "\n")
            else:
                Cases(name).run(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
