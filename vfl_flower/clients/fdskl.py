"""A party's side of federated doubly stochastic kernel learning (Algorithms 1 to 3).

Between messages a party keeps the seed of its features. In the doubly stochastic form a
label holder also keeps its coefficients and the features of one block. Only the party's
part of the model outlives the run.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NotRequired, TypedDict, cast

import numpy as np
from annotated_types import Ge, Le, MaxLen, MinLen

from vfl_flower.clients.evaluation import (
    MAX_CLASSES,
    Columns,
    Rows,
    Told,
    check_columns,
    classes_of,
    columns_of,
    judged,
    measures_of,
    signs_of,
    texts_of,
)
from vfl_flower.numerics.fdskl import (
    CANDIDATES,
    base_scores,
    dsg_update,
    implicit_step,
    step_sizes,
)
from vfl_flower.numerics.kernel_bandwidth import best_multiple
from vfl_flower.numerics.kernel_model import (
    KernelPart,
    Target,
    answers,
    linear_scores,
    own_features,
    owned,
    partial_angles,
    probabilities,
)
from vfl_flower.numerics.kernel_solvers import LOSSES, LossName, sigmoid
from vfl_flower.numerics.kernel_solvers import fit as fit_angles
from vfl_flower.numerics.random_features import (
    DTYPES,
    Kernel,
    draw_pairs,
    features,
    median_bandwidth,
    pair_distances,
    taken,
)
from vfl_flower.numerics.split import split_rows
from vfl_flower.party.party import Party, PartyError, Predictions, stored_as
from vfl_flower.protocol.contract import OWN, ROUTE, SEALED, Many, Reals, Whole
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.settings import Count, Fraction, Natural, NotNegative, Positive
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.secure_aggregation.limbs import PLACES, join_limbs, split_limbs
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")
step = step_of("fdskl")

PAIRS = 1000
"""Pairs of rows whose median distance gives the bandwidth."""

MOST_FEATURES = 2**20
"""Most features of a model, all of which a party draws anew for a message."""

APART = 30.0
"""Ratio of standard deviations from which a column hardly counts beside another."""

MOST_BYTES = 2**27
"""Most bytes of angles in a reply, so that no request exhausts a party's memory."""

Bits = Literal[8, 16, 32, 64]
"""Bits of an angle: 8, 16 or 32 of a fraction of a turn, or turns in float64."""

Features = Annotated[int, Ge(1), Le(MOST_FEATURES)]
"""A number of random features."""

Scale = Annotated[float, Ge(2.0**-332), Le(2.0**800)]
"""Size of the labels, a power of two: 2^16 times as much bounds a sum of scores."""

ManyRows = Annotated[Array, Whole("m", below="n_rows"), MinLen(1), Many(LEAST_ROWS)]
"""Numbers of rows, so many that one answer about all says little of each."""

Names = Annotated[list[str], MaxLen(2**12), ROUTE]
"""Names of the arrays to send in one message."""

Summed = Annotated[dict[int, Array], Reals("*"), SEALED] | None
"""Sums over the parties that this party alone can open, in numbered blocks."""

Opened = Annotated[Array, Reals("*"), SEALED]
"""A sum over the parties that this party alone can open, flattened."""


# -- what the server asks for ---------------------------------------------------------


@shapes_only
@dataclass(frozen=True)
class SharedFeatures:
    """Features that all parties know, as Algorithm 3 has them; for comparison only.

    `seed` (hexadecimal) draws omega, `widths` are the numbers of columns in party
    order, and `kept` names for each label holder the party whose phase stays on its
    angles.
    """

    seed: str
    widths: list[Natural]
    kept: list[Count]


@dataclass(frozen=True)
class Setup:
    """What the parties must know to make their features."""

    target: Target
    kernel: Kernel
    bandwidth: Positive
    """The bandwidth, in the unit of the columns."""
    n_features: Features
    """M, the number of features."""
    holders: Annotated[list[Count], MinLen(1)]
    """The label holders, in party order."""
    block: Natural
    """Feature j belongs to label holder number ``(j // block) % len(holders)``."""
    shared: SharedFeatures | None = None
    """None: each party draws its own features."""
    chooses: bool = False
    """In the direct form: the label holder chooses how many times it takes each
    angle, and so the bandwidth."""


@dataclass(frozen=True)
class AngleRequest:
    """Which angles to give: of `rows` and the first `stop` features, `bits` each."""

    rows: Rows
    stop: Features
    bits: Bits


