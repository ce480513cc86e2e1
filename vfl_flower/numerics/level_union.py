"""Which levels are frequent: at one party, and over all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from vfl_flower.typing import Array

T = TypeVar("T", bound=tuple[int, str])


def most_frequent(counts: Mapping[T, int], most: int) -> list[T]:
    """Return the keys with the largest counts, `most` at most; ties in sorted order."""
    return sorted(counts, key=lambda key: (-counts[key], key))[:most]


def frequent(tokens: Array, counts: Array, least: int) -> tuple[Array, Array, int]:
    """Return frequent tokens, with counts of `least` or more, and the number of others.

    Sorted tokens, (m, 2), and counts, (m,), become (k, 2) and (k,). The tokens remain
    sorted, but the counts are in falling order, which is no longer that of the tokens.
    """
    often = counts >= least
    return tokens[often], np.sort(counts[often])[::-1], int((~often).sum())
