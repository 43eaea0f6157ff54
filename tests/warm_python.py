"""A Python that has imported slow modules already, for tests that start many processes with them.

    with warm_python.Python("/path/to/venv/bin/python3", folder, ("torch",)) as python:
        subprocess.run([python, "-m", "torch.distributed.run", ...])

`python` is the path of a program that is called like Python, with a script, -m MODULE or -c CODE.
The program passes its arguments, variables, working directory, standard streams and network
namespace to a server (warm_python_server.py), which has imported the modules and forks a process
for them. The program ends with the same status as that process, and the process ends with the
program.

Importing torch takes seconds of CPU time, and a fork takes milliseconds.
"""
import os
import shlex
import socket
import subprocess

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm_python_server.py")


class Python:
    """The server, and the program that tests call."""

    def __init__(self, python, folder, modules, environment=None):
        """Starts the server with the Python `python`, which then imports the modules. `folder` must
        be empty or not exist yet."""
        os.makedirs(folder, exist_ok=True)
        self.path, address = os.path.join(folder, "python3"), os.path.join(folder, "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        os.chmod(address, 0o666)
        # Programs that connect wait in this queue until the modules are imported.
        listener.listen(1024)
        with open(self.path, "w") as f:
            f.write("#!/bin/sh\nexec /usr/bin/python3 -I -S %s %s \"$@\"\n" % (shlex.quote(SERVER), shlex.quote(address)))
        os.chmod(self.path, 0o755)
        command = [python, SERVER, "--serve", str(listener.fileno()), *modules]
        # The server ends when this pipe is closed, also if this process is killed.
        self.process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        listener.close()

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