@shapes_only
@dataclass(frozen=True)
class SummedRows:
    """Rows (B,) with their summed angles, (B M_l,), and phases to subtract, (M_l,)."""

    rows: Annotated[Array, Whole("instances", below="n_rows"), MinLen(1)]
    angles: Opened
    offsets: Opened | None = None


@shapes_only
@dataclass(frozen=True)
class ScoredRows:
    """Rows, (n,), with their summed scores, (n C,)."""

    rows: Annotated[Array, Whole("done", below="n_rows")]
    scores: Opened


@dataclass(frozen=True)
class Problem:
    """What the label holder solves, of the angles of `rows`; see ``kernel_solvers.py``.

    `loss` is L, and `regularization` is lambda; with 0 cross-validation chooses it.
    With `balanced` each class counts as much as any other.
    """

    rows: ManyRows
    loss: LossName
    regularization: NotNegative
    balanced: bool = False


@dataclass(frozen=True)
class Rule:
    """How label holders learn from a batch of the doubly stochastic form.

    `step` is gamma of the published update; 0: the label holder chooses it, None: the
    implicit step. `regularization` is lambda, or of the implicit step 1 / gamma, which
    with 0 cross-validation chooses.
    """

    loss: LossName
    regularization: NotNegative
    step: NotNegative | None = None


# -- what a party keeps ---------------------------------------------------------------


@shapes_only
@dataclass
class Training:
    """What a party stores of a model in training."""

    setup: Setup
    seed: str
    """Seed of the party's own features, hexadecimal; its secret."""
    n_columns: int
    """Number of its columns, which must not change during the run."""
    classes: Array = field(default_factory=lambda: np.zeros(0))
    """At a label holder the labels of the classes, in the order of the columns of f."""
    rule: Rule | None = None
    """In the doubly stochastic form how to learn."""
    alpha: Array | None = None
    """At a label holder the coefficients so far, for each of K steps: (M_l, K C)."""
    intercept: Array = field(default_factory=lambda: np.zeros(1))
    """At a label holder the intercept, shape (C,)."""
    steps: Array = field(default_factory=lambda: np.ones(1))
    """Step sizes of the published update, shape (K,)."""
    losses: Array = field(default_factory=lambda: np.zeros(1))
    """Sums of the mean losses of the second half of batches before learning, (K,)."""
    waiting: Array | None = None
    """Summed angles of the instances whose scores are awaited, shape (B, M_l)."""
    labels: Array | None = None
    """Labels of these instances, shape (B, C)."""
    scale: float | None = None
    """Size of the labels, in the doubly stochastic form."""
    multiple: int = 0
    """How many times the label holder takes each; 0: not chosen yet."""


@stored_as("vfl_flower.clients.fdskl.FDSKLState")
class FDSKLState:
    """What a party stores between messages, besides its local model."""

    training: Training | None = None
    """None in a run that only predicts."""
    answers: Array = field(default_factory=lambda: np.zeros(0))
    """At the receiver of the scores, its answers so far, shape (n,)."""
    sure: Array = field(default_factory=lambda: np.zeros(0))
    """If these are evaluated, for two classes f(x), for more the probability of the
    label, shape (n,)."""
    rows: Array = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    """The rows that the answers are for, shape (n,)."""
    evaluated: bool = False
    """Whether the party has reported the errors of its answers, once a session."""


def _training(party: Party) -> Training:
    training = party.recall(FDSKLState).training
    if training is None:
        raise PartyError("the step trains a model, and this run only predicts")
    return training


def _begin(party: Party, setup: Setup) -> Training:
    """Draw the seed of the party's features, and check its labels, once a run."""
    if party.part:
        raise PartyError("this run has its model already")
    try:
        training = _training(party)
    except PartyError:  # the first step that trains
        training = _new_training(party, setup)
        party.remember(FDSKLState(training))
    if training.setup != setup:
        raise PartyError("setup must be the same in the whole run")
    return training


def _new_training(party: Party, setup: Setup) -> Training:
    _check_setup(party, setup)
    classes = classes_of(party, setup.target)
    several = party.y is not None and len(setup.holders) > 1
    codes = ([0.0, 1.0], [-1.0, 1.0])
    if several and setup.target == "binary" and list(classes) not in codes:
        raise PartyError(
            "labels must be 0 and 1, or -1 and 1, where several parties hold labels, "
            "so that they mean the same at all of them"
        )
    _warn_of_scales(party)
    seed = party.secret_bytes("features", 16).hex()
    training = Training(setup, seed, party.rows.shape[1], classes)
    if party.y is not None:
        training.alpha = np.zeros((0, columns_of(setup.target, classes)))
    return training


