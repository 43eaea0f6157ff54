"""The runner of these tests reports every way in which a module can end, and leaves no process of a
module that it kills."""
import os
import subprocess

from conftest import PATIENCE, ROOT

MODULES = {
    "test_good": "def test_a(): pass\ndef test_b(): pass\n",
    "test_bad": "def test_a(): pass\ndef test_b(): assert False\n",
    "test_broken": "import no_such_module\n",
    "test_empty": "",
    "test_dies": "import os\ndef test_a(): os._exit(0)\n",
    "test_skips": "import pytest\npytest.skip('of a good reason', allow_module_level=True)\n",
    "test_thread": "import threading\ndef test_a(): assert threading.current_thread() is not threading.main_thread()\n",
}
ENDLESS = "import subprocess\ndef test_a(): subprocess.run(['sleep', '%d'])\n"


def run(folder, modules, *options):
    """Runs modules with the runner; returns its exit status and its last lines, from the durations
    on."""
    for name, text in modules.items():
        (folder / (name + ".py")).write_text(text)
    files = [str(folder / (name + ".py")) for name in modules]
    # The runner that runs this test may have been started with COOL_TESTS_IN_THREAD.
    environment = {**os.environ, "CARGO_TARGET_DIR": str(folder), "COOL_TESTS_IN_THREAD": ""}
    process = subprocess.run([os.path.join(ROOT, "tests", "run.py"), *options, *files], env=environment, capture_output=True,
                             text=True, timeout=PATIENCE)
    lines = process.stdout.splitlines()
    return process.returncode, lines[next(n for n, line in enumerate(lines) if line.startswith("===== seconds:")) + 1:]


def test_totals_reasons_and_failures_are_reported(tmp_path):
    status, lines = run(tmp_path, MODULES)
    skipped, *causes, failed, total = lines
    assert status == 1 and total == "3 passed, 5 failed, 1 skipped", lines
    assert skipped == "1 skipped: of a good reason", lines
    assert failed.startswith("failed: ") and "; to repeat one: sudo env " in failed, failed
    for test in ("test_bad.py::test_b", "test_broken", "test_empty", "test_dies", "test_thread.py::test_a"):
        assert test in failed, lines
        assert sum(test in cause for cause in causes) == 1, lines
    assert any("test_bad.py::test_b: " in cause and "assert" in cause for cause in causes), lines


def test_passing_modules_are_reported_in_one_line(tmp_path):
    status, lines = run(tmp_path, {name: MODULES[name] for name in ("test_good", "test_thread")}, "--in-thread")
    assert status == 0 and lines == ["3 passed, 0 failed, 0 skipped"], lines


def test_a_module_that_does_not_end_is_killed_with_its_children(tmp_path):
    seconds = 1_000_000 + os.getpid()
    status, lines = run(tmp_path, {"test_endless": ENDLESS % seconds}, "--bound", "20")
    assert status == 1 and lines[-1] == "0 passed, 1 failed, 0 skipped", lines
    assert "took more than 20 s" in (tmp_path / "tests" / "test_endless.log").read_text()
    listed = subprocess.check_output(["ps", "-e", "-o", "args"], text=True)
    assert "sleep %d" % seconds not in listed, listed
