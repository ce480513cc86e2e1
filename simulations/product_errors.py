"""The largest errors of cosines and Gram matrices under shares, by their formulas."""

from __future__ import annotations

import math


def cosine_error(
    parties: int, fraction: int, angle_bits: int = 16, multiple: int = 1
) -> float:
    """Return the largest error of a shared cosine, beside that of float64.

    Each party rounds its angle to the nearest of 2^b in a turn, which moves m theta by
    at most ``pi m T / 2^b``. Cosine and sine of delta and of r have f / 2 fraction
    bits: each of these two points of the plane moves by ``e = 2^-(f / 2 + 1/2)`` at
    most, and their scalar product by ``2 e + e^2``.

    Parameters
    ----------
    parties : int
        Number of parties T that round an angle.
    fraction : int
        Fraction bits f of the shared cosines, even.
    angle_bits : {16, 32}
        Width b of an angle.
    multiple : int
        The m of cos(m theta).
    """
    moved = 1 / math.sqrt(2.0 ** (fraction + 1))
    turned = math.pi * multiple * parties / (1 << angle_bits)
    return turned + moved * (2 + moved)


def cosine_bound(fraction: int) -> float:
    """Return the bound of a cosine that is a sum of two products of encodings.

    cos(a) and sin(a) with f / 2 fraction bits are at most 1 / sqrt(2) units from a
    vector of length 2^(f / 2), in the plane. The scalar product of two such vectors is
    at most ``(2^(f / 2) + 1 / sqrt(2))^2`` (Cauchy and Schwarz). `fraction` is f, even.
    """
    return float((1 + 1 / math.sqrt(2.0 ** (fraction + 1))) ** 2)


def gram_error(rows: int, bound: float, error: float) -> float:
    """Return the largest error of an entry of a Gram matrix.

    ``|a' b' - a b| <= error (2 bound + error)`` in each of the rows, where a' and b'
    differ from a and b by at most `error`.

    The roundings of many rows mostly cancel: a cosine with f fraction bits has errors
    of a standard deviation of ``2^-(f / 2) / sqrt(6)``, and an entry of the Gram matrix
    of cosines one of about sqrt(rows) times that.

    Parameters
    ----------
    rows : int
        Number of rows.
    bound : float
        Largest size of a number in F.
    error : float
        Largest error of a number in F: :attr:`FixedPoint.error` of a column that is
        encoded, and of a cosine :func:`cosine_error`.
    """
    return rows * error * (2 * bound + error)
