"""Both coreset strategies end to end: draws, rounds, costs, statistics, refusals."""

import functools
import math

import numpy as np
import pytest
from draws import stream
from faults import Changed, of_party
from federations import by_columns
from transcripts import Sent

from vfl_flower import PartyFailed
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import allocate, cluster_summary, vkmc_sensitivities
from vfl_flower.numerics.kmeans import assign, draw, weighted_kmeans
from vfl_flower.numerics.split import split_rows
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.strategy import Run
from vfl_flower.simulation import InProcessGrid, simulate
from vfl_flower.strategies import CoresetVKMC, CoresetVRLR
from vfl_flower.strategies.coresets import sampling as rows_of

T, D = 3, 7
WIDTHS = (2, 1, 4)


def data(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_t(3, size=(n, D))
    return X, X @ np.arange(1.0, D + 1) + 5 + rng.normal(size=n)


def parties(X, y=None, widths=WIDTHS):
    return by_columns(X, y, widths, names="party-{}")


def run(strategy, federation, seed=None):
    """Return the result, and what the server sent to party 0: (action, values)."""
    if seed is not None:
        strategy.seed = seed
    grid = Sent(federation)
    result = strategy.start(grid)
    return result, [(action, values) for action, j, values in grid.sent if not j]


# -- the draws, from the numerics alone ---------------------------------------------


def expected_coreset(g, seed, size, train, check=0):
    """Algorithm 1 on the scores of all parties, shape (T, n), by the run's streams.

    With `check` the second draw, of each party's next rows.
    """
    totals, server, first = g.sum(axis=1), Run(seed), np.zeros(len(g), int)
    a, m = allocate(totals, size, server.rng("allocate")), size
    if check:
        first, a, m = a, allocate(totals, check, server.rng("check")), check
    S = []
    for j in range(len(g)):
        rows = draw(g[j], size + check, stream(seed, j, "draw"))
        S.append(rows[first[j] : first[j] + a[j]])
    S = np.concatenate(S)
    return train[S], totals.sum() / (m * g[:, S].sum(axis=0))


def regression_scores(X, y, intercept):
    """|u_i|^2 + 1 / n of each party's block, by a singular value decomposition."""
    n, g = len(X), []
    for j, block in enumerate(np.split(X, np.cumsum(WIDTHS)[:-1], axis=1)):
        if intercept:
            block = block - block.mean(axis=0)
        if j == 2:
            block = np.column_stack([block, *([np.ones(n)] if intercept else []), y])
        U, s, _ = np.linalg.svd(block / np.linalg.norm(block, axis=0), False)
        g.append((U[:, s > 1e-10 * s[0]] ** 2).sum(axis=1) + 1 / n)
    return np.array(g)


def clustering_scores(X, k, seed, method):
    g = []
    for j, block in enumerate(np.split(X, np.cumsum(WIDTHS)[:-1], axis=1)):
        rng = stream(seed, j, "cluster")
        summary = cluster_summary(RowBlocks(block), k, rng, method=method)
        g.append(vkmc_sensitivities(np.ascontiguousarray(block), summary, 2.0))
    return np.array(g)


@pytest.mark.parametrize("rounds", ["fused", "paper"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_rows_and_weights_of_regression_are_the_paper_s(fraction, intercept, rounds):
    """S and w recomputed from a pooled matrix; the model from the same weighted rows.

    Weights sqrt(w) on the rows make it ordinary least squares, solved by NumPy.
    """
    X, y = data()
    size, seed = 60, 11
    train = split_rows(300, fraction, seed)[0]
    train = np.arange(300) if train is None else train
    g = regression_scores(X[train], y[train], intercept)
    S, w = expected_coreset(g, seed, size, train)
    settings = {"rounds": rounds, "fit_intercept": intercept, "solver": "central"}
    strategy = CoresetVRLR(size, test_fraction=fraction, **settings)
    actual, sent = run(strategy, parties(X, y), seed)
    np.testing.assert_array_equal(dict(sent)["coresets_scores"]["rows"], S)
    assert actual.metrics["weight_sum"] == pytest.approx(w.sum(), rel=1e-9)
    A = np.column_stack([X[S], np.ones(size)]) if intercept else X[S]
    root = np.sqrt(w)
    theta = np.linalg.lstsq(A * root[:, None], y[S] * root)[0]
    np.testing.assert_allclose(np.concatenate(actual.model.coef_), theta[:D], rtol=1e-8)
    loss = (w @ (A @ theta - y[S]) ** 2) / len(train)
    assert actual.metrics["train_loss"] == pytest.approx(loss, rel=1e-8)
    assert actual.metrics["objective"] == actual.metrics["train_loss"]


@pytest.mark.parametrize("rounds", ["fused", "paper"])
@pytest.mark.parametrize("method", ["lloyd", "seeding"])
def test_rows_and_weights_of_k_means_are_those_of_the_paper(rounds, method):
    X, _ = data()
    size, seed, k = 60, 4, 3
    g = clustering_scores(X, k, seed, method)
    S, w = expected_coreset(g, seed, size, np.arange(300))
    strategy = CoresetVKMC(k, size=size, rounds=rounds, local_clustering=method)
    actual, sent = run(strategy, parties(X), seed)
    np.testing.assert_array_equal(dict(sent)["coresets_scores"]["rows"], S)
    assert actual.metrics["weight_sum"] == pytest.approx(w.sum(), rel=1e-9)
    C, cost = weighted_kmeans(X[S], k, w, Run(seed).rng("cluster"))
    np.testing.assert_allclose(
        np.hstack(actual.model.cluster_centers_), C, rtol=1e-7, atol=1e-9
    )
    assert actual.metrics["cost"] == pytest.approx(cost / 300)


@pytest.mark.parametrize("fraction", [0.0, 0.3])
@pytest.mark.parametrize("pooled", [True, False])
def test_uniform_rows_are_distinct_training_rows(pooled, fraction):
    settings = {"sampling": "uniform", "test_fraction": fraction}
    strategy = CoresetVRLR(60, solver="central" if pooled else "cg", **settings)
    actual, sent = run(strategy, parties(*data()), 2)
    requests = dict(sent)
    if pooled:
        rows = requests["coresets_pooled_rows"]["rows"]
    else:
        rows = requests["linear_start"]["coreset.rows"]
    assert len(np.unique(rows)) == 60
    assert not np.isin(rows, split_rows(300, fraction, 2)[1]).any()
    assert actual.metrics["weight_sum"] == pytest.approx(300 * (1 - fraction))


@pytest.mark.parametrize("solver", ["central", "distdim"])
def test_all_rows_in_more_than_one_block(monkeypatch, solver):
    """Blocks of 40 numbers a party: 10 rows of the widest, the same result."""
    X, _ = data(n=95)
    strategy = CoresetVKMC(3, sampling="full", solver=solver, evaluate="full")
    whole, _ = run(strategy, parties(X), 0)
    monkeypatch.setattr(rows_of, "MESSAGE_NUMBERS", 40)
    blocked, sent = run(strategy, parties(X), 0)
    assert blocked.arrays.object_id == whole.arrays.object_id
    assert blocked.metrics == pytest.approx(whole.metrics, rel=1e-9)
    actions = [action for action, _ in sent]
    assert actions.count("coresets_pooled_rows") == (10 if solver == "central" else 0)
    assert actions.count("coresets_distances") == math.ceil(95 / 13)


@pytest.mark.parametrize("sampling", ["coreset", "uniform", "full"])
@pytest.mark.parametrize("solver", ["central", "distdim"])
def test_full_cost_of_k_means(solver, sampling):
    X, _ = data()
    strategy = CoresetVKMC(4, solver, size=60, sampling=sampling, evaluate="full")
    actual, _ = run(strategy, parties(X), 1)
    _, squares = assign(X, np.hstack(actual.model.cluster_centers_))
    assert actual.metrics["full_cost"] == pytest.approx(squares.mean(), rel=1e-9)
    if sampling == "full" and solver == "central":
        assert actual.metrics["cost"] == pytest.approx(squares.mean(), rel=1e-9)
        explained = 1 - squares.mean() / X.var(axis=0).sum()
        assert actual.metrics["explained"] == pytest.approx(explained)
        sizes = np.bincount(assign(X, np.hstack(actual.model.cluster_centers_))[0])
        assert actual.metrics["smallest_cluster"] == sizes.min()


# -- units, round trips, bytes ------------------------------------------------------

M, K = 50, 3


def cost(strategy, n=200):
    return simulate(strategy, parties(*data(n)), seed=0)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_units_of_regression_fused(fit_intercept):
    """T + 3mT + m(d + 1), counted by hand; the intercept costs nothing.

    totals: up T totals and mT pre-drawn rows. scores: down S to each party, mT; up mT
    masked scores and m(d + 1) values of rows and labels.

    The published code counts T + 3mT for the draw as well, though with mT in the place
    of the paper's m for S^(j) (m rows in all, T broadcasts of m), and m d for CENTRAL:
    without the m labels, that one of the parties sends like a column.
    """
    result = cost(CoresetVRLR(M, fit_intercept=fit_intercept, solver="central"))
    assert result.ledger.units == T + 3 * M * T + M * (D + 1)
    assert [*result.ledger.waits] == ["hello", "coresets_totals", "coresets_scores"]
    assert result.ledger.messages == 3 * T


def test_units_of_regression_by_the_paper():
    """2T + m + 3mT + m(d + 1): fewer numbers drawn, rows asked for a second time.

    totals: up T. draw: down the T counts a_j, up the m rows of all S^(j) together.
    scores: S down, mT; masked scores up, mT. rows: S down once more, mT; up m(d + 1).

    Algorithm 1 itself is the first four: 2T + m + 2mT, which the published code rounds
    up to T + 3mT.
    """
    result = cost(CoresetVRLR(M, rounds="paper", solver="central"))
    assert result.ledger.units == 2 * T + M + 3 * M * T + M * (D + 1)
    steps = "coresets_totals", "coresets_drawn_rows", "coresets_scores"
    assert list(result.ledger.waits) == ["hello", *steps, "coresets_pooled_rows"]
    drawing = result.ledger.of(*steps)
    assert drawing.units == 2 * T + M + 2 * M * T <= T + 3 * M * T
    assert result.ledger.round_trips == 5


CENTRAL = CoresetVRLR(M, solver="central")
MEANS = CoresetVKMC(K, size=M)
DISTDIM = CoresetVKMC(K, size=M, solver="distdim")


@pytest.mark.parametrize(
    ("strategy", "options", "units", "trips"),
    [
        # Of a uniform sample mT for the rows by number, m(d + 1) by value; of all rows
        # n(d + 1): which they are goes without saying. With a second draw of c rows as
        # of a coreset of m + c, in no more trips. Published: mT + m d, and n d.
        (CENTRAL, {"sampling": "uniform"}, M * T + M * (D + 1), 2),
        (CENTRAL, {"sampling": "full"}, 200 * (D + 1), 2),
        (CENTRAL, {"check_size": 20}, T + 3 * (M + 20) * T + (M + 20) * (D + 1), 3),
        # As for regression but for the labels, also where a party has them.
        # Published: T + 3mT or mT, and m d or n d.
        (MEANS, {}, T + 3 * M * T + M * D, 3),
        (MEANS, {"rounds": "paper"}, 2 * T + M + 3 * M * T + M * D, 5),
        (MEANS, {"sampling": "uniform"}, M * T + M * D, 2),
        (MEANS, {"sampling": "full"}, 200 * D, 2),
        # After (S, w), 2mT down: k d numbers of local centres and mT assignments up.
        # The published code counts k d + mT (k d + nT for full), without the broadcast
        # of (S, w) that its own Theorem 2.5 has as 2mT. A uniform sample needs no
        # message of its own: its numbers ride on (S, w).
        (DISTDIM, {}, T + 3 * M * T + 3 * M * T + K * D, 4),
        (DISTDIM, {"rounds": "paper"}, 2 * T + M + 5 * M * T + K * D, 5),
        (DISTDIM, {"sampling": "uniform"}, 3 * M * T + K * D, 2),
        (DISTDIM, {"sampling": "full"}, 200 * T + K * D, 2),
    ],
)
def test_units_of_samples(strategy, options, units, trips):
    result = cost(strategy.replace(**options))
    assert result.ledger.units == units
    assert result.ledger.round_trips == trips


CG = CoresetVRLR(M, solver="cg")
PROXIMAL = CoresetVRLR(M, "lasso", 1.0, solver="cg", max_iter=4, tol=0)
SAGA = CoresetVRLR(M, solver="saga", max_iter=1)


@pytest.mark.parametrize(
    ("strategy", "counts", "units", "more"),
    [
        # Each step, and a last look at the gradient: the residual down and A s up, mT
        # each, and three energies a party. The paper has no such solver.
        (CG, range(1, D + 2), lambda s: (s + 1) * (2 * M * T + 3 * T), 1),
        # Two energies a party, and no last look.
        (PROXIMAL, [4], lambda s: s * (2 * M * T + 2 * T), 0),
        # Each round trip: b rows' numbers and the b changes of the last batch down, b
        # residuals up, but no change before the first. The published code counts 3T an
        # iteration (of one row) and 2mT for (S, w): the same but for start and end.
        (SAGA.replace(batch_size=5), [M // 5], lambda s: (3 * s - 1) * 5 * T, 0),
        (SAGA.replace(batch_size=10), [M // 10], lambda s: (3 * s - 1) * 10 * T, 0),
    ],
)
def test_units_of_solvers_without_rows(strategy, counts, units, more):
    """T + 3mT + (2mT + mT) + those of s steps + d + T.

    The draw; start: (S, w) down, first residuals or |a_i|^2 up; s steps; coefficients:
    d, and one number of the intercept a party.
    """
    result = cost(strategy)
    s = int(result.metrics["iterations"])
    assert s in counts
    assert result.ledger.units == (T + 3 * M * T) + 3 * M * T + units(s) + D + T
    assert result.ledger.round_trips == 3 + 1 + (s + more) + 1


@pytest.mark.parametrize(
    ("strategy", "units", "actions"),
    [
        (
            CENTRAL.replace(test_fraction=0.25, evaluate="full"),
            2 * 200 * T + D + 2 * 200,
            ["coreset_predictions_held_out", "coreset_predictions_errors"],
        ),
        (MEANS.replace(evaluate="full"), 200 * K * T + K * D, ["coresets_distances"]),
    ],
)
def test_units_of_evaluation(strategy, units, actions):
    """Up n k T distances; down the centres.

    Of a regression up two limbs of the predictions at each party; down the model, and
    the limbs of their sums.
    """
    result = cost(strategy)
    assert result.evaluation.units == units
    waits = result.evaluation.waits
    assert {a: len(w) for a, w in waits.items()} == dict.fromkeys(actions, 1)
    assert result.evaluation.round_trips < result.ledger.round_trips


# -- the second draw ----------------------------------------------------------------


@pytest.mark.parametrize("rounds", ["fused", "paper"])
def test_second_draw_is_the_next_rows_of_each_party(rounds):
    """Of m + c rows drawn the loss of the last c, weighted by G / (c sum_j g_ij).

    The first m, and the model, are what they are without a second draw.
    """
    X, y = data()
    m, c, seed = 50, 40, 8
    g, every = regression_scores(X, y, True), np.arange(300)
    S, w = expected_coreset(g, seed, m, every, check=c)
    strategy = CoresetVRLR(m, rounds=rounds, solver="central")
    without, first = run(strategy, parties(X, y), seed)
    result, sent = run(strategy.replace(check_size=c), parties(X, y), seed)
    rows = dict(sent)["coresets_scores"]["rows"]
    np.testing.assert_array_equal(rows[:m], dict(first)["coresets_scores"]["rows"])
    np.testing.assert_array_equal(rows[m:], S)
    assert result.arrays.object_id == without.arrays.object_id
    assert result.metrics.items() >= without.metrics.items()
    actual = result.model.predict(np.split(X[S], np.cumsum(WIDTHS)[:-1], axis=1))
    losses = w * (actual - y[S]) ** 2 / 300
    assert result.metrics["check_loss"] == pytest.approx(losses.sum(), rel=1e-8)
    error = losses.std(ddof=1) * math.sqrt(c)
    assert result.metrics["check_loss_error"] == pytest.approx(error, rel=1e-8)


def test_second_draw_of_k_means_changes_nothing_of_the_first():
    without, checked = (cost(MEANS.replace(check_size=c), n=300) for c in (0, 30))
    assert without.arrays.object_id == checked.arrays.object_id
    extra = {k: v for k, v in checked.metrics.items() if not k.startswith("check_")}
    assert extra == without.metrics


# -- statistics ---------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["central", "gram"])
@pytest.mark.parametrize("noise", [None, 0.0, 1e-3])
def test_sigma_min_sees_a_column_that_two_parties_nearly_hold(noise, solver):
    """Near 0 there; far from 0 where columns are independent, or one is the other."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, D)), rng.normal(size=400)
    if noise is not None:
        X[:, 6] = 3 * X[:, 2] + 1 + noise * rng.normal(size=400)
    result = simulate(CoresetVRLR(200, solver=solver), parties(X, y), seed=0)
    assert (result.metrics["sigma_min"] < 1e-3) == bool(noise)
    assert noise or result.metrics["sigma_min"] > 0.5


# -- refusals -----------------------------------------------------------------------


BOTH = [
    ({"size": 0}, "at least 1"),
    ({"size": 2**24 + 1}, "at most"),
    ({"check_size": 1, "solver": "central"}, "0 or at least 2"),
    ({"check_size": -2}, "at least 0"),
    ({"n_parties": 1}, "0 or at least 2"),
    ({"check_size": 9, "sampling": "uniform"}, "0 unless sampling is 'coreset'"),
]
REGRESSION = [
    ({"check_size": 9, "solver": "cg"}, "0 unless .* solver is 'central'"),
    ({"test_fraction": 1.0}, "below 1"),
    *(({name: -0.5}, "at least 0") for name in ("test_fraction", "alpha", "l1_ratio")),
    ({"alpha": 1.0}, "0 without a regularizer"),
    ({"alpha": 0.0, "regularizer": "ridge"}, "above 0 for ridge"),
    ({"l1_ratio": 1.5}, "at most 1"),
    *(({name: 0}, "at least 1") for name in ("max_iter", "batch_size")),
    ({"tol": -1e-9}, "at least 0"),
]
CLUSTERING = [
    *(({name: 0}, "at least 1") for name in ("n_clusters", "n_init")),
    ({"check_size": 9, "solver": "distdim"}, "0 unless .* solver is 'central'"),
    ({"approximation": 0.5}, "at least 1"),
    ({"n_clusters": 11, "size": 10}, "at most size"),
]


@pytest.mark.parametrize(
    ("strategy", "arguments", "rule"),
    [(CoresetVRLR, *case) for case in BOTH + REGRESSION]
    + [(CoresetVKMC, *case) for case in BOTH + CLUSTERING],
)
def test_errors_of_settings_name_argument_rule_and_value(strategy, arguments, rule):
    name, value = next(iter(arguments.items()))
    with pytest.raises(ValueError, match=rule) as caught:
        strategy(**arguments)
    start, _, end = str(caught.value).partition(", got ")
    assert start.startswith(f"{name} must be ")
    assert repr(value) in end


def refused(strategy, federation, sentence):
    """Assert that a run ends with this sentence, and after nothing but ``hello``."""
    grid = Sent(federation)
    with pytest.raises(FederationError, match=sentence):
        strategy.start(grid)
    assert grid.actions == ["hello"]


OF_ROWS = "n_clusters must be at most 300, the number of training rows, got 301"


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (
            CoresetVRLR(301, sampling="uniform", solver="central"),
            "'uniform', size must be at most 300, the number of training rows, got 301",
        ),
        (
            CoresetVRLR(211, sampling="uniform", test_fraction=0.3, solver="cg"),
            "at most 210, the number of training rows, got 211",
        ),
        (CoresetVKMC(3, size=301, sampling="uniform"), "at most 300, .* rows, got 301"),
        (CoresetVKMC(301, size=400), OF_ROWS),
        (CoresetVKMC(301, sampling="full", solver="distdim"), OF_ROWS),
        (CoresetVKMC(8, evaluate="full"), "at most 7, .* of columns, got 8: use check"),
        (
            CoresetVRLR(50, test_fraction=0.999, solver="central"),
            "test_fraction must leave at least one training row, got 0.999 with 300",
        ),
    ],
)
def test_arguments_that_do_not_fit_the_data(strategy, sentence):
    refused(strategy, parties(*data()), sentence)


def test_one_party_holds_the_labels():
    rule = "exactly one party must hold the labels, but none does"
    refused(CoresetVRLR(50, solver="central"), parties(data()[0]), rule)


def test_the_largest_sizes_that_fit():
    X, y = data()
    for strategy in (
        CoresetVRLR(300, sampling="uniform", solver="central"),
        CoresetVRLR(1000, solver="central"),
        CoresetVRLR(1, solver="central"),
        CoresetVKMC(5, size=300, sampling="uniform"),
        CoresetVKMC(20, "distdim", size=20, sampling="uniform"),
        CoresetVKMC(7, size=50, evaluate="full"),
    ):
        labels = y if isinstance(strategy, CoresetVRLR) else None
        assert simulate(strategy, parties(X, labels), seed=0).metrics["weight_sum"] > 0


@pytest.mark.parametrize("solver", ["cg", "saga"])
def test_sums_for_parties_need_three_of_them(solver):
    two = parties(*data(), (3, 4))
    sentence = f"solver '{solver}' reveals sums .* at least three"
    refused(CoresetVRLR(50, solver=solver), two, sentence)
    allowed = CoresetVRLR(50, solver=solver, allow_two_parties=True, max_iter=1)
    assert simulate(allowed, two, seed=0).metrics["iterations"] >= 1
    central = simulate(CoresetVRLR(50, solver="central"), two, seed=0)
    assert central.metrics["train_loss"] > 0


# -- replies that are as declared, and cannot be right -------------------------------


lie = functools.partial(of_party, 2)
LASSO = {"regularizer": "lasso", "alpha": 1.0, "solver": "cg"}


def half(values):
    return values[: len(values) // 2]


STRATEGIES = {
    "fused": CoresetVRLR(20, solver="central"),
    "paper": CoresetVRLR(20, rounds="paper", solver="central"),
    "all": CoresetVRLR(sampling="full", solver="central"),
    "cg": CoresetVRLR(20, solver="cg"),
    "distdim": CoresetVKMC(2, "distdim", size=20),
    "clusters": CoresetVKMC(2, "distdim", sampling="full"),
}


@pytest.mark.parametrize(
    ("name", "action", "change", "reason"),
    [
        ("fused", "coresets_totals", lie(total=np.zeros(1)), "'total' must hold"),
        ("fused", "coresets_totals", lie(total=-np.ones(1)), "'total' must hold"),
        ("fused", "coresets_totals", lie(total=np.array([1e9])), "must be at most 600"),
        ("fused", "coresets_totals", lie(rows=None), "lacks 'rows'"),
        ("paper", "coresets_drawn_rows", lie(rows=half), "must have .* drawn rows"),
        ("fused", "coresets_scores", lie(X=np.full((20, 4), 1e51)), "to 1e.50"),
        ("fused", "coresets_scores", lie(y=np.full(20, -1e51)), "from -1e.50"),
        ("all", "coresets_pooled_rows", lie(X=np.ones((7, 4)), y=np.ones(7)), "300"),
        ("distdim", "coresets_local_clusters", lie(labels=half), "'labels' must have"),
        ("clusters", "coresets_local_clusters", lie(labels=half), "of 300 rows"),
        ("distdim", "coresets_local_clusters", lie(centers=half), "lacks the centre"),
        ("cg", "linear_start", lie(scale=None), "lacks 'scale'"),
        ("cg", "linear_start", lie(scale=1e-60), "'scale' must be"),
        ("cg", "linear_coefficients", lie(coefficients=np.ones(3)), "shape"),
    ],
)
def test_a_reply_that_cannot_be_right(name, action, change, reason):
    with pytest.raises(PartyFailed, match=reason) as caught:
        STRATEGIES[name].start(Changed(parties(*data()), action, change))
    assert (caught.value.party, caught.value.action) == ("party-2", action)


@pytest.mark.parametrize(
    ("options", "action", "name", "change", "rule"),
    [
        ({"solver": "central"}, "coresets_scores", "scores", np.zeros_like, ""),
        ({"solver": "cg"}, "linear_start", "residual", np.zeros_like, ""),
        (LASSO, "linear_proximal", "residual", np.zeros_like, ""),
        ({"solver": "saga"}, "linear_start", "norms", np.zeros_like, ""),
        # A sum may be within its bound, and yet be no sum of squares.
        ({"solver": "saga"}, "linear_start", "norms", lambda n: n - 2**61, "squares"),
    ],
)
def test_sums_of_what_is_under_no_mask(options, action, name, change, rule):
    """Without the mask of one party the sum is noise: it cannot be said whose it is.

    A number of the noise is within the bounds about four times in five, so that 200
    rows pass once in 10^19 tests.
    """
    grid = Changed(parties(*data()), action, of_party(1, **{name: change}))
    with pytest.raises(FederationError, match=rf"must add up to .*{rule}.*'party-1'"):
        CoresetVRLR(200, **options).start(grid)


@pytest.mark.parametrize("solver", ["central", "gram"])
def test_a_size_that_all_rows_have_is_a_warning(solver):
    X, y = data()
    strategy = CoresetVRLR(len(X), solver=solver, seed=1)
    drawn, every, one_less = (
        strategy.replace(size=size).start(InProcessGrid(parties(X, y)))
        for size in (len(X), "auto", len(X) - 1)
    )
    (warning,) = drawn.warnings
    assert "all of them (sampling 'full', or size 'auto') takes fewer round" in warning
    assert ("server sees most rows" in warning) == (solver == "central")
    assert every.ledger.round_trips < drawn.ledger.round_trips
    assert not [*every.warnings, *one_less.warnings]


def test_labels_are_those_of_the_label_holder():
    X, y = data()
    strategy = CoresetVRLR(20, seed=1, solver="central")
    grid = Changed(parties(X, y), "coresets_scores", of_party(0, y=np.zeros(20)))
    honest = InProcessGrid(parties(X, y))
    arrays, expected = (strategy.start(g).arrays for g in (grid, honest))
    assert arrays.object_id == expected.object_id


# -- the default size -----------------------------------------------------------------


def test_the_size_follows_the_number_of_columns_and_is_said_where_it_is_too_small():
    """The default works on 42 columns, and loses little beside all rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 42))
    y = X @ rng.normal(size=42) + 6 * rng.normal(size=6000)
    parties = by_columns(X, y, (10, 30, 2))
    auto = simulate(CoresetVRLR(test_fraction=0.2), parties, seed=1)
    assert auto.metrics["weight_sum"] > 0
    full = CoresetVRLR(test_fraction=0.2, sampling="full")
    everything = simulate(full, parties, seed=1)
    assert auto.metrics["test_loss"] < 1.05 * everything.metrics["test_loss"]
    few = [party.take(np.arange(800)) for party in parties]
    small = simulate(CoresetVRLR(), few, seed=1)
    assert "coresets_totals" not in {action for action, _ in small.ledger.entries}
    assert small.metrics["weight_sum"] == 800  # all rows, instead of as many draws
    with pytest.raises(FederationError) as caught:
        simulate(CoresetVRLR(size=150), parties)
    law = "with solver 'gram', size must be at least 172 ("
    assert str(caught.value).startswith(law)
    assert str(caught.value).endswith("set size to at least 172")


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({}, {"rows", "totals"}),
        ({"rounds": "paper"}, {"rows", "row-sums", "totals"}),
        ({"sampling": "uniform"}, {"rows"}),
        ({"solver": "distdim"}, {"rows", "row-sums", "totals"}),
    ],
)
def test_kinds_that_leave_the_parties(settings, kinds):
    strategy = CoresetVKMC(n_clusters=2, size=12, **settings)
    assert {*strategy.terms.needs} == kinds
