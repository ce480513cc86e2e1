"""Read and check party files, and choose the file and the columns of a party."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.data.cache import IDS, CacheEntry, Converted, Shape
from vfl_flower.data.encoding import (
    Encoding,
    Ids,
    Labels,
    check_columns,
    columns_of,
    encode,
    fit,
    fit_new,
    numbers_of,
    said,
    text_kinds,
)
from vfl_flower.data.findings import Finding, fault, refuse
from vfl_flower.data.id_forms import IdForms
from vfl_flower.data.kinds import NUMERIC, text_buffers
from vfl_flower.data.source import QUERY, PartySource
from vfl_flower.data.statistics import Column, medians, survey
from vfl_flower.data.tables import (
    CSV_BLOCK,
    FORMATS,
    TEXTS,
    Table,
    empty_rows,
    ending,
    files_of,
    layout_of,
    markers_of,
    name_of,
    open_table,
)
from vfl_flower.files import UnpackedSizeError
from vfl_flower.protocol.names import did_you_mean
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.row_order import RowOrder, load_order
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

logger = logging.getLogger("vfl_flower")

TAKEN = 2**12
"""Rows that are put in order at once."""

FORMS = {
    **dict.fromkeys(
        TEXTS,
        "CSV: text in one encoding, one delimiter, one header line, rows of less than "
        f"{CSV_BLOCK >> 20} MiB",
    ),
    ".npz": "NPZ with a matrix X and optional y, ids, columns (no pickled objects)",
    "": "the result of a query: fix the query",
}
"""What a file that cannot be read should be, by its ending."""


def folder_files(folder: Path, source: PartySource) -> list[Path]:
    """Return the party files of a folder; the ``index``-th is that of the party."""
    visible = (path for path in folder.iterdir() if not path.name.startswith("."))
    files = sorted((p for p in visible if p.suffix.lower() in FORMATS), key=_natural)
    if not files:
        raise PartyError(
            f"the data folder of {who_of(source)} has no file that ends in "
            f"{', '.join(FORMATS)}"
        )
    if source.count not in (None, len(files)):
        raise PartyError(
            "num-partitions (num-supernodes of a simulation) must be the number of "
            f"party files in the data folder, {len(files)}, got {source.count}"
        )
    if source.index is None or not 0 <= source.index < len(files):
        raise PartyError(
            "partition-id must choose one of the party files in the data folder, from "
            f"0 to {len(files) - 1}, got {source.index}"
        )
    return files


def _natural(path: Path) -> tuple[list[str | int], str]:
    """Return the sort key that takes digits as a number; equal ones go by name."""
    parts = re.split(r"(\d+)", path.stem)
    return [int(part) if part.isdecimal() else part for part in parts], path.name


def from_file(
    path: Path,
    source: PartySource,
    folder: Sequence[Path] = (),
    encoding: Encoding | None = None,
) -> Party:
    """Return the party of a file, from the cache if it is there."""
    name = source.name or name_of(path)
    who = f"party {name!r}"
    stamp = stamp_of(path, source, who)
    order = _order(source)
    key = "" if order is None else order.key
    entry = CacheEntry.of(path, stamp, source, bool(folder), encoding, key)
    converted = entry.load()
    if converted is None:
        converted = _convert(path, source, who, folder, encoding, entry, order)
        check_unchanged(path, source, who, stamp, entry)
        if isinstance(converted.X.base, np.memmap):
            try:
                entry.seal(converted)
            except OSError as error:
                _not_kept(who, entry, error)
    party = Party(
        converted.X,
        y=converted.y,
        name=name,
        columns=converted.columns,
        index=source.index,
        ids_digest=converted.ids_digest,
        checked=True,
    )
    party.encoding, party.order_key = converted.encoding, key or None
    return party


def ids_of_file(path: Path, source: PartySource) -> Sequence[str] | None:
    """Return the ids of the rows of a file as text; None without an id column."""
    ids, order = _ids_in_file(path, source), _order(source)
    if order is None:
        return ids
    rows = order.rows(ids).tolist()  # refuses a file without ids
    return [ids[row] for row in rows] if ids is not None else None


def _ids_in_file(path: Path, source: PartySource) -> Sequence[str] | None:
    """Return the ids in the order of the file; None without an id column."""
    who = f"party {source.name or name_of(path)!r}"
    stamp = stamp_of(path, source, who)
    entry = CacheEntry.of(path, stamp, source, False, None)
    if source.id_column and (stored := entry.load_ids()) is not None:
        return stored
    with _reading(path, who):
        table = open_table(path, source, who)
        plan = Plan.of(table, path, source, who, (), None, only_ids=True)
        refuse(plan.faults, who)
        if plan.ids is None:
            return None
        ids = Ids(plan.ids, markers_of(source))
        for batch in table.read([plan.ids]):
            ids.add(batch.column(0))
        refuse([*_row_faults(table), *ids.faults(who)], who)
        shapes = _id_shapes(ids)
        try:
            with entry.open(shapes) as files:
                _write_ids(table, ids, files)
        except OSError:
            return [
                text
                for b in table.read([plan.ids])
                for text in ids.texts(b.column(0)).to_pylist()
            ]
    check_unchanged(path, source, who, stamp, entry)
    return entry.load_ids()


def _order(source: PartySource) -> RowOrder | None:
    """Return the order that the party's rows have, if it is not that of the file."""
    if source.alignment is None:
        return None
    return load_order(source.state_dir, source.alignment)


