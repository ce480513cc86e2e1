"""A party's guard, which checks the rows of every sum that the party computes.

The server chooses these rows, and two sums whose row sets differ by a single row reveal
that row. So a party records each set of rows, with their weights, for the life of its
data: a set must equal an earlier set, or differ from every earlier set by many rows. It
also records which parties contribute to each sum, because two sums, one with and one
without a party, reveal that party's contribution.

Rows are identified by keyed tags of their ids, so that the order of the file does not
matter. In a file without ids, rows are identified by their positions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vfl_flower.files import make_private, write_whole
from vfl_flower.numerics.row_sets import (
    block_sums,
    most_leverage,
    sure_number,
    text_tags,
)
from vfl_flower.party.consent import Consent
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.secure_aggregation import labels
from vfl_flower.secure_aggregation.masks import stream
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

ANCHOR = "journal.anchor"
"""File beside the journal with the number of its row sets: a journal with fewer sets
was lost, or restored from a backup."""

MOST_OF_ID = 2**10  # characters of an id that distinguish rows
FEW_SETS = 30  # maximum number of row sets if a twentieth of the rows is fewer

WEIGHTED = 2
"""In sets with weights, a row with 1 / k of the sum of squares counts as one of 2 k
rows: a row with a tenth of this sum counts as one of 20, as in a coreset of a hundred
rows.
"""

MOST_ORDERS = 8  # row orders whose row numbers the journal stores

TABLES = (
    "CREATE TABLE IF NOT EXISTS row_tags (tags BLOB)",
    """CREATE TABLE IF NOT EXISTS row_orders (
    name TEXT PRIMARY KEY, row_set INTEGER, numbers BLOB)""",
    """CREATE TABLE IF NOT EXISTS row_sets (id INTEGER PRIMARY KEY, places INTEGER,
    digest BLOB UNIQUE, squares REAL, n_weights INTEGER, parties TEXT,
    blocks BLOB)""",
    """CREATE TABLE IF NOT EXISTS row_set_rows (
    id INTEGER PRIMARY KEY, bits BLOB, weights BLOB)""",
    "CREATE TABLE IF NOT EXISTS row_journal (inode INTEGER)",
)
"""The tags of all rows, by number; the row numbers and the row set of each order; all
row sets; and the inode of the journal in which they were written."""


def _refusal(reason: str, *values: object) -> PartyError:
    """Log the reason for a refusal; return an error without the reason."""
    log.error(f"a request is refused: {reason}", *values)
    return PartyError("this party refuses to add up the rows requested: see its log")


@shapes_only
@dataclass(frozen=True, eq=False)
class RowSet:
    """A set of rows, possibly weighted, out of all rows that a party has ever had."""

    mask: Array  # bool, by row number; shape (largest number + 1,)
    weights: Array | None
    """Weights relative to the largest, by row number, (m,); None means all are 1."""

    @classmethod
    def of(cls, numbers: Array, weights: Array | None) -> RowSet:
        """Return the set of these row numbers, with repeated rows' weights added up."""
        mask = np.zeros(int(numbers.max(initial=0)) + 1, dtype=bool)
        mask[numbers] = True
        if weights is None and mask.sum() == len(numbers):
            return cls(mask, None)
        w = np.bincount(numbers, weights=weights).astype(np.float64)[mask]
        w /= w.max(initial=0.0) or 1.0
        return cls(mask, None if (w == 1).all() else w)

    @classmethod
    def unpacked(cls, bits: bytes, weights: bytes | None) -> RowSet:
        """Return a set that the journal stores."""
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        w = None if weights is None else np.frombuffer(weights)
        return cls(mask.astype(bool), w)

    @cached_property
    def bits(self) -> bytes:
        """The mask, packed as one bit for each row."""
        return np.packbits(self.mask, bitorder="little").tobytes()

    @cached_property
    def squares(self) -> float:
        """Sum of the squares of the weights."""
        w = self.weights
        return float(self.mask.sum() if w is None else w @ w)

    @cached_property
    def blocks(self) -> Array:
        """Sums of the weights of each block of rows, of shape (256,)."""
        return block_sums(self.mask, self.weights)

    @cached_property
    def numbers(self) -> Array:
        """Row numbers, in ascending order."""
        return np.flatnonzero(self.mask)

    @cached_property
    def values(self) -> Array:
        """Weights of the rows, in the order of `numbers`."""
        return np.ones(len(self.numbers)) if self.weights is None else self.weights

    @property
    def size(self) -> float:
        """Number of rows.

        In a weighted set, a row with a tenth of the sum of squares counts as one of 20.
        """
        return self.squares * (1 if self.weights is None else WEIGHTED)

    @property
    def packed_weights(self) -> bytes | None:
        """The weights, as the journal stores them."""
        return None if self.weights is None else self.weights.tobytes()

    def apart(self, other: RowSet) -> float:
        """Return the number of rows in which two sets differ.

        For sets with weights, this number follows from the largest share that one row
        has in the difference of the two sums, however the sums are scaled: a share of a
        tenth counts as 20 rows.
        """
        if self.weights is None and other.weights is None:
            first, second = (int.from_bytes(s.bits, "little") for s in (self, other))
            return float((first ^ second).bit_count())
        few, many = sorted((self, other), key=lambda s: len(s.numbers))
        places = np.searchsorted(many.numbers, few.numbers)
        places = np.minimum(places, len(many.numbers) - 1)
        shared = many.numbers[places] == few.numbers
        at_few = np.where(shared, many.values[places], 0.0)
        rest = np.delete(many.values, places[shared]).max(initial=0.0)
        pair = at_few, few.values
        return WEIGHTED / most_leverage(*pair, many.squares, few.squares, float(rest))


