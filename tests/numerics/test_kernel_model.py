"""The parts of a kernel model: identities, worked examples, both kinds of features."""

import math

import numpy as np
import pytest

from vfl_flower.numerics import kernel_model
from vfl_flower.numerics.kernel_model import (
    answers,
    decision_function,
    own_features,
    owned,
    partial_angles,
)
from vfl_flower.numerics.random_features import RandomFeatures

WIDTHS = (2, 1, 3)
M = 70  # more than a chunk of generated features
ROWS = np.array([7, 0, 7], dtype=np.uint32)  # in any order, and again
SEEDS = "0a" * 16, "1b" * 16, "2c" * 16


def blocks(n=9):
    X = np.random.default_rng(0).normal(size=(n, sum(WIDTHS)))
    return X, np.split(X, np.cumsum(WIDTHS)[:-1], axis=1)


def parts(holders=(2,), block=M, columns=1, kernel="gaussian", shared=False):
    rng = np.random.default_rng(1)
    actual = []
    for j, (seed, width) in enumerate(zip(SEEDS, WIDTHS, strict=True)):
        part = {"kernel": kernel, "bandwidth": 1.5, "n_features": M, "seed": seed}
        part |= {"n_columns": width, "holders": list(holders), "block": block}
        if shared:
            part |= {"shared_seed": "3d" * 16, "all_columns": sum(WIDTHS)}
            part |= {"first_column": sum(WIDTHS[:j])}
            part |= {"kept": [(holder + 1) % 3 for holder in holders]}
        if j in holders:
            size = int(owned(part, M, j).sum())
            part |= {"coef": rng.normal(size=(size, columns))}
            part |= {"intercept": rng.normal(size=columns)}
        actual.append(part)
    return actual


def all_weights(actual):
    settings = ((p["kernel"], p["n_columns"], 1.5, int(p["seed"], 16)) for p in actual)
    own = [RandomFeatures(*of_party).weights(0, M) for of_party in settings]
    return [omega for omega, _ in own], [b for _, b in own]


def shared_omega(kernel):
    seed = int("3d" * 16, 16)
    pooled = RandomFeatures(kernel, sum(WIDTHS), 1.5, seed, orthogonal=False)
    return pooled.weights(0, M)[0]


def test_seeds_are_hexadecimal():
    """Of independent features: orthogonal ones would tell parties' columns apart."""
    part = parts()[0]
    omega, b = own_features(part).weights(0, M)
    own = RandomFeatures("gaussian", 2, 1.5, int("0a" * 16, 16), orthogonal=False)
    expected = own.weights(0, M)
    np.testing.assert_array_equal(omega, expected[0])
    np.testing.assert_array_equal(b, expected[1])
    # Leading zeros are lost on no way.
    assert int(part["seed"], 16) == int(part["seed"].lstrip("0"), 16)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_partial_angles_are_those_of_the_partys_features(bits):
    _, X = blocks()
    for part, own in zip(parts(), X, strict=True):
        for stop in (30, M):
            actual = partial_angles(part, own, stop, bits)
            expected = own_features(part).angles(own, 0, stop, bits)
            np.testing.assert_array_equal(actual, expected)
        some = partial_angles(part, own, M, bits, ROWS)
        np.testing.assert_array_equal(some, actual[ROWS])


def test_shared_angles_are_real_turns_of_one_omega():
    """They add up to omega^T x / (2 pi) and the phases of all, whole turns included."""
    X, own = blocks()
    actual = parts(shared=True)
    total = sum(partial_angles(p, x, M, 64) for p, x in zip(actual, own, strict=True))
    omega = shared_omega("gaussian")
    phases = sum(all_weights(actual)[1])
    np.testing.assert_allclose(total, X @ omega.T / (2 * np.pi) + phases, atol=1e-12)
    assert np.abs(total).max() > 1
    every = partial_angles(actual[1], own[1], M, 64)
    np.testing.assert_allclose(partial_angles(actual[1], own[1], 40, 64), every[:, :40])
    some = partial_angles(actual[1], own[1], M, 64, ROWS)
    np.testing.assert_allclose(some, every[ROWS], atol=1e-15)


def test_owned_features_by_hand():
    """Holders 1 and 3, blocks of two: 1 1 3 3 1 1 3."""
    part = {"block": 2, "holders": [1, 3]}
    assert owned(part, 7, 1).tolist() == [True, True, False, False, True, True, False]
    np.testing.assert_array_equal(owned(part, 7, 3), ~owned(part, 7, 1))
    assert not owned(part, 7, 0).any()
    assert owned({"block": 2, "holders": [1]}, 5, 1).all()


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("holders", "block", "columns"), [((2,), M, 1), ((0, 2), 1, 1), ((0, 1, 2), 8, 3)]
)
def test_decision_function_is_equation_7(holders, block, columns, shared, kernel):
    """f(x) = sum_j alpha_j sqrt 2 cos(omega_j^T x + b_j) + intercepts, by each j."""
    X, own = blocks()
    actual = parts(holders, block, columns, kernel, shared)
    omegas, phases = all_weights(actual)
    omega = np.hstack(omegas)
    if shared:
        omega = shared_omega(kernel)
    f = sum(actual[holder]["intercept"] for holder in holders) + np.zeros((9, columns))
    used = dict.fromkeys(holders, 0)
    for j in range(M):
        holder = holders[j // block % len(holders)]
        b = phases[(holder + 1) % 3][j] if shared else sum(p[j] for p in phases)
        phi = math.sqrt(2) * np.cos(X @ omega[j] + 2 * np.pi * b)
        f += phi[:, None] * actual[holder]["coef"][used[holder]]
        used[holder] += 1
    np.testing.assert_allclose(decision_function(actual, own), f, atol=1e-9)


def test_decision_function_in_blocks_of_rows(monkeypatch):
    _, own = blocks()
    actual = parts((0, 2), 8)
    whole = decision_function(actual, own)
    for numbers in (1, 2 * M, 4 * M + 1):
        monkeypatch.setattr(kernel_model, "BLOCK_NUMBERS", numbers)
        np.testing.assert_allclose(decision_function(actual, own), whole, atol=1e-12)


def test_answers_by_hand():
    two = np.array([3.0, 7.0])
    scores = np.array([[-0.5], [0.0], [1e-9]])
    assert answers(scores, "binary", two).tolist() == [3.0, 3.0, 7.0]
    assert answers(scores, "continuous", np.zeros(0)).tolist() == [-0.5, 0.0, 1e-9]
    scores = np.array([[-3.0, -1.0, -2.0], [0.5, 0.1, 0.5]])
    assert answers(scores, "multiclass", np.array([2, 4, 9])).tolist() == [4, 2]
    assert answers(np.array([[0.2, 0.1]]), "multiclass", two).tolist() == [3.0]
