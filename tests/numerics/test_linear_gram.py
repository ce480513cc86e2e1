"""A linear model, and its diagnostics, from the Gram matrix of orthonormal columns."""

import numpy as np
import pytest

from vfl_flower.numerics import linear_gram
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import sigma_min
from vfl_flower.numerics.leverage import leverage_factor
from vfl_flower.numerics.linear import Penalty

RNG = np.random.default_rng(0)
A = RNG.normal(size=(50, 5))
A[:, 2] = A[:, 0] - A[:, 1]
"""Columns of two parties, 3 and 2; those of the first are dependent."""
T = A @ [1.0, 2, 0, 3, 4] + RNG.normal(size=50)
BASES = [
    linear_gram.canonical_basis(X, leverage_factor(RowBlocks(X)))
    for X in (A[:, :3], A[:, 3:])
]
U = np.hstack([basis for basis, _ in BASES])
TABLE = np.column_stack([U, T])
GRAM = TABLE.T @ TABLE


def test_a_basis_has_zeros_where_columns_lack_rank():
    basis, R = BASES[0]
    np.testing.assert_allclose(basis.T @ basis, np.diag([1.0, 1, 0]), atol=1e-12)
    np.testing.assert_allclose(basis @ R, A[:, :3], atol=1e-12)


def test_pseudo_rows_have_the_cost_of_all_rows():
    K, q, rest = linear_gram.pseudo_rows(GRAM)
    for x in RNG.normal(size=(3, 5)):
        cost = np.sum((K @ x - q) ** 2) + rest
        assert cost == pytest.approx(np.sum((U @ x - T) ** 2))


def test_moments_have_the_solution_of_the_rows():
    R = np.zeros((5, 5))
    R[:3, :3], R[3:, 3:] = BASES[0][1], BASES[1][1]
    theta, cost = linear_gram.solve_moments(GRAM, R, Penalty())
    fit = A @ np.linalg.lstsq(A, T, rcond=None)[0]
    np.testing.assert_allclose(A @ theta, fit, atol=1e-9)
    assert cost == pytest.approx(np.sum((fit - T) ** 2))


def test_sigma_min_is_that_of_the_rows():
    blocks = [U[:, :3], np.column_stack([U[:, 3:], T])]
    places = [np.arange(3), np.arange(3, 6)]
    expected = sigma_min(blocks, np.ones(50))
    assert linear_gram.sigma_min_of_moments(GRAM, places) == pytest.approx(expected)


@pytest.mark.parametrize(("fixed", "kept"), [(0, [1, 0, 0]), (1, [1, 0, 1])])
def test_columns_in_which_few_rows_differ_go_unless_they_are_fixed(fixed, kept):
    """One has its own value in a single row, and one in 19 rows of 20 that it takes."""
    columns = np.array([np.arange(50) % 2, np.arange(50) == 7, np.arange(50) < 19]).T
    centered = columns - columns.mean(axis=0)
    stays = linear_gram.bounded_columns(columns.T, centered, 20, 0.5, fixed)
    assert stays.tolist() == [bool(x) for x in kept]


def test_of_columns_that_point_to_one_row_together_one_goes():
    """Their sum is 1 in a single row, though each differs in 25 rows or more."""
    x = np.arange(50) % 2 * 1.0
    columns = np.array([x, (np.arange(50) == 7) - x, np.arange(50) % 3]).T
    stays = linear_gram.bounded_columns(
        columns.T, columns - columns.mean(axis=0), 20, 0.5
    )
    assert sorted(stays[:2].tolist()) == [False, True]
    assert stays[2]
