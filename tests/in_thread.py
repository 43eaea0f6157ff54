#!/usr/bin/env python3
"""Runs pytest with its arguments in a thread other than the main one, because tests must not depend
on the thread in which they run."""
import os
import sys
import threading

import pytest


def main():
    status = []
    tests = threading.Thread(target=lambda: status.append(pytest.main(sys.argv[1:])), daemon=True)
    tests.start()
    try:
        tests.join()
    except KeyboardInterrupt:
        # The thread cannot be interrupted, but its children end with it (PR_SET_PDEATHSIG).
        os._exit(pytest.ExitCode.INTERRUPTED)
    # Without a status pytest itself has failed, and has reported the reason.
    return status[0] if status else pytest.ExitCode.INTERNAL_ERROR


if __name__ == "__main__":
    sys.exit(main())
