"""Lists are compared as Python compares sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfl_flower.numerics.alignment import overlaps

# Zeros at the end and at the start: NumPy cuts texts there.
VALUES = [bytes([a, b]) for a in (0, 1, 7) for b in (0, 1, 255)]
SETS = st.lists(st.sampled_from(VALUES), unique=True, min_size=1)


def rows(values):
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, 2)


@given(st.lists(SETS, min_size=1, max_size=10))
def test_as_sets(lists):
    held, counts, common, positions = overlaps([rows(one) for one in lists])
    expected = {}
    for value in set().union(*lists):
        holders = tuple(value in one for one in lists)
        expected[holders] = expected.get(holders, 0) + 1
    sets = map(tuple, held.tolist())
    assert dict(zip(sets, counts.tolist(), strict=True)) == expected
    everywhere = set.intersection(*map(set, lists))
    assert [bytes(row) for row in common] == sorted(everywhere)
    for one, places in zip(lists, positions, strict=True):
        assert [one[k] for k in places.tolist()] == sorted(everywhere)


def test_a_value_twice():
    with pytest.raises(ValueError, match="list 1 must not hold any value") as caught:
        overlaps([rows([b"ab"]), rows([b"ab", b"ab"])])
    assert caught.value.args[1] == 1
