"""Federated kernel k-means by sums: references, costs, faults, attacks."""

from itertools import accumulate

import numpy as np
import pytest
from faults import Changed, of_all, of_party

from vfl_flower import FederationError, Party
from vfl_flower.clients.kernel_kmeans import clustering as client
from vfl_flower.clients.kernel_kmeans import training as kernel_kmeans_training
from vfl_flower.numerics import summed_kmeans as numerics
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.summed_kmeans import (
    LEAST_ROWS,
    chosen_kmeans,
    part_of_pass,
    summed_kmeans,
)
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.contract import ContractError, structure
from vfl_flower.server.strategy import Run
from vfl_flower.simulation import InProcessGrid, simulate
from vfl_flower.strategies import FKKMeans
from vfl_flower.strategies.kernel_kmeans import training as strategies

N, K, S, A, SEED = 240, 4, 5, 6, 1
SPLITS = {1: (240,), 3: (80, 130, 30), 4: (60,) * 4, 5: (1, 60, 59, 40, 80)}
"""Rows of the parties; of five, one has a single row."""
NAMES = ("airline", "weather", "registry", "bank", "shop")


def rows():
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=N)
    return 3 * rng.normal(size=(4, 5))[truth] + rng.normal(size=(N, 5)), truth


def parties(count=3):
    blocks = np.split(rows()[0], list(accumulate(SPLITS[count]))[:-1])
    return [Party(x, name=name) for x, name in zip(blocks, NAMES, strict=False)]


def strategy(**settings):
    small = {"n_clusters": K, "n_components": S, "n_features": 20, "iterations": 3}
    small |= {"subspace_tol": 0.0, "n_init": A, "seed": SEED}
    return FKKMeans(**small | settings)


def whole(monkeypatch):
    """Sum whole clusters: each row of a cluster counts, and there is no noise."""
    for name, value in {"SHARE": 1.0, "NOISE": 0.0, "LEAVERS": 0}.items():
        monkeypatch.setattr(numerics, name, value)


# -- against a pooled reference --------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "masking"), [(1, "plain"), (3, "plain"), (3, "ring"), (5, "ring")]
)
def test_sums_of_whole_clusters_give_what_pooled_rows_do(count, masking, monkeypatch):
    whole(monkeypatch)
    result = simulate(strategy(masking=masking), parties(count))
    H = result.model.transform(rows()[0])
    rng, mean = np.random.default_rng(0), H.mean(axis=0)
    pooled = summed_kmeans(
        lambda request: part_of_pass(H, request, rng),
        K,
        mean,
        H.T @ H / N - np.outer(mean, mean),
        Run(SEED).rng("k-means"),
        A,
    )
    # The eigenvectors of two spreads that are nearly equal may turn with rounding.
    np.testing.assert_allclose(result.model.cluster_centers_, pooled.centers, atol=1e-5)
    labels = np.concatenate(result.model.labels_)
    np.testing.assert_array_equal(labels, assign(H, pooled.centers)[0])
    assert result.metrics["passes"] == pooled.passes
    assert result.metrics["small_share"] == pytest.approx(pooled.small)


def test_without_the_mechanism():
    settings = {"eigensolver": "lanczos", "masking": "plain"}
    with_it, without = (
        simulate(strategy(cem=cem, threshold=1.0, **settings), parties()).model
        for cem in (True, False)
    )
    assert without.inertia_ == pytest.approx(with_it.inertia_, rel=0.05)


