"""A user's side of federated kernel k-means, each step alone."""

import math

import numpy as np
import pytest

from vfl_flower import Party
from vfl_flower.clients import kernel_kmeans as client
from vfl_flower.clients.base import STEPS, PartyError
from vfl_flower.numerics.kernel_embedding import bandwidth, embed_rows, feature_blocks
from vfl_flower.numerics.kernel_kmeans import (
    eigenpairs,
    embed,
    feature_range,
    shrink,
    stack,
    step_size,
)
from vfl_flower.numerics.random_features import RandomFeatures
from vfl_flower.secure_aggregation import join_limbs

N, D, D_1 = 12, 4, 6
SETUP = {
    "kernel": "gaussian",
    "gamma": 0.5,
    "degree": 3,
    "offset": 1.0,
    "D": D,
    "D_1": D_1,
    "seed": b"0123456789abcdef",
}


def user(index=1, **attributes):
    """Return a user inside a run of three."""
    X = np.random.default_rng(index).normal(size=(N, 2))
    found = Party(X, name=f"user {index}")
    found.index, found.n_parties, found.seed = index, 3, 7
    for name, value in attributes.items():
        setattr(found, name, value)
    return found


def setup():
    return dict(SETUP)


def features_of(party, t):
    own = SETUP | {"seed": SETUP["seed"].decode()}
    return np.concatenate(list(feature_blocks(own, party.X, *feature_range(t, D, D_1))))


def full(triangle):
    size = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    G = np.zeros((size, size))
    G[np.triu_indices(size)] = triangle
    return G + np.triu(G, 1).T


def trained():
    """Return a user after two iterations and the embedding, and its H."""
    own = user()
    pairs = eigenpairs(full(client.gram(own, 1, **setup())["gram"]), 0.2, 2)
    R = shrink(*pairs, 0.2)
    eta = step_size(2, D, D_1)
    pairs = eigenpairs(full(client.gram(own, 2, R)["gram"]), eta * 0.2, 2)
    W = stack(features_of(own, 2), features_of(own, 1) @ R / math.sqrt(D_1), eta)
    R = embed(*pairs, eta, 0.2, 2)
    client.local(own, 2, R)
    return own, W @ R


# -- what leaves a user ----------------------------------------------------------------


def test_what_leaves_only_into_a_sum():
    found = {a: s for a, s in STEPS.items() if a.startswith("kernel_kmeans_")}
    assert {action: step.sums for action, step in found.items() if step.sums} == {
        "kernel_kmeans_begin": ("sum_x", "sum_squares"),
        "kernel_kmeans_gram": ("gram",),
        "kernel_kmeans_product": ("product", "trace"),
        "kernel_kmeans_project": ("projected",),
        "kernel_kmeans_assign": ("inertia", "sizes"),
        "kernel_kmeans_spread": ("spread",),
        "kernel_kmeans_angles": ("angles",),
    }
    secrets = {action: step.secrets for action, step in found.items() if step.secrets}
    names = ("begin", "gram", "product", "project")
    assert secrets == {f"kernel_kmeans_{name}": ("seed",) for name in names}


# -- begin -----------------------------------------------------------------------------


def test_only_the_first_user_draws_the_seed():
    first, other = user(0), user(1)
    reply = client.begin(first)
    assert list(reply) == ["seed"]
    assert len(reply["seed"]) == 32
    assert first.state["seed"] == reply["seed"].decode()
    assert client.begin(other) == {}
    assert client.begin(user(0)) == reply  # asked again
    another = client.begin(user(0, secret=5))
    assert another != reply


def test_moments_are_those_of_the_columns():
    own = user()
    reply = client.begin(own, means=True, squares="column")
    np.testing.assert_allclose(join_limbs(reply["sum_x"]), own.X.sum(axis=0))
    np.testing.assert_allclose(join_limbs(reply["sum_squares"]), (own.X**2).sum(axis=0))
    reply = client.begin(own, squares="total")
    np.testing.assert_allclose(join_limbs(reply["sum_squares"]), [(own.X**2).sum()])
    assert "sum_x" not in reply
    far = user(X=own.X + 1e9)
    reply = client.begin(far, means=True, squares="column", shift=np.full(2, 1e9))
    for name, power in (("sum_x", 1), ("sum_squares", 2)):
        expected = (own.X**power).sum(axis=0)
        np.testing.assert_allclose(join_limbs(reply[name]), expected, rtol=1e-5)


