"""Distribution of files to many nodes, and the nodes' stores: ``cool copy``, ``put``, ``get``, ``ls``, ``stat``, ``rm``, ``verify``.

The process need not be a rank. It only needs permission to run ``cool``, which must be in the PATH or named by
``COOL_PROGRAM``::

    from cool import files

    copied = files.copy("/data/model.bin", "/scratch/", racks=[0, 2], quorum="95%")
    print(copied["seconds"], [node["node"] for node in copied["nodes"] if node["error"]])

All functions return the JSON document that the command prints with ``--json`` (docs/guide/copy.md,
docs/guide/store.md). Keyword arguments are the options of the command: ``nodes`` and ``racks`` accept lists, ``from_`` is
``--from``, and flags are set by ``True``, for example ``background=True``. :class:`FilesError` names the nodes that
failed; its attribute ``outcome`` is the document of the completed part, or None.
"""

import json
import os

from ._cool import FilesError, run_files

__all__ = ["FilesError", "copy", "get", "ls", "put", "rm", "stat", "verify"]


def copy(source, dest, **options):
    """Copies a file or directory to a path on many nodes.

    ``{node}`` in the path stands for the node's name. If the path ends with ``/``, it is the directory to copy into.
    """
    return _run("copy", options, source, dest)


def put(name, source=None, **options):
    """Copies a file or directory into the nodes' stores, under a name.

    Without a source, the object that one of the stores has under that name is copied to the others.
    """
    return _run("put", options, name, *([] if source is None else [source]))


def get(name, dest, **options):
    """Copies the object with a name from the stores to a path on the nodes."""
    return _run("get", options, name, dest)


def ls(name=None, **options):
    """Lists the objects in the nodes' stores, or the objects with a name."""
    return _run("ls", options, *([] if name is None else [name]))


def stat(name, **options):
    """Describes the object with a name on each node."""
    return _run("stat", options, name)


def rm(name, **options):
    """Removes a name from the nodes' stores."""
    return _run("rm", options, name)


def verify(name=None, **options):
    """Verifies the objects in the nodes' stores, or those with one name, and reports damage."""
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
