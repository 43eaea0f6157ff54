"""The emulation answers or fails, in any thread, although Mininet itself waits for the shells of
nodes without a limit."""
import threading

import emulator
import pytest

# Seconds of silence after which a shell is killed in these tests.
SILENCE = 1


class SilentHost(emulator.Host):
    silence = SILENCE


class HostWithoutPrompt(SilentHost):
    """A host whose shell prints no prompt."""

    def _popen(self, cmd, **options):
        return super()._popen(["sleep", "1000"], **{**options, "start_new_session": True})


def in_other_thread(body):
    """Returns the exception of `body` in a thread other than the main one, or None."""
    errors = []

    def run():
        try:
            body()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the wait has an end"
    return errors[0] if errors else None


def in_this_thread(body):
    """Returns the exception of `body`, or None."""
    try:
        body()
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("raised_by", [in_this_thread, in_other_thread])
def test_a_command_that_does_not_end_is_killed_and_named(raised_by):
    host = SilentHost("h1")
    try:
        error = raised_by(lambda: host.cmd("echo begun; sleep 1000"))
        assert isinstance(error, RuntimeError), repr(error)
        assert str(error) == "the shell of h1 was silent for 1 s after: echo begun; sleep 1000"
        assert host.shell.wait(60) == -9
    finally:
        host.terminate()


@pytest.mark.parametrize("raised_by", [in_this_thread, in_other_thread])
def test_a_host_whose_shell_does_not_start_is_named(raised_by):
    error = raised_by(lambda: HostWithoutPrompt("h1"))
    assert isinstance(error, RuntimeError), repr(error)
    assert str(error) == "the shell of h1 was silent for 1 s, and does not start"


@pytest.mark.parametrize("raised_by", [in_this_thread, in_other_thread])
def test_a_host_that_answers_is_not_bothered(raised_by):
    host = SilentHost("h1")
    try:
        # The command takes longer than the permitted silence, but it is never silent for that long.
        outputs = []
        assert raised_by(lambda: outputs.append(host.cmd("for i in 1 2 3 4; do echo $i; sleep 0.5; done"))) is None
        assert outputs[0].split() == ["1", "2", "3", "4"]
    finally:
        host.terminate()


def test_a_command_of_mininets_that_does_not_end_fails_by_name():
    with pytest.raises(RuntimeError, match="did not end within 1 s: sleep 1000"):
        emulator.run_bounded("sleep 1000", seconds=SILENCE)
    assert emulator.run_bounded("echo out; echo err >&2; exit 3", shell=True) == ("out\n", "err\n", 3)
