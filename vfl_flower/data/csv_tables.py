"""Delimited text, compressed or not: its layout and its rows."""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import gzip
import io
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from vfl_flower.data.files import CSV_BLOCK, PACKED, TEXTS, ending, member_of
from vfl_flower.data.findings import Finding, fault, note, warning
from vfl_flower.data.source import PartySource
from vfl_flower.data.tables import Table, empty_rows
from vfl_flower.files import check_growth
from vfl_flower.party.party import PartyError
from vfl_flower.shapes import shapes_only

SAMPLE = 2**16
"""Number of characters from which the delimiter and header of a CSV are inferred."""

FIRST_LINES = 16
"""Minimum number of lines from which a CSV's delimiter and header are inferred."""

MOST_OF_COLUMN = 255
"""Maximum number of characters in a column name."""

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""Possible field separators, with their names."""


@dataclass(frozen=True)
class Layout:
    """The layout of a CSV: its encoding, delimiter and column names."""

    encoding: str
    delimiter: str
    names: list[str]
    skip: int  # records before the first row
    headerless: bool
    empty: bool


class _Counted(io.RawIOBase):
    """A compressed stream, read up to a limit that depends on its size on disk."""

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


@contextlib.contextmanager
def _bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a text file, compressed or not."""
    suffix = path.suffix.lower()
    with contextlib.ExitStack() as stack:
        if suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            file = archive.open(member_of(archive))
        else:
            file = cast(IO[bytes], (gzip.open if suffix == ".gz" else open)(path, "rb"))
        stack.enter_context(file)
        if suffix in PACKED:
            counted = _Counted(file, path.stat().st_size)
            file = cast(IO[bytes], io.BufferedReader(counted, 2**16))
        yield file


@contextlib.contextmanager
def _utf8(path: Path, encoding: str) -> Iterator[str]:
    """Yield the path of a UTF-8 text file for pyarrow, which unpacks ``.gz`` itself.

    pyarrow would read a Python file object in a separate thread, and a process that
    ends while that thread calls into Python aborts (apache/arrow#34314).
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
    """Return the byte order mark's encoding, else UTF-8 if valid, else a code page.

    The code page is Windows-1252, or Latin-1 if a byte is undefined in Windows-1252.
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
                raise ValueError("the file is not text")
            return encoding
    return "latin-1"


def layout_of(path: Path, source: PartySource) -> Layout:
    """Infer a CSV's layout from its first lines, and its encoding from all lines."""
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
    headerless = source.header and _headerless(rows, source.markers)
    if not source.header:
        names, skip = [f"x{j}" for j in range(len(names))], skip - 1
    empty = complete and len(rows) <= source.header
    return Layout(encoding, delimiter, names, skip + 1, headerless, empty)


def _sniff(lines: Sequence[str]) -> str:
    """Return the delimiter that gives most rows as many fields (>1) as the first."""

    def score(delimiter: str) -> tuple[float, int]:
        with contextlib.suppress(csv.Error):
            records = csv.reader(lines, delimiter=delimiter)
            widths = [len(record) for record in records if record][:200]
            if widths and widths[0] > 1:
                # A title or a broken row must not change the choice for other rows.
                return round(widths.count(widths[0]) / len(widths), 1), widths[0]
        return 0.0, 0

    return max(DELIMITERS, key=score)


_VALUE = re.compile(
    r"\s*[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*|\s*\d{4}-\d\d-\d\d([T ].*)?"
    r"|\s*\d{1,2}[./]\d{1,2}[./](\d{2}|\d{4}).*"
)


def _headerless(rows: Sequence[Sequence[str]], markers: frozenset[str]) -> bool:
    """Return whether the first record looks like the other rows, not like a header.

    Numbers can be names if they are years, or if they are consecutive like the default
    names in pandas.
    """
    if not rows:
        return False
    values = [cell for cell in rows[0] if _VALUE.fullmatch(cell)]
    named = [cell for cell in rows[0] if cell]
    if named == [str(j) for j in range(len(named))]:  # a matrix, perhaps with an index
        return len(named) < 3 and rows[0][0] != ""
    seen = [set(column) for column in zip(*rows[1:], strict=False)]
    below = [*seen, *[set()] * len(rows[0])]
    pairs = list(zip(rows[0], below, strict=False))
    if not values:  # strings that recur below, unless the whole line recurs
        again = sum(cell != "" and cell in under for cell, under in pairs)
        return 0 < len(named) <= 2 * again and rows[0] not in rows[1:]
    if all(
        _VALUE.fullmatch(cell) or cell in markers or cell in under
        for cell, under in pairs
    ):
        return True
    if not all(re.fullmatch(r"\d+", cell) for cell in values):
        return True  # a fraction, a negative number or a date is not a name
    numbers = [int(cell) for cell in values]
    under = [value for cell, column in pairs if cell in values for value in column]
    years = _are_years(values) and not _are_years(under)
    counted = numbers == [numbers[0] + j for j in range(len(numbers))]
    alone = len(numbers) == 1 and values[0] in under  # 0 or 1 in a 0/1 column
    return not (years or (counted and numbers[0] in (0, 1) and not alone))


def _are_years(cells: Sequence[str]) -> bool:
    return all(cell.isdecimal() and 1900 <= int(cell) <= 2100 for cell in cells)


