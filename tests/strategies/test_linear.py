"""Solvers whose rows stay at the parties, against the conditions of an optimum."""

import functools
import math

import numpy as np
import pytest
from sklearn.metrics import r2_score

from vfl_flower import Party
from vfl_flower.numerics.linear import Penalty
from vfl_flower.numerics.split import split_rows
from vfl_flower.protocol.messages import unpack
from vfl_flower.simulation import InProcessGrid, simulate
from vfl_flower.strategies import CoresetVRLR

PENALTIES = {
    "none": {},
    "ridge": {"regularizer": "ridge", "alpha": 0.1},
    "lasso": {"regularizer": "lasso", "alpha": 1.0},
    "elasticnet": {"regularizer": "elasticnet", "alpha": 1.5, "l1_ratio": 2 / 3},
}
SOLVERS = {
    "central": {"solver": "central"},
    "cg": {"solver": "cg", "tol": 1e-9, "max_iter": 500},
}
SAGA = {"solver": "saga", "tol": 1e-4, "max_iter": 300, "batch_size": 40}
EXACT = {"central": 2e-6, "cg": 1e-7, "saga": 3e-3}
SIZE = 80


def data(seed=0, n=200, d=6):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.uniform(0.2, 5, d) + rng.normal(size=d)
    return X, X @ rng.normal(size=d) + 4 + rng.normal(size=n)


def parties(X, y, widths=(2, 2, 2), holder=-1):
    blocks = np.split(X, np.cumsum(widths)[:-1], axis=1)
    holder %= len(blocks)
    return [Party(b, y if j == holder else None) for j, b in enumerate(blocks)]


class Rows(InProcessGrid):
    """Keeps the rows and masked scores that went to and from the server."""

    def __init__(self, parties):
        super().__init__(parties)
        self.totals, self.scores, self.rows = [], [], None

    def push_messages(self, messages):
        """Keep the rows asked for."""
        for message in messages:
            values, _ = unpack(message.content)
            for name in {"rows", "coreset.rows"} & set(values):
                self.rows = values[name].astype(int)
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        """Keep totals and scores."""
        replies = super().pull_messages(message_ids)
        for reply in replies:
            values, _ = unpack(reply.content)
            if "total" in values:
                self.totals.append(float(values["total"][0]))
            if "scores" in values:
                self.scores.append(values["scores"])
        return replies

    def coreset(self):
        """Return S and w = G / (m sum_j g_ij); masking is "plain"."""
        weights = sum(self.totals) / (len(self.rows) * sum(self.scores))
        return self.rows, weights


def violation(X, y, w, n, penalty, model, free=True):
    """Return how far a model is from an optimum, relative to the data.

    0 is in the subgradient of ``sum w r^2 / n + l1 |theta|_1 + l2 |theta|^2``: see
    ``tests/numerics/test_linear.py``.
    """
    theta, b = np.concatenate(model.coef_), model.intercept_
    X, y = X.astype(float), y.astype(float)
    r = X @ theta + b - y
    g = 2 * (w * r) @ X / n + 2 * penalty.l2 * theta
    size = np.sqrt(w @ y**2 / n)
    unit = 2 * np.sqrt(w @ X**2 / n) * size
    unit[unit == 0] = 1
    excess = np.where(
        np.abs(theta) < 1e-9 * size,
        np.maximum(np.abs(g) - penalty.l1, 0),
        np.abs(g + penalty.l1 * np.sign(theta)),
    )
    actual = float((excess / unit).max())
    shift = abs(w @ r) / n / (size * math.sqrt(w.sum() / n)) if free else 0.0
    return max(actual, shift)


def check(X, y, solver, penalty=None, limit=None, **options):
    """Run a solver on a coreset and assert that its model is the optimum there."""
    widths, holder = options.pop("widths", (2, 2, 2)), options.pop("holder", -1)
    grid = Rows(parties(X, y, widths, holder))
    named = SAGA if solver == "saga" else SOLVERS[solver]
    named = named | {"allow_two_parties": len(widths) == 2}
    strategy = CoresetVRLR(
        SIZE, seed=3, masking="plain", **(penalty or {}) | named | options
    )
    result = strategy.start(grid)
    rows, w = grid.coreset()
    target = Penalty.named(strategy.regularizer, strategy.alpha, strategy.l1_ratio)
    n = len(y) - round(strategy.test_fraction * len(y))
    actual = violation(
        X[rows], y[rows], w, n, target, result.model, strategy.fit_intercept
    )
    assert actual < (limit or EXACT[solver])
    assert result.metrics.get("converged", 1.0) == 1.0
    assert strategy.fit_intercept or result.model.intercept_ == 0
    assert [len(c) for c in result.model.coef_] == list(widths)
    return result


