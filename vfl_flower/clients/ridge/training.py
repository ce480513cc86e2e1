"""A party's side of a ridge model that is computed only from sums of products.

A row has local columns, which each party derives from its own columns, and joint
features (:mod:`vfl_flower.clients.ridge.state`), which nobody knows: the two computing
parties have shares of them. The label holder opens the Gram matrix
(:mod:`vfl_flower.clients.products`) and solves the system. It also checks the labels:
see :func:`check_targets`.

:mod:`vfl_flower.secure_aggregation.products.dealing` generates the dealer's randomness,
and :mod:`vfl_flower.clients.ridge.scores` scores new rows.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated, NotRequired, TypedDict, cast

import numpy as np
from annotated_types import Ge, Le, MaxLen, MinLen

from vfl_flower.clients import products
from vfl_flower.clients.evaluation import Columns, classes_of, signs_of
from vfl_flower.clients.ridge import state as ridge
from vfl_flower.clients.ridge.dealing import root_of
from vfl_flower.numerics.ridge.features import cumulants
from vfl_flower.numerics.ridge.local_columns import (
    REACHED,
    bounded,
    local_columns,
    reached,
    scaled_columns,
)
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.contract import IN_SUM, SEALED_FOR, Reals
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.settings import Count
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.secure_aggregation.products import dealing
from vfl_flower.secure_aggregation.products.relevance import (
    hidden_frequencies,
    opened_relevance,
    relevance_deal,
)
from vfl_flower.secure_aggregation.products.roles import LARGEST, Roles
from vfl_flower.secure_aggregation.products.shares import BLOCK_ROWS
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("ridge")

MOST_TURNS = 2
"""Maximum number of Gram matrices in a run: one for the relevance of columns, and one
for the solution."""

KINDS = 3
"""Number of types of local columns."""

MOST_CUMULANT = 2.0**39
"""Largest cumulant of distances in units of relevance; larger values are clipped."""

PART_ROWS = 16 * BLOCK_ROWS
"""Number of rows whose columns and angles a party computes at once."""


class Prepared(TypedDict):
    """Reply of :func:`prepare`: column counts by type, and sums for the bandwidth."""

    columns: Annotated[list[Count], MinLen(KINDS), MaxLen(KINDS)]
    outputs: NotRequired[Columns]
    distances: Annotated[Array, Reals("3"), IN_SUM]


class HiddenColumns(products.Hidden):
    """Reply of :func:`hide_rows`."""

    angles: NotRequired[Annotated[dict[int, Array], Reals("m *"), SEALED_FOR]]
    turn_cosines: NotRequired[products.Secrets]
    frequencies: NotRequired[products.Secrets]
    distances: NotRequired[Annotated[Array, Reals("3"), IN_SUM]]


class OpenedJoint(TypedDict, total=False):
    """Reply of :func:`open_joint`."""

    joint: products.Secrets


@step
@sums_over("request")
@once
@reveals("moments")
def prepare(party: Party, task: ridge.Task) -> Prepared:
    """Fit the local columns, and report the number of columns of each type."""
    if party.part:
        raise PartyError("this run already has its model")
    party.sum_over(ridge.training_rows(party, task))
    fitted, state = ridge.own_columns(party, task), ridge.RidgeState(task)
    scaled = scaled_columns(fitted.local, fitted.X)
    reply: Prepared = {
        "columns": fitted.local.sizes,
        "distances": cumulants(scaled, task.kernel, party.rng("pairs")),
    }
    if party.y is not None:
        state.classes = classes_of(party, task.target)
        if task.target == "multiclass" and len(state.classes) < 3:
            raise PartyError(
                "labels must have at least three values, unless target is 'binary'"
            )
        check_targets(party, state, fitted)
        reply["outputs"] = ridge.outputs_of(state)
    party.remember(state)
    return reply


@step
@sums_over("earlier")
@reveals("moments", times="counted")
def hide_rows(
    party: Party,
    roles: Roles,
    counted: Count,
    joint: ridge.Joint | None = None,
    dealt: products.FromServer | None = None,
    turn_parts: products.Secrets | None = None,
    triple: products.FromServer | None = None,
    probes: products.Secrets | None = None,
) -> HiddenColumns:
    """Send the party's local columns under masks, and its angles plus random angles.

    counted: the number of columns of the Gram matrix, as counted for consent.
    dealt, turn_parts: the dealer's randomness, from the server or from a party.
    triple, probes: for the relevance of the party's columns, the server's triple and
        the label holder's message after the round that finds the relevance.
    """
    state = party.recall(ridge.RidgeState)
    _check_turn(party, state, roles, joint)
    if counted != roles.columns:
        raise PartyError("counted must be the number of columns of the Gram matrix")
    given = products.dealt_to(dealt, turn_parts, roles)
    head = ridge.HEAD * bool(roles.joint)
    product, turns = products.ProductState(roles, given[head:]), state.turns + 1
    state = replace(state, joint=joint, multiple=0, turns=turns, angles=given[:head])
    if joint is not None and joint.relevant:
        _open_relevance(party, state, probes)
    fitted = ridge.own_columns(party, state.task)
    parts = [slice(k, k + PART_ROWS) for k in range(0, roles.rows, PART_ROWS)]
    columns = (_columns(party, state, fitted, rows) for rows in parts)
    reply = cast(HiddenColumns, products.hide(party, product, columns))
    party.remember(state)
    party.remember(product)
    if joint is None:
        return reply
    angles = (ridge.angles_of(party, state, joint, fitted, rows) for rows in parts)
    use = dealing.training_angles(roles, party.session)
    reply["angles"] = ridge.hidden_angles(party, roles, use, state.angles, angles)
    if roles.deals(party.index):
        sent = dealing.cosines_of(use, root_of(party), roles, joint.bits)
        reply["turn_cosines"] = {roles.second: sent}
    scaled = scaled_columns(fitted.local, fitted.X)
    if joint.relevant:
        relevant, rng = scaled * state.relevance, party.rng("pairs")
        distances = cumulants(relevant, state.task.kernel, rng)
        reply["distances"] = np.clip(distances, -MOST_CUMULANT, MOST_CUMULANT)
    if triple is not None:
        state.triple, state.pilot = triple, roles
        omega = ridge.frequencies_of(party, state, joint, fitted.X.shape[1])
        deal = relevance_deal(roles, party.session, party.index or 0, omega.shape[1])
        assert party.agree is not None
        with refusing():
            hidden = hidden_frequencies(deal, triple, omega, party.agree(roles.first))
        reply["frequencies"] = {roles.first: hidden}
    return reply


def _check_turn(
    party: Party, state: ridge.RidgeState, roles: Roles, joint: ridge.Joint | None
) -> None:
    """Refuse a round that this party's data or the protocol does not allow."""
    task = state.task
    width = ridge.own_columns(party, task).local.n_columns
    if party.y is not None:
        width += ridge.outputs_of(state) + 1
    products.check_roles(party, roles, width, dealing.joint_fraction(task.rows))
    if roles.rows != task.rows:
        raise PartyError("rows must be the number of training rows")
    if roles.turn != state.turns or roles.turn >= MOST_TURNS or party.part:
        raise PartyError(
            f"turns must be requested once each, in order, and below {MOST_TURNS}: "
            f"after {state.turns} turns, got turn {roles.turn}"
        )
    counts = [] if joint is None else joint.counts
    if (joint is None) != task.linear or roles.joint != 2 * sum(counts):
        raise PartyError(
            "joint must be twice the number of angles (for a cosine and a sine of "
            "each), and 0 in a linear model"
        )
    if joint is not None and not (
        len(joint.bandwidths) == len(counts) == len(joint.densities)
    ):
        raise PartyError("joint must have a count and a density for each bandwidth")
    products.check_rows(party, None, task.rows, roles.columns)


