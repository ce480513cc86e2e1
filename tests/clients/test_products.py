"""A party's steps of products under shares, alone: tests/strategies has whole runs."""

import numpy as np
import pytest

from vfl_flower import Party
from vfl_flower.clients.products import MOST_COLUMNS, check_roles, other_of
from vfl_flower.party.party import PartyError
from vfl_flower.secure_aggregation.products.roles import Roles


def test_only_the_two_parties_that_compute_have_another_one():
    party, roles = Party(np.ones((20, 1))), Roles(0, 2, [1, 1, 1], 20)
    others = []
    for party.index in (0, 2):
        others.append(other_of(party, roles))
    assert others == [2, 0]
    party.index = 1
    with pytest.raises(PartyError, match="only the two computing parties"):
        other_of(party, roles)


def test_a_gram_matrix_has_a_bounded_number_of_columns():
    party, most = Party(np.ones((20, 1)), index=0), MOST_COLUMNS
    party.n_parties = 2
    for columns in (1, most):
        check_roles(party, Roles(0, 1, [columns, 0], 20), labels=False)
    for columns in (0, most + 1):
        with pytest.raises(PartyError, match=f"1 to {most} columns, got {columns}"):
            check_roles(party, Roles(0, 1, [columns, 0], 20), labels=False)
