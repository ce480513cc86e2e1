"""The box of MUFC: bounds of all columns, or of each by its name, and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pydantic

from vfl_flower.numerics.mufc import Box
from vfl_flower.party.columns import column_digest
from vfl_flower.rows import number_array
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.typing import Array

Bounds = str | pydantic.SkipValidation[tuple[Any, Any] | Mapping[str, Any]]
"""A box: text, its lower and upper bounds, or a pair of bounds by the names of columns.
"""

OTHERS = "*"
"""Stands for the columns of numbers that a box does not name."""

INDICATOR = (-3.5, 4.5)
"""Bounds of a column of 0 and 1 that comes from text, unless the box names the text.

In the cube 0 and 1 are 1/8 apart. A text of two equally frequent levels then has a
variance of 1/128, half of that of a column whose box is eight standard deviations wide
(1/64); with the bounds 0 and 1 it has 1/2, and the clusters are its levels.
"""

MOST_OF_SPREAD = 0.8
"""Share of the squares between clusters from which they follow a column, or text."""


def named_bounds(box: Bounds) -> dict[str, tuple[float, float]]:
    """Return a pair of bounds by the names of columns, if any, or raise ValueError."""
    if isinstance(box, Mapping):
        pairs = [(name, box[name]) for name in box]
    elif isinstance(box, str) and "=" in box:
        pairs = [
            (name.strip(), bounds.split(","))
            for name, _, bounds in (item.rpartition("=") for item in box.split(";"))
        ]
    else:
        return {}
    named: dict[str, tuple[float, float]] = {}
    for name, bounds in pairs:
        try:
            lower, upper = map(float, bounds)
            Box(np.array(lower), np.array(upper))
        except (ValueError, TypeError):
            raise ValueError(
                f"box must be 'name=lower,upper' for each column, with ';' between, "
                f"lower below upper, got {bounds!r} for column {name!r}"
            ) from None
        if name in named:
            raise ValueError(f"box must name each column once, got {name!r} twice")
        named[name] = lower, upper
    return named


def parse_box(box: Bounds) -> tuple[Array, Array]:
    """Return the bounds of a box without names, () or (d,), or raise ValueError."""
    try:
        if isinstance(box, str):
            pairs = [[float(v) for v in pair.split(",")] for pair in box.split(";")]
            lower, upper = np.array(pairs, dtype=np.float64).T
            if len(lower) == 1:
                lower, upper = lower[0], upper[0]
        else:
            lower, upper = (
                number_array(bound, "box").astype(np.float64) for bound in box
            )
        lower, upper = np.asarray(lower), np.asarray(upper)
        Box(lower, upper)
    except (ValueError, TypeError):
        raise ValueError(
            "box must be 'lower,upper', or one such pair a column with ';' between, "
            "lower below upper and their difference a finite number, or "
            f"'name=lower,upper' for each column, got {box!r}"
        ) from None
    return lower, upper


def box_of(parties: Parties, box: Bounds) -> tuple[Array, Array]:
    """Return the bounds of the parties' columns, or raise FederationError."""
    d = parties[0].n_columns
    named = named_bounds(box)
    if not named:
        lower, upper = parse_box(box)
        if lower.ndim and len(lower) != d:
            raise FederationError(
                "box must have one pair of bounds, or one for each of the "
                f"{d} columns, got {len(lower)}"
            )
        return lower, upper
    by_digest = {column_digest(name): bounds for name, bounds in named.items()}
    unknown = [
        name
        for name in named
        if name != OTHERS and column_digest(name) not in parties.column_kinds
    ]
    if unknown:
        raise FederationError(
            f"box must name columns of the parties, and they have no {unknown[0]!r}"
        )
    pairs = []
    for place, column in enumerate(parties.columns):
        bounds = by_digest.get(column)
        if bounds is None and parties.column_kinds[column] == "text":
            bounds = INDICATOR
        if bounds is None and (bounds := named.get(OTHERS)) is None:
            raise FederationError(
                "box must give bounds for each column of numbers, and has none for "
                f"column {place} of {parties[0].name!r}, counted from 0 without ids "
                f"and labels; '{OTHERS}=lower,upper' is for all that are not named"
            )
        pairs += [bounds] * parties.column_widths[column]
    if len(pairs) != d:
        raise FederationError(
            f"the names that the parties have sent must be those of their {d} columns"
        )
    lower, upper = np.array(pairs).T
    return lower, upper


def followed(parties: Parties, box: Bounds, scaled: Array, sizes: Array) -> list[str]:
    """Return a warning if clusters follow one column, or text, and little else.

    `scaled` are the centres in the cube, shape (K, d), and `sizes` the rows n_k of each
    cluster, shape (K,). A column adds sum_k n_k (c_kj - c_j)^2 to the squares between
    clusters.
    """
    widths = [parties.column_widths[column] for column in parties.columns]
    if sum(widths) != scaled.shape[1]:
        widths = [1] * scaled.shape[1]
    squares = sizes @ (scaled - sizes @ scaled / max(sizes.sum(), 1)) ** 2
    ends = pairwise(accumulate(widths, initial=0))
    of_columns = np.array([squares[start:end].sum() for start, end in ends])
    if len(widths) < 3 or not (total := of_columns.sum()) > 0:
        return []
    advice = (
        "give it wider bounds in box to let it count less, or leave it out of columns"
    )
    most = int(of_columns.argmax())
    if of_columns[most] >= MOST_OF_SPREAD * total:
        names = {column_digest(name): repr(name) for name in named_bounds(box)}
        column = parties.columns[most] if parties.columns else ""
        what = names.get(column, f"column {most} (counted from 0)")
        share = of_columns[most] / total
        return [f"the clusters follow {what} by {share:.0%}: {advice}"]
    text = [parties.column_kinds.get(c) == "text" for c in parties.columns]
    if any(text) and not all(text):
        share = of_columns[text].sum() / total
        if share >= MOST_OF_SPREAD:
            return [
                f"the clusters follow the columns of text by {share:.0%}: name columns "
                f"in box, which gives text the bounds {INDICATOR[0]},{INDICATOR[1]} "
                "and less weight, or leave some out of columns"
            ]
    return []