# -- costs -----------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [1, 6, 20])
def test_round_trips_and_floats(passes):
    result = simulate(strategy(passes=passes), parties())
    made = int(result.metrics["passes"])
    assert made == passes if passes < 10 else 4 < made <= 20
    trips = {a: len(waits) for a, waits in result.ledger.waits.items()}
    steps = {"begin": 1, "gram": 3, "embed": 1, "lloyd": made, "assign": 1}
    expected = {"hello": 1} | {f"kernel_kmeans_{a}": n for a, n in steps.items()}
    assert trips == expected
    # The worse half of the starts ends after passes 3, 6, .. that moved centres.
    starts = [max(1, A >> max(0, (t - 1) // 3)) for t in range(made)]
    floats = A * (1 + K) + sum(a * (1 + 2 * K + K * S) for a in starts[1:])
    for entry in result.ledger.entries.values():
        if entry.action == "kernel_kmeans_lloyd":
            assert entry.units_up == floats
        if entry.action == "kernel_kmeans_embed":
            assert entry.units_up == S


# -- the number of clusters ------------------------------------------------------------


@pytest.mark.parametrize("masking", ["plain", "ring"])
def test_the_server_chooses_the_number_of_clusters(masking, monkeypatch):
    """By the simplified silhouettes of the rows in one place, and their k-means."""
    whole(monkeypatch)
    settings = {"n_clusters": 7, "n_components": 8, "gamma": 0.05, "masking": masking}
    result = simulate(strategy(**settings, choose_clusters=True), parties())
    H = result.model.transform(rows()[0])
    mean = H.mean(axis=0)
    pooled = chosen_kmeans(
        lambda request: part_of_pass(H, request, np.random.default_rng(0)),
        *(7, mean, H.T @ H / N - np.outer(mean, mean), Run(SEED).rng("k-means"), A),
    )
    assert result.metrics["clusters"] == len(result.model.sizes_) == 4
    np.testing.assert_allclose(result.model.cluster_centers_, pooled.centers, atol=1e-5)
    assert result.metrics["passes"] == pooled.passes
    for most, warned in ((7, False), (4, True)):
        made = strategy(**settings | {"n_clusters": most}, choose_clusters=True)
        text = " ".join(made.shortfalls(result.metrics))
        assert ("4 clusters were chosen" in text) == warned


def test_choosing_costs_starts_and_no_round_trip_of_its_own():
    """In each pass a + 1 numbers more for a starts, of all k in one message."""
    most, passes = 6, 5
    settings = {"n_clusters": most, "n_components": 6, "passes": passes}
    result = simulate(strategy(**settings, choose_clusters=True), parties())
    trips = {a: len(waits) for a, waits in result.ledger.waits.items()}
    assert trips["kernel_kmeans_lloyd"] == passes
    assert sum(trips.values()) == 1 + 1 + 3 + 1 + passes + 1
    starts = [(most - 1) * max(1, A >> max(0, (t - 1) // 3)) for t in range(passes)]
    each = 1 + 2 * most + most * 6 + 1
    floats = starts[0] * (2 + most) + sum(a * each for a in starts[1:])
    for entry in result.ledger.entries.values():
        if entry.action == "kernel_kmeans_lloyd":
            assert entry.units_up == floats
        if entry.action == "kernel_kmeans_assign":
            assert entry.units_up == 1 + result.metrics["clusters"]
    seen = result.ledger.seen["kernel_kmeans_lloyd"]
    assert seen.reply == {"inertia", "sizes", "counts", "sums", "silhouettes"}


@pytest.mark.parametrize("used", [[1, 3], [2, 4]])
def test_a_start_uses_two_centres_at_least_and_those_that_it_has(used):
    party = Party(rows()[0])
    party.remember(kernel_kmeans_training.State(H=rows()[0], t=1))
    checked = structure(
        client.lloyd.contract.request,
        {"centers": np.zeros((2, 3, 5)), "used": np.array([2, 3])},
        {},
    )
    assert checked["used"].tolist() == [2, 3]
    with pytest.raises((ContractError, PartyError), match="used"):
        client.lloyd(
            party,
            **structure(
                client.lloyd.contract.request,
                {"centers": np.zeros((2, 3, 5)), "used": np.array(used)},
                {},
            ),
        )


# -- faults and bad input --------------------------------------------------------------


def longer(values):
    return np.concatenate([values, values[-1:]])


@pytest.mark.parametrize(
    ("action", "name", "change", "everyone", "rule"),
    [
        ("embed", "sum_h", longer, False, "'sum_h' has shape"),
        ("embed", "sum_h", longer, True, f"up to {S} sums of the embedding"),
        ("lloyd", "inertia", longer, True, "shape"),
        ("lloyd", "sizes", longer, True, "shape"),
        ("lloyd", "sums", longer, True, "shape"),
        ("lloyd", "sizes", lambda v: v + np.uint64(2**61), False, "faulty"),
    ],
)
def test_a_reply_that_cannot_be_ends_the_run(action, name, change, everyone, rule):
    changes = of_all(**{name: change}) if everyone else of_party(1, **{name: change})
    grid = Changed(parties(), f"kernel_kmeans_{action}", changes)
    with pytest.raises(FederationError, match=rule):
        strategy(n_init=2).start(grid)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"coreset_size": 30}, "coreset_size has no effect with clustering 'sums'"),
        ({"clustering": "coreset", "passes": 3}, "passes has no effect with clusteri"),
        ({"clustering": "means"}, "clustering must be"),
        ({"passes": 0}, "passes must be"),
        ({"n_init": 2**16}, f"n_init must be at most {2**17 // K} with {K} clusters"),
        (
            {"clustering": "coreset", "choose_clusters": True},
            "choose_clusters has no effect with clustering 'coreset'",
        ),
        ({"n_clusters": 1, "choose_clusters": True}, "n_clusters must be at least 2"),
        (
            {"n_init": 2**15, "choose_clusters": True},
            f"n_init must be at most {2**17 // (K * (K - 1))} with {K} clusters",
        ),
    ],
)
def test_settings_that_do_not_fit(settings, rule):
    with pytest.raises(ValueError, match=rule):
        strategy(**settings)


def test_too_few_rows():
    blocks = [Party(rows()[0][m:19:3]) for m in range(3)]
    with pytest.raises(
        FederationError, match="at least 20 rows of all parties, got 19"
    ):
        strategy().start(InProcessGrid(blocks))


def test_rows_that_are_all_the_same():
    blocks = [Party(np.ones((20, 2)), name=name) for name in NAMES[:3]]
    labels = simulate(strategy(gamma=1.0), blocks).model.labels_
    assert len(set(np.concatenate(labels))) == 1


# -- what the server has ---------------------------------------------------------------


def watched(blocks, **settings):
    """Return what an honest server has of each pass, and the model.

    Of a pass: the centres, those before, the sizes before, and the sums.
    """
    seen = []

    def spy(ask, *arguments):
        def asking(request):
            before = request.centers, request.last, request.sizes
            seen.append((*before, ask(request)))
            return seen[-1][3]

        return summed_kmeans(asking, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategies, "summed_kmeans", spy)
        model = simulate(strategy(**settings), blocks).model
    return seen, model


def test_no_sum_is_asked_for_of_a_cluster_that_had_fewer_than_20_rows():
    """Also one of fewer rows now is over rows that may be drawn of 20 at least."""
    seen, _ = watched(parties(), n_clusters=K, n_init=20)
    assert any((sizes < LEAST_ROWS).any() for _, _, sizes, _ in seen[1:])
    for _, _, sizes, sums in seen[1:]:
        small = sizes < LEAST_ROWS
        assert np.abs(sums.counts[small]).max(initial=0) < 1e-6
        assert np.abs(sums.sums[small]).max(initial=0) < 1e-6
