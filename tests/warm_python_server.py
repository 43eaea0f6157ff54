#!/usr/bin/python3
"""The server of warm_python.py, and the program that passes its arguments to it.

    warm_python_server.py --serve DESCRIPTOR MODULE...
    warm_python_server.py SOCKET (SCRIPT | -m MODULE | -c CODE) ARGUMENT...
"""
import array
import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import traceback

CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1
# If this variable is set, the interpreter is finalized at the end of a program, which takes as long
# as many short tests, because torch has very many objects.
FINALIZES = "WARM_PYTHON_FINALIZES"
# Maximum length of a request: arguments and variables of a process.
REQUEST_BYTES = 1 << 20
LENGTH = struct.Struct("=I")


def exactly(connection, length):
    """Receives this many bytes. Raises EOFError if the connection ends before."""
    received = b""
    while len(received) < length:
        more = connection.recv(length - len(received))
        if not more:
            raise EOFError
        received += more
    return received


def call(address, arguments):
    """Runs a program in a process of the server, and ends like it."""
    request = json.dumps({"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
    descriptors = array.array("i", [0, 1, 2, namespace])
    connection.sendmsg([LENGTH.pack(len(request))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    connection.sendall(request)
    status, = struct.unpack("=i", exactly(connection, 4))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status)


def serve(listener):
    """Forks a process for each request. Returns in these processes, with the arguments."""
    libc = ctypes.CDLL(None, use_errno=True)
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    poller.register(0, select.POLLIN)
    # Ended children need no wait.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready = [descriptor for descriptor, _ in poller.poll()]
        if 0 in ready:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            return supervise(libc, connection)
        connection.close()


def supervise(libc, connection):
    """Forks the process of a program, in which this function returns the program's arguments. Then
    waits until the process has ended or the other side does not exist any more."""
    head, ancillary, _, _ = connection.recvmsg(LENGTH.size, socket.CMSG_SPACE(4 * array.array("i").itemsize))
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    length, = LENGTH.unpack(head)
    if length > REQUEST_BYTES:
        os._exit(1)
    request = json.loads(exactly(connection, length))
    pid = os.fork()
    if pid == 0:
        connection.close()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        *streams, namespace = descriptors
        if libc.setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        for descriptor in descriptors:
            os.close(descriptor)
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        return request["arguments"]
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(connection, select.POLLIN)
    if ended not in [descriptor for descriptor, _ in poller.poll()]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        connection.sendall(struct.pack("=i", os.waitstatus_to_exitcode(status)))
    except OSError:
        pass
    os._exit(0)


def run(arguments):
    """Runs a program as Python runs it with these arguments."""
    while arguments[0] == "-u":
        del arguments[0]
        sys.stdout.reconfigure(write_through=True)
    kind, rest = arguments[0], arguments[1:]
    if kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(kind))
        runpy.run_path(kind, run_name="__main__")


def run_and_exit(arguments):
    """Runs a program and ends this process, with all that Python does at the end before it
    finalizes the interpreter."""
    status = 0
    try:
        run(arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xff)


def main():
    if sys.argv[1] != "--serve":
        call(sys.argv[1], sys.argv[2:])
    listener = socket.socket(fileno=int(sys.argv[2]))
    for module in sys.argv[3:]:
        __import__(module)
    # The garbage collector must not write to the memory that all processes share.
    gc.collect()
    gc.freeze()
    arguments = serve(listener)
    if FINALIZES in os.environ:
        run(arguments)
    else:
        run_and_exit(arguments)


if __name__ == "__main__":
    main()
