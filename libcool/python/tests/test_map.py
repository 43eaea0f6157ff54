"""Tests of cool.map: results equal those of a plain program, are bitwise equal on any ranks, and survive lost ranks. The
examples are tested on the emulated network (tests/e2e/apps/test_mapcollective.py)."""

import collections
import os
import pathlib
import sys

import cool
import cool.map
import embedded
import numpy as np
import pytest

PARTS = 23


def on(ranks, program, **options):
    """Returns the results of `program(job)` at each of this many ranks."""
    return embedded.on(ranks, lambda world: cool.map.run(world, program, **options))


def deal_parts(job, load=lambda number: number):
    parts = cool.map.Partitions(PARTS)
    job.deal(parts, load)
    return parts


def numbers(part):
    return np.random.default_rng(part).normal(size=(part * 7, 3))


def same(results):
    """Returns the result of all ranks, which must be bitwise equal."""
    pickled = {repr(result) for result in results}
    assert len(pickled) == 1
    return results[0]


@pytest.mark.parametrize("merge, plain", [("sum", sum), ("min", min), ("max", max), (lambda a, b: a + b, sum)])
def test_values_of_a_key_are_merged_from_all_ranks(merge, plain):
    keyed = collections.defaultdict(list)
    for part in range(PARTS):
        keyed[part % 5, "x"].append(part * part)

    def program(job):
        mapped = job.map(deal_parts(job), cool.map.Keyed(merge), lambda part: {(part % 5, "x"): part * part})
        mine = job.regroup(mapped)
        assert isinstance(mine, cool.map.Keyed) and len(mine) <= 5
        assert (job.combine_at(0, mine) is None) == (job.rank != 0)
        return dict(job.combine(mine))

    for ranks in (1, 3, 5):
        assert same(on(ranks, program)) == {key: plain(values) for key, values in sorted(keyed.items())}


def test_noncommutative_functions_see_partitions_in_order():
    def program(job):
        mapped = job.map(deal_parts(job), cool.map.Keyed(lambda a, b: a + b), lambda part: {"all": [part]})
        return dict(job.combine(job.regroup(mapped)))

    for ranks in (1, 2, 5):
        assert same(on(ranks, program, threads=3)) == {"all": list(range(PARTS))}


def test_floating_point_sums_are_bitwise_reproducible():
    def program(job):
        parts = deal_parts(job, numbers)
        rows = job.combine(job.regroup(job.map(parts, cool.map.Rows(9, 3), lambda x: (np.arange(len(x)) % 9, x))))
        arrays = job.combine(job.regroup(job.map(parts, cool.map.Keyed("sum"), lambda x: {None: x.sum(axis=0)})))
        return rows.dense().tobytes(), arrays[None].tobytes()

    expected = on(1, program, threads=1)[0]
    plain = sum(np.stack([np.where((np.arange(len(x)) % 9 == row)[:, None], x, 0).sum(0) for row in range(9)])
                for x in map(numbers, range(PARTS)))
    assert np.allclose(np.frombuffer(expected[0]).reshape(9, 3), plain)
    for ranks, threads in ((1, 4), (3, 1), (4, 2)):
        assert set(on(ranks, program, threads=threads)) == {expected}


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_rows_of_numbers_are_added_up(dtype):
    def program(job):
        task = lambda part: ([part % 4, 7], np.array([[part, 1], [1, -part]], dtype))
        mine = job.regroup(job.map(deal_parts(job), cool.map.Rows(10, 2, dtype), task))
        assert mine.dtype == dtype and mine.values.shape == (len(mine), 2)
        return job.combine(mine).dense().tolist()

    total = sum(range(PARTS))
    expected = [[sum(range(row, PARTS, 4)), len(range(row, PARTS, 4))] if row < 4 else [0, 0] for row in range(10)]
    expected[7] = [PARTS, -total]
    for ranks in (1, 3):
        assert same(on(ranks, program)) == expected


