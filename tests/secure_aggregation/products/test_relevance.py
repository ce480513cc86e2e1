"""The relevance of a party's columns, of products that nobody else can read."""

import numpy as np
import pytest

from vfl_flower.numerics.ridge.relevance import relevance_of
from vfl_flower.secure_aggregation.products import relevance
from vfl_flower.secure_aggregation.products.roles import Roles

ROLES = Roles(0, 1, [3, 2, 1], 40, joint=8, fraction=16)
CHALLENGE = bytes(range(32))


@pytest.mark.parametrize(("owner", "width"), [(1, 2), (2, 1)])
def test_relevance_is_that_of_the_products(owner, width):
    rng = np.random.default_rng(0)
    omega = rng.normal(size=(4, width))
    B = rng.normal(size=(4, relevance.PROBES))
    deal = relevance.relevance_deal(ROLES, 7, owner, width)
    others, holder = relevance.deal_relevance(7, bytes(32), ROLES, [3, 2, 1])
    assert (others[0], set(holder)) == (None, {1, 2})
    sent = relevance.hidden_frequencies(deal, others[owner], omega, CHALLENGE)
    back = relevance.hidden_probes(deal, holder[owner], sent, B, CHALLENGE)
    opened = relevance.opened_relevance(deal, others[owner], back)
    np.testing.assert_allclose(opened, relevance_of(omega.T @ B), rtol=1e-5)
    sent[0] ^= 1
    with pytest.raises(ValueError, match="the dealer's triple failed the check"):
        relevance.hidden_probes(deal, holder[owner], sent, B, CHALLENGE)