@pytest.mark.parametrize("free", [True, False], ids=["intercept", "through the origin"])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_model_is_the_optimum_on_the_coreset(solver, penalty, free):
    check(*data(), solver, PENALTIES[penalty], fit_intercept=free)


@pytest.mark.parametrize(
    ("widths", "holder", "penalty"),
    [
        ((3, 3), 0, "lasso"),
        ((1, 5), 1, "elasticnet"),
        ((2, 2, 2), 1, "none"),
        ((1, 1, 1, 2, 1), 4, "elasticnet"),
        ((1,) * 6, 0, "ridge"),
    ],
)
@pytest.mark.parametrize("solver", ["central", "cg"])
def test_any_split_of_the_columns(solver, widths, holder, penalty):
    check(*data(1), solver, PENALTIES[penalty], widths=widths, holder=holder)


def small_column():
    X, y = data()
    return X * np.array([1e-3, 1, 1, 1, 1, 1]), y


def of_int8():
    X, y = data()
    X, y = 100 * X / np.abs(X).max(), 100 * y / np.abs(y).max()
    return X.astype(np.int8), y.astype(np.int8)


@pytest.mark.parametrize(
    ("made", "penalty", "options"),
    [
        (data, "none", {}),
        (data, "ridge", {"fit_intercept": False}),
        (data, "lasso", {"test_fraction": 0.3}),
        (data, "elasticnet", {"widths": (2, 1, 3), "holder": 1}),
        (small_column, "ridge", {}),
        (of_int8, "none", {}),
    ],
)
def test_model_of_saga_is_the_optimum_on_the_coreset(made, penalty, options):
    check(*made(), "saga", PENALTIES[penalty], **{"widths": (3, 3)} | options)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("penalty", ["none", "lasso"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_scale_of_the_labels(solver, penalty, scale):
    """The conditions of ``violation`` are relative: the limits are the same."""
    X, y = data()
    options = dict(PENALTIES[penalty])
    if "alpha" in options:
        options["alpha"] *= scale
    check(X, y * scale, solver, options)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("penalty", ["none", "ridge", "lasso"])
def test_scale_of_the_columns(solver, penalty):
    """Columns in units 1e-3 to 1e3."""
    X, y = data()
    units = np.array([1e-3, 1, 1, 1e3, 1, 1])
    check(X * units, y, solver, PENALTIES[penalty])


def rank_deficient():
    """Return columns that repeat within party 0 and across parties 0, 1 and 2."""
    X, y = data()
    X[:, 1] = -3 * X[:, 0]
    X[:, 5] = X[:, 2] + X[:, 0]
    return X, y


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("solver", SOLVERS)
def test_columns_without_full_rank(solver, free):
    X, y = rank_deficient()
    result = check(X, y, solver, fit_intercept=free)
    assert np.abs(np.concatenate(result.model.coef_)).max() < 1e3


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_party_whose_columns_are_zero(solver, penalty):
    X, y = data()
    X[:, :2] = 0
    result = check(X, y, solver, PENALTIES[penalty])
    np.testing.assert_allclose(result.model.coef_[0], 0, atol=1e-12)


@pytest.mark.parametrize(
    ("penalty", "rare"),
    [*((name, 1 / 3) for name in PENALTIES), ("ridge", 0.1), ("lasso", 1e6 + 0.1)],
)
@pytest.mark.parametrize("solver", [*SOLVERS, "saga"])
def test_a_column_that_is_constant_on_the_coreset(solver, penalty, rare):
    """Its rounding errors about the mean are no direction: other rows would show it.

    Column 0 is `rare` in each row of the uniform sample of seed 3, and 5 elsewhere.
    """
    X, y = data(n=100)
    X[:, 0], X[:, 3] = rare, 0.7
    options = (SAGA if solver == "saga" else SOLVERS[solver]) | PENALTIES[penalty]
    strategy = CoresetVRLR(
        SIZE, sampling="uniform", seed=3, **options | {"max_iter": 4}
    )
    grid = Rows(parties(X, y))
    strategy.start(grid)
    X[np.setdiff1d(np.arange(100), grid.rows), 0] = 5.0
    result = strategy.start(InProcessGrid(parties(X, y)))
    assert result.model.coef_[0][0] == pytest.approx(0, abs=1e-12)
    assert result.model.coef_[1][1] == pytest.approx(0, abs=1e-12)
    assert np.abs(result.model.intercept_) < 50


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_all_columns_are_zero(solver, penalty, free):
    X, y = data()
    result = check(X * 0, y, solver, PENALTIES[penalty], fit_intercept=free)
    np.testing.assert_allclose(np.concatenate(result.model.coef_), 0, atol=1e-12)


@pytest.mark.parametrize("y", [0.0, 7.0])
@pytest.mark.parametrize("solver", ["central", "cg"])
def test_labels_that_are_all_equal(solver, y):
    X, _ = data()
    options = SOLVERS[solver]
    result = simulate(
        CoresetVRLR(SIZE, evaluate="full", **options), parties(X, np.full(len(X), y)), 0
    )
    assert result.model.intercept_ == pytest.approx(y)
    np.testing.assert_allclose(np.concatenate(result.model.coef_), 0, atol=1e-8)
    assert result.metrics["full_train_loss"] == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        (np.float32, np.float32),
        (np.int64, np.int32),
        (np.int8, np.int8),
        (np.uint8, np.uint8),
        (bool, bool),
    ],
)
@pytest.mark.parametrize("solver", SOLVERS)
def test_types_of_data(solver, columns, labels):
    """Squares of int8 overflow, differences of uint8 wrap: none of it may happen."""
    X, y = data()
    if columns is bool:
        X, y = np.median(X, axis=0) < X, np.median(y) < y
    elif np.dtype(columns).kind != "f":
        X, y = 100 * X / np.abs(X).max(), 100 * y / np.abs(y).max()
        if columns is np.uint8:
            X, y = np.abs(X), np.abs(y)
    X, y = X.astype(columns), y.astype(labels)
    result = check(X, y, solver, evaluate="full")
    exact = (result.model.predict(np.split(X.astype(float), 3, axis=1)) - y) ** 2
    assert result.metrics["full_train_loss"] == pytest.approx(exact.mean(), rel=1e-7)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_read_only_memory_maps(solver, order, tmp_path):
    X, y = data()
    blocks = np.split(X, 3, axis=1)
    mapped = []
    for j, block in enumerate([*blocks, y]):
        np.save(tmp_path / f"{j}.npy", np.asarray(block, order=order))
        mapped.append(np.load(tmp_path / f"{j}.npy", mmap_mode="r"))
    strategy = CoresetVRLR(SIZE, **SOLVERS[solver], evaluate="full", test_fraction=0.2)
    on_disk = [Party(mapped[0]), Party(mapped[1]), Party(mapped[2], y=mapped[3])]
    actual = simulate(strategy, on_disk, seed=1)
    expected = simulate(strategy, parties(X, y), seed=1)
    for a, b in zip(actual.model.coef_, expected.model.coef_, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)
    assert actual.metrics == pytest.approx(expected.metrics, rel=1e-8)


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_all_rows_give_the_pooled_model(solver, penalty, free):
    """``sampling="full"``: the same conditions with all rows and weights 1."""
    X, y = data(n=90)
    named = PENALTIES[penalty] | SOLVERS[solver] | {"fit_intercept": free}
    strategy = CoresetVRLR(SIZE, sampling="full", **named)
    result = simulate(strategy, parties(X, y), seed=0)
    target = Penalty.named(strategy.regularizer, strategy.alpha, strategy.l1_ratio)
    actual = violation(X, y, np.ones(90), 90, target, result.model, free)
    assert actual < EXACT[solver]