def test_reports_contain_sparse_and_dense_rows():
    def program(job):
        kinds = []
        for count in (40, 4000):
            progress = cool.map.Progress()
            task = lambda part: ((np.arange(30) + 97 * part) % count, np.ones((30, 3), np.int64))
            step = lambda state, done: len(job.combine(job.regroup(job.map(deal_parts(job), cool.map.Rows(count, 3, int), task))))
            job.iterate(progress, lambda: 0, step, most=1)
            report, = progress.reports
            assert report["iteration"] == 1 and report["busiest_link_bytes"] > 0 and report["seconds"] > 0
            kinds.append([stage["stage"] for stage in report["stages"]])
        return kinds

    dense, sparse = on(4, program)[0]
    assert dense == ["map", "regroup (dense)", "combine"] and sparse == ["map", "regroup (sparse)", "combine"]


def test_a_rank_broadcasts_an_object():
    def program(job):
        return job.broadcast({"rank": job.rank, "rows": np.arange(3)}, root=2)["rank"]

    assert on(3, program) == [2, 2, 2]


def test_without_a_group_a_job_runs_in_this_process():
    program = lambda job: job.combine(job.regroup(job.map(deal_parts(job), cool.map.Keyed(), lambda part: {"n": part})))
    assert cool.map.run(None, program) == {"n": sum(range(PARTS))}


def test_rows_have_the_size_that_the_benchmark_counts():
    sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "bench"))
    import papers_scale

    clusters, dims, ranks = 4000, 8, 4

    def labels(rank):
        return np.random.default_rng(rank).integers(clusters, size=300)

    def program(job):
        parts, progress = cool.map.Partitions(job.size), cool.map.Progress()
        job.deal(parts, lambda number: number)

        def sums(part):
            rows = np.full((300, dims + 1), 255)
            rows[:, dims] = 1
            return labels(part), rows

        step = lambda state, done: len(job.regroup(job.map(parts, cool.map.Rows(clusters, dims + 1, int), sums)))
        job.iterate(progress, lambda: 0, step, most=1)
        return job.rank, progress.reports[0]["stages"][-1]

    for rank, stage in on(ranks, program):
        counted = papers_scale.sums_bytes(collections.Counter(labels(rank).tolist()), clusters, dims, ranks)
        # Each owner's rows are preceded by a header of a few bytes.
        assert stage["stage"] == "regroup (sparse)"
        assert 0 <= stage["bytes"] - (sum(counted) - counted[rank]) <= 8 * ranks


class RankEnded(Exception):
    """The exception with which a lost rank ends."""


@pytest.mark.parametrize("when", ["load", "map", "regroup", "combine"])
def test_surviving_ranks_get_the_same_result(when):
    def result(ranks, lost):
        messages = []

        def main(world):
            rank, loads, progress, parts = world.rank, [], cool.map.Progress(), cool.map.Partitions(PARTS)

            def end_if_chosen(stage, done):
                if lost and rank == 1 and stage == when and done == 2 * (stage != "load"):
                    raise RankEnded

            def load(number):
                loads.append(number)
                return np.float64(number)

            def program(job):
                end_if_chosen("load", 0)
                job.deal(parts, load)

                def step(state, done):
                    end_if_chosen("map", done)
                    mapped = job.map(parts, cool.map.Rows(5), lambda x: np.sqrt(state * 0.37 + x + np.arange(5)))
                    end_if_chosen("regroup", done)
                    mine = job.regroup(mapped)
                    end_if_chosen("combine", done)
                    return job.combine(mine).dense()[:, 0]

                return job.iterate(progress, lambda: np.ones(5), step, most=4).tobytes()

            try:
                return cool.map.run(world, program, watch=messages.append), len(loads)
            except RankEnded:
                return None

        return [value for value in embedded.on(ranks, main) if value is not None], messages

    (whole, _), = result(1, False)[0]
    survivors, messages = result(4, True)
    assert len(survivors) == 3 and {bits for bits, _ in survivors} == {whole}
    assert sum(loads for _, loads in survivors) == PARTS, "partitions that are held are not loaded again"
    assert any("3 ranks continue" in line for line in messages) and any(line.startswith("iteration ") for line in messages)


def test_a_later_run_goes_on_from_a_checkpoint(tmp_path):
    file = tmp_path / "run.checkpoint"

    def after(most, **options):
        def program(job):
            progress = cool.map.Progress(file, **options)
            steps = []
            state = job.iterate(progress, lambda: [0], lambda state, done: steps.append(done) or [*state, done], most=most)
            assert progress.state == state and progress.iterations == most
            return state, len(steps)

        return same(on(2, program))

    assert after(3, run="a") == ([0, 0, 1, 2], 3)
    assert after(5, run="a", resume=True) == ([0, 0, 1, 2, 3, 4], 2)
    assert after(2, run="a") == ([0, 0, 1], 2)
    with pytest.raises(cool.Error, match="it belongs to a, but this run is b; remove the file"):
        after(3, run="b", resume=True)


