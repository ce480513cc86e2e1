"""Solve a ridge model at the label holder, and store local models at the parties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

import numpy as np

from vfl_flower.clients import products
from vfl_flower.clients.evaluation import signs_of
from vfl_flower.clients.ridge import state as ridge
from vfl_flower.clients.ridge.training import KINDS
from vfl_flower.numerics.ridge.features import pack_local
from vfl_flower.numerics.ridge.fit import FitKind, GramFit, fit_gram
from vfl_flower.numerics.ridge.local_columns import LocalColumns
from vfl_flower.numerics.ridge.relevance import derivative_products, relevance_of
from vfl_flower.numerics.ridge.relevance import probes as draw_probes
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.settings import Count, Natural, NotNegative, Positive
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.secure_aggregation.products.relevance import (
    PROBES,
    hidden_probes,
    relevance_deal,
)
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import Portion
from vfl_flower.typing import Array

step = step_of("ridge")


class Mixed(TypedDict, total=False):
    """Reply of :func:`relevance`, from the label holder to each other party."""

    probes: products.Secrets


class FittedRidge(TypedDict):
    """Reply of :func:`fit`; only the label holder sends more than `kept`.

    `constant` is true if the label holder used none of its labels, because the labels
    of the training rows violate a rule or because no model fits them. The model is then
    the mean of all labels of the label holder, or the frequencies of the classes, and
    `cv_score` is the error of this model.
    """

    kept: bool
    regularization: NotRequired[Positive]
    cv_score: NotRequired[NotNegative]
    constant: NotRequired[bool]


@step
@sums_over("earlier")
@once
@reveals("moments", when="share", times="counted")
def relevance(
    party: Party,
    kinds: list[Count],
    widths: list[Natural],
    counted: Natural,
    share: products.Secrets | None = None,
    frequencies: products.Secrets | None = None,
    triples: products.FromServer | None = None,
) -> Mixed:
    """Solve the system at the label holder; send others their columns' relevance.

    kinds, share: as for :func:`fit`.
    widths, counted: the number of columns of each party, and of all other parties
        together, as counted for consent.
    triples: the server's triples for the label holder, in party order.
    """
    state = party.recall(ridge.RidgeState)
    roles, joint = _computed(party).roles, state.joint
    if party.y is None:
        return {}
    if triples is None:
        raise PartyError("the label holder's request must include the dealer's triples")
    if joint is None or joint.relevant:
        raise PartyError("relevance must follow a first round with joint features")
    others = [j for j in range(party.n_parties) if j != party.index]
    if sorted(frequencies or {}) != others or len(widths) != party.n_parties:
        raise PartyError("frequencies must come from all other parties")
    assert frequencies is not None
    assert party.agree is not None
    if counted != sum(widths[j] for j in others):
        raise PartyError("counted must be the number of the other parties' columns")
    fitted = ridge.own_columns(party, state.task)
    gram, solved, _ = _solve(party, state, kinds, share or {}, fitted.local)
    rng = party.rng("probes")
    if state.constant:
        B = rng.standard_normal((joint.angles, PROBES)) / np.sqrt(joint.angles)
    else:
        B = drawn_probes(gram, solved, joint, rng)
    omega = ridge.frequencies_of(party, state, joint, fitted.X.shape[1])
    state.relevance = np.sqrt(relevance_of(omega.T @ B))
    reply: dict[int, Array] = {}
    portion = Portion(triples)
    with refusing():
        for j in others:
            deal = relevance_deal(roles, party.session, j, widths[j])
            sealed = portion.take().pack(), frequencies[j]
            reply[j] = hidden_probes(deal, *sealed, B, party.agree(j))
        portion.end()
    return {"probes": reply}


@step
@sums_over("earlier")
@once
def fit(
    party: Party, kinds: list[Count], share: products.Secrets | None = None
) -> FittedRidge:
    """Solve the system at the label holder; each party keeps its local model.

    kinds: the number of local columns of each type, for each party.
    """
    state, product = party.recall(ridge.RidgeState), _computed(party)
    task, settings, first = state.task, state.joint, product.roles.first
    fitted, widths = ridge.own_columns(party, state.task), _local_widths(party, kinds)
    part: dict[str, Any] = {
        "kernel": task.kernel,
        "bandwidth": 1.0,
        "n_features": product.roles.joint,
        "n_columns": fitted.X.shape[1],
        "n_parties": party.n_parties,
        "index": party.index or 0,
        "columns": list(party.columns or ()),
        "holder": first,
        "local": fitted.local.n_columns,
        "widths": widths,
        "outputs": product.roles.owners[first] - widths[first] - 1,
        **pack_local(replace(fitted.local, muted=state.muted)),
    }
    if settings is not None:
        lists = "bandwidths", "counts", "densities"
        part |= {name: np.array(getattr(settings, name)) for name in lists}
        part["bandwidth"] = max(settings.bandwidths)
        part["seed"] = f"{ridge.seed_of(party, settings):032x}"
        part["multiple"] = state.multiple
        if settings.relevant:
            part["relevance"] = state.relevance
    reply: FittedRidge = {"kept": party.state_dir is not None}
    if party.y is not None:
        _, solved, order = _solve(party, state, kinds, share or {}, fitted.local)
        scale = state.y_scale
        # In the order of the Gram matrix, without the targets and the column of ones.
        places = np.argsort(order[: len(solved.weights)])
        part |= {
            "coef": scale * solved.weights[places],
            "intercept": state.y_mean + scale * solved.intercept,
            "target": task.target,
            "classes": state.classes,
        }
        names = "slope", "offset", "tail"
        calibration = {name: getattr(solved, name) for name in names}
        part |= {n: value for n, value in calibration.items() if value is not None}
        if task.balanced and solved.slope is not None:
            part |= _log_odds(part)
        reply["regularization"] = float(solved.penalties.min())
        reply["cv_score"] = float(scale**2 * solved.error.mean())
        reply["constant"] = state.constant
    party.part = part
    party.forget(products.ProductState)
    party.forget(ridge.RidgeState)
    return reply


def _computed(party: Party) -> products.ProductState:
    """Return the state of a round whose Gram matrix is computed."""
    product = party.recall(products.ProductState)
    if not product.multiplied:
        raise PartyError("this step must follow the step multiply")
    return product


def _local_widths(party: Party, kinds: Sequence[int]) -> list[int]:
    if len(kinds) != KINDS * party.n_parties:
        raise PartyError("kinds must list the number of local columns of each kind")
    return [sum(kinds[k : k + KINDS]) for k in range(0, len(kinds), KINDS)]


def _solve(
    party: Party,
    state: ridge.RidgeState,
    kinds: Sequence[int],
    share: dict[int, Array],
    local: LocalColumns,
) -> tuple[Array, GramFit, Array]:
    """Open the Gram matrix and solve the system.

    Returns the matrix, the solution, and the order of the matrix's columns: local
    columns, joint features by bandwidth, targets, and the column of ones.
    """
    task, product = state.task, _computed(party)
    roles = product.roles
    expected = list(roles.owners)
    expected[roles.first] = local.n_columns
    if _local_widths(party, kinds) != expected:
        raise PartyError("kinds must list the number of local columns of each kind")
    counts = state.joint.counts if state.joint is not None else []
    order = _order(roles, local.n_columns, counts)
    gram = products.opened(party, product, share)[np.ix_(order, order)]
    sizes = [*kinds, *(2 * count for count in counts)]
    M = sum(sizes)
    weights = _balance(gram, len(order) - M - 1) if task.balanced else None
    try:
        if not state.constant:
            kind: FitKind = "continuous" if task.target == "continuous" else "classes"
            solved = fit_gram(gram, sizes, kind, class_weights=weights)
    except ValueError as error:
        products.withhold(party, str(error))
        state.constant = True
    if state.constant:
        solved = _constant(party, state, M)
    return gram, solved, order


def _constant(party: Party, state: ridge.RidgeState, M: int) -> GramFit:
    """Return the constant model of all the party's labels, regardless of the rows."""
    assert party.y is not None
    y, target = np.asarray(party.y, dtype=np.float64), state.task.target
    y, ones = y[~np.isnan(y)], np.ones(ridge.outputs_of(state))
    state.y_mean, state.y_scale, more = 0.0, 1.0, {}
    intercept = np.zeros(len(ones))
    if target == "continuous":
        largest = np.finfo(np.float64).max ** 0.25  # its square is finite
        y = np.clip(y, -largest, largest)
        state.y_mean, state.y_scale = float(y.mean()), float(y.std()) or 1.0
    else:
        shares = (1 + signs_of(y, target, state.classes).mean(axis=0)) / 2
        intercept = 2 * shares - 1
        odds = shares / (1 - shares) if len(ones) == 1 else shares
        more = {"slope": np.zeros((len(ones),) * 2), "offset": np.log(odds)}
    none = np.zeros((M, len(ones)))
    return GramFit(none, intercept, np.ones(1), ones, ones, **more)


