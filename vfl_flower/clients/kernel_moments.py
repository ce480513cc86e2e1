"""A party's side of a kernel model that is solved from sums of products alone.

The features of a row are local columns, which each party makes of its own ones, and
joint ones, the cosines and sines of angles that are sums over all parties. Nobody knows
the joint ones: each party sends its angles plus random ones that a dealer gave, the two
parties that compute get the sums, which are uniform, and make shares of the features
(:mod:`vfl_flower.secure_aggregation.angle_shares`). The label holder opens the Gram
matrix of each half of the rows (:mod:`vfl_flower.clients.moments`) and solves.

New rows are scored with the same features. The weights are the label holder's secret,
and it alone opens the scores.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from annotated_types import Gt, Le, MaxLen, MinLen

from vfl_flower.clients.evaluation import Told, least_rows, told
from vfl_flower.clients.fdskl import Columns, Rows, classes_of, signs_of
from vfl_flower.clients.moments import (
    MOST_LEVERAGE,
    Bytes,
    Elements,
    MomentsState,
    Portion,
    Roles,
    challenge_of,
    check_roles,
    check_rows,
    deal_all,
    dealt_to,
    hide,
    multiplied,
    open_joint,
    opened,
    width_of,
)
from vfl_flower.numerics.gram_fit import Block, fit_grams
from vfl_flower.numerics.kernel_model import Target, answers
from vfl_flower.numerics.kernel_moments import (
    cumulants,
    joint_angles,
    pack_local,
    probabilities,
    unpack_local,
)
from vfl_flower.numerics.local_columns import (
    LocalColumns,
    bounded_in_halves,
    fit_local_columns,
    local_columns,
    scaled_columns,
)
from vfl_flower.numerics.random_features import Kernel
from vfl_flower.numerics.split import split_halves
from vfl_flower.protocol.consent import LEAST_ROWS
from vfl_flower.protocol.contract import (
    IN_SUM,
    OWN,
    PRIVATE,
    SEALED,
    SEALED_FOR,
    Reals,
)
from vfl_flower.protocol.party import Party, PartyError, Predictions
from vfl_flower.protocol.settings import Count, Fraction, Natural, NotNegative, Positive
from vfl_flower.protocol.steps import once, parts_of, reveals, step
from vfl_flower.secure_aggregation.angle_shares import (
    cosine_shares,
    deal_cosines,
    hide_angles,
)
from vfl_flower.secure_aggregation.fixed_point import (
    FixedPoint,
    decode,
    weights_fixed_point,
)
from vfl_flower.secure_aggregation.masks import derive_key
from vfl_flower.secure_aggregation.shares import Deal, Dealt, add, pack
from vfl_flower.secure_aggregation.triples import (
    SACRIFICED,
    PredictionTriple,
    deal_predictions,
    deal_row_owner,
    hide_rows,
)
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

FRACTION = 16
"""Fraction bits of a feature; those of its two factors are half of them."""

NEW_ROWS = FixedPoint(56, FRACTION, 1.01)
"""Encoding of the features of rows to predict."""

MOST_TURNS = 2
"""Most sets of Gram matrices in a run: a pilot, and the one that is solved."""

KINDS = 3
"""Kinds of local columns."""

MOST_KERNELS = 8
"""Most bandwidths."""

_HEAD = 64
"""Bytes of what is dealt without a correction."""

AngleBits = Literal[16, 32]


# -- what the server asks for ----------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What is learned, and of which rows.

    Attributes
    ----------
    target, kernel : str
        What the labels are, and the kernel.
    test_fraction : float
        Share of the rows held out.
    rows : int
        How many of the others there are in both halves together.
    most : int
        Most local columns of a party.
    """

    target: Target
    kernel: Kernel
    test_fraction: Fraction
    rows: Natural
    most: Count


@dataclass(frozen=True)
class Joint:
    """Which joint features there are.

    Attributes
    ----------
    bandwidths, counts : list of float, list of int
        Each bandwidth, and its number of angles.
    density : float
        Probability with which an angle has a column.
    bits : {16, 32}
        Of an angle.
    """

    bandwidths: Annotated[list[Positive], MinLen(1), MaxLen(MOST_KERNELS)]
    counts: Annotated[list[Natural], MinLen(1), MaxLen(MOST_KERNELS)]
    density: Annotated[float, Gt(0), Le(1)]
    bits: AngleBits

    @property
    def angles(self) -> int:
        """Number of angles."""
        return sum(self.counts)


# -- what a party keeps ----------------------------------------------------------------


@dataclass
class RowsState:
    """What a party keeps of rows that are being predicted.

    Attributes
    ----------
    roles : Roles
        Who does what; their columns are those of other parties than the first one.
    dealt : Array of uint8
        What it was dealt.
    rows : Array of int, shape (m,)
        Numbers of the rows.
    """

    roles: Roles
    dealt: Array
    rows: Array


