"""Who does what for a Gram matrix."""

import pytest

from vfl_flower.protocol.contract import ContractError, restore
from vfl_flower.secure_aggregation import fixed_point
from vfl_flower.secure_aggregation.products.roles import MOST_NUMBERS, Roles


@pytest.mark.parametrize("dealer", [2, None])
def test_a_party_or_the_server_deals(dealer):
    roles = Roles(0, 1, [3, 2, 0], 40, dealer=dealer)
    assert [j for j in (0, 1, 2, None) if roles.deals(j)] == [2] * (dealer == 2)
    assert roles.served == (dealer is None)


def test_joint_columns_are_the_last_and_of_another_use():
    local, joint = (Roles(0, 1, [3, 2], 40, joint=j, fraction=4 * j) for j in (0, 4))
    assert (local.columns, joint.columns, joint.numbers.fraction) == (5, 9, 16)
    uses = local.deal(session=7), joint.deal(session=7)
    assert [use.owners for use in uses] == [(3, 2), (3, 2, 4)]
    assert [use.action for use in uses] == ["gram of 0 bits", "gram of 16 bits"]
    assert [use.half for use in uses] == [0, 0]  # all rows are in one subset


@pytest.mark.parametrize("rows", [40, 32_500, 10**5, 2**20])
def test_numbers_of_a_given_fraction_have_the_narrowest_ring(rows):
    """For numbers up to 64 with a mean square of at most 1.02."""
    expected = fixed_point.gram_fixed_point(rows, 64.0, 16, square_sum=1.02 * rows)
    assert Roles(0, 1, [3, 2], rows, fraction=16).numbers == expected
    # Columns of length 0.99, whose fraction bits are not given, have the finest.
    expected = fixed_point.finest_gram_fixed_point(
        rows**3, 1.0, 63, square_sum=1.01 * 0.99**2
    )
    assert Roles(0, 1, [3, 2], rows**3).numbers == expected


@pytest.mark.parametrize(("name", "most"), [("first", 2**20), ("rows", None)])
def test_places_and_counts_from_a_message_are_within_their_range(name, most):
    values = {"first": 2, "second": 1, "owners": [3, 2], "rows": 40}
    for value in (0, most or 2**26):
        assert getattr(restore(Roles, values | {name: value}, {}), name) == value
    for value in (-1, most + 1) if most else (-1,):
        with pytest.raises(ContractError, match=name):
            restore(Roles, values | {name: value}, {})
    assert 8 * MOST_NUMBERS == 2**29  # bytes of the largest message
