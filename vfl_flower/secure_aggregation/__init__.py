"""Sums that hide their terms: masks, key agreement, fixed point, sealed messages."""

from vfl_flower.secure_aggregation.groups import (
    Circle,
    Group,
    Plain,
    Ring,
    group,
)
from vfl_flower.secure_aggregation.keys import (
    NO_IDENTITY,
    encode_key,
    new_private_key,
    parse_key,
    public_key,
)
from vfl_flower.secure_aggregation.limbs import LIMB, PLACES, join_limbs, split_limbs
from vfl_flower.secure_aggregation.masks import PairwiseMasks, masked, unmask_sum
from vfl_flower.secure_aggregation.relay import Relay
from vfl_flower.secure_aggregation.sparse_sum import Field, SparseSum
from vfl_flower.secure_aggregation.trees import Tree, ring, spanning, two_trees

__all__ = [
    "LIMB",
    "NO_IDENTITY",
    "PLACES",
    "Circle",
    "Field",
    "Group",
    "PairwiseMasks",
    "Plain",
    "Relay",
    "Ring",
    "SparseSum",
    "Tree",
    "encode_key",
    "group",
    "join_limbs",
    "masked",
    "new_private_key",
    "parse_key",
    "public_key",
    "ring",
    "spanning",
    "split_limbs",
    "two_trees",
    "unmask_sum",
]
