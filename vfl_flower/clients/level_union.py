"""Unite the levels of text columns: a party's side.

A party learns the levels that enough rows of all parties together have, and in how many
of them each occurs. What it sends the server cannot read
(:mod:`vfl_flower.secure_aggregation.texts`), and leaves only into sums.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Le, MaxLen

from vfl_flower.numerics.level_union import most_frequent
from vfl_flower.protocol.consent import LEAST_ROWS
from vfl_flower.protocol.contract import IN_SUM, SECRET, Whole
from vfl_flower.protocol.normal import normal_text
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.steps import once, reveals, step, sums_over
from vfl_flower.protocol.united import OTHER, save_levels
from vfl_flower.secure_aggregation import SparseSum, labels
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.texts import (
    KEY_BYTES,
    MOST_COLUMNS,
    MOST_TEXT_BYTES,
    TOKEN_BITS,
    WIDTH,
    Text,
    TextCode,
)
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

MOST_LEVELS = 2**13
"""Most levels of one party that a run may count."""

MOST_ROWS = 2**40
"""Most rows of a level."""

MostLevels = Annotated[int, Ge(1), Le(MOST_LEVELS)]
LeastRows = Annotated[int, Ge(LEAST_ROWS), Le(MOST_ROWS)]
Tokens = Annotated[Array, Whole("m 2", 0, 2**TOKEN_BITS), MaxLen(2**17)]
"""Keyed hashes of texts, two numbers each."""


@shapes_only
@dataclass
class OwnTexts:
    """What a party remembers of a run.

    Attributes
    ----------
    columns : list of str
        Names of the columns, sorted.
    key : bytes
        The secret of the parties; b"" until this party has it.
    places, texts, counts : Array of int, list of str, Array of int, shape (k,)
        In which column each text is, and in how many rows; the most frequent first.
    tokens : Array of int, shape (m, 2), or None
        What the server has asked for.
    united : Array of uint8 or None
        The levels of the columns in the end, as JSON.
    """

    columns: list[str]
    key: bytes = b""
    places: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    texts: list[str] = field(default_factory=list)
    counts: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    tokens: Array | None = None
    united: Array | None = None

    @property
    def pairs(self) -> list[Text]:
        """Place and text of each level."""
        return list(zip(self.places.tolist(), self.texts, strict=True))


class Begun(TypedDict):
    """Reply of :func:`begin`: how many columns, and a digest of their names."""

    n_texts: Annotated[int, Ge(1), Le(MOST_COLUMNS)]
    names_digest: Annotated[str, MaxLen(64)]
    key: NotRequired[Annotated[bytes, SECRET]]


class Counted(TypedDict):
    """Reply of :func:`count`."""

    message: Annotated[Array, Whole("*"), IN_SUM]


class Named(TypedDict):
    """Reply of :func:`name`."""

    totals: Annotated[Array, Whole(f"m {WIDTH}"), IN_SUM]


class Kept(TypedDict):
    """Reply of :func:`keep`."""

    kept: bool


def code_of(most_levels: int, n_parties: int) -> SparseSum:
    """Return the code of sums over tokens, whose points are the tokens themselves."""
    return SparseSum(most_levels, n_parties, 2, 2**TOKEN_BITS, field="paper")


@step
@sums_over("none", "it sends keyed hashes of texts, and no number of rows")
@once
@reveals("levels")
def begin(party: Party, most_levels: MostLevels) -> Begun:
    """Count the party's texts; the first party draws the key for all.

    Parameters
    ----------
    most_levels : int
        A party of more levels takes the most frequent ones, and the others count as
        rare.
    """
    texts = party.read_texts()
    if not texts:
        raise PartyError(
            "a text column must be named whose levels are united, by 'column=united' "
            "in levels of the node config"
        )
    if len(texts) > MOST_COLUMNS:
        raise PartyError(f"at most {MOST_COLUMNS} columns can be united")
    rows_of, columns = Counter[Text](), sorted(texts)
    for place, column in enumerate(columns):
        for text, rows in texts[column].items():
            level = normal_text(text)
            if level and level != OTHER:
                rows_of[place, level] += rows
    counted = {
        t: n for t, n in rows_of.items() if len(t[1].encode()) <= MOST_TEXT_BYTES
    }
    ranked = most_frequent(counted, most_levels)
    if left := len(rows_of) - len(ranked):
        log.warning(
            "%d of %d levels are not counted: only the %d most frequent of a party "
            "are, and none of more than %d bytes",
            left,
            len(rows_of),
            most_levels,
            MOST_TEXT_BYTES,
        )
    key = b""
    if party.index == 0:  # again the same for a step asked twice
        key = derive_key(party.run_secret, [labels.LEVELS_KEY])
    party.remember(
        OwnTexts(
            columns,
            key,
            np.array([place for place, _ in ranked], dtype=np.int64),
            [level for _, level in ranked],
            np.array([rows_of[text] for text in ranked], dtype=np.int64),
        )
    )
    names = hashlib.sha256("\0".join(columns).encode()).hexdigest()
    told: Begun = {"n_texts": len(columns), "names_digest": names}
    if key:
        told["key"] = key
    return told


@step
@sums_over("session")
@once
def count(
    party: Party,
    most_levels: MostLevels,
    key: Annotated[bytes | None, SECRET] = None,
) -> Counted:
    """Add the party's counts to those of its tokens.

    Parameters
    ----------
    key : bytes, optional
        What the first party has drawn, which has it itself.
    """
    state = party.recall(OwnTexts)
    if (key is None) != (party.index == 0) or len(state.texts) > most_levels:
        raise PartyError("count must follow begin, with the key of the first party")
    if key is not None and len(key) != KEY_BYTES:
        raise PartyError(f"the key of the first party must have {KEY_BYTES} bytes")
    state.key = key or state.key
    try:
        tokens = TextCode(state.key).tokens(state.pairs)
        message = code_of(most_levels, party.n_parties).encode(tokens, state.counts)
    except ValueError as error:
        raise PartyError(f"levels cannot be counted: {error}") from None
    return {"message": message}


@step
@sums_over("earlier")
@once
def name(party: Party, tokens: Tokens) -> Named:
    """Add counts, their tags, and the ciphertexts of the tokens that are asked for."""
    state = party.recall(OwnTexts)
    pairs = list(map(tuple, tokens.tolist()))
    if not state.key or sorted(set(pairs)) != pairs:
        raise PartyError("tokens must be distinct and sorted, after the counts")
    state.tokens, first = tokens.astype(np.int64), party.index == 0
    counts = state.counts.tolist()
    return {
        "totals": TextCode(state.key).rows(state.tokens, state.pairs, counts, first)
    }


@step
@sums_over("earlier")
@once
def keep(
    party: Party, totals: Annotated[Array, Whole(f"m {WIDTH}")], least_rows: LeastRows
) -> Kept:
    """Read the levels that enough rows of all parties have, and keep them.

    The party refuses what no sum of all parties' counts authenticates, a level of fewer
    rows, and a list that lacks one of its own levels with enough rows.

    Parameters
    ----------
    totals : Array of int, shape (m, 19)
        The sums of what all parties have sent for the tokens.
    least_rows : int
        Fewest rows of a level, over all parties.
    """
    state = party.recall(OwnTexts)
    if state.tokens is None:
        raise PartyError("levels can be kept only after their names")
    try:
        texts, counts = TextCode(state.key).open(state.tokens, totals)
    except ValueError as error:
        raise PartyError(f"levels cannot be read: {error}") from None
    if rare := int((counts < least_rows).sum()):
        raise PartyError(
            f"a level must have at least {least_rows} rows of all parties, {rare} have "
            "fewer"
        )
    counted = zip(state.pairs, state.counts.tolist(), strict=True)
    if {text for text, rows in counted if rows >= least_rows} - set(texts):
        raise PartyError(
            f"levels of at least {least_rows} rows must be kept, and one or more of "
            "this party's are not among them"
        )
    levels: dict[str, tuple[str, ...]] = {}
    for place, column in enumerate(state.columns):
        of_column = sorted(level for where, level in texts if where == place)
        if not of_column:
            log.warning("column %r has no level of enough rows: all is other", column)
        levels[column] = (*of_column, OTHER)
    if any(where >= len(state.columns) for where, _ in texts):
        raise PartyError("a level must be of one of the columns that are united")
    state.united = np.frombuffer(json.dumps(levels).encode(), dtype=np.uint8)
    if party.state_dir is None:
        return {"kept": False}
    salt = derive_key(state.key, [labels.LEVELS_SALT]).hex()
    save_levels(party.state_dir, levels, salt)
    return {"kept": True}
