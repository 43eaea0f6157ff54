"""The Map-Collective examples in Rust and Python compute over the emulated network the results of
plain programs."""
import collections
import math
import os
import random

import pytest
from conftest import ROOT, succeed
from test_bindings import PYTHON

WORDS = "a rose is a rose is a rose said gertrude stein whose roses were never red".split()


@pytest.fixture
def bed(make_bed):
    return make_bed("tree:2x3", switches="bridge", host_mbit=50, uplink_mbit=50, loss=0.01)


@pytest.fixture(params=["rust", "python"])
def on_six_ranks(bed, request):
    """Returns the output of an example at rank 0 of 6, each rank on its own node."""
    programs = {"rust": lambda name: [os.path.join(bed.bin_dir, "cool-" + name)],
                "python": lambda name: [PYTHON, os.path.join(ROOT, "libcool/python/examples", name + ".py")]}
    return lambda name, *arguments: run_ranks(bed, *programs[request.param](name), *arguments)


def run_ranks(bed, *command):
    lines = succeed(bed, "cool", "run", "-n", "6", "--", *command).splitlines()
    assert all(line.startswith("[0] ") for line in lines), lines
    return [line.removeprefix("[0] ") for line in lines]


def test_words_are_counted(on_six_ranks, tmp_path):
    generator, texts = random.Random(4), []
    for i in range(11):
        texts.append(" ".join(generator.choice(WORDS) for _ in range(40 * i)))
        (tmp_path / str(i)).write_text(texts[-1])
    counts = collections.Counter(" ".join(texts).split())
    expected = ["%d %s" % (n, word) for word, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    assert on_six_ranks("wordcount", *(str(tmp_path / str(i)) for i in range(11))) == expected


def page_ranks(links, pages):
    """Computes PageRank by its definition until it converges."""
    out = collections.Counter(source for source, _ in links)
    ranks = [1 / pages] * pages
    for _ in range(300):
        dangling = sum(rank for page, rank in enumerate(ranks) if page not in out)
        new = [(0.15 + 0.85 * dangling) / pages] * pages
        for source, target in links:
            new[target] += 0.85 * ranks[source] / out[source]
        ranks = new
    return ranks


def test_pages_are_ranked(on_six_ranks, tmp_path):
    generator = random.Random(5)
    links = [(generator.randrange(80), min(generator.randrange(100), generator.randrange(100))) for _ in range(700)] + [(0, 99)]
    (tmp_path / "links").write_text("".join("%d %d\n" % link for link in links))
    lines = [line.split() for line in on_six_ranks("pagerank", str(tmp_path / "links"))]
    assert [int(page) for page, _ in lines] == list(range(100))
    assert [float(rank) for _, rank in lines] == pytest.approx(page_ranks(links, 100), abs=1e-11)


def scaled(distances):
    """Computes stress and points by SMACOF, from the spiral with which the examples start, until
    their stop criterion."""
    n = len(distances)
    points = [((1 + i) * math.cos(2.4 * i), (1 + i) * math.sin(2.4 * i)) for i in range(n)]
    stresses = []
    while len(stresses) < 3 or stresses[-2] - stresses[-1] > 1e-9 * stresses[-2]:
        current = [[math.dist(a, b) for b in points] for a in points]
        stresses.append(sum((current[i][j] - distances[i][j]) ** 2 for i in range(n) for j in range(i)))
        ratio = [[distances[i][j] / current[i][j] if current[i][j] else 0 for j in range(n)] for i in range(n)]
        points = [tuple(sum(ratio[i][j] * (points[i][x] - points[j][x]) for j in range(n)) / n for x in range(2))
                  for i in range(n)]
    return stresses[-1], points


def test_points_are_found_by_their_distances(on_six_ranks, tmp_path):
    generator = random.Random(6)
    points = [(generator.uniform(0, 9), generator.uniform(0, 9)) for _ in range(30)]
    distances = [[math.dist(a, b) for b in points] for a in points]
    (tmp_path / "distances").write_text("".join(" ".join("%.17g" % d for d in row) + "\n" for row in distances))
    stress, *lines = on_six_ranks("smacof", str(tmp_path / "distances"))
    expected_stress, expected = scaled(distances)
    assert float(stress) == pytest.approx(expected_stress, rel=1e-6, abs=1e-9)
    for line, point in zip(lines, expected, strict=True):
        assert [float(x) for x in line.split()] == pytest.approx(point, abs=1e-4)
