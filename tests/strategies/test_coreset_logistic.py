"""Logistic regression on a coreset end to end: draws, models, bounds, refusals."""

import csv
import math

import numpy as np
import pytest
from faults import LyingGrid
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score
from transcripts import Recorder, actual, patterns

from vfl_flower import (
    CoresetVLogistic,
    FederationError,
    Party,
    PartyFailed,
    load_model,
)
from vfl_flower.clients import coreset_predictions
from vfl_flower.models.coresets import LogisticModel
from vfl_flower.numerics.coresets import allocate
from vfl_flower.numerics.kmeans import draw
from vfl_flower.numerics.logistic import log_losses
from vfl_flower.numerics.split import split_rows
from vfl_flower.protocol.messages import pack
from vfl_flower.protocol.party import PartyError
from vfl_flower.protocol.strategy import Run
from vfl_flower.simulation import InProcessGrid, simulate
from vfl_flower.strategies import CoresetEvaluation, CoresetPrediction
from vfl_flower.strategies import coreset_logistic as logistic

T, D, N = 3, 7, 400
WIDTHS = (2, 1, 4)


def blocks_of(X):
    return np.split(X, np.cumsum(WIDTHS)[:-1], axis=1)


def data(n=N, seed=0):
    """Rows of heavy tails, and classes 3 and 5."""
    rng = np.random.default_rng(seed)
    X = rng.standard_t(3, size=(n, D))
    odds = X @ np.linspace(-1, 1, D) + 0.5
    return X, np.where(odds + rng.logistic(size=n) > 0, 5.0, 3.0)


def parties(X, y=None, holder=2, folder=None, **more):
    return [
        Party(
            block,
            y if j == holder else None,
            state_dir=None if folder is None else folder / str(j),
            **more,
        )
        for j, block in enumerate(blocks_of(X))
    ]


def scores_of(X, alpha, intercept=True, holder=2):
    """|u_i| + 1/n of each party, from the rows of the penalty below its columns."""
    n, g = len(X), []
    for j, block in enumerate(blocks_of(X)):
        block = block - block.mean(axis=0) if intercept else block
        below = np.sqrt(n * alpha) * np.eye(block.shape[1])
        Q = np.linalg.qr(np.vstack([block, below]))[0][:n]
        ones = 1 / n if intercept and j == holder else 0.0
        g.append(np.sqrt((Q**2).sum(axis=1) + ones) + 1 / n)
    return np.array(g)


def stream(seed, j, name):
    party = Party(np.zeros((1, 1)), index=j)
    party.seed = seed
    return party.rng(name)


def expected_draws(g, seed, size):
    """Algorithm 1 on the scores of all parties, shape (T, n), by the run's streams."""
    a = allocate(g.sum(axis=1), size, Run(seed).rng("allocate"))
    draws = [draw(g[j], size, stream(seed, j, "draw"))[: a[j]] for j in range(T)]
    return np.concatenate(draws)


# -- the same as pooled computation ----------------------------------------------------