def _columns(
    party: Party, state: ridge.RidgeState, fitted: ridge.OwnColumns, rows: slice
) -> Array:
    """Return the party's columns of the Gram matrix for some rows."""
    made = local_columns(replace(fitted.local, muted=state.muted), fitted.X[rows])
    if party.y is None:
        return made
    Y = targets_of(party, state)[rows]
    return np.column_stack([made, Y, np.ones(len(Y))])


@step
@sums_over("earlier")
def open_joint(
    party: Party,
    angles: ridge.OpenedAngles | None = None,
    cosines: products.FromServer | None = None,
    turn_cosines: products.Secrets | None = None,
    multiple: Annotated[int, Ge(1), Le(ridge.MOST_MULTIPLE)] = 1,
) -> OpenedJoint:
    """Compute shares of the joint features; open them to the other computing party.

    cosines, turn_cosines: the dealer's randomness for cosines, at the second party.
    multiple: the factor of each angle, by which the bandwidths are divided.
    """
    state, product = party.recall(ridge.RidgeState), party.recall(products.ProductState)
    if state.joint is None or state.multiple:
        raise PartyError("joint features must be sent only once, after step hide_rows")
    roles = product.roles
    if (angles is not None) != (party.index in (roles.first, roles.second)):
        raise PartyError("angles must be sent to the two computing parties alone")
    state.multiple = multiple
    if angles is None:
        return {}
    use = dealing.training_angles(roles, party.session)
    shares = ridge.joint_shares(
        *(party, roles, use, angles, state.angles, cosines, turn_cosines),
        *(state.joint.bits, multiple),
    )
    joint = products.open_joint(party, product, shares)
    return {"joint": {products.other_of(party, roles): joint}}


