"""Who is gone from a group, and groups that are left by `torch.distributed.shrink_group`, as groups of this backend."""

import functools

import torch
from torch.distributed import ProcessGroup, distributed_c10d

import cool


def lost(group=None):
    """The ranks that a group has lost, in its numbers, for `torch.distributed.shrink_group`; of the default group, if none is
    given. All ranks that are left call this after a call has failed, and get the same. DDP passes on an error's words only.
    """
    backend = (group or distributed_c10d._get_default_group())._get_backend(torch.device("cpu"))
    try:
        return backend._comm.agree()[1]
    except cool.Error as error:
        raise backend.error_of(error) from error


def call_by_their_kind(kind):
    """Lets torch know of what kind of backend the shrunk groups are.

    As of torch 2.15 it takes every backend for tensors of the processor for its own Gloo, as whose class DDP's logger then reads its memory.
    """
    make = getattr(distributed_c10d, "_create_shrunk_process_group", None)
    if make is None:
        return  # Another release, which does it otherwise.

    @functools.wraps(make)
    def make_of_kind(backend, *arguments, **more):
        group = make(backend, *arguments, **more)
        if isinstance(backend, kind):
            group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, backend)
            group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        return group

    distributed_c10d._create_shrunk_process_group = make_of_kind
