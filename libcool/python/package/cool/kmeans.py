"""K-means with the interface of scikit-learn, on one machine or on all ranks of a group::

    from cool.kmeans import KMeans

    km = KMeans(n_clusters=1000, init="k-means||", random_state=1).fit(points)
    km.cluster_centers_, km.labels_, km.inertia_, km.predict(more)

Under ``cool run -n 16 -- python3 program.py`` each rank passes its own rows, or all pass the name of the same .npy
file::

    def main(world):
        km = KMeans(n_clusters=1000).fit("/shared/points.npy", comm=world)    # labels_ are those of this rank's rows

    cool.launch(main)

If ranks are lost, ``fit`` raises ``cool.LostError`` at the surviving ranks, which can continue by ``world =
world.shrink()`` and another ``fit`` (``cool run --survive``). The rows of a file are distributed again.

All ranks get exactly the same centroids, independently of the number of ranks and threads. Points are uint8 or are
converted to float64. Iterations use integers (``cool-kmeans``: 16 bits for a coordinate of the widest range, or 24).
The resulting centroids are the means of the original points, and labels and inertia are computed from these centroids
in float64.

scikit-learn is optional. If it is installed, KMeans is a scikit-learn estimator.
"""

import operator
import os
import tempfile

import numpy as np

from ._cool import kmeans_fit, kmeans_nearest

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import validate_data

    _BASES = (ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator)
except ImportError:
    validate_data = None

    class NotFittedError(ValueError, AttributeError):
        """Raised by methods that require `fit` to be called first."""

    class _Estimator:
        """The methods of scikit-learn's estimators that do not need scikit-learn."""

        def get_params(self, deep=True):
            return {name: getattr(self, name) for name in KMeans._PARAMETERS}

        def set_params(self, **params):
            for name, value in params.items():
                if name not in KMeans._PARAMETERS:
                    raise ValueError(f"Invalid parameter {name!r} for estimator {self!r}: valid parameters are {KMeans._PARAMETERS}")
                setattr(self, name, value)
            return self

        def __repr__(self):
            return f"KMeans({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

        def fit_transform(self, X, y=None, **fit_params):
            return self.fit(X, y, **fit_params).transform(X)

    _BASES = (_Estimator,)

__all__ = ["KMeans"]


