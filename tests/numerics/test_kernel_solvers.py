"""Losses and solvers against differences, scikit-learn and the conditions of optima."""

import math

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from vfl_flower.numerics import kernel_solvers
from vfl_flower.numerics.kernel_solvers import GRID, LOSSES, PATH, _wrong, fit
from vfl_flower.numerics.random_features import RandomFeatures, features

BINARY = [name for name in LOSSES if name != "square"]
RNG = np.random.default_rng  # draws folds, where a strength is to be chosen


def data(n=80, M=12, C=1, seed=0, dtype=np.uint16, regression=False):
    rng = np.random.default_rng(seed)
    turns = rng.uniform(size=(n, 3)) @ rng.normal(size=(3, M)) + rng.uniform(size=M)
    turns -= np.floor(turns)
    bits = {np.uint16: 16, np.uint32: 32}.get(dtype)
    angles = np.floor(turns * 2**bits).astype(dtype) if bits else turns
    Z = features(angles) / math.sqrt(M)
    Y = Z @ rng.normal(size=(M, C)) + 0.3 * rng.normal(size=(n, C))
    if regression:
        return angles, Z, 7 + 3 * Y
    if C == 1:
        return angles, Z, np.where(np.median(Y) < Y, 1.0, -1.0)
    return angles, Z, 2.0 * np.eye(C)[Y.argmax(axis=1)] - 1


def objective_of(fitted, Z, Y, loss, lam):
    w, scores = fitted.coef, Z @ fitted.coef + fitted.intercept
    return LOSSES[loss].value(scores, Y).mean() + lam / 2 * (w**2).sum()


def predict(angles, fitted):
    Z = features(angles) / math.sqrt(angles.shape[1])
    return Z @ fitted.coef + fitted.intercept


def brute_force(Z, y, lam):
    n, scores = len(y), []
    for i in range(n):
        rest = np.arange(n) != i
        mean, level = Z[rest].mean(axis=0), y[rest].mean()
        Zc = Z[rest] - mean
        dual = np.linalg.solve(Zc @ Zc.T + n * lam / 2 * np.eye(n - 1), y[rest] - level)
        scores.append((Z[i] - mean) @ (Zc.T @ dual) + level)
    return np.array(scores)


# -- losses ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_by_differences(name):
    loss, step = LOSSES[name], 1e-6
    u = np.linspace(-4, 4, 81) + 0.0123  # away from the kinks of the smooth hinge
    for y in (-np.ones(81), np.ones(81)):
        slope = (loss.value(u + step, y) - loss.value(u - step, y)) / (2 * step)
        np.testing.assert_allclose(loss.derivative(u, y), slope, atol=1e-8)
        curve = (loss.derivative(u + step, y) - loss.derivative(u - step, y)) / step / 2
        np.testing.assert_allclose(loss.second(u, y), curve, atol=1e-8)
        assert (np.abs(loss.derivative(u, y)) <= loss.slope).all()
        assert (loss.second(u, y) <= loss.curvature).all()


def test_losses_at_known_points():
    """Table 1 at z = -1, 0, 1/2, 1, 2 for y = 1, and the same for y = -1, u = -z."""
    z = np.array([-1, 0, 0.5, 1, 2])
    expected = {
        "square": [4, 1, 0.25, 0, 1],
        "smooth_hinge": [1.5, 0.5, 0.125, 0, 0],
        "logistic": [math.log(1 + math.exp(-v)) for v in z],
    }
    for name, values in expected.items():
        for y in (1.0, -1.0):
            np.testing.assert_allclose(LOSSES[name].value(y * z, y), values, rtol=1e-14)


def test_losses_far_out():
    u = np.array([-1e4, 1e4])
    loss = LOSSES["logistic"]
    np.testing.assert_array_equal(loss.value(u, 1.0), [1e4, 0])
    np.testing.assert_array_equal(loss.derivative(u, 1.0), [-1, 0])
    np.testing.assert_array_equal(loss.second(u, 1.0), [0, 0])
    assert loss.derivative(np.array(40.0), 1.0) == pytest.approx(-math.exp(-40), 1e-12)
    hinge = LOSSES["smooth_hinge"]
    np.testing.assert_array_equal(hinge.value(u, 1.0), [1e4 + 0.5, 0])
    np.testing.assert_array_equal(hinge.derivative(u, 1.0), [-1, 0])


