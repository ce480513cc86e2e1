"""Sums that hide their terms: masks, key agreement, fixed point."""

from vfl_flower.secure_aggregation.groups import Group, Plain, Ring, Take, group
from vfl_flower.secure_aggregation.keys import new_private_key, public_key
from vfl_flower.secure_aggregation.masks import PairwiseMasks, masked, unmask_sum

__all__ = [
    "Group",
    "PairwiseMasks",
    "Plain",
    "Ring",
    "Take",
    "group",
    "masked",
    "new_private_key",
    "public_key",
    "unmask_sum",
]