@pytest.mark.parametrize("rounds", ["fused", "paper"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_rows_weights_and_model_are_those_of_a_pooled_matrix(
    fraction, intercept, rounds
):
    """S and w recomputed with the scores by QR, the model by another solver."""
    X, y = data()
    size, seed, alpha = 80, 11, 0.01
    train = split_rows(N, fraction, seed)[0]
    train = np.arange(N) if train is None else train
    n = len(train)
    g = scores_of(X[train], alpha, intercept)
    drawn = expected_draws(g, seed, size)
    w = g.sum() / (size * g[:, drawn].sum(axis=0))
    S = train[drawn]
    strategy = CoresetVLogistic(
        size,
        alpha=alpha,
        rounds=rounds,
        fit_intercept=intercept,
        test_fraction=fraction,
        seed=seed,
    )
    grid = Recorder(parties(X, y))
    result = strategy.start(grid)
    (asked,) = {
        tuple(entry.values["rows"])
        for entry in grid.transcript
        if entry.action == "coresets_scores" and not entry.up
    }
    np.testing.assert_array_equal(asked, S)
    assert result.metrics["weight_sum"] == pytest.approx(w.sum(), rel=1e-9)
    pooled = LogisticRegression(
        C=1 / (2 * alpha * n), tol=1e-10, max_iter=10_000, fit_intercept=intercept
    ).fit(X[S], y[S], sample_weight=w)
    model = result.model
    np.testing.assert_allclose(
        np.concatenate(model.coef_), pooled.coef_[0], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(model.predict(blocks_of(X)), pooled.predict(X))
    loss = w @ log_losses(pooled.decision_function(X[S]), y[S] == 5) / n
    assert result.metrics["train_log_loss"] == pytest.approx(loss, rel=1e-5)
    penalty = alpha * (pooled.coef_[0] @ pooled.coef_[0])
    assert result.metrics["objective"] == pytest.approx(loss + penalty, rel=1e-5)


def test_on_all_rows_it_is_scikit_learns_model():
    X, y = data()
    result = simulate(CoresetVLogistic(sampling="full"), parties(X, y), seed=0)
    pooled = LogisticRegression(C=1 / (2e-4 * N), tol=1e-10, max_iter=10_000).fit(X, y)
    model = result.model
    np.testing.assert_allclose(np.concatenate(model.coef_), pooled.coef_[0], rtol=1e-4)
    assert model.intercept_ == pytest.approx(pooled.intercept_[0], rel=1e-3)
    np.testing.assert_array_equal(model.classes_, pooled.classes_)
    chances = model.predict_proba(blocks_of(X))
    np.testing.assert_allclose(chances, pooled.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(
        model.decision_function(blocks_of(X)), pooled.decision_function(X), atol=1e-4
    )
    assert "sigma_min" not in result.metrics


def test_a_uniform_sample_has_equal_weights():
    X, y = data()
    strategy = CoresetVLogistic(100, sampling="uniform")
    result = simulate(strategy, parties(X, y), seed=0)
    assert result.metrics["weight_sum"] == pytest.approx(N)
    assert result.ledger.units == 100 * T + 100 * (D + 1)


def test_labels_have_no_part_in_the_draws():
    """With other labels the same rows are drawn."""
    X, y = data()
    rows = []
    for labels in (y, y[::-1].copy()):
        grid = Recorder(parties(X, labels))
        CoresetVLogistic(60, seed=4).start(grid)
        rows += [
            entry.values["rows"].tolist()
            for entry in grid.transcript
            if entry.action == "coresets_scores" and not entry.up and entry.party == 0
        ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("kept", [False, True])
def test_errors_on_rows_held_out_are_those_of_scikit_learn(kept, tmp_path):
    X, y = data(1000)
    strategy = CoresetVLogistic(200, test_fraction=0.3)
    made = parties(X, y, folder=tmp_path if kept else None)
    result = simulate(strategy, made, seed=1)
    test = split_rows(1000, 0.3, 1)[1]
    held, truth = blocks_of(X[test]), y[test]
    model, told = result.model, result.metrics
    chance = model.predict_proba(held)[:, 1]
    assert told["test_rows"] == 300
    assert told["test_error"] == pytest.approx(
        1 - accuracy_score(truth, model.predict(held))
    )
    expected = {
        "log_loss": log_loss(truth, chance),
        "auc": roc_auc_score(truth, chance),
        "brier": brier_score_loss(truth, chance, pos_label=5),
    }
    for name, value in expected.items():
        assert told[f"test_{name}"] == pytest.approx(value, rel=1e-6)
    assert (
        told["test_true_positives"] == ((model.predict(held) == 5) & (truth == 5)).sum()
    )
    assert sum(result.curves["rows"]) == 300
    assert sum(result.curves["positives"]) == (truth == 5).sum()
    assert result.ledger.round_trips == 3 + 3
    assert (model.number is not None) == kept
    assert not list(tmp_path.glob("*/*.csv"))


def test_rows_held_out_in_several_blocks(monkeypatch):
    """The same numbers, but for the rounding of sums."""
    X, y = data()
    strategy = CoresetVLogistic(100, test_fraction=0.3)
    whole = simulate(strategy, parties(X, y), seed=1).metrics
    monkeypatch.setattr(coreset_predictions, "MOST_SUMS", 50)
    parts = simulate(strategy, parties(X, y), seed=1)
    assert parts.metrics == pytest.approx(whole)
    assert parts.ledger.round_trips == 3 + 1 + 2 * 3


# -- the law of the draws --------------------------------------------------------------


def deviation(losses, g, m, K):
    """Return by how much one of K weighted sums of m draws may be off, with 1e-6.

    Bernstein's inequality for the mean of the terms G l_i / g_i, row i with probability
    g_i / G, and the union bound over the models.
    """
    G = g.sum()
    terms, total = G * losses / g, losses.sum()
    variance = (g / G) @ (terms - total) ** 2
    b = math.log(2 * K / 1e-6)
    bound = 2 * b * np.abs(terms - total).max() / 3
    return (bound + math.sqrt(bound**2 + 8 * b * m * variance)) / (2 * m)


def test_the_cost_of_each_of_many_models_is_close_to_that_on_all_rows(monkeypatch):
    """200 models of lengths from 0.3 to 30, drawn beforehand, on each of 5 coresets.

    Each cost on the coreset is within a bound that holds for all of them but with
    probability 5e-6, whatever the seeds (they are fixed). For the models drawn it is
    below 30 % of the cost, and a uniform sample of the size has no such bound: its
    largest is above that of the coreset.
    """
    X, y = data(4000, seed=2)
    positive, m, alpha = y == 5, 3000, 1e-3
    g = scores_of(X, alpha).sum(axis=0)
    rng = np.random.default_rng(9)
    K = 200
    models = rng.normal(size=(K, D + 1)) * np.geomspace(0.1, 10, K)[:, None]
    losses = np.array([log_losses(X @ v[:-1] + v[-1], positive) for v in models])
    costs = losses.sum(axis=1)
    allowed = np.array([deviation(one, g, m, K) for one in losses])
    assert (allowed / costs).max() < 0.3
    even = np.array([deviation(one, np.ones(4000), m, K) for one in losses])
    assert (even / costs).max() > (allowed / costs).max()
    drawn = []

    def solved(X, positive, w, n, alpha, fit_intercept):
        drawn.append((X, positive, w))
        return np.zeros(D), 0.0, True

    monkeypatch.setattr(logistic, "solve_logistic", solved)
    strategy = CoresetVLogistic(m, alpha=alpha, masking="plain")
    for seed in range(5):
        simulate(strategy, parties(X, y), seed=seed)
    for rows, sample, w in drawn:
        actual = np.array(
            [w @ log_losses(rows @ v[:-1] + v[-1], sample) for v in models]
        )
        assert (np.abs(actual - costs) <= allowed).all()
    assert len(drawn) == 5


def test_a_coreset_beats_a_uniform_sample_where_few_rows_matter():
    """A column is noise but for 12 of 4,000 rows; m = 200, 20 fixed seeds.

    A uniform sample has none of these rows with probability 0.54, and then fits the
    noise: the coefficient is wrong by so much that these rows have large losses.
    """
    rng = np.random.default_rng(3)
    X = rng.normal(size=(4000, D))
    X[:, 0] *= 0.01
    X[rng.choice(4000, 12, replace=False), 0] = 30 * rng.normal(size=12)
    positive = X @ np.full(D, 0.3) + rng.logistic(size=4000) > 0
    alpha, costs = 1e-5, {}
    for sampling in ("full", "coreset", "uniform"):
        strategy = CoresetVLogistic(200, alpha=alpha, sampling=sampling)
        costs[sampling] = []
        for seed in range(1 if sampling == "full" else 20):
            model = simulate(strategy, parties(X, positive * 1.0), seed=seed).model
            theta = np.concatenate(model.coef_)
            losses = log_losses(model.decision_function(blocks_of(X)), positive)
            costs[sampling].append(losses.mean() + alpha * theta @ theta)
    (best,) = costs["full"]
    assert min(costs["coreset"]) >= best
    assert max(costs["coreset"]) < best + 0.08
    assert np.mean(costs["uniform"]) - best > 3 * (np.mean(costs["coreset"]) - best)


def test_a_second_draw_estimates_the_log_loss_on_all_rows():
    """Within 5 standard errors: with a normal estimate a false alarm of 6e-7."""
    X, y = data(3000)
    strategy = CoresetVLogistic(300, check_size=400)
    result = simulate(strategy, parties(X, y), seed=2)
    odds = result.model.decision_function(blocks_of(X))
    error = result.metrics["check_log_loss_error"]
    off = result.metrics["check_log_loss"] - log_losses(odds, y == 5).mean()
    assert abs(off) < 5 * error < 0.5


# -- predictions -----------------------------------------------------------------------


def test_predictions_and_errors_of_new_rows(tmp_path):
    """The receiver gets classes and chances; texts where the file's labels were."""
    X, y = data()
    made = parties(X, y - 4, folder=tmp_path)
    y = (y > 4).astype(float)
    made[2] = Party(blocks_of(X)[2], y, state_dir=tmp_path / "2")
    made[2].encoding = {"classes": ["no", "yes"]}
    model = CoresetVLogistic(150, seed=3).start(InProcessGrid(made)).model
    new, truth = data(120, seed=8)
    truth = (truth > 4).astype(float)

    def at_home():
        federation = parties(new, truth, folder=tmp_path)
        federation[2].encoding = {"classes": ["no", "yes"]}
        return InProcessGrid(federation)

    CoresetPrediction(model.number).start(at_home())
    (path,) = (tmp_path / "2").glob("predictions-*.csv")
    with path.open() as file:
        told = list(csv.DictReader(file))
    chance = model.predict_proba(blocks_of(new))[:, 1]
    labels = [float(row["prediction"]) for row in told]
    np.testing.assert_array_equal(labels, model.predict(blocks_of(new)))
    np.testing.assert_allclose(
        [float(r["probability"]) for r in told], chance, rtol=1e-6
    )
    assert [row["class"] for row in told] == [["no", "yes"][int(c)] for c in labels]
    result = CoresetEvaluation(model.number).start(at_home())
    assert result.metrics["test_log_loss"] == pytest.approx(log_loss(truth, chance))
    assert result.metrics["test_auc"] == pytest.approx(roc_auc_score(truth, chance))
    assert sum(result.curves["rows"]) == 120


def test_the_model_is_what_was_saved(tmp_path):
    X, y = data()
    model = simulate(CoresetVLogistic(100), parties(X, y), seed=0).model
    loaded = load_model(model.save(tmp_path / "model"))
    assert isinstance(loaded, LogisticModel)
    np.testing.assert_array_equal(loaded.classes_, [3, 5])
    np.testing.assert_array_equal(
        loaded.predict_proba(blocks_of(X)), model.predict_proba(blocks_of(X))
    )
    with pytest.raises(ValueError, match="one matrix a party"):
        loaded.predict(blocks_of(X)[:2])


def test_the_server_sees_no_prediction_of_a_row_held_out():
    """Nor any part of one; it has the rows of the coreset, and made the model."""
    X, y = data()
    grid = Recorder(parties(X, y))
    result = CoresetVLogistic(60, test_fraction=0.3, seed=5).start(grid)
    test = blocks_of(X[split_rows(N, 0.3, 5)[1]])
    parts = [block @ coef for block, coef in zip(test, result.model.coef_, strict=True)]
    values = np.concatenate([result.model.decision_function(test), *parts])
    assert not actual(patterns(values), grid.transcript)
    assert not actual(patterns(np.hstack(test)), grid.transcript)
    told = [e for e in grid.transcript if e.action == "coreset_predictions_addends"]
    assert all(e.values["sums"].dtype == np.uint64 for e in told if e.up)


def receiver():
    one = Party(np.ones((60, 2)), np.arange(60) % 2 * 1.0, index=1)
    one.n_parties, one.session = 3, 5
    coreset_predictions.keep(one, "logistic", np.ones((1, 2)), 0.5, 1)
    return one


def test_the_rows_that_are_judged_do_not_change(monkeypatch):
    monkeypatch.setattr(coreset_predictions, "MOST_SUMS", 20)
    one = receiver()
    sums = coreset_predictions.addends(one, 0, 20, test_fraction=0.5)["sums"]
    np.testing.assert_array_equal(sums, np.full(20, 2.5))
    with pytest.raises(PartyError, match="test_fraction must be the same"):
        coreset_predictions.addends(one, 20, 40)
    with pytest.raises(PartyError, match="rows must be a block of 20"):
        coreset_predictions.addends(one, 20, 40, test_fraction=0.5)
    coreset_predictions.addends(one, 20, 30, test_fraction=0.5)


def test_of_few_rows_held_out_nothing_is_told():
    X, y = data()
    result = simulate(CoresetVLogistic(60, test_fraction=0.04), parties(X, y), seed=0)
    assert result.metrics["test_rows"] == 0
    assert "test_error" not in result.metrics


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["coreset", "uniform", "full"])
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda y: np.ones(N), "must have two values .* have 1$"),
        (lambda y: np.where(np.arange(N) == 7, 9.0, y), "have 3: a regression of num"),
    ],
)
def test_labels_that_are_not_two_classes(change, rule, sampling):
    """The party refuses the first step, also where the third class is rare."""
    X, y = data()
    grid = InProcessGrid(parties(X, change(y)))
    with pytest.raises(PartyFailed, match=rule) as caught:
        CoresetVLogistic(50, sampling=sampling).start(grid)
    assert caught.value.party == "party-2"
    first = "totals" if sampling == "coreset" else "pooled_rows"
    assert caught.value.action == f"coresets_{first}"


def test_rows_of_one_class_are_too_few():
    X, y = data()
    y[:] = 3
    y[0] = 5
    with pytest.raises(FederationError, match=r"20 rows .* two classes.* raise size"):
        simulate(CoresetVLogistic(20, sampling="uniform"), parties(X, y), seed=0)


def test_labels_that_the_server_was_not_told_of():
    X, y = data()

    def lie(request, values, frame):
        values["y"] = np.arange(50.0)
        del frame["digest"]
        return pack(values, frame)

    grid = LyingGrid(parties(X, y), "coresets_scores", 2, lie)
    with pytest.raises(FederationError, match="must be of two classes, and are of 50"):
        CoresetVLogistic(50).start(grid)


def test_nobody_holds_labels():
    with pytest.raises(FederationError, match="label"):
        simulate(CoresetVLogistic(50), parties(data()[0]), seed=0)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"alpha": 0.0}, "above 0"),
        ({"alpha": math.nan}, "number"),
        ({"alpha": math.inf}, "number"),
        ({"test_fraction": 1.0}, "below 1"),
        ({"evaluate": "full"}, "'coreset' for a logistic regression"),
        ({"check_size": 9, "sampling": "full"}, "0 unless sampling is 'coreset'"),
        ({"size": 0}, "at least 1"),
        ({"fit_intercept": 1}, "True or False"),
    ],
)
def test_errors_of_settings_name_argument_rule_and_value(arguments, rule):
    name, value = next(iter(arguments.items()))
    with pytest.raises(ValueError, match=rule) as caught:
        CoresetVLogistic(**arguments)
    assert str(caught.value).startswith(f"{name} must be ")
    assert repr(value) in str(caught.value).partition(", got ")[2]


