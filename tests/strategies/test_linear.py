"""Solvers whose rows stay at the parties, against the conditions of an optimum."""

import itertools
import math
from functools import partial

import numpy as np
import optimality
import pytest
from federations import by_columns

from vfl_flower.numerics.linear import Penalty
from vfl_flower.simulation import InProcessGrid, simulate
from vfl_flower.strategies import CoresetVRLR
from vfl_flower.testing import Recorder

PENALTIES = {
    "none": {},
    "ridge": {"regularizer": "ridge", "alpha": 0.1},
    "lasso": {"regularizer": "lasso", "alpha": 1.0},
    "elasticnet": {"regularizer": "elasticnet", "alpha": 1.5, "l1_ratio": 2 / 3},
}
SOLVERS = {
    "central": {"solver": "central"},
    "cg": {"solver": "cg", "tol": 3e-8, "max_iter": 500},
}
SAGA = {"solver": "saga", "tol": 3e-4, "max_iter": 300, "batch_size": 40}
FULL = {"sampling": "full", "solver": "cg"}
EXACT = {"central": 2e-6, "cg": 1e-7, "saga": 3e-3}
SIZE = 80


def data(seed=0, n=200, d=6):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.uniform(0.2, 5, d) + rng.normal(size=d)
    return X, X @ rng.normal(size=d) + 4 + rng.normal(size=n)


def parties(X, y, widths=(2, 2, 2), holder=-1):
    return by_columns(X, y, widths, holders=[holder])


class Rows(Recorder):
    """Keeps what went to and from the server."""

    @property
    def rows(self):
        """Return the rows that the server asked for."""
        asked = [e.values for e in self.transcript if not e.up]
        names = "rows", "coreset.rows"
        return [v[name] for v in asked for name in names if name in v][-1].astype(int)

    def coreset(self):
        """Return S and w = G / (m sum_j g_ij); masking is "plain"."""
        totals, scores = (
            sum(e.values[name] for e in self.transcript if e.up and name in e.values)
            for name in ("total", "scores")
        )
        return self.rows, totals / (len(self.rows) * scores)


def violation(X, y, w, n, penalty, model, free=True):
    """Return how far a model is from an optimum; what is nearly 0 counts as 0."""
    theta, X, y = np.concatenate(model.coef_), X.astype(float), y.astype(float)
    theta[np.abs(theta) < 1e-9 * np.sqrt(w @ y**2 / n)] = 0
    data = X, y, w, n
    return optimality.violation(*data, penalty, theta, model.intercept_, free)


def check(X, y, solver, penalty=None, **options):
    """Run a solver on a coreset and assert that its model is the optimum there."""
    widths, holder = options.pop("widths", (3, 3)), options.pop("holder", -1)
    grid = Rows(parties(X, y, widths, holder))
    named = SAGA if solver == "saga" else SOLVERS[solver]
    named = (penalty or {}) | named | {"allow_two_parties": len(widths) == 2} | options
    strategy = CoresetVRLR(SIZE, seed=3, masking="plain", **named)
    result = strategy.start(grid)
    full = strategy.sampling == "full"
    rows, w = (np.arange(len(y)), np.ones(len(y))) if full else grid.coreset()
    target = Penalty.named(strategy.regularizer, strategy.alpha, strategy.l1_ratio)
    n = len(y) - round(strategy.test_fraction * len(y))
    actual = violation(
        X[rows], y[rows], w, n, target, result.model, strategy.fit_intercept
    )
    assert actual < EXACT[solver]
    assert result.metrics.get("converged", 1.0) == 1.0
    assert strategy.fit_intercept or result.model.intercept_ == 0
    assert [len(c) for c in result.model.coef_] == list(widths)
    return result


@pytest.mark.parametrize(
    ("solver", "penalty", "options"),
    [
        *((solver, penalty, {}) for solver in SOLVERS for penalty in PENALTIES),
        ("cg", "none", {"fit_intercept": False}),
        ("central", "elasticnet", {"sampling": "full"}),  # all weights are 1
        ("cg", "none", {"sampling": "full"}),
        # Any split of the columns, and any label holder.
        ("cg", "lasso", {"widths": (2, 2, 2), "holder": 0, "fit_intercept": False}),
        ("cg", "elasticnet", {"widths": (1, 5), "holder": 0, "tol": 1e-9}),
        ("cg", "ridge", {"widths": (1, 1, 1, 2, 1)}),
    ],
)
def test_model_is_the_optimum_on_the_coreset(solver, penalty, options):
    check(*data(), solver, PENALTIES[penalty], **options)


