"""The conjugate gradient solver in Rust, C and Python, over 4 nodes and in one process, needs as
many iterations as the method itself and reaches the same precision."""
import functools
import json
import math

import pytest
from conftest import run, succeed
from test_bindings import embedded, programs

PROGRAMS = programs("conjugate_gradient")
# The side of the grid, whose rows cannot be divided evenly among 4 ranks, and the tolerance.
SIDE, TOLERANCE = 21, 1e-6
OPTIONS = ["--grid", str(SIDE), "--tolerance", str(TOLERANCE), "--json"]


def times(vector):
    """Multiplies the matrix by a vector."""
    at = lambda row, column: vector[row * SIDE + column] if 0 <= row < SIDE and 0 <= column < SIDE else 0
    return [4 * at(i, j) - at(i - 1, j) - at(i + 1, j) - at(i, j - 1) - at(i, j + 1) for i in range(SIDE) for j in range(SIDE)]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


@functools.cache
def expected():
    """Returns iterations, residual and error by the method's definition."""
    exact = [(i * 31 + j * 7 + 3) % 101 for i in range(SIDE) for j in range(SIDE)]
    right_side = times(exact)
    solution, residual, direction, iterations = [0] * SIDE**2, right_side, right_side, 0
    while dot(residual, residual) > TOLERANCE**2 * dot(right_side, right_side):
        product, before = times(direction), dot(residual, residual)
        step = before / dot(direction, product)
        solution = [x + step * d for x, d in zip(solution, direction)]
        residual = [r - step * q for r, q in zip(residual, product)]
        direction = [r + dot(residual, residual) / before * d for r, d in zip(residual, direction)]
        iterations += 1
    difference = [x - k for x, k in zip(solution, exact)]
    return iterations, math.sqrt(dot(residual, residual) / dot(right_side, right_side)), math.sqrt(dot(difference, difference) / dot(exact, exact))


def check_result(output, ranks):
    result = json.loads(output)
    iterations, residual, error = expected()
    assert (result["ranks"], result["grid"], result["iterations"]) == (ranks, SIDE, iterations)
    assert result["residual"] == pytest.approx(residual, rel=1e-6)
    assert result["error"] == pytest.approx(error, rel=1e-6)
    assert result["seconds_per_iteration"] * iterations == pytest.approx(result["seconds"], rel=1e-6)


@pytest.fixture
def bed(make_bed):
    return make_bed("tree:2x2", switches="bridge", host_mbit=50, uplink_mbit=50)


@pytest.mark.parametrize("language", PROGRAMS)
def test_the_solver_needs_the_methods_iterations_on_4_nodes(bed, language):
    output = succeed(bed, "cool", "run", "-n", "4", "--", *PROGRAMS[language], *OPTIONS)
    assert output.startswith("[0] ") and output.count("\n") == 1, output
    check_result(output.removeprefix("[0] "), 4)


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_solver_that_fails_reports_one_line_and_fails_the_job(bed, language):
    process = run(bed, "cool", "run", "-n", "4", "--", *PROGRAMS[language], *OPTIONS, "--max-iterations", "3")
    messages = [line for line in process.stderr.splitlines() if line.startswith("[")]
    assert process.returncode == 1 and not process.stdout, process
    assert len(messages) == 1 and messages[0].startswith("[0] conjugate_gradient: the residual is still "), process.stderr


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("language", PROGRAMS)
def test_the_solver_needs_as_many_in_one_process(language, ranks):
    check_result(embedded([*PROGRAMS[language], *OPTIONS], ranks).stdout, ranks)


@pytest.mark.parametrize("wrong, message", [(["--grid", "0"], "0"), (["--tolerance", "x"], "x"), (["--grid", "2"], "2 rows are too few for 4 ranks"),
                                         (["--quickly"], "--quickly")])
@pytest.mark.parametrize("language", PROGRAMS)
def test_wrong_options_are_reported_in_one_line(language, wrong, message):
    process = embedded([*PROGRAMS[language], *wrong], 4)
    assert process.returncode == 1 and not process.stdout, process
    assert process.stderr.count("\n") == 1 and message in process.stderr, process.stderr
