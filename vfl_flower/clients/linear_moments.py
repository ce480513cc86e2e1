"""A party's side of linear regression from a Gram matrix of all parties' columns.

Party j has A_j = V (X_j - mean) on the rows of the coreset, V = diag(sqrt(w / n)), as
for the other solvers (:mod:`vfl_flower.clients.linear`), and opens an orthonormal basis
U_j of its columns, A_j = U_j R_j, under the masks of
:mod:`vfl_flower.clients.moments`. The label holder gets R_j and the means, which tell
no more than the Gram matrix of A_j that it opens, solves, and sends the coefficients of
all parties to the server. Errors on other rows are computed from the model afterwards
(:mod:`vfl_flower.clients.linear_losses`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients.coresets import (
    WeightedRows,
    check_labels,
    numbers_of,
    training_rows,
)
from vfl_flower.clients.linear import Strength
from vfl_flower.clients.moments import (
    Bytes,
    MomentsState,
    checks_of,
    dealt_to,
    hide,
    opened,
)
from vfl_flower.clients.moments_roles import (
    MOST_LEVERAGE,
    NORM,
    Roles,
    check_epsilon,
    check_roles,
    check_rows,
    withhold,
)
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.leverage import leverage_factor
from vfl_flower.numerics.linear import Penalty, constant_noise
from vfl_flower.numerics.moments import (
    bounded_columns,
    canonical_basis,
    sigma_min_of_moments,
    solve_moments,
)
from vfl_flower.numerics.row_clip import row_clip
from vfl_flower.protocol.consent import LEAST_ROWS
from vfl_flower.protocol.contract import OWN, PRIVATE, Reals
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.settings import Fraction, Natural, NotNegative
from vfl_flower.protocol.steps import once, reveals, step, sums_over
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

LARGEST = 1e100
"""Largest size of a mean or a length: no product overflows."""


class Columns(TypedDict):
    """Reply of :func:`columns`."""

    openings: Annotated[dict[int, Array], Bytes, PRIVATE]
    units: Annotated[dict[int, Array], Bytes, PRIVATE]
    checks: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class Solved(TypedDict):
    """Reply of :func:`solve`: of all columns in party order, and numbers of the whole.

    ``loss`` is that of the coreset, and ``left_out`` counts the columns that their
    parties have left out of the model. ``constant`` says that the label holder has not
    used its labels: the model is then their mean over all of its rows, whatever rows
    were asked for, and the loss is their variance.
    """

    coefficients: Annotated[Array, Reals("d")]
    intercept: Annotated[float, Ge(-1e150), Le(1e150)]
    loss: NotNegative
    sigma_min: Annotated[float, Ge(0), Le(1)]
    left_out: Annotated[int, Ge(0)]
    constant: bool


def _rows(
    party: Party, test_fraction: float, coreset: WeightedRows | None
) -> tuple[Array, Array | None]:
    """Return the rows and weights of the Gram matrix, each row once."""
    if coreset is None:
        train = training_rows(party, test_fraction)
        return np.arange(party.n_rows) if train is None else train, None
    rows, places = np.unique(numbers_of(coreset.rows), return_inverse=True)
    weights = np.asarray(coreset.weights, dtype=np.float64)
    return rows, np.bincount(places, weights=weights)


@step
@sums_over("request")
@once
@reveals("coefficients")
@reveals("moments", times="counted")
def columns(
    party: Party,
    roles: Roles,
    counted: Natural,
    n: Natural,
    intercept: bool,
    test_fraction: Fraction,
    coreset: WeightedRows | None = None,
    dealt: Annotated[Array | None, Bytes, OWN] = None,
    delivered: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> Columns:
    """Open the party's columns under the masks, and tell the label holder their units.

    Without a coreset the rows are all training rows, with weight 1 each.

    Parameters
    ----------
    roles : Roles
        Who does what.
    counted : int
        Number of columns of the Gram matrix, as consent counts them.
    n : int
        Number of rows that the weights stand for.
    intercept : bool
        Whether columns and labels are taken about their means.
    dealt, delivered : Array of uint8, dict of int to Array of uint8
        What the dealer sends: the server, or a party.
    """
    check_labels(party)
    X_all = party.rows
    d, holder = X_all.shape[1], party.index == roles.first
    check_epsilon(party)
    check_roles(party, roles, d + holder, turn=0)
    rows, weights = _rows(party, test_fraction, coreset)
    if counted != roles.columns or roles.rows != [len(rows)]:
        raise PartyError("counted and rows must be those of the Gram matrix")
    check_rows(weights, len(rows), roles.columns)
    party.sum_over(rows, weights)
    X = np.asarray(X_all.take(rows), dtype=np.float64)
    w = np.ones(len(rows)) if weights is None else weights
    root = np.sqrt(w / n)
    y, t, y_mean, y_size, suitable = None, None, 0.0, 0.0, True
    # The server chooses rows and weights, so that a refusal would tell it of
    # values: what overflows is left out, as are columns that point to a row.
    if party.y is not None:
        y = party.y[rows].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            y_mean = float(w @ y / w.sum()) * intercept
            t = root * (y - y_mean)
            suitable = bool(np.hypot(y_mean, np.linalg.norm(t)) <= LARGEST)
        if suitable and t.any():
            suitable = bool(_bounded(y[:, None], t[:, None])[0])
        if not suitable:
            t[:] = 0.0
    target = None if t is None or not t.any() else y
    mean, A, large = _centered(X, w, root, intercept)
    varied, place = np.asarray(A.any(axis=0)), np.arange(d)
    clip, moved = None, 0
    stays = _bounded(X, A, target, t)
    used = varied & (X != X[:1]).any(axis=0)  # a constant one says nothing of rows
    if (used & ~stays).any():
        clip = row_clip(
            *(X, root, target, used),
            intercept=intercept,
            least_rows=LEAST_ROWS,
            most_leverage=MOST_LEVERAGE,
        )
        X, place, moved = clip(X), clip.place, clip.moved(X)
        mean, A, _ = _centered(X, w, root, intercept)
        stays = _bounded(X, A, target, t)
    del X
    left_out = large | (varied & ~(stays[place] & (place >= 0)))
    if clip is not None or left_out.any():
        log.warning(
            "in the linear model, columns of this party that are left out: %s; that "
            "are added to others, since few rows differ in them: %s; rows moved "
            "towards the mean, since they stand out: %d",
            _names(party, left_out),
            _names(party, ~left_out & (place != np.arange(d))),
            moved,
        )
    A[:, ~stays] = 0.0
    mean[~A.any(axis=0)] = 0.0
    part, R = canonical_basis(A, leverage_factor(RowBlocks(A)))
    del A
    if t is not None:
        y_size = float(np.linalg.norm(t))
        part = np.column_stack([part, t / (y_size or 1.0)])
    part *= NORM
    if not suitable:
        withhold(
            party,
            f"the labels must have at least {LEAST_ROWS} rows other than the most "
            f"frequent value, none that stands out by itself and none above "
            f"{LARGEST:g}, or a Gram matrix with them would tell a single row of all "
            "columns",
        )
        part[:, -1] = 0.0
        y_size, y_mean = 0.0, _mean_of_all(party) * intercept
    sent = np.concatenate([mean, R.ravel(), [left_out.sum()]])
    given = dealt_to(dealt, delivered, roles)
    check = checks_of(party, roles, given)
    reply: Columns = {
        "openings": hide(party, roles, [part], given),
        "units": {roles.first: sent.astype("<f8").view(np.uint8)},
    }
    if check is not None:
        other = roles.second if holder else roles.first
        reply["checks"] = {other: check}
    dealt = given[: len(given) * (check is not None)]  # the two that compute need it
    state = MomentsState(roles, dealt, None, y_mean, np.array([y_size]))
    party.remember(replace(state, constant=not suitable, clip=clip))
    return reply


def _names(party: Party, chosen: Array) -> str:
    """Return the names of columns, or their numbers from 0, for the party's log."""
    names = party.columns or range(len(chosen))
    return ", ".join(str(names[k]) for k in np.flatnonzero(chosen).tolist()) or "none"