@pytest.mark.parametrize("solver", ["cg", "saga"])
@pytest.mark.parametrize("penalty", ["none", "lasso"])
def test_stopped_before_tol_it_says_so(solver, penalty, caplog):
    options = PENALTIES[penalty] | {"solver": solver, "max_iter": 2, "tol": 1e-12}
    result = simulate(CoresetVRLR(SIZE, **options), parties(*data()), seed=0)
    assert result.metrics["converged"] == 0.0
    assert f"{solver} stopped after" in caplog.text
    passes = math.ceil(SIZE / 32) if solver == "saga" else 1
    assert result.metrics["iterations"] == 2 * passes


def test_conjugate_gradients_take_one_round_trip_a_dimension_at_most():
    """In exact arithmetic they end in rank steps; 6 columns and an intercept."""
    result = check(*data(), "cg", limit=1e-7)
    trips = len(result.ledger.waits["linear_cg"])
    assert trips == result.metrics["iterations"] + 1 <= 8


def test_conjugate_gradients_keep_their_step_with_a_strong_ridge():
    """The energy of the penalty is known without asking: it sets the step.

    Exact line searches end in at most as many steps as there are columns, here 6 with
    no two of them orthogonal; a wrong energy needs more.
    """
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(200, 6)) @ rng.normal(size=(6, 6)), rng.normal(size=200)
    strategy = CoresetVRLR(
        SIZE, "ridge", 1.0, sampling="full", solver="cg", tol=1e-9, max_iter=50
    )
    result = simulate(strategy, parties(X, y), seed=0)
    assert result.metrics["iterations"] <= 6
    ridge = Penalty(l2=1.0)
    assert violation(X, y, np.ones(200), 200, ridge, result.model) < 1e-8


