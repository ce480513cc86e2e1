"""The methods that federated kernel k-means is compared with."""

import doctest

import numpy as np
import pytest
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.pairwise import rbf_kernel

from vfl_flower.simulations import kernel_baselines
from vfl_flower.simulations.kernel_baselines import (
    Clustering,
    central_kernel,
    communication_pca,
    default_gamma,
    plain,
    random_fourier,
    scalable_kernel,
    split_users,
)

N, M, K = 240, 5, 3


@pytest.fixture(scope="module")
def rings():
    """Return rows of three rings, which no k-means of the raw columns can find."""
    rng = np.random.default_rng(0)
    labels = np.arange(N) % K
    angle, radius = 2 * np.pi * rng.random(N), 3.0 * labels
    X = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return X + 0.1 * rng.standard_normal((N, 2)), labels


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(1)
    labels = np.arange(N) % K
    X = 4 * rng.standard_normal((K, 6))[labels] + rng.standard_normal((N, 6))
    return X, labels


METHODS = {
    "k-means": lambda X, users, rng: plain(X, users, K, rng, budget=60),
    "CK": lambda X, users, rng: central_kernel(X, users, K, rng, n_components=5),
    "SK": lambda X, users, rng: scalable_kernel(
        X, users, K, rng, n_components=5, n_landmarks=50
    ),
    "RFK": lambda X, users, rng: random_fourier(
        X, users, K, rng, n_features=200, budget=60
    ),
    "CE PCA": lambda X, users, rng: communication_pca(
        X, users, K, rng, n_components=5, n_features=200, n_points=60, budget=60
    ),
}


# --- the split -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", kernel_baselines.KINDS)
@pytest.mark.parametrize("users", [1, 4, 40])
def test_each_row_has_one_user_and_each_user_a_row(kind, users):
    labels = np.arange(40) % 4
    parts = split_users(40, users, np.random.default_rng(0), kind, labels)
    assert len(parts) == users
    assert all(len(part) > 0 and (np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(40))


def test_kinds_of_split():
    """Users by label hold one class of four each; unequal ones differ in size."""
    labels = np.arange(400) % 4
    split = {
        kind: split_users(400, 4, np.random.default_rng(3), kind, labels)
        for kind in kernel_baselines.KINDS
    }
    assert [len(part) for part in split["equal"]] == [100] * 4
    assert all(len(np.unique(labels[part])) == 4 for part in split["equal"])
    assert [set(labels[part]) for part in split["labels"]] == [{0}, {1}, {2}, {3}]
    sizes = [len(part) for part in split["unequal"]]
    assert max(sizes) > 3 * min(sizes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((5, 2, "even"), "kind must be .* got 'even'"),
        ((5, 0), "M must be from 1 to 5, .* got 0"),
        ((5, 6), "M must be from 1 to 5, .* got 6"),
        ((5, 2, "labels"), "labels must have 5 values"),
        ((5, 2, "labels", np.zeros(4)), "labels must have 5 values"),
    ],
)
def test_a_split_says_what_is_wrong(settings, message):
    n, users, *more = settings
    with pytest.raises(ValueError, match=message):
        split_users(n, users, np.random.default_rng(0), *more)


# --- the methods ---------------------------------------------------------------------


def test_gamma_is_that_of_all_pairs(blobs):
    X, _ = blobs
    pairs = ((X[:, None] - X) ** 2).sum()
    assert default_gamma(X) == pytest.approx(N**2 / (2 * pairs), rel=1e-12)