class RowSets:
    """The row sets that a party has added up, recorded in its journal at `path`.

    `db` is in the transaction of a message, and `key` is the key of the row tags.
    """

    def __init__(
        self, db: sqlite3.Connection, path: Path, party: Party, key: bytes
    ) -> None:
        assert party.consent is not None
        self._db, self._path, self._party, self._key = db, path, party, key
        self._consent: Consent = party.consent
        self._by_place = party.order_name is None
        self._order = f"{party.order_name or 'places'} {party.n_rows}"

    def check(
        self, rows: Array | None, weights: Array | None, *, by_choice: bool
    ) -> None:
        """Record a set of rows, or refuse it; see :meth:`Party.sum_over`."""
        check_journal(self._db, self._path)
        if rows is None and (number := self._of_order("row_set")) is not None:
            self._check_parties(number)
            return
        numbers = self._numbers()
        rows_of_sum = RowSet.of(numbers if rows is None else numbers[rows], weights)
        sha = hashlib.sha256(b"%d %d " % (self._by_place, len(rows_of_sum.bits)))
        sha.update(rows_of_sum.bits + (rows_of_sum.packed_weights or b""))
        query = "SELECT id FROM row_sets WHERE digest = ?"
        if (number := first_value(self._db, query, sha.digest())) is not None:
            self._check_parties(number)
        else:
            self._check_size(rows_of_sum)
            if not by_choice:
                if rows is not None:
                    self._check_count()
                self._check_distance(rows_of_sum)
            number = self._note(rows_of_sum, sha.digest())
        if rows is None:
            update = "UPDATE row_orders SET row_set = ? WHERE name = ?"
            self._db.execute(update, (number, self._order))

    def _of_order(self, column: str) -> Any:
        """Return a column of the journal's entry for the current row order, or None."""
        query = f"SELECT {column} FROM row_orders WHERE name = ?"
        return first_value(self._db, query, self._order)

    def _numbers(self) -> Array:
        """Return the number that identifies each row of the session in all sets."""
        if (known := self._of_order("numbers")) is not None:
            return np.frombuffer(known, "<u4")
        numbers = np.arange(self._party.n_rows, dtype="<u4")
        if not self._by_place:
            ids = self._party.read_ids()
            if ids is None:
                raise PartyError("the ids of this party's rows cannot be read")
            drawn = stream(self._key, [labels.ROW_TAGS])(16 * MOST_OF_ID)
            tags = text_tags(ids, np.frombuffer(drawn, "<u8").reshape(2, -1))
            stored = first_value(self._db, "SELECT tags FROM row_tags")
            known_tags = np.frombuffer(stored or b"", "<u8")
            new = tags[~np.isin(tags, known_tags)]
            known_tags = np.concatenate([known_tags, new])
            by_tag = np.argsort(known_tags)
            places = np.searchsorted(known_tags, tags, sorter=by_tag)
            numbers = by_tag[places].astype("<u4")
            self._db.execute("DELETE FROM row_tags")
            self._db.execute("INSERT INTO row_tags VALUES (?)", (known_tags.tobytes(),))
        insert = "INSERT INTO row_orders VALUES (?, NULL, ?)"
        self._db.execute(insert, (self._order, numbers.tobytes()))
        oldest = f"(SELECT max(rowid) FROM row_orders) - {MOST_ORDERS}"
        self._db.execute(f"DELETE FROM row_orders WHERE rowid <= {oldest}")
        return numbers

    def _note(self, rows_of_sum: RowSet, digest: bytes) -> int:
        """Write a set to the journal, and return its number there."""
        s, parties = rows_of_sum, json.dumps([sorted(self._party.names)])
        blocks = s.blocks.astype("<f4").tobytes()
        n_weights = 0 if s.weights is None else len(s.weights)
        values = self._by_place, digest, s.squares, n_weights, parties, blocks
        insert = "INSERT INTO row_sets VALUES (NULL, ?, ?, ?, ?, ?, ?)"
        number = self._db.execute(insert, values).lastrowid
        assert number is not None
        rows = number, s.bits, s.packed_weights
        self._db.execute("INSERT INTO row_set_rows VALUES (?, ?, ?)", rows)
        return number

    def _check_size(self, rows_of_sum: RowSet) -> None:
        if rows_of_sum.size < LEAST_ROWS:
            raise _refusal(
                "a sum must be over at least %d rows, but this sum is effectively over "
                "%.0f (too few rows, or too much weight on one row)",
                *(LEAST_ROWS, rows_of_sum.size),
            )

    def _check_count(self) -> None:
        """Refuse a new set if the sums over all sets could be solved for the rows."""
        most = self._consent.most_row_sets
        if most is None:
            most = max(FEW_SETS, self._party.n_rows // LEAST_ROWS)
        if (count := count_sets(self._db)) >= most:
            raise _refusal(
                "this party allows no sum over a new set of rows after sums over %d "
                "sets, since sums over as many sets as rows would reveal the rows: to "
                "raise the limit, set 'most-row-sets = %d' in your consent.toml",
                *(count, 2 * most),
            )

    def _check_distance(self, rows_of_sum: RowSet) -> None:
        """Refuse a set that differs from an earlier set in too few rows."""
        least, v = self._consent.min_changed_rows, rows_of_sum
        columns = "id, squares, n_weights" + (", blocks" if v.weights is None else "")
        query = f"SELECT {columns} FROM row_sets WHERE places = ?"
        earlier = self._db.execute(query, (self._by_place,)).fetchall()
        if not earlier:
            return
        ids, squares, n_weights = np.array([row[:3] for row in earlier]).T
        if v.weights is None:
            blobs = b"".join(row[3] for row in earlier)
            sums = np.frombuffer(blobs, "<f4").reshape(len(earlier), -1)
            sure = WEIGHTED * sure_number(v.squares, n_weights, 1 / squares)
            apart = np.abs(sums - v.blocks).sum(axis=1)
            bounds = np.where(n_weights > 0, sure, apart)
        else:
            sure = WEIGHTED * sure_number(squares, len(v.weights), 1 / v.squares)
            bounds = np.where(n_weights > 0, 0.0, sure)
        for number in ids[bounds < least].astype(int).tolist():
            query = "SELECT bits, weights FROM row_set_rows WHERE id = ?"
            packed = self._db.execute(query, (number,)).fetchone()
            apart = rows_of_sum.apart(RowSet.unpacked(*packed))
            if not apart >= least:
                raise _refusal(
                    "the sum differs from an earlier sum in %.0f rows (by weight), but "
                    "must differ in at least %d rows or in none, since the difference "
                    "of the two sums would reveal the sum of these few rows. If your "
                    "data or an alignment have changed, wait for more changes, or set "
                    "'min-changed-rows = %d' in your consent.toml",
                    *(apart, least, max(1, int(apart))),
                )

    def _check_parties(self, number: int) -> None:
        """Refuse an earlier set with different parties, or record its parties."""
        query = "SELECT parties FROM row_sets WHERE id = ?"
        earlier = json.loads(first_value(self._db, query, number))
        now = sorted(self._party.names)
        if now in earlier:
            return
        for names in earlier:
            changed = set(names) ^ set(now)
            accepts = self._consent.accepts_change_of
            changes = sorted(name for name in changed if not accepts(name))
            if changes and len(changed) < self._consent.least_parties:
                raise _refusal(
                    "the sum is over the rows of an earlier sum, but the parties have "
                    "changed (%s), and the difference of the two sums would reveal "
                    "the contributions of these parties: to permit the changes, set "
                    "'changed-parties = %s' in your consent.toml",
                    *(", ".join(map(repr, changes)), json.dumps(changes)),
                )
        update = "UPDATE row_sets SET parties = ? WHERE id = ?"
        self._db.execute(update, (json.dumps([*earlier, now]), number))


# -- a lost or restored journal --------------------------------------------------------


def first_value(db: sqlite3.Connection, query: str, *values: Any) -> Any:
    """Return the first column of the first row, or None."""
    row = db.execute(query, values).fetchone()
    return None if row is None else row[0]


def count_sets(db: sqlite3.Connection) -> int:
    """Return the number of row sets in a journal."""
    return int(first_value(db, "SELECT count(*) FROM row_sets"))


def check_journal(db: sqlite3.Connection, path: Path) -> None:
    """Raise PartyError for a journal that was lost, or restored from a backup."""
    inode = path.stat().st_ino
    known = first_value(db, "SELECT inode FROM row_journal")
    anchor = path.with_name(ANCHOR)
    expected = int(anchor.read_text()) if anchor.exists() else 0
    if count_sets(db) < expected or known not in (None, inode):
        log.error(
            "the journal %s was lost or restored from a backup, so it may lack row "
            "sets whose sums have left this party: restore the newest journal, or "
            "accept this journal with 'vfl-flower journal FOLDER --confirm'",
            path,
        )
        raise PartyError(
            "this party's journal was lost or restored from a backup: its operator "
            "must confirm the journal before the party computes sums"
        )
    if known is None:
        db.execute("INSERT INTO row_journal VALUES (?)", (inode,))


def confirm_journal(path: Path) -> None:
    """Accept a journal that was lost or restored, at the operator's request."""
    make_private(path)
    with closing(sqlite3.connect(path)) as db, db:
        for table in TABLES:
            db.execute(table)
        db.execute("DELETE FROM row_journal")
        db.execute("INSERT INTO row_journal VALUES (?)", (path.stat().st_ino,))
        write_anchor(path, count_sets(db))


def write_anchor(path: Path, count: int) -> None:
    """Write the number of a journal's row sets to a file beside it."""
    write_whole(path.with_name(ANCHOR), str(count).encode(), private=True)
