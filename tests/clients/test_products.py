"""A party's steps of products under shares, alone: tests/strategies has whole runs."""

import numpy as np
import pytest

from vfl_flower import Party
from vfl_flower.clients import products
from vfl_flower.party.party import PartyError
from vfl_flower.secure_aggregation.products.dealing import deal_all
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import BLOCK_ROWS


def test_only_the_two_parties_that_compute_have_another_one():
    party, roles = Party(np.ones((20, 1))), Roles(0, 2, [1, 1, 1], 20)
    for party.index, other in ((0, 2), (2, 0)):
        assert products.other_of(party, roles) == other
    party.index = 1
    with pytest.raises(PartyError, match="only the two computing parties"):
        products.other_of(party, roles)


def test_columns_are_hidden_alike_whole_and_in_parts_of_whole_blocks():
    F = np.random.default_rng(0).random((4 * BLOCK_ROWS - 1, 1))
    party, roles = Party(F, index=1), Roles(0, 2, [1, 1, 1], len(F))
    party.n_parties, party.session = 3, 5
    state = products.ProductState(roles, deal_all(roles.deal(5), bytes(32), roles)[1])
    parts = np.split(F, [2 * BLOCK_ROWS, 3 * BLOCK_ROWS])
    whole, apart = (products.hide(party, state, c) for c in ([F], parts))
    np.testing.assert_equal(whole, apart)


def test_a_gram_matrix_has_a_bounded_number_of_columns():
    party, most = Party(np.ones((20, 1)), index=0), products.MOST_COLUMNS
    party.n_parties = 2
    for columns in (1, most):
        products.check_roles(party, Roles(0, 1, [columns, 0], 20), labels=False)
    for columns in (0, most + 1):
        with pytest.raises(PartyError, match=f"1 to {most} columns, got {columns}"):
            products.check_roles(party, Roles(0, 1, [columns, 0], 20), labels=False)
