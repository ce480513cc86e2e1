"""A party's side of a ridge model that is solved from sums of products alone.

The features of a row are local columns, which each party makes of its own ones, and
joint ones (:mod:`vfl_flower.clients.ridge.angles`), which nobody knows: the two parties
that compute have shares of them. The label holder opens the Gram matrix of the rows
(:mod:`vfl_flower.clients.products`) and solves.

What a dealer gives for it is in :mod:`vfl_flower.clients.ridge.dealing`, and how new
rows are scored in :mod:`vfl_flower.clients.ridge.scores`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NotRequired, TypedDict, cast

import numpy as np
from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from vfl_flower.clients.evaluation import Columns, classes_of, columns_of, signs_of
from vfl_flower.clients.products import (
    MOST_LEVERAGE,
    Bytes,
    Hidden,
    ProductState,
    check_roles,
    check_rows,
    dealt_to,
    hide,
    opened,
    other_of,
    withhold,
)
from vfl_flower.clients.products import open_joint as open_columns
from vfl_flower.clients.ridge.angles import (
    HEAD,
    AngleBits,
    OpenedAngles,
    hidden_angles,
    joint_fraction,
    joint_shares,
)
from vfl_flower.clients.ridge.dealing import cosines_of, root_of, training_angles
from vfl_flower.clients.ridge.relevance import (
    PROBES,
    hidden_frequencies,
    hidden_probes,
    opened_relevance,
    relevance_deal,
)
from vfl_flower.numerics import split
from vfl_flower.numerics.kernel_model import Target
from vfl_flower.numerics.random_features import Kernel
from vfl_flower.numerics.ridge.features import (
    cumulants,
    joint_angles,
    joint_frequencies,
    pack_local,
)
from vfl_flower.numerics.ridge.fit import Block, GramFit, fit_gram
from vfl_flower.numerics.ridge.local_columns import (
    REACHED,
    LocalColumns,
    bounded,
    fit_local_columns,
    local_columns,
    reached,
    scaled_columns,
)
from vfl_flower.numerics.ridge.relevance import derivative_products, relevance_of
from vfl_flower.numerics.ridge.relevance import probes as draw_probes
from vfl_flower.protocol.consent import LEAST_ROWS
from vfl_flower.protocol.contract import IN_SUM, OWN, PRIVATE, SEALED_FOR, Reals
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.party import Party, PartyError
from vfl_flower.protocol.settings import Count, Fraction, Natural, NotNegative, Positive
from vfl_flower.protocol.steps import once, reveals, step, sums_over
from vfl_flower.secure_aggregation.products.roles import LARGEST, Roles
from vfl_flower.secure_aggregation.products.shares import BLOCK_ROWS, Portion
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

MOST_TURNS = 2
"""Most Gram matrices of a run: one that shows the relevance of columns, and the one
that is solved."""

MOST_MULTIPLE = 256
"""Most times that an angle is taken."""

KINDS = 3
"""Kinds of local columns."""

MOST_CUMULANT = 2.0**39
"""Largest cumulant of distances in units of relevance; larger ones are clipped."""

MOST_KERNELS = 8
"""Most bandwidths."""

PART_ROWS = 16 * BLOCK_ROWS
"""Rows whose columns and angles a party makes at once."""

Bandwidth = Annotated[float, Ge(1e-50), Le(1e50)]
"""With it no angle of a scaled column overflows: a refusal would tell of values."""


# -- what the server asks for ----------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What is learned, and of which rows."""

    target: Target
    """What the labels are."""
    kernel: Kernel
    test_fraction: Fraction
    """Share of the rows held out."""
    rows: Natural
    """How many of the others are trained on."""
    most: Count
    """Most local columns of a party."""
    values: Count
    """Most of values, where these are more."""
    balanced: bool = False
    """Whether classes count as if they had equally many rows."""
    linear: bool = False
    """Whether the features are the parties' own columns alone."""


