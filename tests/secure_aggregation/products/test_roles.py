"""Who does what for a Gram matrix."""

from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.secure_aggregation.products.shares import Deal


def test_a_party_or_the_server_deals():
    by_party, by_server = (Roles(0, 1, [3, 2, 0], 40, dealer=d) for d in (2, None))
    assert [by_party.deals(j) for j in (0, 1, 2, None)] == [False, False, True, False]
    assert [by_server.deals(j) for j in (0, 1, 2, None)] == [False] * 4
    assert (by_party.served, by_server.served) == (False, True)


def test_joint_columns_are_the_last_and_other_encodings_another_use():
    local = Roles(0, 1, [3, 2], 40, turn=5)
    joint = Roles(0, 1, [3, 2], 40, joint=4, fraction=16, turn=5)
    assert (local.columns, joint.columns, joint.numbers.fraction) == (5, 9, 16)
    bits = local.numbers.bits, joint.numbers.bits
    uses = [
        Deal(7, "gram of 0 bits", 5, 0, (40, 5), bits[0], (3, 2)),
        Deal(7, "gram of 16 bits", 5, 0, (40, 9), bits[1], (3, 2, 4)),
    ]
    assert [local.deal(session=7), joint.deal(session=7)] == uses
