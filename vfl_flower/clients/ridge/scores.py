"""Score rows with a kernel model that was computed from sums of products.

New rows and held-out rows have the same features as in training. Only the label holder
knows the weights and opens the scores. Nobody knows all features of a row.
"""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import numpy as np

from vfl_flower.clients import evaluation
from vfl_flower.clients.products import (
    FromServer,
    Secrets,
    challenge_of,
    check_roles,
    check_seeds,
    dealt_to,
)
from vfl_flower.clients.ridge import state as ridge
from vfl_flower.clients.ridge.dealing import root_of
from vfl_flower.numerics.kernel_model import answers
from vfl_flower.numerics.ridge.features import part_angles, unpack_local
from vfl_flower.numerics.ridge.fit import probabilities
from vfl_flower.numerics.ridge.local_columns import LocalColumns, local_columns
from vfl_flower.party.party import Party, PartyError, Predictions, stored_as
from vfl_flower.protocol.contract import SEALED_FOR, Reals
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.steps import reveals, step_of, sums_over
from vfl_flower.secure_aggregation.fixed_point import decode, weights_fixed_point
from vfl_flower.secure_aggregation.products import dealing, shares
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.triples import (
    SACRIFICED,
    PredictionTriple,
    hide_rows,
    seed_digest,
)
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("ridge")


@shapes_only
@dataclass
class RowsState:
    """A party's state while one set of rows is scored."""

    roles: Roles
    """The roles, without the columns of the first party."""
    dealt: Array
    """The correlated randomness that the party received."""
    rows: Array
    """Row numbers, of shape (m,)."""


@stored_as("vfl_flower.clients.ridge.scores.ScoresState")
class ScoresState:
    """A party's state between messages while rows are scored."""

    turns: int = 0
    """Number of sets of rows whose scoring has started."""
    rows: RowsState | None = None
    """The state of the rows that are being scored."""
    scores: Array = field(default_factory=lambda: np.zeros((0, 1)))
    """At the label holder: the scores so far, of shape (m, K)."""
    scored: Array = field(default_factory=lambda: np.zeros(0, np.uint32))
    """The rows of these scores, of shape (m,)."""
    evaluated: bool = False
    """Whether the label holder has reported errors, which it does once per session."""


class HiddenRows(TypedDict, total=False):
    """Reply of :func:`rows`."""

    angles: Annotated[dict[int, Array], Reals("m *"), SEALED_FOR]
    hidden: Secrets
    weights: Secrets
    row_cosines: Secrets


class Products(TypedDict, total=False):
    """Reply of :func:`products`, from the second party to the first."""

    products: Secrets


def _features(party: Party, rows: Array) -> tuple[dict[str, Any], Array, LocalColumns]:
    """Return the party's local model, its columns of `rows`, and its local columns."""
    if "local" not in party.part:
        raise PartyError("this run has no model for this strategy")
    X = np.asarray(party.rows.take(rows.astype(np.intp)), dtype=np.float64)
    return party.part, X, unpack_local(party.part)


@step
@sums_over("none", "each number describes a single row")
@reveals("moments", times="outputs")
def rows(
    party: Party,
    roles: Roles,
    outputs: evaluation.Columns,
    bits: ridge.AngleBits,
    numbers: evaluation.RowNumbers,
    dealt: FromServer | None = None,
    row_parts: Secrets | None = None,
    first_rows: Secrets | None = None,
) -> HiddenRows:
    """Send rows' angles, and local columns or the label holder's weights, all hidden.

    roles: the roles, without columns of the label holder.
    outputs: K, the number of scores per row; each score counts as a column.
    dealt, row_parts, first_rows: the dealer's message. The dealer is the server, or a
        party that sends its message now or has sent it earlier.
    """
    part, X, local = _features(party, numbers)
    index, holder = party.index or 0, "coef" in part
    width = 0 if holder else part["local"]
    check_roles(party, roles, width, dealing.NEW_ROWS.fraction, labels=False)
    if roles.first != part["holder"] or holder != (index == roles.first):
        raise PartyError("scores must be sent to the party with the weights")
    if roles.joint != part["n_features"] or roles.rows != len(numbers):
        raise PartyError("joint must match the model, and rows must match the request")
    if holder and outputs != len(part["intercept"]):
        raise PartyError(
            f"outputs must be {len(part['intercept'])}, as in the model, got {outputs}"
        )
    state = party.recall(ScoresState, ScoresState())
    if roles.turn != state.turns:
        raise PartyError(f"turn must be {state.turns}, got {roles.turn}")
    state.turns += 1
    given = dealt_to(dealt, row_parts or first_rows, roles)
    seed, rest = np.split(given, [ridge.HEAD * bool(roles.joint)])
    reply: HiddenRows = {}
    if roles.joint:
        use = dealing.row_angles(roles, party.session)
        angles = [part_angles(part, local, X, bits)]
        reply["angles"] = ridge.hidden_angles(party, roles, use, seed, angles)
    deal = dealing.row_deal(roles, party.session, outputs)
    with refusing():
        portion = shares.Portion(rest)
        of_owner = portion.take()
        if holder:
            triple = PredictionTriple(deal, 0, portion.take())
            weights, _ = _weights(part, roles)
            hidden = shares.pack(triple.hidden_weights(weights), deal.bits)
            reply["weights"] = {roles.second: hidden}
        else:
            elements, _ = dealing.NEW_ROWS.encode(local_columns(local, X))
            opening = hide_rows(deal, index, of_owner, elements)
            digest = np.frombuffer(seed_digest(deal, index, of_owner.seed), np.uint8)
            sent = np.concatenate([digest, shares.pack(opening, deal.bits)])
            reply["hidden"] = {roles.first: sent}
    if roles.deals(index) and roles.joint:
        cosines = dealing.cosines_of(use, root_of(party), roles, bits)
        reply["row_cosines"] = {roles.second: cosines}
    if index in (roles.first, roles.second):
        state.rows = RowsState(roles, given, numbers)
    return reply


