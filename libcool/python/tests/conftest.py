"""The Python of the tests that need torch. It imports torch once, from the beginning of the tests on, while others run."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "tests"))
import warm_python

# The modules that ranks import, or that torch imports when it is first used.
MODULES = ("torch", "torch._dynamo", "torch.distributed.run", "cool.torch.backend", "backend_cases", "backend_failures", "backend_training")


def pytest_collection_finish(session):
    if any("warm" in getattr(item, "fixturenames", ()) for item in session.items) and not session.config.option.collectonly:
        session.warm_folder = tempfile.TemporaryDirectory(prefix="cool-warm-")
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
        session.warm_python = warm_python.Python(sys.executable, session.warm_folder.name, MODULES, environment)


def pytest_sessionfinish(session):
    if hasattr(session, "warm_python"):
        session.warm_python.__exit__()
        session.warm_folder.cleanup()


@pytest.fixture(scope="session")
def warm(request):
    """The path of a Python that has imported torch."""
    return request.session.warm_python.path
