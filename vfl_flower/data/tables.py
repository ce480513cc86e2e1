"""The readers: a file, files or a query as named columns, batch by batch of rows.

A :class:`Table` can be read several times and never holds more than a few batches.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import gzip
import io
import mmap
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from vfl_flower.data.arrow_ipc import batches_of, give_back, map_arrow, schema_of
from vfl_flower.data.kinds import is_number, is_text, without_markers
from vfl_flower.data.source import QUERY, PartySource
from vfl_flower.files import check_growth, map_npz
from vfl_flower.protocol.party import PartyError
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

TEXTS = {".csv": "", ".tsv": "\t"}
"""Endings of delimited text, and the delimiter that they fix."""

PACKED = (".gz", ".zip")
"""Endings of compressed text; a zip file has one member."""

FORMATS = (
    *(".arrow", ".csv", ".feather", *PACKED),
    *(".npz", ".parquet", ".tsv"),
)
"""Endings of party files."""

MISSING = ("NA", "N/A", "#N/A", "NaN", "-NaN", "null", "None", "?", "-", ".")
"""Texts that stand for a missing value in upper, lower or this case; also no text."""

CSV_BLOCK = 2**20
"""Bytes of a CSV parsed at a time, and the most that one row may have."""

BATCH = 2**14
"""Rows of a batch, where the format leaves the choice."""

SAMPLE = 2**16
"""Characters from which the delimiter and the header of a CSV are inferred."""

BATCH_VALUES = 2**20
"""Values of a batch, which has fewer rows where there are many columns."""

FIRST_LINES = 16
"""Lines of a CSV from which the delimiter and the header are inferred, at least."""

MOST_OF_COLUMN = 255
"""Most characters in the name of a column."""

MOST_COLUMNS = 2**20
"""Most columns of a file that has no need to name them."""

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What may separate the fields of a row, in words."""


@shapes_only
@dataclass
class Table:
    """Columns by name, whose rows can be read again and again."""

    names: list[str]
    """The columns."""
    read: Callable[[Sequence[str]], Iterator[Any]]
    """From some of the names to an iterator over record batches of these columns."""
    notes: list[str] = field(default_factory=list)
    """What was inferred from the file itself, in words."""
    faults: list[str] = field(default_factory=list)
    """What is wrong with its rows or its header; complete once all rows were read."""
    comma_is_decimal: bool = False
    """Whether a comma within a number can only be a decimal comma."""
    categories: Collection[str] = ()
    """Columns that the file calls categories."""


@dataclass(frozen=True)
class Layout:
    """How a CSV is written: its encoding, delimiter, and names of its columns."""

    encoding: str
    delimiter: str
    names: list[str]
    skip: int  # records before the first row
    headerless: bool
    empty: bool


