"""The only loader and partitioner of party data.

A party's data come from one of four places, named by :class:`PartySource`:

========================  ==========================================================
``data``                  the party
========================  ==========================================================
``diabetes`` and others   a bundled set; party j of ``count`` has the j-th group of
                          consecutive columns, the last party also has the labels
``synthetic:n=..,d=..``   a generated regression of any size, split in the same way
``/abs/airline.parquet``  a party file: CSV, Parquet, Feather/Arrow IPC or NPZ
``/abs/folder``           the ``index``-th of its party files, in the order of names
========================  ==========================================================

A party file is converted to float64 once and then memory-mapped from a private cache,
since a SuperNode starts a process for every message. pandas, pyarrow and scikit-learn
are imported only by the step that needs them; a load from the cache needs none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from vfl_flower.clients.base import Party, PartyError, digest_ids
from vfl_flower.config import PartySource
from vfl_flower.typing import Array

logger = logging.getLogger("vfl_flower")

BUNDLED = {
    "breast_cancer": "load_breast_cancer",
    "california_housing": "fetch_california_housing",
    "covtype": "fetch_covtype",
    "diabetes": "load_diabetes",
    "digits": "load_digits",
    "iris": "load_iris",
    "wine": "load_wine",
}
"""Data sets of scikit-learn by name; the ``fetch_`` ones are downloaded."""

FORMATS = (".arrow", ".csv", ".feather", ".npz", ".parquet")
"""Endings of party files."""

MAX_LEVELS = 100
"""A text column with more levels is refused: it is an id or free text."""

CSV_BLOCK = 2**24
"""Bytes of a CSV parsed at a time; large, as quoted line breaks cost a scan each."""

CACHE_FORMAT = 1
"""Part of every cache key: raise it when the conversion below changes."""


def load_party(source: PartySource, seed: int = 0) -> Party:
    """Return the data of one party.

    Parameters
    ----------
    source : PartySource
        Where the data are and how they are read.
    seed : int
        Seed of a ``synthetic`` data set; nothing else is random.

    Returns
    -------
    Party
        X of shape (n, d), float64, and y of shape (n,), float64, or None. The rows
        keep the order of the file. The X of a party file is read-only, mapped from
        the cache, and of its ids only the digest is kept.

    Raises
    ------
    PartyError
        The data are missing, unreadable or break a rule. The text names the party,
        the column and the rule, never a path or a value.

    Notes
    -----
    Text and categorical columns become one 0/1 column for each level, ``carrier=UA``,
    in sorted order; a bool column is one 0/1 column as it is. A missing number becomes
    the mean or median of its column, a missing text that of each of its 0/1 columns.
    Scaling comes last. Parquet keeps categories of text only: those of numbers are
    numbers there. The arrays ``y`` and ``ids`` of an NPZ need no option. In a folder
    all parties are given the same options, so a label column or a feature column may
    be in another file, but must be in one of them.
    """
    _check_choice("impute", source.impute, ("mean", "median", "none"))
    if source.data in BUNDLED:
        return _bundled(source)
    if source.data.partition(":")[0] == "synthetic":
        return _synthetic(source, seed)
    path = Path(source.data).expanduser()
    if path.is_dir():
        return _from_folder(path, source)
    if path.suffix.lower() in FORMATS:
        return _from_file(path, source)
    # A plain word cannot be a path that should stay at the party.
    word = re.fullmatch(r"\w*", source.data)
    raise PartyError(
        f"data of {_who(source)} must be one of {', '.join(sorted(BUNDLED))}, "
        "synthetic[:n=..,d=..,noise=..,correlation=..], or the absolute path of a "
        f"folder or of a file that ends in {', '.join(FORMATS)}"
        + (f", got {source.data!r}" if word else "")
    )


def split_columns(
    X: Array,
    y: Array | None,
    count: int,
    names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> list[Party]:
    """Split a matrix over parties by consecutive columns, as evenly as possible.

    Parameters
    ----------
    X : Array, shape (n, d)
        All columns. The parties' matrices are views of it.
    y : Array, shape (n,), or None
        Labels, given to the last party.
    count : int
        Number of parties, 1 to d. The first ``d % count`` have one column more.
    names : sequence of str, length count, optional
        Names of the parties.
    columns : sequence of str, length d, optional
        Names of the columns.

    Returns
    -------
    list of Party
        In the order of the columns.

    Raises
    ------
    ValueError
        `count` is not between 1 and d, `names` or `columns` has another length, or
        `X` or `y` is not what :class:`Party` takes.

    Examples
    --------
    >>> X = np.arange(10.0).reshape(2, 5)
    >>> [party.X.shape for party in split_columns(X, np.array([0, 1]), 2)]
    [(2, 3), (2, 2)]
    """
    X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError(f"X must be a matrix, got shape {X.shape}")
    d = X.shape[1]
    if not 1 <= count <= d:
        raise ValueError(
            f"count must be between 1 and the {d} columns of X, got {count}"
        )
    if names is not None and len(names) != count:
        raise ValueError(
            f"names must name each of the {count} parties, got {len(names)}"
        )
    if columns is not None and len(columns) != d:
        raise ValueError(
            f"columns must name each of the {d} columns of X, got {len(columns)}"
        )
    return [
        Party(
            X[:, own],
            y=y if j == count - 1 else None,
            name=None if names is None else names[j],
            columns=None if columns is None else list(columns[own]),
            index=j,
        )
        for j, own in enumerate(_group(d, j, count) for j in range(count))
    ]


def _group(d: int, j: int, count: int) -> slice:
    """Return the j-th of `count` groups of consecutive columns out of d."""
    size, more = divmod(d, count)
    start = j * size + min(j, more)
    return slice(start, start + size + (j < more))


# --- Data sets that are split by index and count ----------------------------------


def _bundled(source: PartySource) -> Party:
    """Return the party's columns of a data set of scikit-learn."""
    import sklearn.datasets

    who = _who(source)
    _refuse(source, "id_column", "label_column")
    load = getattr(sklearn.datasets, BUNDLED[source.data])
    fetched = BUNDLED[source.data].startswith("fetch_")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the retry of a download
            bunch = load(n_retries=1, delay=0.1) if fetched else load()
    except OSError:
        if not fetched:
            raise
        raise PartyError(
            f"data of {who}: scikit-learn could not download {source.data!r}; it "
            "needs the internet once"
        ) from None
    names = [str(name) for name in bunch.feature_names]
    chosen = _choose(names, source.columns, who)
    own = chosen[_share(source, len(chosen))]
    X = np.empty((len(bunch.data), len(own)))
    for k, name in enumerate(own):
        X[:, k] = bunch.data[:, names.index(name)]
    return _share_party(source, X, bunch.target.astype(np.float64), own)