def _warn_of_scales(party: Party) -> None:
    """Warn, here at the party, where one bandwidth cannot fit all of its columns."""
    few = np.linspace(0, party.n_rows - 1, min(party.n_rows, 1000)).astype(np.intp)
    scales = np.asarray(party.rows.take(few), dtype=np.float64).std(axis=0)
    scales = scales[scales > 0]
    if scales.size and scales.max() >= APART * scales.min():
        log.warning(
            "the scales of this party's columns differ by a factor of %.2g, and all "
            "have one bandwidth: set standardize=true",
            scales.max() / scales.min(),
        )


def _check_setup(party: Party, setup: Setup) -> None:
    """Raise ``PartyError`` unless a setup is consistent and fits this party."""
    holders, shared = setup.holders, setup.shared
    if len(set(holders) & set(range(party.n_parties))) < len(holders):
        raise PartyError("holders must be parties of the run, each once")
    if (party.index in holders) != (party.y is not None):
        raise PartyError("holders must be the parties that hold labels")
    if shared is None:
        return
    if not party.allow_plain:
        raise PartyError(
            "this party draws features of its own: with a seed that all know, the "
            "label holder can compute differences between its rows"
        )
    if not re.fullmatch("[0-9a-f]{1,32}", shared.seed):
        raise PartyError("shared.seed must be up to 32 hexadecimal digits")
    widths = shared.widths
    if (
        len(widths) != party.n_parties
        or widths[party.index or 0] != party.rows.shape[1]
    ):
        raise PartyError("shared.widths must be the number of columns of each party")
    if len(shared.kept) != len(holders) or any(
        kept >= party.n_parties or kept == holder
        for kept, holder in zip(shared.kept, holders, strict=True)
    ):
        raise PartyError("shared.kept must be another party for each label holder")


def _part(party: Party, training: Training) -> KernelPart:
    setup = training.setup
    part: KernelPart = {
        "kernel": setup.kernel,
        "bandwidth": setup.bandwidth,
        "n_features": setup.n_features,
        "n_columns": training.n_columns,
        "n_parties": party.n_parties,
        "index": party.index or 0,
        "columns": list(party.columns or ()),
        "seed": training.seed,
        "holders": setup.holders,
        "block": setup.block,
    }
    if setup.shared is not None:
        widths = setup.shared.widths
        part["shared_seed"] = setup.shared.seed
        part["first_column"] = sum(widths[: part["index"]])
        part["all_columns"] = sum(widths)
        part["kept"] = setup.shared.kept
    if training.scale is not None:
        part["scale"] = training.scale
    return part


def _keep(
    party: Party,
    training: Training,
    coef: Array | None = None,
    intercept: Array | None = None,
    loss: LossName | None = None,
) -> bool:
    """Set the party's part of the model; return whether it outlives the run."""
    part = _part(party, training)
    if coef is not None:
        part["coef"] = coef
        part["intercept"] = np.zeros(coef.shape[1]) if intercept is None else intercept
        part["target"], part["classes"] = training.setup.target, training.classes
        if loss is not None:
            part["loss"] = loss
        if training.multiple:
            part["multiple"] = training.multiple
    party.part = dict(part)
    return party.state_dir is not None


# -- the label holder's labels --------------------------------------------------------


def _labels(party: Party, rows: Array) -> Array:
    """Return the labels of rows, shape (n,); the party must know all of them."""
    if party.y is None:
        raise PartyError("this party holds no labels")
    y = np.asarray(party.y[rows.astype(np.intp)], dtype=np.float64)
    if np.isnan(y).any():
        raise PartyError("rows must be some whose labels this party knows")
    return y


# -- bandwidth ------------------------------------------------------------------------


class Distances(TypedDict):
    """Reply of :func:`distances`."""

    distances: Annotated[Array, Reals(f"{len(PLACES)} {PAIRS}"), SEALED]


class Bandwidth(TypedDict):
    """Reply of :func:`bandwidth`."""

    bandwidth: Positive


@step
@sums_over("request")
@once
@reveals("angles")
def distances(
    party: Party,
    kernel: Kernel,
    target: Target,
    holder: Count,
    rows: ManyRows | None = None,
) -> Distances:
    """Return this party's part of distances of pairs of rows, as limbs; to `holder`."""
    classes_of(party, target)  # refuses unsuitable labels before anything is sent
    rows = np.arange(party.n_rows) if rows is None else rows.astype(np.intp)
    rng = np.random.default_rng([party.seed, PAIRS])  # the same pairs at all parties
    pairs = rows[draw_pairs(len(rows), PAIRS, rng)]
    party.sum_over(rows)
    party.share(pairs, "angles")
    try:
        return {"distances": split_limbs(pair_distances(party.rows, pairs, kernel))}
    except ValueError:
        raise PartyError(
            "distances of rows must be below 2^120: standardise the columns, or give a "
            "bandwidth"
        ) from None


