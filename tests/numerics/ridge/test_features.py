"""Features of a kernel model: worked examples, and the scores of a model."""

import math

import numpy as np
import pytest

from vfl_flower.numerics.ridge import features
from vfl_flower.numerics.ridge.local_columns import fit_local_columns, local_columns

JOINT = features.joint_features("gaussian", 2, [1.0, 2.0], [1.0, 1.0], 2**128 - 1)


@pytest.mark.parametrize(
    ("kernel", "rows", "expected"),
    [
        ("gaussian", [[0.0, 0], [3, 4]], [25, 0, 0]),
        ("laplacian", [[0.0, 0], [3, 4]], [7, 0, 0]),
        ("laplacian", [[0.0], [1], [3]], [2, 2 / 3, 0]),  # 1, 2 and 3 in any order
    ],
)
def test_cumulants_of_distances_to_another_row(kernel, rows, expected):
    moments = features.cumulants(np.array(rows), kernel, np.random.default_rng(0))
    np.testing.assert_allclose(moments, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("cumulants", "median"), [([6, 2, 12], 5), ([6, 2, 1200], 1.5), ([6, 0, 0], 6)]
)
def test_median_by_cornish_and_fisher(cumulants, median):
    assert features.median_of(np.array(cumulants)) == median


def test_joint_features_by_bandwidth():
    """Each has a seed of its own, and the angles are multiplied."""
    assert [(part.seed, part.bandwidth) for part in JOINT] == [(2**128 - 1, 1), (0, 2)]
    X = np.random.default_rng(0).normal(size=(4, 2))
    parts = [JOINT[0].angles(X, 0, 3, 32), JOINT[1].angles(X, 0, 2, 32)]
    angles = features.joint_angles(JOINT, [3, 2], X, 32, multiple=3)
    np.testing.assert_array_equal(angles, 3 * np.hstack(parts))
    parts = [JOINT[0].weights(0, 3)[0], 2 * JOINT[1].weights(0, 2)[0]]
    omega = features.joint_frequencies(JOINT, [3, 2])
    np.testing.assert_array_equal(omega, np.vstack(parts))


def test_scores_add_up_over_local_columns_and_joint_features():
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=(60, d)) for d in (1, 2)]
    fitted = [fit_local_columns(X, most=9, rng=rng) for X in blocks]
    own = {"kernel": "gaussian", "bandwidths": [3.0], "densities": [1.0]}
    own |= {"n_features": 1, "counts": [1]}
    parts = [
        {**own, **features.pack_local(local), "seed": f"{10 + j:x}", "multiple": 1 + j}
        for j, local in enumerate(fitted)
    ]
    F = [local_columns(*pair) for pair in zip(fitted, blocks, strict=True)]
    parts_of_angles = map(features.part_angles, parts, fitted, blocks, [64, 64])
    angle = 2 * math.pi * sum(parts_of_angles)
    F = np.hstack([*F, np.cos(angle), np.sin(angle)])
    parts[1] |= {"coef": rng.normal(size=(F.shape[1], 1)), "intercept": 3.0}
    scores = features.decision_function(parts, blocks)
    np.testing.assert_allclose(scores, F @ parts[1]["coef"] + 3, rtol=1e-9)
