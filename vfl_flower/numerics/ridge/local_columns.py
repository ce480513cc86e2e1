r"""The columns that a party derives for a Gram matrix from its own columns alone.

Whoever reconstructs a Gram matrix can compute a row if a known column, or a known
combination of columns, is nonzero only in that row. So each column here has a
*support*: in at least `least` rows, it differs from its most frequent value. Real
columns are clipped at values that `REACHED` rows reach or exceed on either side, and at
8 standard deviations, so that new rows cannot lie far outside the range of the training
rows. No row has a leverage above a bound (:func:`bounded`, which the party applies to
all columns that leave the party).

There are three types of columns:

1. *values*: the deviation of each column from its median, in units of 8 standard
   deviations;
2. *intervals*: 1 if a value is between two quantiles, so intervals also represent the
   levels of columns with few values; rare levels are merged with a neighbour;
3. *waves*: cosines and sines of random angles of the party's columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from vfl_flower.numerics.linear_gram import bounded_columns
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

CLIP = 8.0
"""Maximum distance from the median, in standard deviations."""

WAVE_BANDWIDTH = 0.5
"""Bandwidth of the waves, in units of the rows' median distance / sqrt(2)."""

REACHED = 5
"""Number of rows at or beyond either end of a clipped column."""

PAIRS = 2000
"""Number of row pairs whose distances give the median."""

Interval = tuple[float, float]


@shapes_only
@dataclass(frozen=True)
class LocalColumns:
    """The map from a party's source columns to its local columns, as arrays only."""

    center: Array
    """Median of each clipped source column, of shape (d,)."""
    scale: Array
    """Standard deviations after clipping, (d,). A column with deviation 0 becomes 0."""
    lowest: Array
    highest: Array
    """Bounds at which values are clipped, of shape (d,)."""
    values: Array
    """Source columns whose values become columns, of shape (v,)."""
    gaps: Array
    """Source columns with an indicator of missing values, of shape (g,)."""
    interval_columns: Array
    """The source column of each interval, of shape (b,)."""
    lows: Array
    highs: Array
    """An interval is ``low < x <= high``, in the unit of its source column; (b,)."""
    frequencies: Array
    """Frequencies of the waves, (d, m), in radians per unit of the scaled columns."""
    muted: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Columns set to 0, because together with the labels they would isolate a single
    row. They are still included in the number of columns, which must not depend on
    labels."""

    @property
    def n_columns(self) -> int:
        """Number of local columns."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Numbers of columns of each type: values, then intervals, then waves."""
        intervals = len(self.gaps) + len(self.lows)
        return [len(self.values), intervals, 2 * self.frequencies.shape[1]]


def scaled_columns(fitted: LocalColumns, X: Array) -> Array:
    """Return X, (rows, d), in standard deviations from the medians, clipped to `CLIP`.

    NaN becomes 0.
    """
    X = np.clip(np.asarray(X, dtype=np.float64), fitted.lowest, fitted.highest)
    away = X - fitted.center
    scale = np.where(fitted.scale > 0, fitted.scale, 1.0)
    Z = np.clip(away / scale, -CLIP, CLIP) * (fitted.scale > 0)
    return np.asarray(np.nan_to_num(Z, copy=False, nan=0.0))


def local_columns(fitted: LocalColumns, X: Array) -> Array:
    """Return the local columns, (rows, n_columns), of X, (rows, d).

    Absolute values are at most 1.
    """
    X = np.asarray(X, dtype=np.float64)
    Z = scaled_columns(fitted, X)
    at = X[:, fitted.interval_columns]
    angles = Z @ fitted.frequencies
    values, gaps = Z[:, fitted.values] / CLIP, np.isnan(X[:, fitted.gaps])
    inside = (at > fitted.lows) & (at <= fitted.highs)
    columns = np.hstack([values, gaps, inside, np.cos(angles), np.sin(angles)])
    columns[:, fitted.muted] = 0.0
    return np.asarray(columns)