def _kept(table: Table, rows: Array) -> Table:
    """Return a table with some of the rows only, in the order of the file."""
    places = np.sort(rows)

    def read(names: Sequence[str]) -> Iterator[Any]:
        at = 0
        for batch in table.read(names):
            first, last = np.searchsorted(places, [at, at + batch.num_rows])
            yield batch.take(places[first:last] - at)
            at += batch.num_rows

    return replace(table, read=read)


def _id_shapes(ids: Ids) -> dict[str, Shape]:
    data, at = IDS
    return {data: ("|u1", (ids.bytes,)), at: ("<i8", (ids.n + 1,))}


def _write_ids(table: Table, ids: Ids, files: Sequence[Any]) -> None:
    end = 0
    files[1].write(np.zeros(1, dtype="<i8"))
    for batch in table.read([ids.name]):
        end = _write_id_block(ids, batch.column(0), end, files)


def _write_id_block(ids: Ids, array: Any, end: int, files: Sequence[Any]) -> int:
    """Write the bytes of a block of ids and where each ends; return the last place."""
    at, data = text_buffers(ids.texts(array))
    files[0].write(data)
    files[1].write((at[1:] - at[0] + end).astype("<i8"))
    return end + len(data)


def _not_kept(who: str, entry: CacheEntry, error: OSError) -> None:
    text = "%s: no cache at %s (%s), so every message converts the file again"
    logger.warning(text, who, entry.folder, error.strerror)


def stamp_of(path: Path, source: PartySource, who: str) -> tuple[int, int]:
    """Return what changes with a file: its size and its modification time.

    Nothing is opened: a pipe would wait, and a device may never end. Of a query it is
    that of the files named in it, in single quotes; where there are none, it is new
    each time, so that the query runs for each message.
    """
    if source.data.startswith(QUERY):
        quoted = re.findall("'([^']+)'", source.data)
        named = (file for name in quoted for file in files_of(Path(name)))
        files = list(filter(Path.exists, named))
        if not files:
            return 0, time.time_ns()
    else:
        files = files_of(path)
    try:
        stats = [file.stat() for file in files]
        if not stats:
            raise FileNotFoundError
    except FileNotFoundError:
        logger.error("%s: no file %s", who, path)
        raise PartyError(
            f"the data file of {who} does not exist"
            + ("" if path.is_absolute() else "; data must be an absolute path")
        ) from None
    except OSError as error:
        raise _unreadable(path, who, error) from None
    if not all(stat.S_ISREG(about.st_mode) for about in stats):
        raise PartyError(
            f"the data file of {who} must be a file, and no folder, pipe or device"
        )
    if any(about.st_size == 0 for about in stats):
        raise PartyError(f"the data file of {who} is empty")
    if len(stats) == 1:
        return stats[0].st_size, stats[0].st_mtime_ns
    about = repr(
        [(f.name, s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True)]
    )
    digest = hashlib.sha256(about.encode()).digest()[:8]
    return sum(stat.st_size for stat in stats), int.from_bytes(digest, "big")


def check_unchanged(
    path: Path,
    source: PartySource,
    who: str,
    stamp: tuple[int, int],
    entry: CacheEntry | None = None,
) -> None:
    """Raise ``PartyError`` where the file is not as it was, and remove its entry."""
    try:
        if stamp[0] and stamp_of(path, source, who) != stamp:
            raise PartyError(f"the data file of {who} changed while it was read")
    except PartyError:
        if entry is not None:
            entry.remove()
        raise


