"""Federated kernel k-means end to end: pooled references, costs, faults, bad input."""

import functools
import logging
import math
import re
from contextlib import nullcontext
from typing import Any, get_args

import numpy as np
import pytest
from draws import stream
from faults import Changed, of_all, of_party
from scipy.linalg import subspace_angles
from scipy.spatial.distance import cdist
from sklearn.metrics import adjusted_rand_score

from simulations.kernel_pooled import pooled_fkkm
from vfl_flower import FederationError, Ledger, Party, PartyFailed
from vfl_flower.clients.kernel_kmeans import clustering as client
from vfl_flower.clients.kernel_kmeans.training import State
from vfl_flower.models.kernel_kmeans import KernelKMeansModel
from vfl_flower.numerics import summed_kmeans as numerics
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import cluster_summary
from vfl_flower.numerics.distributed_kmeans import combine, sample, split_budget
from vfl_flower.numerics.kernel_embedding import Kernel, feature_blocks
from vfl_flower.numerics.kernel_kmeans import (
    default_threshold,
    feature_range,
    first_features,
)
from vfl_flower.numerics.kmeans import assign
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError, structure
from vfl_flower.server.strategy import ProtocolResult, Run
from vfl_flower.simulation import InProcessGrid, simulate
from vfl_flower.strategies import FKKMeans
from vfl_flower.strategies.kernel_kmeans import training
from vfl_flower.testing import Recorder

N, D, T, K, S = 120, 20, 3, 4, 5
SEED = 1
SPLITS = {1: (120,), 3: (40, 50, 30), 5: (1, 30, 29, 20, 40)}
"""Rows of the parties; of five, one has a single row."""
EVERY_ROW = 100 * N
"""A coreset that every party sends all its rows for."""
NAMES = ("airline", "weather", "registry", "bank", "shop")


@functools.cache
def data(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=n)
    return 3 * rng.normal(size=(4, 5))[truth] + rng.normal(size=(n, 5)), truth


