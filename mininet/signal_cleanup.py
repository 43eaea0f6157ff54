"""Signal handlers for programs. Code that tests import must never use this, because it changes the
whole process and works only in its main thread."""
import signal


def unwind_on_signals():
    """Makes signals that end programs unwind every context, so that everything that was created is
    removed."""
    def interrupted(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
