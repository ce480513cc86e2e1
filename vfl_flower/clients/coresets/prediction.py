"""A party's side of predictions with a model that is a sum over columns.

A linear model is the sum over the parties of X_j theta_j. Likewise, the squared
distance from a row to a centre is the sum over the parties of squared distances in
their own columns. Each party stores its own block of the model, with the encoding of
its columns, and sends its contribution under masks. One party, the *receiver*, opens
the sums.
"""

from __future__ import annotations

import logging
from dataclasses import field
from typing import Annotated, Literal, NotRequired, TypedDict, cast

import numpy as np
from annotated_types import Ge, Le, MaxLen

from vfl_flower.clients import evaluation
from vfl_flower.clients.coresets.sampling import check_labels, test_rows, training_rows
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.evaluation import mean_and_error
from vfl_flower.numerics.kmeans import partial_distances
from vfl_flower.numerics.row_clip import clipped
from vfl_flower.party.party import Party, PartyError, Predictions, stored_as
from vfl_flower.protocol.contract import OWN, SEALED, Leaves, Reals
from vfl_flower.protocol.settings import Count, Fraction, Natural, NotNegative
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("coreset_predictions")

MOST_SUMS = 2**22
"""Maximum number of values in one message."""

HIGH, LOW = 2.0**70, 2.0**20
"""Bounds of the two limbs of an addend: a multiple of `LOW`, and the remainder. With
smaller bounds, the number of clipped values would reveal the size of the addends."""

MOST_OUTPUTS = 2**10
"""Maximum number of outputs of a model, to bound the size of a party's block."""

Additive = Literal["linear", "k-means"]
Outputs = Annotated[int, Ge(1), Le(MOST_OUTPUTS)]


@stored_as("vfl_flower.clients.coreset_predictions.RowClip")
class RowClip:
    """Clipping of the party's rows by a linear model; see ``numerics/row_clip.py``."""

    clip: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Clipping of the party's rows; empty if rows are not clipped."""


class Part(TypedDict):
    """A party's block of the model."""

    kind: Additive
    """Whether the sums are predictions or squared distances to centres."""
    weights: Array
    """The party's coefficients (k = 1), or its columns of k centres, shape (k, d)."""
    intercept: float
    """At the receiver, the intercept of a linear model; otherwise 0."""
    receiver: int
    """The receiver's index in training, in party order."""
    index: int
    """The party's index in training, in party order."""
    n_parties: int
    """The number of parties in training."""
    columns: list[str]
    """Names of the party's columns, if they have names."""
    clip: NotRequired[Array]
    """Clipping of the party's rows by a linear model; see ``numerics/row_clip.py``."""


@stored_as("vfl_flower.clients.coreset_predictions.PredictionState")
class PredictionState:
    """The receiver's state between blocks of rows."""

    values: Array = field(default_factory=lambda: np.zeros(0))
    """The predictions or cluster numbers so far, of shape (n,)."""
    costs: Array = field(default_factory=lambda: np.zeros(0))
    """For a clustering: squared distances to these clusters' centres, of shape (n,)."""
    told: bool = False
    """Whether the receiver has reported its metrics, which it does once per session."""
    curves: bool = False
    """Whether the requests for all blocks so far had `curves`."""


class KeptBlock(TypedDict):
    """Reply of :func:`keep`."""

    kept: bool


class BlockInfo(TypedDict):
    """Reply of :func:`part`."""

    kind: Additive
    outputs: Outputs
    receiver: Count
    index: Count
    parties: Natural


class Addends(TypedDict):
    """Reply of :func:`addends`."""

    sums: Annotated[Array, Reals("*"), SEALED]


class BlockAnswer(evaluation.Measures):
    """Reply of :func:`answer`."""

    done: NotRequired[bool]


class HeldOut(TypedDict):
    """Reply of :func:`held_out`."""

    high: Annotated[Array, Reals("r"), Leaves("sealed", least=HIGH)]
    low: Annotated[Array, Reals("r"), Leaves("sealed", least=LOW)]


class Errors(evaluation.Measures):
    """Reply of :func:`errors`."""

    full_train_loss: NotRequired[NotNegative]


