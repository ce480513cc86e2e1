"""One party's rows as float64 blocks, without a second copy of the data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vfl_flower.typing import Array


class RowBlocks:
    """The rows of [X, extra ...] in float64 blocks; iterate as often as needed.

    Parameters
    ----------
    X : Array, shape (n, d)
        Real numbers of any type and layout; may be a read-only memory map.
    *extra : Array of shape (n,), or the float 1.0
        Columns appended on the right: labels, or the ones of an intercept.
    rows : Array of int, shape (m,), optional
        Rows of `X` to use, in this order, repeats allowed. Default: all.
    block_bytes : int
        Largest size of a block in bytes, except that a block has at least as many rows
        as columns, so that a factorisation block by block stays O(n d^2).

    Raises
    ------
    ValueError
        `X` is not a real matrix, an extra column has another length, `rows` is not
        a vector of row numbers of `X`, or `block_bytes` is below 1.

    Notes
    -----
    A block is a view of `X` where `X` is float64 and C-contiguous and has neither extra
    columns nor `rows`; else it is a new array. Do not write to a block.

    The default of 1 MiB keeps a block in a processor's second-level cache: a blocked QR
    is twice as fast as with 8 MiB, and nothing else is slower.

    Examples
    --------
    >>> X = np.array([[1, 2], [3, 4], [5, 6]])
    >>> blocks = RowBlocks(X, 1.0, rows=np.array([2, 0]))
    >>> blocks.shape
    (2, 3)
    >>> next(iter(blocks))
    array([[5., 6., 1.],
           [1., 2., 1.]])
    """

    def __init__(
        self,
        X: Array,
        *extra: Array | float,
        rows: Array | None = None,
        block_bytes: int = 2**20,
    ) -> None:
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise ValueError(
                f"X must be a matrix of real numbers, got shape {X.shape} and dtype "
                f"{X.dtype}"
            )
        for column in extra:
            if np.shape(column) not in ((), (len(X),)):
                raise ValueError(
                    f"an extra column must have {len(X)} values, one for each row of "
                    f"X, got shape {np.shape(column)}"
                )
        if rows is not None and (
            rows.ndim != 1
            or rows.dtype.kind not in "iu"
            or (len(rows) > 0 and not 0 <= rows.min() <= rows.max() < len(X))
        ):
            raise ValueError(
                f"rows must be a vector of row numbers of X, from 0 to {len(X) - 1}"
            )
        if block_bytes < 1:
            raise ValueError(f"block_bytes must be at least 1, got {block_bytes}")
        self._X, self._extra, self._rows = X, extra, rows
        self.shape: tuple[int, int] = (
            len(X) if rows is None else len(rows),
            X.shape[1] + len(extra),
        )
        columns = max(1, self.shape[1])
        self.block_rows = max(columns, block_bytes // (8 * columns))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        """Yield the blocks, each of shape (b, d) and float64."""
        for start in range(0, len(self), self.block_rows):
            stop = min(start + self.block_rows, len(self))
            yield self._gather(
                slice(start, stop) if self._rows is None else self._rows[start:stop]
            )

    def take(self, positions: Array) -> Array:
        """Return some rows.

        Parameters
        ----------
        positions : Array of int, shape (m,)
            Positions among the selected rows, from 0.

        Returns
        -------
        Array of float64, shape (m, d)
            A new array.
        """
        return self._gather(positions if self._rows is None else self._rows[positions])

    def _gather(self, index: slice | Array) -> Array:
        X = self._X[index]
        if not self._extra:
            return np.ascontiguousarray(X, dtype=np.float64)
        block = np.empty((len(X), self.shape[1]))
        block[:, : X.shape[1]] = X
        for i, column in enumerate(self._extra, start=X.shape[1]):
            block[:, i] = column[index] if isinstance(column, np.ndarray) else column
        return block
