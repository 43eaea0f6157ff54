"""Ranks in threads of this process, as the tests of the Python module use them."""

import os

import cool


def on(ranks, main):
    """Returns what `main(world)` returns at each of this many ranks, in rank order.

    libcool takes their number from the environment of the process in which the ranks are threads,
    so this changes it. No other code of these tests reads it, and each call sets it again.
    """
    os.environ["COOL_EMBEDDED"] = str(ranks)
    return cool.launch(main)
