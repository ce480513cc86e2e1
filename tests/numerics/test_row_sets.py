"""How far two sets of rows are apart, from the definitions."""

import numpy as np
import pytest

from vfl_flower.numerics import row_sets


def test_a_tag_is_two_high_halves_of_a_sum_over_the_letters():
    coefficients = np.random.default_rng(0).integers(
        2**64, size=(2, 4), dtype=np.uint64
    )
    texts = ["", "ab", "abc", "abcd"]

    def high(m, text):
        products = (m[i + 1] * ord(c) for i, c in enumerate(text[:3]))
        return (m[0] + sum(products)) % 2**64 >> 32

    m, m2 = coefficients.tolist()
    expected = [high(m, text) << 32 | high(m2, text) for text in texts]
    assert row_sets.text_tags(texts, coefficients).tolist() == expected
    assert expected[2] == expected[3]  # letters beyond the coefficients do not count


def test_sums_of_blocks():
    mask = np.arange(2 * row_sets.BLOCKS + 3) % 2 == 0  # rows 0, 2, ..., 514: 258 rows
    assert row_sets.block_sums(mask)[:4].tolist() == [3, 0, 3, 0]
    weights = np.arange(258.0)  # of rows 0, 256 and 512: 0, 128 and 256
    assert row_sets.block_sums(mask, weights)[:4].tolist() == [384, 0, 387, 0]
    assert row_sets.block_sums(mask, weights).shape == (row_sets.BLOCKS,)


@pytest.mark.parametrize("first", [1.0, 3.0])
def test_most_leverage_is_that_of_an_orthonormal_basis(first):
    """Of a row outside w for 3, of one inside for 1."""
    V = np.array([[first, 1, 1, 0, 0], [0, 1, 3, 1, 2]]).T
    v, w = V[1:].T
    expected = np.square(np.linalg.qr(V)[0]).sum(axis=1).max()
    share = row_sets.most_leverage(v, w, *np.square(V).sum(axis=0), rest=first)
    assert share == pytest.approx(expected)


def test_weights_that_differ_by_a_scale_hide_no_row():
    v = np.array([1.0, 2.0, 2.0])
    assert row_sets.most_leverage(v, 3 * v, 9.0, 81.0, rest=0.0) == 1


def test_sizes_bound_the_difference_of_two_sets():
    assert row_sets.sure_number(100, 20, 1 / 20) == 80 / 6
