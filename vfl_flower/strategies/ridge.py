"""The server's side of a kernel model that is solved from sums of products alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

from vfl_flower.clients.evaluation import Told, curves_of, metrics_of
from vfl_flower.clients.products_roles import (
    MOST_COLUMNS,
    PART_NUMBERS,
    ROWS_PER_COLUMN,
    Roles,
)
from vfl_flower.clients.ridge import dealing as ridge_dealing
from vfl_flower.clients.ridge import relevance as ridge_relevance
from vfl_flower.clients.ridge import scores as ridge_scores
from vfl_flower.clients.ridge import training as party
from vfl_flower.clients.ridge.angles import AngleBits, joint_fraction
from vfl_flower.numerics.kernel_model import Target
from vfl_flower.numerics.random_features import Kernel, median_bandwidth
from vfl_flower.numerics.ridge.features import median_of
from vfl_flower.protocol.consent import SERVER
from vfl_flower.protocol.exchange import FederationError
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.replies import Replies
from vfl_flower.protocol.steps import Sum, each, opened
from vfl_flower.secure_aggregation.products.shares import SEED_BYTES
from vfl_flower.strategies.products import (
    passed_on,
    roles_of,
    secret,
    warn_of_constant,
)
from vfl_flower.typing import Array

T = TypeVar("T")

log = logging.getLogger("vfl_flower")

NARROW = 0.75
"""Share of the joint features that have half of the bandwidth of the median distance;
the others have that one."""

DENSITY, LEAST_COLUMNS = 0.3, 4
"""Probability with which an angle has a column, if that makes so many columns."""

WIDE = 16.0
"""Bandwidth of joint features of columns that are scaled by their relevance, before
each angle is taken as many times as makes it the one of the median distance."""

RELEVANT = ((0.7, DENSITY), (0.3, 0.5), (0.3, 1.0))
"""Bandwidths of these joint features, times that one, and densities if the one of the
other joint features is not above these; as many features of each."""

MOST_PILOT = 384
"""Most angles of the turn that tells the relevance of columns."""

MOST_FEATURES = 2048
"""Most joint features where their number is chosen."""

COLUMNS = 2048
"""Columns for which so many rows are taken as `MOST_PARTS` allows."""

TARGETS = 16
"""Columns that are kept free for targets and ones, where joint features are given."""

MOST_LOCAL = 512
"""Most local columns of a party."""

MOST_SHARE, MANY_ROWS = 0.5, 12_000
"""Most of the columns that are local, and the rows of which their share would be all:
half of the columns from 6,000 rows."""

MOST_PARTS = 2
"""Most parts of the rows: each takes a round trip, as a party that deals does."""

_BOUND = 2.0**40
"""Largest cumulant of a party's distances that is not clipped at first."""


@dataclass(frozen=True)
class Solver:
    """How a model is trained."""

    target: Target
    kernel: Kernel
    test_fraction: float
    rows: int
    """Most rows to train on."""
    features: int
    """Number of joint features; 0: as many as the rows allow, up to `MOST_FEATURES`."""
    bandwidth: float | None
    """The one bandwidth, in the unit of the scaled columns; None: several."""
    dealer: str
    """"server", or the name of a party."""
    bits: AngleBits
    """Of an angle."""
    relevance: bool = True
    """Whether a turn with fewer features shows the relevance of columns."""
    computes: str = ""
    """Name of the party that computes with the label holder; "": the first one."""
    balanced: bool = False
    """Whether classes count as if they had equally many rows."""


