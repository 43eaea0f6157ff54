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
    others = [f"rank {rank} of the group is rank {global_ranks[rank]} of all" for rank in error.ranks if global_ranks]
    text = f"{before}{error} ({', '.join(others)})" if others else f"{before}{error}"
    raised = (ArgumentError if isinstance(error, cool.ArgumentError) else Error)(text)
    raised.ranks, raised.__cause__ = tuple(error.ranks), error
    return raised
