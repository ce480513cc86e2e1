"""Requests to a party in kernel learning, and the party's state.

Between messages, a party stores the seed of its features. In the doubly stochastic
form, a label holder also stores its coefficients and the features of one block. Only
the party's local model remains after the run.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

import numpy as np
from annotated_types import Ge, Le, MaxLen, MinLen

from vfl_flower.clients.evaluation import RowNumbers, classes_of, columns_of
from vfl_flower.numerics.kernel_model import KernelPart, Target
from vfl_flower.numerics.kernel_solvers import LossName
from vfl_flower.numerics.random_features import Kernel
from vfl_flower.party.party import Party, PartyError, stored_as
from vfl_flower.protocol.contract import ROUTE, SEALED, Many, Reals, Whole
from vfl_flower.protocol.settings import Count, Natural, NotNegative, Positive
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

MOST_FEATURES = 2**20
"""Maximum number of features of a model; a party redraws all features for a message."""

APART = 30.0
"""Ratio of standard deviations above which the smaller column has little effect."""

Bits = Literal[8, 16, 32, 64]
"""Bits of an angle: 8, 16 or 32 for fractions of a full turn; 64 for float64 turns."""

Features = Annotated[int, Ge(1), Le(MOST_FEATURES)]
"""A number of random features."""

Scale = Annotated[float, Ge(2.0**-332), Le(2.0**800)]
"""Bound on absolute labels, a power of two; for sums of scores, 2^16 times as large."""

ManyRows = Annotated[Array, Whole("m", below="n_rows"), MinLen(1), Many(LEAST_ROWS)]
"""Row numbers: enough that one answer about all rows reveals little about each."""

Names = Annotated[list[str], MaxLen(2**12), ROUTE]
"""Names of the arrays to send in one message."""

Summed = Annotated[dict[int, Array], Reals("*"), SEALED] | None
"""Sums over the parties, in numbered blocks, that only this party can open."""

Opened = Annotated[Array, Reals("*"), SEALED]
"""A sum over the parties, flattened, that only this party can open."""


# -- what the server asks for ---------------------------------------------------------


@shapes_only
@dataclass(frozen=True)
class SharedFeatures:
    """Features that all parties know, as in Algorithm 3; for comparison only.

    `seed` (hexadecimal) is the seed of omega, `widths` are the numbers of columns in
    party order, and `kept` names, for each label holder, the party whose phase stays in
    the holder's angles.
    """

    seed: str
    widths: list[Natural]
    kept: list[Count]


@dataclass(frozen=True)
class Setup:
    """Parameters from which the parties draw their features."""

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
    """In the direct form: whether the label holder chooses the multiple of each angle,
    and so the bandwidth."""


@dataclass(frozen=True)
class AngleRequest:
    """The angles to send, in `bits` bits: for `rows` and the first `stop` features."""

    rows: RowNumbers
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
    """The problem that the label holder solves, on the angles of `rows`.

    `loss` is L, and `regularization` is lambda, or 0 if cross-validation chooses
    lambda. With `balanced`, all classes have the same total weight. See
    ``numerics/kernel_solvers.py``.
    """

    rows: ManyRows
    loss: LossName
    regularization: NotNegative
    balanced: bool = False


@dataclass(frozen=True)
class Rule:
    """The rule by which label holders learn from a batch in the doubly stochastic form.

    `step` is the gamma of the published update. If `step` is 0, the label holder
    chooses gamma; if `step` is None, the label holder takes the implicit step.
    `regularization` is lambda or, for the implicit step, 1 / gamma (0: chosen by
    cross-validation).
    """

    loss: LossName
    regularization: NotNegative
    step: NotNegative | None = None


# -- what a party keeps ---------------------------------------------------------------


@shapes_only
@dataclass
class Training:
    """A party's state while a model is trained."""

    setup: Setup
    seed: str
    """Seed of the party's own features, hexadecimal; a secret of the party."""
    n_columns: int
    """Number of the party's columns; the number must not change during the run."""
    classes: Array = field(default_factory=lambda: np.zeros(0))
    """At a label holder: the labels of the classes, in the order of f's columns."""
    rule: Rule | None = None
    """In the doubly stochastic form, the rule for learning."""
    alpha: Array | None = None
    """At a label holder: the coefficients so far for K step sizes, shape (M_l, K C)."""
    intercept: Array = field(default_factory=lambda: np.zeros(1))
    """At a label holder: the intercept, of shape (C,)."""
    steps: Array = field(default_factory=lambda: np.ones(1))
    """Step sizes of the published update, of shape (K,)."""
    losses: Array = field(default_factory=lambda: np.zeros(1))
    """Sums of mean losses before the update, over the later half of batches, (K,)."""
    waiting: Array | None = None
    """Summed angles of the instances whose scores are pending, of shape (B, M_l)."""
    labels: Array | None = None
    """Labels of these instances, of shape (B, C)."""
    scale: float | None = None
    """Largest absolute label, in the doubly stochastic form."""
    multiple: int = 0
    """The multiple of each angle that the label holder uses; 0: not chosen yet."""