def _log_odds(part: dict[str, Any]) -> dict[str, Any]:
    """Return the map from f to log odds, whose sign or maximum determines the class.

    Log odds of several classes are determined only up to a constant in each row, so
    their mean is set to 0.
    """
    slope, offset, K = part["slope"], part["offset"], len(part["offset"])
    if K > 1:
        slope = slope - slope.mean(axis=1, keepdims=True)
        offset = offset - offset.mean()
    return {
        "coef": part["coef"] @ slope,
        "intercept": part["intercept"] @ slope + offset,
        "slope": np.eye(K),
        "offset": np.zeros(K),
    }


def _balance(gram: Array, outputs: int) -> Array:
    """Return the inverse of each class's row count, from the sums of the targets."""
    ones = gram[-1 - outputs :, -1]
    counts = 0.5 * (ones[-1] + ones[:-1])
    if outputs == 1:
        counts = np.append(ones[-1] - counts, counts)
    return np.asarray(1 / np.maximum(counts, 1))


def drawn_probes(
    gram: Array, solved: GramFit, joint: ridge.Joint, rng: np.random.Generator
) -> Array:
    """Return B for frequencies times their bandwidths, of shape (A, probes).

    B is in units of the standard deviation of f over the training rows. It is computed
    from the Gram matrix of the system, whose joint features come last, by bandwidth.
    """
    weights, n, A = solved.weights, gram[-1, -1], joint.angles
    M = len(weights)
    of_kernel = np.repeat(np.arange(len(joint.counts)), joint.counts)
    before = np.cumsum([0, *joint.counts[:-1]])[of_kernel]
    cosines = M - 2 * A + before + np.arange(A)
    place = np.concatenate([cosines, cosines + np.array(joint.counts)[of_kernel]])
    mean = gram[:M, -1] @ weights / n
    squares = np.einsum("jk,jk->k", weights, gram[:M, :M] @ weights) / n
    power = float((squares - mean**2).sum())
    H = derivative_products(gram[np.ix_(place, place)], weights[place], n)
    units = np.repeat(joint.bandwidths, joint.counts)
    return draw_probes(H / np.outer(units, units) / max(power, 1e-12), PROBES, rng)


def _order(roles: Roles, local: int, counts: Sequence[int]) -> Array:
    """Return positions of local columns, joint features, targets and the constant."""
    start = sum(roles.owners[: roles.first]) + local
    stop = sum(roles.owners[: roles.first + 1])
    first, angles = roles.columns - roles.joint, roles.joint // 2
    places = np.arange(roles.columns)
    cosines = np.split(places[first : first + angles], np.cumsum(counts))
    both = [np.concatenate([part, part + angles]) for part in cosines]
    return np.concatenate(
        [places[:start], places[stop:first], *both, places[start:stop]]
    )
