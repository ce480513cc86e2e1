"""What a dealer gives for a ridge model."""

from vfl_flower.clients.ridge.state import HEAD
from vfl_flower.secure_aggregation.products.dealing import deal_turn
from vfl_flower.secure_aggregation.products.roles import Roles


def test_a_linear_turn_is_dealt_without_seeds_of_angles():
    linear, kernel = (
        deal_turn(1, bytes(32), Roles(0, 1, [3, 2], 40, joint=joint, fraction=16))
        for joint in (0, 2)
    )
    assert len(kernel[0]) - len(linear[0]) == HEAD
