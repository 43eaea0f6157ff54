"""The backend "cool" of torch.distributed, for tensors in main memory, with torch 2.14 or later::

    import torch.distributed as dist

    dist.init_process_group("cool")  # with GPUs: "cpu:cool,cuda:nccl"

The program need not import this module, because torch finds it by its entry point. On a cluster with COOL, each rank,
started by ``torchrun``, srun or mpirun, uses the agent of its node. Without agents, the job starts its own: on one machine
in rank 0, on several as a cluster for the job, which needs the program ``cool`` on each machine.
"""

import torch

OLDEST = (2, 14)

if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < OLDEST:
    raise ImportError(f"the backend cool needs torch {OLDEST[0]}.{OLDEST[1]} or later; this is torch {torch.__version__}")
if not torch.distributed.is_available():
    raise ImportError(f"this build of torch ({torch.__version__}) has no torch.distributed, which the backend cool needs")

from .errors import ArgumentError, Error
from .shrunk import lost

__all__ = ["ArgumentError", "Error", "lost", "register"]


def register():
    """Registers the backend with torch. This is the target of the entry point."""
    from . import backend, shrunk

    shrunk.call_by_their_kind(backend.CoolBackend)
    # GPU tensors are included, so that the error message contains a remedy.
    torch.distributed.Backend.register_backend("cool", backend.create, extended_api=True, devices=["cpu", "cuda"])