@dataclass
class KernelState:
    """What a party keeps between messages, besides its part of the model.

    Attributes
    ----------
    task, joint : Task, Joint or None
        As the server has said; none in a run that only predicts.
    first : int
        The party that opens the Gram matrices.
    stage : str
        The step of training that was answered last.
    turns, row_turns : int
        How many sets of Gram matrices, and of rows to predict, were begun.
    moments : MomentsState or None
        Of a computing party, of this turn.
    angles : Array of uint8
        What it was dealt for its angles, of this turn.
    y_mean, y_scale : float
        At the label holder: of the labels of the training rows.
    classes : Array
        At the label holder the labels of the classes.
    rows : RowsState or None
        Of the rows that are being predicted.
    scores : Array, shape (m, K)
        At the label holder the scores so far.
    scored : Array of int, shape (m,)
        Their rows.
    evaluated : bool
        Whether the label holder has told the errors of its answers, once a session.
    """

    task: Task | None = None
    joint: Joint | None = None
    first: int = 0
    stage: str = ""
    turns: int = 0
    row_turns: int = 0
    moments: MomentsState | None = None
    angles: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    y_mean: float = 0.0
    y_scale: float = 1.0
    classes: Array = field(default_factory=lambda: np.zeros(0))
    rows: RowsState | None = None
    scores: Array = field(default_factory=lambda: np.zeros((0, 1)))
    scored: Array = field(default_factory=lambda: np.zeros(0, np.uint32))
    evaluated: bool = False


def _at(party: Party, stage: str) -> KernelState:
    """Return the state of a run in training that has come to a stage."""
    state = party.recall(KernelState)
    if state.stage != stage:
        raise PartyError(
            f"the step must follow {stage}, and the last one was {state.stage!r}"
        )
    return state


def _task(state: KernelState) -> Task:
    if state.task is None:
        raise PartyError("the step trains a model, and this run only predicts")
    return state.task


def _halves(party: Party, task: Task) -> list[Array]:
    """Return the rows of each half, from what all parties know and no label."""
    try:
        return split_halves(party.n_rows, task.test_fraction, task.rows, party.seed)
    except ValueError as error:
        raise PartyError(str(error)) from None


@dataclass(frozen=True)
class _Fitted:
    """A party's own columns on the training rows, and how local ones are made."""

    X: Array
    halves: Array
    local: LocalColumns


def _fitted(party: Party, task: Task) -> _Fitted:
    """Return the party's columns of the training rows; the same each time."""
    known = party.cache.get("kernel_moments")
    if known is not None and known[0] == (party.session, task):
        fitted: _Fitted = known[1]
        return fitted
    halves = _halves(party, task)
    X = np.asarray(party.rows.take(np.concatenate(halves)), dtype=np.float64)
    half = np.repeat([0, 1], [len(rows) for rows in halves])
    rng = party.rng("local columns")
    local = fit_local_columns(X, half, most=task.most, least=LEAST_ROWS, rng=rng)
    fitted = _Fitted(X, half, local)
    party.cache["kernel_moments"] = (party.session, task), fitted
    return fitted


# -- dealing ---------------------------------------------------------------------------


