"""A party's side of predictions by a model that adds up over columns.

A linear model is a sum over the parties of X_j theta_j, and the squared distance of a
row to a centre one of those on their columns. Each party keeps its own block of the
model, with the encoding of its columns, and gives its addend under masks; one party,
the receiver, opens the sums. Of a logistic regression the sum is the log of the odds of
the second class.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Annotated, Literal, NotRequired, TypedDict, cast

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients.coreset_additions import KeptCoreset, part_of
from vfl_flower.clients.coresets import check_classes
from vfl_flower.clients.evaluation import Told, texts_of, told
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.evaluation import mean_and_error
from vfl_flower.numerics.kernel_solvers import sigmoid
from vfl_flower.numerics.kmeans import partial_distances
from vfl_flower.numerics.split import split_rows
from vfl_flower.protocol.consent import LEAST_ROWS
from vfl_flower.protocol.contract import OWN, SEALED, Reals
from vfl_flower.protocol.party import Party, PartyError, Predictions
from vfl_flower.protocol.settings import Count, Fraction, Natural
from vfl_flower.protocol.steps import once, reveals, step
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

MOST_SUMS = 2**22
"""Most numbers in one message."""

Additive = Literal["linear", "logistic", "k-means"]
Outputs = Annotated[int, Ge(1), Le(2**10)]


class Part(TypedDict):
    """What a party keeps of the model.

    Attributes
    ----------
    kind : str
        What adds up: parts of predictions, or of squared distances to centres.
    weights : Array, shape (k, d)
        The coefficients of its columns, k = 1, or its columns of the k centres.
    intercept : float
        Of a linear or logistic model, at the receiver; otherwise 0.
    receiver, index, n_parties : int
        Places of the receiver and of the party in training, and how many parties.
    columns : list of str
        Names of its columns; none where they have none.
    classes : Array, shape (2,)
        Of a logistic model, at the receiver: the labels of the classes.
    """

    kind: Additive
    weights: Array
    intercept: float
    receiver: int
    index: int
    n_parties: int
    columns: list[str]
    classes: NotRequired[Array]


@dataclass
class PredictionState:
    """What the receiver keeps between blocks of rows.

    Attributes
    ----------
    values : Array, shape (n,)
        Predictions, logs of odds or numbers of clusters, so far.
    costs : Array, shape (n,)
        Of a clustering, the squared distances to these.
    told : bool
        Whether it has told what the predictions are worth, once a session.
    asked : bool
        Whether it was asked for a block.
    test_fraction : float
        Share of the rows that is held out, which are predicted; 0: all are.
    curves : bool
        Whether all parties were asked for all blocks as for one with which means of
        bins of rows are told.
    """

    values: Array = field(default_factory=lambda: np.zeros(0))
    costs: Array = field(default_factory=lambda: np.zeros(0))
    told: bool = False
    asked: bool = False
    test_fraction: float = 0.0
    curves: bool = False


class Kept(TypedDict):
    """Reply of :func:`keep`."""

    kept: bool


class PartInfo(TypedDict):
    """Reply of :func:`part`."""

    kind: Additive
    outputs: Outputs
    receiver: Count
    index: Count
    parties: Natural


class Addends(TypedDict):
    """Reply of :func:`addends`."""

    sums: Annotated[Array, Reals("*"), SEALED]


class Answered(Told):
    """Reply of :func:`answer`."""

    done: NotRequired[bool]


@step
@once
def keep(
    party: Party,
    kind: Additive,
    weights: Annotated[Array, Reals("k n_columns"), OWN],
    intercept: float,
    receiver: Count,
    coreset: KeptCoreset | None = None,
) -> Kept:
    """Keep the party's block of the model that the run has trained.

    With a `coreset` also its columns of these rows, to which later runs add others.
    """
    part: Part = {
        "kind": kind,
        "weights": np.asarray(weights, dtype=np.float64),
        "intercept": intercept if party.index == receiver else 0.0,
        "receiver": receiver,
        "index": party.index or 0,
        "n_parties": party.n_parties,
        "columns": list(party.columns or ()),
    }
    if kind == "logistic" and party.index == receiver:
        check_classes(party)
        part["classes"] = np.unique(_labels(party)).astype(np.float64)
    party.part = dict(part) | ({} if coreset is None else part_of(party, coreset))
    party.remember(PredictionState())
    return {"kept": party.state_dir is not None}


def _labels(party: Party) -> Array:
    if party.y is None:
        raise PartyError("this party holds no labels")
    return np.asarray(party.y, dtype=np.float64)


def _part(party: Party) -> Part:
    if "weights" not in party.part:
        raise PartyError("this run has no model of the parties' blocks")
    return cast(Part, party.part)


def block_rows(outputs: int) -> int:
    """Return how many rows one message is of, the last but as many as are left.

    So the mean error of repeated sums is over that many rows too.
    """
    return max(1, MOST_SUMS // outputs)


@step
def part(party: Party) -> PartInfo:
    """Check the new rows against the part of the model, and describe that part."""
    own = _part(party)
    trained, now = list(own["columns"]), list(party.columns or ())
    outputs, width = own["weights"].shape
    if width != party.rows.shape[1] or (trained and now and trained != now):
        raise PartyError(
            f"new rows must have the {width} columns of training, in their order, got "
            f"{party.rows.shape[1]}"
        )
    return {
        "kind": own["kind"],
        "outputs": outputs,
        "receiver": own["receiver"],
        "index": own["index"],
        "parties": own["n_parties"],
    }


@step
@reveals("predictions")
def addends(
    party: Party,
    start: Count,
    stop: Natural,
    curves: bool = False,
    test_fraction: Fraction = 0.0,
) -> Addends:
    """Give the party's addends for rows `start` to `stop` - 1, of all outputs.

    With a `test_fraction` they are rows held out, otherwise all. With `curves` the
    receiver will tell means of bins of rows, which the consents of all parties must
    name: masks cancel where all were asked the same.
    """
    own = _part(party)
    if curves:
        party.reveal("curves", again=True)
    weights, size = own["weights"], block_rows(len(own["weights"]))
    chosen = _chosen(party, test_fraction)
    if start % size or stop != min(start + size, len(chosen)):
        raise PartyError(
            f"rows must be a block of {size} or the last one, got {start} to {stop}: "
            "the errors of one row, time and again, would be that of the row"
        )
    rows = chosen[start:stop]
    party.share(rows, "predictions")
    parts = [
        partial_distances(X, weights) if own["kind"] == "k-means" else X @ weights.T
        for X in RowBlocks(party.rows, rows=rows)
    ]
    total = np.concatenate(parts) if parts else np.zeros((0, len(weights)))
    if party.index == own["receiver"]:
        state = _state(party)
        if not state.asked:
            state.asked, state.curves = True, curves
            state.test_fraction = test_fraction
        state.curves = state.curves and curves
        if test_fraction != state.test_fraction:
            raise PartyError("test_fraction must be the same for all rows")
        party.remember(state)
    return {"sums": (total + own["intercept"]).ravel()}


def _chosen(party: Party, test_fraction: float) -> Array:
    """Return the numbers of the rows that are predicted."""
    if not test_fraction:
        return np.arange(party.n_rows)
    return split_rows(party.n_rows, test_fraction, party.seed)[1]


def _state(party: Party) -> PredictionState:
    return party.recall(PredictionState) if party.remembered() else PredictionState()


@step
@reveals("moments", when="evaluate")
@reveals("curves", when="curves", optional=True)
def answer(
    party: Party,
    sums: Annotated[Array, Reals("*"), SEALED],
    evaluate: bool,
    last: bool,
    curves: bool = False,
) -> Answered:
    """Turn sums into predictions, at the receiver; with the last, keep or judge all.

    Parameters
    ----------
    sums : Array, shape (n k,)
        Sums of the addends of the next rows.
    evaluate : bool
        With the last: tell what the predictions are worth, and keep none: for numbers
        and classes of rows whose labels this party knows, for clusters the mean squared
        distance.
        The model came from the server, so each such answer is a mean over rows of a
        function that a server which deviates has chosen; consent bounds how many.
    last : bool
        Whether these are the last rows.
    curves : bool
        With the last rows of a regression that is evaluated: tell means of bins of rows
        too, or of classes numbers of rows.
    """
    own = _part(party)
    if party.index != own["receiver"] or sums.size % len(own["weights"]):
        raise PartyError("sums must be those of the receiver's model, and sent to it")
    state = _state(party)
    if curves and not state.curves:
        raise PartyError("curves must be as in what all parties were asked before")
    table = sums.reshape(-1, len(own["weights"]))
    rows = _chosen(party, state.test_fraction)
    due = min(block_rows(len(own["weights"])), len(rows) - len(state.values))
    if len(table) != due:
        raise PartyError(f"sums must be those of the next {due} rows, got {len(table)}")
    clusters = own["kind"] == "k-means"
    values, costs = table[:, 0], np.zeros(0)
    if clusters:
        values, costs = table.argmin(axis=1).astype(np.float64), table.min(axis=1)
    state.values = np.concatenate([state.values, values])
    state.costs = np.concatenate([state.costs, np.maximum(costs, 0)])
    party.remember(state)
    if not last:
        return {}
    if len(state.values) != len(rows):
        raise PartyError(f"sums must be of all {len(rows)} rows, each once")
    if evaluate:
        return cast(Answered, _worth(party, own, state, curves))
    given = state.values.astype(np.int64) if clusters else state.values
    numbers = rows if state.test_fraction else None
    party.predictions = Predictions(given, numbers)
    if own["kind"] == "logistic":
        classes = _classes(own, state.values)
        more = texts_of(party, classes) | {"probability": sigmoid(state.values)}
        party.predictions = Predictions(classes, numbers, more=more)
    return {"done": True}


def _classes(own: Part, log_odds: Array) -> Array:
    """Return the class that is more likely than the other; at even odds the first."""
    return own["classes"][(log_odds > 0).astype(np.intp)]


def _worth(party: Party, own: Part, state: PredictionState, curves: bool) -> Told:
    """Return what the predictions are worth, once a session."""
    if state.told:
        raise PartyError("this party tells the errors of its answers once a session")
    state.told = True
    if own["kind"] == "k-means":
        y = np.zeros(len(state.values))
    else:
        y = _labels(party)[_chosen(party, state.test_fraction)]
    known = ~np.isnan(y)
    if known.sum() < LEAST_ROWS:
        log.warning("too few rows for their mean error to hide each: it is not told")
        return {"test_rows": 0}
    y, values = y[known], state.values[known]
    if own["kind"] == "linear":
        return told(party, y, values, "continuous", np.zeros(0), curves=curves)
    if own["kind"] == "logistic":
        classes = own["classes"]
        right = sigmoid(np.where(y == classes[1], values, -values))
        predicted = _classes(own, values)
        return told(party, y, predicted, "binary", classes, values, right, curves)
    cost, cost_se = mean_and_error(state.costs)
    return {"test_rows": len(y), "test_loss": cost, "test_loss_se": cost_se}