@stored_as("vfl_flower.clients.fdskl.FDSKLState")
class FDSKLState:
    """A party's state between messages, besides its local model."""

    training: Training | None = None
    """The state of the training; None in a run that only predicts."""
    answers: Array = field(default_factory=lambda: np.zeros(0))
    """At the party that reconstructs the scores: its answers so far, of shape (n,)."""
    sure: Array = field(default_factory=lambda: np.zeros(0))
    """If the answers are evaluated: f(x) for two classes, or the probability of the
    label for more classes, of shape (n,)."""
    rows: Array = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    """The rows of the answers, of shape (n,)."""
    evaluated: bool = False
    """Whether the party has reported its errors, which it does once per session."""


def training_of(party: Party) -> Training:
    """Return the state of the party's training; raise PartyError if there is none."""
    training = party.recall(FDSKLState).training
    if training is None:
        raise PartyError("this step trains a model, but this run only predicts")
    return training


def begin(party: Party, setup: Setup) -> Training:
    """Draw the seed of the party's features, and check its labels, once per run."""
    if party.part:
        raise PartyError("this run already has its model")
    try:
        training = training_of(party)
    except PartyError:  # the first step that trains
        training = _new_training(party, setup)
        party.remember(FDSKLState(training))
    if training.setup != setup:
        raise PartyError("setup must be the same throughout the run")
    return training


def _new_training(party: Party, setup: Setup) -> Training:
    _check_setup(party, setup)
    classes = classes_of(party, setup.target)
    several = party.y is not None and len(setup.holders) > 1
    codes = ([0.0, 1.0], [-1.0, 1.0])
    if several and setup.target == "binary" and list(classes) not in codes:
        raise PartyError(
            "labels must be 0 and 1, or -1 and 1, if several parties hold labels: each "
            "label must have the same meaning at all of these parties"
        )
    _warn_of_scales(party)
    seed = party.secret_bytes("features", 16).hex()
    training = Training(setup, seed, party.rows.shape[1], classes)
    if party.y is not None:
        training.alpha = np.zeros((0, columns_of(setup.target, classes)))
    return training


def _warn_of_scales(party: Party) -> None:
    """Log a warning if one bandwidth cannot fit all of the party's columns."""
    few = np.linspace(0, party.n_rows - 1, min(party.n_rows, 1000)).astype(np.intp)
    scales = np.asarray(party.rows.take(few), dtype=np.float64).std(axis=0)
    scales = scales[scales > 0]
    if scales.size and scales.max() >= APART * scales.min():
        log.warning(
            "the scales of this party's columns differ by a factor of %.2g, but all "
            "columns share one bandwidth: set standardize=true",
            scales.max() / scales.min(),
        )


def _check_setup(party: Party, setup: Setup) -> None:
    """Raise ``PartyError`` unless a setup is consistent and fits this party."""
    holders, shared = setup.holders, setup.shared
    if len(set(holders) & set(range(party.n_parties))) < len(holders):
        raise PartyError("holders must name parties of the run, without duplicates")
    if (party.index in holders) != (party.y is not None):
        raise PartyError("holders must be the parties that hold labels")
    if shared is None:
        return
    if not party.allow_plain:
        raise PartyError(
            "this party requires private features: if all parties knew the seed, the "
            "label holder could compute differences between this party's rows"
        )
    if not re.fullmatch("[0-9a-f]{1,32}", shared.seed):
        raise PartyError("shared.seed must be up to 32 hexadecimal digits")
    widths = shared.widths
    if (
        len(widths) != party.n_parties
        or widths[party.index or 0] != party.rows.shape[1]
    ):
        raise PartyError("shared.widths must list the number of columns of each party")
    if len(shared.kept) != len(holders) or any(
        place >= party.n_parties or place == holder
        for place, holder in zip(shared.kept, holders, strict=True)
    ):
        raise PartyError("shared.kept must name, for each holder, another party")


def part_of(party: Party, training: Training) -> KernelPart:
    """Return the party's local model, without coefficients."""
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


def loaded_part(party: Party) -> KernelPart:
    """Return the party's local model of the run."""
    if "holders" not in party.part:
        raise PartyError("this run has no model for this strategy")
    return cast(KernelPart, party.part)


def keep_part(
    party: Party,
    training: Training,
    coef: Array | None = None,
    intercept: Array | None = None,
    loss: LossName | None = None,
) -> bool:
    """Set the party's local model; return whether the model remains after the run."""
    part = part_of(party, training)
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