def fit_local_columns(
    X: Array,
    *,
    most: int,
    least: int = 20,
    bins: int = 16,
    waves: int = 32,
    most_leverage: float = 0.5,
    rng: np.random.Generator,
) -> LocalColumns:
    """Choose columns from a party's training rows X, (n, d); missing values are NaN.

    There are at most `most` columns. Values come first. Intervals follow, as many per
    source column as the limit allows, but at most `bins`. At most `waves` frequencies
    come last, with two columns each. At least `least` rows differ from the most
    frequent value of a column, and no row has a leverage above `most_leverage`.
    """
    X = np.asarray(X, dtype=np.float64)
    ordered = [np.sort(column[~np.isnan(column)]) for column in X.T]
    known, d = ~np.isnan(X), X.shape[1]
    units = np.array([_unit(rows) for rows in ordered]).reshape(d, 4).T.copy()
    nothing = *[np.zeros(0, dtype=np.int64)] * 3, *np.zeros((2, 0)), np.zeros((d, 0))
    fitted = LocalColumns(*units, *nothing)
    Z = scaled_columns(fitted, X)
    supported = np.array([_supported(z, least) for z in Z.T], dtype=bool)
    Z[:, ~supported] = 0.0
    fitted.scale[~supported] = 0.0
    values = np.flatnonzero(supported)[:most]
    gaps = np.flatnonzero([_supported(k, least) for k in known.T])[: most - len(values)]
    room = most - len(values) - len(gaps)
    for count in range(bins, 1, -1):
        intervals = [
            (column, low, high)
            for column in range(d)
            for low, high in _intervals(ordered[column], least, count)
        ]
        if len(intervals) <= room:
            break
    else:
        intervals = []
    columns, lows, highs = np.array(intervals, np.float64).reshape(-1, 3).T.copy()
    room -= len(intervals)
    n_waves = min(waves, room // 2) if fitted.scale.any() else 0
    fitted = replace(
        fitted,
        values=values,
        gaps=gaps,
        interval_columns=columns.astype(np.int64),
        lows=lows,
        highs=highs,
        frequencies=rng.standard_normal((d, n_waves)) / _bandwidth(Z, rng),
    )
    # After a column is removed, directions that were too short before can matter.
    while not (
        passing := bounded(
            local_columns(fitted, X), least=least, most_leverage=most_leverage
        )
    ).all():
        fitted = _selected(fitted, passing)
    return fitted


def bounded(
    columns: Array, *, least: int, most_leverage: float, fixed: int = 0
) -> Array:
    """Return which of a party's columns, (n, m), isolate no single row, (m,).

    Only such columns leave an honest party; this rule also applies to its labels. The
    function applies :func:`vfl_flower.numerics.linear_gram.bounded_columns` to the
    columns about their means. The last `fixed` columns, which pass the test by
    themselves, always stay.
    """
    F = np.asarray(columns, dtype=np.float64)
    centered = F - F.mean(axis=0)
    return bounded_columns(F.T, centered, least, most_leverage, fixed)


def reached(ordered: Array, rows: int = REACHED) -> tuple[float, float]:
    """Return the `rows`-th smallest and largest of sorted values.

    Returns zeros if there are fewer than `rows` values.
    """
    if len(ordered) < rows:
        return 0.0, 0.0
    return float(ordered[rows - 1]), float(ordered[-rows])


def _unit(ordered: Array) -> tuple[float, float, float, float]:
    """Return the center, scale, minimum and maximum of a column's sorted known values.

    Returns zeros if the column is constant.
    """
    low, high = reached(ordered)
    sd = float(np.std(np.clip(ordered, low, high))) if low < high else 0.0
    if not sd > 0:
        return 0.0, 0.0, 0.0, 0.0
    return float(np.median(ordered)), sd, low, high


def _supported(x: Array, least: int) -> bool:
    """Return whether at least `least` rows differ from the most frequent value."""
    most = int(np.unique(x, return_counts=True)[1].max(initial=0))
    return len(x) - most >= least


def _intervals(ordered: Array, least: int, count: int) -> list[Interval]:
    """Return at most `count` intervals with about equal numbers of rows.

    Each interval has at least `least` rows. `ordered` are the column's known values in
    ascending order. A value that many rows share gets one interval, and the other
    values share the remaining intervals. The last interval is left out, since it
    follows from the other intervals and the column of ones. So a 0/1 column has no
    intervals: its values are already an indicator.
    """
    if not len(ordered) or np.searchsorted(
        ordered, ordered[0], "right"
    ) == np.searchsorted(ordered, ordered[-1]):
        return []
    intervals: list[Interval] = []
    low, start, first = -np.inf, 0, 0
    for left in range(count, 0, -1):
        if start == len(ordered):
            break
        edge = float(ordered[start - 1 + -(-(len(ordered) - start) // left)])
        start = int(np.searchsorted(ordered, edge, "right"))
        if start - first >= least:
            intervals.append((low, edge))
            low, first = edge, start
    return intervals[:-1]


def _bandwidth(Z: Array, rng: np.random.Generator) -> float:
    """Return the bandwidth of the waves, from distances between pairs of rows."""
    first, second = rng.integers(0, max(len(Z), 1), (2, PAIRS)) if len(Z) else ([], [])
    squares = ((Z[first] - Z[second]) ** 2).sum(axis=1)
    squares = squares[squares > 0]
    return (
        WAVE_BANDWIDTH * float(np.sqrt(np.median(squares) / 2)) if len(squares) else 1.0
    )


def _selected(fitted: LocalColumns, chosen: Array) -> LocalColumns:
    """Return the map to the chosen columns; a wave keeps both columns or none."""
    v, g, b = len(fitted.values), len(fitted.gaps), len(fitted.lows)
    values, gaps, intervals, waves = np.split(chosen, np.cumsum([v, g, b]))
    both = np.logical_and(*np.split(waves, 2))
    return replace(
        fitted,
        values=fitted.values[values],
        gaps=fitted.gaps[gaps],
        interval_columns=fitted.interval_columns[intervals],
        lows=fitted.lows[intervals],
        highs=fitted.highs[intervals],
        frequencies=fitted.frequencies[:, both],
    )