@dataclass(frozen=True)
class Joint:
    """Which joint features there are."""

    bandwidths: Annotated[list[Bandwidth], MinLen(1), MaxLen(MOST_KERNELS)]
    """The bandwidths."""
    counts: Annotated[list[Natural], MinLen(1), MaxLen(MOST_KERNELS)]
    """The number of angles of each bandwidth."""
    densities: Annotated[
        list[Annotated[float, Gt(0), Le(1)]], MinLen(1), MaxLen(MOST_KERNELS)
    ]
    """For each bandwidth the probability with which an angle has a column."""
    bits: AngleBits
    """Of an angle."""
    relevant: bool = False
    """Whether columns are scaled by the root of their relevance."""

    @property
    def angles(self) -> int:
        """Number of angles."""
        return sum(self.counts)


# -- what a party keeps ----------------------------------------------------------------


@shapes_only
@dataclass
class RidgeState:
    """What a party keeps between messages, besides its part of the model."""

    task: Task
    """As the server has said."""
    joint: Joint | None = None
    """Of this turn; none in a linear model."""
    turns: int = 0
    """How many Gram matrices the party has started to compute."""
    angles: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """What it was dealt for its angles, of this turn, uint8."""
    multiple: int = 0
    """How many times each angle of this turn is taken; 0: not yet known."""
    triple: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """What it was dealt for the relevance of its columns, uint8."""
    pilot: Roles | None = None
    """Of the turn that shows the relevance."""
    relevance: Array = field(default_factory=lambda: np.zeros(0))
    """What its scaled columns are multiplied with, shape (d,); empty: nothing."""
    y_mean: float = 0.0
    y_scale: float = 1.0
    """At the label holder: mean and scale of the labels of the training rows."""
    lowest: float = -np.inf
    highest: float = np.inf
    """At the label holder: where its real labels are clipped."""
    classes: Array = field(default_factory=lambda: np.zeros(0))
    """At the label holder the labels of the classes."""
    muted: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """At the label holder its local columns that are 0 for the sake of the labels."""
    constant: bool = False
    """Whether its labels break a rule, so that zeros take the place of targets."""


def training_rows(party: Party, task: Task) -> Array:
    """Return the numbers of the rows, from what all parties know and no label."""
    n, fraction = party.n_rows, task.test_fraction
    with refusing():
        return split.training_rows(n, fraction, task.rows, party.seed)


@shapes_only
@dataclass(frozen=True)
class _Fitted:
    """A party's own columns on the training rows, and how local ones are made."""

    X: Array
    local: LocalColumns


def _fitted(party: Party, task: Task) -> _Fitted:
    """Return the party's columns of the training rows; the same each time."""
    known = party.cache.get("ridge")
    if known is not None and known[0] == (party.session, task):
        fitted: _Fitted = known[1]
        return fitted
    X = np.asarray(party.rows.take(training_rows(party, task)), dtype=np.float64)
    kinds = {"bins": 1, "waves": 0} if task.linear else {}
    local = fit_local_columns(
        X,
        most=max(task.most, min(X.shape[1], task.values)),
        least=LEAST_ROWS,
        rng=party.rng("local columns"),
        **kinds,
    )
    fitted = _Fitted(X, local)
    party.cache["ridge"] = (party.session, task), fitted
    return fitted


# -- training --------------------------------------------------------------------------


class Prepared(TypedDict):
    """Reply of :func:`prepare`: columns of each kind, and a sum for the bandwidth."""

    columns: Annotated[list[Count], MinLen(KINDS), MaxLen(KINDS)]
    outputs: NotRequired[Columns]
    distances: Annotated[Array, Reals("3"), IN_SUM]


class HiddenRows(Hidden):
    """Reply of :func:`hide_rows`."""

    angles: NotRequired[Annotated[dict[int, Array], Reals("m *"), SEALED_FOR]]
    turn_cosines: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    frequencies: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    distances: NotRequired[Annotated[Array, Reals("3"), IN_SUM]]


class OpenedJoint(TypedDict):
    """Reply of :func:`open_joint`."""

    joint: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class Mixed(TypedDict):
    """Reply of :func:`relevance`: of the label holder, for each other party."""

    probes: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class Fitted(TypedDict):
    """Reply of :func:`fit`; the label holder alone gives more than `kept`.

    ``constant`` says that it has made no use of its labels on the rows asked for: they
    break a rule, or no model fits them. The model is then their mean over all of its
    rows, or the shares of the classes, and ``cv_score`` the error of that.
    """

    kept: bool
    regularization: NotRequired[Positive]
    cv_score: NotRequired[NotNegative]
    constant: NotRequired[bool]


