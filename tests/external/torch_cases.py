"""Runs the tests of torch.distributed backends that are part of torch's wheel
(torch.testing._internal.distributed.distributed_test) on one backend.

    BACKEND=gloo python3 tests/external/torch_cases.py --take cool --out result.jsonl --only test_all_reduce_sum test_barrier

PyTorch's Python (tools/torch) must run this program. The variable BACKEND is the name of the
backend for the tests, some of which exist only for certain names; `--take` selects the backend that
is used under that name. COOL_SOCKETS contains the socket of the agent of each rank, separated by
commas. Ranks are forked, so that torch is imported only once. The results are lines of JSON with
test, result (passed, failed, skipped), why, and seconds.
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
# The tests read this variable when they are imported, and create directories there.
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

import torch  # noqa: E402
import torch._dynamo  # noqa: E402,F401  DDP imports it, which takes long
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

NAME = os.environ["BACKEND"]
# The tests check these settings when they are imported.
DistTestCases.backend_feature["ddp"].add(NAME)
if NAME == "mpi":
    dist.is_mpi_available = lambda: True

from torch.testing._internal.distributed import distributed_test  # noqa: E402


def gloo(options, _):
    """Creates Gloo's process group, under any name."""
    return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)


def cool(options, more):
    """Creates COOL's backend, under any name."""
    from cool.torch.backend import create

    return create(options, more)


BACKENDS = {"gloo": gloo, "cool": cool}


def use_backend(name):
    """Uses a backend under the name in BACKEND. MPI is built into torch, so in that case the tests
    use the backend's own name once torch has selected the tests of MPI."""
    if NAME == "mpi":
        distributed_test.BACKEND = name
    elif name != NAME:
        # Names such as gloo:all_reduce occur in profiles of Gloo only.
        distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()
        dist.Backend.register_backend(NAME, BACKENDS[name], extended_api=True, devices=["cpu"])


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


class ResultWriter(unittest.TestResult):
    """A test result that writes the outcome of each test to a file as soon as it ends."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def startTest(self, test):
        super().startTest(test)
        self.start_time, self.verdict = time.monotonic(), ("passed", "")

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
        self.file.write(json.dumps({"test": test._testMethodName, "result": result, "why": why, "seconds": time.monotonic() - self.start_time}) + "\n")
        self.file.flush()
        super().stopTest(test)


def skipped(name):
    """Returns whether the tests themselves skip this test under this name of the backend, which is
    known before it runs."""
    return getattr(getattr(Cases, name), "__unittest_skip__", False)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--take", choices=tuple(BACKENDS),
                   help="backend to use under the name BACKEND; default: the backend of that name")
    p.add_argument("--out", required=True, help="file for the results")
    p.add_argument("--only", nargs="*", help="tests to run; default all")
    p.add_argument("--list", action="store_true", help="only write the names of the tests")
    options = p.parse_args()
    names = unittest.defaultTestLoader.getTestCaseNames(Cases)
    unknown = set(options.only or ()) - set(names)
    if unknown:
        p.error("no such tests: " + " ".join(sorted(unknown)))
    if options.take:
        use_backend(options.take)
    with open(options.out, "w") as file:
        result = ResultWriter(file)
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
