r"""How much noise makes the Gram matrices of a kernel model differentially private.

**What is compared**: two data sets that differ in the values of one row at one party
(but the label holder), with all that the parties have chosen by their rows held fixed:
scales, and which columns there are.

A row of the features is f, with :math:`|f|^2 \le R` (:func:`row_bound`), and each row
is in one Gram matrix. The upper triangle gets Gaussian noise of deviation s, its
diagonal one of :math:`\sqrt2 s`: in units of these the triangle of a symmetric matrix
has the length :math:`|\cdot|_F / (\sqrt2 s)`. Of the row the parts v of the party and
of joint features become v', and the rest o stays. With t = v . v' and |v|^2, |v'|^2
at most b, where b + |o|^2 <= R,

.. math::
    \tfrac12 |f f^T - f' f'^T|_F^2
    = \tfrac12 (|v|^4 + |v'|^4) - t^2 + |o|^2 |v - v'|^2
    \le b^2 - t^2 + 2 |o|^2 (b - t) \le (b + |o|^2)^2 \le R^2,

which is largest at t = -|o|^2. So the sensitivity is R, and s is R times the deviation
of a Gaussian mechanism of sensitivity 1 (B. Balle and Y.-X. Wang, "Improving the
Gaussian Mechanism for Differential Privacy", ICML 2018), as ``dp-accounting`` has it.
Both matrices are of different rows (parallel composition).
"""

from __future__ import annotations

import math

import numpy as np

LOCAL, TARGETS, ONES = 1.2, 0.25, 0.05
"""Squared lengths of the local columns of all parties, of the targets and of the ones,
in that of the joint features. Chosen on rows of protein, pol and cod_rna."""

MOST_TARGET = 4.0
"""Largest size of a real target, in standard deviations; larger ones are clipped."""

SLACK = 1.02
"""What rounding adds to |f|^2 at most: a cosine and a sine of 16 fraction bits have a
squared length of 1.012, and columns are off by 2^-17."""

FEWEST = 8
"""Fewest angles where their number is chosen."""


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the deviation of Gaussian noise for a sensitivity of 1.

    `epsilon` and `delta` are above 0, and `delta` is below 1. Raises ValueError if the
    library is not installed.
    """
    try:
        from dp_accounting.pld.common import DifferentialPrivacyParameters
        from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
    except ImportError:
        raise ValueError(
            "epsilon must be 0 where the package dp-accounting is not installed: "
            "pip install 'vfl-flower[privacy]'"
        ) from None
    wanted = DifferentialPrivacyParameters(epsilon, delta)
    return float(GaussianPrivacyLoss.from_privacy_guarantee(wanted).standard_deviation)


def row_bound(angles: int) -> float:
    """Return R, the largest squared length of a row with so many angles."""
    return SLACK * angles * (1 + LOCAL + TARGETS + ONES)


def noise_deviation(epsilon: float, delta: float, angles: int) -> float:
    """Return s, the deviation of each party's noise beside the diagonal.

    `angles` is the number of pairs of joint features. Raises ValueError as
    :func:`noise_multiplier` does.
    """
    return noise_multiplier(epsilon, delta) * row_bound(angles)


def column_weights(
    angles: int, parties: int, outputs: int, real: bool
) -> tuple[float, float, float]:
    """Return what local columns, targets and ones are multiplied with in the matrices.

    They are whole numbers over 256, which fixed point represents exactly. `real` says
    whether targets are real numbers, and not -1 and +1.
    """
    local = angles * LOCAL / parties  # a party's row has a length of at most 1
    targets = angles * TARGETS / (MOST_TARGET**2 if real else outputs)
    of_local, of_targets, ones = (
        math.floor(256 * math.sqrt(square)) / 256
        for square in (local, targets, angles * ONES)
    )
    return of_local, of_targets, ones


def private_angles(rows: int, epsilon: float) -> int:
    """Return how many angles to take: sqrt(rows epsilon) / 3, at least `FEWEST`.

    Noise grows with them, and some sqrt(n) random features suffice for least squares
    (A. Rudi and L. Rosasco, NeurIPS 2017); the factor is from the sets of `LOCAL`.
    """
    return max(FEWEST, int(np.sqrt(rows * epsilon) / 3))
