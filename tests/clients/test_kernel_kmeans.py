"""A party's side of federated kernel k-means, each step alone."""

import math
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
from consents import limited
from transcripts import leaving, our_steps

from vfl_flower import Party
from vfl_flower.clients.kernel_kmeans import clustering
from vfl_flower.clients.kernel_kmeans import training as client
from vfl_flower.clients.kernel_kmeans.training import Setup, State
from vfl_flower.numerics import kernel_kmeans as numerics
from vfl_flower.numerics.coresets import ClusterSummary
from vfl_flower.numerics.kernel_embedding import embed_rows, feature_blocks
from vfl_flower.numerics.kernel_kmeans import eigenpairs, embed
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError, flatten, structure

N, D, D_1 = 12, 4, 6
SETUP = Setup("gaussian", gamma=0.5, D=D, D_1=D_1)
SEED = b"0123456789abcdef0123456789abcdef"


def party(index=1, **attributes):
    X = np.random.default_rng(index).normal(size=(N, 2))
    made = Party(X, name=f"party {index}")
    made.index, made.n_parties, made.seed = index, 3, 7
    for name, value in attributes.items():
        setattr(made, name, value)
    made.remember(State())
    return made


def first_gram(asked):
    return client.gram(asked, 1, setup=SETUP, seed=SEED)["gram"]


def features_of(asked, t):
    features, wanted = SETUP.features(SEED.decode()), numerics.feature_range(t, D, D_1)
    return np.concatenate(list(feature_blocks(features, asked.X, *wanted)))


def full(triangle):
    size = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    G = np.zeros((size, size))
    G[np.triu_indices(size)] = triangle
    return G + np.triu(G, 1).T


def trained():
    asked = party()
    pairs = eigenpairs(full(first_gram(asked)), 0.2, 2)
    R = numerics.shrink(*pairs, 0.2)
    eta = numerics.step_size(2, D, D_1)
    pairs = eigenpairs(full(client.gram(asked, 2, R)["gram"]), eta * 0.2, 2)
    B = features_of(asked, 1) @ R / math.sqrt(D_1)
    W = numerics.stack(features_of(asked, 2), B, eta)
    R = embed(*pairs, eta, 0.2, 2)
    clustering.local(asked, 2, R)
    return asked, W @ R


# -- what leaves a party ---------------------------------------------------------------


def test_what_leaves_only_into_a_sum_or_encrypted():
    steps = our_steps("kernel_kmeans")
    prefix = "kernel_kmeans_"
    sums = {a.removeprefix(prefix): leaving(s, "sum") for a, s in steps.items()}
    assert {action: names for action, names in sums.items() if names} == {
        "begin": {"sum_x", "sum_squares", "known"},
        "gram": {"gram"},
        "product": {"product", "trace"},
        "project": {"projected"},
        "embed": {"sum_h"},
        "lloyd": {"inertia", "sizes", "counts", "sums", "silhouettes"},
        "assign": {"inertia", "sizes"},
        "evaluate": {"cost"},
    }
    assert [a for a, s in steps.items() if leaving(s, "secret")] == [f"{prefix}begin"]
    taken = {
        action.removeprefix(prefix)
        for action, step in steps.items()
        if any(declared.leaves for declared in step.contract.request.values())
    }
    assert taken == {"gram", "product", "project"}  # the seed, only encrypted


# -- begin -----------------------------------------------------------------------------


def test_only_the_first_party_draws_the_seed():
    first, other = party(0), party(1)
    reply = client.begin(first)
    assert list(reply) == ["seed"]
    assert len(reply["seed"]) == 32
    assert first.recall(State).seed == reply["seed"].decode()
    assert client.begin(other) == {}
    assert client.begin(party(0)) == reply  # asked again
    assert client.begin(party(0, private_draws=True, run_secret=bytes(32))) != reply


@pytest.mark.parametrize("squares", ["column", "total"])
@pytest.mark.parametrize("size", [1e20, 1e200, 1e308])
def test_columns_that_are_too_large(size, squares):
    asked = party()
    asked.X = asked.X.clip(-1, 1) * size
    with pytest.raises(PartyError, match=r"must be below 2\^120: scale the columns$"):
        client.begin(asked, means=True, squares=squares)


# -- iterations ------------------------------------------------------------------------


