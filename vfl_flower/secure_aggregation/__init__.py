"""Sums that hide their terms: masks, key agreement, fixed point, sealed messages."""

from vfl_flower.secure_aggregation.groups import (
    Circle,
    Group,
    Plain,
    Ring,
    Take,
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
from vfl_flower.secure_aggregation.sparse_sum import (
    Field,
    HashMismatchError,
    MasksDoNotCancelError,
    PointCollisionError,
    SparseSum,
    SparseSumError,
    TooManyBinsError,
)
from vfl_flower.secure_aggregation.trees import (
    TOPOLOGIES,
    Tree,
    binary,
    different_tree,
    exposed,
    ring,
    spanning,
    totally_different,
    two_trees,
)

__all__ = [
    "LIMB",
    "NO_IDENTITY",
    "PLACES",
    "TOPOLOGIES",
    "Circle",
    "Field",
    "Group",
    "HashMismatchError",
    "MasksDoNotCancelError",
    "PairwiseMasks",
    "Plain",
    "PointCollisionError",
    "Relay",
    "Ring",
    "SparseSum",
    "SparseSumError",
    "Take",
    "TooManyBinsError",
    "Tree",
    "binary",
    "different_tree",
    "encode_key",
    "exposed",
    "group",
    "join_limbs",
    "masked",
    "new_private_key",
    "parse_key",
    "public_key",
    "ring",
    "spanning",
    "split_limbs",
    "totally_different",
    "two_trees",
    "unmask_sum",
]
