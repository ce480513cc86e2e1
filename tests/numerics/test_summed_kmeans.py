"""k-means by sums of one party: what a pass sends, and how centres move."""

import math

import numpy as np
import pytest
from mixtures import cost

from vfl_flower.numerics import summed_kmeans as numerics
from vfl_flower.numerics.kmeans import simplified_silhouettes, weighted_kmeans
from vfl_flower.numerics.summed_kmeans import Request, part_of_pass, summed_kmeans


def moments_of(H):
    return H.mean(axis=0), np.cov(H.T, bias=True)


def clustered(H, k, seed=0, **settings):
    rng = np.random.default_rng(seed)

    def ask(request):
        return part_of_pass(H, request, rng)

    return summed_kmeans(ask, k, *moments_of(H), rng, **settings)


def blobs(n=600):
    rng = np.random.default_rng(0)
    return np.repeat([[0, 0], [9, 0], [0, 9]], n // 3, axis=0) + rng.normal(size=(n, 2))


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
    mean = np.array([1.0, -1.0, 3.0])
    draws = numerics.random_centers(mean, covariance, (2000, 5), rng)
    assert draws.shape == (2000, 5, 3)
    rows = draws.reshape(-1, 3)
    off = np.abs(rows.mean(axis=0) - mean)
    assert (off <= 5 * np.sqrt([2e-4, 1e-4, 0])).all()
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


def groups(k, n=1200):
    rng = np.random.default_rng(k)
    middles = 15 / math.sqrt(2) * np.eye(8)
    return middles[rng.integers(k, size=n)] + rng.normal(size=(n, 8))


def chosen(H, most, seed=0, **settings):
    rng, asked = np.random.default_rng(seed), []

    def ask(request):
        asked.append(request)
        return part_of_pass(H, request, rng)

    return numerics.chosen_kmeans(ask, most, *moments_of(H), rng, **settings), asked


@pytest.mark.parametrize("k", [2, 3, 6])
def test_the_number_of_distinct_groups_is_chosen(k):
    H = groups(k)
    result, asked = chosen(H, 8, n_init=8)
    assert len(result.centers) == k
    values = simplified_silhouettes(H, result.centers)
    assert result.silhouette == pytest.approx(values.mean(), abs=5 / len(H))
    assert len(asked) == result.passes <= 20


def test_each_k_is_clustered_as_on_its_own(monkeypatch):
    """Without coins and noise, which hang on the other starts of a message."""
    for name, value in {"SHARE": 1.0, "NOISE": 0.0, "LEAVERS": 0}.items():
        monkeypatch.setattr(numerics, name, value)
    H = groups(4)
    result, asked = chosen(H, 6, n_init=3)
    streams = np.random.default_rng(0).spawn(5)

    def ask(request):
        return part_of_pass(H, request, np.random.default_rng())

    for k, stream in zip(range(2, 7), streams, strict=True):
        alone = summed_kmeans(ask, k, *moments_of(H), stream, 3)
        if k == len(result.centers):
            np.testing.assert_allclose(alone.centers, result.centers)
        silhouette = simplified_silhouettes(H, alone.centers).mean()
        assert silhouette <= result.silhouette + 1e-12
    assert asked[0].used.tolist() == [k for k in range(2, 7) for _ in range(3)]
    # The centres that a start does not have are 0, and have no rows.
    for request in asked:
        unused = np.arange(6) >= request.used[:, None]
        assert not request.centers[unused].any()
        assert request.sizes is None or not request.sizes[unused].any()


def test_noise_of_the_silhouettes():
    """Unbiased, with the deviation of one row's share; false alarms at 1e-6."""
    rng = np.random.default_rng(0)
    H, centers = rng.normal(size=(60, 2)), np.array([[[-1.0, 0.0], [1.0, 0.0]]])
    request = Request(centers, used=np.array([2]))
    draws = [part_of_pass(H, request, rng, 4).silhouettes[0] for _ in range(4000)]
    values = simplified_silhouettes(H, centers[0])
    deviation = math.sqrt((values**2).mean() / 4)
    assert abs(np.mean(draws) - values.sum()) < 5 * deviation / math.sqrt(4000)
    assert abs(np.std(draws) / deviation - 1) < 5 / math.sqrt(2 * 4000)