def parts_of(X: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the rows of each party, in the shares of SPLITS."""
    return np.split(X, np.cumsum(SPLITS[count])[:-1] * len(X) // N)


def by_rows(count: int = 3, X: np.ndarray | None = None) -> list[Party]:
    blocks = parts_of(data()[0] if X is None else X, count)
    return [Party(x, name=name) for x, name in zip(blocks, NAMES, strict=False)]


def strategy(**settings: Any) -> FKKMeans:
    small = {"n_clusters": K, "n_components": S, "n_features": D, "iterations": T}
    small |= {"subspace_tol": 0.0, "n_init": 3, "seed": SEED}
    small |= {"clustering": "coreset"}  # the default has a section of its own
    return FKKMeans(**small | settings)


@functools.cache
def run(count: int = 3, **settings: Any) -> ProtocolResult:
    return simulate(strategy(**settings), by_rows(count))


def embedding(result: ProtocolResult, X: np.ndarray | None = None) -> np.ndarray:
    return result.model.transform(data()[0] if X is None else X)


def trips(ledger: Ledger) -> dict[str, int]:
    return {action: len(waits) for action, waits in ledger.waits.items()}


def uploaded(ledger: Ledger, action: str) -> list[int]:
    entries = ledger.entries.values()
    return [e.units_up for e in entries if e.action == f"kernel_kmeans_{action}"]


def column(result: ProtocolResult, name: str) -> list[Any]:
    """Return a metric of the iterations 1 to T."""
    metrics = result.train_metrics_clientapp
    return [metrics[t][name] for t in range(1, len(metrics))]


def ranks(result: ProtocolResult) -> list[int]:
    """Return r_1 .. r_T; the one recorded at t is that of B_{t+1}."""
    return [0, *column(result, "rank")[:-1]]


# -- against a pooled reference --------------------------------------------------------


@functools.cache
def pooled(count: int, coreset_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return H, and labels, of all rows in one place with the same draws."""
    (X, _), part = data(), run(count, masking="plain").model.parts[0]

    def draw(t: int) -> np.ndarray:
        wanted = feature_range(t, D, first_features(D, S))
        return np.concatenate(list(feature_blocks(part, X, *wanted)))

    *_, last = pooled_fkkm(draw, T, S, None)
    blocks = list(enumerate(map(RowBlocks, parts_of(last.H, count))))
    local = [cluster_summary(block, K, stream(SEED, m, "local")) for m, block in blocks]
    costs = np.array([clusters.costs.sum() for clusters in local])
    shares = split_budget(costs, coreset_size)
    samples = [
        sample(block, local[m], int(shares[m]), stream(SEED, m, "sample"))
        for m, block in blocks
    ]
    points, weights = (np.concatenate(arrays) for arrays in zip(*samples, strict=True))
    centers = combine(points, weights, K, Run(SEED).rng("k-means"), 3)
    return last.H, assign(last.H, centers)[0]


@pytest.mark.parametrize(
    ("eigensolver", "count", "masking"),
    [
        ("gram", 1, "plain"),
        ("gram", 3, "ring"),
        ("gram", 5, "ring"),
        ("lanczos", 3, "ring"),
    ],
)
def test_subspace_and_labels_of_a_pooled_run(count, masking, eigensolver):
    """Of 30 draws for the coreset, so that parties' draws count too."""
    H, labels = pooled(count, 30)
    result = run(count, eigensolver=eigensolver, masking=masking, coreset_size=30)
    assert subspace_angles(embedding(result), H)[0] < 1e-6
    actual = embedding(result)
    np.testing.assert_allclose(actual @ actual.T, H @ H.T, atol=1e-7)
    assert [len(of_party) for of_party in result.model.labels_] == list(SPLITS[count])
    np.testing.assert_array_equal(np.concatenate(result.model.labels_), labels)
    assert result.ledger.clipped == 0


# -- without the communication mechanism -----------------------------------------------

WITHOUT = {"cem": False, "eigensolver": "lanczos", "masking": "plain"}
WITHOUT |= {"iterations": 2}


def test_without_the_mechanism_the_result_is_the_same():
    """With a threshold as a number both are one algorithm (Theorem 2).

    But for new rows, which only the mechanism labels.
    """
    fast, slow = (
        run(threshold=1.0, coreset_size=30, **settings)
        for settings in ({"masking": "plain", "iterations": 2}, WITHOUT)
    )
    actual, expected = slow.model.eigenvalues_, fast.model.eigenvalues_
    np.testing.assert_allclose(actual, expected, rtol=1e-8)
    np.testing.assert_equal(slow.model.labels_, fast.model.labels_)
    assert math.isclose(slow.metrics["inertia"], fast.metrics["inertia"], rel_tol=1e-6)
    np.testing.assert_allclose(column(slow, "moved"), column(fast, "moved"), rtol=1e-5)
    assert column(slow, "rank") == column(fast, "rank")
    for ask in (slow.model.predict, slow.model.transform):
        with pytest.raises(ValueError, match="with cem, on split rows, can label new"):
            ask(data()[0])


@pytest.mark.parametrize(
    ("distance", "threshold"), [(1e-8, "auto"), (1e-7, 1e-9), (1e-6, "auto")]
)
def test_without_the_mechanism_rows_may_be_nearly_the_same(distance, threshold):
    """Eigenvalues beside the rounding of N rows, and below that of D features."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(2, 3)), 4, axis=0)
    X += distance * rng.normal(size=X.shape)
    settings = {"n_clusters": 2, "n_components": 4, "n_features": 500}
    result = simulate(strategy(threshold=threshold, **settings, **WITHOUT), [Party(X)])
    (labels,) = result.model.labels_
    assert adjusted_rand_score(np.repeat([0, 1], 4), labels) == 1


def first_eigenvalues(result: ProtocolResult, count: int) -> np.ndarray:
    """Return the eigenvalues of W_1 W_1^T, by the features of its parties."""
    (X, _), part = data(), result.model.parts[0]
    A = np.concatenate(list(feature_blocks(part, X, 0, count)))
    return np.linalg.eigvalsh(A @ A.T / count)[::-1]


def test_the_threshold_without_the_mechanism():
    """The server has no Gram matrix, and takes the mean of its trace, N."""
    count = first_features(D, S)
    actual = run(**WITHOUT | {"iterations": 1}).metrics["threshold"]
    # The parties' parts have no map, but the same features as those of another run.
    values = first_eigenvalues(run(masking="plain"), count)
    assert actual == pytest.approx(default_threshold(values, N, count, S), rel=1e-6)


@pytest.mark.parametrize(
    ("eigensolver", "components"), [("gram", K), ("lanczos", K + 4)]
)
def test_the_threshold_of_the_paper(eigensolver, components):
    """The (k + 2)-th eigenvalue of the first iteration, with fewer components too."""
    settings = {"threshold": "paper", "n_components": components, "iterations": 1}
    result = run(eigensolver=eigensolver, **settings)
    expected = first_eigenvalues(result, D)[K + 1]
    assert result.metrics["threshold"] == pytest.approx(expected, rel=1e-6)


# -- what it costs ---------------------------------------------------------------------


def test_floats_of_gram():
    """(D + r)(D + r + 1) / 2 a party and iteration; D_1 = 4 (s + 5) in the first."""
    count, result = 3, run()
    sizes = [first_features(D, S), *(D + r for r in ranks(result)[1:])]
    expected = sum(size * (size + 1) // 2 for size in sizes)
    assert uploaded(result.ledger, "gram") == [expected] * count
    steps = {"begin": 1, "gram": T, "local": 1, "sample": 1, "assign": 1}
    expected = {f"kernel_kmeans_{action}": count for action, count in steps.items()}
    assert trips(result.ledger) == {"hello": 1} | expected
    assert result.ledger.round_trips == 1 + (T + 1) + 3
    assert set(column(result, "products")) == {1}


def test_floats_of_lanczos():
    """Theorem 2: D + r_t a party and product."""
    count = 3
    result = run(count, eigensolver="lanczos", threshold=1.0, iterations=3)
    products = column(result, "products")
    expected = sum(q * (D + r) for q, r in zip(products, ranks(result), strict=True))
    assert uploaded(result.ledger, "product") == [expected] * count
    assert trips(result.ledger)["kernel_kmeans_product"] == sum(products)
    assert result.ledger.round_trips == 1 + 1 + sum(products) + 3
    assert len(set(ranks(result))) > 2  # or the formula were tested with constants


def test_floats_without_the_mechanism():
    """Theorem 2: D a party and N of all, a product, in two round trips."""
    result = run(threshold=1.0, coreset_size=30, **WITHOUT)
    products = sum(column(result, "products"))
    assert uploaded(result.ledger, "project") == [products * D] * 3
    assert uploaded(result.ledger, "expand") == [products * rows for rows in SPLITS[3]]
    assert result.ledger.round_trips == 1 + 1 + 2 * products + 3


def test_the_setup_is_sent_once_without_the_mechanism():
    grid = Recorder(by_rows(1))
    strategy(**WITHOUT | {"iterations": 1}).start(grid)
    sent = [e for e in grid.transcript if e.action == "kernel_kmeans_project"]
    sent = [e.values for e in sent if not e.up]
    assert len(sent) > 4
    setups = ["setup.kernel" in values for values in sent]
    assert setups == [True] + [False] * (len(sent) - 1)
    assert not any(name.startswith("seed") for values in sent[1:] for name in values)


def test_floats_of_the_k_means():
    """Points and weights of the draws and of a party's own centres; sums of k + 1."""
    result = run(coreset_size=30)
    assert uploaded(result.ledger, "local") == [0] * 3
    assert uploaded(result.ledger, "assign") == [K + 1] * 3
    sent = np.array(uploaded(result.ledger, "sample"))
    assert (sent % (S + 1) == 0).all()
    assert sent.sum() <= (30 + 3 * K) * (S + 1)


# -- bad input: the constructor --------------------------------------------------------

POSITIVE = "n_clusters", "n_features", "iterations", "coreset_size", "n_init"
SUMS = {"clustering": "sums"}
CHOSEN = SUMS | {"choose_clusters": True}
CEM = "cem can be false only with eigensolver 'lanczos' and masking 'plain'"


@pytest.mark.parametrize(
    ("settings", "argument", "rule"),
    [
        *(({name: 0}, name, "at least 1") for name in POSITIVE),
        ({"n_clusters": 6, "n_components": 5}, "n_components", "n_clusters = 6"),
        ({"n_components": 1020}, "n_components", "at most 1019"),
        ({"n_features": 2**12 + 1}, "n_features", "at most"),
        ({"threshold": "paper", "n_features": 5}, "n_features", "n_clusters .* = 6"),
        *(({name: 0.0}, name, "above 0") for name in ("gamma", "threshold")),
        ({"subspace_tol": -0.1}, "subspace_tol", "at least 0"),
        ({"kernel": "polynomial"}, "kernel", "one of 'gaussian', 'laplacian'"),
        ({"n_parties": 1}, "n_parties", "at least 2"),
        ({"cem": False}, CEM, "got 'gram' and 'ring'"),
        ({"cem": False, "eigensolver": "lanczos"}, CEM, "got 'lanczos' and 'ring'"),
        ({"clustering": "means"}, "clustering", "one of"),
        ({"passes": 3}, "passes", "no effect with clustering 'coreset'"),
        ({"choose_clusters": True}, "choose_clusters", "no effect with clustering"),
        (SUMS | {"coreset_size": 30}, "coreset_size", "no effect with .* 'sums'"),
        (SUMS | {"passes": 0}, "passes", "at least 1"),
        (SUMS | {"n_init": 2**16}, "n_init", f"at most {2**17 // K} with {K} clusters"),
        (CHOSEN | {"n_clusters": 1}, "n_clusters", "at least 2"),
        (CHOSEN | {"n_init": 2**15}, "n_init", f"at most {2**17 // 12} with {K} clus"),
    ],
)
def test_wrong_arguments(settings, argument, rule):
    with pytest.raises(ValueError, match=rule) as caught:
        strategy(**settings)
    assert str(caught.value).startswith(argument)


# -- bad input: the data ---------------------------------------------------------------


def refusal(federation: list[Party], **settings: Any) -> tuple[str, int]:
    """Return why a run ends, and how many messages it has cost."""
    grid = InProcessGrid(federation)
    with pytest.raises(FederationError) as caught:
        strategy(**settings).start(grid, timeout=0.1)
    return str(caught.value), grid._pushed


def split(X: np.ndarray) -> list[Party]:
    return [Party(x) for x in np.array_split(X, 3)]


def test_as_many_clusters_as_rows():
    settings = {"n_clusters": 9, "n_components": 9}
    result = simulate(strategy(**settings), split(data()[0][:9]))
    assert sorted(np.concatenate(result.model.labels_)) == list(range(9))


NEIGHBOURS = np.where(np.arange(30) % 2, 1e9, np.nextafter(1e9, 2e9))[:, None]
"""Two neighbours among the float64 numbers: their difference is that of rounding."""


@pytest.mark.parametrize(
    ("made", "settings", "rule", "messages"),
    [
        (
            lambda: split(data()[0][:9]),
            {"n_clusters": 10, "n_components": 10},
            "n_clusters must be at most 9, the number of rows .* got 10",
            3,
        ),
        (by_rows, {"coreset_size": 2}, "coreset_size must be at least ", 3),
        (lambda: split(data()[0][:19]), SUMS, ".*20 rows at all parties .* got 19", 3),
        (lambda: by_rows(1), {}, ".*needs 2 parties", 0),
        (lambda: split(NEIGHBOURS), {}, "gamma needs a column that varies", 9),
        (by_rows, {"threshold": 1e9}, "threshold must be below the largest", 9),
        (lambda: by_rows(X=1e-12 * data()[0]), {}, ".*add up to at least 1e-15", 6),
    ],
)
def test_what_the_data_forbid(made, settings, rule, messages):
    sentence, sent = refusal(made(), **settings)
    assert re.match(rule, sentence)
    assert sent == messages


@pytest.mark.parametrize(
    ("kernel", "value"), [("gaussian", 0.0), ("laplacian", 0.1), ("gaussian", 1e7 / 3)]
)
def test_constant_data(kernel, value):
    federation = split(np.full((30, 2), value))
    for standardize in (False, True):
        settings = {"kernel": kernel, "standardize": standardize}
        sentence, messages = refusal(federation, **settings)
        assert sentence.startswith("gamma needs a column that varies")
        again = value and not standardize  # in case they are only far
        assert standardize or messages == (9 if again else 6)


@pytest.mark.parametrize(
    ("kernel", "eigensolver"), [("gaussian", "gram"), ("laplacian", "lanczos")]
)
def test_rows_that_are_all_the_same(kernel, eigensolver):
    """With a gamma there is a kernel matrix, of rank 1, and no distances."""
    settings = {"kernel": kernel, "gamma": 0.5, "eigensolver": eigensolver}
    settings |= {"iterations": 2}
    result = simulate(strategy(**settings), split(np.full((30, 3), 0.1)))
    assert column(result, "rank") == [1] * 2
    assert math.isclose(result.metrics["inertia"], 0, abs_tol=1e-9)
    assert sum(len(labels) for labels in result.model.labels_) == 30


def test_fewer_rows_than_components():
    """The rank of K is then below s: the components beyond it are noise, not NaN."""
    X = data()[0][:9]
    settings = {"n_components": 12, "n_clusters": 3, "coreset_size": EVERY_ROW}
    settings |= {"iterations": 2}
    result = simulate(strategy(eigensolver="lanczos", **settings), split(X))
    exact = simulate(strategy(**settings), split(X))
    H, expected = embedding(result, X), embedding(exact, X)
    assert np.isfinite([H, expected]).all()
    np.testing.assert_allclose(H @ H.T, expected @ expected.T, atol=1e-6)
    np.testing.assert_equal(result.model.labels_, exact.model.labels_)


@pytest.mark.parametrize("threshold", [1.0, "auto"])
def test_one_feature_an_iteration(threshold):
    result = run(n_features=1, threshold=threshold, iterations=3)
    assert np.isfinite(embedding(result)).all()


# -- the model -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4), (5,), (3, 6)])
def test_rows_of_other_columns(shape):
    with pytest.raises(ValueError, match="must be a matrix with 5 columns") as caught:
        run().model.predict(np.zeros(shape))
    assert str(shape) in str(caught.value)


def test_the_models_of_all_iterations_are_seen():
    seen = {}

    def evaluate(t, arrays):
        seen[t] = KernelKMeansModel.from_arrays(arrays)

    result = strategy().start(InProcessGrid(by_rows()), evaluate_fn=evaluate)
    assert list(seen) == list(range(T + 2))
    assert not seen[0].eigenvalues_.size
    assert {seen[t].cluster_centers_.shape for t in range(T + 1)} == {(0, 0)}
    np.testing.assert_equal(seen[T + 1].arrays(), result.model.arrays())
    np.testing.assert_equal(seen[T].eigenvalues_, result.model.eigenvalues_)


def test_what_is_recorded():
    result = run(coreset_size=EVERY_ROW)
    labels = np.concatenate(result.model.labels_)
    sizes = np.bincount(labels, minlength=K)
    inertia = ((embedding(result) - result.model.cluster_centers_[labels]) ** 2).sum()
    assert math.isclose(result.metrics["inertia"], inertia, rel_tol=1e-9)
    assert result.metrics["smallest_cluster"] == sizes.min()
    assert result.metrics["largest_cluster"] == sizes.max()
    assert result.metrics["iterations"] == T
    assert [value for *_, value in result.traces["moved"]] == column(result, "moved")
    assert result.model.cluster_centers_.shape == (K, S)


def test_labels_are_written_where_all_have_a_state_dir(tmp_path):
    federation = by_rows()
    for party in federation:
        party.state_dir = tmp_path / str(party.name)
        party.state_dir.mkdir()
    without = Party(federation[2].X, name=federation[2].name)
    assert not simulate(strategy(), [*federation[:2], without]).model.kept
    model = simulate(strategy(), federation).model
    assert model.kept
    assert model.n_columns == 5
    for party, labels in zip(federation, model.labels_, strict=True):
        (path,) = party.state_dir.glob(f"predictions-{model.id}.csv")
        written = np.loadtxt(path, delimiter=",", skiprows=1)[:, 1]
        np.testing.assert_array_equal(written, labels)


# -- gamma, and the scale of columns ---------------------------------------------------


def numpy_gamma(kernel: str, X: np.ndarray) -> float:
    if kernel == "gaussian":
        return float(len(X) ** 2 / (2 * cdist(X, X, "sqeuclidean").sum()))
    return float(1 / (2 / math.sqrt(math.pi) * X.std(axis=0).sum()))


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("kernel", get_args(Kernel))
def test_gamma_is_that_of_all_rows(kernel, standardize):
    X, _ = data()
    if standardize:
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    result = run(kernel=kernel, standardize=standardize)
    assert math.isclose(result.model.gamma, numpy_gamma(kernel, X), rel_tol=1e-9)
    assert result.model.gamma == result.metrics["gamma"]


def test_columns_of_any_scale_are_standardised():
    """One resolution for all sums would leave nothing of the small ones."""
    scaled = data()[0] * 10.0 ** np.array([-6, -3, 0, 5, 9])
    model = simulate(strategy(standardize=True), by_rows(X=scaled)).model
    expected = run(standardize=True).model
    np.testing.assert_allclose(model.eigenvalues_, expected.eigenvalues_, rtol=1e-9)
    np.testing.assert_equal(model.labels_, expected.labels_)


@pytest.mark.parametrize(
    ("kernel", "standardize"),
    [("gaussian", False), ("laplacian", False), ("gaussian", True)],
)
def test_columns_far_from_0_are_asked_for_again_less_their_mean(kernel, standardize):
    """Seconds since 1970: nothing of their spread is left in the sum of squares."""
    X, _ = data()
    far = X.copy()
    far[:, 1] += 2.0**32  # a power of two: no bit of the result is lost but the last 20
    settings = {"kernel": kernel, "standardize": standardize}
    result = simulate(strategy(**settings), by_rows(X=far))
    near = run(**settings)
    assert trips(result.ledger)["kernel_kmeans_begin"] == 2
    assert result.ledger.round_trips == near.ledger.round_trips + 1
    scaled = (X - X.mean(axis=0)) / X.std(axis=0) if standardize else X
    assert math.isclose(result.model.gamma, numpy_gamma(kernel, scaled), rel_tol=1e-6)
    if not standardize:
        labels = np.concatenate(result.model.labels_)
        assert adjusted_rand_score(data()[1], labels) > 0.95
    else:
        part = result.model.parts[0]
        np.testing.assert_allclose(part["shift"], far.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(part["scale"], 1 / X.std(axis=0), rtol=1e-6)
        np.testing.assert_equal(result.model.labels_, near.model.labels_)


def test_gamma_of_scaled_columns_is_in_their_unit():
    """The rounding of a mean of 1e17 is 20, and nothing beside a deviation of 1e10."""
    X = data()[0].copy()
    X[:, 1] = 1e17 + 1e10 * X[:, 1]
    model = simulate(strategy(standardize=True), by_rows(X=X)).model
    assert math.isclose(model.gamma, run(standardize=True).model.gamma, rel_tol=1e-6)


def test_parties_learn_the_means_only_of_columns_far_from_0():
    """Of those whose squares are summed one by one."""
    X = data()[0].copy()
    X[:, 1] += 2.0**32
    grid = Recorder(by_rows(X=X))
    strategy(kernel="laplacian").start(grid)
    shifts = [e.values["shift"] for e in grid.transcript if "shift" in e.values]
    assert len(shifts) == 3
    assert (shifts[0] != 0).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("settings", "floats"),
    [
        ({}, 5 * 6),
        ({"kernel": "laplacian"}, 10 * 5),
        ({"gamma": 0.1}, 0),
        ({"gamma": 0.1, "kernel": "laplacian"}, 0),
        ({"standardize": True}, 10 * 5),
        ({"gamma": 0.1, "standardize": True}, 10 * 5),
    ],
)
def test_floats_of_begin(settings, floats):
    """What is used and no more; the first party sends 48 bytes for each other too."""
    result = run(**settings)
    assert uploaded(result.ledger, "begin") == [floats + 48 * 2, floats, floats]
    assert result.model.gamma == settings.get("gamma", result.model.gamma)
    assert trips(result.ledger)["kernel_kmeans_begin"] == 1


@pytest.mark.parametrize(
    ("kernel", "settings"), [("gaussian", {}), ("laplacian", {"coreset_size": 20})]
)
def test_equal_rows_have_equal_labels_where_there_are_more_clusters(kernel, settings):
    """Of 120 rows four are distinct: rounding says nothing of which of six is whose."""
    rows = data()[0][:4]
    which = np.random.default_rng(0).integers(4, size=N)
    small = {"n_clusters": 6, "n_components": 6, "iterations": 2, "kernel": kernel}
    for seed in range(2):
        seeded = strategy(**small, **settings, seed=seed)
        model = simulate(seeded, by_rows(3, rows[which])).model
        labels = np.concatenate(model.labels_)
        assert adjusted_rand_score(which, labels) == 1
        np.testing.assert_array_equal(model.predict(rows[which]), labels)


# -- the early stop --------------------------------------------------------------------


def test_the_run_ends_when_the_subspace_stands_still():
    """At the first step that moves by less; 0 never ends it."""
    whole = run(iterations=8)
    moved = column(whole, "moved")
    assert len(moved) == whole.metrics["iterations"] == 8
    tol = float(np.median(moved[1:]))
    first = 1 + next(t for t, turned in enumerate(moved) if turned < tol)
    assert 2 <= first < 8
    early = run(iterations=8, subspace_tol=tol)
    assert early.metrics["iterations"] == first
    assert column(early, "moved") == moved[:first]
    assert trips(early.ledger)["kernel_kmeans_gram"] == first


@pytest.mark.parametrize(
    ("eigensolver", "threshold"),
    [("gram", "auto"), ("lanczos", "auto"), ("gram", 1e-6)],
)
def test_no_early_stop_where_the_subspace_has_all_directions(eigensolver, threshold):
    """K of six distinct rows has rank 6: nothing turns, and K is not yet known.

    With 5 components there is a sixth direction, and the subspace turns.
    """
    X = np.tile(np.random.default_rng(0).normal(size=(6, 2)), (N // 6, 1))
    settings = {"eigensolver": eigensolver, "threshold": threshold}
    settings |= {"subspace_tol": 0.01, "iterations": 3, "masking": "plain"}
    for s in (6, 8):
        result = simulate(strategy(n_components=s, **settings), by_rows(1, X))
        assert result.metrics["iterations"] == 3
        assert max(column(result, "moved")[1:]) < 1e-4
    turning = simulate(strategy(n_components=5, **settings), by_rows(1, X))
    assert column(turning, "moved")[1] > 1e-3
    settings["subspace_tol"] = 1e9
    early = simulate(strategy(n_components=5, **settings), by_rows(1, X))
    assert early.metrics["iterations"] == 2


def test_an_early_stop_needs_more_directions_than_components():
    """The first has four features for five: only the second can tell that there are."""
    settings = {"n_features": 4, "threshold": 0.5, "subspace_tol": 1e9}
    assert run(iterations=8, **settings).metrics["iterations"] == 2


# -- what a party stumbled over --------------------------------------------------------


def test_columns_that_standardizing_leaves_out_are_named(caplog):
    """A constant one, and one that varies by its last bit alone."""
    varying = data()[0]
    last = 1e13 * (1 + np.finfo(float).eps * (np.arange(N) % 2))
    X = np.column_stack([varying, np.full(N, 0.1), last])
    caplog.set_level(logging.INFO, "vfl_flower")
    model = simulate(strategy(standardize=True), by_rows(X=X)).model
    (record,) = (r for r in caplog.records if "are ignored" in r.getMessage())
    assert "too little: 5, 6 (0 is the first column" in record.getMessage()
    assert record.levelno == logging.INFO
    zeros = np.column_stack([varying, np.zeros((N, 2))])
    without = simulate(strategy(standardize=True), by_rows(X=zeros)).model
    np.testing.assert_allclose(model.eigenvalues_, without.eigenvalues_, rtol=1e-9)
    np.testing.assert_equal(model.labels_, without.labels_)


# -- replies that cannot be ------------------------------------------------------------

STEPS = "kernel_kmeans_"
TINY = {"n_features": 4, "iterations": 2, "n_init": 1, "n_components": K}
PLAIN = {"masking": "plain"}
LANCZOS = {"eigensolver": "lanczos"}


other = functools.partial(of_party, 1)


def garbage(values):
    """Return other words, under which masks do not cancel."""
    return np.random.default_rng(3).integers(2**64, size=values.shape, dtype=np.uint64)


def shifted(power):
    """Return a change of masked words whose sum is then off by 2^power units."""
    return lambda values: values + np.uint64(2**power)


def filled(value):
    return lambda values: np.full_like(values, value)


def ninefold(values):
    return values.repeat(9, axis=0)


def wider(values):
    return np.concatenate([values, values[..., -1:]], axis=-1)


def longer(values):
    return np.concatenate([values, values[-1:]])


SECOND = [
    ({}, "begin", other(**{"seed.0": np.zeros(48, np.uint8)}), "seed"),
    *(({}, "local", other(cost=cost), "cost") for cost in (-1.0, 1e308)),
    ({}, "sample", other(points=wider), "points of"),
    ({}, "sample", other(points=longer), "shape"),
    ({}, "sample", other(points=lambda p: p[:0], weights=lambda w: w[:0]), "points"),
    ({}, "sample", other(points=ninefold, weights=ninefold), "at most"),
    ({}, "sample", other(points=filled(1e200)), "points no larger"),
    *(({}, "sample", other(weights=filled(w)), "weights") for w in (0.0, 1e300)),
    (WITHOUT, "expand", other(rows=longer), "rows"),
    (SUMS, "embed", other(sum_h=longer), "'sum_h' has shape"),
    (SUMS, "lloyd", other(inertia=longer), "'inertia' must have shape (1), got (2)"),
    (SUMS, "lloyd", other(sizes=longer), "'sizes' must have shape (1, 4)"),
    (SUMS, "lloyd", other(sums=longer), "'sums' must have shape (1, 4, 4)"),
]


def failing(settings, action, change):
    """Return why a run of three parties ends whose replies were changed."""
    grid = Changed(by_rows(), f"{STEPS}{action}", change)
    with pytest.raises(FederationError) as caught:
        strategy(**TINY | settings).start(grid, timeout=1.0)
    return caught.value


@pytest.mark.parametrize(("settings", "action", "change", "rule"), SECOND)
def test_a_reply_that_cannot_be_ends_with_the_name(settings, action, change, rule):
    failure = failing(settings, action, change)
    assert isinstance(failure, PartyFailed)
    assert (failure.party, failure.action) == ("weather", f"{STEPS}{action}")
    assert rule in failure.reason


@pytest.mark.parametrize("values", ["dropped", "of another"])
def test_the_first_party_alone_draws_the_seed(values):
    def change(replies):
        del replies[0]["seed.1"], replies[0]["seed.2"]
        if values == "of another":
            replies[1] |= dict.fromkeys(("seed.0", "seed.2"), np.zeros(48, np.uint8))

    failure = failing({}, "begin", change)
    assert failure.party == ("airline" if values == "dropped" else "weather")
    assert "must be drawn by the first" in failure.reason


@pytest.mark.parametrize(
    ("settings", "action", "change"),
    [
        ({}, "begin", other(sum_x=shifted(63))),
        ({}, "begin", other(sum_squares=shifted(63))),
        ({}, "begin", other(sum_squares=lambda s: s - np.uint64(2**61))),
        ({}, "begin", of_all(sum_squares=wider)),
        ({}, "gram", other(gram=garbage)),
        ({}, "gram", other(gram=shifted(63))),
        ({}, "gram", of_all(gram=longer)),
        *((PLAIN, "gram", of_all(gram=filled(value))) for value in (-1.0, 0.0)),
        (LANCZOS, "product", other(product=shifted(63))),
        (LANCZOS, "product", other(trace=shifted(63))),
        ({**LANCZOS, **PLAIN}, "product", of_all(product=filled(0.0))),
        ({}, "assign", other(inertia=shifted(63))),
        ({}, "assign", other(sizes=shifted(61))),
        (WITHOUT, "project", of_all(projected=longer)),
        (SUMS, "embed", of_all(sum_h=longer)),
        (SUMS, "lloyd", other(sizes=shifted(61))),
    ],
)
def test_a_sum_that_cannot_be_ends_the_run_with_all_names(settings, action, change):
    """Nobody can say whose part was wrong: what the server has is their sum."""
    text = str(failing(settings, action, change))
    assert all(name in text for name in NAMES[:3])
    assert "faulty" in text


def test_eigenvalues_that_are_not_found_end_the_run_with_all_names(monkeypatch):
    def fail(*_):
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr("vfl_flower.numerics.kernel_kmeans.np.linalg.eigh", fail)
    for settings, action in (({}, "gram"), (LANCZOS, "product")):
        text = str(failing(settings, "none", other()))
        assert f"{STEPS}{action}" in text
        assert all(name in text for name in NAMES[:3])


def test_too_many_rows_without_the_mechanism(monkeypatch):
    limit = "vfl_flower.strategies.kernel_kmeans.setup.MOST_ROWS_WITHOUT_CEM"
    monkeypatch.setattr(limit, N - 1)
    sentence, _ = refusal(by_rows(), **WITHOUT)
    assert sentence.startswith("cem must be true for more than 119 rows")


# -- what a clustering says of itself --------------------------------------------------


@pytest.mark.parametrize("clustering", ["sums", "coreset"])
def test_the_cost_beside_that_of_one_cluster(clustering):
    """Of two clouds far apart the two clusters explain most, and have their sizes."""
    X = np.random.default_rng(0).normal(size=(240, 3))
    X[:90] += 6.0
    parties = [Party(rows) for rows in np.array_split(X, 3)]
    settings = {"n_components": 8, "iterations": 3, "n_init": 3}
    strategy = FKKMeans(2, gamma=0.05, clustering=clustering, **settings)
    metrics = simulate(strategy, parties, seed=0).metrics
    assert 0.5 < metrics["explained"] < 1
    assert (metrics["smallest_cluster"], metrics["largest_cluster"]) == (90, 150)
    said = strategy.shortfalls(metrics | {"explained": 0.0})
    assert any(text.startswith("the clusters are no better than a") for text in said)


# -- k-means by sums -------------------------------------------------------------------

A = 6
"""Starts of the k-means by sums."""


def by_sums(**settings: Any) -> FKKMeans:
    return strategy(**SUMS | {"iterations": 2, "n_init": A} | settings)


def many(count: int = 3) -> list[Party]:
    return by_rows(count, data(2 * N)[0])


@pytest.fixture
def whole(monkeypatch):
    """Sum whole clusters: each row of a cluster counts, and there is no noise."""
    for name, value in {"SHARE": 1.0, "NOISE": 0.0, "LEAVERS": 0}.items():
        monkeypatch.setattr(numerics, name, value)


def pooled_sums(kmeans: Any, k: int, H: np.ndarray) -> Any:
    """Return what k-means by sums makes of all rows in one place."""
    mean = H.mean(axis=0)
    moments = mean, H.T @ H / len(H) - np.outer(mean, mean)
    party, server = np.random.default_rng(0), Run(SEED).rng("k-means")
    return kmeans(
        lambda request: numerics.part_of_pass(H, request, party), k, *moments, server, A
    )


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize(("count", "masking"), [(1, "plain"), (5, "ring")])
def test_sums_of_whole_clusters_give_what_pooled_rows_do(count, masking):
    result = simulate(by_sums(masking=masking), many(count))
    H = result.model.transform(data(2 * N)[0])
    pooled = pooled_sums(numerics.summed_kmeans, K, H)
    # The eigenvectors of two spreads that are nearly equal may turn with rounding.
    np.testing.assert_allclose(result.model.cluster_centers_, pooled.centers, atol=1e-5)
    labels = np.concatenate(result.model.labels_)
    np.testing.assert_array_equal(labels, assign(H, pooled.centers)[0])
    assert result.metrics["passes"] == pooled.passes
    assert result.metrics["small_share"] == pytest.approx(pooled.small)


def test_sums_without_the_mechanism():
    settings = {"eigensolver": "lanczos", "masking": "plain", "threshold": 1.0}
    settings |= {"iterations": 1}
    with_it, without = (
        simulate(by_sums(cem=cem, **settings), many(1)).model for cem in (True, False)
    )
    assert without.inertia_ == pytest.approx(with_it.inertia_, rel=0.05)


def halved(passes: int) -> list[int]:
    """Return the starts of each pass: the worse half ends after passes 3, 6, .."""
    return [max(1, A >> max(0, (t - 1) // 3)) for t in range(passes)]


@pytest.mark.parametrize("passes", [1, 6, 20])
def test_round_trips_and_floats_of_sums(passes):
    result = simulate(by_sums(passes=passes), many())
    made = int(result.metrics["passes"])
    assert made == passes if passes < 10 else 4 < made <= 20
    steps = {"begin": 1, "gram": 2, "embed": 1, "lloyd": made, "assign": 1}
    expected = {"hello": 1} | {f"kernel_kmeans_{a}": n for a, n in steps.items()}
    assert trips(result.ledger) == expected
    floats = A * (1 + K) + sum(a * (1 + 2 * K + K * S) for a in halved(made)[1:])
    assert uploaded(result.ledger, "lloyd") == [floats] * 3
    assert uploaded(result.ledger, "embed") == [S] * 3


@pytest.mark.usefixtures("whole")
def test_the_server_chooses_the_number_of_clusters():
    """By the simplified silhouettes of the rows in one place, and their k-means."""
    settings = CHOSEN | {"n_components": 8, "gamma": 0.05}
    result = simulate(by_sums(n_clusters=7, **settings), many())
    H = result.model.transform(data(2 * N)[0])
    pooled = pooled_sums(numerics.chosen_kmeans, 7, H)
    assert result.metrics["clusters"] == len(result.model.sizes_) == 4
    np.testing.assert_allclose(result.model.cluster_centers_, pooled.centers, atol=1e-5)
    assert result.metrics["passes"] == pooled.passes
    for most, warned in ((7, False), (4, True)):
        text = " ".join(by_sums(n_clusters=most, **settings).shortfalls(result.metrics))
        assert ("4 clusters were chosen" in text) == warned


def test_choosing_costs_starts_and_no_round_trip_of_its_own():
    """In each pass a + 1 numbers more for a starts, of all k in one message."""
    most, passes = 6, 5
    settings = CHOSEN | {"n_clusters": most, "n_components": 6, "passes": passes}
    result = simulate(by_sums(**settings), many())
    assert trips(result.ledger)["kernel_kmeans_lloyd"] == passes
    assert result.ledger.round_trips == 1 + 1 + 2 + 1 + passes + 1
    starts = [(most - 1) * a for a in halved(passes)]
    each = 1 + 2 * most + most * 6 + 1
    floats = starts[0] * (2 + most) + sum(a * each for a in starts[1:])
    assert uploaded(result.ledger, "lloyd") == [floats] * 3
    assert uploaded(result.ledger, "assign") == [1 + result.metrics["clusters"]] * 3
    seen = result.ledger.seen["kernel_kmeans_lloyd"]
    assert seen.reply == {"inertia", "sizes", "counts", "sums", "silhouettes"}


@pytest.mark.parametrize(
    ("used", "fits"), [([2, 3], True), ([1, 3], False), ([2, 4], False)]
)
def test_a_start_uses_two_centres_at_least_and_those_that_it_has(used, fits):
    party = Party(data()[0], index=0)
    party.n_parties = 3
    party.remember(State(H=party.X, t=1))
    values = {"centers": np.zeros((2, 3, 5)), "used": np.array(used)}
    refused = pytest.raises((ContractError, PartyError), match="used")
    with nullcontext() if fits else refused:
        client.lloyd(party, **structure(client.lloyd.contract.request, values, {}))


def test_equal_rows_are_one_cluster_by_sums():
    labels = simulate(by_sums(gamma=1.0), split(np.ones((60, 2)))).model.labels_
    assert len(set(np.concatenate(labels))) == 1


def test_no_sum_is_asked_for_of_a_cluster_that_had_fewer_than_20_rows(monkeypatch):
    """Also one of fewer rows now is over rows that may be drawn of 20 at least."""
    passes = []

    def spy(ask, *arguments):
        def asking(request):
            passes.append((request.sizes, ask(request)))
            return passes[-1][1]

        return numerics.summed_kmeans(asking, *arguments)

    monkeypatch.setattr(training, "summed_kmeans", spy)
    simulate(by_sums(n_init=20), many())
    assert any((sizes < numerics.LEAST_ROWS).any() for sizes, _ in passes[1:])
    for sizes, sums in passes[1:]:
        small = sizes < numerics.LEAST_ROWS
        assert np.abs(sums.counts[small]).max(initial=0) < 1e-6
        assert np.abs(sums.sums[small]).max(initial=0) < 1e-6
