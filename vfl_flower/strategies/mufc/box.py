"""The box of MUFC: bounds of all columns, or of each column by its name."""

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
"""A box: a string, lower and upper bounds, or pairs of bounds by column name."""

OTHERS = "*"
"""Name that stands for all numeric columns that a box does not name."""

INDICATOR = (-3.5, 4.5)
"""Bounds of a 0/1 column that comes from text, unless the box names the text column.

With these bounds, 0 and 1 are 1/8 apart in the cube. A text column with two equally
frequent levels then has a variance of 1/128. This is half the variance (1/64) of a
column whose box is eight standard deviations wide. With the bounds 0 and 1 the variance
would be 1/2, and the clusters would be the levels.
"""

MOST_OF_SPREAD = 0.8
"""A column dominates above this share of the sum of squares between clusters."""


def named_bounds(box: Bounds) -> dict[str, tuple[float, float]]:
    """Return bounds by column name; the result is empty if the box names no columns.

    Raises ValueError if the box is invalid.
    """
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
                "box must be 'name=lower,upper' for each column, separated by ';', "
                f"with lower below upper, got {bounds!r} for column {name!r}"
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
            "box must be 'lower,upper', or one such pair for each column, separated by "
            "';', with lower below upper and a finite difference, or "
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
                f"box must have one pair of bounds, or a pair for each of the {d} "
                f"columns, got {len(lower)} pairs"
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
            f"box must name columns of the parties, but none is named {unknown[0]!r}"
        )
    pairs = []
    for place, column in enumerate(parties.columns):
        bounds = by_digest.get(column)
        if bounds is None and parties.column_kinds[column] == "text":
            bounds = INDICATOR
        if bounds is None and (bounds := named.get(OTHERS)) is None:
            raise FederationError(
                "box must give bounds for each column of numbers, but has none for "
                f"column {place} of {parties[0].name!r}, counted from 0 without ids "
                f"and labels; '{OTHERS}=lower,upper' bounds all unnamed columns"
            )
        pairs += [bounds] * parties.column_widths[column]
    if len(pairs) != d:
        raise FederationError(
            f"the parties must send the names of all their {d} columns"
        )
    lower, upper = np.array(pairs).T
    return lower, upper


def followed(parties: Parties, box: Bounds, scaled: Array, sizes: Array) -> list[str]:
    """Return a warning if one column or the text columns dominate the clusters.

    `scaled`, shape (K, d), contains the centres in the cube. `sizes`, shape (K,),
    contains n_k, the number of rows of each cluster. A column adds sum_k n_k (c_kj -
    c_j)^2 to the sum of squares between clusters.
    """
    widths = [parties.column_widths[column] for column in parties.columns]
    if sum(widths) != scaled.shape[1]:
        widths = [1] * scaled.shape[1]
    squares = sizes @ (scaled - sizes @ scaled / max(sizes.sum(), 1)) ** 2
    ends = pairwise(accumulate(widths, initial=0))
    of_columns = np.array([squares[start:end].sum() for start, end in ends])
    if len(widths) < 3 or not (total := of_columns.sum()) > 0:
        return []
    advice = "to lower its weight, widen its bounds in box, or omit it from `columns`"
    most = int(of_columns.argmax())
    if of_columns[most] >= MOST_OF_SPREAD * total:
        names = {column_digest(name): repr(name) for name in named_bounds(box)}
        column = parties.columns[most] if parties.columns else ""
        what = names.get(column, f"column {most} (counted from 0)")
        share = of_columns[most] / total
        return [f"{what} makes up {share:.0%} of the spread between clusters: {advice}"]
    text = [parties.column_kinds.get(c) == "text" for c in parties.columns]
    if any(text) and not all(text):
        share = of_columns[text].sum() / total
        if share >= MOST_OF_SPREAD:
            return [
                f"text columns make up {share:.0%} of the spread between clusters: "
                "name columns in box (text then gets less weight, with bounds "
                f"{INDICATOR[0]},{INDICATOR[1]}), or omit text columns from `columns`"
            ]
    return []
