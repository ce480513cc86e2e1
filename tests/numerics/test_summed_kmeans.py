"""k-means by sums of one party: what a pass sends, and how centres move."""

import math

import numpy as np
import pytest

from vfl_flower.numerics import summed_kmeans as numerics
from vfl_flower.numerics.kmeans import assign, weighted_kmeans
from vfl_flower.numerics.summed_kmeans import (
    Request,
    part_of_pass,
    random_centers,
    summed_kmeans,
)


def clustered(H, k, seed=0, **settings):
    """Return the result on the rows of one party."""
    rng, mean = np.random.default_rng(seed), H.mean(axis=0)
    return summed_kmeans(
        lambda request: part_of_pass(H, request, rng),
        *(k, mean, H.T @ H / len(H) - np.outer(mean, mean), rng),
        **settings,
    )


def blobs(n=600):
    rng = np.random.default_rng(0)
    return np.repeat([[0, 0], [9, 0], [0, 9]], n // 3, axis=0) + rng.normal(size=(n, 2))


def cost(H, centers):
    return assign(H, centers)[1].sum()


@pytest.mark.parametrize("seed", range(5))
def test_the_cost_is_nearly_that_of_all_rows(seed):
    """Coins cost a share of about 1 / 200 of each cluster, and so does the noise."""
    H, rng = blobs() - 3, np.random.default_rng(seed)
    _, least = weighted_kmeans(H, 3, np.ones(len(H)), rng)
    result = clustered(H, 3, seed)
    assert least <= cost(H, result.centers) < 1.1 * least
    assert result.passes < 20


def test_centres_without_rows_move_to_the_largest_cluster(monkeypatch):
    """All starts begin with centres far away, of which one gets all rows."""
    far = np.array([[100.0, 100.0], [200.0, 200.0], [300.0, 300.0]])
    monkeypatch.setattr(numerics, "random_centers", lambda *_: np.array([far] * 8))
    H = blobs()
    result = clustered(H, 3, n_init=8)
    assert cost(H, result.centers) < 2.5 * len(H)
    assert result.small < 0.5


def test_clusters_of_fewer_than_20_rows_never_settle():
    H = np.concatenate([blobs(60), [[50.0, 50.0]] * 5])
    assert clustered(H, 5, n_init=4).small > 0
    assert clustered(blobs(), 1, n_init=4).small == 0


def test_random_centers_have_the_moments_of_the_rows():
    """Within five standard errors, and 0 where an eigenvalue is below 0."""
    rng = np.random.default_rng(0)
    covariance = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, -1e-12]])
    draws = random_centers(np.array([1.0, -1.0, 3.0]), covariance, (2000, 5), rng)
    assert draws.shape == (2000, 5, 3)
    rows = draws.reshape(-1, 3)
    assert (
        np.abs(rows.mean(axis=0) - [1, -1, 3]) <= 5 * np.sqrt([2e-4, 1e-4, 0])
    ).all()
    np.testing.assert_allclose(np.cov(rows.T)[:2, :2], covariance[:2, :2], atol=0.15)


def test_coins_and_noise():
    """Mean and second moments of what is sent; false alarms at 1e-6 a number."""
    rng = np.random.default_rng(0)
    H, draws = rng.normal(size=(60, 2)) + 1, 4000
    centers = np.zeros((1, 1, 2))
    sizes = np.array([[60]])
    request = Request(centers, centers, sizes)
    parts = [part_of_pass(H, request, rng) for _ in range(draws)]
    counts = np.array([part.counts[0, 0] for part in parts])
    assert abs(counts.mean() - 30) < 5 * math.sqrt(15 / draws)
    sums = np.array([part.sums[0, 0] for part in parts])
    spread = H.T @ H / 4 + H.T @ H / 60
    error = 5 * np.sqrt(np.diag(spread) / draws)
    assert (np.abs(sums.mean(axis=0) - H.sum(axis=0) / 2) < error).all()
    np.testing.assert_allclose(np.cov(sums.T), spread, rtol=0.2)
    inertia = np.array([part.inertia[0] for part in parts])
    squares = np.square(H).sum(axis=1)
    assert inertia.std() == pytest.approx(math.sqrt(np.mean(squares**2)), rel=0.1)
    assert abs(inertia.mean() - squares.sum()) < 5 * inertia.std() / math.sqrt(draws)


def test_rows_that_have_left_are_drawn_too():
    """All rows move from the first cluster to the second."""
    H = np.full((200, 1), 9.0)
    last, centers = np.array([[[9.0], [0.0]]]), np.array([[[0.0], [9.0]]])
    rng, sizes = np.random.default_rng(0), np.array([[200, 0]])
    request = Request(centers, last, sizes)
    counts = [part_of_pass(H, request, rng).counts[0] for _ in range(400)]
    means = np.mean(counts, axis=0)
    assert abs(means[0] - 40) < 5 * math.sqrt(32 / 400)
    assert means[1] == 0  # it had no rows, so it sends no sum