@step
@sums_over("request")
@once
@reveals("moments")
def prepare(party: Party, task: Task) -> Prepared:
    """Fit the local columns, and say how many there are."""
    if party.part:
        raise PartyError("this run has its model already")
    party.sum_over(training_rows(party, task))
    fitted, state = _fitted(party, task), RidgeState(task)
    scaled = scaled_columns(fitted.local, fitted.X)
    reply: Prepared = {
        "columns": [block.stop - block.start for block in fitted.local.blocks],
        "distances": cumulants(scaled, task.kernel, party.rng("pairs")),
    }
    if party.y is not None:
        state.classes = classes_of(party, task.target)
        if task.target == "multiclass" and len(state.classes) < 3:
            raise PartyError(
                "labels must have three values or more, or target is 'binary'"
            )
        _check_targets(party, state, fitted)
        reply["outputs"] = _outputs(state)
    party.remember(state)
    return reply


def _outputs(state: RidgeState) -> int:
    """Return the number of targets."""
    return columns_of(state.task.target, state.classes)


def _targets(party: Party, state: RidgeState) -> Array:
    """Return the targets of the label holder, zeros where its labels break a rule."""
    task, rows = state.task, training_rows(party, state.task)
    assert party.y is not None
    if state.constant:
        return np.zeros((len(rows), _outputs(state)))
    y = np.asarray(party.y[rows], dtype=np.float64)
    if task.target == "continuous":
        y = np.clip(y, state.lowest, state.highest)
        with np.errstate(over="ignore", invalid="ignore"):
            state.y_mean, state.y_scale = float(y.mean()), float(y.std()) or 1.0
            y = (y - state.y_mean) / state.y_scale
    return signs_of(y, task.target, state.classes)


def _check_targets(party: Party, state: RidgeState, fitted: _Fitted) -> None:
    """Withhold labels that would have a Gram matrix tell a single row.

    Real labels that do so are clipped first, and local columns that do so beside the
    labels are muted: no count of columns, which the server gets, depends on labels.
    """
    assert party.y is not None
    y = party.y[training_rows(party, state.task)]
    rule = "all rows to train on must have a label"
    if not np.isnan(y).any():
        Y = _targets(party, state)
        # So many that none is `LARGEST` deviations from the mean.
        rows = max(REACHED, int(len(y) / LARGEST**2))
        if not _bounded(Y) and state.task.target == "continuous":
            state.lowest, state.highest = reached(np.sort(y), rows)
            Y = _targets(party, state)
        if _bounded(Y):
            beyond = int(((y < state.lowest) | (y > state.highest)).sum())
            if beyond:
                log.warning(
                    "%d of %d labels are clipped at values that %d rows reach, since "
                    "labels that stand out would reveal single rows of other parties: "
                    "the model does not learn how far they are beyond",
                    *(beyond, len(y), rows),
                )
            state.muted = _muted(fitted, Y)
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


def _muted(fitted: _Fitted, Y: Array) -> Array:
    """Return the local columns without which targets and columns point to no row."""
    known, local = _known(Y), local_columns(fitted.local, fitted.X)
    kept = np.ones(local.shape[1], dtype=bool)
    while True:
        stays = bounded(
            np.hstack([local[:, kept], known]),
            least=LEAST_ROWS,
            most_leverage=MOST_LEVERAGE,
            fixed=known.shape[1],
        )
        if stays.all():
            return np.flatnonzero(~kept)
        kept[np.flatnonzero(kept)[~stays[: kept.sum()]]] = False


