"""Features of a kernel model: worked examples, and the model's scores by hand."""

import math

import numpy as np
import pytest

from vfl_flower.numerics.ridge import features
from vfl_flower.numerics.ridge.local_columns import LocalColumns

JOINT = features.joint_features("gaussian", 2, [1.0, 2.0], [1.0, 1.0], 2**128 - 1)


@pytest.mark.parametrize(("kernel", "distance"), [("gaussian", 25), ("laplacian", 7)])
def test_each_of_two_rows_is_paired_with_the_other(kernel, distance):
    X = np.array([[0.0, 0.0], [3.0, 4.0]])
    moments = features.cumulants(X, kernel, np.random.default_rng(0))
    assert moments.tolist() == [distance, 0, 0]


def test_cumulants_of_three_rows():
    """Rows 0, 1 and 3 have the L1 distances 1, 2 and 3 in any order."""
    X = np.array([[0.0], [1.0], [3.0]])
    moments = features.cumulants(X, "laplacian", np.random.default_rng(0))
    np.testing.assert_allclose(moments, [2, 2 / 3, 0], atol=1e-12)


@pytest.mark.parametrize(
    ("cumulants", "median"),
    [([6, 2, 12], 5), ([6, 2, 1200], 1.5), ([6, 0, 0], 6), ([6, 0.5, 3], 5)],
)
def test_median_by_cornish_and_fisher(cumulants, median):
    assert features.median_of(np.array(cumulants)) == median


def test_joint_features_of_a_bandwidth_have_a_seed_of_their_own():
    assert [part.seed for part in JOINT] == [2**128 - 1, 0]
    assert [part.bandwidth for part in JOINT] == [1, 2]


def test_joint_angles_are_those_of_each_bandwidth_times_the_multiple():
    X = np.random.default_rng(0).normal(size=(4, 2))
    parts = [JOINT[0].angles(X, 0, 3, 32), JOINT[1].angles(X, 0, 2, 32)]
    angles = features.joint_angles(JOINT, [3, 2], X, 32, multiple=3)
    np.testing.assert_array_equal(angles, 3 * np.hstack(parts))
    omega = features.joint_frequencies(JOINT, [3, 2])
    parts = [JOINT[0].weights(0, 3)[0], 2 * JOINT[1].weights(0, 2)[0]]
    np.testing.assert_array_equal(omega, np.vstack(parts))


def test_scores_of_a_model_of_two_parties():
    """Of a column at party 0 and its neighbour's, and of one angle of both."""
    none, numbers = np.zeros(0, np.int64), np.zeros(0)
    ends = {"lowest": np.array([-9.0]), "highest": np.array([9.0])}
    fitted = LocalColumns(
        center=np.array([1.0]),
        scale=np.array([2.0]),
        **ends,
        values=np.array([0]),
        gaps=none,
        interval_columns=none,
        lows=numbers,
        highs=numbers,
        frequencies=np.zeros((1, 0)),
    )
    parts = [
        {
            **features.pack_local(fitted),
            "n_features": 1,
            "seed": f"{j:x}",
            "kernel": "gaussian",
            "bandwidths": [3.0],
            "densities": [1.0],
            "counts": [1],
            **({"multiple": 2} if j else {"relevance": np.array([0.5])}),
        }
        for j in range(2)
    ]
    coef = np.array([[8.0], [16.0], [5.0], [7.0]])
    parts[0] |= {"coef": coef, "intercept": np.array([3.0])}
    x = [np.array([[3.0], [np.nan]]), np.array([[5.0], [-1.0]])]
    z = [np.array([[1.0], [0.0]]), np.array([[2.0], [-1.0]])]  # (x - 1) / 2
    joint = [features.joint_features("gaussian", 1, [3.0], [1.0], j)[0] for j in (0, 1)]
    turns = joint[0].angles(0.5 * z[0], 0, 1, 64) + 2 * joint[1].angles(z[1], 0, 1, 64)
    angle = 2 * math.pi * turns
    expected = 3 + z[0] + 2 * z[1] + 5 * np.cos(angle) + 7 * np.sin(angle)
    scores = features.decision_function(parts, x)
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