@dataclass(frozen=True)
class _Regression:
    """Parameters of ``synthetic``: n rows, d columns in all."""

    n: int = 10_000
    d: int = 30
    noise: float = 0.5
    correlation: float = 0.0


def _synthetic(source: PartySource, seed: int) -> Party:
    r"""Return the party's columns of a Gaussian linear regression.

    Column j is :math:`x_j = \sqrt\rho f + \sqrt{1 - \rho} e_j`, so that any two columns
    have correlation :math:`\rho`, and :math:`y = \sum_j \theta_j x_j + \sigma e`, with
    :math:`f, e_j, \theta, e` standard normal. Each has a stream of its own: a party
    draws its columns alone, and the label holder adds up the others one at a time.
    """
    _refuse(source, "id_column", "label_column", "columns")
    p = _parse_synthetic(source)

    def normal(size: int, *stream: int) -> Array:
        # A spawn key keeps these streams apart from SeedSequence([seed, party, step]).
        sequence = np.random.SeedSequence(seed, spawn_key=stream)
        return np.random.default_rng(sequence).standard_normal(size)

    share = _share(source, p.d)
    own = range(share.start, share.stop)
    labels = own.stop == p.d
    common = np.sqrt(p.correlation) * normal(p.n, 0) if p.correlation else 0.0
    theta = normal(p.d, 1)
    y = p.noise * normal(p.n, 2)
    X = np.empty((p.n, len(own)))
    for j in range(p.d) if labels else own:
        x = np.sqrt(1 - p.correlation) * normal(p.n, 3, j) + common
        if j in own:
            X[:, j - own.start] = x
        if labels:
            y += theta[j] * x
    return _share_party(source, X, y, [f"x{j}" for j in own])


