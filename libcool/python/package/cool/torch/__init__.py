"""The backend "cool" of torch.distributed, for tensors in the processor's memory, with torch 2.14 or later::

    import torch.distributed as dist

    dist.init_process_group("cool")  # with GPUs: "cpu:cool,cuda:nccl"

Nothing need be imported for it: torch finds it by its entry point. Started by ``torchrun``, srun or mpirun on a cluster with
COOL, each rank talks to its node's agent; ``torchrun --nproc-per-node 4 train.py`` on a machine without brings agents itself.
"""

import torch

OLDEST = (2, 14)

if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < OLDEST:
    raise ImportError(f"the backend cool needs torch {OLDEST[0]}.{OLDEST[1]} or later; this is torch {torch.__version__}")
if not torch.distributed.is_available():
    raise ImportError(f"this build of torch ({torch.__version__}) has no torch.distributed, of which cool is a backend")

from .errors import ArgumentError, Error
from .shrunk import lost

__all__ = ["ArgumentError", "Error", "lost", "register"]


def register():
    """Makes the backend known to torch; the entry point's target."""
    from . import backend, shrunk

    shrunk.call_by_their_kind(backend.CoolBackend)
    # Tensors of GPUs are named too, so that an error tells what to do with them.
    torch.distributed.Backend.register_backend("cool", backend.create, extended_api=True, devices=["cpu", "cuda"])
