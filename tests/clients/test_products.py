"""A party's steps of products under shares, alone: tests/strategies has whole runs."""

import numpy as np
import pytest

from vfl_flower import Party
from vfl_flower.clients.products import other_of
from vfl_flower.party.party import PartyError
from vfl_flower.secure_aggregation.products.roles import Roles


def test_only_the_two_parties_that_compute_have_another_one():
    party, roles = Party(np.ones((20, 1))), Roles(0, 2, [1, 1, 1], 20)
    others = []
    for party.index in (0, 2):
        others.append(other_of(party, roles))
    assert others == [2, 0]
    party.index = 1
    with pytest.raises(PartyError, match="must be of one of the two parties"):
        other_of(party, roles)