def test_two_parties_evaluate_only_where_it_is_allowed():
    X, y = data()
    two = [Party(X[:, :3]), Party(X[:, 3:], y)]
    assert simulate(CoresetVLogistic(50), two, seed=0).metrics["train_log_loss"] > 0
    with pytest.raises(FederationError, match="at least three parties"):
        simulate(CoresetVLogistic(50, test_fraction=0.2), two, seed=0)
    allowed = CoresetVLogistic(50, test_fraction=0.2, allow_two_parties=True)
    assert simulate(allowed, two, seed=0).metrics["test_rows"] == 80


def test_what_a_run_needs_of_consent():
    assert CoresetVLogistic().needs == ("rows", "totals")
    assert set(CoresetVLogistic(test_fraction=0.2).needs) == {
        *("rows", "totals", "predictions", "moments")
    }
    assert CoresetVLogistic(sampling="uniform").needs == ("rows",)
    assert CoresetVLogistic(test_fraction=0.2).wants == ("curves",)


def test_shortfalls():
    strategy = CoresetVLogistic()
    assert strategy.shortfalls({"converged": 1.0, "test_error": 0.1}) == []
    (told,) = strategy.shortfalls({"converged": 0.0})
    assert "raise alpha" in told
    (told,) = strategy.shortfalls({"test_error": 0.5, "test_base_error": 0.4})
    assert "no better than the base rate" in told