@step
@sums_over("earlier")
@once
def bandwidth(
    party: Party,
    kernel: Kernel,
    distances: Annotated[Array, Reals(f"{len(PLACES) * PAIRS}"), SEALED],
) -> Bandwidth:
    """Return the bandwidth that follows from the median of the summed distances.

    There must be exactly 1,000: the median of one would be the distance of one pair.
    """
    pairs = join_limbs(distances.reshape(len(PLACES), -1))
    resolution = party.n_parties * PLACES[-1]
    with refusing():
        return {"bandwidth": median_bandwidth(pairs, kernel, resolution)}


# -- angles (Algorithm 3) -------------------------------------------------------------


class PartialAngles(TypedDict):
    """Reply of :func:`angles`, keyed by label holder."""

    angles: NotRequired[Annotated[dict[int, Array], Reals("m *"), SEALED]]
    offsets: NotRequired[Annotated[dict[int, Array], Reals("*"), SEALED]]


@step
@sums_over("none", "each number is of one row")
@reveals("angles")
def angles(
    party: Party,
    request: AngleRequest,
    send: Names | None = None,
    setup: Setup | None = None,
) -> PartialAngles:
    """Lines 2 and 3 of Algorithm 3: omega_l^T x_l + b_l of rows and features.

    send: which arrays to give, if they travel from party to party: ``"angles_l"`` for
        label holder l, and with shared features ``"offsets_l"``, the phases that the
        second tree adds up (line 7). Default: all angles.
    setup: what the features are made from, if no earlier step has received it.
    """
    if setup is not None:
        _begin(party, setup)
    return _angles(party, request, send)


@step
@sums_over("none", "each number is of one row")
@reveals("angles")
def held_out_angles(
    party: Party, request: AngleRequest, send: Names | None = None
) -> PartialAngles:
    """Do the same for rows that are not trained on."""
    return _angles(party, request, send)


def _angles(
    party: Party, request: AngleRequest, send: Names | None = None
) -> PartialAngles:
    part = _model_part(party) if party.part else _part(party, _training(party))
    holders, stop = part["holders"], request.stop
    names = [f"angles_{j}" for j in holders] if send is None else send
    if "shared_seed" not in part and any(n.startswith("offsets") for n in names):
        raise PartyError("offsets must be of shared features")
    _check_request(part, request)
    rows = request.rows.astype(np.intp)
    party.afford("rows", len(rows), party.rows.shape[1])
    party.share(rows, "angles")
    reply: PartialAngles = {"angles": {}, "offsets": {}}
    summands = np.zeros(0)
    if any(name.startswith("angles") for name in names):
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # these are refused
                summands = partial_angles(part, party.rows, stop, request.bits, rows)
        except ValueError as error:  # its sentence names the rule, and no value
            raise PartyError(f"the party cannot make its angles: {error}") from None
    for holder in holders:
        turns = slice(None) if len(holders) == 1 else owned(part, stop, holder)
        if f"angles_{holder}" in names:
            reply["angles"][holder] = summands[:, turns]
        if f"offsets_{holder}" in names:
            reply["offsets"][holder] = own_features(part).weights(0, stop)[1][turns]
    return reply


def _check_request(part: KernelPart, request: AngleRequest) -> None:
    """Raise ``PartyError`` unless the angles are of the model, and fit into a reply."""
    stop, bits = request.stop, request.bits
    if stop > part["n_features"]:
        raise PartyError(
            f"stop must be at most the {part['n_features']} features of the model, got "
            f"{stop}"
        )
    if "shared_seed" in part and bits != 64:
        raise PartyError(f"bits must be 64 with shared features, got {bits}")
    # Each party makes the shared features from the columns of all parties.
    size = max(len(request.rows) * bits, part.get("all_columns", 0) * 64) * stop // 8
    if size > MOST_BYTES:
        raise PartyError(f"angles must be at most {MOST_BYTES} bytes, got {size}")


def _summed(angles: Array, offsets: Array | None, rows: Array) -> Array:
    """Return the summed angles of rows less the phases to remove, shape (n, M_l)."""
    if angles.dtype not in DTYPES.values():
        raise PartyError("angles must be fractions of a turn, or turns")
    if angles.size % len(rows):
        raise PartyError(
            f"angles must be of the same features in each of the {len(rows)} rows, got "
            f"{angles.size} in all"
        )
    angles = angles.reshape(len(rows), -1)
    if angles.dtype.kind != "f":
        return angles
    if offsets is not None:
        if len(offsets) != angles.shape[1]:
            raise PartyError(
                f"offsets must be one for each of the {angles.shape[1]} features, got "
                f"{len(offsets)}"
            )
        with np.errstate(over="ignore"):
            angles = angles - offsets
    if not np.isfinite(angles).all():
        raise PartyError("angles must be finite")
    return np.asarray(angles % 1.0)