# -- the optimum ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(80, 12), (12, 12), (12, 40)])
@pytest.mark.parametrize("lam", [1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_is_zero(loss, lam, shape):
    angles, Z, Y = data(*shape)
    actual = fit(angles, Y, loss, lam, RNG(0), tol=1e-7, max_iter=20_000)
    w, b = actual.coef, actual.intercept
    R = LOSSES[loss].derivative(Z @ w + b, Y) / len(Y)
    assert actual.converged
    assert actual.cv_score is None
    assert np.abs(Z.T @ R + lam * w).max() < 1e-7
    assert np.abs(R.sum()) < 1e-7


@pytest.mark.parametrize("shape", [(80, 12), (12, 40)])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_default_tolerance_is_close_to_the_optimum(loss, shape):
    angles, Z, Y = data(*shape)
    for lam in (1e-5, 1e-3, 1e-1):
        value, least = (
            objective_of(fit(angles, Y, loss, lam, RNG(0), **how), Z, Y, loss, lam)
            for how in ({}, {"tol": 1e-7, "max_iter": 2000})
        )
        assert least <= value + 1e-12
        assert value - least < 1e-4 * least


def newton(Z, y, loss, lam, v):
    """Return the least objective that Newton's method with halved steps finds."""
    Z1 = np.hstack([Z, np.ones((len(Z), 1))])
    ridge = np.append(np.full(Z.shape[1], lam), 0)
    value, trials = LOSSES[loss].value, 0.5 ** np.arange(40)
    for _ in range(100):
        u = Z1 @ v
        g = Z1.T @ LOSSES[loss].derivative(u, y) / len(y) + ridge * v
        curvature = LOSSES[loss].second(u, y) / len(y)
        H = (Z1.T * curvature) @ Z1 + np.diag(ridge + 1e-13)
        step = np.linalg.solve(H, g)
        tried = v[:, None] - trials * step[:, None]
        values = value(Z1 @ tried, y[:, None]).mean(axis=0) + ridge @ tried**2 / 2
        v = tried[:, values.argmin()]
        if g @ step < 1e-14:
            break
    return values.min()


@pytest.mark.parametrize("labels", ["separable", "rare"])
@pytest.mark.parametrize("loss", BINARY)
def test_converged_is_said_of_the_optimum_only(loss, labels):
    """Losses of 1e-1 to 1e-9, where a gradient below 1e-3 says nothing."""
    X = np.random.default_rng(0).normal(size=(400, 3))
    positive = X[:, 0] * X[:, 1] > 0 if labels == "separable" else X[:, 0] > 1.9
    y = np.where(positive, 1.0, -1.0)
    angles = RandomFeatures("gaussian", 3, 1.5, 1).angles(X, 0, 60, 16)
    Z, said = features(angles) / math.sqrt(60), []
    for lam in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10):
        actual = fit(angles, y[:, None], loss, lam, RNG(0), max_iter=300)
        value = objective_of(actual, Z, y[:, None], loss, lam)
        best = newton(Z, y, loss, lam, np.append(actual.coef, actual.intercept))
        assert not actual.converged or value <= 1.05 * best
        said.append(actual.converged)
    assert sum(said) >= 2


@pytest.mark.parametrize("loss", LOSSES)
def test_a_huge_strength_leaves_the_intercept(loss):
    angles, _, Y = data()
    actual = fit(angles, Y, loss, 1e14, RNG(0))
    assert actual.converged
    assert np.abs(actual.coef).max() < 1e-12


def test_a_score_of_0_is_of_the_class_that_it_is_answered_as():
    """The class -1, so that it is wrong for one class only."""
    scores, Y = np.array([[[0.0], [0], [1], [-1]], [[1], [-1], [1], [1]]])
    assert _wrong(scores, Y).tolist() == [True, False, False, True]


@pytest.mark.parametrize("shape", [(80, 12), (12, 40)])
def test_square_is_ridge(shape):
    angles, Z, Y = data(*shape, C=2, regression=True)
    for lam in (1e-6, 1e-2):
        actual = fit(angles, Y, "square", lam, RNG(0))
        reference = Ridge(alpha=len(Y) * lam / 2, solver="svd").fit(Z, Y)
        np.testing.assert_allclose(actual.coef, reference.coef_.T, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(actual.intercept, reference.intercept_, rtol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
def test_one_vs_rest_is_separate_fits(loss):
    angles, _, Y = data(C=4)
    together = fit(angles, Y, loss, 1e-3, RNG(0), tol=1e-7)
    for c in range(4):
        alone = fit(angles, Y[:, [c]], loss, 1e-3, RNG(0), tol=1e-7)
        np.testing.assert_allclose(together.coef[:, [c]], alone.coef, atol=1e-5)
        np.testing.assert_allclose(together.intercept[c], alone.intercept[0], atol=1e-5)


@pytest.mark.parametrize("shape", [(80, 12), (12, 40)])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.float64])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_block_size_does_not_matter(loss, dtype, shape, monkeypatch):
    angles, _, Y = data(*shape, C=3, dtype=dtype)
    whole = fit(angles, Y, loss, 1e-3, RNG(0))
    monkeypatch.setattr(kernel_solvers, "BLOCK_BYTES", 8 * 7 * min(shape))
    pieces = fit(angles, Y, loss, 1e-3, RNG(0))
    np.testing.assert_allclose(pieces.coef, whole.coef, atol=1e-8)


def test_a_stopped_iteration_says_so():
    angles, _, Y = data()
    assert not fit(angles, Y, "logistic", 1e-6, RNG(0), max_iter=2).converged


@pytest.mark.filterwarnings("error")
def test_the_multiple_of_scores_that_separate_the_classes_is_bounded():
    """The loss alone has no optimum then."""
    angles, _, Y = data(n=37, C=3)
    scores = Y * RNG(0).uniform(0.3, 8, size=Y.shape)
    given = {"offset": scores, "earlier": scores}
    for strength in 1, 1.0:
        actual = fit(angles, Y, "logistic", strength, RNG(0), **given)
        assert actual.converged
        assert np.abs(actual.turn).max() < 100


@pytest.mark.parametrize("loss", LOSSES)
def test_features_without_spread(loss):
    """Of equal rows only the intercept is left."""
    angles = np.full((6, 4), 123, dtype=np.uint16)
    Y = np.array([[1.0, 1, 1, -1, -1, -1]]).T
    actual = fit(angles, Y, loss, 1e-2, RNG(0))
    np.testing.assert_allclose(predict(angles, actual), 0, atol=1e-9)


# -- the strength ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(60, 12), (20, 40)])
def test_leave_one_out_is_brute_force(shape):
    angles, Z, Y = data(*shape, regression=True)
    actual = fit(angles, Y, "square", None, RNG(0))
    scores = dict(actual.path)
    assert list(scores) == GRID.tolist()
    for lam in GRID[[6, 12, 18]]:
        error = np.mean((brute_force(Z, Y[:, 0], lam) - Y[:, 0]) ** 2) / Y.var()
        assert scores[lam] == pytest.approx(error, rel=1e-6)
    assert actual.cv_score == min(scores.values()) == scores[actual.regularization]


def test_leave_one_out_of_three_classes_is_brute_force():
    angles, Z, Y = data(C=3)
    scores = dict(fit(angles, Y, "square", None, RNG(0)).path)
    for lam in GRID[[10, 16]]:
        columns = np.column_stack([brute_force(Z, y, lam) for y in Y.T])
        wrong = np.mean(columns.argmax(axis=1) != Y.argmax(axis=1))
        assert scores[lam] == pytest.approx(wrong)


def test_the_unit_of_the_labels_does_not_matter():
    angles, _, Y = data(regression=True)
    actual = fit(angles, Y, "square", None, RNG(0))
    for unit, shift in ((1e-200, 0), (1e200, 0), (1e3, 1e6)):
        other = fit(angles, shift + unit * Y, "square", None, RNG(0))
        assert other.regularization == actual.regularization
        np.testing.assert_allclose(other.coef, unit * actual.coef, rtol=1e-6)
        assert other.cv_score == pytest.approx(actual.cv_score, rel=1e-6)


def test_labels_are_classes_where_the_caller_says_so():
    angles, _, Y = data()
    actual = [fit(angles, Y, "square", None, RNG(0), classes=c) for c in (True, None)]
    assert actual[0].path == actual[1].path
    real = fit(angles, Y, "square", None, RNG(0), classes=False)
    other = fit(angles, 2 * Y, "square", None, RNG(0))
    assert real.cv_score == pytest.approx(other.cv_score)
    assert real.path != actual[0].path


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("loss", BINARY)
def test_folds_choose_a_strength(loss, C):
    """The scores of folds are those of plain fits to the rows of the other folds."""
    angles, _, Y = data(n=90, C=C)
    actual = fit(angles, Y, loss, None, RNG(3), folds=3, tol=1e-7)
    scores = dict(actual.path)
    assert actual.converged
    assert actual.cv_score == min(scores.values()) == scores[actual.regularization]
    assert list(scores) == PATH[: len(scores)].tolist()
    given = fit(angles, Y, loss, actual.regularization, RNG(0), tol=1e-7)
    np.testing.assert_allclose(actual.coef, given.coef, rtol=1e-4, atol=1e-4)
    again = fit(angles, Y, loss, None, RNG(3), folds=3, tol=1e-7)
    np.testing.assert_array_equal(actual.coef, again.coef)


@pytest.mark.parametrize("loss", BINARY)
def test_folds_leave_rows_out(loss):
    """Labels at random: about half of the rows left out are wrong, whatever fits.

    200 rows; 35 to 65 % is four standard errors, a false alarm in 15,000 seeds. Rows
    that were trained on would be right: 200 features tell 200 rows apart.
    """
    rng = np.random.default_rng(5)
    angles = rng.integers(2**16, size=(200, 200), dtype=np.uint16)
    Y = rng.permutation(np.repeat([[1.0], [-1.0]], 100, axis=0))
    actual = fit(angles, Y, loss, None, RNG(0))
    assert all(0.35 < score < 0.65 for _, score in actual.path)
    close = fit(angles, Y, loss, 1e-6, RNG(0))
    assert (predict(angles, close) * Y > 0).all()


# -- rows left out ---------------------------------------------------------------------


def test_ridge_of_rows_left_out_is_that_without_them():
    """Against the fit on the other rows, whose penalty has n - 1 for n rows."""
    rng = np.random.default_rng(0)
    angles = rng.integers(2**16, size=(30, 6)).astype(np.uint16)
    Y = rng.normal(size=(30, 1)) * 3 + 8
    actual = fit(angles, Y, "square", 0.01, rng, leave_out=True).left_out
    assert fit(angles, Y, "square", 0.01, rng).left_out is None
    for i in (0, 17):
        rest = np.arange(30) != i
        # lambda n stays what it was, as `fit` says of leave-one-out
        without = fit(angles[rest], Y[rest], "square", 0.01 * 30 / 29, rng)
        expected = predict(angles[i : i + 1], without)
        np.testing.assert_allclose(actual[i], expected[0], rtol=1e-8)


def test_folds_left_out_have_the_score_of_their_strength():
    rng = np.random.default_rng(1)
    angles = rng.integers(2**16, size=(200, 8)).astype(np.uint16)
    Y = np.where(features(angles)[:, :1] + rng.normal(size=(200, 1)) > 0, 1.0, -1.0)
    found = fit(angles, Y, "logistic", None, rng)
    wrong = np.mean((found.left_out > 0) != (Y > 0))
    assert 0 < wrong == found.cv_score < 0.4


@pytest.mark.parametrize("loss", ["square", "logistic", "smooth_hinge"])
def test_a_row_of_weight_three_is_three_rows(loss):
    """The same objective, so the same optimum."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(size=(60, 20))
    Y = np.where(np.sin(7 * angles[:, :1]) + rng.normal(size=(60, 1)) > 0.5, 1.0, -1.0)
    times = rng.integers(1, 4, size=60)
    exact = {"tol": 1e-7, "classes": True}
    weighted = fit(angles, Y, loss, 1e-2, rng, weights=5.0 * times, **exact)
    rows = np.repeat(np.arange(60), times)
    repeated = fit(angles[rows], Y[rows], loss, 1e-2, rng, **exact)
    np.testing.assert_allclose(weighted.coef, repeated.coef, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(weighted.intercept, repeated.intercept, atol=1e-4)
    alike = fit(angles, Y, loss, 1e-2, rng, **exact)
    assert np.abs(alike.coef - weighted.coef).max() > 0.01


@pytest.mark.parametrize("loss", ["square", "logistic"])
def test_strengths_are_chosen_by_weighted_errors(loss):
    rng = np.random.default_rng(0)
    angles = rng.uniform(size=(200, 10))
    Y = np.where(angles[:, :1] > 0.85, 1.0, -1.0)
    weights = np.where(Y[:, 0] > 0, 20.0, 1.0)
    found = fit(angles, Y, loss, None, np.random.default_rng(1), weights=weights)
    wrong = (np.sign(found.left_out) != Y)[:, 0]
    assert found.cv_score == pytest.approx(weights @ wrong / weights.sum(), abs=0.05)