def csv_table(path: Path, source: PartySource) -> Table:
    """Return the columns of a CSV; raise PartyError unless it has names and rows."""
    layout, what = layout_of(path, source), f"the data file of {source.who}"
    if layout.empty:
        rule = "has a header but no rows" if layout.names else "is empty"
        raise PartyError(f"{what} {rule}")
    _check_names(layout.names, what)
    if layout.headerless:
        # Nothing else is reported, since each column name would be a value.
        raise PartyError(
            f"{what} has no header (its first line contains values): add the names of "
            "the columns, or set header=false"
        )
    rows = _Rows(path, source, layout, *_lines(path, layout))
    notes = []

    def add_note(about: str, text: str) -> None:
        notes.append(note(about, None, text, about))

    if rows.blank:
        text = f"{rows.blank} rows contain only delimiters and are left out: remove "
        notes.append(fault("", None, f"{text}them"))
    if layout.delimiter != ",":
        named = DELIMITERS.get(layout.delimiter, repr(layout.delimiter))
        add_note("delimiter", f"fields are separated by {named}")
    if layout.encoding != "utf-8-sig":
        text = f"the encoding is {layout.encoding}"
        if source.text_encoding or layout.encoding.startswith("utf"):
            add_note("encoding", text)
        else:
            text += ", since the file is not UTF-8: if this is wrong, set encoding"
            notes.append(warning("encoding", None, text, "encoding"))
    if path.suffix.lower() in PACKED:
        add_note("delimiter", f"the file is unpacked when read ({path.suffix.lower()})")
    if not source.header:
        text = "since there is no header, the columns are named "
        text += f"{layout.names[0]} to {layout.names[-1]}"
        add_note("header", text)
    decimal = layout.delimiter != ","
    return Table(layout.names, rows.read, notes, rows.faults, comma_is_decimal=decimal)


@shapes_only
@dataclass
class _Rows:
    """The rows of a CSV, and their faults once all rows have been read."""

    path: Path
    source: PartySource
    layout: Layout
    lines: int
    """Number of lines of the file that are not blank."""
    blank: int
    """Number of rows with delimiters only, which are left out."""
    faults: list[Finding] = field(default_factory=list)

    def read(self, wanted: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of some of the columns."""
        names = self.layout.names
        places = [str(j) for j in range(len(names))]
        chosen = [str(names.index(name)) for name in wanted]
        rows = ragged = 0

        def skip(row: Any) -> str:
            nonlocal ragged
            ragged += 1
            return "skip"

        with (
            _utf8(self.path, self.layout.encoding) as plain,
            pacsv.open_csv(
                plain,
                pacsv.ReadOptions(
                    use_threads=False,
                    block_size=CSV_BLOCK,
                    column_names=places,
                    skip_rows_after_names=self.layout.skip,
                ),
                pacsv.ParseOptions(
                    delimiter=self.layout.delimiter,
                    newlines_in_values=True,
                    # In a file of one column an empty line is a missing value.
                    ignore_empty_lines=len(places) > 1,
                    invalid_row_handler=skip,
                ),
                pacsv.ConvertOptions(
                    include_columns=places if self.blank else chosen,
                    column_types=dict.fromkeys(places, pa.string()),
                    strings_can_be_null=True,
                    null_values=sorted(self.source.markers),
                ),
            ) as reader,
        ):
            for batch in reader:
                rows += batch.num_rows
                if self.blank:
                    batch = batch.filter(pc.invert(empty_rows(batch))).select(chosen)
                yield batch.rename_columns(list(wanted))
        texts = self._faults(rows, ragged)
        self.faults[:] = [fault("rows", None, text, "delimiter") for text in texts]

    def _faults(self, rows: int, ragged: int) -> Iterator[str]:
        if ragged:
            yield (
                f"{ragged} rows of {self.source.who} do not have as many fields as the "
                f"first line ({len(self.layout.names)}): fix the rows, remove a title "
                "above the header, or set delimiter"
            )
        surplus = self.lines > rows + ragged + self.layout.skip
        if surplus and (line := self._swallowing()):
            yield (
                f"line {line} of the data file of {self.source.who} has a quote that "
                "makes the next lines part of the same field: double each quote within "
                "a field"
            )

    def _swallowing(self) -> int:
        """Return the line of the first record that contains other records, or 0."""
        held: list[str] = []

        def lines(file: IO[bytes]) -> Iterator[str]:
            for line in codecs.getreader(self.layout.encoding)(file, "replace"):
                held.append(line)
                yield line

        with _bytes(self.path) as file:
            reader = csv.reader(lines(file), delimiter=self.layout.delimiter)
            width = len(self.layout.names) - 1
            for _ in reader:
                # Of a field's last line, only the part before its closing quote counts.
                texts = (line.partition('"')[0] for line in held[1:])
                if any(text.count(self.layout.delimiter) == width for text in texts):
                    return reader.line_num - len(held) + 1
                held.clear()
        return 0


def _lines(path: Path, layout: Layout) -> tuple[int, int]:
    """Return the numbers of nonblank lines and of delimiter-only rows in a CSV."""
    between = layout.delimiter.encode()
    ends = b'\0\r\n "' + between
    lines = blank = 0
    with _bytes(path) as file:
        for line in file:
            if line[0] not in ends or line.strip(ends):  # byte 0 usually decides
                lines += 1
            elif between in line:
                lines, blank = lines + 1, blank + 1
    return lines, blank * (len(layout.names) > 1)


def _check_names(names: Sequence[str], file: str) -> None:
    """Refuse a first line that cannot be column names, without quoting it."""
    what = f"the first line of {file}"
    if names[0].startswith(("<!", "<?", "<html", "<table", '{"', '[{"')):
        raise PartyError(f"{file} is HTML, XML or JSON, not CSV")
    if names.count("") > 1:
        raise PartyError(
            f"{what} lacks {names.count('')} of its {len(names)} names: remove titles "
            "above the header, and delimiters at the ends of lines"
        )
    if max(map(len, names)) > MOST_OF_COLUMN:
        raise PartyError(
            f"{what} has a name of more than {MOST_OF_COLUMN} characters: is a closing "
            "quote missing?"
        )