def train(
    parties: Parties, solver: Solver, test: Array
) -> tuple[dict[str, Any], dict[str, list[float]], bool]:
    """Train, and measure the error on the rows that are held out.

    `test` has their numbers. Return metrics, curves if any, and whether all parties
    keep their parts of the model.
    """
    holder = parties.label_holder
    task = _task(solver, len(parties))
    prepared = parties.ask_exactly(party.prepare.summing(distances=_BOUND), task=task)
    outputs = prepared[holder].get("outputs", 0)
    if (outputs > 1) != (task.target == "multiclass") or not outputs:
        raise prepared.failure(holder, f"its reply must have outputs of {task.target}")
    kinds = prepared.each("columns")
    local = [sum(of_party) for of_party in kinds]
    owners = [width + (outputs + 1) * (j == holder) for j, width in enumerate(local)]
    median = median_of(prepared.sums["distances"])
    columns = sum(info.n_columns for info in parties)
    density = min(1.0, max(DENSITY, LEAST_COLUMNS / columns))
    joint = _joint(solver, task, median, density, sum(owners))
    roles = roles_of(
        parties,
        *(owners, [task.rows], solver.dealer),
        computes=solver.computes,
        joint=2 * joint.angles,
        fraction=joint_fraction(task.rows),
    )
    flat = [size for of_party in kinds for size in of_party]
    probes: dict[str, Any] = {}
    if solver.relevance and solver.bandwidth is None and roles.dealer is None:
        pilot = _pilot(joint)
        of_pilot = replace(roles, joint=2 * pilot.angles)
        probes = relevance(parties, of_pilot, pilot, flat, outputs)
        joint, roles = _relevant(joint), replace(roles, turn=1)
    of_rows = row_roles(roles, local, len(test)) if len(test) else None
    dealing = Dealing.of(parties, solver.bits, outputs, roles, of_rows)
    shares, multiple, _ = gram_matrices(
        parties, roles, joint, dealing, task.kernel, **probes
    )
    fitted = parties.ask(
        party.fit, kinds=flat, gram_shares=_only(parties, holder, shares)
    )
    metrics: dict[str, Any] = {
        "features": roles.joint,
        "local_columns": sum(local),
        "rows": task.rows,
        "bandwidth": max(joint.bandwidths) / multiple,
    }
    for name in ("regularization", "cv_score"):
        if name not in fitted[holder]:
            raise fitted.failure(holder, f"its reply lacks {name!r}")
        metrics[name] = fitted[holder][name]
    warn_of_constant(fitted[holder].get("constant", False))
    reply: Told = {}
    if of_rows is not None:
        reply = score_rows(
            *(parties, of_rows, test, dealing),
            evaluate=True,
            curves=parties.let("curves", holder),
        )
    kept = all(fitted.each("kept"))
    return metrics | metrics_of(reply), curves_of(reply), kept


def most_numbers(solver: Solver) -> int:
    """Return the most numbers in the columns of all training rows."""
    return (MOST_PARTS - (solver.dealer != SERVER)) * PART_NUMBERS


