"""A party's contributions to sums of distances, angles (Algorithm 3) and scores."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np

from vfl_flower.clients.evaluation import classes_of
from vfl_flower.clients.fdskl import state
from vfl_flower.numerics.kernel_model import (
    KernelPart,
    Target,
    own_features,
    owned,
    partial_angles,
)
from vfl_flower.numerics.random_features import (
    DTYPES,
    Kernel,
    draw_pairs,
    median_bandwidth,
    pair_distances,
)
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.contract import SEALED, Reals
from vfl_flower.protocol.errors import refusing
from vfl_flower.protocol.settings import Count, Positive
from vfl_flower.protocol.steps import once, reveals, step_of, sums_over
from vfl_flower.secure_aggregation.limbs import PLACES, join_limbs, split_limbs
from vfl_flower.typing import Array

step = step_of("fdskl")

PAIRS = 1000
"""Number of pairs of rows whose median distance determines the bandwidth."""

MOST_BYTES = 2**27
"""Maximum size of the angles in a reply, in bytes, to bound a party's memory."""


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
    rows: state.ManyRows | None = None,
) -> Distances:
    """Send `holder` this party's contributions to row pairs' distances, as limbs."""
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
            "distances between rows must be below 2^120: standardise the columns, or "
            "set a bandwidth"
        ) from None


@step
@sums_over("earlier")
@once
def bandwidth(
    party: Party,
    kernel: Kernel,
    distances: Annotated[Array, Reals(f"{len(PLACES) * PAIRS}"), SEALED],
) -> Bandwidth:
    """Return the bandwidth computed from the median of the summed distances.

    There must be exactly 1,000 distances: the median of a single distance would reveal
    the distance of one pair.
    """
    pairs = join_limbs(distances.reshape(len(PLACES), -1))
    resolution = party.n_parties * PLACES[-1]
    with refusing():
        return {"bandwidth": median_bandwidth(pairs, kernel, resolution)}


# -- angles (Algorithm 3) -------------------------------------------------------------


class PartialAngles(TypedDict, total=False):
    """Reply of :func:`angles`, keyed by label holder."""

    angles: Annotated[dict[int, Array], Reals("m *"), SEALED]
    offsets: Annotated[dict[int, Array], Reals("*"), SEALED]


@step
@sums_over("none", "each number describes a single row")
@reveals("angles")
def angles(
    party: Party,
    request: state.AngleRequest,
    send: state.Names | None = None,
    setup: state.Setup | None = None,
) -> PartialAngles:
    """Lines 2 and 3 of Algorithm 3: omega_l^T x_l + b_l for rows and features.

    send: the arrays to send, if arrays travel from party to party: ``"angles_l"`` for
        label holder l and, with shared features, ``"offsets_l"``, the phases that the
        second tree adds up (line 7). Default: all angles.
    setup: the parameters of the features, unless an earlier step has received them.
    """
    if setup is not None:
        state.begin(party, setup)
    return angles_of(party, request, send)


@step
@sums_over("none", "each number describes a single row")
@reveals("angles")
def held_out_angles(
    party: Party, request: state.AngleRequest, send: state.Names | None = None
) -> PartialAngles:
    """Return the angles of held-out or new rows, as a separate step."""
    return angles_of(party, request, send)


def angles_of(
    party: Party, request: state.AngleRequest, send: state.Names | None = None
) -> PartialAngles:
    """Return the requested angles, and count the request's rows as sent."""
    if party.part:
        part = state.loaded_part(party)
    else:
        part = state.part_of(party, state.training_of(party))
    holders, stop = part["holders"], request.stop
    names = [f"angles_{j}" for j in holders] if send is None else send
    if "shared_seed" not in part and any(n.startswith("offsets") for n in names):
        raise PartyError("offsets must be requested only with shared features")
    _check_request(part, request)
    rows = request.rows.astype(np.intp)
    party.afford("rows", len(rows), party.rows.shape[1])
    party.share(rows, "angles")
    reply: PartialAngles = {"angles": {}, "offsets": {}}
    summands = np.zeros(0)
    if any(name.startswith("angles") for name in names):
        ignored = np.errstate(over="ignore", invalid="ignore")  # refused later
        with refusing("the party cannot compute its angles: "), ignored:
            summands = partial_angles(part, party.rows, stop, request.bits, rows)
    for holder in holders:
        turns = slice(None) if len(holders) == 1 else owned(part, stop, holder)
        if f"angles_{holder}" in names:
            reply["angles"][holder] = summands[:, turns]
        if f"offsets_{holder}" in names:
            reply["offsets"][holder] = own_features(part).weights(0, stop)[1][turns]
    return reply


def _check_request(part: KernelPart, request: state.AngleRequest) -> None:
    """Raise ``PartyError`` unless the angles match the model and fit into a reply."""
    stop, bits = request.stop, request.bits
    if stop > part["n_features"]:
        raise PartyError(
            f"stop must be at most {part['n_features']}, the number of features of the "
            f"model, got {stop}"
        )
    if "shared_seed" in part and bits != 64:
        raise PartyError(f"bits must be 64 with shared features, got {bits}")
    # Each party generates the shared features for the columns of all parties.
    size = max(len(request.rows) * bits, part.get("all_columns", 0) * 64) * stop // 8
    if size > MOST_BYTES:
        raise PartyError(f"angles must take at most {MOST_BYTES} bytes, got {size}")


def summed_angles(angles: Array, offsets: Array | None, rows: Array) -> Array:
    """Return the summed angles of rows minus the phases to remove, shape (n, M_l)."""
    if angles.dtype not in DTYPES.values():
        raise PartyError("angles must be integers of 8, 16 or 32 bits, or float64")
    if angles.size % len(rows):
        raise PartyError(
            f"angles must have the same number of features in each of the {len(rows)} "
            f"rows, got {angles.size} values in total"
        )
    angles = angles.reshape(len(rows), -1)
    if angles.dtype.kind != "f":
        return angles
    if offsets is not None:
        if len(offsets) != angles.shape[1]:
            raise PartyError(
                f"offsets must hold one value for each of {angles.shape[1]} features, "
                f"got {len(offsets)}"
            )
        with np.errstate(over="ignore"):
            angles = angles - offsets
    if not np.isfinite(angles).all():
        raise PartyError("angles must be finite")
    return np.asarray(angles % 1.0)


def addends(
    party: Party,
    at: state.SummedRows | None,
    partial: Array | None,
    size: int,
    columns: int,
) -> Array:
    """Return a label holder's contributions to scores of rows, or zeros elsewhere."""
    if at is None or partial is None:
        party.afford("size", size, columns)
        return np.zeros((size, columns))
    if partial.shape != (size, columns):
        raise PartyError(
            f"size and columns must be {partial.shape[0]} and {partial.shape[1]}, as "
            f"in the scores, got {size} and {columns}"
        )
    party.share(at.rows.astype(np.intp), "predictions")
    return partial