def fails_alone(text):
    raise ValueError(text)


@pytest.mark.parametrize(
    "program, words",
    [
        (lambda job: deal_parts(job, lambda number: fails_alone("load") if number == 9 else number), "load"),
        (lambda job: job.map(deal_parts(job), cool.map.Keyed(), lambda part: fails_alone("task") if part == 9 else {}), "task"),
        (
            lambda job: job.map(deal_parts(job), cool.map.Keyed(lambda a, b: fails_alone("merge")), lambda part: {"x": part}),
            "merge",
        ),
        (
            lambda job: job.regroup(job.map(deal_parts(job), cool.map.Keyed(max), lambda part: {part % 2: lambda: part})),
            "pickle|not supported between|cannot be serialized",
        ),
        (
            lambda job: job.regroup(job.map(deal_parts(job), cool.map.Keyed("sum"), lambda part: {part: lambda: part})),
            "[Pp]ickle|cannot be serialized",
        ),
        (lambda job: job.broadcast(lambda: 0), "[Pp]ickle|cannot be serialized"),
        (lambda job: job.map(deal_parts(job), cool.map.Keyed(), lambda part: {0.5: part}), "a float cannot be a key; use int, str"),
        (lambda job: job.map(deal_parts(job), cool.map.Keyed(), lambda part: {2**70: part}), "does not fit 64 bits"),
        (lambda job: job.map(deal_parts(job), cool.map.Keyed(), lambda part: [part]), "list"),
        (lambda job: job.map(deal_parts(job), cool.map.Rows(3), lambda part: ([3], [[1]])), "integers from 0 to 2, but are from 3"),
        (lambda job: job.map(deal_parts(job), cool.map.Rows(3, 2), lambda part: ([1], [[1]])), r"shape \(1, 2\)"),
        (lambda job: job.map(deal_parts(job), cool.map.Rows(3, 1, int), lambda part: ([1], [[0.5]])), "without loss; use .astype"),
        (lambda job: job.map(deal_parts(job), {}, lambda part: {}), "a dict is not a table; use cool.map.Keyed or cool.map.Rows"),
        (lambda job: job.map(deal_parts(job), cool.map.Rows(3, 1, "u1"), lambda part: [0, 0, 0]), "rows of uint8 are not supported"),
        (lambda job: job.iterate(cool.map.Progress(), list, lambda state, done: state), "pass most or until"),
        (lambda job: job.iterate(cool.map.Progress(), list, lambda s, n: s, until=lambda s, n: fails_alone("end")), "end"),
        (lambda job: job.map(deal_parts(job), cool.map.Keyed(), lambda part: {"rank": job.rank}), "by the thread that runs"),
        (lambda job: cool.map.run(None, lambda inner: None), "cannot run another job"),
    ],
)
def test_a_failure_of_one_rank_is_raised_at_all(program, words):
    errors = []

    def main(world):
        with pytest.raises(Exception, match=words) as error:
            cool.map.run(world, program, threads=2)
        errors.append(error.value)

    embedded.on(3, main)
    assert len(errors) == 3


def test_invalid_tables_are_rejected_when_created():
    with pytest.raises(ValueError, match="merge='mean': must be sum, min, max or a function"):
        cool.map.Keyed("mean")
    with pytest.raises(ValueError, match="0 numbers"):
        cool.map.Rows(5, 0)
    with pytest.raises((OverflowError, TypeError)):
        cool.map.Partitions(-1)

    def program(job):
        mapped = job.map(deal_parts(job), cool.map.Keyed(), lambda part: {part: part})
        job.regroup(mapped)
        with pytest.raises(cool.ArgumentError, match="regrouped already"):
            job.regroup(mapped)
        return job

    job = on(2, program)[0]
    with pytest.raises(cool.ArgumentError, match="while it runs"):
        job.rank  # noqa: B018


def test_examples_are_short():
    for name in ("wordcount", "pagerank", "smacof"):
        text = (pathlib.Path(__file__).parent.parent / "examples" / (name + ".py")).read_text()
        assert len(text.splitlines()) <= 80, name