def _task(solver: Solver, count: int) -> party.Task:
    """Return what is learned of which rows: so many that no message is too large.

    Local columns have what joint ones leave of those that the rows allow, or a share
    that is `MOST_SHARE` of many rows; with few rows joint ones are worth more, but for
    the values of the parties' columns.
    """
    columns = 2 * solver.features or COLUMNS
    rows = min(solver.rows, most_numbers(solver) // columns)
    room = rows // ROWS_PER_COLUMN
    if solver.features > room:
        raise FederationError(
            f"features must leave {ROWS_PER_COLUMN} rows for each, got "
            f"{solver.features:,}, with which a run trains on at most {rows:,} rows: "
            "set fewer features, or take more rows"
        )
    left, values = int(room * min(MOST_SHARE, rows / MANY_ROWS)), 3 * room // 4
    if solver.features:
        room = min(room, most_numbers(solver) // rows)
        left = values = max(0, room - solver.features - TARGETS)
    most, values = (min(MOST_LOCAL, columns // count) for columns in (left, values))
    return party.Task(
        *(solver.target, solver.kernel, solver.test_fraction, rows),
        *(most, values, solver.balanced),
    )


def _joint(
    solver: Solver, task: party.Task, median: float, density: float, others: int
) -> party.Joint:
    """Return the joint features: as many as the rows allow."""
    rows = task.rows
    room = min(rows // ROWS_PER_COLUMN, MOST_COLUMNS, most_numbers(solver) // rows)
    count = solver.features // 2 or min(MOST_FEATURES, room - others) // 2
    if others + 2 * count > room or count < 1:
        columns = others + max(2, 2 * count)
        raise FederationError(
            f"features must leave {ROWS_PER_COLUMN} rows for each of {columns} columns "
            f"({others} of single parties and the labels, {columns - others} of all "
            f"together), {ROWS_PER_COLUMN * columns} in all, and there are {rows}: set "
            "fewer features, or take more rows or fewer columns"
        )
    if solver.bandwidth is not None:
        return party.Joint([solver.bandwidth], [count], [density], solver.bits)
    try:
        middle = median_bandwidth(np.array([median]), task.kernel)
    except ValueError as error:
        raise FederationError(str(error)) from None
    few = min(count - 1, round(NARROW * count))
    counts = {0.5 * middle: few, middle: count - few}
    given = {bandwidth: size for bandwidth, size in counts.items() if size}
    densities = [density] * len(given)
    return party.Joint([*given], [*given.values()], densities, solver.bits)


def _pilot(joint: party.Joint) -> party.Joint:
    """Return the joint features of the turn that tells the relevance of columns."""
    share = min(1.0, MOST_PILOT / joint.angles)
    counts = [max(1, int(share * count)) for count in joint.counts]
    return replace(joint, counts=counts)


def _relevant(joint: party.Joint) -> party.Joint:
    """Return as many joint features of columns that are scaled by their relevance."""
    few = min(joint.angles, len(RELEVANT))
    counts = [len(part) for part in np.array_split(np.arange(joint.angles), few)]
    bandwidths = [factor * WIDE for factor, _ in RELEVANT[:few]]
    densities = [max(share, joint.densities[0]) for _, share in RELEVANT[:few]]
    return party.Joint(bandwidths, counts, densities, joint.bits, relevant=True)


def _multiple(kernel: Kernel, cumulants: Array) -> int:
    """Return how many times angles are taken, so that `WIDE` is the median's bandwidth.

    Of the columns that are scaled by their relevance.
    """
    median = median_of(cumulants)
    if not median > 0:
        return 1
    middle = median_bandwidth(np.array([median]), kernel)
    return int(np.clip(np.rint(WIDE / middle), 1, party.MOST_MULTIPLE))


def relevance(
    parties: Parties,
    roles: Roles,
    joint: party.Joint,
    kinds: Sequence[int],
    outputs: int,
) -> dict[str, Any]:
    """Let each party know the relevance of its own columns: four round trips.

    Return what :func:`vfl_flower.clients.ridge.training.multiply` of the next turn
    gets, which opens it.
    """
    first, root = roles.first, parties.checkpoint.token(SEED_BYTES)
    widths = [info.n_columns for info in parties]
    others, of_holder = ridge_relevance.deal_relevance(
        parties.session, root, roles, widths
    )
    dealing = Dealing.of(parties, joint.bits, outputs, roles)
    shares, _, frequencies = gram_matrices(
        parties, roles, joint, dealing, triple=each(others)
    )
    replies = parties.ask(
        party.relevance,
        kinds=list(kinds),
        widths=widths,
        counted=sum(widths) - widths[first],
        gram_shares=_only(parties, first, shares),
        frequencies=frequencies,
        triples=_only(parties, first, np.concatenate([*of_holder.values()])),
    )
    return {"probes": passed_on(replies, "probes")}


@dataclass(frozen=True)
class Dealing:
    """What a dealer gives for Gram matrices and for rows, as arguments of the steps."""

    bits: AngleBits
    """Of an angle."""
    outputs: int
    """K, the number of scores of a row."""
    root: bytes
    """Secret of the server, where it deals."""
    turn: dict[str, Any]
    """For the first step of a turn."""
    rows: dict[str, Any]
    """For the first step of scores."""

    @classmethod
    def of(
        cls,
        parties: Parties,
        bits: AngleBits,
        outputs: int,
        roles: Roles | None = None,
        of_rows: Roles | None = None,
    ) -> Self:
        """Deal; a party needs a round trip for it, and the server none."""
        session, root = parties.session, parties.checkpoint.token(SEED_BYTES)
        known = roles or of_rows
        assert known is not None
        turn: dict[str, Any] = {}
        rows: dict[str, Any] = {}
        if known.dealer is not None:
            replies = parties.ask(
                ridge_dealing.deal, roles=roles, row_roles=of_rows, outputs=outputs
            )
            turn["turn_parts"] = passed_on(replies, "turn_parts")
            rows["row_parts"] = passed_on(replies, "row_parts")
            return cls(bits, outputs, root, turn, rows)
        if roles is not None:
            turn["dealt"] = each(ridge_dealing.deal_turn(session, root, roles))
        if of_rows is not None:
            dealt = ridge_dealing.deal_rows(session, root, of_rows, outputs)
            rows["dealt"] = each(dealt)
        return cls(bits, outputs, root, turn, rows)

    def cosines(
        self,
        parties: Parties,
        roles: Roles,
        hidden: Replies[Any],
        name: str,
        deal: Callable[..., Array],
        *more: int,
    ) -> dict[str, Any]:
        """Return what the second party gets for cosines.

        A party that deals has sent it under a `name`, and the server calls `deal`.
        """
        if roles.dealer is not None:
            return {name: passed_on(hidden, name)}
        made = deal(parties.session, self.root, roles, self.bits, *more)
        return {"cosines": _only(parties, roles.second, made)}


def gram_matrices(
    parties: Parties,
    roles: Roles,
    joint: party.Joint,
    dealing: Dealing,
    kernel: Kernel = "gaussian",
    **more: Any,
) -> tuple[dict[int, Array], int, dict[int, Array]]:
    """Let parties compute shares of the Gram matrix that the label holder opens.

    One turn: a round trip for each part of the rows, and two. For another one, raise
    ``roles.turn``. `more` are arguments of the first trip. Return the shares, how many
    times each angle was taken, and the frequencies of parties for the label holder.
    """
    computing, parts = (roles.first, roles.second), len(roles.parts)
    sums: dict[str, Sum | float] = {**_sums(roles, joint.bits)}
    earlier: Replies[Any] | None = None
    before: Replies[Any] | None = None
    frequencies: dict[int, Array] = {}
    multiple = 1
    for trip in range(parts + 2):
        told: dict[str, Any] = {} if trip else {**dealing.turn, **more}
        if before is not None and trip <= parts:
            told["angles"] = each(
                [
                    opened(before.sealed.pop(_name(j))) if j in computing else None
                    for j in range(len(parties))
                ]
            )
            told |= dealing.cosines(
                *(parties, roles, before, "turn_cosines"),
                ridge_dealing.turn_cosines_of,
                *(trip - 1, multiple),
            )
        if before is not None and trip == 1:
            told["triple_checks"] = passed_on(before, "triple_checks")
        if before is not None and earlier is not None:
            told["own_openings"] = passed_on(earlier, "own_openings")
            told["joint_openings"] = passed_on(before, "joint_openings")
        once = {"distances": _BOUND} if joint.relevant and trip == 0 else {}
        asked = party.multiply.summing(**sums, **once)
        replies = parties.ask(
            asked if trip < parts else party.multiply,
            roles=roles,
            counted=0 if trip else roles.columns,
            joint=joint,
            trip=trip,
            multiple=multiple,
            **told,
        )
        if trip == 0:
            frequencies = passed_on(replies, "frequencies")
        if once:
            multiple = _multiple(kernel, replies.sums["distances"])
        earlier, before = before, replies
        dealing.turn.clear()  # matrices that parties have now
    return secret(replies, "gram_shares")[roles.first], multiple, frequencies


def row_roles(roles: Roles, local: Sequence[int], rows: int, turn: int = 0) -> Roles:
    """Return who does what for the scores of some rows.

    The label holder adds what its own local columns give by itself.
    """
    owners = [0 if j == roles.first else width for j, width in enumerate(local)]
    fraction = ridge_dealing.NEW_ROWS.fraction
    return replace(roles, owners=owners, rows=[rows], fraction=fraction, turn=turn)


def score_rows(
    parties: Parties, roles: Roles, rows: Array, dealing: Dealing, **how: bool
) -> Told:
    """Let the label holder open the scores of rows: three round trips.

    `how` is as :func:`vfl_flower.clients.ridge.scores.scores` has it.
    """
    first, bits, outputs = roles.first, dealing.bits, dealing.outputs
    hidden = parties.ask(
        ridge_scores.rows.summing(**_sums(roles, bits)),
        roles=roles,
        outputs=outputs,
        bits=bits,
        numbers=rows.astype(np.uint32),
        **dealing.rows,
    )
    made = parties.ask(
        ridge_scores.products,
        outputs=outputs,
        bits=bits,
        angles=_only(parties, roles.second, opened(hidden.sealed[_name(roles.second)])),
        weights=passed_on(hidden, "weights"),
        **dealing.cosines(
            parties, roles, hidden, "row_cosines", ridge_dealing.row_cosines_of
        ),
    )
    return parties.ask_one(
        first,
        ridge_scores.scores,
        angles=opened(hidden.sealed[_name(first)]),
        bits=bits,
        products=secret(made, "products")[first],
        hidden=secret(hidden, "hidden")[first],
        **how,
    )


def predict(
    parties: Parties,
    roles: Roles,
    local: Sequence[int],
    outputs: int,
    bits: AngleBits,
    evaluate: bool = False,
    curves: bool = False,
    described: Replies[Any] | None = None,
) -> Told:
    """Let the label holder open the scores of all rows, in blocks.

    local: local columns of each party.
    outputs: K.
    evaluate: whether the label holder judges its answers, and does not keep them.
    curves: whether it then reports means of bins of rows too.
    described: replies to the step in which a party has dealt for the first block.

    Return what the label holder reports of them.
    """
    reply: Told = {}
    blocks = ridge_dealing.row_blocks(parties.n_rows, sum(local) + roles.joint)
    for turn, block in enumerate(blocks):
        of_rows = row_roles(roles, local, len(block), turn)
        if described is not None and "first_rows" in described.secrets and not turn:
            told = {"first_rows": passed_on(described, "first_rows")}
            dealing = Dealing(bits, outputs, b"", {}, told)
        else:
            dealing = Dealing.of(parties, bits, outputs, of_rows=of_rows)
        last = turn == len(blocks) - 1
        how = {"evaluate": evaluate, "last": last, "curves": curves and last}
        reply = score_rows(parties, of_rows, block, dealing, **how)
    return reply


def _name(receiver: int) -> str:
    return f"angles_{receiver}"


def _sums(roles: Roles, bits: int) -> dict[str, Sum]:
    """Return the sums of angles, one for each party that computes."""
    return {
        _name(j): Sum(1.0, f"circle{bits}", to=j) for j in (roles.first, roles.second)
    }


def _only(parties: Parties, place: int, value: T) -> T:
    """Give one party a value of a parameter, and the others none."""
    return each([value if j == place else None for j in range(len(parties))])