def batch_rows(columns: int) -> int:
    """Return the rows of a batch of so many columns."""
    return max(64, min(BATCH, BATCH_VALUES // max(columns, 1)))


def name_of(path: Path) -> str:
    """Return the name of a file without its endings: ``a`` for ``a.csv.gz``."""
    plain = Path(path.stem) if path.suffix.lower() in PACKED else path
    name = plain.stem if plain.suffix.lower() in FORMATS else plain.name
    return name.strip("*") or path.parent.name


def files_of(path: Path) -> list[Path]:
    """Return the files of a path: one, a pattern's, or a folder's of Parquet."""
    if "*" in path.name:
        return sorted(path.parent.glob(path.name))
    if path.suffix.lower() == ".parquet" and path.is_dir():
        return sorted(path.glob("*.parquet"))
    return [path]


def markers_of(source: PartySource) -> frozenset[str]:
    """Return the texts that stand for a missing value."""
    if source.missing is not None:
        return frozenset({"", *source.missing})
    return frozenset(
        {"", *(f(text) for text in MISSING for f in (str, str.upper, str.lower))}
    )


def open_table(path: Path, source: PartySource, who: str) -> Table:
    """Return the columns of a file, files or a query; no row is read yet."""
    if source.data.startswith(QUERY):
        return _query(source.data[len(QUERY) :], who)
    files = files_of(path)
    match ending(files[0]):
        case ".parquet":
            return _parquet(files, who)
        case ".arrow" | ".feather":
            return _arrow(files[0])
        case ".npz":
            return _npz(files[0], source, who)
    return _csv(files[0], source, who)


def ending(path: Path) -> str:
    """Return the ending that tells the format: ``.csv`` for ``a.csv.gz``."""
    last = path.suffix.lower()
    if last not in PACKED:
        return last
    inner = path.stem
    if last == ".zip":
        with zipfile.ZipFile(path) as archive:
            inner = _member(archive).filename
    inner = Path(inner).suffix.lower()
    return inner if inner in TEXTS else ".csv"


# -- text ------------------------------------------------------------------------------


class _Counted(io.RawIOBase):
    """A compressed stream, which is read as far as its size on the disk allows."""

    def __init__(self, inner: IO[bytes], size: int) -> None:
        self._inner, self._size, self._read = inner, size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        self._read += len(data)
        check_growth(self._read, self._size)
        buffer[: len(data)] = data
        return len(data)


def _member(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    entries = [
        entry
        for entry in archive.infolist()
        if not entry.is_dir() and not entry.filename.startswith("__MACOSX/")
    ]
    if len(entries) != 1:
        raise PartyError(
            f"a zip file must have one file in it, got {len(entries)}: unpack it"
        )
    return entries[0]


@contextlib.contextmanager
def _bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of text, compressed or not."""
    size = path.stat().st_size
    match path.suffix.lower():
        case ".gz":
            with gzip.open(path) as inner:
                yield io.BufferedReader(_Counted(cast(IO[bytes], inner), size), 2**16)
        case ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(_member(archive)) as f:
                yield io.BufferedReader(_Counted(f, size), 2**16)
        case _:
            with path.open("rb") as file:
                yield file


@contextlib.contextmanager
def _utf8(path: Path, encoding: str) -> Iterator[str]:
    """Give the path of a text in UTF-8, for pyarrow, which unpacks ``.gz`` itself.

    It would read a Python file on a thread of its own, and a process that ends while
    that thread calls into Python aborts (apache/arrow#34314).
    """
    if encoding == "utf-8-sig" and path.suffix.lower() != ".zip":
        yield str(path)
        return
    with (
        tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as plain,
        _bytes(path) as file,
        io.TextIOWrapper(file, encoding, newline="") as text,
    ):
        shutil.copyfileobj(text, plain, CSV_BLOCK)
        plain.flush()
        yield plain.name


def _encoding(path: Path) -> str:
    """Return the encoding: by its mark, UTF-8 where it is that, else a code page.

    This is Windows-1252, or Latin-1 where a byte has no sign there.
    """
    with _bytes(path) as file:
        start = file.read(SAMPLE)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        zeros = [start[place::2].count(0) for place in (0, 1)]
        if max(zeros) > len(start) // 4 and not min(zeros):
            return "utf-16-be" if zeros[0] else "utf-16-le"
    for encoding in ("utf-8-sig", "cp1252"):
        with _bytes(path) as file, contextlib.suppress(UnicodeDecodeError):
            blocks = iter(functools.partial(file.read, 2**20), b"")
            if any("\0" in text for text in codecs.iterdecode(blocks, encoding)):
                raise ValueError("it is no text")
            return encoding
    return "latin-1"


def layout_of(path: Path, source: PartySource) -> Layout:
    """Return how a CSV is written, from its first lines; its encoding from all."""
    encoding = source.text_encoding or _encoding(path)
    lines: list[str] = []
    size, complete = 0, False
    with (
        _bytes(path) as file,
        io.TextIOWrapper(file, encoding, "replace", newline="") as text,
    ):
        for line in iter(functools.partial(text.readline, CSV_BLOCK), ""):
            lines.append(line)
            size += len(line)
            if size >= (SAMPLE if len(lines) >= FIRST_LINES else 2 * CSV_BLOCK):
                break
        else:
            complete = True
    fixed = TEXTS.get(ending(path), "")
    delimiter = source.delimiter or fixed or _sniff(lines)
    records = list(csv.reader(lines, delimiter=delimiter))
    skip = next((k for k, record in enumerate(records) if record), len(records))
    rows = [record for record in records[skip:] if record]
    names = [name.strip() for name in rows[0]] if rows else []
    headerless = source.header and _headerless(rows, markers_of(source))
    if not source.header:
        names, skip = [f"x{j}" for j in range(len(names))], skip - 1
    empty = complete and len(rows) <= source.header
    return Layout(encoding, delimiter, names, skip + 1, headerless, empty)


def _sniff(lines: Sequence[str]) -> str:
    """Return the delimiter that gives most rows one number of fields above 1."""

    def score(delimiter: str) -> tuple[float, int]:
        with contextlib.suppress(csv.Error):
            records = csv.reader(lines, delimiter=delimiter)
            widths = [len(record) for record in records if record][:200]
            if widths and widths[0] > 1:
                # A title or a broken row does not change what separates the others.
                return round(widths.count(widths[0]) / len(widths), 1), widths[0]
        return 0.0, 0

    return max(DELIMITERS, key=score)


_VALUE = re.compile(
    r"\s*[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*|\s*\d{4}-\d\d-\d\d([T ].*)?"
    r"|\s*\d{1,2}[./]\d{1,2}[./](\d{2}|\d{4}).*"
)


def _headerless(rows: Sequence[Sequence[str]], markers: frozenset[str]) -> bool:
    """Return whether the first record looks like the others, so that it is a row.

    Numbers may be names where they are years, or count as those of pandas do.
    """
    if not rows:
        return False
    values = [cell for cell in rows[0] if _VALUE.fullmatch(cell)]
    named = [cell for cell in rows[0] if cell]
    if named == [str(j) for j in range(len(named))]:  # a matrix, or it has an index
        return len(named) < 3 and rows[0][0] != ""
    seen = [set(column) for column in zip(*rows[1:], strict=False)]
    below = [*seen, *[set()] * len(rows[0])]
    pairs = list(zip(rows[0], below, strict=False))
    if not values:  # texts that stand below as well, but no header that does
        again = sum(cell != "" and cell in under for cell, under in pairs)
        return 0 < len(named) <= 2 * again and rows[0] not in rows[1:]
    if all(
        _VALUE.fullmatch(cell) or cell in markers or cell in under
        for cell, under in pairs
    ):
        return True
    if not all(re.fullmatch(r"\d+", cell) for cell in values):
        return True  # a fraction, a negative number or a date is no name
    numbers = [int(cell) for cell in values]
    under = [value for cell, column in pairs if cell in values for value in column]
    years = _are_years(values) and not _are_years(under)
    counted = numbers == [numbers[0] + j for j in range(len(numbers))]
    alone = len(numbers) == 1 and values[0] in under  # 0 or 1 in a column of these
    return not (years or (counted and numbers[0] in (0, 1) and not alone))


def _are_years(cells: Sequence[str]) -> bool:
    return all(cell.isdecimal() and 1900 <= int(cell) <= 2100 for cell in cells)


def _csv(path: Path, source: PartySource, who: str) -> Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pacsv

    layout = layout_of(path, source)
    if layout.empty:
        raise PartyError(
            f"the data file of {who} "
            + ("has a header and no rows" if layout.names else "is empty")
        )
    _check_names(layout.names, who)
    if layout.headerless:
        # Nothing else is said, since each name of a column would be a value.
        raise PartyError(
            f"the data file of {who} has no header: its first line holds values; add "
            "the names of the columns, or set header=false"
        )
    places = [str(j) for j in range(len(layout.names))]
    table = Table(layout.names, lambda wanted: iter(()))
    lines, blank = _lines(path, layout)
    ragged = 0

    def skip(row: Any) -> str:
        nonlocal ragged
        ragged += 1
        return "skip"

    def read(wanted: Sequence[str]) -> Iterator[Any]:
        nonlocal ragged
        ragged = rows = 0
        chosen = [str(layout.names.index(name)) for name in wanted]
        with (
            _utf8(path, layout.encoding) as plain,
            pacsv.open_csv(
                plain,
                pacsv.ReadOptions(
                    use_threads=False,
                    block_size=CSV_BLOCK,
                    column_names=places,
                    skip_rows_after_names=layout.skip,
                ),
                pacsv.ParseOptions(
                    delimiter=layout.delimiter,
                    newlines_in_values=True,
                    # In a file of one column an empty line is a missing value.
                    ignore_empty_lines=len(places) > 1,
                    invalid_row_handler=skip,
                ),
                pacsv.ConvertOptions(
                    include_columns=places if blank else chosen,
                    column_types=dict.fromkeys(places, pa.string()),
                    strings_can_be_null=True,
                    null_values=sorted(markers_of(source)),
                ),
            ) as reader,
        ):
            for batch in reader:
                rows += batch.num_rows
                if blank:
                    batch = batch.filter(pc.invert(empty_rows(batch))).select(chosen)
                yield batch.rename_columns(list(wanted))
        table.faults[:] = [
            f"{ragged} rows of {who} have not as many fields as the first line, "
            f"{len(places)}: fix the rows, take out a title, or set delimiter"
        ] * (ragged > 0)
        if lines > rows + ragged + layout.skip and (at := _swallowing(path, layout)):
            table.faults.append(
                f"line {at} of the data file of {who} has a quote that takes the lines "
                "after it into its text: write a quote within a text twice"
            )

    table.read = read
    if blank:
        table.notes.append(f"{blank} empty rows, of delimiters alone, are left out")
    if layout.delimiter != ",":
        named = DELIMITERS.get(layout.delimiter, repr(layout.delimiter))
        table.notes.append(f"fields are separated by {named}")
        table.comma_is_decimal = True
    if layout.encoding != "utf-8-sig":
        inferred = not source.text_encoding and not layout.encoding.startswith("utf")
        reason = ", as it is not UTF-8" if inferred else ""
        table.notes.append(f"the encoding is {layout.encoding}{reason}")
    if path.suffix.lower() in PACKED:
        table.notes.append(f"the file is unpacked on reading ({path.suffix.lower()})")
    if not source.header:
        table.notes.append(f"without a header its columns are x0 to x{len(places) - 1}")
    return table


def empty_rows(batch: Any) -> Any:
    """Return which rows of a batch have no value in any column."""
    import pyarrow.compute as pc

    columns = [without_markers(column, frozenset({""})) for column in batch.columns]
    empty = [pc.is_null(column, nan_is_null=True) for column in columns]
    return functools.reduce(pc.and_, empty)


def _lines(path: Path, layout: Layout) -> tuple[int, int]:
    """Return how many lines of a CSV have text, and how many delimiters alone."""
    between = layout.delimiter.encode()
    ends = b'\0\r\n "' + between
    lines = blank = 0
    with _bytes(path) as file:
        for line in file:
            if line[0] not in ends or line.strip(ends):  # a value, most often at once
                lines += 1
            elif between in line:
                lines, blank = lines + 1, blank + 1
    return lines, blank * (len(layout.names) > 1)


def _swallowing(path: Path, layout: Layout) -> int:
    """Return the line of the first record with whole records in a text of it, or 0."""
    held: list[str] = []

    def lines(file: IO[bytes]) -> Iterator[str]:
        for line in codecs.getreader(layout.encoding)(file, "replace"):
            held.append(line)
            yield line

    with _bytes(path) as file:
        reader = csv.reader(lines(file), delimiter=layout.delimiter)
        for _ in reader:
            width = len(layout.names) - 1
            if any(line.count(layout.delimiter) == width for line in held[1:]):
                return reader.line_num - len(held) + 1
            held.clear()
    return 0


def _check_names(names: Sequence[str], who: str) -> None:
    """Refuse a first line that cannot be names, without a word of it."""
    what = f"the first line of the data file of {who}"
    if names[0].startswith(("<!", "<?", "<html", "<table", '{"', '[{"')):
        raise PartyError(f"the data file of {who} is HTML, XML or JSON, not CSV")
    if names.count("") > 1:
        raise PartyError(
            f"{what} lacks {names.count('')} of its {len(names)} names: take out "
            "titles above the names, and delimiters at the ends of lines"
        )
    if max(map(len, names)) > MOST_OF_COLUMN:
        raise PartyError(
            f"{what} has a name of more than {MOST_OF_COLUMN} characters: does a quote "
            "lack its second one?"
        )


# -- files with types ------------------------------------------------------------------


def _parquet(files: Sequence[Path], who: str) -> Table:
    """Return Parquet files, after a look at their rows and lengths of their texts."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(files[0])
    types = list(schema.types)
    for path in files[1:]:
        file_schema = pyarrow.parquet.read_schema(path)
        if file_schema.names != schema.names:
            raise PartyError(
                f"the Parquet files of {who} must have the same columns in one order"
            )
        for k, (old, new) in enumerate(zip(types, file_schema.types, strict=True)):
            if pa.types.is_null(old):  # it has no value, and so it fits to any other
                types[k] = new
            elif not (pa.types.is_null(new) or _alike(old, new)):
                raise PartyError(
                    f"column {schema.names[k]!r} of {who} has another type in one of "
                    "its Parquet files than in those before"
                )
    type_of = dict(zip(schema.names, types, strict=True))

    def read(wanted: Sequence[str]) -> Iterator[Any]:
        for path in files:
            # Not read_table: it adds columns for a folder that is called "year=2013".
            with pyarrow.parquet.ParquetFile(path) as file:
                about, size = file.metadata, path.stat().st_size
                check_growth(8 * about.num_rows * len(wanted), size)
                stored = [file.schema_arrow.field(name).type for name in wanted]
                pairs = list(zip(wanted, stored, strict=True))
                texts = [name for name, kind in pairs if pa.types.is_string(kind)]
                if about.num_columns == len(schema.names):  # none is nested
                    texts = [t for t in texts if _sized(about, schema.names.index(t))]
            kinds = [type_of[n] if pa.types.is_null(t) else t for n, t in pairs]
            typed = pa.schema(list(zip(wanted, kinds, strict=True)))
            unpacked = 0
            with pyarrow.parquet.ParquetFile(
                path, read_dictionary=texts, pre_buffer=False, buffer_size=2**18
            ) as file:
                for batch in file.iter_batches(
                    batch_rows(len(wanted)), columns=list(wanted), use_threads=False
                ):
                    for part in map(batch.column, texts):
                        if pa.types.is_dictionary(part.type):
                            lengths = pc.binary_length(part.dictionary)
                            unpacked += pc.sum(lengths.take(part.indices)).as_py() or 0
                    check_growth(unpacked, size)
                    yield batch.select(list(wanted)).cast(typed)

    return Table(schema.names, read, categories=_categories(schema))


def _categories(schema: Any) -> set[str]:
    """Return the columns that are categories by their type, or for pandas."""
    import pyarrow as pa

    about = (schema.pandas_metadata or {}).get("columns", ())
    return {
        *(c["field_name"] for c in about if c["pandas_type"] == "categorical"),
        *(field.name for field in schema if pa.types.is_dictionary(field.type)),
    }


def _alike(first: Any, second: Any) -> bool:
    """Return whether columns of two types hold the same, numbers of any type."""
    from pyarrow import types

    tests = is_number, is_text, types.is_timestamp
    return first == second or any(test(first) and test(second) for test in tests)


def _sized(metadata: Any, column: int) -> bool:
    """Return whether to size the texts of a column, as a dictionary, as it is read.

    Not where they are so many that the dictionary would hold all of them in memory.
    """
    chunks = (
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
    )
    return all(c.total_uncompressed_size < max(2**22, 8 * c.num_values) for c in chunks)


def _arrow(path: Path) -> Table:
    """Return an Arrow IPC file (Feather version 2) or stream, mapped into memory."""
    maps: list[mmap.mmap] = []

    def read(wanted: Sequence[str]) -> Iterator[Any]:
        if not maps:  # not before the first row is wanted: it may be unpacked
            maps.extend(map_arrow(path))
        step = batch_rows(len(wanted))
        for batch in batches_of(maps):
            chosen = batch.select(list(wanted))
            for start in range(0, batch.num_rows, step):
                part = chosen.slice(start, step)
                part.validate(full=True)  # a damaged place of a text ends a process
                yield part
                if start % (4 * step) == 0:
                    give_back(*maps)

    schema = schema_of(path)
    return Table(schema.names, read, categories=_categories(schema))


def _npz(path: Path, source: PartySource, who: str) -> Table:
    """Return the columns of X, y and ids, mapped into memory."""
    import pyarrow as pa

    arrays, maps = _npz_arrays(path, source, who)

    def read(wanted: Sequence[str]) -> Iterator[Any]:
        rows = len(next(iter(arrays.values())))
        step = batch_rows(len(wanted))
        for start in range(0, rows, step):
            yield pa.RecordBatch.from_pydict(
                {name: pa.array(arrays[name][start : start + step]) for name in wanted}
            )
            if start % (4 * step) == 0:
                give_back(*maps)

    return Table(list(arrays), read)


def _npz_arrays(
    path: Path, source: PartySource, who: str
) -> tuple[dict[str, Array], list[mmap.mmap]]:
    with path.open("rb") as raw:
        file, maps = map_npz(raw, ("X", "y", "ids", "columns"))
    file = {key: _native(array) for key, array in file.items()}
    X = file["X"]
    if X.ndim != 2 or X.dtype.kind not in "biuf" or X.shape[1] > MOST_COLUMNS:
        raise PartyError(
            f"X in the data file of {who} must be a matrix of real numbers with at "
            f"most {MOST_COLUMNS} columns, got shape {X.shape} and dtype {X.dtype}"
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
    # Each array has the name that the options use.
    options = {"y": source.label_column or "y", "ids": source.id_column or "ids"}
    for key, name in options.items():
        if key not in file:
            continue
        if name in arrays:
            raise PartyError(
                f"the data file of {who} has an array {key} and a column {name!r} of X"
            )
        arrays[name] = file[key]
        if arrays[name].shape != (len(X),):
            raise PartyError(
                f"{key} in the data file of {who} must have one value for each of "
                f"the {len(X)} rows of X, got shape {arrays[name].shape}"
            )
    return arrays, maps


def _native(array: Array) -> Array:
    """Return an array as this machine writes it, in a type that Arrow has."""
    kind = array.dtype.newbyteorder("=")
    if kind.kind == "f" and kind.itemsize not in (4, 8):
        kind = np.dtype(np.float64)
    return array.astype(kind, copy=False)


def _query(sql: str, who: str) -> Table:
    """Return the result of a query by DuckDB, which runs anew for each reading."""
    try:
        import duckdb  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise PartyError(
            f"data of {who} is a query and needs DuckDB: pip install duckdb"
        ) from None

    inner = sql.strip().rstrip(";")

    def run(rest: str) -> Any:
        connection = duckdb.connect(config={"threads": 1, "memory_limit": "128MB"})
        # Within another query it can only be one that selects.
        relation = connection.sql(f"SELECT * FROM ({inner}\n) {rest}")
        if hasattr(relation, "to_arrow_reader"):
            return relation.to_arrow_reader(BATCH)
        return relation.fetch_arrow_reader(BATCH)  # before DuckDB 1.5

    def read(wanted: Sequence[str]) -> Iterator[Any]:
        for batch in run(""):
            yield batch.select(list(wanted))

    return Table(list(run("LIMIT 0").schema.names), read)