def _parse_synthetic(source: PartySource) -> _Regression:
    """Read ``synthetic:n=10000,d=30,noise=0.5,correlation=0.3``."""
    kinds: dict[str, type] = {"n": int, "d": int, "noise": float, "correlation": float}
    given: dict[str, Any] = {}
    for item in filter(None, source.data.partition(":")[2].split(",")):
        key, _, text = (part.strip() for part in item.partition("="))
        try:
            given[key] = kinds[key](text)
        except (KeyError, ValueError):
            raise PartyError(
                "synthetic takes n=<int>, d=<int>, noise=<number> and "
                f"correlation=<number>, got {item!r}"
            ) from None
    p = _Regression(**given)
    for name, value, holds, rule in (
        ("n", p.n, p.n >= 1, "at least 1"),
        ("d", p.d, p.d >= 1, "at least 1"),
        ("noise", p.noise, 0 <= p.noise < np.inf, "at least 0 and finite"),
        ("correlation", p.correlation, 0 <= p.correlation < 1, "in [0, 1)"),
    ):
        if not holds:
            raise PartyError(f"{name} of synthetic must be {rule}, got {value}")
    return p


def _share(source: PartySource, d: int) -> slice:
    """Return which of d columns are the party's."""
    index, count = _place(source)
    if count > d:
        raise PartyError(
            f"num-partitions must be at most the {d} columns of the data, got {count}"
        )
    return _group(d, index, count)


def _share_party(
    source: PartySource, X: Array, y: Array, columns: Sequence[str]
) -> Party:
    """Make the party of a data set that is split by index and count."""
    index, count = _place(source)
    if source.standardize:
        for k in range(X.shape[1]):
            X[:, k] = _standardized(X[:, k])
    return Party(
        X,
        y=y if index == count - 1 else None,
        name=source.name,
        columns=columns,
        index=index,
    )


def _place(source: PartySource) -> tuple[int, int]:
    """Return index and count, which a split needs."""
    if source.index is None or source.count is None:
        raise PartyError(
            f"data {source.data.partition(':')[0]!r} are split over the parties: "
            "partition-id and num-partitions must be given"
        )
    if not 0 <= source.index < source.count:
        raise PartyError(
            f"partition-id must be from 0 to num-partitions - 1 = {source.count - 1}, "
            f"got {source.index}"
        )
    return source.index, source.count


# --- Party files ------------------------------------------------------------------


def _from_folder(folder: Path, source: PartySource) -> Party:
    """Return the party of the ``index``-th file."""
    files = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in FORMATS and not path.name.startswith(".")
    )
    if not files:
        raise PartyError(
            f"the data folder of {_who(source)} has no file that ends in "
            f"{', '.join(FORMATS)}"
        )
    if source.count not in (None, len(files)):
        raise PartyError(
            f"num-partitions must be the number of party files in the data folder, "
            f"{len(files)}, got {source.count}"
        )
    if source.index is None or not 0 <= source.index < len(files):
        raise PartyError(
            "partition-id must choose one of the party files in the data folder, from "
            f"0 to {len(files) - 1}, got {source.index}"
        )
    return _from_file(files[source.index], source, files)


def _from_file(path: Path, source: PartySource, folder: Sequence[Path] = ()) -> Party:
    """Return the party of a file, from the cache where it is there."""
    name = source.name or path.stem
    who = f"party {name!r}"
    try:
        stamp = _stamp(path)
    except FileNotFoundError:
        logger.error("%s: no file %s", who, path)
        raise PartyError(
            f"the data file of {who} does not exist; data must be an absolute path"
        ) from None
    except OSError as error:
        raise _unreadable(path, who, error) from None
    if stamp[0] == 0:
        raise PartyError(f"the data file of {who} is empty")
    entry = _CacheEntry.of(path, stamp, source, in_folder=bool(folder))
    converted = entry.load()
    if converted is None:
        converted = _convert(path, source, who, folder)
        if _stamp(path) != stamp:
            raise PartyError(f"the data file of {who} changed while it was read")
        try:
            entry.save(converted)
            converted = entry.load() or converted  # drops the copy in memory
        except OSError as error:
            logger.warning(
                "%s: no cache at %s (%s), so every message converts the file again",
                who,
                entry.folder,
                error.strerror,
            )
    return Party(
        converted.X,
        y=converted.y,
        name=name,
        columns=converted.columns,
        index=source.index,
        ids_digest=converted.ids_digest,
        checked=True,
    )


