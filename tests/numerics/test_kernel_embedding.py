"""The map from one party's part of the model to the embedding of any row."""

import math
from typing import get_args

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from simulations.kernel_pooled import pooled_fkkm
from vfl_flower.numerics import kernel_embedding
from vfl_flower.numerics.kernel_embedding import default_gamma, embed_rows, label_rows
from vfl_flower.numerics.kernel_kmeans import (
    compose,
    feature_range,
    first_features,
    moments,
    shrink,
    variances,
)

KERNELS = get_args(kernel_embedding.Kernel)
N, DIM, D, S, T = 60, 4, 12, 3, 5
SETUP = {"seed": "0123456789abcdef"}
SCALING = {"shift": np.array([0.5, -1, 0, 2]), "scale": np.array([1, 0.5, 2, 0])}


def rows(n: int = N, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIM))


def setup_of(kernel: str, gamma: float = 0.3, **scaling: np.ndarray) -> dict:
    return {**SETUP, "kernel": kernel, "gamma": gamma, **scaling}


def drawn(setup: dict, X: np.ndarray, start: int, stop: int) -> np.ndarray:
    return np.concatenate(list(kernel_embedding.feature_blocks(setup, X, start, stop)))


def trained(setup: dict, X: np.ndarray, D_1: int) -> tuple[dict, np.ndarray]:
    P = np.zeros((0, 0))
    draw = {t: drawn(setup, X, *feature_range(t, D, D_1)) for t in range(1, T + 1)}
    for iterate in pooled_fkkm(draw.__getitem__, T, S, 0.5):
        last = iterate
        R = shrink(iterate.values, iterate.vectors, iterate.eta * iterate.threshold)
        before, P = P, compose(P, R, iterate.eta)
    H = last.H
    R = np.linalg.lstsq(last.W, H, rcond=None)[0]
    return {**setup, "D": D, "D_1": D_1, "P": compose(before, R, last.eta)}, H


@pytest.mark.parametrize("scaling", [{}, SCALING], ids=["as they are", "scaled"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_products_of_features_are_those_of_the_kernel(kernel, scaling):
    """The mean of 20 000: 5 deviations, so that one run in 10^4 fails at most."""
    X = rows(8) / 2
    setup = setup_of(kernel, **scaling)
    count = 20_000
    A = drawn(setup, X, 0, count)
    scaled = (X - scaling["shift"]) * scaling["scale"] if scaling else X
    products = A[:, None] * A[None]
    metric = "sqeuclidean" if kernel == "gaussian" else "cityblock"
    expected = np.exp(-0.3 * cdist(scaled, scaled, metric))
    off = np.abs(products.mean(axis=2) - expected)
    assert (off < 5 * products.std(axis=2) / math.sqrt(count) + 1e-12).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_of_rows_and_ranges_give_the_same_features(kernel, monkeypatch):
    setup = setup_of(kernel, **SCALING)
    whole = drawn(setup, rows(), 0, 80)
    np.testing.assert_allclose(drawn(setup, rows(), 70, 80), whole[:, 70:], rtol=1e-12)
    monkeypatch.setattr(kernel_embedding, "BLOCK_BYTES", 8 * 80 * 7)
    blocks = list(kernel_embedding.feature_blocks(setup, rows(), 0, 80))
    assert [len(block) for block in blocks] == [7] * 8 + [4]
    np.testing.assert_allclose(np.concatenate(blocks), whole, rtol=1e-12)


@pytest.mark.parametrize("D_1", [D, first_features(D, S), 70])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_of_training_are_embedded_as_in_training(kernel, D_1):
    part, H = trained(setup_of(kernel, **SCALING), rows(), D_1)
    assert part["P"].shape == (D_1 + (T - 1) * D, S)
    np.testing.assert_allclose(embed_rows(part, rows()), H, atol=1e-9)
    np.testing.assert_allclose(embed_rows(part, rows()[5:9]), H[5:9], atol=1e-9)


def test_rows_are_labelled_by_the_closest_centre():
    part, H = trained(setup_of("gaussian"), rows(), D)
    centers = H[[0, 7, 20]]
    labels = label_rows({**part, "centers": centers}, rows())
    np.testing.assert_array_equal(labels, cdist(H, centers).argmin(axis=1))
    assert labels[[0, 7, 20]].tolist() == [0, 1, 2]


def test_no_rows():
    part, H = trained(setup_of("gaussian"), rows(), D)
    assert embed_rows(part, rows(0)).shape == (0, S)
    assert label_rows({**part, "centers": H[:2]}, rows(0)).shape == (0,)


def test_gamma_by_hand():
    """Two columns with deviations 1 and 2 about 0: variances 1 + 4."""
    sums = moments(np.array([[1.0, 2.0], [-1.0, -2.0]]))
    assert default_gamma("gaussian", *sums) == 1 / 20
    actual = default_gamma("laplacian", *sums)
    assert math.isclose(actual, math.sqrt(math.pi) / (2 * 3), rel_tol=1e-15)
    np.testing.assert_array_equal(variances(*sums), [1, 4])


def test_gamma_of_normal_columns_is_the_inverse_mean_distance():
    """Within 5 %: the deviation of the mean of 2000 rows is below 2 %."""
    X = np.random.default_rng(0).normal(size=(2000, 3)) * [1.0, 2.0, 0.5]
    mean = cdist(X[:1000], X[1000:], "cityblock").mean()
    assert math.isclose(default_gamma("laplacian", *moments(X)), 1 / mean, rel_tol=0.05)


def test_what_is_less_than_the_rounding_of_a_shift():
    """2^-52 of 1e4 is 2.2e-12; the variance is that of a deviation of 1e-12."""
    sums = 4, np.zeros(1), np.full(1, 4e-24)
    assert variances(*sums, np.full(1, 1e4)) == 0
    assert math.isclose(variances(*sums, np.full(1, 1e3))[0], 1e-24)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gamma_of_nothing(kernel):
    zero = np.zeros(2)
    with pytest.raises(ValueError, match="gamma needs a column that varies"):
        default_gamma(kernel, 5, zero, zero)
    with pytest.raises(ValueError, match=r"^gamma needs .* finite column sums"):
        default_gamma(kernel, 5, zero, zero + math.inf)
