"""COOL's errors as those of torch.distributed."""

from torch.distributed import DistBackendError

import cool


class Error(DistBackendError):
    """A call failed. ``ranks`` are those concerned, in the group's numbers, as far as they are known; ``__cause__`` is
    COOL's own error, whose class says of what kind it is."""

    ranks = ()


class ArgumentError(Error, ValueError):
    """The arguments make no sense. Nothing was sent, and the group can be used as before."""


def of(error, global_ranks, before=""):
    """A COOL error as one of torch's, with some words before. If the group's ranks are not numbered as all ranks are, both numbers are said."""
    if isinstance(error, cool.TimeoutError):
        before += "the call's timeout has passed: "  # The word that programs look for.
    others = [f"rank {rank} of the group is rank {global_ranks[rank]} of all" for rank in error.ranks if global_ranks]
    text = f"{before}{error} ({', '.join(others)})" if others else f"{before}{error}"
    raised = (ArgumentError if isinstance(error, cool.ArgumentError) else Error)(text)
    raised.ranks, raised.__cause__ = tuple(error.ranks), error
    return raised


def not_passed(ranks, mine, seconds, is_every_rank_told):
    """What comes before the error of a monitored barrier that some ranks did not pass: Gloo's words, by which programs know it."""
    ranks = ranks if is_every_rank_told else ranks[:1]
    who = f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "A rank"
    failed = f"{who} failed to pass monitoredBarrier in {seconds * 1000:g} ms: "
    if mine == 0:
        return failed
    return f"Rank {mine} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: {failed}"
