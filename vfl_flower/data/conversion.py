"""A party file as one float64 matrix: its columns, its faults and its conversion."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vfl_flower.data import tables
from vfl_flower.data.cache import CacheEntry, Converted, Encoding, Shape
from vfl_flower.data.csv_tables import csv_table, layout_of
from vfl_flower.data.encoding import (
    Labels,
    check_columns,
    columns_of,
    done_with,
    encode,
    fit,
    fit_new,
    text_kinds,
)
from vfl_flower.data.files import TEXTS, PartyFile, ending, files_of
from vfl_flower.data.findings import fault, refuse
from vfl_flower.data.ids import IdForms, Ids, IdWriter
from vfl_flower.data.kinds import NUMERIC
from vfl_flower.data.source import QUERY, PartySource
from vfl_flower.data.statistics import medians, survey
from vfl_flower.party.party import PartyError
from vfl_flower.party.row_order import RowOrder
from vfl_flower.protocol.names import did_you_mean
from vfl_flower.typing import Array

logger = logging.getLogger("vfl_flower")

TAKEN = 2**12
"""Number of rows that are reordered at a time."""


def open_table(file: PartyFile) -> tables.Table:
    """Return the table of the file or the query; no row is read yet."""
    if file.source.data.startswith(QUERY):
        return tables.query_table(file.source.data[len(QUERY) :], file.who)
    files = files_of(file.path)
    match ending(files[0]):
        case ".parquet":
            return tables.parquet_table(files, file.who)
        case ".arrow" | ".feather":
            return tables.arrow_table(files[0])
        case ".npz":
            return tables.npz_table(files[0], file.source)
    return csv_table(files[0], file.source)


def header_of(file: PartyFile) -> list[str]:
    """Return the names of the columns without reading the rows."""
    if file.ending in TEXTS:
        layout = layout_of(file.path, file.source)
        return [] if layout.headerless else layout.names
    return open_table(file).names


class Plan:
    """The features, ids and labels among the columns of a file.

    ids, label: the columns of ids and of labels, if the file has them.
    features: the feature columns in the order of X; empty until they are chosen.
    faults: errors in the options or names; the rest of the file is still read.
    """

    def __init__(self, header: Sequence[str], file: PartyFile) -> None:
        self._file, self._names = file, list(dict.fromkeys(header))
        self.features: list[str] = []
        self.faults = [
            fault("header", name, f"{file.who} has more than one column named {name!r}")
            for name, count in Counter(header).items()
            if count > 1
        ]
        ids, label = file.source.id_column, file.source.label_column
        if file.path.suffix.lower() == ".npz":  # its ids and its y need no option
            label = label or ("y" if "y" in header else None)
            ids = ids or ("ids" if "ids" in header else None)
        if ids is not None and ids == label:
            text = f"id-column and label-column of {file.who} are both {ids!r}"
            self._refuse(ids, text, "id-column")
            label = None
        if ids is not None and ids not in header:
            text = f"{file.who} has no column {ids!r} (its id-column)"
            self._refuse(ids, text + did_you_mean(ids, self._names), "id-column")
            ids = None
        self.ids, self.label = ids, label if label in header else None

    def _refuse(self, column: str | None, text: str, option: str) -> None:
        self.faults.append(fault("options", column, text, option))

    def add_features(self, encoding: Encoding | None) -> None:
        """Choose the features: by the options, or as in training."""
        who = self._file.who
        rest = [name for name in self._names if name not in (self.ids, self.label)]
        try:
            if encoding is None:
                self.features = choose(rest, self._file.source, self._elsewhere())
                self._check_named()
                return
            self.features, ignored = check_columns(rest, encoding, who)
            if ignored:
                logger.warning(
                    "%s: its local model was not trained on these columns, which are "
                    "ignored: %s",
                    who,
                    ", ".join(map(repr, ignored)),
                )
        except PartyError as error:
            self._refuse(None, str(error), "columns")
            self.features = rest if encoding is None else []

    def _elsewhere(self) -> set[str]:
        """Check the names in the options; return columns of the folder's other files.

        All parties of a folder share the options, so a column that the options name can
        be in the file of another party.
        """
        file, source, names = self._file, self._file.source, self._names
        label = source.label_column
        for name in source.levels if not file.folder else ():
            if name not in names:
                text = f"{file.who} has no column {name!r}, for which levels are set"
                self._refuse(name, text, "levels")
        elsewhere: set[str] = set()
        if not {label, *(source.columns or ())} <= {None, *names}:
            for path in file.folder:
                if path != file.path:
                    other = PartyFile.of(path, replace(source, name=None))
                    with other.reading():
                        elsewhere.update(header_of(other))
        if label not in {None, *names, *elsewhere} and not source.label_optional:
            where = "the data folder" if file.folder else file.who
            text = f"{where} has no column {label!r} (its label-column)"
            self._refuse(label, text + did_you_mean(str(label), names), "label-column")
        return elsewhere - set(names)

    def _check_named(self) -> None:
        for name in self.features:
            if name == "" or name.startswith("__index_level_"):
                raise PartyError(
                    f"{self._file.who} has a column without a name, such as a pandas "
                    "index: write the file without this column, or set columns to the "
                    "names of the columns to use"
                )

    @property
    def wanted(self) -> list[str]:
        """All columns that are read."""
        return [*self.features, *(n for n in (self.ids, self.label) if n is not None)]


class Survey:
    """A summary of a party file, computed from all rows without storing them.

    table, plan: the table, and the columns of features, ids and labels.
    columns: statistics of the features and the labels.
    labels, ids: the labels and ids of the file, if any; new rows may have no labels.
    encoding: the encoding of the features as numbers.
    faults: all faults, which must be fixed.
    rows, empty: number of rows, and of rows without a value in any feature.
    id_forms: the forms of the ids, for a check.

    If `rows_used` contains row numbers of the file, only these rows are read. Raises
    PartyError at once if the file cannot be read, or has no header or no rows.
    """

    def __init__(
        self,
        file: PartyFile,
        encoding: Encoding | None = None,
        checking: bool = False,
        rows_used: Array | None = None,
    ) -> None:
        source, fitted, self._checking = file.source, encoding is None, checking
        self.rows = self.empty = 0
        self.labels: Labels | None = None
        with file.reading():
            table = open_table(file)
            self.table = table if rows_used is None else _kept(table, rows_used)
            self.plan = Plan(table.names, file)
            self.plan.add_features(encoding)
            if not self.plan.wanted:
                refuse(self.plan.faults, file.who)
            ids = self.plan.ids
            self.ids = None if ids is None else Ids(ids, source.markers)
            self.id_forms = IdForms(self.ids) if self.ids and checking else None
            if encoding is None:  # a column whose levels are given holds text
                kinds = {n: ["text"] for n in source.levels if n != source.label_column}
            else:
                kinds = text_kinds(encoding)
            self.columns = survey(
                self.table,
                [name for name in self.plan.wanted if name != ids],
                source.markers,
                kinds,
                self._look,
                [] if ids is None else [ids],
                checking,
            )
            self.faults = [*self.plan.faults, *table.faults]
            if self.rows == 0:
                text = f"{file.what} has a header but no rows"
                refuse(self.faults or [fault("rows", None, text)], file.who)
            if encoding is None:
                encoding = self._fit(source)
            elif self.plan.features:
                self.faults += fit_new(self.columns, encoding, file.who)
            self.encoding = encoding
            if self.plan.label is not None:
                labels = Labels(self.columns[self.plan.label], encoding, fitted)
                self.faults += labels.faults(file.who)
                if fitted and labels.classes is not None:
                    encoding["classes"] = labels.classes
                elif fitted and self.plan.label in table.categories:
                    encoding["classes"] = None  # categories that are numbers
                self.labels = labels if fitted or not labels.empty else None
            if self.ids is not None:
                self.faults += self.ids.faults(file.who)

    def _look(self, batch: Any) -> None:
        self.rows += batch.num_rows
        features = self.plan.features
        if self._checking and len(features) > 1:
            self.empty += tables.empty_rows(batch.select(features)).true_count
        for reader in (self.ids, self.id_forms):
            if reader is not None:
                reader.add(batch.column(self.plan.ids))

    def _fit(self, source: PartySource) -> Encoding:
        middles: dict[str, float] = {}
        if source.impute == "median":
            chosen = [self.columns[name] for name in self.plan.features]
            chosen = [c for c in chosen if c.kind in (*NUMERIC, "date")]
            middles = medians(self.table, [c for c in chosen if c.numbers.known])
        features = self.plan.features
        encoding, faults = fit(self.columns, features, source, middles)
        self.faults += faults
        return encoding


def _kept(table: tables.Table, rows: Array) -> tables.Table:
    """Return a table with only some of the rows, in the order of the file."""
    places = np.sort(rows)

    def read(names: Sequence[str]) -> Iterator[Any]:
        at = 0
        for batch in table.read(names):
            first, last = np.searchsorted(places, [at, at + batch.num_rows])
            yield batch.take(places[first:last] - at)
            at += batch.num_rows

    return replace(table, read=read)


def convert(
    file: PartyFile,
    encoding: Encoding | None,
    entry: CacheEntry,
    order: RowOrder | None,
    ids: Sequence[str] | None,
) -> Converted:
    """Read a party file, check it, and convert it to one float64 matrix in the cache.

    With an `order`, X has only the rows of the order; `ids` are the ids of the file.
    """
    who, rows = file.who, None
    if order is not None:
        rows = order.rows(ids)
        text = "%s: using %d of its %d rows, as in alignment %r"
        logger.info(text, who, len(rows), len(ids or ()), order.name)
    survey = Survey(file, encoding, rows_used=rows)
    if survey.faults:
        logger.error("%s: %s", who, "; ".join(f.text for f in survey.faults))
    refuse(survey.faults, who)
    _log_done(survey, file, encoding is None)
    X, y = _stored(survey, file, entry, rows)
    _check_unchanged(file, entry)
    ordered = survey.ids if order is None else order
    digest = None if ordered is None else ordered.digest
    names = columns_of(survey.encoding)
    converted = Converted(X, y, names, digest, survey.encoding)
    if isinstance(X.base, np.memmap):
        try:
            entry.seal(converted)
        except OSError as error:
            _not_kept(file, entry, error)
    return converted


def _log_done(survey: Survey, file: PartyFile, fitted: bool) -> None:
    """Log the conversion of the file as a warning: warnings are shown by default."""
    done = [*survey.table.notes]
    for entry in survey.encoding["columns"]:
        done += done_with(survey.columns[entry["name"]], entry, file.source, fitted)
    if survey.labels is not None:
        done += survey.labels.notes()
    if done:
        logger.warning("%s: %s", file.who, "; ".join(finding.text for finding in done))


def _stored(
    survey: Survey, file: PartyFile, entry: CacheEntry, rows: Array | None
) -> tuple[Array, Array | None]:
    """Return X and y, mapped from the cache, or in memory if it cannot be written."""
    n, d = survey.rows, len(columns_of(survey.encoding))
    shapes: dict[str, Shape] = {".X.npy": ("<f8", (n, d))}
    if survey.labels is not None:
        shapes[".y.npy"] = ("<f8", (n,))
    ids = survey.ids.shapes if survey.ids is not None and rows is None else {}
    # Written first in the order of the file, and then in the given order.
    places = None if rows is None else np.argsort(np.argsort(rows))
    with file.reading():
        try:
            with entry.open(shapes | ids) as files:
                _write(survey, file, files)
            arrays = entry.map(shapes)
            if places is not None:
                with entry.open(shapes) as files:
                    for array, stored in zip(arrays, files, strict=True):
                        for start in range(0, n, TAKEN):
                            stored.write(array[places[start : start + TAKEN]].data)
                arrays = entry.map(shapes)
        except OSError as error:
            _not_kept(file, entry, error)
            buffers = [io.BytesIO() for _ in shapes]
            _write(survey, file, buffers)
            arrays = [
                np.frombuffer(buffer.getbuffer()).reshape(shape)
                for buffer, (_, shape) in zip(buffers, shapes.values(), strict=True)
            ]
            if places is not None:
                arrays = [array[places] for array in arrays]
    return arrays[0], arrays[1] if len(arrays) > 1 else None


def _write(survey: Survey, file: PartyFile, files: Sequence[Any]) -> None:
    """Write X, the labels if any, and the ids if there are files for them."""
    plan, labels, rows = survey.plan, survey.labels, 0
    id_files = files[1 + (labels is not None) :]
    writer = IdWriter(survey.ids, id_files) if survey.ids and id_files else None
    for batch in survey.table.read(plan.wanted):
        block = dict(zip(plan.wanted, batch.columns, strict=True))
        rows += batch.num_rows
        X = encode(block, survey.columns, survey.encoding, file.who)
        files[0].write(X)
        if labels is not None:
            files[1].write(labels.numbers(block[labels.column.name]))
        if writer is not None:
            writer.write(block[writer.ids.name])
    if rows != survey.rows or (writer is not None and writer.end != writer.ids.bytes):
        raise file.changed()


def convert_ids(file: PartyFile, entry: CacheEntry) -> Sequence[str] | None:
    """Return the ids in file order, using the cache; None if there is no id column."""
    with file.reading():
        table = open_table(file)
        plan = Plan(table.names, file)
        refuse(plan.faults, file.who)
        if plan.ids is None:
            return None
        ids = Ids(plan.ids, file.source.markers)
        for batch in table.read([plan.ids]):
            ids.add(batch.column(0))
        refuse([*table.faults, *ids.faults(file.who)], file.who)
        try:
            with entry.open(ids.shapes) as files:
                writer = IdWriter(ids, files)
                for batch in table.read([plan.ids]):
                    writer.write(batch.column(0))
        except OSError:
            batches = table.read([plan.ids])
            return [t for b in batches for t in ids.texts(b.column(0)).to_pylist()]
    _check_unchanged(file, entry)
    return entry.load_ids()


def _not_kept(file: PartyFile, entry: CacheEntry, error: OSError) -> None:
    text = "%s: no cache at %s (%s), so every message converts the file again"
    logger.warning(text, file.who, entry.folder, error.strerror)


def _check_unchanged(file: PartyFile, entry: CacheEntry) -> None:
    """If the file has changed, remove its cache entry and raise PartyError."""
    try:
        file.check_unchanged(entry.stamp)
    except PartyError:
        entry.remove()
        raise


def choose(
    names: Sequence[str], source: PartySource, elsewhere: Collection[str] = ()
) -> list[str]:
    """Return the feature columns, in the order of the option ``columns`` if set."""
    who, wanted = source.who, source.columns
    if wanted is None:
        features = list(names)
    else:
        for name in wanted:
            if name not in names and name not in elsewhere:
                raise PartyError(
                    f"columns of {who} must be columns of its data other than the ids "
                    f"and labels, got {name!r}"
                )
        if len(set(wanted)) != len(wanted):
            raise PartyError(f"columns of {who} must be distinct")
        features = [name for name in wanted if name in names]
    if not features:
        raise PartyError(f"{who} has no feature column")
    return features