def _stamp(path: Path) -> tuple[int, int]:
    """Return what changes when a file does: its size and its time of change."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True)
class _Converted:
    """A party file after conversion: float64, finite, rows in the file's order."""

    X: Array
    y: Array | None
    columns: list[str]
    ids_digest: str | None


def _convert(
    path: Path, source: PartySource, who: str, folder: Sequence[Path]
) -> _Converted:
    """Read a party file, check it, and turn it into one float64 matrix."""
    with _reading(path, who):
        names = _header(path, source, who)
    ids, label = source.id_column, source.label_column
    if path.suffix.lower() == ".npz":  # its y and ids need no option
        ids = ids or ("ids" if "ids" in names else None)
        label = label or ("y" if "y" in names else None)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise PartyError(f"{who} has more than one column {repeated[0]!r}")
    if ids is not None and ids == label:
        raise PartyError(f"id-column and label-column of {who} are both {ids!r}")

    if ids is not None and ids not in names:
        raise PartyError(f"{who} has no column {ids!r}, its id-column")
    # In a folder every party is given the same options, so a column may be elsewhere.
    elsewhere: set[str] = set()
    if not {label, *(source.columns or ())} - {None} <= set(names):
        for other in folder:
            if other != path:
                with _reading(other, f"party {other.stem!r}"):
                    elsewhere.update(_header(other, source, f"party {other.stem!r}"))
    if label is not None and label not in names:
        if label not in elsewhere:
            where = "the data folder" if folder else who
            raise PartyError(f"{where} has no column {label!r}, its label-column")
        label = None
    features = _choose(
        [name for name in names if name not in (ids, source.label_column, label)],
        source.columns,
        who,
        elsewhere,
    )
    for name in features:
        if name == "" or name.startswith("__index_level_"):
            raise PartyError(
                f"{who} has a column without a name (pandas writes its index as one): "
                "write the file without it, or choose by columns"
            )

    with _reading(path, who):
        wanted = [*features, *(name for name in (ids, label) if name is not None)]
        table = _table(path, source, ids, wanted)
    if table.num_rows == 0:
        raise PartyError(f"the data file of {who} has a header and no rows")
    X, columns = _features(table, features, source, who)
    return _Converted(
        X,
        None if label is None else _labels(table[label], label, who),
        columns,
        None if ids is None else _digest(table[ids], ids, who),
    )


@contextlib.contextmanager
def _reading(path: Path, who: str) -> Iterator[None]:
    """Turn whatever a reader raises on a bad file into one sentence without values."""
    try:
        yield
    except (PartyError, MemoryError):
        raise
    except Exception as error:
        raise _unreadable(path, who, error) from None


def _unreadable(path: Path, who: str, error: Exception) -> PartyError:
    logger.error("%s: %s on reading %s", who, type(error).__name__, path)
    if isinstance(error, PermissionError):
        return PartyError(f"the data file of {who} may not be read by this process")
    rule = {
        ".csv": "CSV: UTF-8, separated by commas, one header line, equal fields a row",
        ".npz": "NPZ with a matrix X and optional y, ids, columns (no pickled objects)",
    }.get(path.suffix.lower(), path.suffix.lower()[1:].capitalize())
    return PartyError(f"the data file of {who} cannot be read as {rule}")


def _header(path: Path, source: PartySource, who: str) -> list[str]:
    """Return the names of a file's columns without reading the rows."""
    match path.suffix.lower():
        case ".csv":
            import csv

            with path.open(newline="", encoding="utf-8-sig") as file:
                lines = filter(None, csv.reader(file))
                names = next(lines, [])
                if next(lines, None) is None:
                    raise PartyError(
                        f"the data file of {who} "
                        + ("has a header and no rows" if names else "is empty")
                    )
                return names
        case ".parquet":
            import pyarrow.parquet

            return list(pyarrow.parquet.read_schema(path).names)
        case ".npz":
            return list(_npz(path, source, who))
    with _open_arrow(path) as reader:
        return list(reader.schema.names)


