"""A party gives new rows the nearest of a model's centres."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np

from vfl_flower.clients.mufc.folder import (
    check_columns,
    ids_of,
    state_of,
    warn_of_others,
)
from vfl_flower.clients.mufc.training import Centers, Version
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.mufc import BoxedRows
from vfl_flower.party.party import Party, Predictions
from vfl_flower.protocol.contract import IN_SUM, Reals
from vfl_flower.protocol.errors import PartyError
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS as FEWEST
from vfl_flower.typing import Array

step = step_of("mufc")


class Predicted(TypedDict):
    """Reply of :func:`predict`."""

    done: bool


class Cost(TypedDict):
    """Reply of :func:`evaluate`: the rows that count, and their cost."""

    totals: Annotated[Array, Reals("2"), IN_SUM]


def _new_rows(
    party: Party, model: str, version: int, before: str, centers: Array
) -> tuple[Array, Array, Array]:
    """Return the rows that are not forgotten, their clusters and squared distances."""
    state = state_of(party, model, version, before)
    check_columns(party, state.facts)
    rows, box = np.arange(party.n_rows), state.settings.box
    if removed := state.removed():
        tags = state.tag(ids_of(party))
        rows = np.array([i for i, tag in enumerate(tags) if tag not in removed], int)
        warn_of_others(party, rows)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = box.scale(np.asarray(centers, dtype=np.float64))
        blocks = BoxedRows(party.rows, box, rows)
        parts = [assign(block, scaled) for block in blocks] or [
            (np.zeros(0, dtype=np.int64), np.zeros(0))
        ]
    labels, costs = (np.concatenate(some) for some in zip(*parts, strict=True))
    return rows, labels, costs


@step
@sums_over("none")
def predict(
    party: Party, model: str, version: Version, before: str, centers: Centers
) -> Predicted:
    """Give each row of the party's data the nearest centre; the labels stay here."""
    rows, labels, _ = _new_rows(party, model, version, before, centers)
    named = f"{model}-{party.session:016x}"  # training has the file of the model's name
    party.predictions = Predictions(labels, rows, named)
    return {"done": True}


@step
@sums_over("request")
@once
@reveals("row-sums")
def evaluate(
    party: Party, model: str, version: Version, before: str, centers: Centers
) -> Cost:
    """Return how many rows count, and the sum of their squared distances to centres.

    A server that chooses centres freely could single out rows.
    """
    rows, _, costs = _new_rows(party, model, version, before, centers)
    if len(rows) < FEWEST:
        raise PartyError(f"a cost must be of at least {FEWEST} rows of a party")
    party.sum_over(rows, by_choice=len(rows) < party.n_rows)
    party.share(rows, "row-sums")
    cost = float(costs.sum())
    if not np.isfinite(cost):
        raise PartyError("rows must be near enough to the box for a finite cost")
    return {"totals": np.array([float(len(rows)), cost])}
