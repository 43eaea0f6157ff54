"""MPI programs as they are, with libcool_mpi.so before their MPI library: Open MPI of Debian and MPICH of PyPI."""
import os
import subprocess

import pytest
from conftest import PATIENCE, ROOT, log_of, mpich
from launchers import ENTER, in_hosts

HOSTS = 4
SOURCE = os.path.join(ROOT, "mpi", "preload", "tests", "collectives.c")


@pytest.fixture
def bed(make_bed):
    return make_bed("tree:2x2", peer_timeout_ms=10_000)


class OpenMpi:
    """Debian's."""
    variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def compile(self, program):
        compile_with("mpicc.openmpi", program, "-DFORTRAN_NAMES", "-lmpi_mpifh")

    def mpirun(self, ranks):
        network = "10.0.0.0/16"
        return ["mpirun.openmpi", "--mca", "plm_rsh_agent", ENTER, "--mca", "oob_tcp_if_include", network, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", network, "--mca", "mpi_yield_when_idle", "1", "--host",
                ",".join("h%d:2" % (i + 1) for i in range(HOSTS)), "-n", str(ranks)]


class Mpich:
    """Of PyPI, by its own binary interface or the standard one."""
    variables = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}

    def __init__(self, compiler):
        self.compiler, self.library = compiler, mpich()
        self.library.prepare()

    def compile(self, program):
        compile_with(os.path.join(self.library.folder, "bin", self.compiler), program)

    def mpirun(self, ranks):
        return [os.path.join(self.library.folder, "bin", "mpiexec"), "-genvnone", "-launcher", "ssh", "-launcher-exec", ENTER,
                "-hosts", ",".join("h%d" % (i + 1) for i in range(HOSTS)), "-n", str(ranks), "-ppn", "1"]


def compile_with(compiler, program, *options):
    done = subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE, *options], capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", params=["openmpi", "mpich", "abi"])
def host(request, tmp_path_factory):
    """An MPI library, with the program compiled for it."""
    library = {"openmpi": OpenMpi, "mpich": lambda: Mpich("mpicc"), "abi": lambda: Mpich("mpicc_abi")}[request.param]()
    library.program = str(tmp_path_factory.mktemp("mpi") / "collectives")
    library.compile(library.program)
    return library


def run(bed, folder, host, *arguments, ranks=HOSTS, program=None, **variables):
    """The program's end; it runs with the library unless `preload` is empty."""
    preload = variables.pop("preload", os.path.join(bed.bin_dir, "libcool_mpi.so"))
    variables = {"COOL_MPI_MIN": "1K", "COOL_MPI_STATS": "1", **variables}
    settings = " ".join("%s=%s" % item for item in variables.items())
    rank = "COOL_SOCKET=%s/$(hostname).sock LD_PRELOAD=%s %s exec %s" % (bed.directory, preload, settings, " ".join([program or host.program, *arguments]))
    return in_hosts(bed, folder, [*host.mpirun(ranks), "sh", "-c", "'%s'" % rank], host.variables)


def taken(done, operation):
    """The calls of an operation that COOL has carried out."""
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith("cool-mpi: %s taken:" % operation)]
    return sum(int(line[3]) for line in lines)


def test_first(bed, tmp_path, host):
    done = run(bed, tmp_path, host, "first")
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
    assert taken(done, "allreduce") == 2, done.stderr


def test_every_operation_gives_what_the_host_gives(bed, tmp_path, host):
    done = run(bed, tmp_path, host, "all")
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
