"""Conversion of COOL's errors to those of torch.distributed."""

from torch.distributed import DistBackendError

import cool


class Error(DistBackendError):
    """A call failed.

    ``ranks`` contains the ranks concerned, numbered within the group, if known. ``__cause__`` is COOL's own error; its
    class is the kind of the failure.
    """

    ranks = ()


class ArgumentError(Error, ValueError):
    """The arguments are invalid. Nothing was sent, and the group stays usable."""


def of(error, global_ranks, before=""):
    """Returns torch's error for a COOL error, with the prefix ``before``.

    If the ranks of the group have other numbers than the global ranks, the message contains both.
    """
    if isinstance(error, cool.TimeoutError):
        before += "the call's timeout has passed: "  # Programs search for the word "timeout".
    others = [f"rank {rank} of the group is rank {global_ranks[rank]} of all" for rank in error.ranks if global_ranks]
    text = f"{before}{error} ({', '.join(others)})" if others else f"{before}{error}"
    converted = (ArgumentError if isinstance(error, cool.ArgumentError) else Error)(text)
    converted.ranks, converted.__cause__ = tuple(error.ranks), error
    return converted


def not_passed(ranks, mine, seconds, is_every_rank_named):
    """Returns the prefix of the error of a failed monitored barrier. It has Gloo's wording, because programs search for it."""
    ranks = ranks if is_every_rank_named else ranks[:1]
    subject = f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "A rank"
    failed = f"{subject} failed to pass monitoredBarrier in {seconds * 1000:g} ms: "
    if mine == 0:
        return failed
    return f"Rank {mine} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: {failed}"