def small_column():
    X, y = data(d=3)
    return X * np.array([1e-3, 1, 1]), y


def of_int8(d=6):
    X, y = data(d=d)
    X, y = 100 * X / np.abs(X).max(), 100 * y / np.abs(y).max()
    return X.astype(np.int8), y.astype(np.int8)


@pytest.mark.parametrize(
    ("made", "penalty", "options"),
    [
        (partial(data, d=3), "lasso", {"test_fraction": 0.3, "holder": 0}),
        (small_column, "ridge", {"fit_intercept": False}),
        (partial(of_int8, 3), "none", {}),
    ],
)
def test_model_of_saga_is_the_optimum_on_the_coreset(made, penalty, options):
    check(*made(), "saga", PENALTIES[penalty], widths=(2, 1), **options)


def rank_deficient(X):
    """Let columns repeat within party 0 and across both parties."""
    X = X.copy()
    X[:, 1] = -3 * X[:, 0]
    X[:, 5] = X[:, 2] + X[:, 0]
    return X


def in_units(*units):
    return lambda X: X * np.array(units)


# Of pooled rows tests/numerics/test_linear.py has the same.
@pytest.mark.parametrize(
    ("change", "scale", "penalty", "free"),
    [
        # The conditions of `violation` are relative: the limits are the same.
        (in_units(1), 1e-6, "lasso", True),
        (in_units(1e-3, 1, 1, 1e3, 1, 1), 1, "none", True),
        (in_units(1e-3, 1, 1, 1e3, 1, 1), 1e6, "lasso", True),
        (rank_deficient, 1, "none", True),
        (in_units(0, 0, 1, 1, 1, 1), 1, "elasticnet", True),
        (in_units(0), 1, "none", False),
        (in_units(0), 1, "lasso", True),
    ],
)
def test_conjugate_gradients_on_columns_and_labels_of_any_size(
    change, scale, penalty, free
):
    """Units from 1e-3 to 1e3, columns without full rank, and columns that are zero."""
    X, y = data()
    X, options = change(X), dict(PENALTIES[penalty])
    if "alpha" in options:
        options["alpha"] *= scale
    result = check(X, y * scale, "cg", options, fit_intercept=free)
    coefficients = np.concatenate(result.model.coef_)
    np.testing.assert_allclose(coefficients[~X.any(axis=0)], 0, atol=1e-12)
    assert np.abs(coefficients).max() < 1e3 * max(scale, 1)


@pytest.mark.parametrize(
    ("solver", "penalty", "rare"),
    [
        ("central", "none", 1 / 3),
        ("central", "lasso", 1e6 + 0.1),
        ("cg", "none", 1 / 3),
        ("cg", "ridge", 0.1),
        ("cg", "elasticnet", 1 / 3),
        ("cg", "lasso", 1e6 + 0.1),
        ("saga", "ridge", 0.1),
        ("saga", "lasso", 1e6 + 0.1),
    ],
)
def test_a_column_that_is_constant_on_the_coreset(solver, penalty, rare):
    """Its rounding errors about the mean are no direction: other rows would show it.

    Column 0 is `rare` in each row of the uniform sample of seed 3, and 5 elsewhere.
    """
    X, y = data(n=100)
    X[:, 0], X[:, 3] = rare, 0.7
    named = SAGA if solver == "saga" else SOLVERS[solver]
    options = named | PENALTIES[penalty] | {"max_iter": 2}
    strategy = CoresetVRLR(SIZE, sampling="uniform", seed=3, **options)
    grid = Rows(parties(X, y))
    strategy.start(grid)
    X[np.setdiff1d(np.arange(100), grid.rows), 0] = 5.0
    result = strategy.start(InProcessGrid(parties(X, y)))
    assert result.model.coef_[0][0] == pytest.approx(0, abs=1e-12)
    assert result.model.coef_[1][1] == pytest.approx(0, abs=1e-12)
    assert np.abs(result.model.intercept_) < 50


