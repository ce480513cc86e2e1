"""The values that several lists have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vfl_flower.typing import Array


def overlaps(lists: Sequence[Array]) -> tuple[Array, Array, Array, list[Array]]:
    """Compare T lists of distinct values, uint8, each of the shape (n_j, b).

    Each value is assigned to the set of the lists that contain it. Returns these sets,
    (k, T), bool; the number of values assigned to each set, (k,); the m values that all
    lists contain, sorted, (m, b); and the positions of these m values in each list,
    (m,). Raises ValueError if a list contains a value twice; the second argument of the
    error is the index of this list.

    >>> a, b = np.array([[1], [2], [3]], np.uint8), np.array([[3], [5]], np.uint8)
    >>> held, counts, common, positions = overlaps([a, b])
    >>> held.astype(int).tolist(), counts.tolist()
    ([[0, 1], [1, 0], [1, 1]], [1, 2, 1])
    >>> common.tolist(), [place.tolist() for place in positions]
    ([[3]], [[2], [0]])
    """
    width = lists[0].shape[1]
    # NumPy ignores zero bytes at the end of a byte string. All values have the same
    # length, so no two different values become equal.
    text = f"S{width}"
    values = np.ascontiguousarray(np.concatenate(lists)).view(text).ravel()
    different, place = np.unique(values, return_inverse=True)
    places = np.split(place, np.cumsum([len(points) for points in lists])[:-1])
    holds = np.zeros((len(different), len(lists)), dtype=bool)
    for j, ranks in enumerate(places):
        holds[ranks, j] = True
        if np.count_nonzero(holds[:, j]) < len(ranks):
            raise ValueError(f"list {j} must not hold any value twice", j)
    packed = np.packbits(holds, axis=1)
    sets = packed.view(f"S{packed.shape[1]}").ravel()
    _, first, counts = np.unique(sets, return_index=True, return_counts=True)
    everywhere = np.flatnonzero(holds.all(axis=1))
    positions = []
    for rows in places:
        where = np.empty(len(different), dtype=np.int64)
        where[rows] = np.arange(len(rows))
        positions.append(where[everywhere])
    common = different[everywhere].view(np.uint8).reshape(-1, width)
    return holds[first], counts, common, positions
