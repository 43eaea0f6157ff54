"""Lost ranks of a group, and the groups that `torch.distributed.shrink_group` creates with this backend."""

import functools

import torch
from torch.distributed import ProcessGroup, distributed_c10d

import cool


def lost(group=None):
    """Returns the lost ranks of a group (default: the default group), for `torch.distributed.shrink_group`.

    All surviving ranks must call this after a call has failed, and get the same result. It is needed because DDP passes
    on only the message of an error, without its ranks.
    """
    backend = (group or distributed_c10d._get_default_group())._get_backend(torch.device("cpu"))
    try:
        return backend._comm.agree()[1]
    except cool.Error as error:
        raise backend.error_of(error) from error


def call_by_their_kind(kind):
    """Makes torch register shrunk groups with the right kind of backend.

    torch 2.15 assumes that every backend for CPU tensors is its own Gloo, and DDP's logger then reads the memory of this
    backend as an object of Gloo's class.
    """
    make = getattr(distributed_c10d, "_create_shrunk_process_group", None)
    if make is None:
        return  # Another release of torch, which implements shrinking differently.

    @functools.wraps(make)
    def make_of_kind(backend, *arguments, **more):
        group = make(backend, *arguments, **more)
        if isinstance(backend, kind):
            group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, backend)
            group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        return group

    distributed_c10d._create_shrunk_process_group = make_of_kind