# -- the exact solution ---------------------------------------------------------------


def _weights(problem: Problem, Y: Array) -> Array | None:
    """Return n / (K n_c) for rows of a class c of n_c rows; None if all count alike."""
    if not problem.balanced:
        return None
    label = (Y[:, 0] > 0).astype(int) if Y.shape[1] == 1 else Y.argmax(axis=1)
    counts = np.bincount(label)
    return np.asarray(len(Y) / (np.count_nonzero(counts) * counts[label]))


def _problem_labels(party: Party, training: Training, problem: Problem) -> Array:
    """Return the labels of a problem as the losses take them, shape (n, C)."""
    setup, rows = training.setup, problem.rows
    y = _labels(party, rows)
    _check_loss(problem.loss, setup.target)
    if problem.balanced and setup.target == "continuous":
        raise PartyError("balanced must be false for target 'continuous'")
    if setup.target == "multiclass":  # a rare class may have no row among these
        training.classes = np.unique(np.asarray(party.y)[rows.astype(np.intp)])
    return signs_of(y, setup.target, training.classes)


def _check_loss(loss: LossName, target: Target) -> None:
    if loss != "square" and target == "continuous":
        raise PartyError("loss must be 'square' for target 'continuous'")


class Fitted(TypedDict):
    """Reply of :func:`fit`; the label holder alone gives more than `kept`."""

    kept: bool
    columns: NotRequired[Columns]
    multiple: NotRequired[Natural]
    regularization: NotRequired[Positive]
    converged: NotRequired[Annotated[float, Ge(0), Le(1)]]
    cv_score: NotRequired[NotNegative]


@step
@sums_over("request")
@reveals("angles", "problem")
def fit(
    party: Party,
    problem: Problem | None = None,
    angles: Summed = None,
    offsets: Opened | None = None,
) -> Fitted:
    """Solve for the coefficients at the label holder; the others store their features.

    angles: the summed angles of the rows, in consecutive numbered blocks.
    offsets: phases to subtract from the angles, shape (M,).
    """
    training = _training(party)
    if party.part:
        raise PartyError("this run has its model already")
    setup = training.setup
    if problem is None:
        return {"kept": _keep(party, training)}
    rows = problem.rows
    party.sum_over(rows)
    party.share(rows.astype(np.intp), "angles")
    Y = _problem_labels(party, training, problem)
    summed = _summed(_joined(angles or {}), offsets, rows)
    M = np.count_nonzero(
        owned(_part(party, training), setup.n_features, party.index or 0)
    )
    if not M or summed.shape[1] != M:
        raise PartyError(
            f"angles must be of the {M} features of the label holder, got "
            f"{summed.shape[1]}"
        )
    reply = Fitted(kept=False)
    if setup.chooses:
        training.multiple = best_multiple(summed, Y, party.rng("bandwidth"))
        summed = taken(summed, training.multiple)
        reply["multiple"] = training.multiple
    reply["columns"] = Y.shape[1]
    if (Y[:1] == Y).all(axis=0).any():
        # A refusal would tell that some rows of the server's choice have equal labels,
        # as often as it asks; the constant model ends the run.
        log.warning("the labels of the rows to train on are equal: the model says so")
        reply["kept"] = _keep(party, training, np.zeros((M, Y.shape[1])), Y[0])
        reply["converged"] = 0.0
        reply["regularization"] = problem.regularization or 1.0
        return reply
    solution = fit_angles(
        summed,
        Y,
        problem.loss,
        problem.regularization or None,
        party.rng("cross-validation"),
        classes=setup.target != "continuous",
        weights=_weights(problem, Y),
        folds=min(5, len(rows)),
    )
    coef = solution.coef / np.sqrt(setup.n_features)
    reply["kept"] = _keep(party, training, coef, solution.intercept, problem.loss)
    reply["regularization"] = solution.regularization
    reply["converged"] = float(solution.converged)
    if solution.cv_score is not None:
        reply["cv_score"] = solution.cv_score
    return reply


def _joined(blocks: Mapping[int, Array]) -> Array:
    """Join numbered blocks of angles in the order of their numbers."""
    if len({block.dtype for block in blocks.values()}) != 1:
        raise PartyError("angles must be blocks of one type, at least one")
    return np.concatenate([blocks[number].ravel() for number in sorted(blocks)])


