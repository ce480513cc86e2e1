"""Blocks of rows: every block size, type and layout gives the same rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfl_flower.numerics.blocks import RowBlocks

X = np.arange(60.0).reshape(20, 3) ** 2
Y = np.arange(20.0) - 7


def joined(blocks):
    return np.vstack(list(blocks))


@given(
    block_bytes=st.integers(1, 1000),
    rows=st.none() | st.lists(st.integers(0, 19), min_size=1, max_size=50),
    extra=st.lists(st.sampled_from(["ones", "labels"]), max_size=3),
    dtype=st.sampled_from([float, np.float32, np.int16, np.uint8, bool]),
    order=st.sampled_from("CF"),
)
def test_blocks_are_the_rows(block_bytes, rows, extra, dtype, order):
    data = np.asarray(X, order=order).astype(dtype)
    picked = None if rows is None else np.array(rows)
    columns = [1.0 if name == "ones" else Y for name in extra]
    blocks = RowBlocks(data, *columns, rows=picked, block_bytes=block_bytes)
    whole = np.column_stack([data, *(np.broadcast_to(c, 20) for c in columns)])
    whole = whole.astype(float)[slice(None) if picked is None else picked]

    assert blocks.shape == whole.shape
    assert len(blocks) == len(whole)
    for _ in range(2):  # again and again
        assert all(block.dtype == np.float64 for block in blocks)
        np.testing.assert_array_equal(joined(blocks), whole)
    positions = np.array([len(whole) - 1, 0, 0])
    np.testing.assert_array_equal(blocks.take(positions), whole[positions])


def test_blocks_hold_at_most_block_bytes_and_at_least_d_rows():
    sizes = [block.nbytes for block in RowBlocks(X, block_bytes=200)]
    assert len(sizes) > 1
    assert max(sizes) <= 200
    assert [len(block) for block in RowBlocks(X, block_bytes=1)] == [3] * 6 + [2]


def test_a_plain_matrix_is_not_copied():
    assert all(np.shares_memory(block, X) for block in RowBlocks(X, block_bytes=100))
    assert not np.shares_memory(RowBlocks(X).take(np.arange(20)), X)


def test_a_read_only_memory_map_works(tmp_path):
    np.save(tmp_path / "X.npy", X)
    data = np.load(tmp_path / "X.npy", mmap_mode="r")
    np.testing.assert_array_equal(joined(RowBlocks(data, block_bytes=100)), X)
    assert all(np.shares_memory(block, data) for block in RowBlocks(data))


@pytest.mark.parametrize(
    ("args", "rows", "message"),
    [
        ((np.zeros(3),), None, "X must be a matrix of real numbers"),
        ((np.zeros((3, 1), complex),), None, "got shape .3, 1. and dtype complex"),
        ((np.zeros((3, 1)),), np.array([0, 3]), "row numbers of X, from 0 to 2"),
        ((np.zeros((3, 1)),), np.array([-1]), "row numbers"),
        ((np.zeros((3, 1)),), np.array([True, False, True]), "row numbers"),
    ],
)
def test_wrong_arguments_are_named(args, rows, message):
    with pytest.raises(ValueError, match=message):
        RowBlocks(*args, rows=rows)
