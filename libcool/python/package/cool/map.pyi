from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Generic, Literal, Optional, TypeVar, Union

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import Comm

K = TypeVar("K")
V = TypeVar("V")
P = TypeVar("P")
S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T", Keyed[Any, Any], Rows)

Merge = Union[Literal["sum", "min", "max"], Callable[[Any, Any], Any]]

class Keyed(dict[K, V]):
    merge: Merge
    def __init__(self, merge: Merge = "sum", values: Mapping[K, V] = ...) -> None: ...

class Rows:
    count: int
    width: int
    dtype: np.dtype[Any]
    keys: NDArray[np.int64]
    values: NDArray[Any]
    def __init__(
        self, count: int, width: int = 1, dtype: DTypeLike = ..., keys: ArrayLike = (), values: ArrayLike = ()
    ) -> None: ...
    def __len__(self) -> int: ...
    def dense(self) -> NDArray[Any]: ...

class Partitions(Generic[P]):
    def __init__(self, count: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def held(self) -> list[tuple[int, P]]: ...

class Progress(Generic[S]):
    def __init__(
        self, checkpoint: Optional[Union[str, PathLike[str]]] = None, run: str = "", resume: bool = False
    ) -> None: ...
    @property
    def state(self) -> Optional[S]: ...
    @property
    def iterations(self) -> int: ...
    @property
    def reports(self) -> list[dict[str, Any]]: ...

class Mapped(Generic[T]): ...

class Job:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def threads(self) -> int: ...
    def deal(self, partitions: Partitions[P], load: Callable[[int], P]) -> None: ...
    def map(self, partitions: Partitions[P], empty: T, task: Callable[[P], Any]) -> Mapped[T]: ...
    def regroup(self, mapped: Mapped[T]) -> T: ...
    def combine(self, mine: T) -> T: ...
    def combine_at(self, rank: int, mine: T) -> Optional[T]: ...
    def broadcast(self, value: R = ..., root: int = 0) -> R: ...
    def iterate(
        self,
        progress: Progress[S],
        first: Callable[[], S],
        step: Callable[[S, int], S],
        most: Optional[int] = None,
        until: Optional[Callable[[S, int], bool]] = None,
    ) -> S: ...

def run(
    comm: Optional[Comm],
    program: Callable[[Job], R],
    threads: int = 0,
    patience: float = 3600.0,
    watch: Optional[Callable[[str], object]] = None,
) -> R: ...
