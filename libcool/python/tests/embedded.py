"""Ranks in threads of this process, as the tests of the Python module use them."""

import os

import cool


def on(ranks, main):
    """Returns what `main(world)` returns at each of this many ranks, in rank order.

    libcool reads their number from the environment of this process, so this function sets
    COOL_EMBEDDED. No other code of these tests reads the variable, and every call sets it again.
    """
    os.environ["COOL_EMBEDDED"] = str(ranks)
    return cool.launch(main)