@pytest.mark.parametrize("size", [1e20, 1e200])
def test_columns_that_are_too_large(size):
    own = user()
    own.X = own.X * size
    with pytest.raises(PartyError, match=r"must be below 2\^120: scale the columns$"):
        client.begin(own, means=True, squares="column")


# -- iterations ------------------------------------------------------------------------


def test_gram_by_the_features():
    own = user()
    A = features_of(own, 1)
    G = full(client.gram(own, 1, **setup())["gram"])
    np.testing.assert_allclose(G, A.T @ A / D_1, atol=1e-12)


def test_the_next_iteration_keeps_what_the_server_says():
    """W_2 = [sqrt(eta / D) A_2, sqrt(1 - eta) A_1 R / sqrt(D_1)]."""
    own = user()
    client.gram(own, 1, **setup())
    R = np.random.default_rng(0).normal(size=(D_1, 3))
    G = full(client.gram(own, 2, R)["gram"])
    B = features_of(own, 1) @ R / math.sqrt(D_1)
    W = stack(features_of(own, 2), B, step_size(2, D, D_1))
    np.testing.assert_allclose(G, W.T @ W, atol=1e-12)
    np.testing.assert_allclose(own.state["B"], B, atol=1e-12)


def test_an_iteration_that_is_asked_again_is_the_same():
    """With a wider bound, for a value that was clipped."""
    own = user()
    client.gram(own, 1, **setup())
    R = np.random.default_rng(0).normal(size=(D_1, 3))
    first = client.gram(own, 2, R)["gram"]
    np.testing.assert_array_equal(client.gram(own, 2, R)["gram"], first)


def test_features_are_kept_only_for_the_next_message(monkeypatch):
    own = user()
    expected = [client.gram(own, 1, **setup())["gram"]]
    assert own.cache
    R = np.ones((D_1, 1))
    expected.append(client.gram(own, 2, R)["gram"])
    monkeypatch.setattr(client, "CACHE_BYTES", 0)
    other = user()
    found = [client.gram(other, 1, **setup())["gram"], client.gram(other, 2, R)["gram"]]
    np.testing.assert_equal(found, expected)
    assert not other.cache


