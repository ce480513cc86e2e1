"""Which levels are frequent: at one party, and over all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from vfl_flower.typing import Array

T = TypeVar("T", bound=tuple[int, str])


def most_frequent(counts: Mapping[T, int], most: int) -> list[T]:
    """Return the keys with the largest counts, `most` at most; ties in sorted order.

    Examples
    --------
    >>> most_frequent({(0, "b"): 3, (0, "a"): 3, (1, "c"): 9}, 2)
    [(1, 'c'), (0, 'a')]
    """
    return sorted(counts, key=lambda key: (-counts[key], key))[:most]


def frequent(tokens: Array, counts: Array, least: int) -> tuple[Array, Array, int]:
    """Split tokens by their counts.

    Parameters
    ----------
    tokens : Array, shape (m, 2)
        Sorted.
    counts : Array of int, shape (m,)
        Rows of each.
    least : int
        Fewest rows of a frequent one.

    Returns
    -------
    tokens : Array, shape (k, 2)
        The frequent ones, in their order.
    counts : Array of int, shape (k,)
        Theirs, in falling order, which is no longer that of the tokens.
    rare : int
        How many others there are.
    """
    often = counts >= least
    return tokens[often], np.sort(counts[often])[::-1], int((~often).sum())
