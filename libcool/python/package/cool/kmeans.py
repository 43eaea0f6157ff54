"""K-means with scikit-learn's names, on one machine or on all ranks of a group::

    from cool.kmeans import KMeans

    km = KMeans(n_clusters=1000, init="k-means||", random_state=1).fit(points)
    km.cluster_centers_, km.labels_, km.inertia_, km.predict(more)

Under ``cool run -n 16 -- python3 program.py`` each rank gives its part of the rows, or all name the same .npy file::

    def main(world):
        km = KMeans(n_clusters=1000).fit("/shared/points.npy", comm=world)    # labels_ are those of this rank's rows

    cool.launch(main)

When ranks are lost, ``fit`` raises ``cool.LostError`` at the others, which may go on without them: ``world = world.shrink()`` and ``fit``
again (``cool run --survive``). Of a file they share out the rows anew.

All ranks get the same centres, to the bit, on however many ranks and threads the rows are. Points are uint8 or become
float64. Iterations work on integers (``cool-kmeans``: 16 bits a coordinate of the widest range, or 24); the centres are then the
means of the points as they were given, and labels and inertia are those of these centres, in float64.

scikit-learn is not needed. Where it is installed, KMeans is one of its estimators.
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
        """Is raised by what needs `fit` first."""

    class _Estimator:
        """What of scikit-learn's estimators does not need scikit-learn."""

        def get_params(self, deep=True):
            return {name: getattr(self, name) for name in KMeans._PARAMETERS}

        def set_params(self, **params):
            for name, value in params.items():
                if name not in KMeans._PARAMETERS:
                    raise ValueError(f"Invalid parameter {name!r} for estimator {self!r}: there are {KMeans._PARAMETERS}")
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

    n_clusters : clusters and centres.
    init : "k-means++", "k-means||" (by all ranks; for many clusters), "random", or an array of first centres.
    n_init : runs from other first centres, of which the one of least inertia counts; "auto" is 10 for "random", else 1.
    max_iter : iterations of a run at most.
    tol : a run ends when the centres' squared movements add up to this share of the points' variance or less.
    verbose : whether iterations are told of, on the standard error output.
    random_state : an int names the run: the same rows give the same centres. With None each run is another.
    precision : how iterations hold numbers that are no uint8: "short", 16 bits of their range, or "float", 24 bits, as many as
        float32 has.
    threads : of this rank; 0 for an even share of the node's processors.

    After `fit`: cluster_centers_ (float64), labels_ (int32, of this rank's rows), inertia_ (of all ranks' rows), n_iter_,
    n_features_in_.
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
        """Clusters the rows of X: an array, or the name of an .npy file, of which each rank of `comm` takes its part.

        Each row counts as often as its weight says; weights other than whole numbers up to 65,535 are rounded to a
        65,535th of the largest.
        """
        if isinstance(X, (str, os.PathLike)):
            X = _part(X, comm)
        X = self._rows(X, reset=True)
        weights = None if sample_weight is None else _weights(sample_weight, len(X))
        if comm is None and len(X) < self.n_clusters:
            raise ValueError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}.")
        with tempfile.TemporaryDirectory() as folder:
            asked = {
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
            found = kmeans_fit(comm, X, weights, asked)
        self.cluster_centers_, self.labels_, self.inertia_, self.n_iter_, _ = found
        self.n_features_in_ = X.shape[1]
        self._n_features_out = len(self.cluster_centers_)
        return self

    def fit_predict(self, X, y=None, sample_weight=None, *, comm=None):
        """The labels of the rows that are clustered."""
        return self.fit(X, sample_weight=sample_weight, comm=comm).labels_

    def predict(self, X):
        """The nearest centre of each row; of equally near ones the first."""
        return self._nearest(X)[0]

    def transform(self, X):
        """The distance of each row from each centre."""
        X = self._floats(X)
        distances = np.empty((len(X), len(self.cluster_centers_)))
        for number, centre in enumerate(self.cluster_centers_):
            np.sqrt(((X - centre) ** 2).sum(axis=1), out=distances[:, number])
        return distances

    def score(self, X, y=None, sample_weight=None):
        """The sum of squared distances from the nearest centres, negative."""
        squared = self._nearest(X)[1]
        return -float(squared.sum() if sample_weight is None else squared @ _weights(sample_weight, len(squared)))

    def _nearest(self, X):
        return kmeans_nearest(self._floats(X), self.cluster_centers_, self.threads or os.cpu_count())

    def _floats(self, X):
        if not hasattr(self, "cluster_centers_"):
            raise NotFittedError("this KMeans is not fitted yet; call fit first")
        return np.ascontiguousarray(self._rows(X, reset=False), np.float64)

    def _rows(self, X, reset):
        """X as a table of uint8 or of finite float64, with as many columns as in `fit`."""
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
                raise ValueError(f"init={self.init!r}: there are k-means++, k-means||, random and arrays of first centres")
            return self.init
        centres = np.asarray(self.init, np.float64)
        if centres.shape != (self.n_clusters, features):
            raise ValueError(f"init has a shape of {centres.shape}; ({self.n_clusters}, {features}) is that of the centres")
        file = os.path.join(folder, "first.npy")
        np.save(file, np.ascontiguousarray(centres))
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
        raise ValueError("sample_weight has numbers that are none, or below 0")
    return weights


def _part(path, comm):
    """The rows of an .npy file that are this rank's."""
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    rank, size = (comm.rank, comm.size) if comm is not None else (0, 1)
    return rows[len(rows) * rank // size : len(rows) * (rank + 1) // size]
