"""A cluster for one job on several machines without agents: rank 0 starts a controller, and one rank of each machine an agent.

The programs are run by ``cool up`` and ``cool join``, in a session of their own. They end when all ranks of their machine
have ended, however that happens. The token with which machines join is passed through torch's store, so the cluster is as
secure as the store is.
"""

import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile

from . import errors

# Environment variables: the network interface for data (name or IP address), and further options of cool-nodeagent.
INTERFACE, AGENT_OPTIONS = "COOL_INTERFACE", "COOL_AGENT_OPTIONS"

# Namespaces in which processes must agree so that they can share an agent.
NAMESPACES = ("net", "mnt", "pid", "user")

# The running commands. They outlive this process, which must not wait for them.
_commands = []


def machine():
    """Returns an identifier of this machine, equal for processes that can use the same agent. Containers are machines."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot = f.read().strip()
    return " ".join([boot, str(os.geteuid()), *(str(os.stat(f"/proc/self/ns/{name}").st_ino) for name in NAMESPACES)])


def program():
    """Returns the path of the program ``cool``: next to the interpreter, or in PATH. Returns None if there is none."""
    return shutil.which("cool", path=os.path.dirname(sys.executable)) or shutil.which("cool")


def by_machine(requests):
    """Returns the first rank and the processes of each machine, given the requests of all ranks."""
    machines = {}
    for rank, request in sorted(requests.items()):
        machines.setdefault(request["machine"], {"first": rank, "pids": []})["pids"].append(request["pid"])
    return machines


def start(pids, machines):
    """Starts the controller and this machine's agent, at rank 0; returns the token and the socket of the agent.

    They end with the processes ``pids``. ``machines`` is the number of machines that can join.
    """
    options = ["up", "--controller-port", "0", "--join-port", "0", "--uses", str(machines)]
    interface = os.environ.get(INTERFACE) or _master_address()
    node = _run(options, interface, pids)
    return node["token"], node["socket"]


def join(token, pids):
    """Starts this machine's agent, which ends with the processes ``pids``; returns its socket."""
    return _run(["join"], os.environ.get(INTERFACE), pids, {"COOL_JOIN_TOKEN": token})["socket"]


def _master_address():
    """Returns the address of this machine at which the other ranks reach the store, or None if it is unknown."""
    try:
        found = socket.getaddrinfo(os.environ["MASTER_ADDR"], None, type=socket.SOCK_DGRAM)
    except (KeyError, OSError):
        return None
    for family, _, _, _, address in found:
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            try:
                own.bind((address[0], 0))
            except OSError:
                continue
        if not address[0].startswith("127.") and address[0] != "::1":
            return address[0]
    return None


def _run(options, interface, pids, variables=None):
    """Runs ``cool`` until the processes have ended, and returns the node that it has started.

    Other users of the machine can read its arguments, but not the variables.
    """
    cool = program()
    if cool is None:
        raise errors.Error(f"no program `cool` on {socket.gethostname()}; install the wheel, or COOL's programs in a directory of PATH, there")
    name = socket.gethostname().split(".")[0]
    command = [cool, *options, "--json", "--name", f"{name}-{secrets.token_hex(4)}", "--until-exit", ",".join(map(str, pids))]
    command += ["--state", tempfile.mkdtemp(prefix="cool-job-")]
    if interface:
        command += ["--interface", interface]
    command += ["--", "--udp-port", "0", "--tcp-port", "0", "--probe-port", "0"]
    if os.geteuid() == 0:
        # The ranks are root, too.
        command.append("--allow-root")
    command += shlex.split(os.environ.get(AGENT_OPTIONS, ""))
    with tempfile.TemporaryFile("w+") as messages:
        environment = {**os.environ, **(variables or {})}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages, text=True, start_new_session=True
        )
        with process.stdout:
            line = process.stdout.readline()
        if not line:
            process.wait()
            messages.seek(0)
            raise errors.Error(f"no agent on {socket.gethostname()}: {messages.read().strip()}")
    _commands.append(process)
    return json.loads(line)
