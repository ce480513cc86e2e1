"""Bundled, downloaded and synthetic data sets, split by party index and count."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pydantic
from pydantic.dataclasses import dataclass

from vfl_flower.data.cache import Encoding
from vfl_flower.data.conversion import choose
from vfl_flower.data.encoding import check_columns, encode_arrays
from vfl_flower.data.source import BUNDLED, PartySource
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.settings import Fraction, Natural, NotNegative
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array


def from_bundled(source: PartySource, encoding: Encoding | None = None) -> Party:
    """Return the party's columns, or rows, of a scikit-learn data set."""
    _refuse(source, "id_column", "label_column")
    bunch = _bunch(source)
    names = [str(name) for name in bunch.feature_names]
    features = names
    if encoding is None:
        chosen = choose(names, source)
        features = chosen[_share(source, len(chosen))]
    places = [names.index(name) for name in features]
    X, y = _rows(source, bunch.data).take(places, axis=1), _rows(source, bunch.target)
    return _share_party(source, X, y.astype(np.float64), features, encoding)


def _bunch(source: PartySource) -> Any:
    """Return the data set, which scikit-learn bundles or downloads.

    Raises PartyError if the download fails.
    """
    import sklearn.datasets

    load = getattr(sklearn.datasets, BUNDLED[source.data])
    if not BUNDLED[source.data].startswith("fetch_"):
        return load()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the retry of a download
            return load(n_retries=1, delay=0.1)
    except OSError:
        raise PartyError(
            f"data of {source.who}: scikit-learn could not download "
            f"{source.data!r}; the first use needs internet access"
        ) from None


def _rows(source: PartySource, values: Array) -> Array:
    """Return the party's rows if rows are split, else all rows."""
    if not source.rows:
        return values
    index, count = _place(source)
    if count > len(values):
        raise PartyError(
            f"num-partitions must be at most {len(values)}, the number of rows of the "
            f"data, got {count}"
        )
    return values[index::count]


def ids_of_bundled(source: PartySource) -> list[str] | None:
    """Return the party's row numbers in the data set, or None if columns are split."""
    if not source.rows:
        return None
    if source.data in BUNDLED:
        n = len(_bunch(source).data)
    else:
        n = _parse_synthetic(source).n
    return [str(number) for number in _rows(source, np.arange(n))]


@shapes_only
@dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid", allow_inf_nan=False))
class _Regression:
    """Parameters of ``synthetic``: n rows, d columns in all."""

    n: Natural = 10_000
    d: Natural = 30
    noise: NotNegative = 0.5
    correlation: Fraction = 0.0


def from_synthetic(
    source: PartySource, seed: int, encoding: Encoding | None = None
) -> Party:
    r"""Return the party's columns, or rows, of data drawn from a Gaussian linear model.

    Column j is :math:`x_j = \sqrt\rho f + \sqrt{1 - \rho} e_j`, so that any two columns
    have correlation :math:`\rho`, and :math:`y = \sum_j \theta_j x_j + \sigma e`, with
    :math:`f, e_j, \theta, e` standard normal. Each of them has its own random stream: a
    party draws only its own columns, and the label holder also draws the other columns,
    one at a time, to compute y.
    """
    _refuse(source, "id_column", "label_column", "columns")
    p = _parse_synthetic(source)

    def normal(size: int, *stream: int) -> Array:
        # A spawn key keeps these streams apart from SeedSequence([seed, party, step]).
        sequence = np.random.SeedSequence(seed, spawn_key=stream)
        return np.random.default_rng(sequence).standard_normal(size)

    share = _share(source, p.d)
    columns = range(share.start, share.stop)
    labels = columns.stop == p.d
    common = np.sqrt(p.correlation) * normal(p.n, 0) if p.correlation else 0.0
    theta = normal(p.d, 1)
    y = p.noise * normal(p.n, 2)
    X = np.empty((len(_rows(source, y)), len(columns)))
    for j in range(p.d) if labels else columns:
        x = np.sqrt(1 - p.correlation) * normal(p.n, 3, j) + common
        if j in columns:
            X[:, j - columns.start] = _rows(source, x)
        if labels:
            y += theta[j] * x
    y = _rows(source, y)
    return _share_party(source, X, y, [f"x{j}" for j in columns], encoding)


def _parse_synthetic(source: PartySource) -> _Regression:
    """Read ``synthetic:n=10000,d=30,noise=0.5,correlation=0.3``."""
    items = filter(None, source.data.partition(":")[2].split(","))
    options: dict[str, Any] = {
        key.strip(): text.strip() for key, _, text in (i.partition("=") for i in items)
    }
    try:
        return _Regression(**options)
    except pydantic.ValidationError:
        raise PartyError(
            "synthetic needs whole numbers n, d >= 1, a noise >= 0 and a correlation "
            f"of at least 0 and below 1, got {source.data!r}"
        ) from None


def _share(source: PartySource, d: int) -> slice:
    """Return the party's range of the d columns."""
    index, count = _place(source)
    if source.rows:
        return slice(0, d)
    if count > d:
        raise PartyError(
            f"num-partitions must be at most {d}, the number of columns, got {count}"
        )
    columns = np.array_split(range(d), count)[index]
    return slice(columns[0], columns[-1] + 1)


def _share_party(
    source: PartySource,
    X: Array,
    y: Array,
    columns: Sequence[str],
    encoding: Encoding | None,
) -> Party:
    index, count = _place(source)
    names, X = list(columns), X.astype(np.float64, copy=False)
    if encoding is not None:
        columns, _ = check_columns(names, encoding, source.who)
        X = X.take([names.index(name) for name in columns], axis=1)
    encoding = encode_arrays(X, columns, source, encoding)
    party = Party(
        X,
        y=y if source.rows or index == count - 1 else None,
        name=source.name,
        columns=columns,
        index=index,
    )
    party.encoding = encoding
    return party


def _place(source: PartySource) -> tuple[int, int]:
    """Return the party's index and the number of parties, which a split needs."""
    if source.index is None or source.count is None:
        raise PartyError(
            f"data {source.data.partition(':')[0]!r} are split over the parties: "
            "partition-id and num-partitions must be set"
        )
    if not 0 <= source.index < source.count:
        raise PartyError(
            f"partition-id must be from 0 to num-partitions - 1 = {source.count - 1}, "
            f"got {source.index}"
        )
    return source.index, source.count


def _refuse(source: PartySource, *options: str) -> None:
    for option in options:
        if getattr(source, option) is not None:
            raise PartyError(
                f"{option.replace('_', '-')} needs a party file, but data is "
                f"{source.data.partition(':')[0]!r}"
            )