# -- doubly stochastic gradients (Algorithm 1) ----------------------------------------


class Picked(TypedDict):
    """Reply of :func:`start`: a label holder gives all of it, the others nothing."""

    rows: NotRequired[Annotated[Array, Whole("instances", below="n_rows")]]
    columns: NotRequired[Columns]
    scale: NotRequired[Scale]


class Iterated(TypedDict):
    """Reply of :func:`iterate`."""

    scores: NotRequired[Annotated[Array, Reals("size columns"), SEALED]]
    angles: NotRequired[Annotated[dict[int, Array], Reals("m *"), SEALED]]
    kept: NotRequired[bool]


@step
@sums_over("none", "it draws rows, and says of how many classes")
@reveals("angles")
def start(
    party: Party,
    test_fraction: Fraction,
    setup: Setup,
    rule: Rule,
    instances: Count = 0,
) -> Picked:
    """Line 2 of Algorithm 1 for all iterations at once: pick instances, in epochs."""
    if (rule.step or 0.0) * rule.regularization > 1:
        raise PartyError(
            "step times regularization must be at most 1 (Theorem 4), got "
            f"{rule.step} and {rule.regularization}"
        )
    _check_loss(rule.loss, setup.target)
    training = _begin(party, setup)
    training.rule = rule
    if party.y is None:
        return {}
    known = ~np.isnan(party.y)
    known[split_rows(party.n_rows, test_fraction, party.seed)[1]] = False
    rows, several = np.flatnonzero(known), len(setup.holders) > 1
    if not len(rows):
        raise PartyError("this party knows no label of a row that is not held out")
    largest = 1.0
    if several and setup.target == "continuous":
        largest = np.abs(party.y[rows]).max()
    if largest > 2.0**800:  # the bound of the sum of scores is 2^16 times as large
        raise PartyError("labels must be below 2^800 in size, for the sum of scores")
    training.scale = 2.0 ** math.ceil(math.log2(max(largest, 1e-100)))
    Y = signs_of(party.y[rows], setup.target, training.classes)
    training.intercept = base_scores(Y, rule.loss) / len(setup.holders)
    rng = party.rng("instances")
    epochs = [rng.permutation(rows) for _ in range(math.ceil(instances / len(rows)))]
    return {
        "rows": np.concatenate([rows[:0], *epochs])[:instances].astype(np.uint32),
        "columns": Y.shape[1],
        "scale": training.scale,
    }


@step
@sums_over("none", "each number is of one row")
@reveals("angles", "request")
@reveals("predictions", "size")
def iterate(
    party: Party,
    columns: Columns,
    size: Count,
    learn: bool = False,
    scores: Opened | None = None,
    at: Annotated[SummedRows, OWN] | None = None,
    request: AngleRequest | None = None,
    keep: bool = False,
) -> Iterated:
    """Lines 5 to 10 of Algorithm 1, for up to three iterations that overlap.

    In this order: the step of the iteration whose scores have come (lines 9 and 10);
    this party's addends of the scores of the next one's instances (lines 6 and 7); and
    the angles of the one after that (line 5). A sole label holder has all of the scores
    itself, and takes the step at once.

    columns, size: C, and for how many instances to send addends of the scores; 0: none.
    scores: summed scores of this party's instances in the last message, shape (B C,).
    """
    training = _training(party)
    rule = training.rule
    if rule is None:
        raise PartyError("instances must be picked before the iterations")
    reply: Iterated = {}
    alone = at is not None and not size
    if learn and training.alpha is not None and not alone:
        if scores is not None:
            _learn(party, training, rule, scores)
        elif rule.step:
            training.alpha = (1 - rule.step * rule.regularization) * training.alpha
    partial = None
    if at is not None:
        partial = _scores_of(party, training, at)
    if size:
        reply["scores"] = _addends(party, partial, size, columns)
    elif partial is not None:
        _learn(party, training, rule, partial)
    if request is not None:
        reply["angles"] = _angles(party, request)["angles"]
    if keep:
        coef, intercept = training.alpha, training.intercept
        if coef is not None:
            best = int(np.nan_to_num(training.losses, nan=np.inf).argmin())
            coef = np.split(coef, len(training.losses), axis=1)[best]
        reply["kept"] = _keep(party, training, coef, intercept, rule.loss)
    return reply