def _open_relevance(
    party: Party, state: ridge.RidgeState, probes: dict[int, Array] | None
) -> None:
    """Get the relevance of the party's columns from the label holder's message."""
    if party.y is not None:
        if not len(state.relevance):
            raise PartyError("joint.relevant must be false before the step relevance")
        return
    roles, probes = state.pilot, probes or {}
    if roles is None or list(probes) != [roles.first]:
        raise PartyError("probes must come from the label holder alone")
    d = ridge.own_columns(party, state.task).X.shape[1]
    deal = relevance_deal(roles, party.session, party.index or 0, d)
    with refusing():
        mean_squares = opened_relevance(deal, state.triple, probes[roles.first])
    state.relevance = np.sqrt(mean_squares)
    state.triple, state.pilot = np.zeros(0, np.uint8), None


# -- targets, and rules that keep labels from revealing single rows -------------------


def targets_of(party: Party, state: ridge.RidgeState) -> Array:
    """Return the label holder's targets, or zeros if its labels break a rule."""
    task, rows = state.task, ridge.training_rows(party, state.task)
    assert party.y is not None
    if state.constant:
        return np.zeros((len(rows), ridge.outputs_of(state)))
    y = np.asarray(party.y[rows], dtype=np.float64)
    if task.target == "continuous":
        y = np.clip(y, state.lowest, state.highest)
        with np.errstate(over="ignore", invalid="ignore"):
            state.y_mean, state.y_scale = float(y.mean()), float(y.std()) or 1.0
            y = (y - state.y_mean) / state.y_scale
    return signs_of(y, task.target, state.classes)


def check_targets(
    party: Party, state: ridge.RidgeState, fitted: ridge.OwnColumns
) -> None:
    """Withhold labels with which a Gram matrix would reveal a single row.

    Before that, real labels are clipped, and local columns that, together with the
    labels, would reveal a row are set to zero. The columns are not removed, because
    the server learns their number, which must not depend on labels.
    """
    assert party.y is not None
    y = party.y[ridge.training_rows(party, state.task)]
    rule = "all training rows must have a label"
    if not np.isnan(y).any():
        Y = targets_of(party, state)
        # Enough rows that none is `LARGEST` standard deviations from the mean.
        rows = max(REACHED, int(len(y) / LARGEST**2))
        if not _bounded(Y) and state.task.target == "continuous":
            state.lowest, state.highest = reached(np.sort(y), rows)
            Y = targets_of(party, state)
        if _bounded(Y):
            beyond = int(((y < state.lowest) | (y > state.highest)).sum())
            if beyond:
                log.warning(
                    "%d of %d labels are clipped at values that %d rows reach, because "
                    "outlying labels would reveal single rows of other parties. The "
                    "model does not learn how far labels lie beyond these values",
                    *(beyond, len(y), rows),
                )
            state.muted = muted_columns(fitted, Y)
            if len(state.muted):
                log.info(
                    "%d of %d local columns of this party are set to 0: together "
                    "with the labels, they would reveal single rows of other parties",
                    *(len(state.muted), fitted.local.n_columns),
                )
            return
        fewest = min(len(x) - np.unique(x, return_counts=True)[1].max() for x in Y.T)
        rule = (
            f"labels must differ from the most frequent label in at least {LEAST_ROWS} "
            f"training rows, each class must have at least {LEAST_ROWS} rows, and no "
            "label may be an outlier, or a Gram matrix would reveal all columns of a "
            f"single row. The lowest count is {fewest}: use more rows or fewer classes"
        )
    products.withhold(party, rule)
    state.constant = True


def _known(Y: Array) -> Array:
    """Return the targets without the last class, which follows from the others."""
    return Y[:, : max(1, Y.shape[1] - 1)]


def _bounded(Y: Array) -> bool:
    """Return whether the targets isolate no single row."""
    return bool(np.abs(Y).max() <= LARGEST) and all(
        bounded(columns, least=LEAST_ROWS, most_leverage=products.MOST_LEVERAGE).all()
        for columns in (_known(Y), Y[:, -1:])
    )


def muted_columns(fitted: ridge.OwnColumns, Y: Array) -> Array:
    """Return the local columns to mute, so that columns and targets isolate no row."""
    known, local = _known(Y), local_columns(fitted.local, fitted.X)
    retained = np.ones(local.shape[1], dtype=bool)
    while True:
        stays = bounded(
            np.hstack([local[:, retained], known]),
            least=LEAST_ROWS,
            most_leverage=products.MOST_LEVERAGE,
            fixed=known.shape[1],
        )
        if stays.all():
            return np.flatnonzero(~retained)
        retained[np.flatnonzero(retained)[~stays[: retained.sum()]]] = False