@dataclass
class Plan:
    """Which columns of a file are features, ids and labels, and the faults so far."""

    features: list[str]
    """In the order of X."""
    ids: str | None
    """The column of ids, if the file has one."""
    label: str | None
    """The column of labels, if the file has one."""
    faults: list[Finding]
    """What is wrong with the options or the names; the rest is read all the same."""

    @classmethod
    def of(
        cls,
        table: Table,
        path: Path,
        source: PartySource,
        who: str,
        folder: Sequence[Path],
        encoding: Encoding | None,
        only_ids: bool = False,
    ) -> Plan:
        """Return the plan of a table for the options."""
        counts, faults = Counter(table.names), []
        names = list(counts)
        for name in names:
            if counts[name] > 1:
                text = f"{who} has more than one column {name!r}"
                faults.append(fault("header", name, text))
        ids, label = source.id_column, source.label_column
        if path.suffix.lower() == ".npz":  # its ids and its y need no option
            label = label or ("y" if "y" in names else None)
            ids = ids or ("ids" if "ids" in names else None)
        if ids is not None and ids == label:
            text = f"id-column and label-column of {who} are both {ids!r}"
            faults.append(fault("options", ids, text, "id-column"))
            label = None
        if ids is not None and ids not in names:
            text = f"{who} has no column {ids!r}, its id-column"
            text += did_you_mean(ids, names)
            faults.append(fault("options", ids, text, "id-column"))
            ids = None
        plan = cls([], ids, label if label in names else None, faults)
        if only_ids:
            return plan
        for name in source.levels if encoding is None and not folder else ():
            if name not in names:
                text = f"{who} has no column {name!r}, for which levels are given"
                faults.append(fault("options", name, text, "levels"))
        rest = [name for name in names if name not in (ids, label)]
        try:
            if encoding is None:
                plan.features = _features(
                    path, names, rest, source, who, folder, faults
                )
            else:
                plan.features, ignored = check_columns(rest, encoding, who)
                if ignored:
                    logger.warning(
                        "%s: its part of the model was not trained on these columns, "
                        "which are left out: %s",
                        who,
                        ", ".join(map(repr, ignored)),
                    )
        except PartyError as error:
            faults.append(fault("options", None, str(error), "columns"))
            plan.features = rest if encoding is None else []
        return plan

    @property
    def wanted(self) -> list[str]:
        """All columns that are read."""
        return [*self.features, *(n for n in (self.ids, self.label) if n is not None)]


@shapes_only
@dataclass
class Survey:
    """What all rows of a file have told: columns, labels and ids, and every fault."""

    table: Table
    plan: Plan
    columns: dict[str, Column]
    labels: Labels | None
    ids: Ids | None
    encoding: Encoding
    faults: list[Finding]
    rows: int
    empty: int
    id_forms: IdForms | None


def survey_file(
    path: Path,
    source: PartySource,
    who: str,
    folder: Sequence[Path] = (),
    encoding: Encoding | None = None,
    fingerprint: bool = False,
    rows_used: Array | None = None,
) -> Survey:
    """Read a party file once, or as often as its columns need, and keep no row.

    If `rows_used` gives rows by their places in the file, only these count.

    Raises PartyError if the file cannot be read, or has no header or no rows, so that
    nothing more is known. The result has all other faults.
    """
    markers = markers_of(source)
    with _reading(path, who):
        table = open_table(path, source, who)
        if rows_used is not None:
            table = _kept(table, rows_used)
        plan = Plan.of(table, path, source, who, folder, encoding)
        if not plan.wanted:
            refuse(plan.faults, who)
        ids = None if plan.ids is None else Ids(plan.ids, markers)
        id_forms = IdForms(ids) if ids is not None and fingerprint else None
        rows = empty = 0

        def look(batch: Any) -> None:
            nonlocal rows, empty
            rows += batch.num_rows
            if fingerprint and len(plan.features) > 1:  # for a check alone
                empty += empty_rows(batch.select(plan.features)).true_count
            if ids is not None:
                ids.add(batch.column(ids.name))
                if id_forms is not None:
                    id_forms.add(batch.column(ids.name))

        looked_at = [name for name in plan.wanted if name != plan.ids]
        kinds: dict[str, Sequence[str]]
        if encoding is None:  # a column whose levels are given holds text
            kinds = {n: ["text"] for n in source.levels if n != source.label_column}
        else:
            kinds = text_kinds(encoding)
        extra = [] if plan.ids is None else [plan.ids]
        columns = survey(table, looked_at, markers, kinds, look, extra, fingerprint)
        fitted, faults = encoding is None, [*plan.faults, *_row_faults(table)]
        if rows == 0:
            text = f"the data file of {who} has a header and no rows"
            refuse(faults or [fault("rows", None, text)], who)
        more: list[Finding] = []
        if encoding is None:
            middles = _medians(table, plan, columns, markers, source)
            encoding, more = fit(columns, plan.features, source, who, middles)
        elif plan.features:
            more = fit_new(columns, encoding, who)
        labels = None
        if plan.label is not None:
            known = None if fitted else encoding.get("classes")
            labels = Labels(columns[plan.label], who, fitted, known)
            more += labels.faults
            if fitted and labels.classes is not None:
                encoding["classes"] = labels.classes
            elif fitted and plan.label in table.categories:
                encoding["classes"] = None  # categories that are numbers
        if ids is not None:
            more += ids.faults(who)
    faults += more
    return Survey(
        table, plan, columns, labels, ids, encoding, faults, rows, empty, id_forms
    )