def _table(
    path: Path, source: PartySource, ids: str | None, wanted: Sequence[str]
) -> Any:
    """Return the wanted columns of a file as a pyarrow Table."""
    import pyarrow as pa

    match path.suffix.lower():
        case ".csv":
            one_column = len(_header(path, source, "")) == 1
            return _read_csv(path, ids, wanted, one_column)
        case ".parquet":
            import pyarrow.parquet

            # Not read_table: it adds columns for a folder that is called "year=2013".
            with pyarrow.parquet.ParquetFile(path) as file:
                return file.read(columns=list(wanted))
        case ".npz":
            arrays = _npz(path, source, "")
            return pa.table({name: pa.array(arrays[name]) for name in wanted})
    with _open_arrow(path) as reader:
        return reader.read_all().select(list(wanted))


def _read_csv(
    path: Path, ids: str | None, wanted: Sequence[str], one_column: bool
) -> Any:
    """Read a CSV; ids as text, so that "007" stays what it is."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    convert = pacsv.ConvertOptions(
        include_columns=list(wanted),
        column_types={} if ids is None else {ids: pa.string()},
        strings_can_be_null=True,
    )
    parse = pacsv.ParseOptions(
        newlines_in_values=True,
        # In a file of one column an empty line is a missing value.
        ignore_empty_lines=not one_column,
    )
    # read_csv, unlike open_csv, widens a type when a later block needs it.
    return pacsv.read_csv(path, pacsv.ReadOptions(block_size=CSV_BLOCK), parse, convert)


@contextlib.contextmanager
def _open_arrow(path: Path) -> Iterator[Any]:
    """Open an Arrow IPC file (Feather version 2) or stream."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            reader = pa.ipc.open_stream(source)
        yield reader


def _npz(path: Path, source: PartySource, who: str) -> dict[str, Array]:
    """Return the columns of X, y and ids by name."""
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        X = file["X"]
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise PartyError(
                f"X in the data file of {who} must be a matrix of real numbers, got "
                f"shape {X.shape} and dtype {X.dtype}"
            )
        names = [f"x{j}" for j in range(X.shape[1])]
        if "columns" in file:
            names = [str(name) for name in file["columns"].tolist()]
        if len(names) != X.shape[1] or len(set(names)) != len(names):
            raise PartyError(
                f"columns in the data file of {who} must be {X.shape[1]} distinct "
                f"names, got {len(names)} with {len(set(names))} distinct"
            )
        arrays = {name: X[:, j] for j, name in enumerate(names)}
        # One name for each array, the one the options use.
        for key, name in (
            ("y", source.label_column or "y"),
            ("ids", source.id_column or "ids"),
        ):
            if key not in file:
                continue
            if name in arrays:
                raise PartyError(
                    f"the data file of {who} has an array {key} and a column {name!r} "
                    "in X for the same thing"
                )
            arrays[name] = file[key]
            if arrays[name].shape != (len(X),):
                raise PartyError(
                    f"{key} in the data file of {who} must have one value for each of "
                    f"the {len(X)} rows of X, got shape {arrays[name].shape}"
                )
    return arrays


def _choose(
    names: Sequence[str],
    wanted: Sequence[str] | None,
    who: str,
    elsewhere: set[str] | None = None,
) -> list[str]:
    """Return the feature columns in the order that the option gives them."""
    if wanted is None:
        features = list(names)
    else:
        for name in wanted:
            if name not in names and name not in (elsewhere or ()):
                raise PartyError(
                    f"columns of {who} must be columns of its data other than ids and "
                    f"labels, got {name!r}"
                )
        if len(set(wanted)) != len(wanted):
            raise PartyError(f"columns of {who} must be distinct")
        features = [name for name in wanted if name in names]
    if not features:
        raise PartyError(f"{who} has no feature column")
    return features


