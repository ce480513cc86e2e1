"""The methods that federated kernel k-means is compared with."""

import doctest

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.pairwise import rbf_kernel

from simulations import kernel_baselines as baselines
from simulations.experiments import MissingData

N, M, K = 240, 5, 3


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(1)
    labels = np.arange(N) % K
    X = 4 * rng.standard_normal((K, 6))[labels] + rng.standard_normal((N, 6))
    return X, labels


def central(X, parts, k, rng):
    return baselines.central_kernel(
        X, parts, k, rng, pairs=baselines.kernel_eigenpairs(X, 5)
    )


def nmi(labels, clusters):
    return normalized_mutual_info_score(labels, clusters)


PCA = {"n_components": 5, "n_features": 200, "n_points": 60, "budget": 60}
METHODS = {
    "k-means": (baselines.plain, {"budget": 60}),
    "CK": (central, {}),
    "SK": (baselines.scalable_kernel, {"n_components": 5, "n_landmarks": 50}),
    "RFK": (baselines.random_fourier, {"n_features": 200, "budget": 60}),
    "CE PCA": (baselines.communication_pca, PCA),
    "CE PCA, raw points": (baselines.communication_pca, PCA | {"raw_points": True}),
}


def run(name, X, parts, rng):
    """Return the labels and the floats of a method."""
    method, settings = METHODS[name]
    return method(X, parts, K, rng, **settings)


def seeded(seed=0):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def parts():
    return baselines.split_among(N, M, seeded())


# --- the split -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4, 40])
def test_each_row_has_one_party_and_each_party_a_row(count):
    parts = baselines.split_among(40, count, seeded())
    assert {len(part) for part in parts} == {40 // count}
    assert all((np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(40))


# --- eigenpairs ----------------------------------------------------------------------


def test_eigenpairs_are_those_of_the_whole_matrix():
    """Two blocks of rows, the second a short one, far from 0."""
    rng = seeded()
    X = 4 * rng.normal(size=(5, 6))[rng.integers(5, size=1100)] + 30
    X += rng.normal(size=X.shape)
    K = rbf_kernel(X, gamma=baselines.default_gamma(X))
    values, vectors = baselines.kernel_eigenpairs(X, 6)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(K)[::-1][:6], rtol=1e-5)
    np.testing.assert_allclose(K @ vectors, vectors * values, atol=1e-3)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(6), atol=1e-6)


def test_a_matrix_that_does_not_fit_is_a_reason(blobs):
    with pytest.raises(MissingData, match="the kernel matrix of 240 rows takes"):
        baselines.kernel_eigenpairs(blobs[0], 3, max_bytes=2 * N**2 - 1)


# --- the methods ---------------------------------------------------------------------


def test_gamma_is_that_of_all_pairs(blobs):
    X, _ = blobs
    pairs = ((X[:, None] - X) ** 2).sum()
    assert baselines.default_gamma(X) == pytest.approx(N**2 / (2 * pairs), rel=1e-12)


def test_constant_data_has_no_gamma():
    with pytest.raises(ValueError, match="gamma needs a column that varies"):
        baselines.default_gamma(np.ones((4, 2)))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_separate_clusters(blobs, name):
    X, labels = blobs
    rng = seeded()
    clusters, floats = run(name, X, baselines.split_among(N, M, rng), rng)
    assert clusters.shape == (N,)
    assert floats > 0
    assert nmi(labels, clusters) > 0.95


def test_central_kernel_is_k_means_of_the_scaled_eigenvectors(blobs):
    X, _ = blobs
    clusters, floats = run("CK", X, [], seeded())
    values, U = np.linalg.eigh(rbf_kernel(X, gamma=baselines.default_gamma(X)))
    H = U[:, -5:] * np.sqrt(values[-5:])
    expected = baselines._pooled(H, K, seeded())
    assert nmi(expected, clusters) == pytest.approx(1)
    assert floats == X.size


def test_floats_of_distributed_k_means(blobs, parts):
    """All rows in the budget: each with a weight, and a cost of each party."""
    X, _ = blobs
    rng = seeded()
    assert baselines.plain(X, parts, K, rng, budget=10**6)[1] == M + N * (6 + 1)
    # Without a draw the centres alone are sent.
    assert baselines.plain(X, parts, K, rng, budget=0)[1] == M + M * K * (6 + 1)
    _, floats = baselines.random_fourier(X, parts, K, rng, n_features=9, budget=0)
    assert floats == M + M * K * (9 + 1)


