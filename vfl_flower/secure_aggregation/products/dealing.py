"""The dealer's randomness for a Gram matrix with joint features, and for scored rows.

The randomness consists of the seeds of random angles, the second party's shares of the
cosines of these angles, and the triples. The dealer sees none of the data, and must not
collude with either of the two computing parties. `root` is the dealer's secret, 32
bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vfl_flower.secure_aggregation.fixed_point import (
    FixedPoint,
    finest_gram_fixed_point,
)
from vfl_flower.secure_aggregation.products.angles import deal_cosines
from vfl_flower.secure_aggregation.products.roles import (
    LARGEST,
    MOST_MEAN_SQUARE,
    Roles,
)
from vfl_flower.secure_aggregation.products.shares import Deal, Dealt
from vfl_flower.secure_aggregation.products.triples import (
    deal_gram,
    deal_owner,
    deal_predictions,
    deal_row_owner,
)
from vfl_flower.typing import Array

FRACTION = 16
"""Fraction bits of a feature if there are many rows; each factor has half as many."""

FEW_ROWS = 2**12
"""Below this number of training rows, as many fraction bits are used as fit into the
widest ring. Rounding affects small models more, and a run sends only a third more
bytes."""

NEW_ROWS = FixedPoint(56, 28, 1.01)
"""Encoding of the features of rows to predict. The encoding is the same for any number
of rows, since a score adds up the features of a single row. If features have 28
fraction bits, weights have 26 fraction bits, relative to the sum of the weights'
absolute values."""


def joint_fraction(rows: int) -> int:
    """Return the fraction bits of the features of training rows, an even number.

    A cosine with f fraction bits has an error of about ``2^-(f / 2)``. A ring of 48
    bits holds hardly more fraction bits for few rows than for many rows, so the widest
    ring is used for few rows.

    >>> [joint_fraction(rows) for rows in (300, 3000, 30_000)]
    [26, 24, 16]
    """
    if rows >= FEW_ROWS:
        return FRACTION
    rows = max(rows, 1)
    numbers = finest_gram_fixed_point(rows, LARGEST, square_sum=MOST_MEAN_SQUARE * rows)
    return numbers.fraction // 2 * 2


def angle_deal(roles: Roles, session: int, name: str, bits: int) -> Deal:
    """Return the use that identifies the dealer's random angles."""
    return Deal(session, name, roles.turn, 0, (roles.rows, roles.joint // 2), bits)


def place_of(roles: Roles, party: int) -> int:
    """Return a party's place in the order of angles: first, second, then the others."""
    computing = [roles.first, roles.second]
    others = [j for j, _ in enumerate(roles.owners) if j not in computing]
    return [*computing, *others].index(party)


def deal_all(use: Deal, root: bytes, roles: Roles) -> list[Array]:
    """Return the dealer's messages to each party, as bytes; `root` is its secret."""
    sent = [deal_owner(use, root, owner).pack() for owner, _ in enumerate(roles.owners)]
    pair = roles.first, roles.second
    for party, dealt in zip(pair, deal_gram(use, root), strict=True):
        sent[party] = np.concatenate([sent[party], dealt.pack()])
    return sent


def _deal_angles(
    use_of: Callable[[Roles, int], Deal], session: int, root: bytes, roles: Roles
) -> list[list[Array]]:
    """Return, for each party, a list with its seed of angles; empty without angles."""
    if not roles.joint:
        return [[] for _ in roles.owners]
    use = use_of(roles, session)
    places = [place_of(roles, party) for party, _ in enumerate(roles.owners)]
    return [[Dealt.of(use, at, use.seed(root, at)).pack()] for at in places]


def training_angles(roles: Roles, session: int) -> Deal:
    """Return the use that identifies the dealer's random angles for training rows."""
    return angle_deal(roles, session, "angles", roles.numbers.bits)


def row_angles(roles: Roles, session: int) -> Deal:
    """Return the use that identifies the dealer's random angles for rows to score."""
    return angle_deal(roles, session, "new angles", NEW_ROWS.bits)


def deal_turn(session: int, root: bytes, roles: Roles) -> list[Array]:
    """Return the dealer's messages to each party for a round; `root` is its secret."""
    angles = _deal_angles(training_angles, session, root, roles)
    grams = deal_all(roles.deal(session), root, roles)
    pairs = zip(angles, grams, strict=True)
    return [np.concatenate([*seeds, gram]) for seeds, gram in pairs]


def cosines_of(
    use: Deal, root: bytes, roles: Roles, angle_bits: int, multiple: int = 1
) -> Array:
    """Return the second party's randomness for the cosines of multiples of an angle."""
    dealt = deal_cosines(
        use, root, len(roles.owners), roles.fraction, multiple, angle_bits
    )
    return np.concatenate([message.pack() for message in dealt])


def row_deal(roles: Roles, session: int, outputs: int) -> Deal:
    """Return the use that identifies the triple for the scores of rows."""
    shape = roles.rows, roles.columns, outputs
    owners = (*roles.owners, *(roles.joint,) * bool(roles.joint))
    return Deal(session, "scores", roles.turn, 0, shape, NEW_ROWS.bits, owners)


def deal_rows(session: int, root: bytes, roles: Roles, outputs: int) -> list[Array]:
    """Return the dealer's messages to each party for rows with several scores."""
    made = _deal_angles(row_angles, session, root, roles)
    deal = row_deal(roles, session, outputs)
    for owner, sent in enumerate(made):
        sent.append(deal_row_owner(deal, root, owner).pack())
    first, second = deal_predictions(deal, root)
    made[roles.first].append(first.pack())
    made[roles.second].append(second.pack())
    return [np.concatenate(sent) for sent in made]