class KMeans(*_BASES):
    """Lloyd's K-means.

    n_clusters : number of clusters.
    init : "k-means++", "k-means||" (distributed over all ranks; for many clusters), "random", or an array of initial
        centroids.
    n_init : number of runs from different initial centroids. The run with the smallest inertia is returned. "auto" is
        10 for "random", otherwise 1.
    max_iter : maximum number of iterations of a run.
    tol : a run ends when the sum of the centroids' squared movements is at most this fraction of the points' variance.
    verbose : whether to print iterations to standard error.
    random_state : an int makes the result reproducible: the same rows return the same centroids. With None, each run
        differs.
    precision : number format of iterations for points that are not uint8: "short" uses 16 bits of their range, and
        "float" 24 bits, as float32 does.
    threads : number of threads of this rank; 0 for an even share of the node's CPUs.

    After `fit`: cluster_centers_ (float64), labels_ (int32, of this rank's rows), inertia_ (of the rows of all ranks),
    n_iter_, n_features_in_.
    """

    _PARAMETERS = ("n_clusters", "init", "n_init", "max_iter", "tol", "verbose", "random_state", "precision", "threads")

    def __init__(
        self,
        n_clusters=8,
        *,
        init="k-means++",
        n_init="auto",
        max_iter=300,
        tol=1e-4,
        verbose=0,
        random_state=None,
        precision="short",
        threads=0,
    ):
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.precision = precision
        self.threads = threads

    def fit(self, X, y=None, sample_weight=None, *, comm=None):
        """Clusters the rows of X and returns self.

        X is an array, or the name of an .npy file, of which each rank of `comm` uses its part. Each row counts as many
        times as its weight; weights other than integers up to 65,535 are rounded to a 65,535th of the largest.
        """
        if isinstance(X, (str, os.PathLike)):
            X = _part(X, comm)
        X = self._rows(X, reset=True)
        weights = None if sample_weight is None else _weights(sample_weight, len(X))
        if comm is None and len(X) < self.n_clusters:
            raise ValueError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}.")
        with tempfile.TemporaryDirectory() as folder:
            parameters = {
                "clusters": operator.index(self.n_clusters),
                "init": self._init(folder, X.shape[1]),
                "restarts": self._restarts(),
                "iterations": operator.index(self.max_iter),
                "movement": float(self.tol),
                "seed": self._seed(),
                "precision": str(self.precision),
                "threads": operator.index(self.threads),
                "verbose": bool(self.verbose),
            }
            result = kmeans_fit(comm, X, weights, parameters)
        self.cluster_centers_, self.labels_, self.inertia_, self.n_iter_, _ = result
        self.n_features_in_ = X.shape[1]
        self._n_features_out = len(self.cluster_centers_)
        return self

    def fit_predict(self, X, y=None, sample_weight=None, *, comm=None):
        """Clusters the rows as `fit` does, and returns their labels."""
        return self.fit(X, sample_weight=sample_weight, comm=comm).labels_

    def predict(self, X):
        """Returns the index of the nearest centroid of each row, or the first of several equally near ones."""
        return self._nearest(X)[0]

    def transform(self, X):
        """Returns the distance of each row from each centroid."""
        X = self._floats(X)
        distances = np.empty((len(X), len(self.cluster_centers_)))
        for number, centroid in enumerate(self.cluster_centers_):
            np.sqrt(((X - centroid) ** 2).sum(axis=1), out=distances[:, number])
        return distances

    def score(self, X, y=None, sample_weight=None):
        """Returns the negative sum of squared distances from the nearest centroids."""
        squared = self._nearest(X)[1]
        return -float(squared.sum() if sample_weight is None else squared @ _weights(sample_weight, len(squared)))

    def _nearest(self, X):
        return kmeans_nearest(self._floats(X), self.cluster_centers_, self.threads or os.cpu_count())

    def _floats(self, X):
        if not hasattr(self, "cluster_centers_"):
            raise NotFittedError("this KMeans is not fitted yet; call fit first")
        return np.ascontiguousarray(self._rows(X, reset=False), np.float64)

    def _rows(self, X, reset):
        """Returns X as an array of uint8 or finite float64, with the same number of columns as in `fit`."""
        if validate_data is not None:
            return np.ascontiguousarray(validate_data(self, X, reset=reset, dtype=[np.float64, np.uint8]))
        X = np.asarray(X)
        X = np.ascontiguousarray(X, X.dtype if X.dtype == np.uint8 else np.float64)
        if X.ndim != 2 or X.shape[1] == 0:
            raise ValueError(f"expected a table of rows, got an array of shape {X.shape}")
        if not np.isfinite(X).all():
            raise ValueError("X contains NaN or infinity")
        if not reset and X.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {X.shape[1]} features, but KMeans is expecting {self.n_features_in_} features as input")
        return X

    def _init(self, folder, features):
        if isinstance(self.init, str):
            if self.init not in ("k-means++", "k-means||", "random"):
                raise ValueError(f"init={self.init!r}: must be k-means++, k-means||, random or an array of initial centroids")
            return self.init
        centroids = np.asarray(self.init, np.float64)
        if centroids.shape != (self.n_clusters, features):
            raise ValueError(f"init has shape {centroids.shape}, but must have shape ({self.n_clusters}, {features})")
        file = os.path.join(folder, "first.npy")
        np.save(file, np.ascontiguousarray(centroids))
        return file

    def _restarts(self):
        if self.n_init == "auto":
            return 10 if isinstance(self.init, str) and self.init == "random" else 1
        return operator.index(self.n_init) if isinstance(self.init, str) else 1

    def _seed(self):
        if hasattr(self.random_state, "randint"):
            return int(self.random_state.randint(2**31))
        if self.random_state is None:
            return int.from_bytes(os.urandom(8), "little")
        return operator.index(self.random_state)


def _weights(weights, rows):
    weights = np.ascontiguousarray(weights, np.float64)
    if weights.size == 1 and rows != 1:
        weights = np.full(rows, weights.item())
    if weights.shape != (rows,):
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(rows,)}!")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("sample_weight contains NaN, infinity or negative numbers")
    return weights


def _part(path, comm):
    """Returns this rank's rows of an .npy file."""
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    rank, size = (comm.rank, comm.size) if comm is not None else (0, 1)
    return rows[len(rows) * rank // size : len(rows) * (rank + 1) // size]