@pytest.mark.parametrize(("solver", "y"), [("central", 7.0), ("cg", 0.0), ("cg", 7.0)])
def test_labels_that_are_all_equal(solver, y):
    X, _ = data()
    strategy = CoresetVRLR(SIZE, evaluate="full", **SOLVERS[solver])
    result = simulate(strategy, parties(X, np.full(len(X), y)), 0)
    assert result.model.intercept_ == pytest.approx(y)
    np.testing.assert_allclose(np.concatenate(result.model.coef_), 0, atol=1e-8)
    assert result.metrics["full_train_loss"] == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(
    ("solver", "dtype"),
    [("central", np.int8), *(("cg", t) for t in (np.float32, np.int8, np.uint8, bool))],
)
def test_types_of_data(solver, dtype):
    """Squares of int8 overflow, differences of uint8 wrap: none of it may happen."""
    X, y = data()
    if dtype is bool:
        X, y = np.median(X, axis=0) < X, np.median(y) < y
    elif dtype is not np.float32:
        X, y = of_int8()
    X, y = (abs(X), abs(y)) if dtype is np.uint8 else (X, y)
    X, y = X.astype(dtype), y.astype(dtype)
    result = check(X, y, solver, evaluate="full")
    exact = (result.model.predict(np.split(X.astype(float), 2, axis=1)) - y) ** 2
    assert result.metrics["full_train_loss"] == pytest.approx(exact.mean(), rel=1e-7)


@pytest.mark.parametrize(
    ("solver", "penalty"), [("cg", "none"), ("cg", "lasso"), ("saga", "lasso")]
)
def test_stopped_before_tol_it_says_so_and_what_remains(solver, penalty, caplog):
    options = PENALTIES[penalty] | {"solver": solver, "max_iter": 2, "tol": 1e-12}
    result = simulate(CoresetVRLR(SIZE, **options), parties(*data()), seed=0)
    assert result.metrics["converged"] == 0.0
    assert f"{solver} stopped after" in caplog.text
    trips_a_pass = math.ceil(SIZE / 32) if solver == "saga" else 1
    assert result.metrics["iterations"] == 2 * trips_a_pass
    trips, _, remaining = zip(*result.traces["remaining"], strict=True)
    assert trips[1] - trips[0] == trips_a_pass
    assert min(remaining) > 0
    assert len(remaining) == 2


def test_conjugate_gradients_keep_their_step_with_a_strong_ridge():
    """The energy of the penalty is known without asking: it sets the step.

    Exact line searches end in at most as many steps as there are columns, here 6 with
    no two of them orthogonal; a wrong energy needs more.
    """
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(200, 6)) @ rng.normal(size=(6, 6)), rng.normal(size=200)
    strategy = CoresetVRLR(SIZE, "ridge", 1.0, tol=1e-9, max_iter=50, **FULL)
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
    strategy = CoresetVRLR(SIZE, sampling="full", solver="cg")
    result = simulate(strategy, parties(X, y), seed=0)
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
    strategy = CoresetVRLR(SIZE, tol=1e-10, allow_two_parties=True, **FULL)
    result = simulate(strategy, parties(X, y, (1, 1)), seed=0)
    assert result.metrics["sigma_min_x"] == pytest.approx(math.sqrt(1 - c), rel=1e-6)


def test_a_column_far_from_zero():
    """The shift is above its first bound: the same answer is asked for again, wider."""
    X, y = data()
    X = X + np.array([1e9, 0, 0, 0, 0, 0])
    grid = InProcessGrid(parties(X, y, (2, 2, 2)))
    result = CoresetVRLR(SIZE, solver="cg", seed=3).start(grid)
    assert len(result.ledger.waits["linear_coefficients"]) == 2
    assert result.metrics["converged"]


@pytest.mark.parametrize(("m", "b"), [(5, 3), (2, 2), (1, 1)])
def test_the_step_of_saga_is_that_of_the_batches_with_the_largest_row(m, b):
    """1 / (3 L): L is the mean smoothness of the batches that have this row."""
    grid = Rows(parties(*data()))
    options = {"solver": "saga", "batch_size": b, "max_iter": 1, "masking": "plain"}
    CoresetVRLR(m, fit_intercept=False, **options).start(grid)
    of_rows = 2 * m * sum(e.values.get("norms", 0) for e in grid.transcript if e.up)
    batches = (list(rows) for rows in itertools.combinations(range(m), b))
    L = np.mean([of_rows[rows].mean() for rows in batches if of_rows.argmax() in rows])
    steps = [e.values["step_size"] for e in grid.transcript if "step_size" in e.values]
    np.testing.assert_allclose(steps, 1 / (3 * L))
