"""What precedes the iterations of federated kernel k-means: gamma, scaling, the seed.

Also the checks of sums over the parties, where nobody can say whose part is wrong.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np

from vfl_flower.clients.kernel_kmeans import training as party
from vfl_flower.numerics.kernel_embedding import Kernel, default_gamma
from vfl_flower.numerics.kernel_kmeans import Subspace, variances
from vfl_flower.protocol.steps import Step, each
from vfl_flower.secure_aggregation.limbs import LIMB, join_limbs
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.parties import Parties
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")


class Start(NamedTuple):
    """What the first message of the first iteration brings, and no other message."""

    setup: party.Setup
    """Which features to draw."""
    seed: bytes
    """Their seed, encrypted for each party but the first."""

    def brought(self, space: Subspace) -> dict[str, Any]:
        """Return what the first message of the next iteration brings: this, or R."""
        return {"R": space.R} if space.t else self._asdict()


@contextmanager
def decomposed(parties: Parties, step: Step[..., Any]) -> Iterator[None]:
    """Decompose a sum of finite numbers; where that fails, name the parties."""
    try:
        with np.errstate(all="ignore"):
            yield
    except np.linalg.LinAlgError:
        raise parties.faulty_sum(step, "a matrix that has eigenvalues") from None


def begin(
    parties: Parties,
    *,
    kernel: Kernel,
    gamma: float | Literal["auto"],
    standardize: bool,
    D: int,
    D_1: int,
) -> Start:
    """Ask for the sums that gamma and the scaling need, and for the seed.

    Raises FederationError if the columns do not vary, or not in a range that the kernel
    can use.
    """
    N = parties.n_rows
    means = standardize or gamma == "auto"
    squares_by: party.Squares = "total" if means else ""
    if standardize or (gamma == "auto" and kernel == "laplacian"):
        squares_by = "column"
    seed, sum_x, squares, fill = _sums(parties, means or parties.gaps, squares_by)
    shift: Array | float = 0.0
    if means:
        lost = (variances(N, sum_x, squares) == 0) & (squares > 0)
        if lost.any():  # constant, or far from 0 for their spread
            shift = np.where(lost, sum_x / N, 0.0)
            seed, sum_x, squares, fill = _sums(parties, means, squares_by, shift)
    moved = scale = None
    if standardize:
        deviation = np.sqrt(variances(N, sum_x, squares, shift))
        if left_out := np.flatnonzero(deviation == 0).tolist():
            log.info(  # no warning: a constant column changes no distance
                "these columns take no part, since they are constant or vary too "
                "little: %s (0 is the first column of the first party's data, without "
                "ids and labels)",
                ", ".join(map(str, left_out[:20])),
            )
        moved = shift + sum_x / N
        scale = 1 / np.where(deviation > 0, deviation, math.inf)
        sum_x, squares, shift = 0.0 * sum_x, N * (deviation > 0), 0.0 * shift
    setup = party.Setup(
        kernel=kernel,
        gamma=(
            _auto_gamma(kernel, N, sum_x, squares, shift)
            if gamma == "auto"
            else float(gamma)
        ),
        D=D,
        D_1=D_1,
        fill=fill,
        shift=moved,
        scale=scale,
    )
    return Start(setup, seed)


def _sums(
    parties: Parties,
    means: bool,
    squares: party.Squares,
    shift: Array | float | None = None,
) -> tuple[bytes, Array, Array, Array | None]:
    """Return the seed for each party, the sums asked for, or zeros, and the fill.

    Where values are missing, these are the sums after they became the mean of their
    column, which is the fill.
    """
    names = {"sum_x": means, "sum_squares": bool(squares)}
    wanted: dict[str, float] = {name: LIMB for name, used in names.items() if used}
    if parties.gaps:
        wanted["known"] = float(parties.n_rows)
    replies = parties.ask(
        party.begin.summing(**wanted),
        means=means,
        squares=squares,
        shift=None if shift is None else np.asarray(shift),
        known=parties.gaps,
    )
    sums = {name: replies.sums.get(name, np.zeros((5, 1))) for name in names}
    columns = parties[0].n_columns if squares == "column" else 1
    if sums["sum_squares"].shape[1] != columns:
        raise parties.faulty_sum(party.begin, f"squares of {columns} columns")
    sealed = replies.secrets.get("seed", [None])
    if len(sealed) != len(parties) or sealed[0] is not None:
        sender = sealed.index(None) if len(sealed) == len(parties) else 0
        reason = "the first party, and it alone, must draw the seed of the features"
        raise parties.failure(sender, party.begin, reason)
    sum_x, sum_squares = (join_limbs(limbs) for limbs in sums.values())
    if (sum_squares < 0).any():
        raise parties.faulty_sum(party.begin, "squares")
    fill = None
    if parties.gaps:
        N, known = parties.n_rows, np.rint(replies.sums["known"])
        if len(known) != len(sum_x) or not ((known >= 1) & (known <= N)).all():
            raise parties.faulty_sum(party.begin, f"1 to {N} values of each column")
        mean = sum_x / known
        filled = (N - known) * np.square(mean)
        sum_x = N * mean
        sum_squares = sum_squares + (filled if squares == "column" else filled.sum())
        fill = mean + (0.0 if shift is None else shift)
    return each(sealed), sum_x, sum_squares, fill


def _auto_gamma(
    kernel: Kernel, N: int, sum_x: Array, squares: Array, shift: Array | float
) -> float:
    try:
        gamma = default_gamma(kernel, N, sum_x, squares, shift)
    except ValueError as error:
        raise FederationError(str(error)) from None
    if squares.sum() < 2.0**-50:  # the digits of a sum end at 2^-80
        raise FederationError(
            "gamma 'auto' needs columns whose squares add up to 1e-15 at least: scale "
            "the columns"
        )
    return gamma
