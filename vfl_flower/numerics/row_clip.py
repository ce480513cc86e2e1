"""Columns of a party in which no row stands out, from all of its columns.

A column that differs in few rows, or a row far from the others, points to single rows
(:func:`~vfl_flower.numerics.moments.bounded_columns`). Leaving out such columns loses
what they say of the other rows. Here rare columns are added up until they are no longer
rare, and far rows are moved towards the mean. A party needs its own columns alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores
from vfl_flower.numerics.linear import center
from vfl_flower.numerics.moments import support_of
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array, Arrays


@shapes_only
@dataclass(frozen=True, eq=False)
class RowClip:
    """A map of rows: ``m + (z - m) / max(1, |F^T (z - m)|)``, of sums z of columns.

    Attributes
    ----------
    place : Array of int, shape (d,)
        The column to which a column is added: itself, the first of its group, or -1 for
        none. What is added elsewhere leaves a column of zeros.
    shift, scale : Array, shape (d,)
        A column is added as ``(x - shift) / scale``.
    center : Array, shape (d,)
        m.
    factor : Array, shape (d, r)
        F.
    """

    place: Array
    shift: Array
    scale: Array
    center: Array
    factor: Array

    def __call__(self, X: Array) -> Array:
        """Return rows, shape (n, d), as the model takes them."""
        with np.errstate(over="ignore", invalid="ignore"):
            Z = (np.asarray(X, dtype=np.float64) - self.shift) / self.scale
            for k in np.flatnonzero(self.place != np.arange(len(self.place))):
                if self.place[k] >= 0:
                    Z[:, self.place[k]] += Z[:, k]
                Z[:, k] = 0.0
            size = np.linalg.norm((Z - self.center) @ self.factor, axis=1)
            far = size > 1
            Z[far] = self.center + (Z[far] - self.center) / size[far, None]
        return Z

    def moved(self, X: Array) -> int:
        """Return how many of the rows are moved towards m."""
        merged = replace(self, factor=self.factor[:, :0])(X)
        return int(np.count_nonzero((self(X) != merged).any(axis=1)))

    def arrays(self, prefix: str = "clip.") -> Arrays:
        """Return the arrays by name, as a party keeps them."""
        return {f"{prefix}{f.name}": getattr(self, f.name) for f in fields(self)}

    @classmethod
    def of(cls, named: Mapping[str, Any], prefix: str = "clip.") -> Self | None:
        """Return the map that :meth:`arrays` names; None: there is none."""
        if f"{prefix}place" not in named:
            return None
        return cls(**{f.name: named[f"{prefix}{f.name}"] for f in fields(cls)})


def clipped(clip: RowClip | None, X: Array) -> Array:
    """Return rows as the model takes them: as they are without a map."""
    return X if clip is None else clip(X)


def row_clip(
    X: Array,
    root: Array,
    y: Array | None,
    used: Array,
    *,
    intercept: bool,
    least_rows: int,
    most_leverage: float,
) -> RowClip:
    """Return the map that leaves no row of the columns standing out, if there is one.

    Parameters
    ----------
    X : Array, shape (n, d)
        Columns.
    root : Array, shape (n,)
        Roots of the weights of the rows.
    y : Array, shape (n,), or None
        Labels, beside which no row may stand out either.
    used : Array of bool, shape (d,)
        Columns to take, none of them constant; the others become zeros.
    intercept : bool
        Whether columns are taken about their means.
    least_rows : int
        Fewest rows that differ from the most frequent value of a column. The map moves
        fewer of the rows than that.
    most_leverage : float
        Rows of a larger leverage score are set aside, again and again, before m and F
        are those of the remaining rows.

    Returns
    -------
    RowClip
        Its F is that of :func:`~vfl_flower.numerics.leverage.leverage_factor`, over the
        `least_rows`-th largest ``|F^T (z - m)|``.
    """
    n, d = X.shape
    merge = RowClip(*_groups(X, used, least_rows), np.zeros(d), np.zeros((d, 0)))
    Z = merge(X)
    columns, rows = Z if y is None else np.column_stack([Z, y]), np.arange(n)

    def scaled(columns: Array) -> RowBlocks:
        part = columns[rows]
        part = center(part, root[rows] ** 2) if intercept else part
        return RowBlocks(root[rows, None] * part)

    while True:
        A = scaled(columns)
        near = leverage_scores(A, leverage_factor(A)) <= most_leverage
        if near.all() or 2 * np.count_nonzero(near) < n:
            break
        rows = rows[near]
    m = np.average(Z[rows], axis=0, weights=root[rows] ** 2) * intercept
    F = leverage_factor(scaled(Z))
    size = np.linalg.norm((Z - m) @ F, axis=1)
    largest = np.partition(size, n - least_rows)[n - least_rows]
    # Rows as far as that one stay, whatever rounding makes of them.
    return replace(merge, center=m, factor=F / ((1 + 1e-9) * largest or np.inf))


def _groups(X: Array, used: Array, least_rows: int) -> tuple[Array, Array, Array]:
    """Return place, shift and scale of :class:`RowClip`.

    Rare columns are added from left to right, as deviations from the most frequent
    value in units of their mean size, until `least_rows` rows differ; what remains is
    added to the last group. The unit of the sum is the power of two next to that of its
    first column: the size itself may be a value of a single row.
    """
    d = X.shape[1]
    place, shift, scale = np.where(used, np.arange(d), -1), np.zeros(d), np.ones(d)
    group, first, total = list[int](), -1, np.zeros(len(X))
    for k in np.flatnonzero(used).tolist():
        values, counts = np.unique(X[:, k], return_counts=True)
        if len(X) - counts.max() >= least_rows:
            continue
        shift[k] = values[counts.argmax()]
        off = X[:, k] - shift[k]
        scale[k] = np.abs(off[off != 0]).mean()
        group, total = [*group, k], total + off / scale[k]
        if support_of(total) >= least_rows:
            first = group[0]
            place[group], group, total = first, [], np.zeros(len(X))
    place[group] = first
    unit = 2.0 ** np.round(np.log2(scale))
    with np.errstate(over="ignore"):
        return place, shift, np.clip(scale / unit[place], 1e-290, 1e290)