@step
@sums_over("earlier")
@reveals("moments", times="counted")
def hide_rows(
    party: Party,
    roles: Roles,
    counted: Count,
    joint: Joint | None = None,
    dealt: Annotated[Array | None, Bytes, OWN] = None,
    turn_parts: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    triple: Annotated[Array | None, Bytes, OWN] = None,
    probes: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> HiddenRows:
    """Open the party's local columns under the masks, and its angles plus random ones.

    counted: number of columns of the Gram matrix, as consent counts them.
    joint: the joint features; none in a linear model.
    dealt, turn_parts: what the dealer sends: the server, or a party.
    triple: what the server deals for the relevance of the party's columns.
    probes: what the label holder has sent for it after that turn.
    """
    state = party.recall(RidgeState)
    _check_turn(party, state, roles, joint)
    if counted != roles.columns:
        raise PartyError("counted must be the columns of the Gram matrix")
    given = dealt_to(dealt, turn_parts, roles)
    state.angles, rest = np.split(given, [HEAD * bool(roles.joint)])
    state.joint, state.multiple, state.turns = joint, 0, state.turns + 1
    product = ProductState(roles, rest)
    party.remember(product)
    if joint is not None and joint.relevant:
        _open_relevance(party, state, probes)
    fitted = _fitted(party, state.task)
    parts = [
        slice(start, start + PART_ROWS) for start in range(0, roles.rows, PART_ROWS)
    ]
    columns = (_columns(party, state, fitted, rows) for rows in parts)
    reply = cast(HiddenRows, hide(party, product, columns))
    if joint is None:
        return reply
    angles = (_angles(party, state, joint, fitted, rows) for rows in parts)
    use = training_angles(roles, party.session)
    reply["angles"] = hidden_angles(party, roles, use, state.angles, angles)
    if party.index == roles.dealer:
        sent = cosines_of(use, root_of(party), roles, joint.bits)
        reply["turn_cosines"] = {roles.second: sent}
    scaled = scaled_columns(fitted.local, fitted.X)
    if joint.relevant:
        own = cumulants(scaled * state.relevance, state.task.kernel, party.rng("pairs"))
        reply["distances"] = np.clip(own, -MOST_CUMULANT, MOST_CUMULANT)
    if triple is not None:
        state.triple, state.pilot = triple, roles
        d = fitted.X.shape[1]
        deal = relevance_deal(roles, party.session, party.index or 0, d)
        with refusing():
            omega = _frequencies(party, state, joint, d)
            assert party.agree is not None
            challenge = party.agree(roles.first)
            hidden = hidden_frequencies(deal, triple, omega, challenge)
        reply["frequencies"] = {roles.first: hidden}
    return reply


def _check_turn(
    party: Party, state: RidgeState, roles: Roles, joint: Joint | None
) -> None:
    """Refuse a turn that this party's data or the protocol does not allow."""
    task = state.task
    fitted, width = _fitted(party, task), 0
    if party.y is not None:
        width = _outputs(state) + 1
    fraction = joint_fraction(task.rows)
    check_roles(party, roles, fitted.local.n_columns + width, fraction)
    if roles.rows != task.rows:
        raise PartyError("rows must be those to train on")
    if roles.turn != state.turns or roles.turn >= MOST_TURNS or party.part:
        raise PartyError(
            f"turn must be the next one, {state.turns}, and below {MOST_TURNS}, got "
            f"{roles.turn}"
        )
    if (joint is None) != task.linear or roles.joint != (
        2 * joint.angles if joint is not None else 0
    ):
        raise PartyError(
            "joint must have a cosine and a sine for each angle; a linear model has "
            "none"
        )
    if joint is not None and not (
        len(joint.bandwidths) == len(joint.counts) == len(joint.densities)
    ):
        raise PartyError("joint must have a count and a density for each bandwidth")
    check_rows(party, None, task.rows, roles.columns)


def _columns(party: Party, state: RidgeState, fitted: _Fitted, rows: slice) -> Array:
    """Return the columns of rows that the party has in the Gram matrix."""
    made = local_columns(replace(fitted.local, muted=state.muted), fitted.X[rows])
    if party.y is None:
        return made
    Y = _targets(party, state)[rows]
    return np.column_stack([made, Y, np.ones(len(Y))])


@step
@sums_over("earlier")
def open_joint(
    party: Party,
    angles: OpenedAngles | None = None,
    cosines: Annotated[Array | None, Bytes, OWN] = None,
    turn_cosines: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    multiple: Annotated[int, Ge(1), Le(MOST_MULTIPLE)] = 1,
) -> OpenedJoint:
    """Make shares of the joint features, and open them for the other computing party.

    angles: sums of all parties' angles.
    cosines, turn_cosines: what the dealer sends for them to the second party.
    multiple: how many times each angle is taken, which divides the bandwidths by it.
    """
    state, product = party.recall(RidgeState), party.recall(ProductState)
    if state.joint is None or state.multiple:
        raise PartyError("joint features are opened once, after hide_rows")
    state.multiple, roles = multiple, product.roles
    if party.index not in (roles.first, roles.second):
        if angles is not None:
            raise PartyError("angles must be for the two parties that compute")
        return {}
    if angles is None:
        raise PartyError("angles must be given to the two parties that compute")
    shares = joint_shares(
        *(party, roles, training_angles(roles, party.session), angles, state.angles),
        *(cosines, turn_cosines, state.joint.bits, multiple),
    )
    return {"joint": {other_of(party, roles): open_columns(party, product, shares)}}


def _angles(
    party: Party, state: RidgeState, joint: Joint, fitted: _Fitted, rows: slice
) -> Array:
    scaled = scaled_columns(fitted.local, fitted.X[rows])
    return joint_angles(
        scaled * state.relevance if joint.relevant else scaled,
        state.task.kernel,
        joint.bandwidths,
        joint.counts,
        joint.densities,
        _seed(party, joint),
        joint.bits,
    )


def _seed(party: Party, joint: Joint) -> int:
    name = "relevant features" if joint.relevant else "features"
    return int.from_bytes(party.secret_bytes(name, 16))


def _frequencies(party: Party, state: RidgeState, joint: Joint, d: int) -> Array:
    kernel, seed = state.task.kernel, _seed(party, joint)
    return joint_frequencies(
        d, kernel, joint.bandwidths, joint.counts, joint.densities, seed
    )


def _open_relevance(
    party: Party, state: RidgeState, probes: dict[int, Array] | None
) -> None:
    """Get the relevance of the party's columns from what the label holder has sent."""
    if party.y is not None:
        if not len(state.relevance):
            raise PartyError("joint must not be relevant before the step relevance")
        return
    roles = state.pilot
    if roles is None or list(probes or {}) != [roles.first]:
        raise PartyError("probes must come from the party with the labels, alone")
    assert probes is not None
    d = _fitted(party, state.task).X.shape[1]
    deal = relevance_deal(roles, party.session, party.index or 0, d)
    with refusing():
        mean_squares = opened_relevance(deal, state.triple, probes[roles.first])
    state.relevance = np.sqrt(mean_squares)
    state.triple, state.pilot = np.zeros(0, np.uint8), None


@step
@sums_over("earlier")
@once
@reveals("moments", when="share", times="counted")
def relevance(
    party: Party,
    kinds: list[Count],
    widths: list[Natural],
    counted: Natural,
    share: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    frequencies: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    triples: Annotated[Array | None, Bytes, OWN] = None,
) -> Mixed:
    """Solve at the label holder, and let each other party know which columns matter.

    kinds: as for :func:`fit`.
    widths: number of columns of each party.
    counted: number of columns of all other parties, as consent counts them.
    share: that of the second party.
    frequencies: of each other party, under masks.
    triples: what the server deals for it, one party after another.
    """
    state = party.recall(RidgeState)
    product, joint = _computed(party), state.joint
    if party.y is None:
        return {}
    if triples is None:
        raise PartyError("relevance must have what is dealt for it")
    if joint is None or joint.relevant:
        raise PartyError("relevance must follow a first turn with joint features")
    roles, index = product.roles, party.index or 0
    others = [j for j in range(party.n_parties) if j != index]
    if sorted(frequencies or {}) != others or len(widths) != party.n_parties:
        raise PartyError("frequencies must be those of all other parties")
    assert frequencies is not None
    assert party.agree is not None
    if counted != sum(widths[j] for j in others):
        raise PartyError("counted must be the number of the other parties' columns")
    fitted = _fitted(party, state.task)
    gram, solved, _ = _solve(party, state, kinds, share or {}, fitted.local)
    rng = party.rng("probes")
    if state.constant:
        B = rng.standard_normal((joint.angles, PROBES)) / np.sqrt(joint.angles)
    else:
        B = drawn_probes(gram, solved, joint, rng)
    omega = _frequencies(party, state, joint, fitted.X.shape[1])
    state.relevance = np.sqrt(relevance_of(omega.T @ B))
    reply: dict[int, Array] = {}
    portion = Portion(triples)
    with refusing():
        for j in others:
            deal = relevance_deal(roles, party.session, j, widths[j])
            dealt = portion.take().pack()
            challenge = party.agree(j)
            reply[j] = hidden_probes(deal, dealt, frequencies[j], B, challenge)
        portion.end()
    return {"probes": reply}


@step
@sums_over("earlier")
@once
def fit(
    party: Party,
    kinds: list[Count],
    share: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> Fitted:
    """Solve at the label holder; each party keeps its part of the model.

    kinds: numbers of local columns of each kind, of each party.
    share: that of the second party.
    """
    state, product = party.recall(RidgeState), _computed(party)
    task, settings, first = state.task, state.joint, product.roles.first
    fitted, widths = _fitted(party, state.task), _local_widths(party, kinds)
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
        part |= {
            "bandwidth": max(settings.bandwidths),
            "bandwidths": np.array(settings.bandwidths),
            "counts": np.array(settings.counts),
            "densities": np.array(settings.densities),
            "seed": f"{_seed(party, settings):032x}",
            "multiple": state.multiple,
        }
        if settings.relevant:
            part["relevance"] = state.relevance
    reply: Fitted = {"kept": party.state_dir is not None}
    if party.y is not None:
        _, solved, order = _solve(party, state, kinds, share or {}, fitted.local)
        M, scale = len(solved.weights), state.y_scale
        # As the columns lie in the Gram matrix, but for the targets and the ones.
        coef = np.empty_like(solved.weights)
        coef[np.argsort(np.argsort(order[:M]))] = scale * solved.weights
        part |= {
            "coef": coef,
            "intercept": state.y_mean + scale * solved.intercept,
            "target": task.target,
            "classes": state.classes,
        }
        if solved.slope is not None and solved.offset is not None:
            part |= {"slope": solved.slope, "offset": solved.offset}
            if solved.tail is not None:
                part["tail"] = solved.tail
            if task.balanced:
                part |= _log_odds(part)
        reply["regularization"] = float(solved.penalties.min())
        reply["cv_score"] = float(scale**2 * solved.error.mean())
        reply["constant"] = state.constant
    party.part = part
    party.forget(ProductState)
    party.forget(RidgeState)
    return reply


def _computed(party: Party) -> ProductState:
    """Return the state of a turn whose Gram matrix is computed."""
    product = party.recall(ProductState)
    if not product.multiplied:
        raise PartyError("the step must follow multiply")
    return product


def _local_widths(party: Party, kinds: Sequence[int]) -> list[int]:
    """Return the number of local columns of each party."""
    if len(kinds) != KINDS * party.n_parties:
        raise PartyError("kinds must be the local columns of the Gram matrices")
    return [sum(kinds[k : k + KINDS]) for k in range(0, len(kinds), KINDS)]


def _solve(
    party: Party,
    state: RidgeState,
    kinds: Sequence[int],
    share: dict[int, Array],
    local: LocalColumns,
) -> tuple[Array, GramFit, Array]:
    """Open the Gram matrix and solve.

    Return the matrix in the order of the result (local columns, joint ones by
    bandwidth, targets and ones), the solution, and the place of each of these columns
    in what was computed.
    """
    task, product = state.task, _computed(party)
    roles = product.roles
    expected = list(roles.owners)
    expected[roles.first] = local.n_columns
    if _local_widths(party, kinds) != expected:
        raise PartyError("kinds must be the local columns of the Gram matrices")
    counts = state.joint.counts if state.joint is not None else []
    order = _order(roles, local.n_columns, counts)
    gram = opened(party, product, share)[np.ix_(order, order)]
    sizes = [*kinds, *(2 * count for count in counts)]
    M, outputs = sum(sizes), len(order) - sum(sizes) - 1
    weights = _balance(gram, outputs) if task.balanced else None
    try:
        if not state.constant:
            solved = fit_gram(
                gram,
                blocks_of(sizes),
                "continuous" if task.target == "continuous" else "classes",
                class_weights=weights,
            )
    except ValueError as error:
        withhold(party, str(error))
        state.constant = True
    if state.constant:
        solved = _constant(party, state, M)
    return gram, solved, order


def _constant(party: Party, state: RidgeState, M: int) -> GramFit:
    """Return the model of all labels of the party, whatever rows were asked for."""
    assert party.y is not None
    y, target = np.asarray(party.y, dtype=np.float64), state.task.target
    y, ones = y[~np.isnan(y)], np.ones(_outputs(state))
    state.y_mean, state.y_scale, more = 0.0, 1.0, {}
    intercept = np.zeros(len(ones))
    if target == "continuous":
        largest = np.finfo(np.float64).max ** 0.25  # its square is a number
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
    """Return what makes f log odds, whose sign decides, or the largest of which does.

    Those of several classes are up to a constant a row: their mean is 0.
    """
    slope, offset, K = part["slope"], part["offset"], len(part["offset"])
    if K > 1:
        slope, offset = (
            slope - slope.mean(axis=1, keepdims=True),
            offset - offset.mean(),
        )
    return {
        "coef": part["coef"] @ slope,
        "intercept": part["intercept"] @ slope + offset,
        "slope": np.eye(K),
        "offset": np.zeros(K),
    }


def _balance(gram: Array, outputs: int) -> Array:
    """Return the inverse number of rows of each class, by the sums of the targets."""
    ones = gram[-1 - outputs :, -1]
    counts = 0.5 * (ones[-1] + ones[:-1])
    if outputs == 1:
        counts = np.append(ones[-1] - counts, counts)
    return np.asarray(1 / np.maximum(counts, 1))


def blocks_of(sizes: Sequence[int]) -> list[Block]:
    """Return blocks of so many columns, one after another."""
    stops = np.cumsum(sizes).tolist()
    return [
        Block(str(k), stop - size, stop)
        for k, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    ]


def drawn_probes(
    gram: Array, solved: GramFit, joint: Joint, rng: np.random.Generator
) -> Array:
    """Return B for frequencies times their bandwidths, shape (A, probes).

    In units of the standard deviation of f over the training rows. The Gram matrix is
    that which is solved; joint features are the last ones, by bandwidth.
    """
    M, n, A = len(solved.weights), gram[-1, -1], joint.angles
    # Cosines and then sines of all angles.
    starts = M - 2 * A + 2 * np.cumsum([0, *joint.counts[:-1]])
    cosines = [
        start + np.arange(c) for start, c in zip(starts, joint.counts, strict=True)
    ]
    sines = [part + len(part) for part in cosines]
    place = np.concatenate([*cosines, *sines])
    weights = solved.weights
    mean = gram[:M, -1] @ weights / n
    squares = np.einsum("jk,jk->k", weights, gram[:M, :M] @ weights) / n
    power = float((squares - mean**2).sum())
    H = derivative_products(gram[np.ix_(place, place)], weights[place], n)
    units = np.repeat(joint.bandwidths, joint.counts)
    return draw_probes(H / np.outer(units, units) / max(power, 1e-12), PROBES, rng)


def _order(roles: Roles, local: int, counts: Sequence[int]) -> Array:
    """Return the places of local columns, joint ones by bandwidth, targets and ones."""
    start = sum(roles.owners[: roles.first]) + local
    stop = sum(roles.owners[: roles.first + 1])
    first, angles = roles.columns - roles.joint, roles.joint // 2
    places = np.arange(roles.columns)
    cosines = np.split(places[first : first + angles], np.cumsum(counts))
    both = [np.concatenate([part, part + angles]) for part in cosines]
    return np.concatenate(
        [places[:start], places[stop:first], *both, places[start:stop]]
    )
