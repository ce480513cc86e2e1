"""Requests to a party in ridge regression, its state, and shares of joint features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

import numpy as np
from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from vfl_flower.clients.evaluation import columns_of
from vfl_flower.clients.products import dealt_to
from vfl_flower.numerics import split
from vfl_flower.numerics.kernel_model import Target
from vfl_flower.numerics.random_features import Kernel, RandomFeatures
from vfl_flower.numerics.ridge import features, local_columns
from vfl_flower.party.party import Party, PartyError, stored_as
from vfl_flower.protocol.contract import SEALED, Reals
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.settings import Count, Fraction, Natural
from vfl_flower.protocol.terms import LEAST_ROWS
from vfl_flower.secure_aggregation.products import shares
from vfl_flower.secure_aggregation.products.angles import cosine_shares, hide_angles
from vfl_flower.secure_aggregation.products.dealing import place_of
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

HEAD = 2 * shares.SEED_BYTES
"""Length of the dealer's message for a party's angles, in bytes."""

AngleBits = Literal[16, 32]

OpenedAngles = Annotated[Array, Reals("*"), SEALED]
"""Sums of all parties' angles, flattened, which only this party can open."""

MOST_MULTIPLE = 256
"""Largest multiple of an angle."""

MOST_KERNELS = 8
"""Maximum number of bandwidths."""

Bandwidth = Annotated[float, Ge(1e-50), Le(1e50)]
"""Bandwidth, limited so that no scaled angle overflows: a refusal would reveal
values."""

Density = Annotated[float, Gt(0), Le(1)]
"""Probability that an angle includes a column."""


@dataclass(frozen=True)
class Task:
    """The task to learn, and its rows."""

    target: Target
    """The type of the labels."""
    kernel: Kernel
    test_fraction: Fraction
    """Fraction of the rows held out."""
    rows: Natural
    """Number of training rows among the rows that are not held out."""
    most: Count
    """Maximum number of local columns of a party."""
    values: Count
    """Maximum number of value columns, if larger than `most`."""
    balanced: bool = False
    """Whether all classes have equal weight, regardless of their numbers of rows."""
    linear: bool = False
    """Whether the features are only the parties' own columns."""


@dataclass(frozen=True)
class Joint:
    """The joint features."""

    bandwidths: Annotated[list[Bandwidth], MinLen(1), MaxLen(MOST_KERNELS)]
    counts: Annotated[list[Natural], MinLen(1), MaxLen(MOST_KERNELS)]
    """The number of angles of each bandwidth."""
    densities: Annotated[list[Density], MinLen(1), MaxLen(MOST_KERNELS)]
    """The density of each bandwidth."""
    bits: AngleBits
    relevant: bool = False
    """Whether columns are scaled by the square root of their relevance."""

    @property
    def angles(self) -> int:
        """Number of angles."""
        return sum(self.counts)


@stored_as("vfl_flower.clients.ridge.state.RidgeState")
class RidgeState:
    """A party's state between messages, in addition to its local model."""

    task: Task
    joint: Joint | None = None
    """Joint features of this round; None in a linear model."""
    turns: int = 0
    """Number of Gram matrices that the party has started to compute."""
    angles: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """The dealer's message for the party's angles in this round, uint8."""
    multiple: int = 0
    """Multiple of each angle in this round; 0: not yet known."""
    triple: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """The dealer's message for the relevance of the party's columns, uint8."""
    pilot: Roles | None = None
    """Roles in the round that finds the relevance."""
    relevance: Array = field(default_factory=lambda: np.zeros(0))
    """Factors of the party's scaled columns, of shape (d,); empty if all are 1."""
    # At the label holder:
    y_mean: float = 0.0
    y_scale: float = 1.0
    """Mean and scale of the labels of the training rows."""
    lowest: float = -np.inf
    highest: float = np.inf
    """Bounds at which real labels are clipped."""
    classes: Array = field(default_factory=lambda: np.zeros(0))
    """The labels of the classes."""
    muted: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """The local columns set to 0: with the labels, they would reveal single rows."""
    constant: bool = False
    """Whether the party's labels violate a rule, so that zeros replace the targets."""


def training_rows(party: Party, task: Task) -> Array:
    """Return the numbers of the training rows, which depend only on public values."""
    n, fraction = party.n_rows, task.test_fraction
    with refusing():
        return split.training_rows(n, fraction, task.rows, party.seed)


@shapes_only
@dataclass(frozen=True)
class OwnColumns:
    """A party's own columns on the training rows, and the map to local columns."""

    X: Array
    local: local_columns.LocalColumns


