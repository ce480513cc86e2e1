"""A party's columns in Parquet files that the workers of a Dask cluster read."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from dask.distributed import Client

from vfl_flower.data.rows import arrow_rows
from vfl_flower.rows import Rows
from vfl_flower.typing import Array

T = TypeVar("T")


class DaskRows(Rows):
    """The rows of Parquet files, one after another; each task reads one file.

    Parameters
    ----------
    client : dask.distributed.Client
        This party's own cluster, whose workers see the files.
    paths : sequence of str
        Absolute paths of the files.
    columns : sequence of str
        The columns to use.
    """

    def __init__(
        self, client: Client, paths: Sequence[str], columns: Sequence[str]
    ) -> None:
        self.columns = list(columns)
        self._client, self._paths = client, list(paths)
        lengths = self._ask([(_length, path, self.columns) for path in self._paths])
        self._ends = np.array([0, *accumulate(lengths)])
        self.shape = (int(self._ends[-1]), len(self.columns))

    def take(self, rows: Array) -> Array:
        """Return some rows, which the workers look up."""
        file = np.searchsorted(self._ends, rows, side="right") - 1
        used = np.unique(file)
        parts = self._ask(
            [
                (_take, self._paths[k], self.columns, rows[file == k] - self._ends[k])
                for k in used
            ]
        )
        X = np.empty((len(rows), self.shape[1]))
        for k, part in zip(used, parts, strict=True):
            X[file == k] = part
        return X

    def map_reduce(
        self,
        f: Callable[[slice, Array], T],
        add: Callable[[T, T], T],
        zero: T,
        size: int = 0,
        rows: Array | None = None,
    ) -> T:
        """Return a total, added up from the totals that workers compute by file."""
        if rows is not None and (np.diff(rows) < 0).any():
            return super().map_reduce(f, add, zero, size, rows)
        size, tasks = size or self.block_rows, []
        for k, path in enumerate(self._paths):
            low, high = int(self._ends[k]), int(self._ends[k + 1])
            chosen, start = None, low
            if rows is not None:
                start, stop = (int(i) for i in np.searchsorted(rows, [low, high]))
                chosen = rows[start:stop] - low
            tasks.append(
                (_total, path, self.columns, start, f, add, zero, size, chosen)
            )
        total = zero
        for part in self._ask(tasks):
            total = add(total, part)
        return total

    def _ask(self, tasks: list[tuple[Any, ...]]) -> list[Any]:
        """Run functions with arguments on the workers; return results in order."""
        # Dask would not run a pure function again, though a file may have changed.
        futures = [self._client.submit(*task, pure=False) for task in tasks]
        return list(self._client.gather(futures))


def _length(path: str, columns: list[str]) -> int:
    return len(arrow_rows(path, columns))


def _take(path: str, columns: list[str], rows: Array) -> Array:
    return arrow_rows(path, columns).take(rows)


def _total(
    path: str,
    columns: list[str],
    start: int,
    f: Callable[[slice, Array], T],
    add: Callable[[T, T], T],
    zero: T,
    size: int,
    rows: Array | None,
) -> T:
    """Return the total over a file, whose first wanted row has the place `start`."""

    def moved(part: slice, block: Array) -> T:
        return f(slice(start + part.start, start + part.stop), block)

    return arrow_rows(path, columns).map_reduce(moved, add, zero, size, rows)