def _scores_of(party: Party, training: Training, at: SummedRows) -> Array:
    """Return this party's part of the scores of instances, shape (B, K C)."""
    summed = _summed(at.angles, at.offsets, at.rows)
    party.afford("at", *summed.shape)
    alpha, block = training.alpha, training.setup.block
    if alpha is None:
        raise PartyError("this party holds no coefficients")
    count = len(alpha)
    if summed.shape[1] not in (count, count + block):
        raise PartyError(
            f"angles must be of the {count} features of the label holder or of {block} "
            f"more, got {summed.shape[1]}"
        )
    if summed.shape[1] > count:  # its turn: the new features are its own
        training.waiting = summed
        training.labels = signs_of(
            _labels(party, at.rows), training.setup.target, training.classes
        )
    repeats = alpha.shape[1] // len(training.intercept)
    intercept = np.tile(training.intercept, repeats)
    return np.asarray(linear_scores(summed[:, :count], alpha) + intercept)


def _learn(party: Party, training: Training, rule: Rule, scores: Array) -> None:
    """Lines 9 and 10: the step of the iteration whose scores are known."""
    angles, y, alpha = training.waiting, training.labels, training.alpha
    if angles is None or y is None or alpha is None:
        raise PartyError("scores must be of instances of this party's own turn")
    K, setup = alpha.shape[1] // y.shape[1], training.setup
    if scores.size != K * y.size:
        raise PartyError(f"scores must be {K * y.size} numbers, got {scores.size}")
    scores, count = scores.reshape(len(y), -1), len(alpha)
    new = np.ascontiguousarray(angles[:, count:])
    if rule.step is None:
        old, coef, shift = implicit_step(
            new,
            scores,
            linear_scores(angles[:, :count], alpha),
            y,
            rule.loss,
            rule.regularization or None,
            party.rng(f"cross-validation {count}"),
            setup.target != "continuous",
        )
        alpha, training.intercept = old * alpha, training.intercept + shift
    else:
        phi = features(new)
        if not count:
            factors = CANDIDATES if len(setup.holders) == 1 else (1.0,)
            sizes = step_sizes(phi, rule.loss, factors)
            training.steps = np.array([rule.step]) if rule.step else sizes
            K = len(training.steps)
            alpha, scores = np.tile(alpha, K), np.tile(scores, K)
            training.losses = np.zeros(K)
        targets, steps = np.tile(y, K), np.repeat(training.steps, y.shape[1])
        if 2 * count >= setup.n_features:
            losses = LOSSES[rule.loss].value(scores, targets).mean(axis=0)
            training.losses += losses.reshape(K, -1).mean(axis=1)
        alpha, coef = dsg_update(
            alpha, phi, scores, targets, rule.loss, steps, rule.regularization
        )
    training.alpha = np.concatenate([alpha, coef])
    training.waiting = training.labels = None


def _addends(party: Party, partial: Array | None, size: int, columns: int) -> Array:
    """Return a label holder's part of the scores; of any other party zeros."""
    if partial is None:
        party.afford("size", size, columns)
        return np.zeros((size, columns))
    if partial.shape != (size, columns):
        raise PartyError(
            f"size and columns must be those of the scores, {partial.shape[0]} and "
            f"{partial.shape[1]}, got {size} and {columns}"
        )
    return partial


# -- prediction -----------------------------------------------------------------------


def _model_part(party: Party) -> KernelPart:
    """Return the party's part of the model that the run has."""
    if "holders" not in party.part:
        raise PartyError("this run has no model of this kind")
    return cast(KernelPart, party.part)


class PartInfo(TypedDict):
    """Reply of :func:`part`."""

    index: Count
    n_features: Features
    holders: Annotated[list[Count], MinLen(1)]
    columns: Annotated[int, Ge(0), Le(MAX_CLASSES)]
    scale: Scale
    kernel: Kernel
    bandwidth: Positive
    parties: Natural
    kept: list[Count]
    multiple: NotRequired[Natural]


class Answered(Told):
    """Reply of :func:`answer`."""

    scores: NotRequired[Annotated[Array, Reals("size columns"), SEALED]]
    angles: NotRequired[Annotated[dict[int, Array], Reals("m *"), SEALED]]


@step
@sums_over("none")
def part(party: Party) -> PartInfo:
    """Check the new rows against the part of the model, and describe that part."""
    model_part = _model_part(party)
    check_columns(party, model_part["n_columns"], list(model_part["columns"]))
    if not party.remembered():
        party.remember(FDSKLState())
    reply: PartInfo = {
        "index": model_part["index"],
        "n_features": model_part["n_features"],
        "holders": list(model_part["holders"]),
        "columns": len(model_part["intercept"]) if "coef" in model_part else 0,
        "scale": model_part.get("scale", 1.0),
        "kernel": model_part["kernel"],
        "bandwidth": model_part["bandwidth"],
        "parties": model_part["n_parties"],
        "kept": list(model_part.get("kept", ())),
    }
    if "multiple" in model_part:
        reply["multiple"] = model_part["multiple"]
    return reply


