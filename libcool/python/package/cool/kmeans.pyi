from os import PathLike
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import Comm

class KMeans:
    cluster_centers_: NDArray[np.float64]
    labels_: NDArray[np.int32]
    inertia_: float
    n_iter_: int
    n_features_in_: int
    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Union[str, ArrayLike] = "k-means++",
        n_init: Union[int, str] = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: Any = None,
        precision: str = "short",
        threads: int = 0,
    ) -> None: ...
    def fit(
        self,
        X: Union[ArrayLike, str, PathLike[str]],
        y: object = None,
        sample_weight: Optional[ArrayLike] = None,
        *,
        comm: Optional[Comm] = None,
    ) -> KMeans: ...
    def fit_predict(
        self,
        X: Union[ArrayLike, str, PathLike[str]],
        y: object = None,
        sample_weight: Optional[ArrayLike] = None,
        *,
        comm: Optional[Comm] = None,
    ) -> NDArray[np.int32]: ...
    def fit_transform(self, X: ArrayLike, y: object = None, **fit_params: Any) -> NDArray[np.float64]: ...
    def predict(self, X: ArrayLike) -> NDArray[np.int32]: ...
    def transform(self, X: ArrayLike) -> NDArray[np.float64]: ...
    def score(self, X: ArrayLike, y: object = None, sample_weight: Optional[ArrayLike] = None) -> float: ...
    def get_params(self, deep: bool = True) -> dict[str, Any]: ...
    def set_params(self, **params: Any) -> KMeans: ...
