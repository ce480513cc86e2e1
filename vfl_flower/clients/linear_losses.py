"""A party's side of the mean squared error of a linear model on rows held out.

Each party has one column, its part of the residuals: -X_j theta_j, and the label holder
y - b - X_j theta_j. The label holder opens the Gram matrix of these columns about their
means (:mod:`vfl_flower.clients.moments`) and gets their lengths and means: the mean
square of all residuals follows from them, and no residual of a row. The server learns
the errors alone.

Absolute errors and standard errors need the residuals of rows, which nobody has: the
party that gets the predictions computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict

import numpy as np
from annotated_types import Ge, Le

from vfl_flower.clients import moments
from vfl_flower.clients.coresets import check_labels, test_rows, training_rows
from vfl_flower.clients.linear import LinearState, solution_of
from vfl_flower.clients.linear_moments import LARGEST
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
    check_roles,
    check_rows,
)
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.evaluation import explained
from vfl_flower.numerics.moments import bounded_columns
from vfl_flower.numerics.row_clip import clipped
from vfl_flower.protocol.consent import LEAST_ROWS
from vfl_flower.protocol.contract import OWN, PRIVATE, Reals
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.settings import Fraction, Natural
from vfl_flower.protocol.steps import once, reveals, step, sums_over
from vfl_flower.typing import Array

TURN = 1
"""That of the roles, so that what is dealt here is of another use than the Gram matrix
that a model is solved from."""

_NUMBERS = 3
"""What is sent of a column: its mean, its length, and whether one row stands out."""


@dataclass(frozen=True)
class Evaluated:
    """On which rows the model is evaluated, besides those of the coreset.

    Attributes
    ----------
    test : bool
        On the rows that are held out.
    train : bool
        On all training rows.
    """

    test: bool
    train: bool


class Delivered(TypedDict):
    """Reply of :func:`deal`: for each party."""

    loss_delivered: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class Parts(TypedDict):
    """Reply of :func:`parts`."""

    loss_openings: Annotated[dict[int, Array], Bytes, PRIVATE]
    loss_units: Annotated[dict[int, Array], Bytes, PRIVATE]
    loss_checks: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class Shares(TypedDict):
    """Reply of :func:`gram`: of the second party, for the first."""

    loss_shares: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class Losses(TypedDict):
    """Reply of :func:`losses`: of each set of rows, the mean squared error and R^2."""

    losses: Annotated[Array, Reals("halves")]
    explained: Annotated[Array, Reals("halves")]
    standing_out: Annotated[int, Ge(0), Le(2**20)]


@step
@sums_over("none", "it sends random numbers alone")
@once
def deal(party: Party, roles: Roles) -> Delivered:
    """Deal for the errors: a run has dealt for its model in a step of its own."""
    check_roles(party, roles, turn=TURN)
    dealt = moments.deal(party, roles)
    return {"loss_delivered": dealt["delivered"]} if dealt else {}


@step
@sums_over("request")
@once
@reveals("moments", times="counted")
def parts(
    party: Party,
    roles: Roles,
    counted: Natural,
    test_fraction: Fraction,
    evaluated: Evaluated,
    intercept: float,
    coefficients: Annotated[Array | None, Reals("n_columns"), OWN] = None,
    dealt: Annotated[Array | None, Bytes, OWN] = None,
    loss_delivered: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> Parts:
    """Open the party's part of the predictions under the masks.

    Parameters
    ----------
    roles : Roles
        Who does what.
    counted : int
        Number of columns of all Gram matrices together, as consent counts them.
    evaluated : Evaluated
        On which rows.
    intercept : float
        b, in the unit of the coefficients.
    coefficients : Array, shape (d,), optional
        theta_j, in the unit of y; default: those that the party has solved for in this
        run, in the unit of the label scale.
    dealt, loss_delivered : Array of uint8, dict of int to Array of uint8
        What the dealer sends: the server, or a party.
    """
    check_labels(party)
    check_roles(party, roles, 1, turn=TURN)
    scale = 1.0
    if coefficients is None:
        state = party.recall(LinearState)
        coefficients, scale = solution_of(state), state.scale
    clip = party.remembered().get("clip", np.zeros((0, 0)))
    sets = _rows(party, test_fraction, evaluated)
    if counted != len(sets) * roles.columns or roles.rows != list(map(len, sets)):
        raise PartyError("counted and rows must be those of the Gram matrices")
    blocks, sent, sds = [], [], []
    for rows in sets:
        check_rows(party, None, len(rows), roles.columns)
        party.sum_over(rows)
        spread = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            blocks_of = RowBlocks(party.rows, rows=rows)
            part = blocks_of.per_row(lambda X: -clipped(clip, X) @ coefficients)
            if party.y is not None:
                y = party.y[rows].astype(np.float64) / scale
                part += y - intercept
                spread = y.std()
            mean = part.mean()
            column = (part - mean)[:, None] / np.sqrt(len(rows))
            sizes = [abs(mean), np.linalg.norm(column), spread]
            large = not np.max(sizes) <= LARGEST
        stands_out = large or (
            column.any()
            and not bounded_columns([part], column, LEAST_ROWS, MOST_LEVERAGE)[0]
        )
        if stands_out:  # no refusal: it would tell a server of values
            column[:] = mean = spread = 0.0
        sds.append(spread)
        size = np.linalg.norm(column)
        sent += [mean, size, stands_out]
        blocks.append(NORM * column / (size or 1.0))
    given = dealt_to(dealt, loss_delivered, roles)
    check = checks_of(party, roles, given)
    reply: Parts = {
        "loss_openings": hide(party, roles, blocks, given),
        "loss_units": {roles.first: np.array(sent, dtype="<f8").view(np.uint8)},
    }
    if check is not None:
        other = roles.second if party.index == roles.first else roles.first
        reply["loss_checks"] = {other: check}
        party.remember(MomentsState(roles, given, y_sizes=np.array(sds), clip=clip))
    return reply


def _rows(party: Party, test_fraction: float, evaluated: Evaluated) -> list[Array]:
    """Return the numbers of the rows of each Gram matrix."""
    sets = []
    if evaluated.test:
        sets.append(test_rows(party, test_fraction))
    if evaluated.train:
        train = training_rows(party, test_fraction)
        sets.append(np.arange(party.n_rows) if train is None else train)
    return sets


@step
@sums_over("earlier")
@once
def gram(
    party: Party,
    loss_openings: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    loss_checks: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> Shares:
    """Multiply the columns, as :func:`vfl_flower.clients.moments.gram` does."""
    shares = moments.gram(party, loss_openings, loss_checks)
    return {"loss_shares": shares["shares"]} if shares else {}


@step
@sums_over("earlier")
@once
def losses(
    party: Party,
    loss_units: Annotated[dict[int, Array], Bytes, PRIVATE],
    loss_shares: Annotated[dict[int, Array], Bytes, PRIVATE],
    scale: Annotated[float, Ge(1e-50), Le(1e50)],
) -> Losses:
    """Open the Gram matrices, at the label holder, and tell the errors.

    Where one row stands out in a column, its party has put zeros in its place, and the
    errors that are sent are 0: the right ones would be those of the row.

    Parameters
    ----------
    loss_units, loss_shares : dict of int to Array of uint8
        What all parties, and the second one, have sent for this one.
    scale : float
        What the unit of the coefficients is in the unit of y.
    """
    state = party.recall(MomentsState)
    grams = [matrix / NORM**2 for matrix in opened(party, state, loss_shares)]
    spreads = state.y_sizes
    sent = np.array(
        [_sent_of(loss_units, j, len(grams)) for j in range(party.n_parties)]
    )
    if standing_out := int(np.count_nonzero(sent[:, :, 2])):
        none = np.zeros(len(grams))
        return {"losses": none, "explained": none, "standing_out": standing_out}
    means, sizes = sent[:, :, 0].sum(axis=0), sent[:, :, 1].T
    errors = np.array(
        [
            mean**2 + max(0.0, float(size @ matrix @ size))
            for matrix, mean, size in zip(grams, means, sizes, strict=True)
        ]
    )
    r2 = [explained(*pair) for pair in zip(errors, spreads**2, strict=True)]
    return {
        "losses": scale**2 * errors,
        "explained": np.array(r2),
        "standing_out": 0,
    }


def _sent_of(units: dict[int, Array], owner: int, halves: int) -> Array:
    """Return what a party has sent of its columns, shape (halves, 3)."""
    data = units.get(owner, np.zeros(0, np.uint8)).tobytes()
    if len(data) != 8 * halves * _NUMBERS:
        raise PartyError(f"units must be of the columns of the party at place {owner}")
    sent = np.frombuffer(data, "<f8").reshape(halves, _NUMBERS)
    if not np.abs(sent).max(initial=0.0) <= LARGEST:
        raise PartyError(f"units must be numbers of at most {LARGEST:g} in size")
    return sent