def _row_faults(table: Table) -> list[Finding]:
    return [fault("rows", None, text, "delimiter") for text in table.faults]


def _medians(
    table: Table,
    plan: Plan,
    columns: Mapping[str, Column],
    markers: frozenset[str],
    source: PartySource,
) -> dict[str, float]:
    """Return the medians of the columns of numbers, where they are asked for."""
    if source.impute != "median":
        return {}
    names = [
        name
        for name in plan.features
        if columns[name].kind in (*NUMERIC, "date") and columns[name].numbers.known
    ]
    middles: dict[str, float] = {}
    for start in range(0, len(names), 16):  # each takes a megabyte of counts
        group = names[start : start + 16]

        def blocks(group: list[str] = group) -> Iterator[Array]:
            for batch in table.read(group):
                pairs = zip(group, batch.columns, strict=True)
                yield np.column_stack(
                    [numbers_of(array, columns[name], markers) for name, array in pairs]
                )

        known = [columns[name].numbers.n - columns[name].numbers.gaps for name in group]
        middles |= zip(group, medians(blocks, known), strict=True)
    return middles


def _convert(
    path: Path,
    source: PartySource,
    who: str,
    folder: Sequence[Path],
    encoding: Encoding | None,
    entry: CacheEntry,
    order: RowOrder | None,
) -> Converted:
    """Read a party file, check it, and turn it into one float64 matrix in the cache."""
    fitted, rows = encoding is None, None
    if order is not None:
        ids = _ids_in_file(path, source)
        rows = order.rows(ids)
        text = "%s: %d of its %d rows, by alignment %r"
        logger.info(text, who, len(rows), len(ids or ()), order.name)
    survey = survey_file(path, source, who, folder, encoding, rows_used=rows)
    if survey.faults:
        logger.error("%s: %s", who, "; ".join(f.text for f in survey.faults))
    refuse(survey.faults, who)
    used, n = survey.encoding, survey.rows
    # A warning, so that it is seen by default.
    done = [*survey.table.notes, *said(survey.columns, used, source, fitted)]
    labels = None if survey.labels is None or survey.labels.empty else survey.labels
    if labels is not None:
        if gaps := labels.column.numbers.gaps:
            text = "%s: %d of %d labels are missing, so they are another party's"
            logger.warning(text, who, gaps, n)
        if labels.classes is not None:
            count, numbers = len(labels.classes), f"0 to {len(labels.classes) - 1}"
            if count == 2:
                numbers = "0 and 1, and the second is the positive one"
            done.append(
                f"the {count} classes of label-column {labels.column.name!r}, sorted, "
                f"became {numbers}"
            )
    if done:
        logger.warning("%s: %s", who, "; ".join(done))
    names = columns_of(used)
    places = None if rows is None else np.argsort(np.argsort(rows))
    shapes: dict[str, Shape] = {".X.npy": ("<f8", (n, len(names)))}
    if labels is not None:
        shapes[".y.npy"] = ("<f8", (n,))
    if survey.ids is not None and order is None:
        shapes |= _id_shapes(survey.ids)
    with _reading(path, who):
        try:
            with entry.open(shapes) as files:
                _write(survey, labels, source, who, files)
            X, y = entry.map(labels is not None)
            if places is not None:  # written as the file has them, and now as the order
                arrays = [array for array in (X, y) if array is not None]
                with entry.open(shapes) as files:
                    _write_taken(arrays, places, files)
                X, y = entry.map(labels is not None)
        except OSError as error:
            _not_kept(who, entry, error)
            X = np.empty((n, len(names)))
            y = None if labels is None else np.empty(n)
            sinks = [_Sink(array) for array in (X, y) if array is not None]
            _write(survey, labels, source, who, sinks)
            if places is not None:
                X, y = X[places], None if y is None else y[places]
    digest = None if survey.ids is None else survey.ids.digest
    if order is not None:
        digest = order.digest
    return Converted(X, y, names, digest, used)


