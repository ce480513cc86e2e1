"""Shares of the cosine of a sum of angles, where nobody knows the sum.

Party l of T holds angles theta_l. A dealer gives each party a seed of random angles
r_l, and gives parties 0 and 1 shares of cos r and sin r, where r = sum_l r_l. Each
party sends theta_l + r_l, which is uniform. The sum, delta = theta + r, is also
uniform. From delta, parties 0 and 1 each compute a share of the cosine on their own,
since cos(delta - r) is linear in the shared values:

.. code-block:: text

    [cos theta]_j = cos(delta) [cos r]_j + sin(delta) [sin r]_j,    j = 0, 1.

Angles are unsigned integers that represent fractions of a full turn, as in
:class:`vfl_flower.secure_aggregation.groups.Circle`. They wrap around, so a uniform
angle hides another angle perfectly. An integer multiple m theta needs no new message:
it follows from m delta and shares of cos(m r) and sin(m r).

The reduction of sine and cosine to the sine and cosine of a random angle is described
in "New approach for sine and cosine in secure fixed-point arithmetic", CSCML 2023 (LNCS
13914). A dealer who gives shares of t, sin t and cos t is described in A. Y. L. Kei and
S. S. M. Chow, "SHAFT", NDSS 2025. Here both the angle and its mask are sums over any
number of parties. The sine of the same angle needs no further message and no further
randomness from the dealer:

.. code-block:: text

    [sin theta]_j = sin(delta) [cos r]_j - cos(delta) [sin r]_j.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from vfl_flower.secure_aggregation.fixed_point import reduce
from vfl_flower.secure_aggregation.products.shares import (
    Deal,
    Dealt,
    pack,
    subtract,
    unpack,
)
from vfl_flower.typing import Array


def hide_angles(deal: Deal, seed: bytes, angles: Array, block: int) -> Array:
    """Return a party's angles for a block plus its random angles, theta_l + r_l.

    The angles, (b, features), are uint16 or uint32. The result is uniform to anyone
    without the seed. The results of all parties add up to delta, modulo a full turn. If
    the results are also sent under pairwise masks, a dealer who colludes with a
    computing party sees no single party's angles: the two then learn only the sum.
    """
    width = 8 * angles.itemsize
    return angles + deal.elements(seed, "angles", block, angles.shape, width)


def deal_cosines(
    deal: Deal,
    root: bytes,
    parties: int,
    fraction: int,
    multiple: int = 1,
    angle_bits: int = 16,
) -> Iterator[Dealt]:
    """Yield the dealer's messages to party 1, one per block of rows.

    The messages hold party 1's shares of cos(m r) and sin(m r), packed, with an even
    number f of fraction bits. Every other party needs only its seed.
    """
    seeds = [deal.seed(root, party) for party in range(parties)]
    for block, rows in enumerate(deal.blocks()):
        shape = (rows.stop - rows.start, *deal.shape[1:])
        total = np.zeros(shape, f"<u{angle_bits // 8}")
        for seed in seeds:
            total += deal.elements(seed, "angles", block, shape, angle_bits)
        pairs = np.stack(_cosine_and_sine(total, multiple, fraction))
        first = deal.elements(seeds[0], "cosines", block, pairs.shape)
        correction = pack(subtract(pairs, first, deal.bits), deal.bits)
        yield Dealt.of(deal, 1, seeds[1], correction, f"cosines {block}")


def cosine_shares(
    deal: Deal,
    party: int,
    dealt: Dealt,
    delta: Array,
    block: int,
    fraction: int,
    multiple: int = 1,
) -> Array:
    """Return one computing party's shares of the cosines and sines of a block.

    `dealt` is the dealer's message: for party 0 its seed, and for party 1 the block
    from :func:`deal_cosines`. `delta`, (b, features), is theta + r.

    The result, uint64, (b, 2 * features), holds [cos(m theta)]_j with f fraction bits,
    followed by the sines. These shares are even where cos and sin of delta are even, so
    they are not uniform. Send them only under a mask, as in the triples of
    :mod:`vfl_flower.secure_aggregation.products.triples`. Raises ValueError if the
    dealer's message is meant for a different use or block, or is too short or altered.
    """
    shape = (2, *delta.shape)
    if party == 0:
        dealt.check(deal, 0)
        shares = deal.elements(dealt.seed, "cosines", block, shape)
    else:
        length = math.prod(shape) * -(-deal.bits // 8)
        dealt.check(deal, 1, length, f"cosines {block}")
        shares = unpack(dealt.correction, deal.bits, shape)
    cosine, sine = shares
    cos_delta, sin_delta = _cosine_and_sine(delta, multiple, fraction)
    features = [
        cos_delta * cosine + sin_delta * sine,
        sin_delta * cosine - cos_delta * sine,
    ]
    return reduce(np.concatenate(features, axis=1), deal.bits)


def _cosine_and_sine(
    angles: Array, multiple: int, fraction: int
) -> tuple[Array, Array]:
    """Return cos and sin of multiples of angles, with f / 2 fraction bits."""
    if fraction % 2:
        raise ValueError(f"fraction must be even, got {fraction}")
    turned = angles * angles.dtype.type(multiple)
    quarter = angles.dtype.type(2 ** (8 * angles.itemsize - 2))
    half = fraction // 2
    return _cosine(turned, half), _cosine(turned - quarter, half)


def _cosine(angles: Array, fraction: int) -> Array:
    """Return round(2^fraction cos) of angles, modulo 2^64."""
    if angles.itemsize == 2:
        return _table(fraction)[angles]
    return _rounded_cosine(angles, fraction)


@cache
def _table(fraction: int) -> Array:
    return _rounded_cosine(np.arange(2**16, dtype="<u2"), fraction)


def _rounded_cosine(angles: Array, fraction: int) -> Array:
    turn = 2.0 ** (8 * angles.itemsize)
    cosine = np.cos(angles * (2 * np.pi / turn)) * 2.0**fraction
    return np.rint(cosine).astype("<i8").view("<u8")