@step
@sums_over("request")
@reveals("angles", "request")
@reveals("angles", "evaluate")
@reveals("predictions", "size")
@reveals("curves", "curves", optional=True)
def answer(
    party: Party,
    columns: Columns,
    size: Count,
    done: Annotated[ScoredRows, OWN] | None = None,
    at: Annotated[SummedRows, OWN] | None = None,
    request: AngleRequest | None = None,
    evaluate: bool = False,
    last: bool = False,
    curves: Annotated[bool, OWN] = False,
) -> Answered:
    """Algorithm 2 for blocks of rows, up to three of which overlap.

    In this order: this party's addends of the scores of one block (`at`); the answers
    of the block before, whose scores have come (`done`); the angles of the block after
    (`request`). A sole label holder has all of the scores of a block itself.

    columns, size: as for :func:`iterate`.
    evaluate: report at the end what the answers are worth for the rows whose labels the
        receiver knows; otherwise the receiver stores its answers as predictions.
    last: whether the receiver now has all answers.
    curves: with the last evaluated answers: report means of bins of rows too.
    """
    state, model_part = party.recall(FDSKLState), _model_part(party)
    reply, partial = Answered(), None
    if at is not None:
        coef, intercept = _coefficients(model_part)
        party.afford("at", len(at.rows), len(coef))
        summed = _summed(at.angles, at.offsets, at.rows)
        summed = taken(summed, model_part.get("multiple", 1))
        if summed.shape[1] != len(coef):
            raise PartyError(
                f"angles must be of the {len(coef)} features of the label holder, got "
                f"{summed.shape[1]}"
            )
        partial = linear_scores(summed, coef) + intercept
    if size:
        reply["scores"] = _addends(party, partial, size, columns)
    elif at is not None and partial is not None:
        done = ScoredRows(at.rows, partial)
    if done is not None:
        _answer(state, model_part, done, party.y if evaluate else None)
    if request is not None:
        reply["angles"] = _angles(party, request)["angles"]
    if last and len(state.rows):
        if evaluate:
            reply |= _errors(party, model_part, state, curves)
        else:
            real = model_part["target"] == "continuous"
            more = {} if real else texts_of(party, state.answers)
            party.predictions = Predictions(state.answers, state.rows, more=more)
    return reply


def _coefficients(model_part: KernelPart) -> tuple[Array, Array]:
    """Return coefficients and intercept of a label holder."""
    if "coef" not in model_part:
        raise PartyError("this party holds no coefficients")
    return model_part["coef"], model_part["intercept"]


def _answer(
    state: FDSKLState, model_part: KernelPart, done: ScoredRows, y: Array | None
) -> None:
    """Turn summed scores of rows into answers; with labels also how sure these are."""
    rows, scores = done.rows, done.scores
    shape = len(rows), len(_coefficients(model_part)[1])
    if scores.size != math.prod(shape):
        raise PartyError(
            f"scores must be {math.prod(shape)} numbers, got {scores.size}"
        )
    scores, classes = scores.reshape(shape), model_part["classes"]
    new_answers = answers(scores, model_part["target"], classes)
    state.answers = np.concatenate([state.answers, new_answers])
    state.rows = np.concatenate([state.rows, rows]).astype(np.uint32)
    if y is not None and model_part["target"] != "continuous":
        sure = scores[:, 0]
        if shape[1] > 1:
            right = y[rows.astype(np.intp), None] == classes
            sure = (probabilities(scores) * right).sum(axis=1)
        state.sure = np.concatenate([state.sure, sure])


def _errors(
    party: Party, model_part: KernelPart, state: FDSKLState, curves: bool
) -> Answered:
    """Return what the answers are worth for rows whose labels this party knows."""
    known, y = judged(party, state.rows, state.evaluated)
    state.evaluated = True
    if not len(y):
        return {"test_rows": 0}
    party.sum_over(state.rows[known])
    party.share(state.rows[known].astype(np.intp), "angles")
    target, classes = model_part["target"], model_part["classes"]
    scores = probability = None
    if target == "binary":
        scores = state.sure[known]
        probability = sigmoid(np.where(y == classes[1], scores, -scores))
    elif target == "multiclass":
        probability = state.sure[known]
    if model_part.get("loss") != "logistic":
        probability = None
    of_rows = state.answers[known], target, classes, scores, probability
    return cast(Answered, measures_of(party, y, *of_rows, curves))
