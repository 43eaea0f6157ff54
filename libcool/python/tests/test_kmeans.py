"""Tests of cool.kmeans: it is a scikit-learn estimator, returns the same bits on any ranks, and works without scikit-learn."""

import subprocess
import sys

import cool
import numpy as np
import pytest
from cool.kmeans import KMeans
from embedded import on
from sklearn.cluster import KMeans as Peer
from sklearn.utils.estimator_checks import check_estimator

# Checks of scikit-learn that do not pass, with the reason.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "the first centers are drawn among rows, and a repeated row counts as several rows; "
    "scikit-learn's own KMeans is excepted for the same reason",
}


def groups(n=600, dims=7, seed=3):
    """Returns points in five groups at different distances."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(scale=3, size=(5, dims))
    return centers[generator.integers(5, size=n)] + generator.normal(size=(n, dims))


def bits(model):
    return model.cluster_centers_.tobytes(), model.inertia_, model.n_iter_


def test_it_is_an_estimator_of_scikit_learn():
    results = check_estimator(KMeans(threads=1), on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert failed.keys() == EXPECTED_FAILURES.keys(), failed
    assert sum(result["status"] == "passed" for result in results) > 50


@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_same_first_centers_give_scikit_learns_result(dtype, weighted):
    points = groups()
    points = (points * 8 + 128).clip(0, 255).astype(dtype) if dtype == "uint8" else points.astype(dtype)
    weights = np.random.default_rng(5).integers(0, 4, len(points)) if weighted else None
    first = points[:5].astype(float)
    ours = KMeans(5, init=first, tol=0).fit(points, sample_weight=weights)
    peer = Peer(5, init=first, n_init=1, tol=0).fit(points.astype(float), sample_weight=weights)
    assert (ours.labels_ == peer.labels_).all()
    assert np.allclose(ours.cluster_centers_, peer.cluster_centers_, rtol=1e-12, atol=1e-12)
    assert ours.inertia_ == pytest.approx(peer.inertia_, rel=1e-12)
    assert (ours.predict(points) == ours.labels_).all()
    assert ours.score(points, sample_weight=weights) == pytest.approx(-ours.inertia_, rel=1e-12)
    assert np.allclose(ours.transform(points), peer.transform(points.astype(float)), rtol=1e-6)


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@pytest.mark.parametrize("dtype, precision", [("float64", "short"), ("float64", "float"), ("uint8", "short")])
def test_centres_are_the_same_bits_however_the_rows_are_dealt(init, dtype, precision, tmp_path):
    points = groups()
    points = (points * 8 + 128).clip(0, 255).astype("uint8") if dtype == "uint8" else points
    weights = np.random.default_rng(5).random(len(points))
    np.save(tmp_path / "points.npy", points)
    model = lambda threads: KMeans(6, init=init, random_state=4, n_init=2, precision=precision, threads=threads)
    whole = model(1).fit(points, sample_weight=weights)

    def uneven(world):
        start, end = (len(points) * r * r // world.size**2 for r in (world.rank, world.rank + 1))
        part = model(2).fit(points[start:end], sample_weight=weights[start:end], comm=world)
        assert (part.labels_ == whole.labels_[start:end]).all()
        return bits(part)

    assert set(on(5, uneven)) == set(on(2, uneven)) == {bits(whole)}
    # All ranks pass the name of a file, and each takes its part.
    unweighted = bits(model(1).fit(points))
    assert set(on(3, lambda world: bits(model(1).fit(tmp_path / "points.npy", comm=world)))) == {unweighted}


def test_numbers_on_very_unlike_scales_keep_their_digits():
    points = groups(dims=3) * [1e6, 1.0, 1e-3] + [1e9, 0, 0]
    model = KMeans(4, random_state=1).fit(points)
    for label, center in enumerate(model.cluster_centers_):
        # The centroid is the mean of the cluster's rows at the end of the iterations, without
        # rounding to a grid.
        assert np.allclose(center, points[model.labels_ == label].mean(axis=0), rtol=1e-3, atol=1e-3)
    assert model.inertia_ == pytest.approx(sum(min(((x - c) ** 2).sum() for c in model.cluster_centers_) for x in points))


def test_invalid_arguments_are_rejected():
    points = groups(20)
    for pattern, call in [
        ("n_samples=20 should be >= n_clusters=30", lambda: KMeans(30).fit(points)),
        ('precision "double": "short" or "float"', lambda: KMeans(3, precision="double").fit(points)),
        ("must be k-means", lambda: KMeans(3, init="best").fit(points)),
        (r"init has shape \(2, 7\), but must have shape \(3, 7\)", lambda: KMeans(3, init=points[:2]).fit(points)),
        ("NaN", lambda: KMeans(3).fit(np.where(points > 2, np.nan, points))),
        ("expecting 7 features", lambda: KMeans(3).fit(points).predict(points[:, :5])),
        ("sample_weight.shape", lambda: KMeans(3).fit(points, sample_weight=[1, 2])),
        ("negative numbers", lambda: KMeans(3).fit(points, sample_weight=-np.ones(20))),
        ("zero", lambda: KMeans(3).fit(points, sample_weight=np.zeros(20))),
        ("not fitted", lambda: KMeans(3).predict(points)),
    ]:
        with pytest.raises(ValueError, match=pattern):
            call()

    def different_dimensions(world):
        with pytest.raises(ValueError, match="rank 1 passed points of 5 coordinates"):
            KMeans(3).fit(points[:, : 7 - 2 * world.rank], comm=world)

    on(2, different_dimensions)


def test_it_works_without_scikit_learn():
    program = """
import sys
sys.modules["sklearn"] = None
import numpy as np
from cool.kmeans import KMeans
points = np.random.default_rng(1).normal(size=(99, 4))
km = KMeans(3).set_params(random_state=7, max_iter=5)
assert km.get_params()["random_state"] == 7 and "n_clusters=3" in repr(km)
assert km.fit_transform(points).shape == (99, 3) and km.n_features_in_ == 4
assert (km.fit_predict(points) == km.predict(points)).all()
for wrong, words in [(points[0], "table"), (points * np.inf, "infinity"), (points[:, :2], "expecting 4")]:
    try:
        km.predict(wrong)
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
try:
    km.set_params(k=3)
except ValueError as error:
    assert "Invalid parameter 'k'" in str(error)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_survivors_of_a_lost_rank_fit_again_to_the_same_bits(tmp_path):
    file = str(tmp_path / "points.npy")
    np.save(file, groups())
    alone = KMeans(5, random_state=2).fit(file)

    def main(world):
        if world.rank == 1:
            return None  # The group was left.
        while True:
            try:
                return world.size, bits(KMeans(5, random_state=2).fit(file, comm=world))
            except cool.LostError:
                world = world.shrink()

    assert on(4, main) == [(3, bits(alone)), None, (3, bits(alone)), (3, bits(alone))]
