"""The targets of a ridge model, and what keeps labels from revealing single rows."""

from __future__ import annotations

import logging

import numpy as np

from vfl_flower.clients.evaluation import signs_of
from vfl_flower.clients.products import MOST_LEVERAGE, withhold
from vfl_flower.clients.ridge.state import (
    OwnColumns,
    RidgeState,
    outputs_of,
    training_rows,
)
from vfl_flower.numerics.ridge.local_columns import (
    REACHED,
    bounded,
    local_columns,
    reached,
)
from vfl_flower.party.party import Party
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.secure_aggregation.products.roles import LARGEST
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")


def targets_of(party: Party, state: RidgeState) -> Array:
    """Return the targets of the label holder, zeros where its labels break a rule."""
    task, rows = state.task, training_rows(party, state.task)
    assert party.y is not None
    if state.constant:
        return np.zeros((len(rows), outputs_of(state)))
    y = np.asarray(party.y[rows], dtype=np.float64)
    if task.target == "continuous":
        y = np.clip(y, state.lowest, state.highest)
        with np.errstate(over="ignore", invalid="ignore"):
            state.y_mean, state.y_scale = float(y.mean()), float(y.std()) or 1.0
            y = (y - state.y_mean) / state.y_scale
    return signs_of(y, task.target, state.classes)


def check_targets(party: Party, state: RidgeState, fitted: OwnColumns) -> None:
    """Withhold labels with which a Gram matrix would reveal a single row.

    Clip real ones first, and mute local columns that would do so beside the labels: no
    count of columns, which the server gets, depends on labels.
    """
    assert party.y is not None
    y = party.y[training_rows(party, state.task)]
    rule = "all rows to train on must have a label"
    if not np.isnan(y).any():
        Y = targets_of(party, state)
        # So many that none is `LARGEST` deviations from the mean.
        rows = max(REACHED, int(len(y) / LARGEST**2))
        if not _bounded(Y) and state.task.target == "continuous":
            state.lowest, state.highest = reached(np.sort(y), rows)
            Y = targets_of(party, state)
        if _bounded(Y):
            beyond = int(((y < state.lowest) | (y > state.highest)).sum())
            if beyond:
                log.warning(
                    "%d of %d labels are clipped at values that %d rows reach, since "
                    "labels that stand out would reveal single rows of other parties: "
                    "the model does not learn how far they are beyond",
                    *(beyond, len(y), rows),
                )
            state.muted = muted_columns(fitted, Y)
            if len(state.muted):
                log.info(
                    "%d of %d local columns of this party are zeros, since together "
                    "with the labels they would reveal single rows of other parties",
                    *(len(state.muted), fitted.local.n_columns),
                )
            return
        fewest = min(len(x) - np.unique(x, return_counts=True)[1].max() for x in Y.T)
        rule = (
            f"labels must differ from the most frequent one in at least {LEAST_ROWS} "
            "rows to train on, each class must have so many, and no number may stand "
            "out by itself, or a Gram matrix would reveal a single row of all columns: "
            f"there are {fewest} such rows; take more rows or fewer classes"
        )
    withhold(party, rule)
    state.constant = True


def _known(Y: Array) -> Array:
    """Return the targets without the last class, which follows from the others."""
    return Y[:, : max(1, Y.shape[1] - 1)]


def _bounded(Y: Array) -> bool:
    """Return whether targets point to no single row."""
    return bool(np.abs(Y).max() <= LARGEST) and all(
        bounded(columns, least=LEAST_ROWS, most_leverage=MOST_LEVERAGE).all()
        for columns in (_known(Y), Y[:, -1:])
    )


def muted_columns(fitted: OwnColumns, Y: Array) -> Array:
    """Return the local columns without which targets and columns point to no row."""
    known, local = _known(Y), local_columns(fitted.local, fitted.X)
    retained = np.ones(local.shape[1], dtype=bool)
    while True:
        stays = bounded(
            np.hstack([local[:, retained], known]),
            least=LEAST_ROWS,
            most_leverage=MOST_LEVERAGE,
            fixed=known.shape[1],
        )
        if stays.all():
            return np.flatnonzero(~retained)
        retained[np.flatnonzero(retained)[~stays[: retained.sum()]]] = False