def _features(
    table: Any, names: Sequence[str], source: PartySource, who: str
) -> tuple[Array, list[str]]:
    """Return the features as numbers, none missing, and the names of their columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    levels = {name: _levels(table[name], name, source.one_hot, who) for name in names}
    columns: list[str] = []
    for name, own in levels.items():
        columns += [name] if own is None else [f"{name}={level}" for level in own]
    X = np.empty((table.num_rows, len(columns)))
    missing: dict[str, int] = {}
    k = 0
    for name, own in levels.items():
        if own is None:
            values = table[name].cast(pa.float64(), safe=False).to_numpy()
        else:
            text = _decoded(table[name])
            codes = pc.index_in(text, value_set=pa.array(own, text.type))
            values = codes.cast(pa.float64()).to_numpy()
        gaps = np.isnan(values)
        count = int(gaps.sum())
        if count == len(values):
            raise PartyError(f"column {name!r} of {who} has no value in any row")
        if np.isinf(values).any():
            raise PartyError(
                f"column {name!r} of {who} must have no infinite value, "
                f"{int(np.isinf(values).sum())} found"
            )
        if count:
            missing[name] = count
        # A missing text is missing in each of its 0/1 columns.
        for code in range(1 if own is None else len(own)):
            column = values if own is None else (values == code).astype(np.float64)
            if count and source.impute != "none":
                known = column[~gaps]
                fill = known.mean() if source.impute == "mean" else np.median(known)
                column = np.where(gaps, fill, column)
            X[:, k] = _standardized(column) if source.standardize else column
            k += 1
    if missing and source.impute == "none":
        raise PartyError(
            f"{who} has missing values and impute is none: "
            + ", ".join(
                f"{count} in column {name!r}" for name, count in missing.items()
            )
        )
    _tell(levels, missing, source.impute, who)
    return X, columns


def _levels(column: Any, name: str, one_hot: bool, who: str) -> list[Any] | None:
    """Return the sorted levels of a text column, None for a column of numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_a = pa.types
    categorical = is_a.is_dictionary(column.type)
    column = _decoded(column)
    if is_a.is_temporal(column.type):
        raise PartyError(
            f"column {name!r} of {who} holds dates or times: turn them into numbers, "
            "or leave it out by columns"
        )
    if not categorical and (_is_number(column) or is_a.is_null(column.type)):
        return None
    if not categorical and not _is_text(column):
        raise PartyError(
            f"column {name!r} of {who} must hold numbers or text: leave it out by "
            "columns"
        )
    if not one_hot:
        raise PartyError(
            f"column {name!r} of {who} holds text and one-hot is off: turn it into "
            "numbers, or leave it out by columns"
        )
    found = pc.unique(column).drop_null()
    if len(found) == 0:
        raise PartyError(f"column {name!r} of {who} has no value in any row")
    if len(found) > MAX_LEVELS:
        raise PartyError(
            f"column {name!r} of {who} must have at most {MAX_LEVELS} different texts "
            f"to be one-hot encoded, got {len(found)}"
        )
    return sorted(found.to_pylist())


def _is_number(column: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_integer(column.type)
        or types.is_floating(column.type)
        or types.is_decimal(column.type)
        or types.is_boolean(column.type)
    )


def _is_text(column: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(column.type)
        or types.is_large_string(column.type)
        or types.is_string_view(column.type)
    )


def _decoded(column: Any) -> Any:
    """Return a categorical column as the column of its values."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def _tell(
    levels: dict[str, list[Any] | None], missing: dict[str, int], impute: str, who: str
) -> None:
    """Log what was encoded and filled in; a warning, so that it is seen by default."""
    done = [
        f"text column {name!r} became {len(own)} columns of 0 and 1"
        for name, own in levels.items()
        if own is not None
    ] + [
        f"{count} missing values of column {name!r} became its {impute}"
        for name, count in missing.items()
    ]
    if done:
        logger.warning("%s: %s", who, "; ".join(done))


def _labels(column: Any, name: str, who: str) -> Array:
    """Return the labels as float64."""
    import pyarrow as pa

    if not _is_number(column):
        raise PartyError(f"label-column {name!r} of {who} must hold numbers")
    y = column.cast(pa.float64(), safe=False).to_numpy()
    bad = int((~np.isfinite(y)).sum())
    if bad:
        raise PartyError(
            f"label-column {name!r} of {who} must have no missing or infinite value, "
            f"{bad} found"
        )
    return np.array(y)


def _digest(column: Any, name: str, who: str) -> str:
    """Return the digest of the ids, after checks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _decoded(column)
    if column.null_count:
        raise PartyError(
            f"id-column {name!r} of {who} must have no missing value, "
            f"{column.null_count} found"
        )
    if not (pa.types.is_integer(column.type) or _is_text(column)):
        raise PartyError(f"id-column {name!r} of {who} must hold integers or text")
    repeated = len(column) - pc.count_distinct(column).as_py()
    if repeated:
        raise PartyError(
            f"id-column {name!r} of {who} must have distinct values, {repeated} rows "
            "repeat an id"
        )
    return digest_ids(np.array(column.to_pylist(), dtype=object))