def _weights(part: dict[str, Any], roles: Roles) -> tuple[Array, int]:
    """Return the weights of features with other parties' columns, and their bits."""
    start = sum(roles.owners[: roles.first])
    w = np.delete(part["coef"], np.s_[start : start + part["local"]], axis=0)
    _, unit = math.frexp(np.abs(w).sum(axis=0).max())
    numbers = weights_fixed_point(dealing.NEW_ROWS, len(w))
    return numbers.encode(np.ldexp(w, -unit))[0], numbers.fraction - unit


def _rows_state(party: Party) -> tuple[ScoresState, RowsState]:
    state = party.recall(ScoresState)
    if state.rows is None:
        raise PartyError("this step must run only once, after the step rows")
    return state, state.rows


@step
@sums_over("none", "each number describes a single row")
def products(
    party: Party,
    outputs: evaluation.Columns,
    bits: ridge.AngleBits,
    angles: ridge.OpenedAngles | None = None,
    weights: Secrets | None = None,
    cosines: FromServer | None = None,
    row_cosines: Secrets | None = None,
) -> Products:
    """Open the rows' joint features under a mask, and send a share of the scores."""
    if weights is None:
        return {}
    state, of_rows = _rows_state(party)
    roles, state.rows = of_rows.roles, None
    if party.index != roles.second or list(weights) != [roles.first]:
        raise PartyError("weights must be sent by the first party to the second alone")
    deal = dealing.row_deal(roles, party.session, outputs)
    with refusing():
        triple = _triple(deal, of_rows, 1)
        read = shares.Elements(weights[roles.first])
        hidden = read.take(deal.bits, deal.shape[1:])
        read.end()
        openings, parts = [], []
        joint = _joint_shares(party, of_rows, angles, bits, cosines, row_cosines)
        for block, share in enumerate(joint):
            if roles.joint:
                opening = triple.opening(share, block, len(roles.owners))
                openings.append(shares.pack(opening, deal.bits))
            parts.append(shares.pack(triple.share_of_mask(hidden, block), deal.bits))
        challenge = challenge_of(party, roles)
        check = shares.pack(triple.sacrifice(challenge), deal.bits)
        head = triple.proof(challenge) + triple.digests(_others(roles))
    sent = [np.frombuffer(head, np.uint8), check, *parts, *openings]
    return {"products": {roles.first: np.concatenate(sent)}}


def _joint_shares(
    party: Party,
    of_rows: RowsState,
    angles: Array | None,
    bits: int,
    cosines: Array | None = None,
    delivered: dict[int, Array] | None = None,
) -> Iterator[Array]:
    """Yield the shares of joint features of each block of rows; none without angles."""
    roles, dealt = of_rows.roles, of_rows.dealt[: ridge.HEAD]
    if (angles is not None) != bool(roles.joint):
        raise PartyError("angles must be given if and only if there are joint features")
    if angles is None:
        starts = range(0, roles.rows, shares.BLOCK_ROWS)
        sizes = (min(shares.BLOCK_ROWS, roles.rows - start) for start in starts)
        return (np.zeros((size, 0), "<u8") for size in sizes)
    use = dealing.row_angles(roles, party.session)
    return ridge.joint_shares(
        party, roles, use, angles, dealt, cosines, delivered, bits
    )


def _others(roles: Roles) -> list[int]:
    """Return the places of the parties whose columns the first party multiplies."""
    return [j for j in range(len(roles.owners)) if j != roles.first]


def _triple(deal: shares.Deal, of_rows: RowsState, party: int) -> PredictionTriple:
    portion = shares.Portion(of_rows.dealt[ridge.HEAD * bool(of_rows.roles.joint) :])
    portion.take()
    length = (deal.rows + SACRIFICED) * deal.shape[2] * shares.width_of(deal.bits)
    triple = PredictionTriple(deal, party, portion.take(party * length))
    portion.end()
    return triple