def _write_taken(arrays: Sequence[Array], places: Array, files: Sequence[Any]) -> None:
    """Write some rows of each array, in the order of their places."""
    for array, file in zip(arrays, files, strict=True):
        for start in range(0, len(places), TAKEN):
            file.write(array[places[start : start + TAKEN]])


class _Sink:
    """An array that is written like a file."""

    def __init__(self, array: Array) -> None:
        self._flat, self._at = array.reshape(-1), 0

    def write(self, block: Array) -> None:
        self._flat[self._at : self._at + block.size] = block.reshape(-1)
        self._at += block.size


def _write(
    survey: Survey,
    labels: Labels | None,
    source: PartySource,
    who: str,
    files: Sequence[Any],
) -> None:
    """Write X, y if there are labels, and the ids if there are files for them."""
    plan, columns, markers = survey.plan, survey.columns, markers_of(source)
    id_files = files[1 + (labels is not None) :]
    rows = end = 0
    if id_files:
        id_files[1].write(np.zeros(1, dtype="<i8"))
    for batch in survey.table.read(plan.wanted):
        block = dict(zip(plan.wanted, batch.columns, strict=True))
        rows += batch.num_rows
        files[0].write(encode(block, columns, survey.encoding, markers, who))
        if labels is not None:
            files[1].write(labels.numbers(block[labels.column.name], markers))
        if id_files and survey.ids is not None:
            end = _write_id_block(survey.ids, block[survey.ids.name], end, id_files)
    if rows != survey.rows or (id_files and survey.ids and end != survey.ids.bytes):
        raise PartyError(f"the data file of {who} changed while it was read")


def _features(
    path: Path,
    names: Sequence[str],
    candidates: Sequence[str],
    source: PartySource,
    who: str,
    folder: Sequence[Path],
    faults: list[Finding],
) -> list[str]:
    """Return the feature columns to read from a party file.

    In a folder every party has the same options, so a column that the options name may
    be in another file. `candidates` are the columns but those of ids and labels.
    """
    elsewhere: set[str] = set()
    if not {source.label_column, *(source.columns or ())} <= {None, *names}:
        for file in folder:
            if file != path:
                owner = f"party {name_of(file)!r}"
                with _reading(file, owner):
                    elsewhere.update(_header(file, source, owner))
    known = {None, *names, *elsewhere}
    label = source.label_column
    if label not in known and not source.label_optional:
        where = "the data folder" if folder else who
        text = f"{where} has no column {label!r}, its label-column"
        text += did_you_mean(str(label), names)
        faults.append(fault("options", label, text, "label-column"))
    features = choose(candidates, source.columns, who, elsewhere - set(names))
    for name in features:
        if name == "" or name.startswith("__index_level_"):
            raise PartyError(
                f"{who} has a column without a name, such as an index of pandas: write "
                "the file without it, or list the columns to use in columns"
            )
    return features


@contextlib.contextmanager
def _reading(path: Path, who: str) -> Iterator[None]:
    """Turn whatever a reader raises on a bad file into one sentence without values."""
    try:
        yield
    except (PartyError, MemoryError):
        raise
    except UnpackedSizeError as error:
        raise PartyError(f"the data file of {who} is not read: {error}") from None
    except Exception as error:
        raise _unreadable(path, who, error) from None


def _unreadable(path: Path, who: str, error: Exception) -> PartyError:
    logger.error("%s: %s on reading %s", who, type(error).__name__, path)
    if isinstance(error, PermissionError):
        return PartyError(f"the data file of {who} may not be read by this process")
    kind = ending_of(path)
    form = FORMS.get(kind, kind[1:].capitalize())
    return PartyError(f"the data file of {who} cannot be read as {form}")


def ending_of(path: Path) -> str:
    """Return the ending that tells the format, of a file that may be damaged."""
    try:
        return ending(files_of(path)[0])
    except Exception:
        return path.suffix.lower()


def _header(path: Path, source: PartySource, who: str) -> list[str]:
    """Return the names of a file's columns without reading the rows."""
    if ending_of(path) in TEXTS:
        layout = layout_of(path, source)
        return [] if layout.headerless else layout.names
    return open_table(path, source, who).names


def choose(
    names: Sequence[str],
    wanted: Sequence[str] | None,
    who: str,
    elsewhere: Collection[str] = (),
) -> list[str]:
    """Return the feature columns in the order that the option gives them."""
    if wanted is None:
        features = list(names)
    else:
        for name in wanted:
            if name not in names and name not in elsewhere:
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


def who_of(source: PartySource) -> str:
    """Return how an error names the party."""
    if source.name:
        return f"party {source.name!r}"
    return "the party" if source.index is None else f"party-{source.index}"
