"""Unchanged MPI programs with libcool_mpi.so preloaded: Debian's Open MPI and PyPI's MPICH."""
import os
import re
import signal
import subprocess

import pytest
import testbed
from conftest import PATIENCE, ROOT
from launchers import HOST_LIBRARIES, begin_in_hosts, ended

RANKS = 4
SOURCES = os.path.join(ROOT, "apps", "mpi", "preload", "tests")
SOURCE = os.path.join(SOURCES, "collectives.c")


@pytest.fixture
def bed(make_bed):
    return make_bed("tree:2x2", switches="bridge")


def compiled(host, program):
    options = ["-DFORTRAN_NAMES", "-lmpi_mpifh"] if host.fortran else []
    done = subprocess.run([host.compiler, "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE, *options], capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return program


@pytest.fixture(scope="module", params=list(HOST_LIBRARIES))
def host(request, tmp_path_factory):
    """Returns an MPI library with the program compiled for it."""
    library = HOST_LIBRARIES[request.param]()
    library.program = compiled(library, str(tmp_path_factory.mktemp("mpi") / "collectives"))
    return library


def begin(bed, folder, host, *command, **variables):
    """Starts the program, or another command, on all hosts, with the library unless `preload` is
    empty."""
    preload = variables.pop("preload", os.path.join(bed.bin_dir, "libcool_mpi.so"))
    mpirun, *arguments = host.mpirun(bed, RANKS)
    arguments = [*variables.pop("options", []), *arguments]
    variables = {"COOL_SOCKET": bed.directory + "/$(hostname).sock", "COOL_MPI_MIN": "1K", "COOL_MPI_STATS": "1", "LD_PRELOAD": preload, **variables}
    settings = " ".join("%s=%s" % item for item in variables.items() if item[1])
    # MPICH's launcher sends this signal to all ranks after one has ended.
    script = "trap \"\" USR1; %s exec %s" % (settings, " ".join(command))
    return begin_in_hosts(bed, folder, [mpirun, *arguments, "sh", "-c", "'%s'" % script], host.variables)


def run(bed, folder, host, *command, **variables):
    """Runs the program, or another command, to a successful end; returns its output."""
    done = ended(begin(bed, folder, host, *(command or [host.program, "all"]), **variables))
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
    return done.stderr


def calls(told, operation, what="taken"):
    """Returns the calls of an operation that were intercepted, or left to MPI for a reason."""
    lines = [line.split() for line in told.splitlines() if line.startswith("cool-mpi: %s %s:" % (operation, what))]
    return sum(int(line[-4]) for line in lines)


def test_every_operation_returns_the_results_of_the_host(bed, tmp_path, host):
    assert "cool-mpi" not in run(bed, tmp_path, host, preload="")
    told = run(bed, tmp_path, host)
    # 58 pairs of a type and a reduction, each with and without MPI_IN_PLACE, and five other calls.
    assert calls(told, "allreduce") == 121 + 2 * host.fortran, told
    for operation, least in (("bcast", 6), ("reduce", 14), ("gather", 5), ("scatter", 4), ("allgather", 5), ("alltoall", 3), ("reduce_scatter", 24),
                             ("scan", 1), ("exscan", 59)):
        assert calls(told, operation) == least + host.fortran * (operation in ("bcast", "gather")), told
    for reason, number in (("reduction", 1), ("type", 6), ("intercommunicator", 3), ("one rank", 1)):
        assert calls(told, "allreduce", "left (%s)" % reason) == number, told


@pytest.mark.parametrize("size", [1 << 10, 1 << 20])
def test_a_started_send_progresses_while_the_rank_waits_for_cool(bed, tmp_path, host, size):
    told = run(bed, tmp_path, host, host.program, "progress", str(size))
    assert calls(told, "allreduce") == 2, told


@pytest.mark.parametrize("size, printed", [(4, ["converted"]), (8, [])])
def test_fortran_calls_with_long_integers_stay_with_the_host(tmp_path, size, printed):
    source, library, program = os.path.join(SOURCES, "ilp64.c"), str(tmp_path / "libmpi.so"), str(tmp_path / "program")
    for options in (["-shared", "-fPIC", "-DLIBRARY", "-DINTEGER_BYTES=%d" % size, "-o", library], ["-o", program, library, "-Wl,-rpath," + str(tmp_path)]):
        subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", source, *options], check=True, timeout=PATIENCE)
    preload = os.path.join(testbed.BIN, "libcool_mpi.so")
    done = subprocess.run([program], env={**os.environ, "LD_PRELOAD": preload}, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.splitlines() == [*printed, "host 3 5", "error 0"], done.stdout + done.stderr


def test_an_error_of_cool_is_one_of_mpi(bed, tmp_path, host):
    told = run(bed, tmp_path, host, host.program, "mismatch")
    assert "cool-mpi: rank 0: allreduce: " in told, told


def under_way(bed, folder, host, **variables):
    """Starts a program whose ranks call repeatedly. Returns the launcher, and the file with the
    ranks' error messages: MPICH's launcher loses some of them when several ranks end."""
    errors = folder / "errors"
    process = begin(bed, folder, host, host.program, "for-ever", "2>>%s" % errors, **variables)
    testbed.wait_for(lambda: errors.exists() and "under way" in errors.read_text(), "the ranks call", process=process)
    return process, errors


def process_of_rank(host, rank):
    """Returns the process id of a rank of the program."""
    def is_rank(pid):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as command, open("/proc/%s/environ" % pid, "rb") as environment:
                return command.read().split(b"\0")[0] == host.program.encode() and b"%s=%d" % (host.rank_variable, rank) in environment.read().split(b"\0")
        except OSError:
            return False  # the process has ended

    found, = (int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_rank(pid))
    return found


@pytest.mark.parametrize("launcher_looks_on", [False, True])
def test_a_rank_that_is_killed_ends_the_program(bed, tmp_path, host, launcher_looks_on):
    process, errors = under_way(bed, tmp_path, host, options=host.looks_on if launcher_looks_on else [])
    os.kill(process_of_rank(host, 1), signal.SIGKILL)
    done = ended(process)
    if launcher_looks_on:
        # mpirun does not end the other ranks, and Open MPI reports success. They learn from COOL
        # that the rank is lost, and the error handler ends them.
        assert re.search("cool-mpi: rank [023]: allreduce: rank 1 on h.* is gone", errors.read_text()), done.stderr
    else:
        assert done.returncode != 0, done.stderr


def test_an_agent_that_dies_ends_the_program(bed, tmp_path, host):
    process, errors = under_way(bed, tmp_path, host)
    agent = bed.agents["h2"]
    agent.signal(signal.SIGKILL)
    done = ended(process)
    agent.process.wait(PATIENCE)
    bed.daemons.remove(agent)
    bed.start_agent("h2")
    bed.wait_until_joined()
    assert done.returncode != 0, done.stderr
    assert re.search("cool-mpi: rank .: allreduce: (no agent at|node h2 with rank.* is gone)", errors.read_text()), done.stderr


def test_without_an_agent_the_host_executes_all_calls(bed, tmp_path, host):
    told = run(bed, tmp_path, host, host.program, "first", COOL_SOCKET="/no/agent.sock")
    assert told.count("cool-mpi: collectives stay with") == 1 and "rank 0 of 4: no agent at /no/agent.sock" in told, told
    assert calls(told, "allreduce") == 0 and calls(told, "bcast", "left (no group)") > 0, told
    done = ended(begin(bed, tmp_path, host, host.program, "first", COOL_SOCKET="/no/agent.sock", COOL_MPI="require"))
    assert done.returncode != 0 and "COOL_MPI=require, but COOL cannot be used: rank 0 of 4: no agent" in done.stderr, done.stderr


def test_operations_that_are_not_chosen_are_left_to_the_host(bed, tmp_path, host):
    told = run(bed, tmp_path, host, host.program, "first", COOL_MPI_OPS="bcast,reduce")
    assert calls(told, "bcast") > 0 and calls(told, "gather") == 0 and calls(told, "gather", "left (not in COOL_MPI_OPS)") > 0, told
    assert "cool-mpi" not in run(bed, tmp_path, host, host.program, "first", COOL_MPI="off", COOL_MPI_STATS="0")


@pytest.mark.parametrize("other", ["32K", "1Q"])
def test_ranks_with_different_settings_leave_calls_to_the_host(bed, tmp_path, host, other):
    differing = "$([ $(hostname) = h1 ] && echo 1K || echo %s)" % other
    told = run(bed, tmp_path, host, host.program, "first", COOL_MPI_MIN=differing)
    assert told.count("cool-mpi: collectives stay with the host's MPI library: the ranks have different settings") == 1, told
    assert re.search("rank [123] has COOL_MPI=", told) and "rank 0 has COOL_MPI=auto" in told, told
    assert calls(told, "allreduce") == 0 and calls(told, "allreduce", "left (off)") > 0, told


def test_cool_mpirun_passes_the_library_and_cools_variables(bed, tmp_path, host):
    mpirun, *arguments = host.mpirun(bed, RANKS)
    rank = "COOL_SOCKET=%s/$(hostname).sock exec %s first" % (bed.directory, host.program)
    cool = os.path.join(bed.bin_dir, "cool")
    command = [cool, "mpirun", "--mpirun", mpirun, *arguments, "sh", "-c", "'%s'" % rank]
    done = ended(begin_in_hosts(bed, tmp_path, command, {**host.variables, "COOL_MPI_STATS": "1", "COOL_MPI_MIN": "6000"}))
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
    assert calls(done.stderr, "bcast") == 1, done.stderr


PYTHON = """
from array import array
from mpi4py import MPI
world = MPI.COMM_WORLD.Dup()
mine, all = array("d", [world.rank] * 4000), array("d", [0] * 4000)
world.Allreduce(mine, all, op=MPI.SUM)
assert all[3999] == sum(range(world.size))
parts = array("d", [0] * 4000 * world.size)
world.Allgather(mine, parts)
assert parts[::4000] == array("d", range(world.size))
# mpi4py creates these types by functions with long counts if the library has such functions.
every_second, block = MPI.DOUBLE.Create_indexed_block(1, range(0, 4000, 2)), MPI.DOUBLE.Create_contiguous(2000)
every_second.Commit(), block.Commit()
sparse = array("d", [world.rank] * 4000)
if world.rank % 2:
    world.Bcast((sparse, 1, block), 3)
    assert sparse == array("d", [3] * 2000 + [world.rank] * 2000)
else:
    world.Bcast((sparse, 1, every_second), 3)
    assert sparse == array("d", [3, world.rank] * 2000)
every_second.Free(), block.Free()
# Short calls are left to the library. Some libraries have no functions with long counts, which
# mpi4py prefers.
one, of_all, whole = array("i", [world.rank]), array("i", [0] * world.size), array("i", range(world.size))
total = sum(range(world.size))
for call in (world.Allreduce, world.Reduce, world.Scan, world.Exscan):
    result = array("i", [0])
    call(one, result)
    assert world.rank < world.size - 1 or result[0] == {"Allreduce": total, "Scan": total, "Exscan": total - world.rank}.get(call.__name__, 0), call
for call, given in ((world.Allgather, one), (world.Gather, one), (world.Alltoall, whole)):
    call(given, of_all)
    assert world.rank or call == world.Alltoall or of_all == whole, call
world.Allgatherv(one, (of_all, ([1] * world.size, list(reversed(range(world.size)))), MPI.INT))
assert of_all[::-1] == whole
world.Scatter(whole, one)
assert one[0] == world.rank
world.Bcast(one, world.size - 1)
assert one[0] == world.size - 1
for call, counts in ((world.Reduce_scatter_block, ()), (world.Reduce_scatter, ([1] * world.size,))):
    call(whole, one, *counts)
    assert one[0] == world.size * world.rank
world.Free()
if MPI.COMM_WORLD.rank == 0:
    print("right")
"""


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_a_program_of_mpi4py_gains_too(bed, tmp_path, name):
    script = tmp_path / "program.py"
    script.write_text(PYTHON)
    python = [os.path.join(HOST_LIBRARIES["mpich"]().folder, "python"), str(script)]
    if name == "openmpi":
        # By default, mpi4py loads the MPI library of its own environment.
        python = ["env", "MPI4PY_MPIABI=openmpi", *python]
    told = run(bed, tmp_path, HOST_LIBRARIES[name](), *python)
    assert calls(told, "allreduce") == calls(told, "allgather") == calls(told, "bcast") == 1, told
    for operation in ("bcast", "reduce", "allreduce", "gather", "scatter", "allgather", "alltoall", "reduce_scatter", "scan", "exscan"):
        assert calls(told, operation, "left (small)") > 0, told