def _standardized(values: Array) -> Array:
    """Return (values - mean) / standard deviation; zeros where values are constant."""
    spread = values.std()
    if values.min() == values.max() or spread == 0:
        return np.zeros(len(values))
    result: Array = (values - values.mean()) / spread
    return result


# --- The cache --------------------------------------------------------------------


@dataclass(frozen=True)
class _CacheEntry:
    """The converted form of one party file under one set of options.

    Three files: ``.X.npy``, ``.y.npy`` and, written last, ``.json``, each by a
    temporary file and ``os.replace``: a reader sees a complete entry or none.
    """

    folder: Path
    file: str
    key: str
    stamp: tuple[int, int]

    @classmethod
    def of(
        cls, path: Path, stamp: tuple[int, int], source: PartySource, in_folder: bool
    ) -> _CacheEntry:
        """Name the entry by all that its content depends on."""
        root = os.environ.get("VFL_FLOWER_CACHE")
        if not root:
            import platformdirs

            root = platformdirs.user_cache_dir("vfl_flower")
        where = os.path.abspath(path)
        parts = [
            CACHE_FORMAT,
            where,
            *stamp,
            source.id_column,
            source.label_column,
            source.columns,
            source.standardize,
            source.one_hot,
            source.impute,
            in_folder,
        ]
        return cls(
            folder=Path(root) / "parties",
            file=hashlib.sha256(where.encode()).hexdigest()[:16],
            key=hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
            stamp=stamp,
        )

    def _path(self, ending: str) -> Path:
        return self.folder / f"{self.file}-{self.key}{ending}"

    def load(self) -> _Converted | None:
        """Map the entry into memory; None where there is none or it is damaged."""
        try:
            about = json.loads(self._path(".json").read_text())
            X = np.load(self._path(".X.npy"), mmap_mode="r")
            y = (
                np.load(self._path(".y.npy"), mmap_mode="r")
                if about["labels"]
                else None
            )
            entry = _Converted(
                np.asarray(X),
                None if y is None else np.asarray(y),
                about["columns"],
                about["ids_digest"],
            )
            sound = X.shape == (about["rows"], len(entry.columns)) and (
                y is None or y.shape == (about["rows"],)
            )
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None
        return entry if sound else None

    def save(self, converted: _Converted) -> None:
        """Write the entry, and remove those of an earlier state of the same file."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        for old in self.folder.glob(f"{self.file}-*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                if tuple(json.loads(old.read_text())["stamp"]) != self.stamp:
                    for ending in (".json", ".X.npy", ".y.npy"):
                        old.with_name(old.stem + ending).unlink(missing_ok=True)
        about = {
            "rows": len(converted.X),
            "columns": converted.columns,
            "labels": converted.y is not None,
            "ids_digest": converted.ids_digest,
            "stamp": self.stamp,
        }
        self._write(".X.npy", lambda file: np.save(file, converted.X))
        if (y := converted.y) is not None:
            self._write(".y.npy", lambda file: np.save(file, y))
        self._write(".json", lambda file: file.write(json.dumps(about).encode()))

    def _write(self, ending: str, write: Callable[[IO[bytes]], object]) -> None:
        # mkstemp gives mode 0600.
        handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
            os.replace(temporary, self._path(ending))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


# --- Words of errors --------------------------------------------------------------


def _who(source: PartySource) -> str:
    if source.name:
        return f"party {source.name!r}"
    return "the party" if source.index is None else f"party-{source.index}"


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise PartyError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _refuse(source: PartySource, *options: str) -> None:
    for option in options:
        if getattr(source, option) is not None:
            raise PartyError(
                f"{option.replace('_', '-')} needs a party file, and data is "
                f"{source.data.partition(':')[0]!r}"
            )


__all__ = ["BUNDLED", "FORMATS", "load_party", "split_columns"]