def _centered(
    X: Array, w: Array, root: Array, intercept: bool
) -> tuple[Array, Array, Array]:
    """Return the means, the columns A_j, and which are zeros since they overflow."""
    mean = np.zeros(X.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        if intercept:
            mean = w @ X / w.sum()
        A = np.subtract(X, mean)
        A *= root[:, None]
        spread = np.sqrt(np.einsum("ij,ij->j", A, A) / (root @ root))
        A[:, spread <= constant_noise(mean, len(X)) * intercept] = 0.0
        large = ~(np.maximum(np.abs(mean), np.linalg.norm(A, axis=0)) <= LARGEST)
    A[:, large] = 0.0
    return mean, A, large


def _bounded(
    X: Array, A: Array, y: Array | None = None, t: Array | None = None
) -> Array:
    """Return which columns point to no single row, also beside the labels."""
    if y is None or t is None:
        return bounded_columns(X.T, A, LEAST_ROWS, MOST_LEVERAGE)
    columns, scaled = [*X.T, y], np.column_stack([A, t])
    rules = LEAST_ROWS, MOST_LEVERAGE
    return bounded_columns(columns, scaled, *rules, labels=True)[:-1]


def _mean_of_all(party: Party) -> float:
    """Return the mean of all labels of the label holder, at most `LARGEST` in size."""
    assert party.y is not None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(party.y, dtype=np.float64).mean()
    return float(np.clip(np.nan_to_num(mean), -LARGEST, LARGEST))


@step
@sums_over("earlier")
@once
def solve(
    party: Party,
    units: Annotated[dict[int, Array], Bytes, PRIVATE],
    shares: Annotated[dict[int, Array], Bytes, PRIVATE],
    l1: Strength,
    l2: Strength,
) -> Solved:
    """Open the Gram matrix and solve, at the label holder.

    Each party has consented in :func:`columns` that its coefficients leave.

    Parameters
    ----------
    units, shares : dict of int to Array of uint8
        What all parties, and the second one, have sent for this one.
    l1, l2 : float
        Of the penalty.
    """
    state = party.recall(MomentsState)
    roles, scale = state.roles, float(state.y_sizes[0]) or 1.0
    widths = [
        width - (owner == roles.first) for owner, width in enumerate(roles.owners)
    ]
    sent = [_units(units, owner, d) for owner, d in enumerate(widths)]
    mean = np.concatenate([unit[0] for unit in sent])
    starts = np.cumsum([0, *widths])
    # The labels are the last of the first party's columns; here, of all.
    label = int(sum(roles.owners[: roles.first + 1])) - 1
    order = [place for place in range(roles.columns) if place != label] + [label]
    R = np.zeros((len(mean), len(mean)))
    for start, unit in zip(starts, sent, strict=False):
        stop = start + len(unit[0])
        R[start:stop, start:stop] = unit[1]
    gram = opened(party, state, shares)[0][np.ix_(order, order)] / NORM**2
    theta, error = solve_moments(gram, R, Penalty(l1 / scale, l2))
    theta, loss = scale * theta, scale**2 * error
    if state.constant:
        theta, loss = np.zeros(len(mean)), _variance(party, state)
    blocks = [np.arange(a, b) for a, b in pairwise(starts)]
    blocks[roles.first] = np.append(blocks[roles.first], len(mean))
    return {
        "coefficients": theta,
        "intercept": state.y_mean - float(mean @ theta),
        "loss": loss,
        "sigma_min": sigma_min_of_moments(gram, blocks),
        "left_out": sum(unit[2] for unit in sent),
        "constant": state.constant,
    }


def _variance(party: Party, state: MomentsState) -> float:
    """Return the mean squared error of the constant model on all labels."""
    assert party.y is not None
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.square(np.asarray(party.y, dtype=np.float64) - state.y_mean).mean()
    return float(np.minimum(np.nan_to_num(error), LARGEST))


def _units(units: dict[int, Array], owner: int, d: int) -> tuple[Array, Array, int]:
    """Return the mean, R and the number of columns left out of a party."""
    data = units.get(owner, np.zeros(0, np.uint8)).tobytes()
    if len(data) != 8 * (d + d * d + 1):
        raise PartyError(f"units must be of the columns of the party at place {owner}")
    sent = np.frombuffer(data, "<f8")
    if not np.abs(sent).max(initial=0.0) <= LARGEST:
        raise PartyError(f"units must be numbers of at most {LARGEST:g} in size")
    mean, R, count = np.split(sent, [d, d + d * d])
    if not 0 <= count[0] <= d:
        raise PartyError("units must have a number of columns that are left out")
    return mean, R.reshape(d, d), int(count[0])