@step
@sums_over("request")
@reveals("curves", when="curves", optional=True)
def scores(
    party: Party,
    bits: ridge.AngleBits,
    products: Secrets,
    hidden: Secrets,
    angles: ridge.OpenedAngles | None = None,
    evaluate: bool = False,
    last: bool = True,
    curves: bool = False,
) -> evaluation.Measures:
    """Open the scores of rows at the label holder.

    products, hidden: the messages of the second party, and of all other parties.
    evaluate: compare the answers with the labels; otherwise, store them as predictions.
    curves: together with the last evaluated rows, report means over bins of rows.
    """
    state, of_rows = _rows_state(party)
    state.rows = None
    opened = _opened(party, of_rows, products, hidden, angles, bits)
    if len(state.scores):
        opened = np.concatenate([state.scores, opened])
    state.scores = opened
    state.scored = np.concatenate([state.scored, of_rows.rows]).astype(np.uint32)
    if not last:
        return {}
    numbers, state.scored, state.scores = state.scored, state.scored[:0], opened[:0]
    part, chances, more = party.part, None, dict[str, Array]()
    answered = answers(opened, part["target"], part["classes"])
    if "slope" in part:
        calibration = part["slope"], part["offset"], part.get("tail")
        chances = probabilities(opened, *calibration)
        best = opened.argmax(axis=1)[:, None]
        more = evaluation.texts_of(party, answered) | {
            name: np.take_along_axis(values, best, axis=1)[:, 0]
            for name, values in (("score", opened), ("probability", chances))
        }
    if not evaluate:
        party.predictions = Predictions(answered, numbers, more=more)
        return {}
    labelled, y = evaluation.judged(party, numbers, state.evaluated)
    state.evaluated = True
    if not len(y):
        return {"test_rows": 0}
    party.sum_over(numbers[labelled])
    chances = None if chances is None else chances[labelled]
    return _measures(
        party, part, answered[labelled], y, opened[labelled], chances, curves
    )


def _opened(
    party: Party,
    of_rows: RowsState,
    products: dict[int, Array],
    hidden: dict[int, Array],
    angles: Array | None,
    bits: int,
) -> Array:
    """Return the scores of rows from the replies of all other parties, shape (m, K)."""
    roles = of_rows.roles
    others = _others(roles)
    if list(products) != [roles.second] or sorted(hidden) != others:
        raise PartyError("scores require the replies of all other parties")
    part, X, local = _features(party, of_rows.rows)
    deal = dealing.row_deal(roles, party.session, len(part["intercept"]))
    opened = np.empty((deal.rows, deal.shape[2]), "<u8")
    with refusing():
        weights, fraction = _weights(part, roles)
        triple = _triple(deal, of_rows, 0)
        ends = np.cumsum([shares.SEED_BYTES, shares.SEED_BYTES * len(others)])
        proof, right, sent = np.split(products[roles.second], ends)
        heads = {j: hidden[j][: shares.SEED_BYTES].tobytes() for j in others}
        check_seeds(party, others, b"".join(heads.values()), right.tobytes())
        read = shares.Elements(sent)
        check = read.take(deal.bits, (SACRIFICED, deal.shape[1]))
        challenge = challenge_of(party, roles)
        if not hmac.compare_digest(triple.proof(challenge, check), proof.tobytes()):
            raise PartyError(
                "the dealer's triple failed the check: the scores would be wrong"
            )
        theirs = read.take(deal.bits, opened.shape)
        columns = {j: shares.Elements(hidden[j][shares.SEED_BYTES :]) for j in others}
        joint = _joint_shares(party, of_rows, angles, bits)
        blocks = zip(deal.blocks(), joint, strict=True)
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
            opened[rows] = shares.add(mine, theirs[rows], bits=deal.bits)
        for elements in (read, *columns.values()):
            elements.end()
    start = sum(roles.owners[: roles.first])
    of_holder = part["coef"][start : start + part["local"]]
    scores = decode(opened, deal.bits, dealing.NEW_ROWS.fraction + fraction)
    scores += part["intercept"]
    scores += local_columns(local, X) @ of_holder
    return scores


def _measures(
    party: Party,
    part: dict[str, Any],
    answered: Array,
    y: Array,
    scores: Array,
    chances: Array | None,
    curves: bool,
) -> evaluation.Measures:
    """Return the metrics of the predictions for rows with the labels y, shape (n,)."""
    target, classes, probability = part["target"], part["classes"], None
    if chances is not None:
        if chances.shape[1] == 1:
            chances = np.hstack([1 - chances, chances])
        probability = (chances * (y[:, None] == classes)).sum(axis=1)
    two = scores[:, 0] if target == "binary" else None
    try:
        return evaluation.measures_of(
            party, y, answered, target, classes, two, probability, curves
        )
    except PartyError as error:  # a refusal would reveal labels of these rows
        log.warning("the error is not reported: %s", error)
        return {"test_rows": 0}
