"""What programs do first, and code that tests import never does: it changes the whole process, and works in its main thread alone."""
import signal


def unwind_on_signals():
    """Lets signals that end programs unwind through every context, so that all that was made is removed."""
    def interrupted(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
