"""One party's rows as float64 blocks, without a second copy of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from vfl_flower.rows import BLOCK_BYTES, Rows, as_rows
from vfl_flower.typing import Array

T = TypeVar("T")

Index = slice | Array
"""Consecutive rows, or row numbers."""


class RowBlocks(Rows):
    """The rows of [X, extra ...] in float64 blocks; can be iterated repeatedly.

    X has the shape (n, d); each extra column has n values or is the number 1.0. `rows`
    holds the numbers of the rows to use, in order and possibly with repeats; by
    default, all rows are used. Raises ValueError if X is not a matrix of real numbers,
    or if `rows` does not fit X. Do not write to a block: it may be a view of X.
    """

    def __init__(
        self,
        X: Array | Rows,
        *extra: Array | float,
        rows: Array | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        X = as_rows(X)
        if rows is not None and (
            rows.ndim != 1
            or rows.dtype.kind not in "iu"
            or (len(rows) > 0 and not 0 <= rows.min() <= rows.max() < len(X))
        ):
            raise ValueError(
                f"rows must be a vector of row numbers of X, from 0 to {len(X) - 1}"
            )
        # Differences of unsigned numbers would wrap around.
        self._rows = None if rows is None else rows.astype(np.int64, copy=False)
        self._X, self._block_bytes = X, block_bytes
        # The function does not refer to the rows, so it can be sent to where they are.
        self._change: Callable[[Array, Index], Array] = lambda block, index: (
            _with_columns(block, extra, index)
        )
        self.shape = len(X if rows is None else rows), X.shape[1] + len(extra)

    def __iter__(self) -> Iterator[Array]:
        """Yield the blocks, each of shape (b, d) and float64."""
        return self.blocks()

    def blocks(self, size: int = 0, rows: Array | None = None) -> Iterator[Array]:
        """Yield the rows block by block; see :meth:`Rows.blocks`."""
        index, start = self._numbers(rows), 0
        for block in self._X.blocks(size or self.block_rows, index):
            part = slice(start, start := start + len(block))
            yield self._change(block, part if index is None else index[part])

    def map_reduce(
        self,
        f: Callable[[slice, Array], T],
        add: Callable[[T, T], T],
        zero: T,
        size: int = 0,
        rows: Array | None = None,
    ) -> T:
        """Return a total over the blocks; see :meth:`Rows.map_reduce`."""
        index, change = self._numbers(rows), self._change

        def changed(part: slice, block: Array) -> T:
            return f(part, change(block, part if index is None else index[part]))

        size = size or self.block_rows
        return self._X.map_reduce(changed, add, zero, size, index)

    def take(self, rows: Array) -> Array:
        """Return rows at given positions among the selected rows; see `Rows.take`."""
        index = rows if self._rows is None else self._rows[rows]
        return self._change(self._X.take(index), index)

    def _numbers(self, positions: Array | None) -> Array | None:
        """Convert positions among the selected rows to row numbers of X."""
        if self._rows is None or positions is None:
            return self._rows if positions is None else positions
        return self._rows[positions]


def _with_columns(X: Array, extra: tuple[Array | float, ...], index: Index) -> Array:
    if not extra:
        return X
    block = np.empty((len(X), X.shape[1] + len(extra)))
    block[:, : X.shape[1]] = X
    for i, column in enumerate(extra, start=X.shape[1]):
        block[:, i] = column[index] if isinstance(column, np.ndarray) else column
    return block
