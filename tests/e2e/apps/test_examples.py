"""The conjugate gradient solver in Rust, C and Python, over 4 nodes and in one process, needs as
many iterations as the method itself and reaches the same precision."""
import functools
import json
import math

import pytest
from conftest import run, succeed
from test_bindings import embedded, programs

PROGRAMS = programs("conjugate_gradient")
# Numbers of rows that 4 and 3 ranks cannot share evenly.
SIDE, TOLERANCE = 21, 1e-6
ASKED = ["--grid", str(SIDE), "--tolerance", str(TOLERANCE), "--json"]


def times(vector):
    """Multiplies the matrix by a vector."""
    at = lambda row, column: vector[row * SIDE + column] if 0 <= row < SIDE and 0 <= column < SIDE else 0
    return [4 * at(i, j) - at(i - 1, j) - at(i + 1, j) - at(i, j - 1) - at(i, j + 1) for i in range(SIDE) for j in range(SIDE)]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


@functools.cache
def expected():
    """Returns iterations, residual and error by the method's definition."""
    known = [(i * 31 + j * 7 + 3) % 101 for i in range(SIDE) for j in range(SIDE)]
    right = times(known)
    solution, residual, direction, iterations = [0] * SIDE**2, right, right, 0
    while dot(residual, residual) > TOLERANCE**2 * dot(right, right):
        product, before = times(direction), dot(residual, residual)
        step = before / dot(direction, product)
        solution = [x + step * d for x, d in zip(solution, direction)]
        residual = [r - step * q for r, q in zip(residual, product)]
        direction = [r + dot(residual, residual) / before * d for r, d in zip(residual, direction)]
        iterations += 1
    away = [x - k for x, k in zip(solution, known)]
    return iterations, math.sqrt(dot(residual, residual) / dot(right, right)), math.sqrt(dot(away, away) / dot(known, known))


def right(printed, ranks):
    found = json.loads(printed)
    iterations, residual, error = expected()
    assert (found["ranks"], found["grid"], found["iterations"]) == (ranks, SIDE, iterations)
    assert found["residual"] == pytest.approx(residual, rel=1e-6)
    assert found["error"] == pytest.approx(error, rel=1e-6)
    assert found["seconds_per_iteration"] * iterations == pytest.approx(found["seconds"], rel=1e-6)


@pytest.fixture
def bed(make_bed):
    return make_bed("tree:2x2", host_mbit=50, uplink_mbit=50)


@pytest.mark.parametrize("language", PROGRAMS)
def test_the_solver_needs_the_methods_iterations_on_4_nodes(bed, language):
    printed = succeed(bed, "cool", "run", "-n", "4", "--", *PROGRAMS[language], *ASKED)
    assert printed.startswith("[0] ") and printed.count("\n") == 1, printed
    right(printed.removeprefix("[0] "), 4)


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_solver_that_fails_reports_one_line_and_fails_the_job(bed, language):
    done = run(bed, "cool", "run", "-n", "4", "--", *PROGRAMS[language], *ASKED, "--max-iterations", "3")
    complaints = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert done.returncode == 1 and not done.stdout, done
    assert len(complaints) == 1 and complaints[0].startswith("[0] conjugate_gradient: the residual is still "), done.stderr


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("language", PROGRAMS)
def test_the_solver_needs_as_many_in_one_process(language, ranks):
    right(embedded([*PROGRAMS[language], *ASKED], ranks).stdout, ranks)


@pytest.mark.parametrize("wrong, said", [(["--grid", "0"], "0"), (["--tolerance", "x"], "x"), (["--grid", "2"], "2 rows are too few for 4 ranks"),
                                         (["--quickly"], "--quickly")])
@pytest.mark.parametrize("language", PROGRAMS)
def test_wrong_options_are_told_in_one_line(language, wrong, said):
    done = embedded([*PROGRAMS[language], *wrong], 4)
    assert done.returncode == 1 and not done.stdout, done
    assert done.stderr.count("\n") == 1 and said in done.stderr, done.stderr
