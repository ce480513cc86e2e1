"""Products modulo 2^k are those of Python's integers."""

import numpy as np
import pytest
from draws import law
from hypothesis import given
from hypothesis import strategies as st
from ring_elements import exact_product, uniform_elements

from vfl_flower.secure_aggregation.products import ring
from vfl_flower.secure_aggregation.products.ring import SquareSum, product

all_bits = st.sampled_from([48, 49, 56, 57, 63, 64])
sizes = st.integers(1, 6)


def elements(rng, shape, bits, edges):
    """Uniform elements, or the largest limbs and their neighbours."""
    if edges:
        most = 2**bits - 1
        values = [0, 1, most, most - 1, 2 ** (bits - 1), 2**17 - 1, 2**34 - 1]
        return np.array(values, "<u8")[rng.integers(len(values), size=shape)]
    return uniform_elements(rng, shape, bits)


@law
@given(all_bits, sizes, sizes, sizes, st.booleans(), st.integers(0, 2**32 - 1))
def test_a_product_is_that_of_whole_numbers(bits, m, n, p, edges, seed):
    rng = np.random.default_rng(seed)
    left, right = (elements(rng, shape, bits, edges) for shape in ((m, n), (n, p)))
    assert np.array_equal(product(left, right, bits), exact_product(left, right, bits))


@law
@given(all_bits, st.lists(sizes, min_size=1), sizes, st.booleans(), st.integers(0, 9))
def test_a_sum_of_squares_is_that_of_whole_numbers(bits, rows, columns, edges, seed):
    rng = np.random.default_rng(seed)
    blocks = [elements(rng, (n, columns), bits, edges) for n in rows]
    squares = SquareSum(columns, bits)
    for block in blocks:
        squares.add(block)
    whole = np.concatenate(blocks)
    assert np.array_equal(squares.total(), exact_product(whole.T, whole, bits))
    squares.add(blocks[0])  # a total is no end
    whole = np.concatenate([whole, blocks[0]])
    assert np.array_equal(squares.total(), exact_product(whole.T, whole, bits))


@pytest.mark.parametrize("bits", [48, 49, 57, 64])
def test_float64_sums_are_carried_before_they_lose_bits(bits, monkeypatch):
    most = 2 ** ring.limb_width(bits) - 1
    assert ring._TERMS * (2 * most) ** 2 <= 2**53
    assert ring.limbs(bits) in (3, 4)
    carried, carry = [], SquareSum._carry

    def recorded(squares):
        carried.append(squares._rows)
        carry(squares)

    monkeypatch.setattr(ring, "_TERMS", 5)
    monkeypatch.setattr(SquareSum, "_carry", recorded)
    block = np.full((4, 2), 2**bits - 1, "<u8")
    squares = SquareSum(2, bits)
    for _ in range(3):
        squares.add(block)
    assert (squares.total() == 12).all()  # 12 times the square of -1
    assert carried == [4, 4, 4]
    left = np.full((2, 12), 2**bits - 1, "<u8")
    assert (product(left, block.repeat(3, 0), bits) == 12).all()


def test_the_largest_block_of_the_largest_elements_is_exact_product():
    # All ones in the lowest limb: the float64 sum is just below 2^53.
    block = np.full((ring._TERMS, 1), 2**34 - 1, "<u8")
    squares = SquareSum(1, 49)
    squares.add(block)
    assert int(squares.total()[0, 0]) == len(block) * (2**34 - 1) ** 2 % 2**49