@step
@sums_over("none", "the model comes from the server")
@once
def keep(
    party: Party,
    kind: Additive,
    weights: Annotated[Array, Reals("k n_columns"), MaxLen(MOST_OUTPUTS), OWN],
    intercept: float,
    receiver: Count,
) -> KeptBlock:
    """Store the party's block of the model that the run has trained."""
    part: Part = {
        "kind": kind,
        "weights": np.asarray(weights, dtype=np.float64),
        "intercept": intercept if party.index == receiver else 0.0,
        "receiver": receiver,
        "index": party.index or 0,
        "n_parties": party.n_parties,
        "columns": list(party.columns or ()),
        "clip": party.recall(RowClip, RowClip()).clip,
    }
    party.part = dict(part)
    return {"kept": party.state_dir is not None}


def _part(party: Party) -> Part:
    if "weights" not in party.part:
        raise PartyError("this run has neither a linear model nor centres: train first")
    return cast(Part, party.part)


def block_rows(outputs: int) -> int:
    """Return the number of rows in a message; the last message has the remaining rows.

    Since rows are sent in blocks, even a mean over repeated sums covers a whole block.
    """
    return max(1, MOST_SUMS // outputs)


@step
@sums_over("none")
def part(party: Party) -> BlockInfo:
    """Check the new rows against the party's block of the model; describe the block."""
    local_model = _part(party)
    outputs, width = local_model["weights"].shape
    evaluation.check_columns(party, width, list(local_model["columns"]))
    return {
        "kind": local_model["kind"],
        "outputs": outputs,
        "receiver": local_model["receiver"],
        "index": local_model["index"],
        "parties": local_model["n_parties"],
    }


@step
@sums_over("none", "each number describes a single row")
@reveals("predictions")
def addends(party: Party, start: Count, stop: Natural, curves: bool = False) -> Addends:
    """Send the party's addends for rows `start` to `stop` - 1 and all outputs.

    With `curves`, the receiver will report means over bins of rows, which the consent
    of every party must permit: masks cancel only if all parties get the same request.
    """
    local_model = _part(party)
    if curves:
        party.reveal("curves", again=True)
    weights, linear = local_model["weights"], local_model["kind"] == "linear"
    size = block_rows(len(weights))
    if start % size or stop != min(start + size, party.n_rows):
        raise PartyError(
            f"rows must be a block of {size} rows or the last block, got {start} to "
            f"{stop}: the mean error of one repeated row would reveal that row's error"
        )
    rows = np.arange(start, stop)
    party.share(rows, "predictions")
    parts = [
        X @ weights.T if linear else partial_distances(X, weights)
        for block in RowBlocks(party.rows, rows=rows)
        for X in [clipped(local_model.get("clip"), block)]
    ]
    total = np.concatenate(parts) if parts else np.zeros((0, len(weights)))
    if party.index == local_model["receiver"]:
        first = not party.remembered()
        state = party.recall(PredictionState, PredictionState())
        state.curves = curves and (first or state.curves)
        party.remember(state)
    return {"sums": (total + local_model["intercept"]).ravel()}


@step
@sums_over("request")
@reveals("moments", when="evaluate")
@reveals("curves", when="curves", optional=True)
def answer(
    party: Party,
    sums: Annotated[Array, Reals("*"), SEALED],
    evaluate: bool,
    last: bool,
    curves: bool = False,
) -> BlockAnswer:
    """Turn sums into predictions at the receiver; at the end, store or evaluate them.

    The model came from the server, so each answer to `evaluate` is a mean, over rows,
    of a function that a malicious server could have chosen. Consent bounds the number
    of such answers.
    """
    local_model = _part(party)
    linear, outputs = local_model["kind"] == "linear", len(local_model["weights"])
    if party.index != local_model["receiver"] or sums.size % outputs:
        raise PartyError("sums must be sent to the model's receiver, for all outputs")
    state = party.recall(PredictionState, PredictionState())
    if curves and not state.curves:
        raise PartyError("curves must be the same as in the requests for these sums")
    table = sums.reshape(-1, outputs)
    due = min(block_rows(outputs), party.n_rows - len(state.values))
    if len(table) != due:
        raise PartyError(f"sums must cover the next {due} rows, got {len(table)} rows")
    if linear:
        values, costs = table[:, 0], np.zeros(0)
    else:
        values, costs = table.argmin(axis=1).astype(np.float64), table.min(axis=1)
    state.values = np.concatenate([state.values, values])
    state.costs = np.concatenate([state.costs, np.maximum(costs, 0)])
    party.remember(state)
    if not last:
        return {}
    if len(state.values) != party.n_rows:
        raise PartyError(f"sums must cover all {party.n_rows} rows exactly once")
    if evaluate:
        return cast(BlockAnswer, _worth(party, linear, state, curves))
    given = state.values if linear else state.values.astype(np.int64)
    party.predictions = Predictions(given)
    return {"done": True}


def _worth(
    party: Party, linear: bool, state: PredictionState, curves: bool
) -> evaluation.Measures:
    """Return the metrics of the predictions, once per session."""
    if state.told:
        raise PartyError(
            "this party reports the errors of its predictions only once in a session"
        )
    state.told = True
    if not linear:
        known = np.ones(party.n_rows, dtype=bool)
    elif party.y is None:
        raise PartyError("this party holds no labels")
    else:
        known = ~np.isnan(np.asarray(party.y, dtype=np.float64))
    if known.sum() < LEAST_ROWS:
        log.warning("the mean error is not reported: it would not hide so few rows")
        return {"test_rows": 0}
    party.sum_over(None if known.all() else np.flatnonzero(known))
    if party.y is not None and linear:
        y = np.asarray(party.y[known], dtype=np.float64)
        values, no_classes = state.values[known], np.zeros(0)
        return evaluation.measures_of(
            party, y, values, "continuous", no_classes, curves=curves
        )
    cost, cost_se = mean_and_error(state.costs)
    return {"test_rows": party.n_rows, "test_loss": cost, "test_loss_se": cost_se}


# -- in training -----------------------------------------------------------------------


def _evaluated(
    party: Party, test_fraction: float, test: bool, train: bool
) -> dict[str, Array]:
    """Return the rows on which training evaluates a model, by metric name."""
    sets = {}
    if test:
        sets["test_loss"] = test_rows(party, test_fraction)
    if train:
        rows = training_rows(party, test_fraction)
        sets["full_train_loss"] = np.arange(party.n_rows) if rows is None else rows
    if not sets:
        raise PartyError("test or train must be true")
    return sets


@step
@sums_over("request")
@once
@reveals("predictions")
@reveals("moments")
def held_out(
    party: Party,
    coefficients: Annotated[Array, Reals("n_columns"), OWN],
    intercept: float,
    test_fraction: Fraction,
    test: bool,
    train: bool,
) -> HeldOut:
    """Send the party's addends for the held-out rows, and for the training rows.

    Addends above `HIGH` are clipped here. If they were clipped in the sum, the server,
    which chooses the coefficients, would learn how many addends were clipped.
    """
    check_labels(party)
    sets = _evaluated(party, test_fraction, test, train).values()
    for rows in sets:
        party.sum_over(rows)
        party.share(rows, "predictions")
    clip = party.recall(RowClip, RowClip()).clip
    blocks = RowBlocks(party.rows, rows=np.concatenate(list(sets)))
    with np.errstate(over="ignore", invalid="ignore"):
        addends = blocks.per_row(lambda X: clipped(clip, X) @ coefficients)
        if party.y is not None:
            addends += intercept
    addends = np.clip(np.nan_to_num(addends), -HIGH, HIGH)
    high = np.round(addends / LOW) * LOW
    return {"high": high, "low": addends - high}


@step
@sums_over("request")
@once
@reveals("moments", counted=False)
def errors(
    party: Party,
    high: Annotated[Array, Reals("r"), SEALED],
    low: Annotated[Array, Reals("r"), SEALED],
    unit: Annotated[float, Ge(1e-50), Le(1e50)],
    test_fraction: Fraction,
    test: bool,
    train: bool,
) -> Errors:
    """At the label holder, compare the sums times `unit` with the labels."""
    if party.y is None:
        raise PartyError("this party holds no labels")
    sets = _evaluated(party, test_fraction, test, train)
    if len(high) != sum(map(len, sets.values())):
        raise PartyError(f"high and low must cover the evaluated rows, got {len(high)}")
    predictions, reply = unit * (high + low), Errors()
    for name, rows in sets.items():
        predicted, predictions = np.split(predictions, [len(rows)])
        y = np.asarray(party.y[rows], dtype=np.float64)
        party.sum_over(rows)
        try:
            if not evaluation.hides_each(party, rows):
                raise PartyError("a mean over so few rows would not hide each of them")
            with np.errstate(over="ignore", invalid="ignore"):
                worth = evaluation.measures_of(
                    party, y, predicted, "continuous", np.zeros(0)
                )
        except PartyError as error:  # a refusal would reveal labels of these rows
            log.warning("%s: %s is not reported", error, name)
            continue
        if name == "test_loss":
            reply.update(cast(Errors, worth))
        else:
            reply["full_train_loss"] = worth["test_loss"]
    return reply