@pytest.mark.parametrize("large", ["rows", "map"])
def test_a_matrix_is_refused_whose_squares_overflow(large):
    """In the rows B_2 = A_1 R / sqrt(D_1), or in the map R / sqrt(D_1) alone."""
    asked = party(X=np.repeat(np.eye(2), N // 2, axis=0))
    first_gram(asked)
    lengths, vectors = np.linalg.svd(features_of(asked, 1))[1:]
    assert lengths[0] > 2 > 1e-9 > lengths[-1]
    place, size = (0, 0.5e145) if large == "rows" else (-1, 2e145)
    R = size * math.sqrt(D_1) * vectors[[place]].T
    with pytest.raises(PartyError, match="R must be small enough for its squares"):
        client.gram(asked, 2, R)


def test_an_iteration_that_is_asked_again_is_the_same():
    """With a wider bound, for a value that was clipped."""
    asked = party()
    first = first_gram(asked)
    np.testing.assert_array_equal(first_gram(asked), first)
    R = np.random.default_rng(0).normal(size=(D_1, 3))
    first = client.gram(asked, 2, R)["gram"]
    np.testing.assert_array_equal(client.gram(asked, 2, R)["gram"], first)


@pytest.mark.parametrize(
    ("seed", "change"),
    [
        (SEED, {"gamma": 0.7}),
        (SEED, {"kernel": "laplacian"}),
        (SEED, {"shift": np.ones(2), "scale": np.ones(2)}),
        (b"f" * 32, {}),
    ],
)
def test_features_of_another_run_are_not_taken(seed, change):
    """The cache outlives a run: its key has all that says which features."""
    asked, setup = party(), replace(SETUP, **change)
    first_gram(asked)
    asked.remember(State())
    other, expected = (client.gram(p, 1, None, setup, seed) for p in (asked, party()))
    np.testing.assert_array_equal(other["gram"], expected["gram"])


def test_features_of_other_rows_are_not_those_that_were_kept():
    """A run that failed leaves its cache; the next one may have other rows."""
    asked = party()
    first_gram(asked)
    asked.X = asked.X + 1
    np.testing.assert_array_equal(first_gram(asked), first_gram(party(X=asked.X)))


def test_without_the_mechanism():
    """A^T c, and A g: functions of single rows, so never outside tests."""
    asked, c = party(allow_plain=True), np.arange(float(N))
    A = features_of(asked, 1)
    g = client.project(asked, c, 1, setup=SETUP, seed=SEED)["projected"]
    np.testing.assert_allclose(g, A.T @ c)
    np.testing.assert_allclose(client.expand(asked, g)["rows"], A @ g)
    g = client.project(asked, 2 * c, 1)["projected"]  # another product, no setup
    np.testing.assert_allclose(g, 2 * A.T @ c)
    row = client.project(asked, np.eye(N)[3], 1)["projected"]
    np.testing.assert_allclose(row, A[3])  # all that there is of a row
    asked.allow_plain = False
    with pytest.raises(PartyError, match="cem must be true"):
        client.expand(asked, g)
    with pytest.raises(PartyError, match="cem must be true"):
        client.project(asked, np.eye(N)[3], 1)


# -- k-means ---------------------------------------------------------------------------


def test_the_embedding_and_its_map():
    asked, H = trained()
    state = asked.recall(State)
    np.testing.assert_allclose(state.H, H, atol=1e-12)
    clustering.assign(asked, H[:2])
    np.testing.assert_allclose(embed_rows(asked.part, asked.X), H, atol=1e-9)
    assert state.P.shape == (D_1 + D, 2)
    # Nothing that is not needed crosses a process.
    assert state.B is None
    assert state.G is None
    assert not asked.cache


def test_rows_of_small_clusters_count_as_told():
    """Their centre is as good as they are: 3 of 30 rows, besides the one drawn."""
    H = np.arange(60).reshape(30, 2) / 1e3
    H[27:] += 1
    clusters = ClusterSummary(np.array([[0.0, 0], [1, 1]]), np.array([27, 3]), H[:2, 0])
    assert clustering._revealed_by(H[[5]], H, clusters).tolist() == [5, 27, 28, 29]


def test_a_product_with_no_vector():
    assert client.product(begun(), VECTORS[:, :0], 1)["product"].shape == (6, 0)


def test_points_are_counted_as_rows_that_are_shared():
    asked, _ = trained()
    asked.consent = limited(4)
    with pytest.raises(PartyError, match=r"consent .* 4 rows"):
        clustering.sample(asked, 5)
    asked, H = trained()
    asked.consent = limited(N)
    reply = clustering.sample(asked, N)
    np.testing.assert_allclose(reply["points"], H, atol=1e-12)
    assert reply["weights"].tolist() == [1.0] * N


def test_labels_stay_and_sums_leave_which_have_a_bound(monkeypatch):
    asked, H = trained()
    centers = H[[0, 5]]
    reply = clustering.assign(asked, centers)
    distances = ((H[:, None] - centers) ** 2).sum(axis=2)
    labels = distances.argmin(axis=1)
    assert set(reply) == {"inertia", "sizes", "kept"}
    np.testing.assert_allclose(reply["inertia"], [distances.min(axis=1).sum()])
    assert reply["sizes"].tolist() == np.bincount(labels).tolist()
    assert reply["kept"] is False
    np.testing.assert_array_equal(asked.part["labels"], labels)
    np.testing.assert_array_equal(asked.predictions.values, labels)
    given = {name for name, value in asdict(SETUP).items() if value is not None}
    given |= {"n_columns", "columns"}
    assert set(asked.part) == {*given, "seed", "P", "centers", "labels"}
    asked.X = np.tile(asked.X, (2, 1))
    (cost,) = clustering.evaluate(asked)["cost"]
    assert cost == pytest.approx(2 * reply["inertia"][0])
    for largest, rule in ((cost, None), (cost / 2, "must have a finite cost")):
        monkeypatch.setattr(client, "LARGEST_COST", largest)
        with pytest.raises(PartyError, match=rule) if rule else nullcontext():
            clustering.evaluate(asked)


# -- impossible requests ---------------------------------------------------------------

R = np.ones((D_1, 2))
VECTORS = np.ones((D_1, 1))
NO_COLUMN, LARGE = np.ones((N, 0)), np.full((N, 2), 1e300)


def greeted():
    asked = party(allow_plain=True)
    asked.resume({})
    return asked


ready = partial(party, allow_plain=True)


def begun():
    asked = ready()
    first_gram(asked)
    return asked


def cancelled(asked):
    """Return R whose product with the features of the party is 0 but for rounding."""
    return np.linalg.svd(features_of(asked, 1))[2][-1:].T


def begun_at_0():
    """Return a party after the first iteration, whose rows are all alike."""
    asked = ready()
    asked.X = 0 * asked.X
    first_gram(asked)
    return asked


def without_cem():
    asked = ready()
    client.project(asked, np.ones(N), 1, setup=SETUP, seed=SEED)
    return asked


def embedded():
    return trained()[0]


def starts(step=client.gram, *, seed=SEED, R=None, t=1, **changes):
    setup = replace(SETUP, **changes)
    return lambda asked: step(asked, t=t, R=R, setup=setup, seed=seed)


def with_sum():
    return summed()[0]


def passing(**values):
    return lambda asked: clustering.lloyd(asked, **{"centers": _ONE} | values)


OUT_OF_ORDER = "earlier step"
TOGETHER = "last and sizes must be given together"
REFUSED = [
    (greeted, lambda p: client.gram(p, 1, setup=SETUP), OUT_OF_ORDER),
    (greeted, lambda p: client.expand(p, np.ones(D_1)), OUT_OF_ORDER),
    (begun, client.begin, "before the iterations"),
    # Iterations.
    (ready, starts(t=2), "t must be 0 or 1, got 2"),
    (ready, starts(R=R), "R must be given if and only if cem is"),
    (ready, lambda p: client.gram(p, 1, seed=SEED), "setup"),
    (ready, starts(seed=None), "seed .* 32 hexadecimal digits"),
    (ready, starts(seed=SEED[:-1]), "seed .* 32 hexadecimal digits"),
    (ready, starts(seed=b"\xff" * 32), "seed .* 32 hexadecimal digits"),
    (ready, starts(seed=b"1_" * 16), "seed .* 32 hexadecimal digits"),
    (ready, starts(shift=np.zeros(2)), "shift and scale"),
    (ready, starts(scale=np.full(2, 1e308), shift=-np.ones(2) * 1e308), "finite"),
    (ready, starts(gamma=5e-324, kernel="laplacian"), "features must be finite"),
    (ready, starts(gamma=1e308, kernel="laplacian"), "features must be finite"),
    (begun, lambda p: client.gram(p, 2), "R must be given"),
    (begun, lambda p: client.gram(p, 3, R), "t must be 1 or 2, got 3"),
    (begun, lambda p: client.gram(p, 2, R, SETUP), "setup"),
    (begun, lambda p: client.gram(p, 2, R[1:]), "R must have 6 rows"),
    (begun, lambda p: client.gram(p, 2, R[:, :0]), "and 1 to 6 columns"),
    (begun, lambda p: client.gram(p, 2, np.ones((6, 7))), "and 1 to 6"),
    (begun, lambda p: client.gram(p, 2, R * 1e308), "R must be small"),
    (begun, lambda p: client.gram(p, 2, R * 1e150), "R must be small"),
    # The product alone is too large, or the map of the embedding.
    (begun, lambda p: client.gram(p, 2, R * 3.5e144), "R must be small"),
    (begun_at_0, lambda p: client.gram(p, 2, 1e150 * cancelled(p)), "R must be small"),
    (begun, lambda p: client.product(p, VECTORS), "first product"),
    (begun, lambda p: client.product(p, VECTORS[1:], 1), "vectors must"),
    (begun, lambda p: client.product(p, np.ones((6, 7)), 1), "vectors must"),
    (begun, lambda p: client.project(p, np.ones(N), 2), "must not change"),
    (without_cem, lambda p: client.gram(p, 2, R), "must not change"),
    (without_cem, lambda p: client.gram(p, 1, setup=SETUP), "must not change"),
    (ready, lambda p: client.expand(p, np.ones(D_1)), "first iteration"),
    (without_cem, lambda p: client.expand(p, np.ones(D)), "g must have"),
    (without_cem, lambda p: client.expand(p, np.full(D_1, 1e308)), "g must be small"),
    # k-means.
    (ready, lambda p: clustering.local(p, 2, R), "once, after iter"),
    (embedded, lambda p: clustering.local(p, 2, R), "once"),
    (embedded, lambda p: client.gram(p, 3, R), "iterations are finished"),
    (begun, lambda p: clustering.local(p, 2), "R if cem is true, and H o"),
    (begun, lambda p: clustering.local(p, 2, H=np.ones((N, 2))), "R if cem is true,"),
    (begun, lambda p: clustering.local(p, 2, R, np.ones((N, 2))), "R if cem is true"),
    (begun, lambda p: clustering.local(p, 2, R[1:]), "R must have 6 rows"),
    (begun, lambda p: clustering.local(p, 2, R * 1e150), "R must be small"),
    (without_cem, lambda p: clustering.local(p, 2, R), "R if cem is true, and H"),
    (without_cem, lambda p: clustering.local(p, 2, H=NO_COLUMN), "at least one column"),
    (without_cem, lambda p: clustering.local(p, 2, H=LARGE), "H must be small"),
    (begun, lambda p: clustering.sample(p, 2), "must be computed before"),
    (begun, lambda p: clustering.assign(p, np.ones((2, 2))), "must be computed before"),
    (embedded, lambda p: clustering.assign(p, np.ones((2, 3))), "centers must have"),
    # k-means by sums.
    (with_sum, lambda p: clustering.sample(p, 5), "clusters must be computed before"),
    (with_sum, lambda p: clustering.embed(p, R), "be computed only once, after"),
    (ready, passing(), "the embedding must be computed before"),
    (with_sum, passing(centers=np.zeros((1, 1, 3))), "centers must have 2 .*, got 3"),
    (with_sum, passing(centers=np.zeros((2**17 + 1, 1, 2))), "at most 131072, got"),
    (with_sum, passing(last=np.zeros((1, 1, 2))), TOGETHER),
    (with_sum, passing(sizes=np.ones((1, 1), int)), TOGETHER),
]


@pytest.mark.parametrize(("made", "ask", "rule"), REFUSED)
def test_a_request_that_cannot_be_is_refused(made, ask, rule):
    asked = made()
    with pytest.raises(PartyError, match=rule):
        ask(asked)


@pytest.mark.parametrize(
    ("made", "ask"),
    [(party, client.begin), (with_sum, passing()), (embedded, clustering.evaluate)],
)
def test_sums_over_all_rows_count_as_row_sums(made, ask):
    asked = made()
    asked.X, asked.consent = np.resize(asked.X, (20, 2)), limited(19)
    with pytest.raises(PartyError, match=r"at most 19 rows .* as row-sums"):
        ask(asked)


_SETUP = {f"setup.{k}": v for k, v in asdict(SETUP).items() if v is not None}
_GRAM = {"t": 1, **_SETUP, "seed": SEED}
_ONE = np.zeros((1, 1, 2))
_PASS = {"centers": _ONE, "last": _ONE, "sizes": np.ones((1, 1), int)}
_SIZES = {"n_rows": N, "n_columns": 2, "n_parties": 3}


@pytest.mark.parametrize(
    ("step", "values", "name"),
    [
        (client.begin, {"squares": "row"}, "squares"),
        (client.begin, {"shift": np.zeros(3)}, "shift"),
        (client.gram, {**_GRAM, "t": 0}, "t"),
        (client.gram, {**_GRAM, "setup.kernel": "cosine"}, "kernel"),
        (client.gram, {**_GRAM, "setup.gamma": 0.0}, "gamma"),
        (client.gram, {**_GRAM, "setup.D": 0}, "D"),
        (client.gram, {**_GRAM, "setup.scale": np.ones(3)}, "scale"),
        (client.product, {"vectors": np.ones(3)}, "vectors"),
        (client.project, {"t": 1, "c": np.ones(N - 1)}, "c"),
        (client.expand, {"g": np.ones((2, 2))}, "g"),
        (clustering.local, {"n_clusters": 0}, "n_clusters"),
        (clustering.local, {"n_clusters": 2**40}, "n_clusters"),
        (clustering.local, {"n_clusters": 2, "H": np.ones((N - 1, 2))}, "H"),
        (clustering.sample, {"count": -1}, "count"),
        (clustering.assign, {"centers": np.ones((0, 2))}, "centers"),
        (clustering.assign, {"centers": np.ones((4092, 2))}, "centers"),
        (clustering.lloyd, {**_PASS, "last": np.zeros((1, 2, 2))}, "last"),
        (clustering.lloyd, {**_PASS, "sizes": np.ones((2, 1), int)}, "sizes"),
        (clustering.lloyd, {**_PASS, "sizes": -np.ones((1, 1), int)}, "sizes"),
        (clustering.lloyd, {**_PASS, "sizes": np.ones((1, 1))}, "sizes"),
    ],
)
def test_a_request_that_is_not_as_declared(step, values, name):
    with pytest.raises(ContractError, match=f"'{name}'"):
        structure(step.contract.request, values, dict(_SIZES))


def test_a_request_as_declared():
    """What the table above differs from."""
    for step, values in ((client.gram, _GRAM), (clustering.lloyd, _PASS)):
        taken = structure(step.contract.request, values, dict(_SIZES))
        np.testing.assert_equal(flatten(taken), values)


# -- k-means by sums -------------------------------------------------------------------


def summed():
    """Return a party that has made the embedding for sums, and its sum."""
    asked = party()
    R = embed(*eigenpairs(full(first_gram(asked)), 0.2, 2), 1.0, 0.2, 2)
    return asked, clustering.embed(asked, R)["sum_h"], features_of(asked, 1) @ R


def test_the_sum_of_the_embedding():
    asked, sum_h, product = summed()
    np.testing.assert_allclose(sum_h, product.sum(axis=0) / math.sqrt(D_1), atol=1e-12)
    np.testing.assert_allclose(asked.recall(State).H.sum(axis=0), sum_h)


def test_a_pass_says_the_same_where_it_is_asked_for_again():
    """Other centres, however near, have other coins and other noise."""
    asked, _, _ = summed()
    centers, sizes = np.zeros((2, 1, 2)), np.full((2, 1), 30)
    first = clustering.lloyd(asked, centers, centers, sizes)
    again = clustering.lloyd(asked, centers.copy(), centers, sizes)
    other = clustering.lloyd(asked, centers + 1e-12, centers, sizes)
    assert set(first) == {"inertia", "sizes", "counts", "sums"}
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert (first["sums"] != other["sums"]).all()
    np.testing.assert_array_equal(first["sizes"], [[N], [N]])
    assert (first["sums"][0] != first["sums"][1]).all()  # nor do starts share them
    asked.private_draws, asked.run_secret = True, bytes(32)
    secret = clustering.lloyd(asked, centers, centers, sizes)
    assert (first["sums"] != secret["sums"]).all()