@pytest.mark.parametrize("kind", kernel_baselines.KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_separate_clusters(blobs, name, kind):
    X, labels = blobs
    rng = np.random.default_rng(0)
    found = METHODS[name](X, split_users(N, M, rng, kind, labels), rng)
    assert found.name == name
    assert found.labels.shape == (N,)
    assert found.seconds > 0
    assert found.nmi(labels) > 0.95


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_labels(blobs, name):
    X, _ = blobs
    users = split_users(N, M, np.random.default_rng(0))
    first, second = (METHODS[name](X, users, np.random.default_rng(4)) for _ in "ab")
    np.testing.assert_array_equal(first.labels, second.labels)
    assert first.floats == second.floats


def test_a_kernel_finds_what_raw_columns_do_not(rings):
    """A point and two rings around it: a narrow kernel tells most of it apart."""
    X, labels = rings
    users = split_users(N, M, np.random.default_rng(0))
    raw = plain(X, users, K, np.random.default_rng(0), budget=60)
    found = central_kernel(
        X, users, K, np.random.default_rng(0), n_components=K, gamma=0.3
    )
    assert found.nmi(labels) > raw.nmi(labels) + 0.3


def test_central_kernel_is_k_means_of_the_scaled_eigenvectors(blobs):
    X, _ = blobs
    found = METHODS["CK"](X, [], np.random.default_rng(0))
    values, U = np.linalg.eigh(rbf_kernel(X, gamma=default_gamma(X)))
    H = U[:, -5:] * np.sqrt(values[-5:])
    expected = kernel_baselines._pooled(H, K, np.random.default_rng(0))
    assert normalized_mutual_info_score(expected, found.labels) == pytest.approx(1)
    assert found.floats == X.size


def test_nystroem_with_all_rows_is_the_kernel(blobs):
    """With n landmarks the features make K, so their top part is that of CK."""
    X, _ = blobs
    F = Nystroem(kernel="rbf", gamma=0.02, n_components=N).fit_transform(X)
    H = F @ kernel_baselines._top(F, 5)
    values, U = np.linalg.eigh(rbf_kernel(X, gamma=0.02))
    expected = (U[:, -5:] * values[-5:]) @ U[:, -5:].T
    np.testing.assert_allclose(H @ H.T, expected, atol=1e-8)


def test_features_make_the_kernel(blobs):
    """Errors of 20,000 features are at most 6 standard errors, sqrt(2 / D), of it."""
    X = blobs[0][:40]
    A = kernel_baselines._fourier(X, 20_000, 0.02, np.random.default_rng(0))
    np.testing.assert_allclose(A @ A.T, rbf_kernel(X, gamma=0.02), atol=0.05)


def test_floats_of_distributed_k_means(blobs):
    """All rows in the budget: each with a weight, and a cost of each user."""
    X, _ = blobs
    users = split_users(N, M, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    assert plain(X, users, K, rng, budget=10**6).floats == M + N * (6 + 1)
    # Without a draw the centres alone are sent.
    assert plain(X, users, K, rng, budget=0).floats == M + M * K * (6 + 1)
    found = random_fourier(X, users, K, rng, n_features=9, budget=0)
    assert found.floats == M + M * K * (9 + 1)


def test_floats_of_communication_pca(blobs):
    """By hand, for D = 8 features and 20 rows in each sketch.

    Embeddings 5 * 20 * 4; two sums a user; p' points of 8 features, whose span is all
    8 dimensions; projections 5 * 20 * 8; k-means of 3 centres of 2 columns a user.
    """
    X, _ = blobs
    found = communication_pca(
        X,
        split_users(N, M, np.random.default_rng(0)),
        K,
        np.random.default_rng(0),
        n_components=2,
        n_features=8,
        embedding=4,
        row_embedding=20,
        n_points=40,
        budget=0,
    )
    points, rest = divmod(found.floats - 400 - 10 - 800 - M - M * K * 3, 8)
    assert rest == 0
    assert 10 < points <= 20  # half of them, distinct: no residual is left


def test_communication_pca_with_all_rows_is_principal_components(monkeypatch, blobs):
    """Where no sketch loses anything, the columns are those of A's own components."""
    X, _ = blobs
    seen = {}

    def keep(H, users, k, budget, rng):
        seen["H"] = H
        return np.zeros(len(H), dtype=np.int64), 0

    monkeypatch.setattr(kernel_baselines, "_distributed", keep)
    communication_pca(
        X,
        split_users(N, M, np.random.default_rng(0)),
        K,
        np.random.default_rng(0),
        n_components=4,
        n_features=30,
        n_points=4000,
        gamma=0.02,
    )
    A = kernel_baselines._fourier(X, 30, 0.02, np.random.default_rng(0))
    U, scale, _ = np.linalg.svd(A, full_matrices=False)
    expected = (U[:, :4] * scale[:4] ** 2) @ U[:, :4].T
    np.testing.assert_allclose(seen["H"] @ seen["H"].T, expected, atol=1e-8)


def test_points_are_drawn_by_leverage_scores(monkeypatch, blobs):
    """Where no row is sketched, the first draw is by the hat matrix of A S.

    With d_s = D the columns of A S span those of A, so S does not matter.
    """
    X, _ = blobs
    seen = []
    draw = kernel_baselines.draw

    def keep(g, size, rng):
        seen.append(g)
        return draw(g, size, rng)

    monkeypatch.setattr(kernel_baselines, "draw", keep)
    communication_pca(
        X,
        split_users(N, M, np.random.default_rng(0)),
        K,
        np.random.default_rng(0),
        n_components=2,
        n_features=20,
        gamma=0.02,
    )
    A = kernel_baselines._fourier(X, 20, 0.02, np.random.default_rng(0))
    np.testing.assert_allclose(seen[0], np.diag(A @ np.linalg.pinv(A)), rtol=1e-6)


def test_few_points_are_drawn_where_the_first_ones_miss(blobs):
    """With 10 points of 200 features the second half is drawn by the residuals."""
    X, _ = blobs
    users = split_users(N, M, np.random.default_rng(0))
    few, more = (
        communication_pca(
            X,
            users,
            K,
            np.random.default_rng(0),
            n_components=3,
            n_features=200,
            n_points=points,
            budget=0,
        ).floats
        for points in (10, 20)
    )
    kmeans, embeddings = M + M * K * 4, N * 50 + 2 * M
    for floats, points in ((few, 10), (more, 20)):
        # p' points of 200 features, and p' columns of all N rows (48 a user)
        distinct, rest = divmod(floats - kmeans - embeddings, 200 + N)
        assert rest == 0
        assert points // 2 < distinct <= points


def test_a_count_sketch_keeps_squares_in_the_mean():
    """1,000 sketches: within 4.5 standard errors, a false alarm in 1e-5 of runs."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((30, 1))
    sketches = [kernel_baselines._count_sketch(rows, 8, rng) for _ in range(1000)]
    squares = np.array([(sketch**2).sum() for sketch in sketches])
    error = squares.std(ddof=1) / np.sqrt(1000)
    assert abs(squares.mean() - (rows**2).sum()) < 4.5 * error
    assert sketches[0].shape == (8, 1)
    assert kernel_baselines._count_sketch(rows, 30, rng) is rows


def test_a_kernel_matrix_that_does_not_fit(blobs):
    X, _ = blobs
    with pytest.raises(ValueError, match="max_bytes = 1000, got 240 rows"):
        central_kernel(
            X, [], K, np.random.default_rng(0), n_components=5, max_bytes=1000
        )
    with pytest.raises(ValueError, match="n_components must be from 1 to 239"):
        central_kernel(X, [], K, np.random.default_rng(0), n_components=240)


def test_constant_data_has_no_gamma():
    with pytest.raises(ValueError, match="gamma needs a column that varies"):
        default_gamma(np.ones((4, 2)))


def test_nmi_is_that_of_scikit_learn():
    """Two clusters against a half of each: nothing in common; itself: all."""
    found = Clustering("x", np.array([0, 0, 1, 1]), 0, 0.0)
    assert found.nmi(np.array([0, 1, 0, 1])) == pytest.approx(0, abs=1e-12)
    assert found.nmi(np.array([5, 5, 2, 2])) == pytest.approx(1)


def test_examples():
    assert doctest.testmod(kernel_baselines).failed == 0
