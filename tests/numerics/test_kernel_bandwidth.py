"""One set of angles at several bandwidths, and the choice among them."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from vfl_flower.numerics.kernel_bandwidth import MULTIPLES, WIDEST, best_multiple
from vfl_flower.numerics.random_features import RandomFeatures, features, taken


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_multiples_of_angles_are_those_of_smaller_bandwidths(kernel, bits):
    """To the kernel of the smaller bandwidth: the phases are multiples too."""
    X = np.random.default_rng(0).normal(size=(20, 3))
    for multiple in MULTIPLES:
        made = RandomFeatures(kernel, 3, 6.0, 7, orthogonal=False)
        angles = taken(made.angles(X, 0, 8192, bits), multiple)
        assert angles.dtype == made.angles(X, 0, 1, bits).dtype
        phi = features(angles)
        width = 6.0 / multiple
        if kernel == "gaussian":
            K = rbf_kernel(X, gamma=1 / (2 * width**2))
        else:
            K = laplacian_kernel(X, gamma=1 / width)
        off = np.abs(phi @ phi.T / 8192 - K).max()
        assert off < 0.06 + (0.1 if bits == 8 else 0)


def test_angles_of_64_bits_stay_in_a_turn():
    np.testing.assert_allclose(taken(np.array([0.3, 0.9]), 3), [0.9, 0.7])


@pytest.mark.parametrize("classes", [False, True])
def test_the_bandwidth_fits_the_labels(classes):
    """A function that turns fast needs a narrow kernel, and a plane a wide one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 2))
    widest = RandomFeatures("gaussian", 2, WIDEST * 1.5, 7, orthogonal=False)
    angles = widest.angles(X, 0, 300, 16)
    chosen = []
    for y, noise in ((np.sin(4 * X[:, 0]), 0.05), (X.sum(axis=1), 2.0)):
        y = y + noise * rng.normal(size=1500)
        Y = np.where(y > 0, 1.0, -1.0)[:, None] if classes else y[:, None]
        chosen.append(best_multiple(angles, Y, rng))
    assert chosen[0] >= 6, chosen
    assert chosen[1] <= 2, chosen


def test_labels_that_are_equal_choose_nothing():
    angles = np.zeros((30, 4), dtype=np.uint16)
    assert best_multiple(angles, np.ones((30, 1)), np.random.default_rng(0)) == WIDEST