def angle_deals(roles: Roles, session: int, name: str, bits: int) -> list[Deal]:
    """Return the uses of dealt angles, one for each set of rows."""
    return [
        Deal(session, name, roles.turn, half, (rows, roles.joint // 2), bits)
        for half, rows in enumerate(roles.rows)
    ]


def _place(roles: Roles, party: int) -> int:
    """Return the place of a party among those with angles: first, second, others."""
    if party in (roles.first, roles.second):
        return int(party == roles.second)
    return 2 + [
        j for j in range(len(roles.owners)) if j not in (roles.first, roles.second)
    ].index(party)


def _deal_angles(
    deals: Sequence[Deal], root: bytes, roles: Roles, angle_bits: int
) -> tuple[list[list[Array]], Array]:
    """Return seeds of angles for each party, and the cosines of the second one."""
    count = len(roles.owners)
    seeds: list[list[Array]] = [[] for _ in roles.owners]
    cosines: list[Array] = []
    for deal in deals:
        for party, sent in enumerate(seeds):
            place = _place(roles, party)
            sent.append(Dealt.of(deal, place, deal.seed(root, place)).pack())
        found = deal_cosines(deal, root, count, FRACTION, angle_bits=angle_bits)
        cosines += [dealt.pack() for dealt in found]
    return seeds, np.concatenate(cosines)


def deal_turn(
    session: int, root: bytes, roles: Roles, angle_bits: int
) -> tuple[list[Array], Array]:
    """Return what a dealer sends to each party for a turn, and cosines for the second.

    Parameters
    ----------
    session : int
        Number of the session.
    root : bytes
        Secret of the dealer, 32 bytes.
    roles : Roles
        Who does what.
    angle_bits : int
        Bits of an angle.
    """
    deals = roles.deals(session)
    angles, cosines = _deal_angles(
        angle_deals(roles, session, "angles", deals[0].bits), root, roles, angle_bits
    )
    others = deal_all(deals, root, roles)
    made = [
        np.concatenate([*seeds, more])
        for seeds, more in zip(angles, others, strict=True)
    ]
    return made, cosines


def _row_deal(roles: Roles, session: int, outputs: int) -> Deal:
    """Return the use of the triple for the scores of rows."""
    shape = roles.rows[0], roles.columns, outputs
    owners = (*roles.owners, roles.joint)
    return Deal(session, "scores", roles.turn, 0, shape, NEW_ROWS.bits, owners)


def deal_rows(
    session: int, root: bytes, roles: Roles, outputs: int, angle_bits: int
) -> tuple[list[Array], Array]:
    """Return the same for rows to predict."""
    deals = angle_deals(roles, session, "new angles", NEW_ROWS.bits)
    made, cosines = _deal_angles(deals, root, roles, angle_bits)
    deal = _row_deal(roles, session, outputs)
    for owner, sent in enumerate(made):
        sent.append(deal_row_owner(deal, root, owner).pack())
    for party, dealt in zip(
        (roles.first, roles.second), deal_predictions(deal, root), strict=True
    ):
        made[party].append(dealt.pack())
    return [np.concatenate(sent) for sent in made], cosines


class Delivered(TypedDict):
    """Reply of :func:`deal`: for each party, and for the second one."""

    turn_parts: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    turn_cosines: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    row_parts: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    row_cosines: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


@step
@parts_of("fdskl")
def deal(
    party: Party,
    bits: AngleBits,
    roles: Roles | None = None,
    row_roles: Roles | None = None,
    outputs: Columns = 1,
) -> Delivered:
    """Deal, at the party that deals in the place of the server.

    For the Gram matrices of `roles`, and the scores of `row_roles`. What it deals for
    the same roles twice is the same.
    """
    reply: Delivered = {}
    root = derive_key(party.run_secret, [b"vfl_flower dealer 2"])
    if roles is not None:
        check_roles(party, roles, fraction=FRACTION)
        if party.index == roles.dealer:
            dealt, cosines = deal_turn(party.session, root, roles, bits)
            reply["turn_parts"] = dict(enumerate(dealt))
            reply["turn_cosines"] = {roles.second: cosines}
    if row_roles is not None:
        check_roles(party, row_roles, fraction=FRACTION, labels=False)
        if party.index == row_roles.dealer:
            dealt, cosines = deal_rows(party.session, root, row_roles, outputs, bits)
            reply["row_parts"] = dict(enumerate(dealt))
            reply["row_cosines"] = {row_roles.second: cosines}
    return reply


# -- training --------------------------------------------------------------------------


class Prepared(TypedDict):
    """Reply of :func:`prepare`: columns of each kind, and a sum for the bandwidth."""

    columns: Annotated[list[Count], MinLen(KINDS), MaxLen(KINDS)]
    outputs: NotRequired[Columns]
    distances: Annotated[Array, Reals("3"), IN_SUM]


class Hidden(TypedDict):
    """Reply of :func:`columns`."""

    own_openings: Annotated[dict[int, Array], Bytes, PRIVATE]
    triple_checks: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    angles: Annotated[dict[int, Array], Reals("m *"), SEALED_FOR]


class JointOpened(TypedDict):
    """Reply of :func:`joint`: what the two that compute have opened."""

    joint: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class GramShares(TypedDict):
    """Reply of :func:`gram`: of the second party, for the first."""

    gram_shares: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class Fitted(TypedDict):
    """Reply of :func:`fit`; the label holder alone gives more than `kept`."""

    kept: bool
    regularization: NotRequired[Positive]
    cv_score: NotRequired[NotNegative]


Opened = Annotated[Array, Reals("*"), SEALED]
"""A sum over the parties that this party alone can open, flattened."""


@step
@once
def prepare(party: Party, task: Task) -> Prepared:
    """Fit the local columns, and say how many there are."""
    if party.part:
        raise PartyError("this run has its model already")
    fitted = _fitted(party, task)
    scaled = scaled_columns(fitted.local, fitted.X)
    state = KernelState(task, stage="prepare")
    reply: Prepared = {
        "columns": [block.stop - block.start for block in fitted.local.blocks],
        "distances": cumulants(scaled, task.kernel, party.rng("pairs")),
    }
    if party.y is not None:
        _targets(party, state)
        several = task.target == "multiclass"
        reply["outputs"] = len(state.classes) if several else 1
    party.remember(state)
    return reply


def _targets(party: Party, state: KernelState) -> Array:
    """Return the label holder's columns beside its local ones: targets, and ones."""
    task, rows = _task(state), np.concatenate(_halves(party, _task(state)))
    assert party.y is not None
    y = np.asarray(party.y[rows], dtype=np.float64)
    if np.isnan(y).any():
        raise PartyError("all rows to train on must have a label")
    if task.target == "continuous":
        state.y_mean, state.y_scale = float(y.mean()), float(y.std()) or 1.0
        y = (y - state.y_mean) / state.y_scale
    state.classes = classes_of(party, task.target)
    Y = signs_of(y, task.target, state.classes)
    if task.target == "multiclass" and Y.shape[1] < 3:
        raise PartyError("labels must have three values or more, or target is 'binary'")
    # With all classes and the ones, one target follows from the others.
    known = Y[:, : max(1, Y.shape[1] - 1)]
    fitted = _fitted(party, task)
    own = np.hstack([local_columns(fitted.local, fitted.X), known])
    if not _bounded(own, fitted.halves):
        raise PartyError(
            f"labels must differ from the most frequent one in at least {LEAST_ROWS} "
            "rows of each half, each class must have so many, and no number may stand "
            "out by itself: a Gram matrix would tell a single row of all columns"
        )
    return np.column_stack([Y, np.ones(len(Y))])


def _bounded(columns: Array, halves: Array) -> bool:
    """Return whether columns point to no single row of a half."""
    kept = bounded_in_halves(
        columns, halves, least=LEAST_ROWS, most_leverage=MOST_LEVERAGE
    )
    return bool(kept.all())


@step
@reveals("moments", times="counted")
def columns(
    party: Party,
    roles: Roles,
    counted: Natural,
    joint: Joint,
    dealt: Annotated[Array | None, Bytes, OWN] = None,
    turn_parts: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> Hidden:
    """Open local columns under the masks, and send angles plus random ones.

    Parameters
    ----------
    roles : Roles
        Who does what.
    counted : int
        Number of columns of both Gram matrices, as consent counts them.
    joint : Joint
        Which joint features there are.
    dealt, turn_parts : Array of uint8, dict of int to Array of uint8
        What the dealer sends: the server, or a party.
    """
    state = party.recall(KernelState)
    task = _task(state)
    fitted, holder = _fitted(party, task), party.y is not None
    made = local_columns(fitted.local, fitted.X)
    if holder:
        made = np.column_stack([made, _targets(party, state)])
    elif not _bounded(made, fitted.halves):
        raise PartyError("local columns must point to no single row")
    check_roles(party, roles, made.shape[1], FRACTION)
    sizes = [len(rows) for rows in _halves(party, task)]
    if counted != 2 * roles.columns or roles.rows != sizes:
        raise PartyError("counted and rows must be those of the two Gram matrices")
    if roles.turn != state.turns or roles.turn >= MOST_TURNS or party.part:
        raise PartyError(
            f"turn must be the next one, {state.turns}, and below {MOST_TURNS}, got "
            f"{roles.turn}"
        )
    if roles.joint != 2 * joint.angles or len(joint.counts) != len(joint.bandwidths):
        raise PartyError("joint must have a cosine and a sine for each angle")
    for size in sizes:
        check_rows(None, size, roles.columns)
    given = dealt_to(dealt, turn_parts, roles)
    heads, rest = np.split(given, [_HEAD * len(sizes)])
    blocks = np.split(made, [sizes[0]])
    openings, check = hide(party, roles, blocks, Portion(rest))
    angles = _angles(party, task, joint, fitted)
    deals = angle_deals(roles, party.session, "angles", _bits(roles))
    reply: Hidden = {
        "own_openings": {roles.first: openings, roles.second: openings},
        "angles": _hidden_angles(party, roles, deals, heads, angles),
    }
    state.moments = None if check is None else MomentsState(roles, rest)
    if check is not None:
        reply["triple_checks"] = {roles.second if holder else roles.first: check}
    state.angles, state.joint, state.first = heads, joint, roles.first
    state.turns, state.stage = state.turns + 1, "columns"
    return reply


def _bits(roles: Roles) -> int:
    return roles.numbers(roles.rows[0]).bits


def _angles(party: Party, task: Task, joint: Joint, fitted: _Fitted) -> Array:
    return joint_angles(
        scaled_columns(fitted.local, fitted.X),
        task.kernel,
        joint.bandwidths,
        joint.counts,
        joint.density,
        _seed(party),
        joint.bits,
    )


def _seed(party: Party) -> int:
    return int.from_bytes(party.rng("features").bytes(16))


def _hidden_angles(
    party: Party, roles: Roles, deals: Sequence[Deal], heads: Array, angles: Array
) -> dict[int, Array]:
    """Return angles plus the random ones that were dealt, for both that compute."""
    place, portion = _place(roles, party.index or 0), Portion(heads)
    hidden = np.empty_like(angles)
    start = 0
    try:
        for deal in deals:
            dealt = portion.take()
            dealt.check(deal, place)
            for block, rows in enumerate(deal.blocks()):
                part = slice(start + rows.start, start + rows.stop)
                hidden[part] = hide_angles(deal, dealt.seed, angles[part], block)
            start += deal.rows
    except ValueError as error:
        raise PartyError(str(error)) from None
    return {roles.first: hidden, roles.second: hidden}


@dataclass(frozen=True)
class _Sums:
    """The sums of all parties' angles, and what makes shares of features of them."""

    party: int
    deltas: Array
    heads: Array
    cosines: Array | None

    def shares(self, deals: Sequence[Deal]) -> list[Iterator[Array]]:
        """Return for each set of rows the blocks of this party's shares."""
        size = sum(deal.rows for deal in deals)
        if self.deltas.size != size * deals[0].shape[1]:
            raise PartyError(f"angles must be of {size} rows, got others")
        if (self.cosines is None) != (self.party == 0):
            raise PartyError("the second party, and no other one, is dealt cosines")
        deltas = self.deltas.reshape(size, -1)
        heads, cosines = Portion(self.heads), Portion(self.cosines)  # type: ignore[arg-type]
        made, start = [], 0
        for deal in deals:
            rows = deltas[start : start + deal.rows]
            made.append(self._blocks(deal, rows, heads.take(), cosines))
            start += deal.rows
        return made

    def _blocks(
        self, deal: Deal, deltas: Array, head: Dealt, cosines: Portion
    ) -> Iterator[Array]:
        for block, rows in enumerate(deal.blocks()):
            delta = deltas[rows]
            dealt = head
            if self.party:
                dealt = cosines.take(2 * delta.size * width_of(deal.bits))
            yield cosine_shares(
                deal, self.party, dealt, delta, block, FRACTION, sines=True
            )


def _sums(
    party: Party,
    roles: Roles,
    angles: Array,
    heads: Array,
    cosines: Array | None,
    delivered: dict[int, Array] | None,
    joint_bits: int,
) -> _Sums:
    if party.index not in (roles.first, roles.second):
        raise PartyError("angles must be for the two parties that compute")
    if angles.dtype != np.dtype(f"u{joint_bits // 8}"):
        raise PartyError(f"angles must have {joint_bits} bits")
    second = party.index == roles.second
    given = dealt_to(cosines, delivered, roles) if second else None
    return _Sums(int(second), angles, heads, given)


@step
def joint(
    party: Party,
    angles: Opened | None = None,
    cosines: Annotated[Array | None, Bytes, OWN] = None,
    turn_cosines: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> JointOpened:
    """Make shares of the joint features, and open them under the masks.

    The two that compute do, each for the other one.
    """
    state = _at(party, "columns")
    state.stage = "joint"
    if angles is None:
        return {}
    moments, shares = _shares(party, state, angles, cosines, turn_cosines)
    roles = moments.roles
    other = roles.second if party.index == roles.first else roles.first
    return {"joint": {other: open_joint(party, moments, shares)}}


def _shares(
    party: Party,
    state: KernelState,
    angles: Array,
    cosines: Array | None,
    delivered: dict[int, Array] | None,
) -> tuple[MomentsState, list[Iterator[Array]]]:
    """Return a computing party's shares of joint features, block by block."""
    moments, joint = state.moments, state.joint
    if moments is None or joint is None:
        raise PartyError("angles must be for the two parties that compute")
    roles = moments.roles
    sums = _sums(party, roles, angles, state.angles, cosines, delivered, joint.bits)
    return moments, sums.shares(
        angle_deals(roles, party.session, "angles", _bits(roles))
    )


@step
def gram(
    party: Party,
    own_openings: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    triple_checks: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    joint: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    angles: Opened | None = None,
    cosines: Annotated[Array | None, Bytes, OWN] = None,
    turn_cosines: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> GramShares:
    """Multiply what all parties have opened, at the two that compute.

    They make their own shares of joint features again.
    """
    state = _at(party, "joint")
    state.stage = "gram"
    if not own_openings or angles is None:
        return {}
    moments, shares = _shares(party, state, angles, cosines, turn_cosines)
    made = multiplied(party, moments, own_openings, triple_checks, joint, shares)
    return {"gram_shares": made["shares"]} if "shares" in made else {}


@step
@once
@parts_of("fdskl")
def fit(
    party: Party,
    kinds: list[Count],
    gram_shares: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> Fitted:
    """Solve at the label holder; each party keeps its part of the model.

    Parameters
    ----------
    kinds : list of int
        Numbers of local columns of each kind, of each party.
    gram_shares : dict of int to Array of uint8
        Those of the second party.
    """
    state = _at(party, "gram")
    task, settings = _task(state), state.joint
    assert settings is not None
    fitted = _fitted(party, task)
    part: dict[str, Any] = {
        "kernel": task.kernel,
        "bandwidth": max(settings.bandwidths),
        "bandwidths": np.array(settings.bandwidths),
        "counts": np.array(settings.counts),
        "density": settings.density,
        "n_features": 2 * settings.angles,
        "n_columns": fitted.X.shape[1],
        "n_parties": party.n_parties,
        "index": party.index or 0,
        "columns": list(party.columns or ()),
        "seed": f"{_seed(party):032x}",
        "local": fitted.local.n_columns,
        **pack_local(fitted.local),
    }
    reply: Fitted = {"kept": party.state_dir is not None}
    part["holders"], part["block"] = [state.first], 2 * settings.angles
    if party.y is not None:
        if gram_shares is None or state.moments is None:
            raise PartyError("fit must have the shares of the second party")
        roles = state.moments.roles
        own, M = fitted.local.n_columns, sum(kinds) + roles.joint
        widths = np.add.reduceat(kinds, range(0, len(kinds), KINDS)).tolist()
        expected = list(roles.owners)
        expected[roles.first] = own
        if len(kinds) != KINDS * party.n_parties or widths != expected:
            raise PartyError("kinds must be the local columns of the Gram matrices")
        order = _order(roles, own, settings)
        grams = [
            gram[np.ix_(order, order)]
            for gram in opened(party, state.moments, gram_shares)
        ]
        sizes = [*kinds, *(2 * count for count in settings.counts)]
        stops = np.cumsum(sizes).tolist()
        blocks = [
            Block(str(k), stop - size, stop)
            for k, (size, stop) in enumerate(zip(sizes, stops, strict=True))
        ]
        real, scale = task.target == "continuous", state.y_scale
        try:
            solved = fit_grams(grams, blocks, "continuous" if real else "classes")
        except ValueError as error:
            raise PartyError(str(error)) from None
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
        reply["regularization"] = solved.alpha
        reply["cv_score"] = float(scale**2 * solved.error.mean())
    party.part = part
    state.moments, state.angles = None, np.zeros(0, np.uint8)
    return reply


def _order(roles: Roles, local: int, joint: Joint) -> Array:
    """Return the places of local columns, joint ones by bandwidth, targets and ones."""
    start = sum(roles.owners[: roles.first]) + local
    stop = sum(roles.owners[: roles.first + 1])
    first = roles.columns - roles.joint
    places = np.arange(roles.columns)
    cosines = np.split(places[first : first + joint.angles], np.cumsum(joint.counts))
    both = [np.concatenate([part, part + joint.angles]) for part in cosines]
    return np.concatenate(
        [places[:start], places[stop:first], *both, places[start:stop]]
    )


# -- prediction ------------------------------------------------------------------------


class HiddenRows(TypedDict):
    """Reply of :func:`rows`."""

    angles: Annotated[dict[int, Array], Reals("m *"), SEALED_FOR]
    hidden: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]
    weights: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


class Products(TypedDict):
    """Reply of :func:`products`: of the second party, for the first."""

    products: NotRequired[Annotated[dict[int, Array], Bytes, PRIVATE]]


def _features(party: Party, rows: Array) -> tuple[dict[str, Any], Array, LocalColumns]:
    """Return the party's part, its columns of rows, and how local ones are made."""
    if "local" not in party.part:
        raise PartyError("this run has no model of this kind")
    X = np.asarray(party.rows.take(rows.astype(np.intp)), dtype=np.float64)
    return party.part, X, unpack_local(party.part)


@step
@parts_of("fdskl")
@reveals("moments", times="outputs")
def rows(
    party: Party,
    roles: Roles,
    outputs: Columns,
    bits: AngleBits,
    numbers: Rows,
    dealt: Annotated[Array | None, Bytes, OWN] = None,
    row_parts: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> HiddenRows:
    """Send angles and local columns of rows, and the label holder's weights, hidden.

    Parameters
    ----------
    roles : Roles
        Who does what; the label holder has no columns in it.
    outputs : int
        K, the number of scores of a row; they count as columns.
    bits : {16, 32}
        Of an angle.
    numbers : Array of int, shape (m,)
        Numbers of the rows.
    dealt, row_parts : Array of uint8, dict of int to Array of uint8
        What the dealer sends: the server, or a party.
    """
    part, X, local = _features(party, numbers)
    index, holder = party.index or 0, "coef" in part
    width = 0 if holder else part["local"]
    check_roles(party, roles, width, FRACTION, labels=False)
    if [roles.first] != part["holders"] or holder != (index == roles.first):
        raise PartyError("the party with the weights, and no other one, opens scores")
    if roles.joint != part["n_features"] or roles.rows != [len(numbers)]:
        raise PartyError("joint and rows must be those of the model and of the rows")
    if holder and outputs != len(part["intercept"]):
        raise PartyError(
            f"outputs must be {len(part['intercept'])}, those of the model, got "
            f"{outputs}"
        )
    try:
        state = party.recall(KernelState)
    except PartyError:  # a run that only predicts
        state = KernelState()
        party.remember(state)
    if roles.turn != state.row_turns:
        raise PartyError(f"turn must be {state.row_turns}, got {roles.turn}")
    state.row_turns += 1
    given = dealt_to(dealt, row_parts, roles)
    angles = joint_angles(
        scaled_columns(local, X),
        part["kernel"],
        part["bandwidths"].tolist(),
        part["counts"].tolist(),
        part["density"],
        int(part["seed"], 16),
        bits,
    )
    deals = angle_deals(roles, party.session, "new angles", NEW_ROWS.bits)
    reply: HiddenRows = {
        "angles": _hidden_angles(party, roles, deals, given[:_HEAD], angles)
    }
    deal = _row_deal(roles, party.session, outputs)
    try:
        portion = Portion(given[_HEAD:])
        of_owner = portion.take()
        if holder:
            triple = PredictionTriple(deal, 0, portion.take())
            weights, _ = _weights(part, roles)
            hidden = pack(triple.hidden_weights(weights), deal.bits)
            reply["weights"] = {roles.second: hidden}
        else:
            elements, _ = NEW_ROWS.encode(local_columns(local, X))
            opening = hide_rows(deal, index, of_owner, elements)
            reply["hidden"] = {roles.first: pack(opening, deal.bits)}
    except ValueError as error:
        raise PartyError(str(error)) from None
    if index in (roles.first, roles.second):
        state.rows = RowsState(roles, given, numbers)
    return reply


def _weights(part: dict[str, Any], roles: Roles) -> tuple[Array, int]:
    """Return the weights of the features that others have a part in, and their bits."""
    start = sum(roles.owners[: roles.first])
    w = np.delete(part["coef"], np.s_[start : start + part["local"]], axis=0)
    size = max(float(np.abs(w).sum(axis=0).max()), 1e-300)
    largest = max(float(np.abs(w).max()), 1e-300)
    numbers = weights_fixed_point(NEW_ROWS, len(w), size, largest)
    return numbers.encode(w)[0], numbers.fraction


def _rows_state(party: Party) -> tuple[KernelState, RowsState]:
    state = party.recall(KernelState)
    if state.rows is None:
        raise PartyError("the step must follow rows, once")
    return state, state.rows


@step
@parts_of("fdskl")
def products(
    party: Party,
    outputs: Columns,
    bits: AngleBits,
    angles: Opened | None = None,
    weights: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
    cosines: Annotated[Array | None, Bytes, OWN] = None,
    row_cosines: Annotated[dict[int, Array] | None, Bytes, PRIVATE] = None,
) -> Products:
    """Open joint features of rows under a mask, and send a share of the scores."""
    if angles is None:
        return {}
    state, of_rows = _rows_state(party)
    roles, state.rows = of_rows.roles, None
    if party.index != roles.second or list(weights or {}) != [roles.first]:
        raise PartyError("products must have the weights that the first party has hid")
    assert weights is not None
    sums = _sums(
        party, roles, angles, of_rows.dealt[:_HEAD], cosines, row_cosines, bits
    )
    deals = angle_deals(roles, party.session, "new angles", NEW_ROWS.bits)
    deal = _row_deal(roles, party.session, outputs)
    try:
        triple = _triple(deal, of_rows, 1)
        read = Elements(weights[roles.first])
        hidden = read.take(deal.bits, deal.shape[1:])
        read.end()
        openings, parts = [], []
        for block, share in enumerate(sums.shares(deals)[0]):
            opening = triple.opening(share, block, len(roles.owners))
            openings.append(pack(opening, deal.bits))
            parts.append(pack(triple.share_of_mask(hidden, block), deal.bits))
        challenge = challenge_of(party, roles)
        check = pack(triple.sacrifice(challenge), deal.bits)
        proof = np.frombuffer(triple.proof(challenge), np.uint8)
    except ValueError as error:
        raise PartyError(str(error)) from None
    sent = np.concatenate([proof, check, *parts, *openings])
    return {"products": {roles.first: sent}}


def _triple(deal: Deal, of_rows: RowsState, party: int) -> PredictionTriple:
    portion = Portion(of_rows.dealt[_HEAD:])
    portion.take()
    length = (deal.rows + SACRIFICED) * deal.shape[2] * width_of(deal.bits)
    triple = PredictionTriple(deal, party, portion.take(party * length))
    portion.end()
    return triple


@step
@parts_of("fdskl")
def scores(
    party: Party,
    angles: Opened,
    bits: AngleBits,
    products: Annotated[dict[int, Array], Bytes, PRIVATE],
    hidden: Annotated[dict[int, Array], Bytes, PRIVATE],
    evaluate: bool = False,
    last: bool = True,
) -> Told:
    """Open the scores of rows, at the label holder.

    Parameters
    ----------
    angles : Array
        Sums of all parties' angles of the rows.
    bits : {16, 32}
        Of an angle.
    products : dict of int to Array of uint8
        What the second party has sent.
    hidden : dict of int to Array of uint8
        Local columns of the other parties.
    evaluate : bool
        Compare with the labels; otherwise the answers are kept as predictions.
    last : bool
        Whether these are the last rows.
    """
    state, of_rows = _rows_state(party)
    roles, state.rows = of_rows.roles, None
    others = [j for j in range(len(roles.owners)) if j != roles.first]
    if list(products) != [roles.second] or sorted(hidden) != others:
        raise PartyError("scores must have what all other parties have sent")
    part, X, local = _features(party, of_rows.rows)
    deal = _row_deal(roles, party.session, len(part["intercept"]))
    sums = _sums(party, roles, angles, of_rows.dealt[:_HEAD], None, None, bits)
    deals = angle_deals(roles, party.session, "new angles", NEW_ROWS.bits)
    found = np.empty((deal.rows, deal.shape[2]), "<u8")
    try:
        weights, fraction = _weights(part, roles)
        triple = _triple(deal, of_rows, 0)
        proof, sent = np.split(products[roles.second], [32])
        read = Elements(sent)
        check = read.take(deal.bits, (SACRIFICED, deal.shape[1]))
        challenge = challenge_of(party, roles)
        if not hmac.compare_digest(triple.proof(challenge, check), proof.tobytes()):
            raise PartyError(
                "the triple of the dealer must be right, and is not: the scores would "
                "be other ones"
            )
        theirs = read.take(deal.bits, found.shape)
        columns = {j: Elements(hidden[j]) for j in others}
        blocks = zip(deal.blocks(), sums.shares(deals)[0], strict=True)
        for block, (rows, share) in enumerate(blocks):
            count = len(share)
            known = [
                columns[j].take(deal.bits, (count, width))
                if j in columns
                else np.zeros((count, 0), "<u8")
                for j, width in enumerate(roles.owners)
            ]
            known.append(read.take(deal.bits, share.shape))
            before = np.zeros((count, sum(roles.owners)), "<u8")
            mine = triple.share_of_weights(
                weights, np.hstack([before, share]), np.hstack(known), block
            )
            found[rows] = add(mine, theirs[rows], bits=deal.bits)
        for elements in (read, *columns.values()):
            elements.end()
    except ValueError as error:
        raise PartyError(str(error)) from None
    start = sum(roles.owners[: roles.first])
    own = part["coef"][start : start + part["local"]]
    scores = decode(found, deal.bits, FRACTION + fraction) + part["intercept"]
    scores += local_columns(local, X) @ own
    if len(state.scores):
        scores = np.concatenate([state.scores, scores])
    state.scores = scores
    state.scored = np.concatenate([state.scored, of_rows.rows]).astype(np.uint32)
    if not last:
        return {}
    opened_scores, state.scores = state.scores, scores[:0]
    answered = answers(opened_scores, part["target"], part["classes"])
    chances, more = None, {}
    if "slope" in part:
        chances = probabilities(part, opened_scores)
        best = opened_scores.argmax(axis=1)[:, None]
        more = {
            name: np.take_along_axis(values, best, axis=1)[:, 0]
            for name, values in (("score", opened_scores), ("probability", chances))
        }
    numbers, state.scored = state.scored, state.scored[:0]
    if evaluate:
        if state.evaluated:
            raise PartyError(
                "this party tells the errors of its answers once a session"
            )
        state.evaluated = True
        return _told(party, part, answered, numbers, opened_scores, chances)
    everything = np.array_equal(numbers, np.arange(party.n_rows))
    party.predictions = Predictions(
        answered, None if everything else numbers, more=more
    )
    return {}


def _told(
    party: Party,
    part: dict[str, Any],
    answered: Array,
    rows: Array,
    scores: Array,
    chances: Array | None,
) -> Told:
    """Return what the answers are worth, unless it tells of too few rows."""
    if party.y is None:
        raise PartyError("this party holds no labels")
    y = np.asarray(party.y[rows.astype(np.intp)], dtype=np.float64)
    known = ~np.isnan(y)
    if len(np.unique(rows[known])) < max(1, least_rows(party)):
        log.warning("too few labels for their mean error to hide each: it is not told")
        return {"test_rows": 0}
    y, classes, probability = y[known], part["classes"], None
    if chances is not None:
        chances = chances[known]
        if chances.shape[1] == 1:
            chances = np.hstack([1 - chances, chances])
        probability = (chances * (y[:, None] == classes)).sum(axis=1)
    two = scores[known, 0] if part["target"] == "binary" else None
    return told(party, y, answered[known], part["target"], classes, two, probability)