def test_floats_of_communication_pca(blobs, parts):
    """By hand, for D = 8 features and 20 rows in each sketch.

    Embeddings 5 * 20 * 4; two sums a party; p' points of 8 features, whose span is all
    8 dimensions; projections 5 * 20 * 8; k-means of 3 centres of 2 columns a party.
    """
    settings = {"n_components": 2, "n_features": 8, "n_points": 40, "budget": 0}
    settings |= {"embedding": 4, "row_embedding": 20}
    _, floats = baselines.communication_pca(blobs[0], parts, K, seeded(), **settings)
    points, rest = divmod(floats - 400 - 10 - 800 - M - M * K * 3, 8)
    assert rest == 0
    assert 10 < points <= 20  # half of them, distinct: no residual is left


@pytest.fixture
def clustered(monkeypatch):
    """Return the rows that k-means is given: it does nothing with them."""
    rows = []

    def keep(H, parts, k, rng, budget):
        rows.append(H)
        return np.zeros(len(H), dtype=np.int64), 0

    monkeypatch.setattr(baselines, "plain", keep)
    return rows


def test_communication_pca_with_all_rows_is_principal_components(
    clustered, blobs, parts
):
    """Where no sketch loses anything, the columns are those of A's own components."""
    X, _ = blobs
    settings = {"n_components": 4, "n_features": 30, "n_points": 4000, "gamma": 0.02}
    baselines.communication_pca(X, parts, K, seeded(), **settings)
    # The draws of the features are the first.
    A = baselines._fourier(X, 30, 0.02, seeded())
    U, scale, _ = np.linalg.svd(A, full_matrices=False)
    expected = (U[:, :4] * scale[:4] ** 2) @ U[:, :4].T
    np.testing.assert_allclose(clustered[0] @ clustered[0].T, expected, atol=1e-8)


def test_raw_points_give_the_components_of_the_kernel_matrix(clustered, blobs, parts):
    """Where all rows are points and no sketch loses anything, H H^T is K_s."""
    X, _ = blobs
    settings = {"n_components": 4, "n_features": 30, "n_points": 20_000, "gamma": 0.02}
    _, floats = baselines.communication_pca(
        X, parts, K, seeded(), raw_points=True, **settings
    )
    values, U = np.linalg.eigh(rbf_kernel(X, gamma=0.02))
    expected = (U[:, -4:] * values[-4:]) @ U[:, -4:].T
    np.testing.assert_allclose(clustered[0] @ clustered[0].T, expected, atol=1e-4)
    # Embeddings, two sums a party, points of 6 columns, and q projections a row.
    q, rest = divmod(floats - N * 30 - 2 * M - N * 6, N)
    assert rest == 0
    assert 100 < q <= N


def test_points_are_drawn_by_leverage_scores(monkeypatch, blobs, parts):
    """Where no row is sketched, the first draw is by the hat matrix of A S.

    With d_s = D the columns of A S span those of A, so S does not matter.
    """
    X, _ = blobs
    seen = []
    draw = baselines.draw

    def keep(g, size, rng):
        seen.append(g)
        return draw(g, size, rng)

    monkeypatch.setattr(baselines, "draw", keep)
    settings = {"n_components": 2, "n_features": 20, "gamma": 0.02}
    baselines.communication_pca(X, parts, K, seeded(), **settings)
    A = baselines._fourier(X, 20, 0.02, seeded())
    np.testing.assert_allclose(seen[0], np.diag(A @ np.linalg.pinv(A)), rtol=1e-6)


@pytest.mark.parametrize("count", [10, 20])
def test_few_points_are_drawn_where_the_first_ones_miss(blobs, parts, count):
    """With few points of 200 features the second half is drawn by the residuals."""
    settings = {"n_components": 3, "n_features": 200, "n_points": count, "budget": 0}
    _, floats = baselines.communication_pca(blobs[0], parts, K, seeded(), **settings)
    kmeans, embeddings = M + M * K * 4, N * 50 + 2 * M
    # p' points of 200 features, and p' columns of all N rows (48 a party)
    distinct, rest = divmod(floats - kmeans - embeddings, 200 + N)
    assert rest == 0
    assert count // 2 < distinct <= count


def test_a_count_sketch_keeps_squares_in_the_mean():
    """1,000 sketches: within 4.5 standard errors, a false alarm in 1e-5 of runs."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((30, 1))
    sketches = [baselines._count_sketch(rows, 8, rng) for _ in range(1000)]
    squares = np.array([(sketch**2).sum() for sketch in sketches])
    error = squares.std(ddof=1) / np.sqrt(1000)
    assert abs(squares.mean() - (rows**2).sum()) < 4.5 * error
    assert sketches[0].shape == (8, 1)
    assert baselines._count_sketch(rows, 30, rng) is rows


def test_examples():
    assert doctest.testmod(baselines).failed == 0
