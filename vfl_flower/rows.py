"""A party's columns, which need not fit in memory.

The steps of an algorithm read :class:`Rows` in blocks of consecutive rows, by row
number, or as sums over all rows. :class:`ArrayRows` holds the rows in a NumPy array or
a memory map; :class:`vfl_flower.data.rows.ArrowRows` reads them from the batches of a
file. To add an engine, write a subclass of :class:`Rows`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from vfl_flower.typing import Array

T = TypeVar("T")
NO_NUMBERS = (str, bytes, date, timedelta, np.datetime64, np.timedelta64)
"""Types that NumPy would convert to numbers although they are not numbers."""

Tuple = TypeVar("Tuple", bound=tuple[Any, ...])

BLOCK_BYTES = 2**20
"""Size of a block. It fits in a processor's second-level cache: a blocked QR
factorisation is twice as fast as with 8 MiB, and nothing else is slower."""

WINDOW_BYTES = 2**24
"""Bytes that :meth:`Rows.blocks` reads at a time, unless a subclass overrides that
method. For scattered rows, each window may need a pass over the data."""


class Rows:
    """n rows of d real, finite numbers, which can be read repeatedly.

    A subclass sets `shape`, (n, d), and implements :meth:`take`. The default
    :meth:`blocks` and :meth:`map_reduce` call :meth:`take`, and are therefore slow.
    """

    shape: tuple[int, int]
    _block_bytes = BLOCK_BYTES

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    @property
    def block_rows(self) -> int:
        """Rows in 1 MiB, but at least d, as blocked factorisations are O(n d^2)."""
        columns = max(1, self.shape[1])
        return max(columns, self._block_bytes // (8 * columns))

    def take(self, rows: Array) -> Array:
        """Return rows by their numbers, as float64, shape (m, d), row-major.

        The numbers, shape (m,), may be in any order and may repeat. Do not write to the
        result.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement take")

    def blocks(self, size: int = 0, rows: Array | None = None) -> Iterator[Array]:
        """Yield the rows in order, in blocks of shape (b, d), float64, row-major.

        `size` is the number of rows of each block except the last, by default
        `block_rows`. `rows` contains the numbers of the rows to use, in this order and
        possibly repeated; default: all rows. Do not write to a block.
        """
        size = size or self.block_rows
        m = len(self) if rows is None else len(rows)
        window = size * max(1, WINDOW_BYTES // (8 * max(1, self.shape[1]) * size))
        for first in range(0, m, window):
            last = min(first + window, m)
            X = self.take(np.arange(first, last) if rows is None else rows[first:last])
            for start in range(0, last - first, size):
                yield X[start : start + size]

    def map_reduce(
        self,
        f: Callable[[slice, Array], T],
        add: Callable[[T, T], T],
        zero: T,
        size: int = 0,
        rows: Array | None = None,
    ) -> T:
        """Return add(.. add(add(zero, f(block 0)), f(block 1)) ..).

        An engine overrides this method to compute `f` where the rows are stored. It may
        start with `zero` on several machines and `add` their totals, in row order.

        f: called with a slice and a block, shape (b, d). The slice gives the block's
            positions among all `rows`, for indexing arrays with one value per row. `f`
            has no side effects, and an engine can send it together with the objects
            that it refers to.
        add: associative, with `zero` as neutral element. It changes neither argument.
        size, rows: as for :meth:`blocks`; an engine may choose different blocks.
        """
        total, start = zero, 0
        for block in self.blocks(size, rows):
            total = add(total, f(slice(start, start + len(block)), block))
            start += len(block)
        return total

    def per_row(self, f: Callable[[Array], Array]) -> Array:
        """Return the results of `f` for all blocks, concatenated: shape (n, ..).

        `f` maps a block, shape (b, d), to an array of shape (b, ..).
        """
        # Without rows, the type and shape are taken from an empty block.
        parts: list[Array] = self.map_reduce(lambda _, X: [f(X)], operator.add, [])
        return np.concatenate(parts or [f(np.empty((0, self.shape[1])))])


class ArrayRows(Rows):
    """The rows of a NumPy array of real numbers, which may be a memory map.

    A block of consecutive rows is a view of `X` if `X` is float64 and row-major. Raises
    ValueError if `X` is not a real matrix, shape (n, d).

    >>> rows = ArrayRows(np.array([[1, 2], [3, 4], [5, 6]]))
    >>> [block.shape for block in rows.blocks(2)]
    [(2, 2), (1, 2)]
    >>> rows.map_reduce(lambda part, X: X.sum(), lambda a, b: a + b, 0.0)
    np.float64(21.0)
    """

    def __init__(self, X: Array) -> None:
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise ValueError(
                f"X must be a matrix of real numbers, got shape {X.shape} and dtype "
                f"{X.dtype}"
            )
        self._X = X
        self.shape = X.shape

    def take(self, rows: Array) -> Array:
        """Return some rows; see :meth:`Rows.take`."""
        return np.ascontiguousarray(self._X[rows], dtype=np.float64)

    def blocks(self, size: int = 0, rows: Array | None = None) -> Iterator[Array]:
        """Yield the rows block by block; see :meth:`Rows.blocks`."""
        size = size or self.block_rows
        for start in range(0, len(self) if rows is None else len(rows), size):
            part = slice(start, start + size)
            X = self._X[part if rows is None else rows[part]]
            yield np.ascontiguousarray(X, dtype=np.float64)


def as_rows(X: Array | Rows) -> Rows:
    """Return an array as rows; return rows unchanged."""
    return X if isinstance(X, Rows) else ArrayRows(X)


def add_each(total: Tuple, more: Tuple) -> Tuple:
    """Add two tuples of numbers or arrays element by element, for `Rows.map_reduce`."""
    return type(total)(itertools.starmap(operator.add, zip(total, more, strict=True)))


def check_index(first: Any, second: Any, what: str) -> None:
    """Raise ValueError if `second` has a pandas index that differs from `first`'s."""
    above: Any = getattr(first, "index", None)
    beside = getattr(second, "index", None)
    pandas = hasattr(above, "equals") and hasattr(beside, "equals")
    if pandas and not above.equals(beside):
        raise ValueError(
            f"{what} must have the same index as X, in the same order: align the two, "
            "or pass arrays with the same rows"
        )


def indexed(values: Sequence[Any]) -> Any:
    """Return the first table that has a pandas index, or None."""
    return next((v for v in values if hasattr(getattr(v, "index", 0), "equals")), None)


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer other than True or False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def number_array(values: Any, what: str) -> Array:
    """Return numbers as an array; refuse other values even if NumPy can convert them.

    Raises ValueError if some values are masked, sparse, text, dates or integers above
    2^53, if rows differ in length, or if columns share a name.
    """
    if hasattr(values, "to_pandas"):  # of Arrow or Polars
        values = values.to_pandas()
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        count = int(np.ma.getmaskarray(values).sum())
        raise ValueError(f"{what} must have no masked values, got {count}")
    if hasattr(values, "toarray"):
        raise ValueError(f"{what} must be dense, got sparse data: call its toarray()")
    if hasattr(values, "iloc"):
        frame = values.to_frame() if values.ndim == 1 else values
        if not frame.columns.is_unique:
            raise ValueError(f"{what} must have distinct column names")
        kinds = [getattr(kind, "categories", kind) for kind in frame.dtypes]
        kinds = [getattr(getattr(k, "dtype", k), "kind", "O") for k in kinds]
        typed = list(zip(frame.columns, kinds, strict=True))
        if wrong := [str(name) for name, kind in typed if kind in "OSUMmc"]:
            raise ValueError(
                f"{what} must hold real numbers, but the dtype of {wrong[:5]} is text, "
                "dates, complex or object"
            )
        for name, kind in typed:
            if kind in "iu":
                _check_digits(frame[name].dropna().to_numpy(), what)
        if len(set(map(str, frame.dtypes))) > 1 or not isinstance(
            frame.dtypes.iloc[0], np.dtype
        ):
            columns = [frame[c].to_numpy(float, na_value=np.nan) for c in frame]
            return columns[0] if values.ndim == 1 else np.column_stack(columns)
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{what} must have rows of equal length") from None
    kind = array.dtype.kind
    texts = kind == "O" and any(isinstance(value, NO_NUMBERS) for value in array.flat)
    if kind in "SUMmV" or texts:
        raise ValueError(
            f"{what} must hold real numbers, got text or dates of dtype {array.dtype}"
        )
    if kind == "O":
        whole = [value for value in array.flat if isinstance(value, Integral)]
        _check_digits(np.array(whole, dtype=object), what)
    elif kind in "iu" and array.dtype.itemsize == 8:
        _check_digits(array, what)
    return array


def _check_digits(whole: Array, what: str) -> None:
    if whole.size and max(-int(whole.min()), int(whole.max())) > 2**53:
        raise ValueError(
            f"{what} must have no integers above 2^53: their last digits would be lost"
        )
