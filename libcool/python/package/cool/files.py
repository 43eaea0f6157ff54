"""Files and folders to many nodes, and contents that stay there: what ``cool copy``, ``put``, ``get``, ``ls``, ``rm`` and ``verify`` do.

Any process may call this that may run ``cool``, which has to be in the PATH (or named by ``COOL_PROGRAM``)::

    from cool import files

    copied = files.copy("/data/model.bin", "/scratch/", racks=[0, 2], quorum="95%")
    print(copied["seconds"], [node["node"] for node in copied["nodes"] if node["error"]])

All return the document that the command prints with ``--json`` (docs/guide/copy.md, docs/guide/store.md). Options are those of the command:
``nodes`` and ``racks`` take lists, ``from_`` is ``--from``, a flag is ``True``, as in ``background=True``. :class:`FilesError` names the nodes
where something is missing; its ``outcome`` is the document of what was done all the same, or None.
"""

import json
import os

from ._cool import FilesError, run_files

__all__ = ["FilesError", "copy", "get", "ls", "put", "rm", "stat", "verify"]


def copy(source, dest, **options):
    """Copies a file or folder to a path on many nodes; ``{node}`` in it stands for the node's name, ``/`` at its end says that it is the folder."""
    return _run("copy", options, source, dest)


def put(name, source=None, **options):
    """Copies a file or folder into the nodes' stores, by a name; without a source, what one of them has by that name."""
    return _run("put", options, name, *([] if source is None else [source]))


def get(name, dest, **options):
    """Copies what stores have by a name to a path on nodes."""
    return _run("get", options, name, dest)


def ls(name=None, **options):
    """What is in the nodes' stores, or what a name stands for there."""
    return _run("ls", options, *([] if name is None else [name]))


def stat(name, **options):
    """What a name stands for on each node."""
    return _run("stat", options, name)


def rm(name, **options):
    """Takes a name away from the nodes' stores."""
    return _run("rm", options, name)


def verify(name=None, **options):
    """Reads what stores have again, all or by a name; what is damaged is named."""
    return _run("verify", options, *([] if name is None else [name]))


def _run(verb, options, *operands):
    arguments = [verb, "--json"]
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else os.fspath(value) if isinstance(value, os.PathLike) else str(value)
            arguments += [option, text]
    try:
        return json.loads(run_files(arguments + ["--"] + [os.fspath(operand) for operand in operands]))
    except FilesError as error:
        error.outcome = json.loads(error.outcome) if error.outcome else None
        raise