def own_columns(party: Party, task: Task) -> OwnColumns:
    """Return the party's columns of the training rows, the same on each call."""
    known = party.cache.get("ridge")
    if known is not None and known[0] == (party.session, task):
        return cast(OwnColumns, known[1])
    X = np.asarray(party.rows.take(training_rows(party, task)), dtype=np.float64)
    kinds = {"bins": 1, "waves": 0} if task.linear else {}
    local = local_columns.fit_local_columns(
        X,
        most=max(task.most, min(X.shape[1], task.values)),
        least=LEAST_ROWS,
        rng=party.rng("local columns"),
        **kinds,
    )
    fitted = OwnColumns(X, local)
    party.cache["ridge"] = (party.session, task), fitted
    return fitted


def outputs_of(state: RidgeState) -> int:
    """Return the number of targets."""
    return columns_of(state.task.target, state.classes)


def angles_of(
    party: Party, state: RidgeState, joint: Joint, fitted: OwnColumns, rows: slice
) -> Array:
    """Return the party's contributions to the angles of rows."""
    Z = local_columns.scaled_columns(fitted.local, fitted.X[rows])
    Z = Z * state.relevance if joint.relevant else Z
    made = _features_of(party, state, joint, Z.shape[1])
    return features.joint_angles(made, joint.counts, Z, joint.bits)


def frequencies_of(party: Party, state: RidgeState, joint: Joint, d: int) -> Array:
    """Return the party's block of the frequencies of joint features, shape (A, d)."""
    made = _features_of(party, state, joint, d)
    return features.joint_frequencies(made, joint.counts)


def _features_of(
    party: Party, state: RidgeState, joint: Joint, d: int
) -> list[RandomFeatures]:
    seed, kernel = seed_of(party, joint), state.task.kernel
    return features.joint_features(kernel, d, joint.bandwidths, joint.densities, seed)


def seed_of(party: Party, joint: Joint) -> int:
    """Return the seed of the party's own features, a secret of the party."""
    name = "relevant features" if joint.relevant else "features"
    return int.from_bytes(party.secret_bytes(name, 16))


# -- secret-shared joint features of rows ---------------------------------------------
# The angle of a joint feature is a sum over all parties. Each party adds random angles,
# generated from the dealer's seed, and sends the result for the two computing parties.
# These two parties get the sums, which are uniform, and each computes its shares of the
# cosines and sines: see ``secure_aggregation/products/angles.py``.


def hidden_angles(
    party: Party, roles: Roles, use: shares.Deal, dealt: Array, angles: Iterable[Array]
) -> dict[int, Array]:
    """Return angles plus the dealer's random angles, for both computing parties.

    `angles` yields arrays (rows, angles) of whole blocks of rows. Raises PartyError if
    the dealer's message is meant for a different use, is too short or was altered.
    """
    with refusing():
        head = shares.Dealt.unpack(dealt)
        head.check(use, place_of(roles, party.index or 0))
        starts = (
            (part, k) for part in angles for k in range(0, len(part), shares.BLOCK_ROWS)
        )
        hidden = [
            hide_angles(use, head.seed, part[start : start + shares.BLOCK_ROWS], block)
            for block, (part, start) in enumerate(starts)
        ]
    both = np.concatenate(hidden)
    return {roles.first: both, roles.second: both}


def joint_shares(
    party: Party,
    roles: Roles,
    use: shares.Deal,
    angles: Array,
    dealt: Array,
    cosines: Array | None,
    delivered: dict[int, Array] | None,
    angle_bits: int,
    multiple: int = 1,
) -> Iterator[Array]:
    """Yield the blocks of a computing party's shares of cosines and sines.

    Each angle, the sum over all parties, is multiplied by `multiple`. Only the second
    party gets correlated randomness for cosines: `cosines` if the server is the dealer,
    or `delivered` if a party is. Raises PartyError if this randomness is missing or
    comes from another sender.
    """
    if party.index not in (roles.first, roles.second):
        raise PartyError("only the two computing parties may receive angles")
    if angles.dtype != np.dtype(f"u{angle_bits // 8}"):
        raise PartyError(f"angles must have {angle_bits} bits")
    second = party.index == roles.second
    if not second and (cosines is not None or delivered):
        raise PartyError("cosines must be sent to the second party alone")
    portion = shares.Portion(dealt_to(cosines, delivered, roles)) if second else None
    if angles.size != use.rows * use.shape[1]:
        raise PartyError(f"angles must be {use.rows}x{use.shape[1]}, got {angles.size}")
    sums, head = angles.reshape(use.shape), shares.Dealt.unpack(dealt)
    for block, rows in enumerate(use.blocks()):
        delta, given = sums[rows], head
        if portion is not None:
            given = portion.take(2 * delta.size * shares.width_of(use.bits))
        yield cosine_shares(
            use, int(second), given, delta, block, roles.fraction, multiple
        )
