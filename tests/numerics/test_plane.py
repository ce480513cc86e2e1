"""Points in the plane in which they differ most."""

import numpy as np
import pytest

from vfl_flower.numerics.plane import principal_plane


def test_distances_in_the_plane_are_those_of_points_in_a_plane():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(6, 2))
    points = flat @ np.linalg.qr(rng.normal(size=(5, 2)))[0].T + 3
    places, shares = principal_plane(points, rng.uniform(1, 5, size=6))
    apart = np.linalg.norm(places[:, None] - places, axis=2)
    np.testing.assert_allclose(apart, np.linalg.norm(flat[:, None] - flat, axis=2))
    assert shares.sum() == pytest.approx(1)
    assert shares[0] >= shares[1]


def test_weights_count_as_repeated_points():
    points, times = np.random.default_rng(1).normal(size=(4, 3)), np.array([1, 4, 2, 3])
    places, shares = principal_plane(points, times)
    many, same = principal_plane(np.repeat(points, times, axis=0), np.zeros(0))
    np.testing.assert_allclose(np.repeat(places, times, axis=0), many, atol=1e-12)
    np.testing.assert_allclose(shares, same)


@pytest.mark.parametrize("points", [np.ones((3, 2)), np.ones((1, 4)), np.ones((2, 1))])
def test_equal_points_are_in_one_place(points):
    places, shares = principal_plane(points, np.ones(len(points)))
    assert not places.any()
    assert not shares.any()


def test_points_on_a_line():
    places, shares = principal_plane(np.array([[1.0], [4.0]]), np.array([2.0, 1.0]))
    assert places.tolist() == [[-1.0, 0.0], [2.0, 0.0]]
    assert shares.tolist() == [1.0, 0.0]
