"""Relevance of columns for a kernel model, computed on shares.

After a first round, the label holder knows H, and another party knows Omega, its own
block of the frequencies (:mod:`vfl_flower.numerics.ridge.relevance`). The party learns
Omega^T B, where B is a random matrix from N(0, H) that the label holder draws, and
nobody else learns anything. This requires one triple from the dealer
(:mod:`vfl_flower.secure_aggregation.products.triples`). The party sends the opening of
the triple, and the values that check the triple, together with its columns in the first
round. From Omega^T B it computes the relevance of its own columns, and scales these
columns for the second round.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import numpy as np

from vfl_flower.numerics.ridge.relevance import relevance_of
from vfl_flower.secure_aggregation.fixed_point import FixedPoint, decode
from vfl_flower.secure_aggregation.products import triples
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import (
    SEED_BYTES,
    Deal,
    Dealt,
    add,
    pack,
    unpack,
    width_of,
)
from vfl_flower.typing import Array

PROBES = 128
"""Number of columns of B. The relative standard error is then 1/8 for a relevance, and
1/16 for a scale."""

FREQUENCIES = FixedPoint(63, 20, 256.0)
"""Encoding of frequencies times the bandwidth; larger Laplacian values are clipped."""

MIXTURES = FixedPoint(63, 20, 2.0**20)
"""Encoding of B."""


def relevance_deal(roles: Roles, session: int, owner: int, width: int) -> Deal:
    """Return the use for the triple of the label holder and a column owner."""
    shape = width, roles.joint // 2, PROBES
    return Deal(session, "relevance", roles.turn, owner, shape, FREQUENCIES.bits)


def deal_relevance(
    session: int, root: bytes, roles: Roles, widths: Sequence[int]
) -> tuple[list[Array | None], dict[int, Array]]:
    """Return the dealer's messages to the parties, with None for the label holder.

    Also return the dealer's messages to the label holder, by the index of the other
    party.
    """
    of_holder: dict[int, Array] = {}
    of_others: list[Array | None] = [None] * len(widths)
    for j, width in enumerate(widths):
        if j != roles.first:
            deal = relevance_deal(roles, session, j, width)
            first, second = triples.deal_predictions(deal, root)
            of_holder[j], of_others[j] = first.pack(), second.pack()
    return of_others, of_holder


def hidden_frequencies(
    deal: Deal, dealt: Array, omega: Array, challenge: bytes
) -> Array:
    """Return a party's masked frequencies, (A, d), for the label holder.

    Raises ValueError if the dealer's message is for a different use or has been
    altered.
    """
    triple = triples.PredictionTriple(deal, 1, Dealt.unpack(dealt))
    elements, _ = FREQUENCIES.encode(omega.T)
    parts = [
        triple.opening(elements[rows], block)
        for block, rows in enumerate(deal.blocks())
    ]
    check = pack(triple.sacrifice(challenge), deal.bits)
    proof = np.frombuffer(triple.proof(challenge), np.uint8)
    return np.concatenate([proof, check, pack(np.concatenate(parts), deal.bits)])


def hidden_probes(
    deal: Deal, dealt: Array, opening: Array, B: Array, challenge: bytes
) -> Array:
    """Return masked B, (A, probes), and a share, for the sender of the opening.

    Raises ValueError if a message from the dealer or the party is meant for a different
    use, is too short or was altered, or if the triple is wrong.
    """
    bits = deal.bits
    triple = triples.PredictionTriple(deal, 0, Dealt.unpack(dealt))
    elements, _ = MIXTURES.encode(B)
    proof, check, columns = np.split(
        opening,
        [SEED_BYTES, SEED_BYTES + triples.SACRIFICED * deal.shape[1] * width_of(bits)],
    )
    U = unpack(check, bits, (triples.SACRIFICED, deal.shape[1]))
    if not hmac.compare_digest(triple.proof(challenge, U), proof.tobytes()):
        raise ValueError(
            "the dealer's triple failed the check: the relevance of columns would be "
            "wrong"
        )
    opened = unpack(columns, bits, deal.shape[:2])
    shares = [
        triple.share_of_weights(
            elements, np.zeros_like(opened[rows]), opened[rows], block
        )
        for block, rows in enumerate(deal.blocks())
    ]
    hidden = pack(triple.hidden_weights(elements), bits)
    return np.concatenate([hidden, *(pack(share, bits) for share in shares)])


def opened_relevance(deal: Deal, dealt: Array, sent: Array) -> Array:
    """Return the relevance of each of a party's columns, of shape (d,).

    Raises ValueError if the dealer's message is for a different use or has been
    altered, or if the label holder's message is malformed.
    """
    bits = deal.bits
    triple = triples.PredictionTriple(deal, 1, Dealt.unpack(dealt))
    hidden, shares = np.split(sent, [deal.shape[1] * deal.shape[2] * width_of(bits)])
    mixed = unpack(hidden, bits, deal.shape[1:])
    mine = [triple.share_of_mask(mixed, block) for block, _ in enumerate(deal.blocks())]
    theirs = unpack(shares, bits, (deal.rows, deal.shape[2]))
    products = add(np.concatenate(mine), theirs, bits=bits)
    fraction = FREQUENCIES.fraction + MIXTURES.fraction
    return relevance_of(decode(products, bits, fraction))