def test_conjugate_gradients_need_one_step_where_parties_do_not_overlap():
    """Orthogonal blocks about their means: each party's own solution is the whole."""
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(np.column_stack([np.ones(200), rng.normal(size=(200, 6))]))
    X = Q[:, 1:] @ np.diag([1, 50, 3, 1, 1e3, 2])
    y = X @ np.arange(6.0) + rng.normal(size=200)
    result = simulate(
        CoresetVRLR(SIZE, sampling="full", solver="cg"), parties(X, y), seed=0
    )
    assert result.metrics["iterations"] == 1
    assert result.metrics["sigma_min_x"] == pytest.approx(1.0, abs=1e-6)
    assert violation(X, y, np.ones(200), 200, Penalty(), result.model) < 1e-9


def test_sigma_min_x_sees_columns_of_two_parties_that_overlap():
    """Two columns at an angle with cosine c: sigma_min^2 = 1 - c."""
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(np.column_stack([np.ones(200), rng.normal(size=(200, 2))]))
    c = 0.9
    X = np.column_stack([Q[:, 1], c * Q[:, 1] + math.sqrt(1 - c**2) * Q[:, 2]])
    y = X @ [1.0, -2.0] + 0.1 * rng.normal(size=200)
    result = simulate(
        CoresetVRLR(
            SIZE, sampling="full", solver="cg", tol=1e-10, allow_two_parties=True
        ),
        parties(X, y, (1, 1)),
        seed=0,
    )
    assert result.metrics["sigma_min_x"] == pytest.approx(math.sqrt(1 - c), rel=1e-6)


@pytest.mark.parametrize("masking", ["ring", "plain"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_mean_squared_error_over_all_rows(masking, scale):
    X, y = data(n=101)
    y *= scale
    strategy = CoresetVRLR(
        40, solver="cg", test_fraction=0.25, evaluate="full", masking=masking, seed=5
    )
    result = strategy.start(InProcessGrid(parties(X, y)))
    train, test = split_rows(101, 0.25, 5)
    squares = (result.model.predict(np.split(X, 3, axis=1)) - y) ** 2
    assert result.metrics["test_loss"] == pytest.approx(squares[test].mean(), rel=1e-7)
    assert result.metrics["full_train_loss"] == pytest.approx(
        squares[train].mean(), rel=1e-7
    )
    r2 = r2_score(y[test], result.model.predict(np.split(X[test], 3, axis=1)))
    assert result.metrics["test_r2"] == pytest.approx(r2, rel=1e-6)


@pytest.mark.parametrize("count", [2, 3])
def test_the_error_of_pooled_rows_is_that_of_the_model(count):
    X, y = data()
    X[:, 1] += 1e3  # means that cancel
    blocks = np.array_split(X, count, axis=1)
    federation = [Party(b, y if j == 0 else None) for j, b in enumerate(blocks)]
    strategy = CoresetVRLR(
        60, solver="central", test_fraction=0.3, evaluate="full", allow_two_parties=True
    )
    result = simulate(strategy, federation, seed=2)
    train, test = split_rows(len(y), 0.3, 2)
    squares = (result.model.predict(blocks) - y) ** 2
    near = functools.partial(pytest.approx, rel=1e-6)
    assert result.metrics["test_loss"] == near(squares[test].mean())
    assert result.metrics["full_train_loss"] == near(squares[train].mean())
    assert result.ledger.round_trips == 3 + 2


def test_a_column_far_from_zero():
    """The shift is above its first bound: the same answer is asked for again, wider."""
    X, y = data()
    X = X + np.array([1e9, 0, 0, 0, 0, 0])
    grid = InProcessGrid(parties(X, y, (2, 2, 2)))
    result = CoresetVRLR(SIZE, solver="cg", seed=3).start(grid)
    assert len(result.ledger.waits["linear_coefficients"]) == 2
    assert result.metrics["converged"]