def test_features_of_another_run_are_not_taken():
    """The cache outlives a run: its key has all that says which features."""
    own = user()
    client.gram(own, 1, **setup())
    for change in ({"seed": b"ff"}, {"gamma": 0.7}, {"kernel": "laplacian"}):
        own.state = {}
        found = client.gram(own, 1, **setup() | change)["gram"]
        expected = client.gram(user(), 1, **setup() | change)["gram"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("width", [1, 3])
def test_products_are_those_of_the_gram_matrix(width):
    own = user()
    G = full(client.gram(user(), 1, **setup())["gram"])
    C = np.random.default_rng(0).normal(size=(D_1, width))
    reply = client.product(own, C, 1, trace_wanted=True, **setup())
    np.testing.assert_allclose(reply["product"], G @ C)
    np.testing.assert_allclose(reply["trace"], [G.trace()])
    again = client.product(own, 2 * C)  # of the same iteration
    assert list(again) == ["product"]
    np.testing.assert_allclose(again["product"], 2 * G @ C)


def test_without_the_mechanism():
    """A^T c, and A g: functions of single rows, so not outside tests."""
    own, c = user(allow_plain=True), np.arange(float(N))
    A = features_of(own, 1)
    found = client.project(own, c, 1, **setup())["projected"]
    np.testing.assert_allclose(found, A.T @ c)
    np.testing.assert_allclose(client.expand(own, found)["rows"], A @ found)
    own.allow_plain = False
    with pytest.raises(PartyError, match="single rows reach the server") as caught:
        client.expand(own, found)
    assert str(caught.value) == (
        "cem must be true: without it single rows reach the server"
    )


# -- k-means ---------------------------------------------------------------------------


def test_the_embedding_and_its_map():
    own, H = trained()
    np.testing.assert_allclose(own.state["H"], H, atol=1e-12)
    np.testing.assert_allclose(embed_rows(own.state, own.X), H, atol=1e-9)
    assert own.state["P"].shape == (D_1 + D, 2)
    assert "B" not in own.state  # nothing that is not needed crosses a process
    assert not own.cache


def test_an_embedding_must_come():
    own = user()
    client.gram(own, 1, **setup())
    with pytest.raises(PartyError, match="the embedding must come as R or as H"):
        client.local(own, 2)


def test_points_are_counted_as_rows_that_are_shared():
    own, _ = trained()
    own.share_rows = 4
    with pytest.raises(PartyError, match="lets 4 rows leave it in one run"):
        client.sample_rows(own, 5)
    own, H = trained()
    own.share_rows = N
    reply = client.sample_rows(own, N)
    np.testing.assert_allclose(reply["points"], H, atol=1e-12)
    assert reply["weights"].tolist() == [1.0] * N


def test_labels_stay_and_sums_leave():
    own, H = trained()
    centers = H[[0, 5]]
    reply = client.label(own, centers)
    distances = ((H[:, None] - centers) ** 2).sum(axis=2)
    labels = distances.argmin(axis=1)
    assert set(reply) == {"inertia", "sizes", "kept"}
    np.testing.assert_allclose(reply["inertia"], [distances.min(axis=1).sum()])
    assert reply["sizes"].tolist() == np.bincount(labels).tolist()
    assert reply["kept"] is False
    np.testing.assert_array_equal(own.part["labels"], labels)
    np.testing.assert_array_equal(own.predictions, labels)
    assert set(own.part) == {*SETUP, "P", "centers", "labels"}


# -- split columns ---------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_spread_of_columns_far_from_0(kernel):
    """Of any that vary by more than the rounding of their mean."""
    X = np.random.default_rng(0).normal(size=(20_000, 3)) * 1e-3
    far = np.column_stack([X + 5e8, np.full(len(X), 0.1)])  # and one that is constant
    found = join_limbs(client.spread(Party(far), kernel)["spread"])
    near = join_limbs(client.spread(Party(far[:, :3] - 5e8), kernel)["spread"])
    np.testing.assert_allclose(found, near, rtol=1e-6)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_spread_of_the_columns(kernel):
    own = user()
    own.X = own.X + 1e6  # far from 0 for its spread
    found = join_limbs(client.spread(own, kernel)["spread"])
    deviations = own.X.std(axis=0)
    expected = deviations.sum() if kernel == "laplacian" else (deviations**2).sum()
    np.testing.assert_allclose(found, [expected], rtol=1e-9)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_angles_of_a_seed_of_its_own(bits):
    own = user()
    found = client.angles(own, 3, 9, bits, "gaussian", 0.5)["angles"]
    seed = int.from_bytes(user().rng("features").bytes(16))
    draws = RandomFeatures("gaussian", 2, bandwidth("gaussian", 0.5), seed)
    np.testing.assert_array_equal(found, draws.angles(own.X, 3, 9, bits))
    assert not own.state
    other = client.angles(user(2), 3, 9, bits, "gaussian", 0.5)["angles"]
    assert not np.array_equal(found, other)


def test_angles_are_of_all_rows():
    own = user(share_rows=N - 1)
    with pytest.raises(PartyError, match="share-rows lets 11 rows leave it"):
        client.angles(own, 0, 4, 16, "gaussian", 0.5)


def test_labels_of_the_server_are_kept():
    own, labels = user(), np.arange(N, dtype=np.int32) % 3
    assert client.take_labels(own, labels) == {"kept": False}
    np.testing.assert_equal(own.part, {"labels": labels})
    np.testing.assert_array_equal(own.predictions, labels)
    with pytest.raises(PartyError, match="must be those of the 12 rows, got 11"):
        client.take_labels(own, labels[1:])


def test_features_of_other_rows_are_not_those_that_were_kept():
    """A run that failed leaves them; a next one with its seed may have other rows."""
    party = user()
    client.gram(party, 1, **setup())
    party.X = party.X + 1
    again = client.gram(party, 1)["gram"]
    other = user(X=party.X)
    np.testing.assert_array_equal(again, client.gram(other, 1, **setup())["gram"])
